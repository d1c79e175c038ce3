"""How rows become segments: by day, by range, and with bytes that follow from the rows alone."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from semel.errors import ConfigError
from semel.kernel.envelope import Envelope
from semel.kernel.ledger import Mark
from semel.kernel.ops import Append, Unit
from semel.runtime.export import exporter
from semel.runtime.export.exporter import (
    ExportOptions,
    Progress,
    _batch,
    _Page,
    _Range,
    dataset_folder,
    dataset_schema,
    export,
    forget,
    mark_text,
    parse_mark,
    segments,
)
from semel.stores.memory import MemoryStore

DAY_US = 86_400_000_000


def page(*at: int, first: int = 1) -> _Page:
    """Rows with these times, in microseconds since 1970."""
    return _Page({"seq": range(first, first + len(at)), "xid": [None] * len(at), "at": at})


def batch(rows: int) -> object:
    return pa.record_batch({"n": list(range(rows))})


def appended(*ids: str) -> MemoryStore:
    store = MemoryStore()
    for id in ids:
        store.commit([Unit((Append("orders", Envelope(id, "app")),))])
    return store


@pytest.fixture
def few_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are read one by one."""
    monkeypatch.setattr(exporter, "READ_ROWS", 1)


def test_a_mark_is_kept_as_text_with_and_without_a_transaction() -> None:
    for mark in (Mark(0, 7), Mark(3, 7)):
        assert parse_mark(mark_text(mark)) == mark
    assert parse_mark("7") == Mark(0, 7)


def test_a_page_is_cut_behind_the_last_mark_of_a_plan() -> None:
    assert len(page(1, 2, 3).up_to(Mark(0, 2))) == 2
    assert len(page(1, 2, 3).up_to(Mark(0, 9))) == 3
    assert len(page(1, 2, 3).up_to(None)) == 3


def test_rows_of_two_days_become_two_files_of_one_plan() -> None:
    rows = _Range()
    rows.add(page(DAY_US - 1, DAY_US), batch(2))
    rows.add(page(DAY_US - 1, first=3), batch(1))
    plan = rows.plan(1, Mark(0, 0))
    assert [(file.day, file.rows, file.min, file.max) for file in plan.files] == [
        ("1970-01-01", 2, "0.1", "0.3"),
        ("1970-01-02", 1, "0.2", "0.2"),
    ]
    assert (plan.first, plan.last, plan.rows) == ("0.1", "0.3", 3)


def test_a_message_without_a_session_is_a_session_of_its_own_and_kinds_have_names() -> None:
    schema = dataset_schema("index")
    exported = [entry.name for entry in schema]
    assert {"type", "session", "message"} <= set(exported)
    columns: dict[str, list[object]] = {name: [None] * 3 for name in exported if name != "type"}
    columns |= {"kind": [0, 1, 99], "message": ["a", "b", "c"], "session": [None, "s", None]}
    for field in schema:
        if not field.nullable and columns.get(field.name) == [None] * 3:
            columns[field.name] = [0] * 3 if str(field.type).startswith(("int", "timestamp")) else ["x"] * 3
    made = _batch(columns, schema)  # type: ignore[arg-type]
    assert made.column("type").to_pylist() == ["message", "join", "other"]
    assert made.column("session").to_pylist() == ["a", "s", "c"]


def test_each_row_is_in_one_file_however_often_it_is_exported(tmp_path: Path, few_rows: None) -> None:
    store = appended("a", "b", "c")
    first = export(store, tmp_path, "index", ExportOptions(segment_rows=2))
    assert (first.rows, [segment.rows for segment in first.segments]) == (3, [2, 1])
    assert export(store, tmp_path, "index").rows == 0
    store.commit([Unit((Append("orders", Envelope("d", "app")),))])
    assert export(store, tmp_path, "index").rows == 1
    assert [segment.rows for segment in segments(tmp_path, "index")] == [2, 1, 1]


def test_a_file_that_is_in_no_manifest_does_not_count(tmp_path: Path) -> None:
    export(appended("a"), tmp_path, "index")
    (listed,) = segments(tmp_path, "index")
    manifest = next((dataset_folder(tmp_path, "index") / "_manifest").rglob("*.json"))
    manifest.unlink()
    assert segments(tmp_path, "index") == []
    assert (dataset_folder(tmp_path, "index") / listed.path).is_file()


def test_it_stops_between_two_segments_when_it_is_told_to(tmp_path: Path, few_rows: None) -> None:
    store, heard = appended("a", "b", "c"), list[Progress]()
    options = ExportOptions(segment_rows=1, progress=heard.append, stop=lambda: any(each.rows for each in heard))
    assert export(store, tmp_path, "index", options).rows == 1
    assert export(store, tmp_path, "index").rows == 2


def test_what_is_forgotten_begins_again(tmp_path: Path) -> None:
    store = appended("a")
    export(store, tmp_path / "one", "index")
    with pytest.raises(ConfigError):
        export(store, tmp_path / "two", "index")
    forget(store, "index")
    assert export(store, tmp_path / "two", "index").rows == 1


def test_there_is_no_other_dataset(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="use one of: ledger, index"):
        export(MemoryStore(), tmp_path, "ledgers")
