"""Ranges of a store as Arrow, from SQLite and PostgreSQL, without Spark: what a store holds is what a task reads."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from multiprocessing.managers import BaseManager
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from pyspark.sql.datasource import EqualTo, GreaterThan, In, IsNotNull, LessThanOrEqual, StringContains
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from semel.errors import (
    ConfigError,
    EpochChanged,
    InputError,
    NotAStore,
    SchemaTooNew,
    StoreBusy,
    StoreError,
    StoreUnavailable,
)
from semel.kernel.envelope import Envelope
from semel.kernel.ledger import Event, Kind, Mark
from semel.kernel.ops import Append, Log, Op, Outcome, Trim, Unit
from semel.kernel.store import Records, Trimmed
from semel.pubsub.hub.records import RecordKind
from semel.runtime.export.exporter import export
from semel.spark import engines
from semel.spark import reading as reading_module
from semel.spark.engines import SqliteReading
from semel.spark.offsets import HistorySpan, OffsetSpan, Subject
from semel.spark.reading import Condition, StoreReader, can_filter, schema_of
from semel.spark.rows import ARROW, arrow_schema, rows_of
from semel.spark.source import (
    FilteringSemelDataSource,
    RangePartition,
    SemelDataSource,
    condition_of,
    parse_options,
)
from semel.stores.bodies import put_body
from semel.stores.open import open_store

CHAT = Subject(stream="hub/chat")
LEDGER = Subject(dataset="ledger")
INDEX = Subject(dataset="index")
FAR_FUTURE = 4_000_000_000_000_000


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.connected)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        # what must be quoted in a URL, and what SQLite would take for the start of its own options
        folder = tmp_path / "a folder?mode=rw&x=%41#1"
        folder.mkdir()
        return "sqlite:///" + str(folder / "semel.db").replace("%", "%25").replace("?", "%3F").replace("#", "%23")
    given: str = request.getfixturevalue("postgres_url")
    return given


class Writer:
    """A store in another process: in one and the same, the two copies of SQLite would undo each other's locks."""

    def __init__(self, url: str) -> None:
        self._store = open_store(url)

    def commit(self, units: list[Unit]) -> list[Outcome]:
        return self._store.commit(units)

    def read(self, stream: str) -> Records | Trimmed:
        return self._store.read(stream)

    def store_id(self) -> str:
        return self._store.store_id

    def raise_epoch(self) -> None:
        self._store.raise_epoch("restored")

    def export(self, folder: Path, dataset: str) -> None:
        export(self._store, folder, dataset)

    def sweep(self) -> None:
        while self._store.sweep(FAR_FUTURE).more:
            pass

    def lock(self, path: Path) -> None:
        self._store.close()
        self._other = sqlite3.connect(path, isolation_level=None)
        self._other.execute("PRAGMA journal_mode = DELETE")
        self._other.execute("BEGIN EXCLUSIVE")

    def close(self) -> None:
        self._store.close()


class Writers(BaseManager):
    """The other process."""


Writers.register("Writer", Writer)


@pytest.fixture(scope="module")
def writers() -> Iterator[Writers]:
    with Writers(ctx=multiprocessing.get_context("spawn")) as writers:
        yield writers


@pytest.fixture
def store(url: str, writers: Any) -> Iterator[Any]:
    with closing(writers.Writer(url)) as store:
        yield store


@pytest.fixture
def reading(url: str, store: Any) -> Iterator[StoreReader]:
    with closing(StoreReader(url)) as reading:
        yield reading


def commit(store: Any, *ops: Op) -> None:
    store.commit([Unit(ops)])


def append(store: Any, *ids: str, stream: str = "hub/chat", **attributes: Any) -> None:
    commit(store, *(Append(stream, Envelope(id=id, **attributes), identity=id) for id in ids))


def whole(reading: StoreReader, subject: Subject) -> HistorySpan:
    bounds = reading.bounds(subject)
    return HistorySpan(bounds.store, bounds.epoch, subject, OffsetSpan(bounds.origin, bounds.head))


def table(
    reading: StoreReader,
    subject: Subject,
    *conditions: Condition,
    place: HistorySpan | None = None,
    names: list[str] | None = None,
) -> pa.Table:
    schema = schema_of(subject)
    if names is not None:
        schema = pa.schema([schema.field(name) for name in names])
    batches = reading.batches(place or whole(reading, subject), schema, conditions)
    return pa.Table.from_batches(list(batches), schema)


def ids(reading: StoreReader, *conditions: Condition, place: HistorySpan | None = None) -> list[str]:
    found: list[str] = table(reading, CHAT, *conditions, place=place, names=["id"])["id"].to_pylist()
    return found


# -- messages


def test_every_message_comes_back_as_the_store_reads_it(store: Any, reading: StoreReader) -> None:
    envelopes = [
        Envelope(id="plain"),
        Envelope(
            id="full é 漢", source="me", type="t", data=b"\x00\xff", session="s", index=7, time=1_700_000_000_000_001,
            subject="about", datacontenttype="text/plain", headers={"a": "1", "b": "ü\"'"},
        ),
        Envelope(id="empty", data=b"", headers={"a": "1", "b": "ü\"'"}, subject=""),
    ]  # fmt: skip
    commit(store, *(Append("hub/chat", envelope) for envelope in envelopes))
    found = store.read("hub/chat")
    assert isinstance(found, Records)
    [batch] = reading.batches(whole(reading, CHAT), ARROW)
    assert batch.schema.equals(ARROW)
    assert [(row.envelope, row.position) for row in rows_of(batch)] == [
        (record.envelope, record.position) for record in found.records
    ]


def test_a_column_that_begins_with_nothing_but_nulls_keeps_its_type(
    store: Any, reading: StoreReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The SQLite driver guesses a type from the first batch, whatever comes later."""
    append(store, *(f"m{n}" for n in range(2000)))
    append(store, "last", session="s", index=1, time=5, subject="x", datacontenttype="y", headers={"a": "b"})
    for rows in (reading_module.PAGE_ROWS, 100):
        monkeypatch.setattr(reading_module, "PAGE_ROWS", rows)
        found = table(reading, CHAT)
        assert found.num_rows == 2001
        assert found.slice(2000).to_pylist()[0] | {"data": b"", "epoch": 1} == {
            "id": "last", "source": "semel", "type": "message", "subject": "x", "time": found["time"][2000].as_py(),
            "session": "s", "index": 1, "datacontenttype": "y", "data": b"", "headers": [("a", "b")],
            "stream": "hub/chat", "epoch": 1, "offset": 2001, "target": "",
        }  # fmt: skip
        assert found["offset"].to_pylist() == list(range(1, 2002))


def test_a_body_in_chunks_is_put_together(store: Any, reading: StoreReader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading_module, "CHUNK_PARTS", 2)
    large = os.urandom(700_000)
    blob = put_body(store, "b1", [large])
    append(store, "before", data=b"small")
    commit(store, Append("hub/chat", Envelope(id="large", blob=blob)))
    append(store, "after", data=b"small")
    assert table(reading, CHAT)["data"].to_pylist() == [b"small", large, b"small"]


def test_large_rows_come_in_small_pages(store: Any, reading: StoreReader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading_module, "PAGE_BYTES", 10_000)
    for n in range(40):
        append(store, f"small{n}", data=b"x")
    for n in range(10):
        append(store, f"large{n}", data=b"x" * 9_000)
    append(store, "huge", data=b"x" * 30_000)
    pages = [batch.to_pylist() for batch in reading.batches(whole(reading, CHAT), ARROW)]
    assert [row["offset"] for page in pages for row in page] == list(range(1, 52))
    assert all(sum(len(row["data"]) for row in page) <= 10_000 or len(page) == 1 for page in pages)


def test_pages_of_one_shape_are_surveyed_once(
    store: Any, reading: StoreReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading_module, "PAGE_ROWS", 10)
    for n in range(95):
        append(store, f"m{n}", data=b"x" * (n % 7), session="s", index=n + 1)
    surveys = counted(reading, "_survey", monkeypatch)
    pages = list(reading.batches(whole(reading, CHAT), ARROW))
    assert [row.envelope.id for page in pages for row in rows_of(page)] == [f"m{n}" for n in range(95)]
    assert pa.Table.from_batches(pages)["offset"].to_pylist() == list(range(1, 96))
    assert surveys == [1]


@pytest.mark.parametrize(
    "other",
    [{"source": "elsewhere"}, {"type": "order"}, {"subject": "s"}, {"headers": {"a": "b"}}, {"data": b"x" * 9_000}],
    ids=lambda other: next(iter(other)),
)
def test_a_page_that_looks_different_is_read_as_it_is(
    store: Any, reading: StoreReader, monkeypatch: pytest.MonkeyPatch, other: dict[str, Any]
) -> None:
    monkeypatch.setattr(reading_module, "PAGE_ROWS", 10)
    monkeypatch.setattr(reading_module, "PAGE_BYTES", 20_000)
    for n in range(60):
        append(store, f"m{n}", **({"data": b"x"} | (other if n in (34, 35, 47) else {})))
    surveys = counted(reading, "_survey", monkeypatch)
    found = [row.envelope for page in reading.batches(whole(reading, CHAT), ARROW) for row in rows_of(page)]
    assert [each.id for each in found] == [f"m{n}" for n in range(60)]
    name, value = next(iter(other.items()))
    assert [n for n, each in enumerate(found) if getattr(each, name) == value] == [34, 35, 47]
    assert surveys[0] > 1


def counted(reading: StoreReader, name: str, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often a method is called from now on."""
    calls, method = [0], getattr(reading, name)

    def call(*given: Any) -> Any:
        calls[0] += 1
        return method(*given)

    monkeypatch.setattr(reading, name, call)
    return calls


def test_only_messages_are_read(store: Any, reading: StoreReader) -> None:
    append(store, "m1")
    commit(store, Append("hub/chat", Envelope(id="who"), kind=RecordKind.JOIN))
    append(store, "m2")
    append(store, "elsewhere", stream="hub/other")
    assert ids(reading) == ["m1", "m2"]


def test_a_stream_that_nobody_wrote_to_is_empty(reading: StoreReader) -> None:
    assert ids(reading) == []


def test_a_range_is_the_same_rows_for_ever(store: Any, reading: StoreReader) -> None:
    append(store, *(f"m{n}" for n in range(1, 8)))
    place = whole(reading, CHAT).moved(Mark(0, 2), Mark(0, 5))
    before = table(reading, CHAT, place=place)
    append(store, "later")
    commit(store, Trim("hub/chat", 3))
    assert table(reading, CHAT, place=place).equals(before)
    assert before["id"].to_pylist() == ["m3", "m4", "m5"]


def test_what_was_trimmed_is_an_error_and_never_a_gap(store: Any, reading: StoreReader) -> None:
    append(store, *(f"m{n}" for n in range(1, 8)))
    place = whole(reading, CHAT)
    commit(store, Trim("hub/chat", 4))
    store.sweep()
    with pytest.raises(StoreError, match="up to 3 it has been trimmed"):
        ids(reading, place=place)
    assert ids(reading, place=place.moved(Mark(0, 3), Mark(0, 7))) == ["m4", "m5", "m6", "m7"]


def test_a_trim_between_two_pages_is_noticed(store: Any, reading: StoreReader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading_module, "PAGE_ROWS", 2)
    append(store, *(f"m{n}" for n in range(1, 8)))
    batches = reading.batches(whole(reading, CHAT), ARROW)
    assert next(batches)["id"].to_pylist() == ["m1", "m2"]
    commit(store, Trim("hub/chat", 6))
    store.sweep()
    with pytest.raises(StoreError, match="trimmed"):
        next(batches)


def test_a_new_epoch_stops_the_reader(store: Any, reading: StoreReader) -> None:
    append(store, "m1")
    place = whole(reading, CHAT)
    store.raise_epoch()
    with pytest.raises(EpochChanged, match="restored or failed over") as caught:
        ids(reading, place=place)
    assert "checkpointLocation" in caught.value.fix


def test_offsets_jump_at_a_new_epoch_and_rows_are_still_counted(store: Any, reading: StoreReader) -> None:
    append(store, "m1", "m2", "m3")
    store.raise_epoch()
    append(store, "m4", "m5")
    place = whole(reading, CHAT)
    assert ids(reading) == ["m1", "m2", "m3", "m4", "m5"]
    fourth = reading.up_to(CHAT, place.span, 4)
    assert ids(reading, place=place.moved(place.span.after, fourth)) == ["m1", "m2", "m3", "m4"]
    assert reading.up_to(CHAT, place.span, 100) == place.span.to
    found = table(reading, CHAT, names=["epoch"])["epoch"].to_pylist()
    assert found == [2] * 5


def test_another_store_at_the_same_place_is_noticed(store: Any, reading: StoreReader) -> None:
    append(store, "m1")
    place = whole(reading, CHAT)
    other = HistorySpan("another", place.epoch, place.subject, place.span)
    with pytest.raises(EpochChanged, match="at this URL is store"):
        ids(reading, place=other)


def test_a_store_that_was_put_back_is_noticed(store: Any, reading: StoreReader) -> None:
    append(store, "m1")
    place = whole(reading, CHAT)
    with pytest.raises(StoreError, match="only up to 1"):
        ids(reading, place=place.moved(Mark(0, 1), Mark(0, 9)))
    of_ledger = whole(reading, LEDGER)
    with pytest.raises(StoreError, match="only up to"):
        table(reading, LEDGER, place=of_ledger.moved(of_ledger.span.to, Mark(2**40, 5)))


# -- columns and filters


def test_columns_are_chosen_and_checked(store: Any, reading: StoreReader) -> None:
    append(store, "m1", data=b"x")
    place = whole(reading, CHAT)
    [batch] = reading.batches(place, arrow_schema(["offset", "epoch", "id"]))
    assert batch.to_pylist() == [{"offset": 1, "epoch": 1, "id": "m1"}]
    with pytest.raises(InputError, match="has no column 'idx'"):
        list(reading.batches(place, pa.schema([("idx", pa.int64())])))
    with pytest.raises(InputError, match="'offset' of stream 'hub/chat' is int64, not string"):
        list(reading.batches(place, pa.schema([("offset", pa.string())])))


def test_filters_are_applied_by_the_database(store: Any, reading: StoreReader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading_module, "PAGE_ROWS", 2)
    for n in range(1, 10):
        append(store, f"m{n}", session=f"s{n % 3}", index=n, time=1_000_000 * n)
    assert ids(reading, Condition("session", "=", ("s1",))) == ["m1", "m4", "m7"]
    assert ids(reading, Condition("session", "=", ("s1",)), Condition("index", ">", (3,))) == ["m4", "m7"]
    assert ids(reading, Condition("id", "IN", ("m2", "m9", "x"))) == ["m2", "m9"]
    assert ids(reading, Condition("time", "<=", (2_000_000,))) == ["m1", "m2"]
    assert ids(reading, Condition("subject", "IS NOT NULL")) == []
    hostile = "s1' OR '1'='1"
    assert ids(reading, Condition("session", "=", (hostile,))) == []
    append(store, "braces", session="{}")
    assert ids(reading, Condition("session", "=", ("{}",))) == ["braces"]


@pytest.mark.parametrize(
    ("condition", "answer"),
    [
        (Condition("offset", ">", (3,)), True),
        (Condition("session", "=", ("s",)), True),
        (Condition("session", "<", ("s",)), False),
        (Condition("offset", "=", ("3",)), False),
        (Condition("offset", "=", (True,)), False),
        (Condition("offset", "=", (2**70,)), False),
        (Condition("stream", "=", ("s",)), False),
        (Condition("headers", "IS NOT NULL"), False),
        (Condition("nothing", "=", (1,)), False),
        (Condition("offset", "LIKE", (1,)), False),
    ],
)
def test_what_a_database_is_trusted_to_filter(condition: Condition, answer: bool) -> None:
    assert can_filter(CHAT, condition) is answer


def test_filters_of_spark_as_conditions() -> None:
    assert condition_of(EqualTo(("id",), "m")) == Condition("id", "=", ("m",))
    assert condition_of(In(("id",), ("m", "n"))) == Condition("id", "IN", ("m", "n"))
    assert condition_of(In(("id",), ("m", None))) is None
    assert condition_of(IsNotNull(("id",))) == Condition("id", "IS NOT NULL")
    assert condition_of(StringContains(("id",), "m")) is None


# -- ledger and index


def test_datasets_have_the_columns_and_rows_of_the_export(store: Any, reading: StoreReader, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    template = Event(Kind.ACCEPTED, "a>b", "pipe")
    commit(store, *(Append("hub/chat", Envelope(id=f"m{n}"), identity=f"m{n}", on_fresh=template) for n in range(3)))
    commit(store, Log(Event(Kind.SENT, "a>b", message="m9", cause="why", trace="t")))
    commit(store, Append("hub/chat", Envelope(id="join", session="s", index=4), kind=RecordKind.LEAVE, target="you"))
    for subject in (LEDGER, INDEX):
        assert subject.dataset is not None
        store.export(tmp_path, subject.dataset)
        files = sorted((tmp_path / "raw" / subject.dataset / "v1").glob("day=*/*.parquet"))
        exported = pa.concat_tables([pq.ParquetFile(file).read() for file in files])
        found = table(reading, subject)
        assert found.select(exported.schema.names).to_pylist() == exported.to_pylist()
        assert [field.type for field in found.select(exported.schema.names).schema] == exported.schema.types
        assert set(found["store"].to_pylist()) == {store.store_id()}
        assert found.num_rows >= 2


def test_ledger_filters(store: Any, reading: StoreReader) -> None:
    for n, kind in enumerate((Kind.SENT, Kind.ACCEPTED, Kind.SENT)):
        commit(store, Log(Event(kind, f"a>b{n}", "p", message=f"m{n}")))
    at = [row["at"] for row in table(reading, LEDGER).to_pylist()]
    middle = int(at[1].timestamp() * 1_000_000)
    messages = [
        table(reading, LEDGER, condition)["message"].to_pylist()
        for condition in (
            Condition("kind", "=", (int(Kind.SENT),)),
            Condition("hop", "=", ("a>b1",)),
            Condition("pipeline", "=", ("other",)),
            Condition("at", ">=", (middle,)),
            Condition("session", "=", ("m2",)),
        )
    ]
    assert messages == [["m0", "m2"], ["m1"], [], ["m1", "m2"], ["m2"]]


def test_a_swept_ledger_is_not_read_as_if_it_were_whole(store: Any, reading: StoreReader, tmp_path: Path) -> None:
    for n in range(5):
        commit(store, Log(Event(Kind.SENT, "a>b", message=f"m{n}")))
    place = whole(reading, LEDGER)
    store.export(tmp_path, "ledger")
    kept = place.span.to
    store.sweep()
    commit(store, Log(Event(Kind.SENT, "a>b", message="new")))
    with pytest.raises(StoreError, match="trimmed"):
        table(reading, LEDGER, place=place)
    rest = whole(reading, LEDGER)
    assert rest.span.to > kept
    assert table(reading, LEDGER, place=rest.moved(kept, rest.span.to))["message"].to_pylist()[-1] == "new"


def test_a_range_of_marks_is_cut_into_parts_that_hold_every_row_once(
    store: Any, reading: StoreReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("semel.spark.offsets.PARTITION_ROWS_MIN", 10)
    for k in range(20):
        commit(store, *(Log(Event(Kind.SENT, "a>b", message=f"m{k}.{n}")) for n in range(1 + 5 * (k % 2))))
    place = whole(reading, LEDGER)
    spans = reading.cut(LEDGER, place.span, 4)
    assert len(spans) == 4
    parts = [table(reading, LEDGER, place=place.moved(span.after, span.to)).to_pylist() for span in spans]
    assert [row for part in parts for row in part] == table(reading, LEDGER).to_pylist()
    assert all(12 <= len(part) <= 23 for part in parts)
    third = reading.up_to(LEDGER, place.span, 3)
    first = table(reading, LEDGER, place=place.moved(place.span.after, third))
    assert first["message"].to_pylist() == ["m0.0", "m1.0", "m1.1"]


# -- beside writers


@pytest.mark.connected
def test_nothing_is_lost_beside_a_transaction_that_stays_open(postgres_url: str) -> None:
    """The open one took its numbers first and commits last: a reader that went by numbers would pass it over."""
    with closing(open_store(postgres_url)) as store, closing(StoreReader(postgres_url)) as reading:
        with psycopg.connect(postgres_url) as slow:
            store.bind(slow).apply([Log(Event(Kind.SENT, "a>b", message="slow"))])
            append(store, "m1", "m2")
            commit(store, Log(Event(Kind.SENT, "a>b", message="fast")))
            place = whole(reading, LEDGER)
            early = table(reading, LEDGER)["message"].to_pylist()
            assert ids(reading) == ["m1", "m2"]
            indexed = table(reading, INDEX)["message"].to_pylist()
            end = place.span.to
            slow.commit()
        rest = whole(reading, LEDGER)
        late = table(reading, LEDGER, place=rest.moved(end, rest.span.to))["message"].to_pylist()
        assert early == []
        assert sorted(late) == ["fast", "slow"]
        assert indexed == []
        assert table(reading, INDEX)["message"].to_pylist() == ["m1", "m2"]


def test_a_page_is_read_in_one_snapshot(url: str, store: Any, reading: StoreReader) -> None:
    append(store, "m1", "m2")
    with reading.snapshot():
        before = reading._bounds(CHAT)
        append(store, "m3")
        commit(store, Trim("hub/chat", 2))
        assert reading._bounds(CHAT) == before
    assert reading.bounds(CHAT) != before


def test_a_reader_only_reads(reading: StoreReader) -> None:
    with pytest.raises(StoreError), reading.snapshot():
        reading._ask("DELETE FROM semel_stream")


def test_a_reading_travels_to_another_process(store: Any, reading: StoreReader) -> None:
    append(store, "m1")
    place = whole(reading, CHAT)
    with closing(pickle.loads(pickle.dumps(reading))) as copy:
        assert ids(copy, place=pickle.loads(pickle.dumps(place))) == ["m1"]


@pytest.mark.connected
def test_a_connection_that_died_is_replaced(postgres_url: str) -> None:
    with closing(open_store(postgres_url)) as store, closing(StoreReader(postgres_url)) as reading:
        append(store, "m1")
        before = reading.bounds(CHAT)
        with psycopg.connect(postgres_url, autocommit=True) as other:
            other.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE pid <> pg_backend_pid() AND datname = current_database()"
            )
        assert reading.bounds(CHAT) == before


# -- what can be wrong with a store


def test_a_file_that_is_read_is_not_written(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/semel.db"
    with closing(open_store(url)) as store:
        append(store, "m1")
    before = (tmp_path / "semel.db").read_bytes()
    with closing(StoreReader(url)) as reading:
        assert ids(reading) == ["m1"]
    assert (tmp_path / "semel.db").read_bytes() == before
    with closing(open_store(url)) as store:
        append(store, "m2")


@pytest.mark.parametrize(
    ("make", "error", "why"),
    [
        (lambda path: None, StoreUnavailable, "there is no store at"),
        (lambda path: path.mkdir(), NotAStore, "is a folder"),
        (lambda path: path.write_bytes(b"not a database" * 100), NotAStore, "not a SQLite database"),
        (lambda path: sqlite3.connect(path).close() or path.touch(), NotAStore, "has no Semel tables"),
    ],
)
def test_what_is_no_store_is_said_so(
    tmp_path: Path, make: Callable[[Path], object], error: type[StoreError], why: str
) -> None:
    make(tmp_path / "semel.db")
    with closing(StoreReader(f"sqlite:///{tmp_path}/semel.db")) as reading, pytest.raises(error, match=why) as caught:
        reading.bounds(CHAT)
    assert caught.value.fix


def test_a_locked_file_is_busy(tmp_path: Path, writers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "BUSY_MS", 10)
    url = f"sqlite:///{tmp_path}/semel.db"
    other = writers.Writer(url)
    other.lock(tmp_path / "semel.db")
    with closing(StoreReader(url)) as reading, pytest.raises(StoreBusy, match="locked"):
        reading.bounds(CHAT)


def test_a_file_that_this_process_has_open_is_refused(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/semel.db"
    with (
        closing(open_store(url)),
        closing(StoreReader(url)) as reading,
        pytest.raises(ConfigError, match="open already"),
    ):
        reading.bounds(CHAT)
    with closing(StoreReader(url)) as one, closing(StoreReader(url)) as two:
        assert one.bounds(CHAT) == two.bounds(CHAT)


def test_a_file_that_is_deleted_meanwhile(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/semel.db"
    with closing(open_store(url)) as store:
        append(store, "m1")
    with closing(StoreReader(url)) as reading:
        place = whole(reading, CHAT)
    for file in tmp_path.iterdir():
        file.unlink()
    with closing(StoreReader(url)) as reading, pytest.raises(StoreUnavailable, match="there is no store"):
        ids(reading, place=place)


def test_a_store_of_a_newer_semel(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/semel.db"
    open_store(url).close()
    with closing(sqlite3.connect(tmp_path / "semel.db")) as other, other:
        other.execute("UPDATE semel_store SET schema = 999")
    with closing(StoreReader(url)) as reading, pytest.raises(SchemaTooNew, match="schema 999"):
        reading.bounds(CHAT)


@pytest.mark.connected
def test_a_database_without_our_tables(postgres_url: str) -> None:
    with closing(StoreReader(postgres_url)) as reading, pytest.raises(NotAStore, match="table of Semel is missing"):
        reading.bounds(CHAT)


def test_a_server_that_is_not_there_and_a_password_that_is_not_shown() -> None:
    reading = StoreReader("postgresql://me:secret@127.0.0.1:1/db")
    with pytest.raises(StoreUnavailable, match="refused") as caught:
        reading.bounds(CHAT)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("url", ["memory:", "mysql://x", "semel.db", "postgresql://[x"])
def test_urls_that_spark_cannot_read(url: str) -> None:
    with pytest.raises(ConfigError):
        StoreReader(url).bounds(CHAT)


# -- the readers that Spark calls


def source(url: str, kind: type[SemelDataSource] = SemelDataSource, **options: str) -> SemelDataSource:
    return kind({"store": url, "stream": "hub/chat"} | options)


def read_all(reader: Any, partitions: list[Any]) -> list[str]:
    return [id for partition in partitions for batch in reader.read(partition) for id in batch["id"].to_pylist()]


def test_a_batch_read_begins_and_ends_where_it_is_told(url: str, store: Any) -> None:
    append(store, *(f"m{n}" for n in range(1, 8)))

    def read(**options: str) -> list[str]:
        given = source(url, **options)
        reader = given.reader(given.schema())
        return read_all(reader, list(reader.partitions()))

    assert read() == [f"m{n}" for n in range(1, 8)]
    assert read(startingPosition="3", endingPosition="5") == ["m3", "m4", "m5"]
    assert read(startingPosition="latest") == []
    commit(store, Trim("hub/chat", 4))
    with pytest.raises(StoreError, match="trimmed"):
        read()
    assert read(startingPosition="available") == ["m4", "m5", "m6", "m7"]


def test_filters_on_the_offset_decide_what_is_read(url: str, store: Any) -> None:
    append(store, *(f"m{n}" for n in range(1, 8)))
    commit(store, Trim("hub/chat", 4))
    given = source(url, FilteringSemelDataSource)
    reader = given.reader(given.schema())
    unknown = StringContains(("id",), "5")
    kept = reader.pushFilters([GreaterThan(("offset",), 4), LessThanOrEqual(("offset",), 6), unknown])
    assert list(kept) == [unknown]
    [partition] = reader.partitions()
    assert isinstance(partition, RangePartition)
    assert partition.place.span == OffsetSpan(Mark(0, 4), Mark(0, 6))
    assert read_all(reader, [partition]) == ["m5", "m6"]


def test_a_stream_is_read_in_steps_and_each_step_again(url: str, store: Any) -> None:
    append(store, *(f"m{n}" for n in range(1, 8)))
    given = source(url, maxRowsPerBatch="3")
    reader: Any = given.streamReader(given.schema())
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(3)
    start = reader.initialOffset()
    steps = []
    while (end := reader.latestOffset(start, limit)) != start:
        steps.append(read_all(reader, reader.partitions(start, end)))
        assert read_all(reader, reader.partitions(start, end)) == steps[-1]
        start = end
    assert steps == [["m1", "m2", "m3"], ["m4", "m5", "m6"], ["m7"]]
    assert reader.partitions(start, start) == []
    append(store, "m8")
    assert reader.reportLatestOffset()["offset"] == 8
    assert reader.latestOffset(reader.initialOffset(), ReadAllAvailable())["offset"] == 8
    reader.stop()


@pytest.mark.parametrize("more", [0, 2])
def test_the_first_batch_is_the_same_again_although_its_start_is_asked_for_anew(
    url: str, store: Any, more: int
) -> None:
    append(store, "m1", "m2")
    given = source(url, startingPosition="latest")
    reader: Any = given.streamReader(given.schema())
    start = reader.initialOffset()
    append(store, "m3", "m4")
    end = reader.latestOffset(start, ReadAllAvailable())
    append(store, *(f"later{n}" for n in range(more)))
    again: Any = given.streamReader(given.schema())
    assert read_all(again, again.partitions(again.initialOffset(), end)) == ["m3", "m4"]
    commit(store, Trim("hub/chat", 4))
    with pytest.raises(StoreError, match="trimmed"):
        again.partitions(again.initialOffset(), end)
    reader.stop()
    again.stop()


def test_available_now_ends_where_the_stream_ended_at_the_start(url: str, store: Any) -> None:
    append(store, "m1", "m2")
    given = source(url)
    reader: Any = given.streamReader(given.schema())
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    append(store, "m3")
    end = reader.latestOffset(start, ReadAllAvailable())
    assert end["offset"] == 2
    assert reader.latestOffset(end, ReadAllAvailable()) == end
    reader.stop()


def test_a_streaming_query_is_stopped_by_what_it_cannot_read(url: str, store: Any) -> None:
    append(store, "m1", "m2", "m3")
    given = source(url)
    reader: Any = given.streamReader(given.schema())
    start = reader.initialOffset()
    commit(store, Trim("hub/chat", 3))
    with pytest.raises(StoreError, match="trimmed"):
        reader.latestOffset(start, ReadAllAvailable())
    with pytest.raises(StoreError, match="trimmed"):
        reader.initialOffset()
    store.raise_epoch()
    with pytest.raises(EpochChanged):
        reader.latestOffset(start, ReadAllAvailable())
    reader.stop()


def test_a_file_is_not_looked_for_on_another_machine(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/semel.db"
    with closing(open_store(url)) as store:
        append(store, "m1")
    given = source(url)
    reader = given.reader(given.schema())
    [partition] = reader.partitions()
    assert isinstance(partition, RangePartition)
    elsewhere = RangePartition(partition.place, "another-machine")
    with pytest.raises(ConfigError, match="is on another-machine"):
        read_all(reader, [elsewhere])
    shared = source(url, allowSharedFile="true")
    assert read_all(shared.reader(shared.schema()), [elsewhere]) == ["m1"]


def test_a_relative_path_is_the_planners(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    engine = StoreReader("sqlite:///semel.db").engine
    assert isinstance(engine, SqliteReading)
    assert engine.path == tmp_path / "semel.db"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"stream": "a"}, "needs a store"),
        ({"store": "memory:"}, "a stream or a dataset"),
        ({"store": "memory:", "stream": "a", "dataset": "ledger"}, "a stream or a dataset"),
        ({"store": "memory:", "dataset": "work"}, "no dataset 'work'"),
        ({"store": "memory:", "stream": "a", "startingPositon": "1"}, "no option 'startingpositon'"),
        ({"store": "memory:", "stream": "a", "startingPosition": "soon"}, "startingPosition is 'soon'"),
        ({"store": "memory:", "stream": "a", "endingPosition": "earliest"}, "endingPosition is 'earliest'"),
        ({"store": "memory:", "stream": "a", "maxRowsPerBatch": "0"}, "maxRowsPerBatch is '0'"),
        ({"store": "memory:", "stream": "a", "partitions": "many"}, "partitions is 'many'"),
        ({"store": "memory:", "stream": "a", "allowSharedFile": "1"}, "allowSharedFile is '1'"),
    ],
)
def test_options_that_are_wrong(options: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigError, match=why) as caught:
        parse_options(options)
    assert caught.value.fix
