"""The export: every row of the ledger and of the index in exactly one listed file, whatever happens on the way."""

import hashlib
import os
import resource
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from semel.errors import (
    ConfigError,
    SemelError,
    StaleFence,
    StoreBusy,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreUnavailable,
)
from semel.kernel.envelope import Envelope
from semel.kernel.ledger import START, Event, Kind, Mark
from semel.kernel.ops import Append, Log, Trim, Unit
from semel.kernel.store import Store
from semel.pubsub.hub.records import RecordKind
from semel.runtime.export import exporter as module
from semel.runtime.export.exporter import (
    DATASETS,
    Exported,
    ExportOptions,
    Progress,
    dataset_folder,
    epoch_starts,
    export,
    forget,
    mark_text,
    parse_mark,
    segments,
)
from semel.stores.memory import MemoryStore
from semel.stores.open import open_store
from semel.stores.points import on_reach
from semel.stores.sqlite import SqliteStore
from semel.testing.limits import scaled

DAY_US = 86_400_000_000
NOON = 20_000 * DAY_US + DAY_US // 2
AT_ONCE = ExportOptions(wait_s=0)


class Clock:
    def __init__(self, now: int = NOON) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Iterator[Store]:
    opened: Store
    if request.param == "memory":
        opened = MemoryStore(clock=clock)
    else:
        opened = SqliteStore(f"sqlite:///{tmp_path}/semel.db", clock=clock)
    yield opened
    opened.close()


@pytest.fixture(autouse=True)
def _no_hook() -> Iterator[None]:
    yield
    on_reach(None)


def log(store: Store, *messages: str, **fields: object) -> None:
    store.commit([Unit(tuple(Log(Event(Kind.ACCEPTED, "a>b", message=message, **fields)) for message in messages))])  # type: ignore[arg-type]


def append(store: Store, stream: str, *ids: str) -> None:
    store.commit([Unit(tuple(Append(stream, Envelope(id=id, data=b"body")) for id in ids))])


def read_back(folder: Path, dataset: str) -> pa.Table:
    """The dataset as a reader of the manifest sees it."""
    base = dataset_folder(folder, dataset)
    tables = [pq.read_table(base / segment.path) for segment in segments(folder, dataset)]
    return pa.concat_tables(tables) if tables else pa.table({"seq": [], "message": []})


def check_whole(store: Store, folder: Path) -> None:
    """Each row of the ledger in exactly one file, each file listed and as it is listed, and nothing else around."""
    wanted = Counter(entry.mark.seq for entry in store.ledger(START, 1_000_000))
    assert Counter(read_back(folder, "ledger")["seq"].to_pylist()) == wanted
    for dataset in DATASETS:
        base = dataset_folder(folder, dataset)
        if not base.exists():
            continue
        listed = segments(folder, dataset)
        assert sorted(segment.path for segment in listed) == sorted(
            str(path.relative_to(base)) for path in base.glob("day=*/*")
        )
        for segment in listed:
            content = (base / segment.path).read_bytes()
            assert hashlib.sha256(content).hexdigest() == segment.sha256
            assert len(content) == segment.bytes
            assert pq.read_metadata(base / segment.path).num_rows == segment.rows
        assert list((base / "_tmp").iterdir()) == []


# -- what is in the files


def test_the_ledger_has_the_columns_and_types_that_everybody_relies_on(store: Store, tmp_path: Path) -> None:
    log(store, "m1")
    export(store, tmp_path / "lake", "ledger", AT_ONCE)
    [path] = (tmp_path / "lake").glob("raw/ledger/v1/day=*/seg-*.parquet")
    schema = pq.read_schema(path)
    assert [f"{field.name} {field.type}" for field in schema] == [
        "seq int64", "xid int64", "at timestamp[us, tz=UTC]", "node string", "pipeline string", "hop string",
        "kind int16", "message string", "delivery string", "session string", "idx int64", "peer string",
        "stream string", "epoch int32", "first int64", "last int64", "n int32", "fold int64", "attempt int32",
        "cause string", "trace string",
    ]  # fmt: skip
    assert pq.read_metadata(path).row_group(0).column(0).compression == "ZSTD"


def test_a_ledger_row_is_what_was_logged(store: Store, tmp_path: Path) -> None:
    event = Event(
        Kind.DEAD_LETTERED, "inbox/orders>handler", "orders", message="m1", delivery="d1", session="s1", idx=7,
        peer="p", attempt=3, cause="no such product", trace="t1",
    )  # fmt: skip
    store.commit([Unit((Log(event),))])
    export(store, tmp_path, "ledger", AT_ONCE)
    [row] = read_back(tmp_path, "ledger").to_pylist()
    assert (row.pop("at").timestamp() * 1_000_000, row.pop("node"), row.pop("seq")) == (NOON, "local", 1)
    assert row.pop("xid") is None
    assert row == msgspec.structs.asdict(event)


def test_a_range_stays_a_range_and_a_lone_message_is_its_own_session(store: Store, tmp_path: Path) -> None:
    accepted = Event(Kind.ACCEPTED, "client>hub/chat", "chat")
    store.commit([
        Unit(tuple(Append("hub/chat", Envelope(id=f"m{n}"), on_fresh=accepted) for n in range(5))),
    ])  # fmt: skip
    log(store, "alone")
    export(store, tmp_path, "ledger", AT_ONCE)
    batch, alone = read_back(tmp_path, "ledger").to_pylist()
    assert (batch["stream"], batch["first"], batch["last"], batch["n"], batch["session"]) == ("hub/chat", 1, 5, 5, None)
    assert (alone["message"], alone["session"], alone["n"]) == ("alone", "alone", 1)


def test_the_index_has_every_record_and_no_body(store: Store, tmp_path: Path) -> None:
    joined = Envelope(id="j", source="alice-1", subject="alice", headers={"start": "0"})
    message = Envelope(id="m1", session="s", index=4, data=b"secret body")
    store.commit([
        Unit((
            Append("hub/chat", joined, kind=RecordKind.JOIN, target="group"),
            Append("hub/chat", message),
            Append("hub/chat", Envelope(id="l"), kind=RecordKind.LEAVE, target="group"),
        )),
    ])  # fmt: skip
    export(store, tmp_path, "index", AT_ONCE)
    table = read_back(tmp_path, "index")
    assert [f"{field.name} {field.type}" for field in table.schema] == [
        "stream string", "epoch int32", "offset int64", "type string", "message string", "session string", "idx int64",
        "target string", "at timestamp[us, tz=UTC]", "bytes int64", "source string", "subject string", "terms string",
    ]  # fmt: skip
    rows = [tuple(row.values()) for row in table.drop(["at"]).to_pylist()]
    assert rows == [
        ("hub/chat", 1, 1, "join", "j", "j", None, "group", 0, "alice-1", "alice", '{"start":"0"}'),
        ("hub/chat", 1, 2, "message", "m1", "s", 4, "", 11, "semel", None, None),
        ("hub/chat", 1, 3, "leave", "l", "l", None, "group", 0, "semel", None, None),
    ]
    [path] = tmp_path.glob("raw/index/v1/day=*/*.parquet")
    assert b"secret body" not in path.read_bytes()


def test_a_record_of_a_kind_that_is_not_known_is_no_message(tmp_path: Path) -> None:
    """A newer version may have written it."""
    store = SqliteStore(f"sqlite:///{tmp_path / 'newer.db'}")
    try:
        store.commit([Unit((Append("hub/chat", Envelope(id="m1")), Append("hub/chat", Envelope(id="m2"))))])
        with closing(sqlite3.connect(tmp_path / "newer.db")) as other, other:
            other.execute("UPDATE semel_record SET kind = 99 WHERE id = 'm2'")
        export(store, tmp_path / "lake", "index", AT_ONCE)
    finally:
        store.close()
    assert read_back(tmp_path / "lake", "index")["type"].to_pylist() == ["message", "other"]


def test_a_file_is_named_after_its_range_and_a_range_over_midnight_has_a_file_for_each_day(
    store: Store, tmp_path: Path, clock: Clock
) -> None:
    log(store, "m1", "m2")
    clock.now += DAY_US
    log(store, "m3")
    clock.now -= DAY_US
    log(store, "m4")
    export(store, tmp_path, "ledger", AT_ONCE)
    name = f"seg-{store.store_id}-1-1-4.parquet"
    assert [segment.path for segment in segments(tmp_path, "ledger")] == [
        f"day=2024-10-04/{name}", f"day=2024-10-05/{name}",
    ]  # fmt: skip
    first, second = segments(tmp_path, "ledger")
    assert (first.rows, first.min, first.max) == (3, "0.1", "0.4")
    assert (second.rows, second.min, second.max) == (1, "0.3", "0.3")
    check_whole(store, tmp_path)


def test_a_mark_survives_its_text_with_and_without_a_transaction_id() -> None:
    for mark in (START, Mark(0, 12), Mark(7, 12)):
        assert parse_mark(mark_text(mark)) == mark
        assert parse_mark(str(mark)) == mark
    assert mark_text(Mark(0, 12)) == "0.12"


# -- again and again


def test_a_second_run_adds_what_is_new_and_a_third_adds_nothing(store: Store, tmp_path: Path) -> None:
    log(store, "m1", "m2")
    assert export(store, tmp_path, "ledger", AT_ONCE).rows == 2
    log(store, "m3")
    again = export(store, tmp_path, "ledger", AT_ONCE)
    assert (again.rows, [segment.first for segment in again.segments]) == (1, ["0.3"])
    assert export(store, tmp_path, "ledger", AT_ONCE) == Exported("ledger", 0, 0, (), Mark(0, 3))
    check_whole(store, tmp_path)


def test_a_long_ledger_becomes_several_segments(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "READ_ROWS", 10)
    log(store, *(f"m{n}" for n in range(95)))
    done = export(store, tmp_path, "ledger", replace(AT_ONCE, segment_rows=30))
    assert [(segment.first, segment.last) for segment in done.segments] == [
        ("0.1", "0.30"), ("0.31", "0.60"), ("0.61", "0.90"), ("0.91", "0.95"),
    ]  # fmt: skip
    check_whole(store, tmp_path)


def test_the_same_rows_give_the_same_bytes_however_they_were_read(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log(store, *(f"m{n}" for n in range(95)))
    append(store, "hub/chat", *(f"m{n}" for n in range(50)))
    contents = []
    for rows, fast in ((10, True), (1000, True), (7, False)):
        monkeypatch.setattr(module, "READ_ROWS", rows)
        source = store if fast else Slow(store)
        for dataset in DATASETS:
            store.commit([Unit(())])
            _forget_export(store, dataset)
            export(source, tmp_path / f"{rows}", dataset, AT_ONCE)
        files = sorted((tmp_path / f"{rows}").glob("raw/*/v1/day=*/*.parquet"))
        contents.append([file.read_bytes() for file in files])
    assert contents[0] == contents[1] == contents[2]
    assert len(contents[0]) == 2


class Slow:
    """A store without the short cut that hands over columns."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __getattr__(self, name: str) -> object:
        if name.endswith("_columns"):
            raise AttributeError(name)
        return getattr(self._store, name)


def _forget_export(store: Store, dataset: str) -> None:
    from semel.kernel.ops import Put

    store.commit([Unit((Put(f"export/{dataset}", None), Put(f"export/folder/{dataset}", None)))])


def test_what_is_written_during_an_export_waits_for_the_next_one(store: Store, tmp_path: Path) -> None:
    """Else busy writers would keep it going for ever, with a file for every row."""
    log(store, "m1")
    on_reach(lambda point: log(store, "more") if point == "export.listed" else None)
    assert [export(store, tmp_path, "ledger", AT_ONCE).rows for _ in range(3)] == [1, 1, 1]


@pytest.mark.parametrize("engine", ["sqlite", pytest.param("postgresql", marks=pytest.mark.connected)])
def test_busy_writers_lose_nothing_and_do_not_keep_the_export_from_ending(
    engine: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Each writer has a connection of its own, so on a server transactions overlap and end in any order."""
    url = f"sqlite:///{tmp_path}/semel.db" if engine == "sqlite" else request.getfixturevalue("postgres_url")
    stores = [open_store(url) for _ in range(4)]
    stop = threading.Event()

    def write(store: Store, name: str) -> None:
        for number in range(10_000):
            if stop.is_set():
                return
            log(store, *(f"{name}-{number}-{n}" for n in range(20)))

    writers = [
        threading.Thread(target=write, args=(store, name)) for store, name in zip(stores[1:], "abc", strict=True)
    ]
    for writer in writers:
        writer.start()
    rounds = [export(stores[0], tmp_path / "lake", "ledger", AT_ONCE) for _ in range(20)]
    stop.set()
    for writer in writers:
        writer.join()
    rounds.append(export(stores[0], tmp_path / "lake", "ledger", AT_ONCE))
    assert sum(done.rows for done in rounds) == stores[0].status().ledger_entries
    assert len(segments(tmp_path / "lake", "ledger")) > 2
    check_whole(stores[0], tmp_path / "lake")
    for store in stores:
        store.close()


def test_progress_and_a_stop_between_two_segments(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "READ_ROWS", 10)
    log(store, *(f"m{n}" for n in range(40)))
    seen: list[Progress] = []
    options = replace(AT_ONCE, segment_rows=20, progress=seen.append, stop=lambda: bool(seen))
    assert export(store, tmp_path, "ledger", options).rows == 20
    assert seen == [Progress("ledger", 10), Progress("ledger", 20)]
    assert export(store, tmp_path, "ledger", AT_ONCE).rows == 20
    check_whole(store, tmp_path)


# -- retention waits for the export


def test_from_the_first_export_on_nothing_is_swept_before_it_is_exported(store: Store, tmp_path: Path) -> None:
    export(store, tmp_path, "index", AT_ONCE)
    export(store, tmp_path, "ledger", AT_ONCE)
    append(store, "hub/chat", *(f"m{n}" for n in range(10)))
    log(store, "m1", "m2")
    store.commit([Unit((Trim("hub/chat", 11),))])
    swept = store.sweep(NOON, 100)
    assert (swept.records, swept.ledger) == (0, 0)
    export(store, tmp_path, "index", AT_ONCE)
    export(store, tmp_path, "ledger", AT_ONCE)
    store.commit([Unit((Trim("hub/chat", 11),))])
    swept = store.sweep(NOON, 100)
    assert (swept.records, swept.ledger) == (10, 2)
    assert read_back(tmp_path, "index").num_rows == 10
    assert read_back(tmp_path, "ledger").num_rows == 2


def test_an_export_that_is_forgotten_holds_nothing_up(store: Store, tmp_path: Path) -> None:
    append(store, "hub/chat", "m1")
    export(store, tmp_path, "index", AT_ONCE)
    append(store, "hub/chat", "m2")
    forget(store, "index", AT_ONCE)
    store.commit([Unit((Trim("hub/chat", 3),))])
    assert store.sweep(NOON, 100).records == 2
    with pytest.raises(StoreError, match="up to 1, the store itself only up to 0"):
        export(store, tmp_path, "index", AT_ONCE)


def test_an_exporter_that_lost_its_lease_says_nothing_about_epochs(
    store: Store, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has read its rows and is paused. Another exports more, then the store begins an epoch, then it wakes."""
    log(store, "m1")
    read = module._Exporter._read

    def pause(self: module._Exporter, after: Mark, last: Mark | None) -> object:
        monkeypatch.undo()
        rows = read(self, after, last)
        clock.now += 60_000_000
        export(store, tmp_path, "ledger", AT_ONCE)
        store.raise_epoch("test")
        return rows

    monkeypatch.setattr(module._Exporter, "_read", pause)
    with pytest.raises(StaleFence):
        export(store, tmp_path, "ledger", AT_ONCE)
    log(store, "m2")
    export(store, tmp_path, "ledger", AT_ONCE)
    assert [(start.epoch, start.after) for start in epoch_starts(tmp_path, "ledger")] == [(1, "0.0"), (2, "0.1")]


# -- one at a time


def test_a_second_exporter_is_told_who_is_at_work(store: Store, tmp_path: Path) -> None:
    log(store, "m1")
    refused: list[SemelError] = []

    def second(point: str) -> None:
        if point == "export.planned":
            with pytest.raises(StoreBusy) as caught:
                export(store, tmp_path, "ledger", AT_ONCE)
            refused.append(caught.value)

    on_reach(second)
    export(store, tmp_path, "ledger", replace(AT_ONCE, owner="first"))
    assert [error.message for error in refused] == ["first is exporting the ledger of this store"]
    check_whole(store, tmp_path)


def test_a_second_exporter_may_wait_for_the_first(tmp_path: Path) -> None:
    store = SqliteStore(f"sqlite:///{tmp_path}/semel.db")
    log(store, "m1")
    waiting = threading.Event()
    results: list[Exported] = []
    options = ExportOptions(
        wait_s=scaled(30), progress=lambda progress: waiting.set() if progress.waiting_for else None
    )
    other = threading.Thread(target=lambda: results.append(export(store, tmp_path / "lake", "ledger", options)))

    def hold(point: str) -> None:
        if point == "export.planned":
            other.start()
            assert waiting.wait(scaled(30))

    on_reach(hold)
    assert export(store, tmp_path / "lake", "ledger", AT_ONCE).rows == 1
    on_reach(None)
    other.join(scaled(30))
    assert [done.rows for done in results] == [0]
    store.close()


@pytest.mark.parametrize("point", ["export.planned", "export.written", "export.renamed", "export.listed"])
def test_an_exporter_taken_for_dead_can_do_no_harm(point: str, store: Store, tmp_path: Path, clock: Clock) -> None:
    """It pauses at the point, its lease runs out, another does all the work and the ledger is swept. Then it wakes."""
    log(store, "m1", "m2", "m3")
    entries = [entry.mark.seq for entry in store.ledger(START)]

    def pause(reached: str) -> None:
        if reached == point:
            on_reach(None)
            clock.now += 60_000_000
            export(store, tmp_path, "ledger", AT_ONCE)
            log(store, "m4")
            export(store, tmp_path, "ledger", AT_ONCE)
            store.sweep(clock.now)

    on_reach(pause)
    with pytest.raises(StaleFence):
        export(store, tmp_path, "ledger", AT_ONCE)
    assert read_back(tmp_path, "ledger")["seq"].to_pylist() == [*entries, 4]
    for segment in segments(tmp_path, "ledger"):
        content = (dataset_folder(tmp_path, "ledger") / segment.path).read_bytes()
        assert hashlib.sha256(content).hexdigest() == segment.sha256


def test_a_zombie_that_reads_a_swept_range_again_writes_nothing(tmp_path: Path, clock: Clock) -> None:
    """It took over a plan, was paused before reading, and meanwhile the range was finished and swept."""
    store = MemoryStore(clock=clock)
    log(store, "m1", "m2")
    die_at(store, "export.planned", lambda dying: export(dying, tmp_path, "ledger", AT_ONCE))
    clock.now += 60_000_000

    class Paused(Slow):
        def ledger(self, after: Mark, limit: int) -> object:
            clock.now += 60_000_000
            export(store, tmp_path, "ledger", AT_ONCE)
            assert store.sweep(clock.now).ledger == 2
            return store.ledger(after, limit)

    with pytest.raises(StaleFence):
        export(Paused(store), tmp_path, "ledger", AT_ONCE)  # type: ignore[arg-type]
    assert read_back(tmp_path, "ledger").num_rows == 2


class Died(BaseException):
    """The process is gone: nothing after this may reach the store."""


class Dying(Slow):
    dead = False

    def commit(self, units: object) -> object:
        if self.dead:
            raise Died
        return self._store.commit(units)  # type: ignore[arg-type]


def die_at(store: Store, point: str, work: Callable[[Store], object]) -> None:
    """Run until the point is reached, and let nothing of what follows happen."""
    dying = Dying(store)

    def die(reached: str) -> None:
        if reached == point:
            dying.dead = True
            raise Died

    on_reach(die)
    with pytest.raises(Died):
        work(dying)  # type: ignore[arg-type]
    on_reach(None)


@pytest.mark.parametrize("point", ["export.planned", "export.written", "export.renamed", "export.listed"])
def test_whoever_comes_after_a_crash_ends_with_the_same_file(
    point: str, store: Store, tmp_path: Path, clock: Clock
) -> None:
    log(store, *(f"m{n}" for n in range(20)))
    export(store, tmp_path / "whole", "ledger", AT_ONCE)
    _forget_export(store, "ledger")
    die_at(store, point, lambda dying: export(dying, tmp_path / "killed", "ledger", AT_ONCE))
    log(store, "later")
    clock.now += 60_000_000
    export(store, tmp_path / "killed", "ledger", AT_ONCE)
    [whole] = segments(tmp_path / "whole", "ledger")
    assert whole in segments(tmp_path / "killed", "ledger")
    check_whole(store, tmp_path / "killed")


@pytest.mark.parametrize("dataset", DATASETS)
@pytest.mark.parametrize("point", ["export.planned", "export.written", "export.renamed", "export.listed"])
def test_what_is_swept_while_an_export_is_under_way_is_in_its_files(
    point: str, dataset: str, store: Store, tmp_path: Path, clock: Clock
) -> None:
    """The mark moves last: what it allows to be swept is gone for good."""
    append(store, "hub/chat", *(f"m{n}" for n in range(20)))
    log(store, *(f"m{n}" for n in range(20)))

    def work(dying: Store) -> None:
        export(dying, tmp_path, dataset, AT_ONCE)

    die_at(store, point, work)
    store.commit([Unit((Trim("hub/chat", 21),))])
    swept = store.sweep(clock.now, 100)
    assert (swept.ledger if dataset == "ledger" else swept.records) == 0
    clock.now += 60_000_000
    export(store, tmp_path, dataset, AT_ONCE)
    store.commit([Unit((Trim("hub/chat", 21),))])
    swept = store.sweep(clock.now, 100)
    assert (swept.ledger if dataset == "ledger" else swept.records) == 20
    assert read_back(tmp_path, dataset)["message"].to_pylist() == [f"m{n}" for n in range(20)]


def test_a_file_that_was_cut_short_is_written_again(store: Store, tmp_path: Path, clock: Clock) -> None:
    log(store, "m1")
    die_at(store, "export.renamed", lambda dying: export(dying, tmp_path, "ledger", AT_ONCE))
    [path] = tmp_path.glob("raw/ledger/v1/day=*/*.parquet")
    path.write_bytes(path.read_bytes()[:100])
    clock.now += 60_000_000
    export(store, tmp_path, "ledger", AT_ONCE)
    check_whole(store, tmp_path)


def test_rows_that_vanished_under_a_plan_are_an_error(tmp_path: Path, clock: Clock) -> None:
    store = MemoryStore(clock=clock)
    log(store, "m1", "m2")
    die_at(store, "export.planned", lambda dying: export(dying, tmp_path, "ledger", AT_ONCE))
    clock.now += 60_000_000
    del store._data.ledger[0]
    with pytest.raises(StoreError, match=r"counts 2 rows, the ledger has 1"):
        export(store, tmp_path, "ledger", AT_ONCE)


# -- which folder, which history


def test_a_store_exports_into_one_folder(store: Store, tmp_path: Path) -> None:
    log(store, "m1")
    export(store, tmp_path / "lake", "ledger", AT_ONCE)
    with pytest.raises(ConfigError, match="is in another folder"):
        export(store, tmp_path / "pond", "ledger", AT_ONCE)
    assert not (tmp_path / "pond").exists()
    (tmp_path / "lake").rename(tmp_path / "moved")
    log(store, "m2")
    export(store, tmp_path / "moved", "ledger", AT_ONCE)
    check_whole(store, tmp_path / "moved")


def test_two_stores_may_share_a_folder(tmp_path: Path) -> None:
    stores = [MemoryStore(store_id=name) for name in ("a", "a-1")]
    for store in stores:
        log(store, "m1")
        export(store, tmp_path, "ledger", AT_ONCE)
    assert [segment.store for segment in segments(tmp_path, "ledger")] == ["a", "a-1"]


def test_a_store_put_back_with_everything_around_it_is_found_out_by_its_own_files(tmp_path: Path) -> None:
    url, lake = f"sqlite:///{tmp_path}/live/semel.db", tmp_path / "lake"
    (tmp_path / "live").mkdir()
    store = SqliteStore(url)
    log(store, "m1")
    export(store, lake, "ledger", AT_ONCE)
    store.close()
    shutil.copytree(tmp_path / "live", tmp_path / "backup")
    store = SqliteStore(url)
    log(store, "lost")
    export(store, lake, "ledger", AT_ONCE)
    store.close()
    shutil.rmtree(tmp_path / "live")
    shutil.copytree(tmp_path / "backup", tmp_path / "live")

    store = SqliteStore(url)
    log(store, "m2")
    with pytest.raises(StoreError, match=r"up to 2, the store itself only up to 1") as caught:
        export(store, lake, "ledger", AT_ONCE)
    assert "--new-epoch" in caught.value.fix
    export(store, lake, "ledger", replace(AT_ONCE, new_epoch=True))
    assert [(start.epoch, start.after) for start in epoch_starts(lake, "ledger")] == [(1, "0.0"), (2, "0.1")]
    history = [entry.event.message for entry in store.ledger(START)]
    assert _live_messages(lake) == history
    assert "lost" in read_back(lake, "ledger")["message"].to_pylist()
    store.close()


def test_a_restored_store_begins_an_epoch_and_what_it_lost_no_longer_counts(tmp_path: Path) -> None:
    path, lake = tmp_path / "semel.db", tmp_path / "lake"
    store = SqliteStore(f"sqlite:///{path}")
    log(store, "m1")
    export(store, lake, "ledger", AT_ONCE)
    log(store, "m2")
    store.close()
    shutil.copy(path, tmp_path / "backup.db")
    store = SqliteStore(f"sqlite:///{path}")
    log(store, "lost")
    export(store, lake, "ledger", AT_ONCE)
    store.close()
    shutil.copy(tmp_path / "backup.db", path)

    store = SqliteStore(f"sqlite:///{path}")
    assert store.epoch == 2
    log(store, "m3")
    export(store, lake, "ledger", AT_ONCE)
    assert _live_messages(lake) == [entry.event.message for entry in store.ledger(START)]
    store.close()


def _live_messages(folder: Path) -> list[str]:
    """What a reader keeps: rows of an epoch up to where the next one begins."""
    ends = {start.epoch - 1: parse_mark(start.after).seq for start in epoch_starts(folder, "ledger")}
    messages = []
    for segment in segments(folder, "ledger"):
        table = pq.read_table(dataset_folder(folder, "ledger") / segment.path)
        end = ends.get(segment.epoch, 2**62)
        messages += [row["message"] for row in table.to_pylist() if row["seq"] <= end]
    return messages


# -- what can be wrong


def test_an_unknown_dataset_and_a_missing_library(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="no dataset 'ledgers'"):
        export(store, tmp_path, "ledgers")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match="pyarrow") as caught:
        export(store, tmp_path, "ledger")
    assert caught.value.fix == "in a checkout: make setup; elsewhere: pip install 'semel[export]'"


@pytest.mark.parametrize("inside", [".", "below", "below/deeper"])
def test_a_file_where_the_folder_should_be(store: Store, tmp_path: Path, inside: str) -> None:
    lake = tmp_path / "lake"
    lake.write_text("not a folder")
    with pytest.raises(ConfigError) as caught:
        export(store, lake / inside, "ledger", AT_ONCE)
    assert caught.value.message == f"{lake / inside} cannot be a folder: {lake} is not a folder itself"
    assert caught.value.fix == f"move {lake} away, or export to a folder elsewhere (--to DIR)"
    assert lake.read_text() == "not a folder"


def test_a_file_where_the_folder_of_a_dataset_should_be(store: Store, tmp_path: Path) -> None:
    in_the_way = dataset_folder(tmp_path, "ledger")
    in_the_way.parent.mkdir(parents=True, exist_ok=True)
    in_the_way.write_text("not a folder")
    with pytest.raises(ConfigError, match=f"{tmp_path} cannot be a folder: {in_the_way} is not a folder itself"):
        export(store, tmp_path, "ledger", AT_ONCE)


def test_a_link_that_leads_nowhere(store: Store, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    lake.symlink_to(tmp_path / "gone")
    with pytest.raises(ConfigError, match=f"{lake} is a link that leads nowhere"):
        export(store, lake, "ledger", AT_ONCE)


def test_a_place_that_takes_no_folder(store: Store) -> None:
    with pytest.raises(ConfigError, match="/proc takes no new one") as caught:
        export(store, Path("/proc/lake"), "ledger", AT_ONCE)
    assert caught.value.fix == "make it by hand, or export to a folder elsewhere (--to DIR)"


def test_a_folder_that_is_cleaned_up_during_the_export(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log(store, "m")
    monkeypatch.setattr(module, "_write_synced", lambda path, content: None)
    with pytest.raises(StoreUnavailable, match="went missing during the export"):
        export(store, tmp_path, "ledger", AT_ONCE)


def test_a_folder_that_may_not_be_written(store: Store) -> None:
    with pytest.raises(StoreReadOnly, match="may not write") as caught:
        export(store, Path("/sys/kernel/lake"), "ledger", AT_ONCE)
    assert caught.value.fix == "give this user the right to, or export to a folder elsewhere (--to DIR)"


def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    """The limit on the size of a file gives the same kind of error as a disk without space, without needing root."""
    url, lake = f"sqlite:///{tmp_path}/semel.db", tmp_path / "lake"
    store = SqliteStore(url)
    log(store, *(os.urandom(30).hex() for _ in range(20_000)))
    store.close()
    program = (
        "import sys; from pathlib import Path; from semel.errors import StoreFull\n"
        "from semel.runtime.export.exporter import *; from semel.stores.sqlite import SqliteStore\n"
        "try: export(SqliteStore(sys.argv[1]), Path(sys.argv[2]), 'ledger')\n"
        "except StoreFull as error: print(error.message)\n"
    )
    limited = subprocess.run(
        [sys.executable, "-c", program, url, lake],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000)),
        # Python would not notice that it kept only half of what it compiled
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert limited.stdout.startswith(f"no space left for the export in {lake}"), limited.stderr
    store = SqliteStore(url)
    export(store, lake, "ledger", AT_ONCE)
    check_whole(store, lake)
    store.close()


def test_the_full_disk_error_is_the_one_for_full_disks(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, content: bytes) -> None:
        raise OSError(28, "No space left on device")

    log(store, "m1")
    monkeypatch.setattr(module, "_write_synced", full)
    with pytest.raises(StoreFull):
        export(store, tmp_path, "ledger", AT_ONCE)
    monkeypatch.undo()
    export(store, tmp_path, "ledger", AT_ONCE)
    check_whole(store, tmp_path)
