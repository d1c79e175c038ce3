from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.tools.ledgers import BEGIN_US, IN, STREAM, Book, Letter

from semel.errors import ConfigError, NotAStore, StoreError, StoreUnavailable
from semel.kernel.ledger import START, Kind, Mark
from semel.kernel.ops import Append, Put, Trim
from semel.runtime.export.exporter import ID_FILE, Segment, segments
from semel.spark.audit import sources
from semel.spark.audit.sources import PipelineProgress
from semel.spark.landing import SinkState, SourceRange, state_key
from semel.stores.open import open_store

ONE, TWO, THREE = (Letter(f"m{number}", "s", number) for number in (1, 2, 3))


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


@pytest.fixture
def book(tmp_path: Path, lake: Path) -> Iterator[Book]:
    book = Book(tmp_path / "hub.db", "hub")
    book.accept([ONE, TWO])
    book.export(lake)
    yield book
    book.store.close()


def only(lake: Path, dataset: str) -> Path:
    [part] = sources.find([lake]).of(dataset)
    return part.path


def test_a_folder_is_read_by_its_manifest(book: Book, lake: Path) -> None:
    (lake / "raw/ledger/v1/day=2026-01-01/seg-not-listed.parquet").write_bytes(b"")
    evidence = sources.find([lake])
    assert [(part.dataset, part.segment.rows) for part in evidence.parts] == [("ledger", 1), ("index", 2)]
    assert evidence.stores == (book.store.store_id,)


def test_the_times_of_a_file_come_from_its_footer(book: Book, lake: Path) -> None:
    book.now = BEGIN_US + 1_234_567
    book.log(Kind.SENT, IN, ONE)
    book.export(lake)
    parts = sources.find([lake]).of("ledger")
    assert [(part.oldest, part.newest) for part in parts] == [(BEGIN_US, BEGIN_US), (book.now, book.now)]


def test_the_same_folder_twice_and_a_copy_of_it_count_once(book: Book, lake: Path, tmp_path: Path) -> None:
    shutil.copytree(lake, tmp_path / "copy")
    (tmp_path / "link").symlink_to(lake)
    evidence = sources.find([lake, str(lake), tmp_path / "link", tmp_path / "copy"])
    assert len(evidence.parts) == 2
    assert len(evidence.folders) == 2


def test_a_missing_segment_is_named(book: Book, lake: Path) -> None:
    path = only(lake, "index")
    path.unlink()
    with pytest.raises(StoreError, match=str(path)):
        sources.find([lake])


def test_a_corrupt_segment_is_named(book: Book, lake: Path) -> None:
    path = only(lake, "ledger")
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(StoreError, match=str(path)):
        sources.find([lake])


def test_a_foreign_file_is_named(book: Book, lake: Path) -> None:
    path = only(lake, "ledger")
    pq.write_table(pa.table({"at": [1]}), path)
    with pytest.raises(NotAStore, match=str(path)):
        sources.find([lake])


def test_a_file_of_the_other_dataset_is_refused(book: Book, lake: Path) -> None:
    shutil.copy(only(lake, "index"), only(lake, "ledger"))
    with pytest.raises(NotAStore, match=r"semel\.dataset=ledger/v1"):
        sources.find([lake])


def test_a_file_with_another_number_of_rows_is_refused(book: Book, lake: Path) -> None:
    path = only(lake, "index")
    table = pq.read_table(path)
    pq.write_table(table.slice(0, 1), path)
    with pytest.raises(StoreError, match="has 1 rows, the manifest says 2"):
        sources.find([lake])


def test_a_broken_manifest_is_named(book: Book, lake: Path) -> None:
    [entry] = (lake / "raw/ledger/v1/_manifest").glob("day=*/*.json")
    entry.write_text("{")
    with pytest.raises(StoreError, match=r"manifest of .*lake"):
        sources.find([lake])


@pytest.mark.parametrize("what", ["nothing", "file", "folder"])
def test_what_is_no_export_is_refused(tmp_path: Path, what: str) -> None:
    path = tmp_path / "it"
    if what == "file":
        path.write_text("")
    if what == "folder":
        path.mkdir()
    with pytest.raises(ConfigError, match=str(path)):
        sources.find([path])


def test_no_source_at_all_is_refused() -> None:
    with pytest.raises(ConfigError, match="needs a source"):
        sources.find([])


def test_a_store_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable):
        sources.find([f"sqlite:///{tmp_path}/none.db"])


def test_who_names_a_store_in_memory_is_told_a_url_that_works(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="memory") as caught:
        sources.find(["memory:"])
    url = caught.value.fix.removeprefix("use ").replace("FILE", f"{tmp_path}/semel.db")
    open_store(url, node="test").close()
    assert len(sources.find([url]).live) == 1


# -- live stores


def test_a_live_store_adds_what_its_folder_does_not_have(book: Book, lake: Path) -> None:
    book.accept([THREE])
    [live] = sources.find([lake, book.url]).live
    assert live.after == {"ledger": Mark(0, 1), "index": Mark(0, 2)}


def test_a_live_store_alone_is_read_from_its_beginning(book: Book) -> None:
    evidence = sources.find([book.url, book.url])
    assert [live.after for live in evidence.live] == [{"ledger": START, "index": START}]


def test_what_is_exported_to_another_folder_is_read_live(book: Book, tmp_path: Path) -> None:
    other = Book(tmp_path / "other.db", "other")
    other.accept([ONE])
    other.export(tmp_path / "elsewhere")
    other.store.close()
    evidence = sources.find([tmp_path / "elsewhere", book.url])
    assert [live.after["ledger"] for live in evidence.live] == [START]


def test_an_export_while_the_sources_are_looked_at_leaves_nothing_out(
    book: Book, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    book.accept([THREE])

    def listed(folder: Path, dataset: str) -> list[Segment]:
        found = segments(folder, dataset)
        book.export(lake)
        return found

    monkeypatch.setattr(sources, "segments", listed)
    evidence = sources.find([lake, book.url])
    [live] = evidence.live
    assert [part.segment.last for part in evidence.of("ledger")] == ["0.1"]
    assert live.after["ledger"] == Mark(0, 1)


def test_what_was_swept_is_not_asked_of_the_store_again(book: Book, lake: Path) -> None:
    book.accept([THREE])
    assert book.store.sweep(book.now).ledger == 1
    evidence = sources.find([lake, book.url])
    [live] = evidence.live
    assert {dataset: live.start(dataset) for dataset in live.after} == {"ledger": "0.2", "index": "0.3"}
    assert (live.swept, evidence.notes) == (Mark(0, 1), ())


@pytest.mark.parametrize("more", [[], [THREE]])
def test_what_was_swept_and_is_in_no_folder_is_told(book: Book, more: list[Letter]) -> None:
    for letter in more:
        book.accept([letter])
    book.store.sweep(book.now)
    evidence = sources.find([book.url])
    [live] = evidence.live
    assert (live.start("ledger"), live.start("index")) == ("available", "available")
    [note] = evidence.notes
    assert f"store {book.store.store_id}: its ledger up to 1 was exported and is no longer in it" in note


def test_what_was_swept_after_the_folder_at_hand_ended_is_told(book: Book, lake: Path, tmp_path: Path) -> None:
    old = shutil.copytree(lake, tmp_path / "old")
    (old / ID_FILE).unlink()
    book.accept([THREE])
    book.export(lake)
    book.store.sweep(book.now)
    evidence = sources.find([old, book.url])
    assert [live.start("ledger") for live in evidence.live] == ["available"]
    assert "up to 2 was exported" in evidence.notes[0]
    assert "has it after 1" in evidence.notes[0]


def test_a_store_that_nothing_was_swept_from_has_no_note(book: Book) -> None:
    evidence = sources.find([book.url])
    assert [(live.start("ledger"), live.swept) for live in evidence.live] == [("available", START)]
    assert evidence.notes == ()


def test_streams_that_were_trimmed_say_where_they_begin(book: Book) -> None:
    assert sources.find([book.url]).firsts == []
    book.commit(Trim(STREAM, 2))
    assert sources.find([book.url]).firsts == [(book.store.store_id, STREAM, 2)]


def test_pipelines_on_spark_say_how_far_they_are(book: Book) -> None:
    came = SourceRange("other", "chat", 1, 3, 7)
    state = SinkState().after("q", 0, {"other/chat": came})
    book.commit(Append("spark/%41ll", ONE.envelope), Put(state_key("All"), state.encode()))
    book.commit(Append("spark", TWO.envelope), Append("spark/idle/receipts", TWO.envelope))
    assert sources.find([book.url]).taken == (PipelineProgress("chat>spark/%41ll", "other", "chat", 7),)


# -- epochs


def restored(book: Book, lake: Path, tmp_path: Path) -> Book:
    """The hub as it was before its last export, which then went on."""
    book.accept([TWO])
    path = tmp_path / "hub.db"
    book.store.close()
    shutil.copy(path, tmp_path / "backup.db")
    again = Book(path, "hub")
    again.accept([THREE])
    again.export(lake)
    again.store.close()
    shutil.copy(tmp_path / "backup.db", path)
    return Book(path, "hub")


def test_files_of_a_lost_history_do_not_count(book: Book, lake: Path, tmp_path: Path) -> None:
    hub = restored(book, lake, tmp_path)
    hub.export(lake)
    hub.store.close()
    assert len(segments(lake, "ledger")) == 3
    counted = [part.segment for part in sources.find([lake]).of("ledger")]
    assert [(segment.epoch, segment.first) for segment in counted] == [(1, "0.1"), (2, "0.2")]


def test_a_restored_live_store_says_what_of_its_folder_is_lost(book: Book, lake: Path, tmp_path: Path) -> None:
    hub = restored(book, lake, tmp_path)
    evidence = sources.find([lake, hub.url])
    hub.store.close()
    assert [part.segment.first for part in evidence.of("ledger")] == ["0.1"]
    assert [live.after["ledger"] for live in evidence.live] == [Mark(0, 1)]


def test_of_a_file_over_the_border_of_an_epoch_only_a_part_counts(book: Book, lake: Path) -> None:
    book.accept([TWO])
    book.accept([THREE])
    book.export(lake)
    epochs = lake / "raw/ledger/v1/_epochs"
    [start] = epochs.glob("*.json")
    moved = start.read_text().replace('"epoch":1', '"epoch":2').replace('"after":"0.0"', '"after":"0.2"')
    (epochs / "later.json").write_text(moved)
    bounds = [(part.segment.first, part.until) for part in sources.find([lake]).of("ledger")]
    assert bounds == [("0.1", None), ("0.2", Mark(0, 2))]


def test_records_have_no_marks_so_their_files_are_not_parted(book: Book, lake: Path) -> None:
    epochs = lake / "raw/index/v1/_epochs"
    [start] = epochs.glob("*.json")
    moved = start.read_text().replace('"epoch":1', '"epoch":2').replace('"after":"0.0"', '"after":"0.1"')
    (epochs / "later.json").write_text(moved)
    with pytest.raises(StoreError, match="where the next epoch of its store begins"):
        sources.find([lake])
