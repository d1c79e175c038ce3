"""The sink without Spark: writers are called as Spark calls them, and die where Spark's driver may die."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql.types import DoubleType, IntegerType, StringType, StructField, StructType
from tests.unit.spark.sinks import SCHEMA, events, ids, options_of, raw, records, row, stage, told

from semel.errors import CommitInDoubt, ConfigError, InputError, StaleFence, StoreUnavailable
from semel.kernel.envelope import DATA_INLINE_BYTES_MAX, Envelope
from semel.kernel.ledger import Kind, balance
from semel.kernel.ops import Append, Outcome, Trim, Unit
from semel.kernel.position import Position
from semel.kernel.store import Store
from semel.runtime.host.lease_holder import Holder
from semel.spark import sink as module
from semel.spark.landing import Job, derived_id, read_state
from semel.spark.rows import Row
from semel.spark.rows import RowOutcome as Fate
from semel.spark.sink import StreamTarget, land, read_options, taken_up_to
from semel.spark.staging import Staged, Task
from semel.spark.writers import BatchWriter, StreamWriter, make_stream_writer, make_writer
from semel.stores.open import open_store

HOP = "hub/chat>spark/orders"
OUT = "spark/orders"


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    url = f"sqlite:///{tmp_path}/semel.db" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    with closing(open_store(url, node="spark")) as store:
        yield store


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[Store]:
    with closing(open_store(f"sqlite:///{tmp_path}/semel.db", node="spark")) as store:
        yield store


class Query:
    """A streaming query in the eyes of its sink."""

    def __init__(self, tmp_path: Path, at: Store, query: str = "q1", **options: object) -> None:
        self.options = options_of(tmp_path, at, **options)
        self.query = query

    @property
    def writer(self) -> StreamWriter:
        """A new one for each call, as in a process of its own."""
        writer = StreamWriter(self.options, StreamTarget(self.options))
        return pickle.loads(pickle.dumps(writer))  # type: ignore[no-any-return]

    def stage(self, batch: int, rows: object, partition: int = 0, attempt: int = 0) -> Staged:
        job = Job("orders", self.query, batch)
        staged = stage(self.options.staged, rows, job, partition, attempt)  # type: ignore[arg-type]
        return pickle.loads(pickle.dumps(staged))  # type: ignore[no-any-return]

    def run(self, batch: int, *rows: Row) -> list[Staged | None]:
        messages: list[Staged | None] = [self.stage(batch, rows)]
        self.writer.commit(messages, batch)  # type: ignore[arg-type]
        return messages

    @property
    def staged_files(self) -> list[Path]:
        return sorted(Path(self.options.staged.folder).rglob("*.arrow"))


def snapshot(store: Store) -> object:
    streams = [stream.name for stream in store.status().streams]
    return [records(store, name) for name in streams], events(store), store.state("sink/orders")


# -- once


def test_a_batch_lands_and_its_files_go(store: Store, tmp_path: Path) -> None:
    query = Query(tmp_path, store)
    query.run(0, row("a"), row("b"))
    query.run(1, row("c"))
    assert ids(store, OUT) == ["a", "b", "c"]
    assert told(store) == {(HOP, kind, id): 1 for kind in (Kind.ACCEPTED, Kind.FORWARDED) for id in "abc"}
    assert query.staged_files == []
    state = read_state("", store.state("sink/orders"))
    assert (state.query, state.batch) == ("q1", 1)


def test_a_batch_that_comes_again_changes_nothing(store: Store, tmp_path: Path) -> None:
    query = Query(tmp_path, store)
    query.run(0, row("a"))
    query.run(1, row("b"), row("x"))
    before = snapshot(store)
    for batch, rows in ((1, [row("b"), row("x")]), (0, [row("a")])):
        query.run(batch, *rows)
    assert snapshot(store) == before
    assert query.staged_files == []


def test_a_lost_checkpoint_gives_duplicates_and_no_second_record(store: Store, tmp_path: Path) -> None:
    Query(tmp_path, store).run(0, row("a"), row("b"))
    again = Query(tmp_path, store, "q2")
    again.run(0, row("a"))
    again.run(1, row("b"), row("c"))
    assert ids(store, OUT) == ["a", "b", "c"]
    counts = told(store)
    assert [counts[HOP, Kind.DUPLICATE, id] for id in "abc"] == [1, 1, 0]
    assert [counts[HOP, Kind.ACCEPTED, id] for id in "abc"] == [1, 1, 1]


def test_a_late_replay_of_the_query_before_is_still_known(sqlite: Store, tmp_path: Path) -> None:
    Query(tmp_path, sqlite).run(5, row("a"))
    Query(tmp_path, sqlite, "q2").run(0, row("b"))
    before = snapshot(sqlite)
    Query(tmp_path, sqlite).run(5, row("a"))
    assert snapshot(sqlite) == before


def test_only_the_attempts_that_are_named_count(store: Store, tmp_path: Path) -> None:
    query = Query(tmp_path, store)
    query.stage(0, [row("a"), row("lost half")], partition=0, attempt=0)
    named = query.stage(0, [row("a"), row("b")], partition=0, attempt=1)
    query.stage(0, [row("c")], partition=1, attempt=0)
    twin = query.stage(0, [row("c")], partition=1, attempt=1)
    query.writer.commit([twin, named, None], 0)  # type: ignore[list-item]
    assert ids(store, OUT) == ["a", "b", "c"]
    assert query.staged_files == []


def test_a_straggler_that_writes_after_the_commit_is_swept_by_the_next(sqlite: Store, tmp_path: Path) -> None:
    query = Query(tmp_path, sqlite)
    query.run(0, row("a"))
    query.stage(0, [row("a")], attempt=1)
    coming = query.stage(2, [row("later")])
    query.run(1, row("b"))
    assert [str(path) for path in query.staged_files] == [coming.file]


def test_sessions_keep_their_order(sqlite: Store, tmp_path: Path) -> None:
    query = Query(tmp_path, sqlite)
    parts = [[row(f"{p}-{n}", session=f"s{p}", index=n) for n in range(50)] for p in range(4)]
    messages = [query.stage(0, rows, partition=p) for p, rows in enumerate(parts)]
    query.writer.commit(list(reversed(messages)), 0)
    found = [(record.envelope.session, record.envelope.index) for record in records(sqlite, OUT)]
    assert found == [(f"s{p}", n) for p in range(4) for n in range(50)]


def test_a_batch_without_rows_still_counts(sqlite: Store, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    query = Query(tmp_path, sqlite, checkpoint=str(checkpoint))
    query.writer.commit([], 0)
    assert sqlite.state("sink/orders") is None
    (checkpoint / "metadata").write_text('{"id":"q1"}')
    query.writer.commit([], 0)
    assert read_state("", sqlite.state("sink/orders")).has("q1", 0)


# -- crashes


class Killed(BaseException):
    pass


class Faulty:
    """A store whose commits go through a hook."""

    def __init__(self, store: Store, commit: Callable[[Sequence[Unit]], list[Outcome]]) -> None:
        self._store, self.commit = store, commit
        self.outcomes: list[Outcome] | None = None

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    def resolve(self, marker: str) -> list[Outcome] | None:
        return self.outcomes

    def close(self) -> None:
        pass


def use(monkeypatch: pytest.MonkeyPatch, faulty: Faulty) -> None:
    monkeypatch.setattr(module, "open_sink_store", lambda options: faulty)


@pytest.mark.parametrize("happened", [True, False])
def test_a_driver_that_dies_around_the_commit(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, happened: bool
) -> None:
    query = Query(tmp_path, store)
    messages = [query.stage(0, [row("a"), row("b")])]

    def die(units: Sequence[Unit]) -> list[Outcome]:
        if happened:
            store.commit(units)
        raise Killed

    with monkeypatch.context() as patched:
        use(patched, Faulty(store, die))
        with pytest.raises(Killed):
            query.writer.commit(messages, 0)
    query.writer.abort(messages, 0)
    assert ids(store, OUT) == (["a", "b"] if happened else [])
    assert query.staged_files == []
    query.run(0, row("a"), row("b"))
    assert ids(store, OUT) == ["a", "b"]
    assert told(store) == {(HOP, kind, id): 1 for kind in (Kind.ACCEPTED, Kind.FORWARDED) for id in "ab"}


def test_an_abort_after_the_commit_touches_nothing(store: Store, tmp_path: Path) -> None:
    query = Query(tmp_path, store)
    messages = query.run(0, row("a"))
    before = snapshot(store)
    following = query.stage(1, [row("b")])
    query.writer.abort([*messages, None], 0)  # type: ignore[list-item]
    assert snapshot(store) == before
    query.writer.commit([following], 1)
    assert ids(store, OUT) == ["a", "b"]


def test_an_abort_without_a_store_removes_nothing_and_raises_nothing(
    sqlite: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    query = Query(tmp_path, sqlite, store=f"sqlite:///{tmp_path}/gone/semel.db")
    messages = [query.stage(0, [row("a")])]
    query.writer.abort(messages, 0)
    assert len(query.staged_files) == 1
    assert "nothing was cleaned up after batch 0 of orders" in caplog.text


@pytest.mark.parametrize("happened", [True, False])
def test_a_commit_in_doubt_is_resolved(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, happened: bool
) -> None:
    query = Query(tmp_path, store)
    messages = [query.stage(0, [row("a")])]
    doubts = iter([True])

    def commit(units: Sequence[Unit]) -> list[Outcome]:
        if next(doubts, None) is None:
            return store.commit(units)
        faulty.outcomes = store.commit(units) if happened else None
        raise CommitInDoubt("the connection broke inside COMMIT", marker="m")

    faulty = Faulty(store, commit)
    with monkeypatch.context() as patched:
        use(patched, faulty)
        query.writer.commit(messages, 0)
    assert ids(store, OUT) == ["a"]
    assert told(store)[HOP, Kind.ACCEPTED, "a"] == 1


def test_staged_rows_that_are_gone_stop_the_batch_and_land_nothing(sqlite: Store, tmp_path: Path) -> None:
    query = Query(tmp_path, sqlite)
    messages = [query.stage(0, [row("a")]), query.stage(0, [row("b")], partition=1)]
    Path(messages[1].file).unlink()
    with pytest.raises(StoreUnavailable, match="staged rows"):
        query.writer.commit(messages, 0)
    assert ids(sqlite, OUT) == []
    assert sqlite.state("sink/orders") is None


# -- two drivers


def test_a_stale_fence_is_refused_and_writes_nothing(store: Store, tmp_path: Path) -> None:
    old = Holder(store, "pipeline/orders", job="running orders", lease_s=0.0, owner="old")
    old.acquire()
    new = Holder(store, "pipeline/orders", job="running orders", owner="new")
    new.acquire()
    before = snapshot(store)
    with pytest.raises(StaleFence, match="another driver has taken over pipeline 'orders': batch 0"):
        Query(tmp_path, store, fence=old.fence).run(0, row("a"))
    assert snapshot(store) == before
    Query(tmp_path, store, fence=new.fence).run(0, row("a"))
    assert ids(store, OUT) == ["a"]


def test_two_drivers_at_once_land_a_batch_once(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    query = Query(tmp_path, store)
    mine, theirs = [query.stage(0, [row("a")])], [query.stage(0, [row("a")], attempt=1)]
    turns = iter([True])

    def commit(units: Sequence[Unit]) -> list[Outcome]:
        if next(turns, None):
            StreamTarget(query.options).land(store, Job("orders", "q1", 0), theirs)
        return store.commit(units)

    with monkeypatch.context() as patched:
        use(patched, Faulty(store, commit))
        query.writer.commit(mine, 0)
    assert ids(store, OUT) == ["a"]
    assert told(store) == {(HOP, Kind.ACCEPTED, "a"): 1, (HOP, Kind.FORWARDED, "a"): 1}


def test_two_queries_at_once_both_land(sqlite: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, theirs = Query(tmp_path, sqlite), Query(tmp_path, sqlite, "q2")
    messages, others = [mine.stage(0, [row("a"), row("b")])], [theirs.stage(0, [row("b"), row("c")])]
    turns = iter([True])

    def commit(units: Sequence[Unit]) -> list[Outcome]:
        if next(turns, None):
            StreamTarget(theirs.options).land(sqlite, Job("orders", "q2", 0), others)
        return sqlite.commit(units)

    with monkeypatch.context() as patched:
        use(patched, Faulty(sqlite, commit))
        mine.writer.commit(messages, 0)
    assert ids(sqlite, OUT) == ["b", "c", "a"]
    assert told(sqlite)[HOP, Kind.DUPLICATE, "b"] == 1
    assert read_state("", sqlite.state("sink/orders")).landed == {"q2": 0, "q1": 0}


# -- one acceptance for one input


def test_a_dead_letter_that_passes_when_the_checkpoint_is_lost_was_replayed(store: Store, tmp_path: Path) -> None:
    Query(tmp_path, store).run(0, row("a", outcome=Fate.DEAD), row("b"), row("c", outcome=Fate.HANDLED), row("d"))
    Query(tmp_path, store, "q2").run(0, row("a"), row("b", outcome=Fate.DEAD), row("c"), row("d"))
    counts = told(store)
    assert {kind for (_, kind, id) in counts if id == "a"} == {
        Kind.ACCEPTED, Kind.DEAD_LETTERED, Kind.REPLAYED, Kind.FORWARDED,
    }  # fmt: skip
    assert set(counts.values()) == {1}
    assert [counts[HOP, Kind.ACCEPTED, id] for id in "abcd"] == [1, 1, 1, 1]
    assert [counts[HOP, Kind.DUPLICATE, id] for id in "abcd"] == [0, 1, 1, 1]
    assert ids(store, "dead/hub/chat") == ["a"]
    assert balance(events(store), 0).holds


def test_what_another_driver_answered_for_in_between_is_seen(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, theirs = Query(tmp_path, store), Query(tmp_path, store, "q2")
    messages = [mine.stage(0, [row("a")])]
    others = [theirs.stage(0, [row("a", outcome=Fate.DEAD)])]
    turns = iter([True])

    def commit(units: Sequence[Unit]) -> list[Outcome]:
        if next(turns, None):
            StreamTarget(theirs.options).land(store, Job("orders", "q2", 0), others)
        return store.commit(units)

    with monkeypatch.context() as patched:
        use(patched, Faulty(store, commit))
        mine.writer.commit(messages, 0)
    counts = told(store)
    assert counts[HOP, Kind.ACCEPTED, "a"] == counts[HOP, Kind.REPLAYED, "a"] == counts[HOP, Kind.FORWARDED, "a"] == 1


def test_an_input_with_an_odd_name_is_no_obstacle(store: Store, tmp_path: Path) -> None:
    Query(tmp_path, store).run(0, row("x", input="m", ordinal=0))
    query = Query(tmp_path, store, "q2")
    query.writer.commit([query.stage(0, raw(id=["y", 'quote " and \\'], input=["m\x00", None]))], 0)
    assert ids(store, OUT) == ["x", 'quote " and \\']
    assert ids(store, "dead/input") == ["y"]


def test_a_store_that_cannot_be_asked_is_named(sqlite: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    query = Query(tmp_path, sqlite)
    query.run(0, row("a", outcome=Fate.DEAD))

    def fail(*_: object, **__: object) -> dict[str, Position]:
        raise StoreUnavailable("disk I/O error", fix="")

    messages = [query.stage(1, [row("a")])]
    with monkeypatch.context() as patched:
        patched.setattr(sqlite, "known", fail)
        with pytest.raises(StoreUnavailable, match="disk I/O error"):
            StreamTarget(query.options).land(sqlite, Job("orders", "q1", 1), messages)
    assert ids(sqlite, OUT) == []


# -- rows that no store would take


def test_a_bad_row_becomes_a_dead_letter_and_the_others_pass(store: Store, tmp_path: Path) -> None:
    batch = raw(
        id=["a", "b\x00", "c" * 300, "d", "e"],
        session=[None, None, None, "s\x00", None],
        stream=["hub/chat"] * 5,
        data=[b"1", b"2", b"3", b"4", b"5"],
    )
    query = Query(tmp_path, store)
    query.writer.commit([query.stage(0, batch)], 0)
    assert ids(store, OUT) == ["a", "e"]
    dead = records(store, "dead/hub/chat")
    assert [record.envelope.data for record in dead] == [b"2", b"3", b"4"]
    causes = [record.envelope.headers["semel-cause"] for record in dead]
    assert "id contains a NUL" in causes[0]
    assert "id has 300 characters" in causes[1]
    assert "session contains a NUL" in causes[2]
    assert dead[2].envelope.id == "d"
    assert told(store)[HOP, Kind.DEAD_LETTERED, "d"] == 1


def test_a_row_that_nobody_can_name_stops_the_batch_and_is_shown(sqlite: Store, tmp_path: Path) -> None:
    query = Query(tmp_path, sqlite)
    batch = raw(id=["a", None], session=[None, "room 5"])
    with pytest.raises(InputError, match=r"partition 3 in batch 0 .*no id.*room 5"):
        query.writer.commit([query.stage(0, batch, partition=3)], 0)
    assert ids(sqlite, OUT) == []


def test_outputs_without_ids_get_the_same_ones_whatever_the_query(sqlite: Store, tmp_path: Path) -> None:
    batch = raw(id=[None, None], input=["m", "m"], ordinal=[0, 1], stream=["hub/chat"] * 2)
    for name in ("q1", "q2"):
        query = Query(tmp_path, sqlite, name)
        query.writer.commit([query.stage(0, batch)], 0)
    assert ids(sqlite, OUT) == [derived_id("orders", "m", n) for n in (0, 1)]
    assert told(sqlite) == {
        (HOP, Kind.ACCEPTED, "m"): 1, (HOP, Kind.FORWARDED, "m"): 1, (HOP, Kind.DUPLICATE, "m"): 1,
    }  # fmt: skip


def test_large_bodies_are_stored_in_chunks_and_come_back(store: Store, tmp_path: Path) -> None:
    body = bytes(range(256)) * 4096
    small = b"x" * DATA_INLINE_BYTES_MAX
    query = Query(tmp_path, store)
    batch = raw(id=["big", "small", "broken"], data=[body, small, body], session=[None, None, ""])
    query.writer.commit([query.stage(0, batch)], 0)
    big, inline = records(store, OUT)
    assert big.envelope.blob is not None
    assert b"".join(store.body(big.envelope.blob.name)) == body
    assert inline.envelope.data == small
    [dead] = records(store, "dead/input")
    assert dead.envelope.blob is not None
    assert b"".join(store.body(dead.envelope.blob.name)) == body


# -- sources and relay


def source(tmp_path: Path, store: Store, batch: int, after: int, offset: int, **more: object) -> None:
    folder = tmp_path / "checkpoint" / "offsets"
    folder.mkdir(parents=True, exist_ok=True)
    taken = {"store": store.store_id, "stream": "hub/chat", "epoch": store.epoch, "after": after, "offset": offset}
    lines = ["v1", "{}", json.dumps({**taken, **more}), json.dumps({**taken, "store": "elsewhere", "offset": 99})]
    (folder / str(batch)).write_text("\n".join(lines))


def test_how_far_a_batch_went_is_kept_and_pins_its_source(store: Store, tmp_path: Path) -> None:
    store.commit([Unit(tuple(Append("hub/chat", Envelope(f"m{n}"), f"m{n}") for n in range(9)))])
    query = Query(tmp_path, store, checkpoint=str(tmp_path / "checkpoint"))
    source(tmp_path, store, 0, 0, 4)
    query.run(0, row("m0"))
    source(tmp_path, store, 1, 4, 8)
    query.run(1, row("m4"))
    assert taken_up_to(store, "orders") == {"hub/chat": 8}
    assert set(read_state("", store.state("sink/orders")).sources) == {"hub/chat", "elsewhere:hub/chat"}
    at = store.cursor("spark/orders/hub/chat")
    assert at is not None
    assert at.offset == 4
    store.commit([Unit((Trim("hub/chat", 9),))])
    assert next(stream.first for stream in store.status().streams if stream.name == "hub/chat") == 5


def test_a_source_of_another_epoch_is_kept_but_pins_nothing(sqlite: Store, tmp_path: Path) -> None:
    query = Query(tmp_path, sqlite, checkpoint=str(tmp_path / "checkpoint"))
    source(tmp_path, sqlite, 0, 0, 4, epoch=sqlite.epoch + 1)
    query.run(0, row("m0"))
    assert sqlite.cursor("spark/orders/hub/chat") is None
    assert taken_up_to(sqlite, "orders") == {"hub/chat": 4}


def test_a_pipeline_that_never_ran_has_taken_nothing(sqlite: Store) -> None:
    assert taken_up_to(sqlite, "orders") == {}


def test_a_batch_goes_on_into_the_live_stream(store: Store, tmp_path: Path) -> None:
    query = Query(tmp_path, store, to="hub/out")
    query.run(0, row("a"), row("b"))
    query.run(1, row("c"))
    assert ids(store, "hub/out") == ["a", "b", "c"]
    counts = told(store)
    assert all(counts["spark/orders>hub/out", kind, id] == 1 for kind in (Kind.SENT, Kind.ACCEPTED) for id in "abc")


def test_a_relay_that_failed_is_made_up_for_when_the_batch_comes_again(
    sqlite: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query(tmp_path, sqlite, to="hub/out")
    messages = [query.stage(0, [row("a")])]

    def die(*_: object, **__: object) -> int:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(module, "relay", die)
        with pytest.raises(Killed):
            query.writer.commit(messages, 0)
    assert ids(sqlite, OUT) == ["a"]
    assert ids(sqlite, "hub/out") == []
    query.run(0, row("a"))
    assert ids(sqlite, "hub/out") == ["a"]
    assert told(sqlite)[HOP, Kind.DUPLICATE, "a"] == 0


# -- batch jobs


def test_a_job_that_is_run_again_adds_nothing(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"store": store.url, "pipeline": "orders", "staging": str(tmp_path / "staging")}
    for _ in range(2):
        writer: BatchWriter = pickle.loads(pickle.dumps(make_writer(options, SCHEMA, overwrite=False)))
        monkeypatch.setattr("semel.spark.writers.current_task", lambda query, batch: Task(query, batch, 0, 0, 0))
        message = writer.write(iter([raw(id=["a", "b"])]))
        writer.commit([message])
    assert ids(store, OUT) == ["a", "b"]
    assert told(store)["input>spark/orders", Kind.DUPLICATE, "a"] == 1
    assert list((tmp_path / "staging").rglob("*.arrow")) == []


def test_jobs_leave_the_place_of_a_query_alone(sqlite: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Query(tmp_path, sqlite).run(0, row("a"))
    options = {"store": sqlite.url, "pipeline": "orders", "staging": str(tmp_path / "staging")}
    monkeypatch.setattr("semel.spark.writers.current_task", lambda query, batch: Task(query, batch, 0, 0, 0))
    writers = [make_writer(options, SCHEMA, overwrite=False) for _ in range(10)]
    for n, writer in enumerate(writers):
        writer.commit([writer.write(iter([raw(id=[f"job{n}"])]))])
    state = read_state("", sqlite.state("sink/orders"))
    assert (state.query, state.batch) == ("q1", 0)
    assert state.landed == {"q1": 0, writers[-1].job.query: 0}


def test_a_job_that_fails_leaves_nothing(sqlite: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"store": sqlite.url, "pipeline": "orders", "staging": str(tmp_path / "staging")}
    writer = make_writer(options, SCHEMA, overwrite=False)
    monkeypatch.setattr("semel.spark.writers.current_task", lambda query, batch: Task(query, batch, 0, 0, 0))
    message = writer.write(iter([raw(id=["a"])]))
    writer.abort([message, None])
    assert ids(sqlite, OUT) == []
    assert list((tmp_path / "staging").rglob("*.arrow")) == []


@pytest.mark.parametrize("fails", [True, False])
def test_a_job_without_a_place_to_stage_has_one_of_its_own_for_a_while(
    sqlite: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("semel.spark.writers.current_task", lambda query, batch: Task(query, batch, 0, 0, 0))
    writer = make_writer({"store": sqlite.url, "pipeline": "orders"}, SCHEMA, overwrite=False)
    [folder] = tmp_path.glob("semel-staging-*")
    assert folder.stat().st_mode & 0o777 == 0o700
    message = writer.write(iter([raw(id=["a"])]))
    assert len(list(folder.rglob("*.arrow"))) == 1
    (writer.abort if fails else writer.commit)([message])
    assert ids(sqlite, OUT) == ([] if fails else ["a"])
    assert not folder.exists()


def test_others_all_the_time_is_an_error_and_not_a_loop(sqlite: Store, tmp_path: Path) -> None:
    query = Query(tmp_path, sqlite)

    def commit(units: Sequence[Unit]) -> list[Outcome]:
        land(sqlite, Job("orders", f"other{next(turn)}", 0), query.options, list)
        return sqlite.commit(units)

    turn = iter(range(100))
    with pytest.raises(module.StoreBusy, match="all the time"):
        land(Faulty(sqlite, commit), Job("orders", "q1", 0), query.options, list)  # type: ignore[arg-type]


# -- options

GOOD = {"store": "sqlite:///x.db", "pipeline": "orders", "checkpointlocation": "/tmp/c"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pipeline": ""}, "needs a name"),
        ({"store": None}, "needs a store"),
        ({"tabel": "x"}, "no option 'tabel'"),
        ({"fence": "-1"}, "fence is '-1'"),
        ({"fence": "x"}, "fence is 'x'"),
        ({"to": "hub/out", "path": "/tmp/p"}, "one target"),
        ({"table": "t"}, "belong together"),
        ({"key": "t"}, "belong together"),
        ({"to": "spark/orders"}, "own stream"),
        ({"to": "Not A Stream"}, "not a valid part"),
        ({"to": "s" * 505}, "is too long"),
        ({"target": "g/red"}, "needs a hub"),
        ({"to": "inbox/out", "target": "g/red"}, "needs a hub"),
        ({"to": "hub/out", "target": "red"}, "nobody in a hub"),
        ({"to": "hub/out", "target": "g/"}, "nobody in a hub"),
        ({"checkpointlocation": None}, "without a checkpoint"),
        ({"store": None, "path": "/tmp/p", "fence": "3"}, "a store gave out"),
    ],
)
def test_options_that_make_no_sense_are_refused(change: dict[str, str | None], message: str) -> None:
    options = {name: value for name, value in {**GOOD, **change}.items() if value is not None}
    with pytest.raises((ConfigError, InputError), match=message):
        make_stream_writer(options, SCHEMA, overwrite=False)


def test_ids_may_follow_from_the_name_of_another_pipeline(
    sqlite: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"store": sqlite.url, "pipeline": "again", "staging": str(tmp_path / "staging"), "idsAs": "orders"}
    stream = make_stream_writer(options, SCHEMA, overwrite=False)
    staged = stream.options.staged.write(iter([raw(id=[None], input=["m"])]), Task("q1", 0, 0, 0, 0))
    stream.commit([staged], 0)
    job = make_writer(options, SCHEMA, overwrite=False)
    monkeypatch.setattr("semel.spark.writers.current_task", lambda query, batch: Task(query, batch, 0, 0, 0))
    job.commit([job.write(iter([raw(id=[None], input=["n"])]))])
    assert ids(sqlite, "spark/again") == [derived_id("orders", "m", 0), derived_id("orders", "n", 0)]


def test_names_of_options_are_understood_in_any_case() -> None:
    found = read_options({"STORE": "sqlite:///x.db", "Pipeline": "orders", "checkpointLocation": "/c", "fence": "12"})
    assert (found.checkpoint, found.fence) == ("/c", 12)
    assert found.staged.folder == "/c/semel-staging"
    assert found.guard is not None
    assert found.guard.identity == "pipeline/orders"


def test_nothing_is_overwritten() -> None:
    for make in (make_stream_writer, make_writer):
        with pytest.raises(ConfigError, match="never overwritten"):
            make(GOOD, SCHEMA, True)


@pytest.mark.parametrize(
    ("name", "type", "message"),
    [
        ("id", IntegerType(), "column id is int"),
        ("time", StringType(), "column time is string"),
        ("x", None, "no column"),
    ],
)
def test_columns_of_another_type_are_refused_before_anything_runs(name: str, type: object, message: str) -> None:
    fields = [StructField(name, type or StringType())]  # type: ignore[arg-type]
    if name == "time":
        fields.append(StructField("id", StringType()))
    with pytest.raises(InputError, match=message):
        make_stream_writer(GOOD, StructType(fields), overwrite=False)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [("index", "bigint"), ("offset", "bigint"), ("epoch", "int"), ("ordinal", "int"), ("data", "binary")],
)
def test_a_column_of_another_type_is_to_be_cast_to_what_a_message_has(name: str, wanted: str) -> None:
    fields = [StructField("id", StringType()), StructField(name, DoubleType())]
    with pytest.raises(InputError, match=f"a message has {wanted} there") as caught:
        make_stream_writer(GOOD, StructType(fields), overwrite=False)
    assert f".cast('{wanted}')" in caught.value.fix


def test_a_store_that_is_not_there_is_not_made(tmp_path: Path, sqlite: Store) -> None:
    query = Query(tmp_path, sqlite, store=f"sqlite:///{tmp_path}/typo.db")
    with pytest.raises(StoreUnavailable, match="no store at"):
        query.run(0, row("a"))
    assert not (tmp_path / "typo.db").exists()
