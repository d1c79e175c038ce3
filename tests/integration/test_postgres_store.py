"""What only PostgreSQL can get wrong. What it shares with the other stores is in tests/contract."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
import psycopg
import pytest
from psycopg import sql
from tests.integration.postgres_stores import DEADLINE_S, STREAM, execute, wait_until

from semel.errors import (
    CommitInDoubt,
    ConfigError,
    InputError,
    NotAStore,
    SchemaTooNew,
    SemelError,
    StaleFence,
    StoreBusy,
    StoreFull,
    StoreReadOnly,
    StoreRefused,
    StoreUnavailable,
)
from semel.kernel.envelope import Blob, Envelope
from semel.kernel.ledger import START, Event, Kind, Mark
from semel.kernel.ops import (
    Advance,
    Advanced,
    Append,
    Applied,
    Claim,
    Claimed,
    Duplicate,
    Enqueue,
    Finish,
    Fresh,
    Log,
    Op,
    Put,
    Result,
    Trim,
    Unit,
    WorkRow,
    WorkState,
)
from semel.kernel.position import EPOCH_GAP, Position
from semel.kernel.store import Records, State
from semel.runtime.host.committer import Committer
from semel.runtime.host.performer import Performer
from semel.stores import postgres_engine, postgres_fronts
from semel.stores.postgres import PostgresStore
from semel.stores.postgres_connection import Q, is_refusal
from semel.stores.postgres_engine import PostgresEngine, TryAgain, work_row_of
from semel.stores.postgres_fronts import Fronts
from semel.stores.queries import load_migrations
from semel.testing.limits import scaled
from semel.testing.postgres import PrivatePostgres, new_database

pytestmark = pytest.mark.connected

QUEUE = "inbox/orders"
NEWEST = load_migrations("postgres")[-1][0]
DOUBTFUL = [Applied((Fresh(Position(STREAM, 1, 2)),))]


@pytest.fixture
def store(postgres_url: str) -> Iterator[PostgresStore]:
    with closing(PostgresStore(postgres_url)) as store:
        yield store


def commit(store: PostgresStore, *ops: Op) -> tuple[Result, ...]:
    outcome = store.commit([Unit(ops)])[0]
    assert isinstance(outcome, Applied), outcome
    return outcome.results


def append(store: PostgresStore, *ids: str) -> list[int]:
    results = commit(store, *(Append(STREAM, Envelope(id=id), identity=id) for id in ids))
    assert all(isinstance(result, Fresh) for result in results)
    return [result.position.offset for result in results if isinstance(result, Fresh)]


def claim(store: PostgresStore, limit: int = 10) -> list[str]:
    result = commit(store, Claim(QUEUE, "w", limit=limit))[0]
    assert isinstance(result, Claimed)
    return [row.identity for row in result.rows]


def sent(id: str) -> Event:
    return Event(Kind.SENT, "client>hub/orders", message=id)


def is_waiting_for_a_lock(url: str, queries: int = 1) -> bool:
    found = execute(
        url, "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    )
    return bool(found[0][0] >= queries)


# -- offsets become visible in order


class Tail:
    """A reader that goes on after the highest number that it has seen, as every reader must."""

    def __init__(self, read: Callable[[int], list[int]]) -> None:
        self._read = read
        self.seen: list[int] = []

    def read(self) -> None:
        found = self._read(self.seen[-1] if self.seen else 0)
        assert found == sorted(found)
        self.seen += found


def store_tail(store: PostgresStore, timeout_s: float = 0.0) -> Tail:
    def read(after: int) -> list[int]:
        position = Position(STREAM, 1, after) if after else None
        found = store.tail(STREAM, position, timeout_s=timeout_s)
        assert isinstance(found, Records)
        return [record.position.offset for record in found.records]

    return Tail(read)


WRITER = """
import json, sys
from semel.kernel.envelope import Envelope
from semel.kernel.ops import Append, Unit
from semel.stores.points import on_reach
from semel.stores.postgres import PostgresStore
from semel.stores.postgres_connection import Q, is_refusal

def wait_for_word(word):
    print(word, flush=True)
    sys.stdin.readline()

def hold(point):
    if point == "commit.applied":
        on_reach(None)
        wait_for_word("applied")

url, name, holds, queries = sys.argv[1:]
Q.update(json.loads(queries))
store = PostgresStore(url)
wait_for_word("ready")
on_reach(hold if holds == "holds" else None)
for number in range(40):
    ids = [f"{name}.{number}.{part}" for part in range(number % 4 + 1)]
    store.commit([Unit((Append("hub/orders", Envelope(id=id), identity=id),)) for id in ids])
store.close()
"""
WRITERS = 8
APPENDED = 1 + WRITERS * sum(number % 4 + 1 for number in range(40))

BARE_SEQUENCE = {
    "lock_streams": "SELECT name, id, nextval('bare') - 1, first, xid, pg_current_xact_id()::text::bigint"
    " FROM semel_stream WHERE name = ANY($1)",
    "set_heads": "SELECT 1 FROM unnest($1::integer[], $2::bigint[], $3::bigint[]) AS u",
}
"""The mistake that the head lock is there for: a number is taken from a sequence, which is all that an identity column
is, and nobody who takes a higher one waits for its commit."""


class Writer:
    """A process that appends. Each word that it says it has answered before it goes on."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def hear(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def answer(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go on\n")
        self.process.stdin.flush()


@contextmanager
def eight_writers(url: str, queries: dict[str, str]) -> Iterator[list[Writer]]:
    """The first one holds its first transaction open, with everything written, until it is answered."""
    with ExitStack() as stack:
        writers = []
        for number in range(WRITERS):
            arguments = [url, f"w{number}", "holds" if number == 0 else "", json.dumps(queries)]
            process = subprocess.Popen(
                [sys.executable, "-c", WRITER, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            writers.append(Writer(stack.enter_context(process)))
        assert [writer.hear() for writer in writers] == ["ready"] * WRITERS
        yield writers
    assert [writer.process.returncode for writer in writers] == [0] * WRITERS


def tail_beside_eight_writers(store: PostgresStore, queries: dict[str, str]) -> tuple[list[int], set[int]]:
    """The checker: what a tailing reader saw, and what it never will although it is there.

    The first writer commits only when the reader has gone past it, or when all others are seen to wait for it.
    """
    append(store, "zero")
    tail = store_tail(store, timeout_s=0.1)

    def is_passed_or_waited_for() -> bool:
        tail.read()
        return len(tail.seen) > 1 or is_waiting_for_a_lock(store.url, WRITERS - 1)

    with eight_writers(store.url, queries) as (first, *others):
        first.answer()
        assert first.hear() == "applied"
        for writer in others:
            writer.answer()
        wait_until(is_passed_or_waited_for)
        first.answer()
        until = time.monotonic() + scaled(DEADLINE_S)
        while any(writer.process.poll() is None for writer in (first, *others)) and time.monotonic() < until:
            tail.read()
    tail.read()
    found = store.read(STREAM)
    assert isinstance(found, Records)
    return tail.seen, {record.position.offset for record in found.records} - set(tail.seen)


@pytest.mark.slow(5)
def test_a_tailing_reader_beside_eight_writing_processes_skips_nothing(store: PostgresStore) -> None:
    seen, missed = tail_beside_eight_writers(store, {})
    assert missed == set()
    assert seen == list(range(1, APPENDED + 1))


@pytest.mark.slow(5)
def test_offsets_from_a_bare_sequence_are_caught_by_the_same_checker(store: PostgresStore) -> None:
    execute(store.url, "CREATE SEQUENCE bare START 2 INCREMENT 4")
    _, missed = tail_beside_eight_writers(store, BARE_SEQUENCE)
    assert 2 in missed


def test_the_head_lock_keeps_the_same_race_in_order(
    store: PostgresStore, hook: Callable[[Callable[[str], None]], None]
) -> None:
    """The same two writers: the second waits for the first, and the reader sees none before it sees both in order."""
    append(store, "zero")
    applied, go_on = threading.Event(), threading.Event()
    slow_thread: list[int] = []

    def hold(point: str) -> None:
        if point == "commit.applied" and threading.get_ident() in slow_thread:
            applied.set()
            assert go_on.wait(scaled(DEADLINE_S))

    hook(hold)
    tail = store_tail(store)

    def write_slowly(slow: PostgresStore) -> list[int]:
        slow_thread.append(threading.get_ident())
        return append(slow, "slow")

    with (
        closing(PostgresStore(store.url)) as slow,
        closing(PostgresStore(store.url)) as fast,
        ThreadPoolExecutor(2) as pool,
    ):
        first = pool.submit(write_slowly, slow)
        assert applied.wait(scaled(DEADLINE_S))
        second = pool.submit(append, fast, "fast")
        wait_until(lambda: is_waiting_for_a_lock(store.url))
        tail.read()
        assert tail.seen == [1]
        go_on.set()
        assert (first.result(scaled(DEADLINE_S)), second.result(scaled(DEADLINE_S))) == ([2], [3])
    tail.read()
    assert tail.seen == [1, 2, 3]


# -- one scope


def test_two_scopes_at_once_leave_one_row_of_an_identity(store: PostgresStore) -> None:
    """Neither can see the other's row before its commit. The second waits, and is told what it would have done."""
    ours = Enqueue(QUEUE, "a", Envelope(id="ours"))
    with ThreadPoolExecutor(1) as pool, psycopg.connect(store.url) as user:
        store.bind(user).apply([Enqueue(QUEUE, "a", Envelope(id="theirs"), scope="x")])
        late = pool.submit(commit, store, ours)
        wait_until(lambda: is_waiting_for_a_lock(store.url))
        user.commit()
        with pytest.raises(StoreRefused, match="'a' of another scope"):
            late.result(scaled(DEADLINE_S))
    assert execute(store.url, "SELECT id FROM semel_work") == [("theirs",)]


def test_a_row_of_another_scope_that_is_rolled_back_is_in_nobodys_way(store: PostgresStore) -> None:
    with ThreadPoolExecutor(1) as pool, psycopg.connect(store.url) as user:
        store.bind(user).apply([Enqueue(QUEUE, "a", Envelope(id="theirs"), scope="x")])
        late = pool.submit(commit, store, Enqueue(QUEUE, "a", Envelope(id="ours")))
        wait_until(lambda: is_waiting_for_a_lock(store.url))
        user.rollback()
        assert isinstance(late.result(scaled(DEADLINE_S))[0], Fresh)


def test_a_refused_scope_leaves_a_users_transaction_alive(store: PostgresStore) -> None:
    commit(store, Enqueue(QUEUE, "a", Envelope(id="ours")))
    with psycopg.connect(store.url) as user:
        with pytest.raises(StoreRefused, match="'a' of another scope"):
            store.bind(user).apply([Enqueue(QUEUE, "a", Envelope(id="theirs"), scope="x")])
        assert user.execute("SELECT 1").fetchone() == (1,)


# -- the horizon of ledger and index


def marks_of(store: PostgresStore, after: Mark = START) -> list[str | None]:
    return [entry.event.message for entry in store.ledger(after)]


def test_the_ledger_waits_for_an_older_transaction_that_is_still_open(store: PostgresStore) -> None:
    commit(store, Log(sent("before")))
    wait_until(lambda: marks_of(store) == ["before"])
    last = store.ledger(START)[-1].mark
    with psycopg.connect(store.url) as user:
        store.bind(user).apply([Log(sent("open"))])
        commit(store, Log(sent("later")))
        assert marks_of(store, last) == []
        user.commit()
    wait_until(lambda: len(store.ledger(last)) == 2)
    assert marks_of(store, last) == ["open", "later"]
    marks = [entry.mark for entry in store.ledger(START)]
    assert marks == sorted(marks)


def test_the_index_waits_too_and_keeps_the_order_of_each_stream(store: PostgresStore) -> None:
    with psycopg.connect(store.url) as user:
        store.bind(user).apply([Put("k", b"v")])
        append(store, "a", "b")
        assert store.index(START) == []
    wait_until(lambda: len(store.index(START)) == 2)
    assert [entry.record.position.offset for entry in store.index(START)] == [1, 2]


# -- users' transactions


def test_a_users_transaction_holds_up_nobody(store: PostgresStore) -> None:
    """It finishes a row, enqueues to the same key and advances a cursor; meanwhile others append, enqueue and claim."""
    append(store, "a")
    commit(store, Enqueue(QUEUE, "k1", Envelope(id="m"), key="k"))
    row = commit(store, Claim(QUEUE, "w"))[0]
    assert isinstance(row, Claimed)
    with closing(PostgresStore(store.url, lock_s=scaled(2.0))) as other, psycopg.connect(store.url) as user:
        store.bind(user).apply([
            Finish(QUEUE, "k1", WorkState.DONE, fence=row.rows[0].fence),
            Enqueue(QUEUE, "k2", Envelope(id="m"), key="k"),
            Enqueue(QUEUE, "new1", Envelope(id="m"), key="new"),
            Advance("c", Position(STREAM, 1, 1)),
            Log(sent("a")),
        ])  # fmt: skip
        assert append(other, "b") == [2]
        commit(
            other, Enqueue(QUEUE, "k3", Envelope(id="m"), key="k"), Enqueue(QUEUE, "new2", Envelope(id="m"), key="new")
        )
        assert claim(other) == ["new2"]
        user.commit()
        assert claim(other) == ["k2"]


def test_an_earlier_row_that_comes_into_sight_late_does_not_join_a_live_claim(store: PostgresStore) -> None:
    with psycopg.connect(store.url) as user:
        store.bind(user).apply([Enqueue(QUEUE, "first", Envelope(id="m"), key="k")])
        commit(store, Enqueue(QUEUE, "second", Envelope(id="m"), key="k"))
        claimed = commit(store, Claim(QUEUE, "w"))[0]
        assert isinstance(claimed, Claimed)
        assert [row.identity for row in claimed.rows] == ["second"]
        user.commit()
    assert claim(store) == []
    commit(store, Finish(QUEUE, "second", WorkState.DONE, fence=claimed.rows[0].fence))
    assert claim(store) == ["first"]


def test_one_notification_per_group_and_none_from_a_users_transaction(store: PostgresStore) -> None:
    with psycopg.connect(store.url, autocommit=True) as ear:
        ear.execute("LISTEN semel")
        with psycopg.connect(store.url) as user:
            store.bind(user).apply([Log(sent("a")), Enqueue(QUEUE, "w", Envelope(id="w"))])
        store.commit([Unit((Append(STREAM, Envelope(id=f"m{number}")),)) for number in range(50)])
        append(store, "last")
        assert len(list(ear.notifies(timeout=scaled(DEADLINE_S), stop_after=2))) == 2
        assert list(ear.notifies(timeout=0)) == []


def test_an_idle_claim_writes_nothing(store: PostgresStore) -> None:
    claim(store)
    [(before,)] = execute(store.url, "SELECT count(*) FROM semel_marker")
    assert claim(store) == []
    assert execute(store.url, "SELECT count(*), max(n) FROM semel_marker") == [(before, None)]


def test_bind_wants_a_psycopg_connection_with_a_transaction(store: PostgresStore) -> None:
    with pytest.raises(InputError, match="psycopg"):
        store.bind(object())
    with psycopg.connect(store.url, autocommit=True) as user:
        with pytest.raises(InputError, match="no transaction"):
            store.bind(user).apply([Put("k", b"v")])
        with user.transaction():
            store.bind(user).apply([Put("k", b"v")])
    assert store.state("k") == State(b"v", 1)
    with psycopg.connect(store.url, client_encoding="LATIN1") as user, pytest.raises(InputError, match="UTF8"):
        store.bind(user)


def test_a_users_own_row_factory_and_pipeline_do_not_matter(store: PostgresStore) -> None:
    with psycopg.connect(store.url, row_factory=psycopg.rows.dict_row) as user, user.pipeline():
        store.bind(user).apply([Put("k", b"v"), Enqueue(QUEUE, "w", Envelope(id="w", data=b"\x00\xff"))])
        user.commit()
    row = store.work(QUEUE, "w")
    assert row is not None
    assert row.envelope.data == b"\x00\xff"


def test_a_deadlock_with_a_user_is_tried_again_in_silence(store: PostgresStore) -> None:
    commit(store, Put("a", b"0"), Put("b", b"0"))
    with psycopg.connect(store.url) as user, ThreadPoolExecutor(1) as pool:
        user.execute("SET deadlock_timeout = '60s'")
        tx = store.bind(user)
        tx.apply([Put("b", b"user")])
        waiting = pool.submit(commit, store, Put("a", b"store"), Put("b", b"store"))
        wait_until(lambda: is_waiting_for_a_lock(store.url))
        tx.apply([Put("a", b"user")])
        user.commit()
        waiting.result(scaled(DEADLINE_S))
    assert (store.state("a"), store.state("b")) == (State(b"store", 3), State(b"store", 3))


@pytest.mark.parametrize("pipeline", [False, True])
@pytest.mark.parametrize("trouble", ["refused", "stale", "again", "data"])
def test_a_call_that_raises_leaves_nothing_in_the_users_transaction(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch, trouble: str, pipeline: bool
) -> None:
    commit(store, Enqueue(QUEUE, "w", Envelope(id="w")))
    ours: list[Op] = [Put("ours", b"v"), Log(sent("ours"))]
    error: type[SemelError] = StoreRefused
    if trouble == "refused":
        ours.append(Enqueue(QUEUE, "new", Envelope(id="new", blob=Blob("none", 1))))
    elif trouble == "stale":
        ours.append(Finish(QUEUE, "w", WorkState.DONE, fence=99))
        error = StaleFence
    elif trouble == "data":
        execute(store.url, "ALTER TABLE semel_work ADD CHECK (identity <> 'new')")
        ours.append(Enqueue(QUEUE, "new", Envelope(id="new")))
    else:
        error = StoreBusy
        monkeypatch.setattr(PostgresEngine, "flush", _flush_and_clash)
    with psycopg.connect(store.url) as user, user.pipeline() if pipeline else nullcontext():
        user.execute("CREATE TABLE effects (n integer)")
        with pytest.raises(error):
            store.bind(user).apply(ours)
        user.execute("INSERT INTO effects VALUES (1)")
        user.commit()
    assert execute(store.url, "SELECT n FROM effects") == [(1,)]
    assert (store.state("ours"), store.work(QUEUE, "new"), store.ledger(START)) == (None, None, [])


def _flush_and_clash(engine: PostgresEngine, flush: Callable[[PostgresEngine], None] = PostgresEngine.flush) -> None:
    flush(engine)
    raise TryAgain("row")


def test_a_call_takes_part_in_the_transaction_and_does_not_end_it(store: PostgresStore) -> None:
    with psycopg.connect(store.url) as user:
        store.bind(user).apply([Put("k", b"v")])
        user.rollback()
    assert store.state("k") is None


# -- what others set


@pytest.mark.parametrize(("setting", "used"), [("off", "on"), ("local", "on"), ("remote_apply", "remote_apply")])
def test_a_commit_is_durable_whatever_the_session_is_set_to(
    store: PostgresStore, hook: Callable[[Callable[[str], None]], None], setting: str, used: str
) -> None:
    """Another session may have changed it since we connected, as behind a pooler."""
    append(store, "a")
    writer = store._writer
    assert writer is not None
    writer.execute(f"SET synchronous_commit = {setting}".encode())
    seen: list[str] = []

    def look(point: str) -> None:
        if point == "commit.applied":
            seen.extend(row[0] for row in writer.execute("SHOW synchronous_commit").fetchall())

    hook(look)
    append(store, "b")
    assert seen == [used]
    assert writer.execute("SHOW synchronous_commit").fetchall() == [(setting,)]


def test_the_transactions_beside_the_commits_are_durable_too_but_for_sweeping(store: PostgresStore) -> None:
    for durable, used in ((True, "on"), (False, "off")):
        with store._transaction(durable=durable) as run:
            assert run.connection.execute("SHOW synchronous_commit").fetchall() == [(used,)]


def test_a_sweeper_whose_clock_is_ahead_forgets_nothing(store: PostgresStore) -> None:
    append(store, "a")
    commit(store, Trim(STREAM, 2), Enqueue(QUEUE, "w", Envelope(id="w")))
    commit(store, Finish(QUEUE, "w", WorkState.DONE, keep_s=1000.0))
    ahead = time.time_ns() // 1000 + 30 * 86_400 * 1_000_000
    swept = store.sweep(ahead)
    assert (swept.records, swept.identities, swept.work) == (1, 0, 0)
    assert isinstance(commit(store, Append(STREAM, Envelope(id="a"), identity="a"))[0], Duplicate)
    assert isinstance(commit(store, Enqueue(QUEUE, "w", Envelope(id="w")))[0], Duplicate)


def test_a_count_that_somebody_is_about_to_go_on_with_is_not_swept(store: PostgresStore) -> None:
    commit(store, Put("k", b"1"), Put("k", None))
    with closing(PostgresStore(store.url, state_keep_s=0.0)) as sweeper, psycopg.connect(store.url) as user:
        assert store.bind(user).apply([Put("k", b"2")]) == (Advanced(version=3),)
        assert sweeper.sweep(time.time_ns() // 1000).states == 0
        user.commit()
        assert sweeper.sweep(time.time_ns() // 1000).states == 0
    assert store.state("k") == State(b"2", 3)


def test_a_state_that_is_set_again_and_again_stays_in_its_page(store: PostgresStore) -> None:
    """Otherwise each Put would write to every index of the table."""
    for number in range(20):
        commit(store, Put("k", str(number).encode()))
    stats = "SELECT pg_stat_get_xact_tuples_hot_updated('semel_state'::regclass)"
    with psycopg.connect(store.url) as user:
        tx = store.bind(user)
        for number in range(5):
            tx.apply([Put("k", str(number).encode())])
        assert user.execute(stats).fetchall() == [(5,)]


def test_old_counts_are_kept_from_the_migration_on(postgres_url: str) -> None:
    [(number, first), *_] = load_migrations("postgres")
    execute(postgres_url, first)
    execute(postgres_url, "INSERT INTO semel_store (store_id, schema) VALUES ('old', %s)", number)
    execute(postgres_url, "INSERT INTO semel_state VALUES ('gone', '', -5), ('here', 'x', 3)")
    now = time.time_ns() // 1000
    with closing(PostgresStore(postgres_url)) as store:
        assert store.migrate() == (NEWEST, NEWEST)
        assert (store.status().sweepable, store.sweep(now).states) == (0, 0)
        assert store.state("here") == State(b"x", 3)
    with closing(PostgresStore(postgres_url, state_keep_s=0.0)) as store:
        assert (store.status().sweepable, store.sweep(time.time_ns() // 1000).states) == (1, 1)
        assert store.status().sweepable == 0
        assert commit(store, Put("gone", b"y", expected=0), Put("here", b"y", expected=3)) == (
            Advanced(version=1), Advanced(version=4),
        )  # fmt: skip


# -- the group commit


async def test_many_producers_are_stored_once_and_without_gaps(store: PostgresStore) -> None:
    """Each producer sends everything twice, as one does that did not hear the answer."""

    async def produce(committer: Committer, producer: int) -> None:
        for number in (n for n in range(10) for _ in range(2)):
            id = f"{producer}.{number}"
            await committer.commit([Append(STREAM, Envelope(id=id), identity=id)], chain=str(producer))

    async with Performer(store) as performer:
        committer = Committer(performer)
        await asyncio.gather(*(produce(committer, producer) for producer in range(64)))

    found = store.read(STREAM)
    assert isinstance(found, Records)
    assert [record.position.offset for record in found.records] == list(range(1, 641))
    ids = [record.envelope.id for record in found.records]
    assert sorted(ids) == sorted(f"{producer}.{number}" for producer in range(64) for number in range(10))
    for producer in range(64):
        assert [id for id in ids if id.startswith(f"{producer}.")] == [f"{producer}.{number}" for number in range(10)]


# -- a connection that breaks


class Proxy:
    """A TCP proxy before the server. `cut` says what becomes of the next COMMIT, or of all from another message on.

    before: the server never hears it and loses the connection, as the client does; after: it hears it, but its answer
    is lost; hold: it hears nothing and keeps waiting, until `let_go`; open: it hears all but the end of the message.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._server = f"{parse_qs(parts.query)['host'][0]}/.s.PGSQL.5432"
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"postgresql://{parts.username}@127.0.0.1:{self._listener.getsockname()[1]}{parts.path}"
        self._action: str | None = None
        self._cut_at = b""
        self._held: tuple[socket.socket, bytes] | None = None
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def cut(self, action: str, at: bytes = b"COMMIT\0") -> None:
        self._action, self._cut_at = action, at

    def _start(self, target: Callable[..., None], *args: socket.socket) -> None:
        self._threads.append(threading.Thread(target=target, args=args))
        self._threads[-1].start()

    def _accept(self) -> None:
        while client := _accept(self._listener):
            server = socket.socket(socket.AF_UNIX)
            server.connect(self._server)
            self._sockets += [client, server]
            self._start(self._forward, client, server)
            self._start(_copy, server, client)

    def _forward(self, client: socket.socket, server: socket.socket) -> None:
        messages = _messages(client)
        for message in messages:
            if self._action is not None and self._cut_at in message:
                self._cut(client, server, message + b"".join(_until_sync(messages)))
                return
            _send(server, message)
        _hang_up(server)

    def _cut(self, client: socket.socket, server: socket.socket, data: bytes) -> None:
        action, self._action = self._action, None
        if action == "open":
            _send(server, data.removesuffix(SYNC))
            return
        self._held = (server, data)
        _hang_up(client)
        if action != "hold":
            self.let_go(is_heard=action == "after")

    def let_go(self, *, is_heard: bool = True) -> None:
        assert self._held is not None
        server, data = self._held
        if is_heard:
            _send(server, data)
        _hang_up(server)

    def close(self) -> None:
        for end in (self._listener, *self._sockets):
            _hang_up(end)
        for thread in self._threads:
            thread.join(scaled(DEADLINE_S))
        for end in (self._listener, *self._sockets):
            end.close()


def _accept(listener: socket.socket) -> socket.socket | None:
    with suppress(OSError):
        return listener.accept()[0]
    return None


def _copy(source: socket.socket, to: socket.socket) -> None:
    while data := _receive(source):
        _send(to, data)
    _hang_up(to)


def _receive(end: socket.socket) -> bytes:
    with suppress(OSError):
        return end.recv(65536)
    return b""


SYNC = b"S\0\0\0\x04"


def _messages(end: socket.socket) -> Iterator[bytes]:
    """One by one. Each begins with its kind and its length; the ones that open a connection have no kind."""
    data = b""
    while received := _receive(end):
        data += received
        while len(data) > 4 and len(data) >= (size := _size(data)):
            yield data[:size]
            data = data[size:]


def _size(data: bytes) -> int:
    return int.from_bytes(data[1:5]) + 1 if data[0] else int.from_bytes(data[:4])


def _until_sync(messages: Iterator[bytes]) -> Iterator[bytes]:
    for message in messages:
        yield message
        if message == SYNC:
            return


def _send(end: socket.socket, data: bytes) -> None:
    """Whoever has hung up gets nothing; the other side hears of it soon enough."""
    with suppress(OSError):
        end.sendall(data)


def _hang_up(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def proxy(postgres_url: str) -> Iterator[Proxy]:
    if "host=" not in postgres_url:
        pytest.fail("the proxy speaks to a server on a Unix socket: run without SEMEL_TEST_POSTGRES")
    with closing(Proxy(postgres_url)) as proxy:
        yield proxy


def doubtful_commit(store: PostgresStore, proxy: Proxy, action: str) -> CommitInDoubt:
    append(store, "before")
    proxy.cut(action)
    return doubtful_append(store)


def doubtful_append(store: PostgresStore) -> CommitInDoubt:
    with pytest.raises(CommitInDoubt) as found:
        append(store, "doubtful")
    return found.value


def wait_for_the_writers_end(url: str) -> None:
    """Until no commit is under way: each one keeps the epoch from being raised."""
    under_way = (
        "SELECT 1 FROM pg_locks l JOIN pg_database d ON d.oid = l.database"
        " WHERE d.datname = current_database() AND l.classid = 1397050700 AND l.mode = 'ShareLock'"
    )
    wait_until(lambda: not execute(url, under_way))


def is_signing(url: str, marker: str) -> bool:
    """Somebody holds the row in which the writer has signed before."""
    writer = marker.partition(".")[0]
    return not execute(url, "SELECT 1 FROM semel_marker WHERE writer = %s FOR UPDATE SKIP LOCKED", writer)


def test_a_commit_that_never_arrived_did_not_happen(proxy: Proxy) -> None:
    with closing(PostgresStore(proxy.url)) as store:
        doubt = doubtful_commit(store, proxy, "before")
        assert store.resolve(doubt.marker) is None
        assert store.resolve(doubt.marker) is None
        assert append(store, "doubtful") == [2]


def test_a_commit_whose_answer_was_lost_did_happen(proxy: Proxy) -> None:
    with closing(PostgresStore(proxy.url)) as store:
        doubt = doubtful_commit(store, proxy, "after")
        wait_for_the_writers_end(proxy.url)
        assert store.resolve(doubt.marker) == DOUBTFUL
        assert append(store, "next") == [3]
        assert store.resolve(doubt.marker) == DOUBTFUL


@pytest.mark.parametrize("happens", [True, False])
def test_resolve_waits_while_the_transaction_lives(proxy: Proxy, happens: bool) -> None:
    """The server has not heard the COMMIT yet: until it does, or loses the connection, there is no answer."""
    with closing(PostgresStore(proxy.url)) as store, ThreadPoolExecutor(1) as pool:
        doubt = doubtful_commit(store, proxy, "hold")
        wait_until(lambda: is_signing(proxy.url, doubt.marker))
        answer = pool.submit(store.resolve, doubt.marker)
        wait_until(lambda: is_waiting_for_a_lock(proxy.url))
        assert not answer.done()
        proxy.let_go(is_heard=happens)
        assert answer.result(scaled(DEADLINE_S)) == (DOUBTFUL if happens else None)


@contextmanager
def unread_commit(proxy: Proxy, signs_first: bool) -> Iterator[tuple[PostgresStore, str]]:
    """The last writes, the marker and COMMIT are on their way when the connection breaks, and not one was read.

    A writer that signs for the first time has no row that others could lock."""
    with closing(PostgresStore(proxy.url)) as store:
        append(store, "before")
        if signs_first:
            store._name_writer()
        proxy.cut("hold", at=store._writer_name.encode())
        yield store, doubtful_append(store).marker


def stored_ids(store: PostgresStore) -> list[str]:
    found = store.read(STREAM)
    assert isinstance(found, Records)
    return [record.envelope.id for record in found.records]


@pytest.mark.parametrize("signs_first", [False, True])
def test_a_commit_that_is_read_after_resolve_gave_it_up_is_undone(proxy: Proxy, signs_first: bool) -> None:
    with unread_commit(proxy, signs_first) as (store, marker):
        assert store.resolve(marker) is None
        proxy.let_go()
        wait_for_the_writers_end(proxy.url)
        assert stored_ids(store) == ["before"]
        assert store.resolve(marker) is None
        assert append(store, "doubtful") == [2]


@pytest.mark.parametrize("signs_first", [False, True])
def test_a_commit_that_is_read_late_but_before_resolve_did_happen(proxy: Proxy, signs_first: bool) -> None:
    with unread_commit(proxy, signs_first) as (store, marker):
        proxy.let_go()
        wait_for_the_writers_end(proxy.url)
        assert store.resolve(marker) == DOUBTFUL
        assert stored_ids(store) == ["before", "doubtful"]


@pytest.mark.parametrize("signs_first", [False, True])
@pytest.mark.parametrize("is_given_up", [False, True])
def test_a_late_commit_waits_for_who_is_about_to_give_it_up(proxy: Proxy, signs_first: bool, is_given_up: bool) -> None:
    """Whoever resolves has the row, and has not committed. If they never do, the commit may still happen."""
    with unread_commit(proxy, signs_first) as (store, marker), psycopg.connect(proxy.url) as resolver:
        writer, _, n = marker.partition(".")
        psycopg.RawCursor(resolver).execute(Q["void"], [writer, int(n), time.time_ns() // 1000])
        proxy.let_go()
        wait_until(lambda: is_waiting_for_a_lock(proxy.url))
        if is_given_up:
            resolver.commit()
        else:
            resolver.rollback()
        wait_for_the_writers_end(proxy.url)
        assert store.resolve(marker) == (None if is_given_up else DOUBTFUL)
        assert stored_ids(store) == (["before"] if is_given_up else ["before", "doubtful"])


@pytest.mark.parametrize("signs_first", [False, True])
def test_a_commit_is_undone_though_its_statement_began_before_it_was_given_up(proxy: Proxy, signs_first: bool) -> None:
    """What the statement sees is older than what resolve wrote. The marker must be taken as it is, not as it was."""
    with psycopg.connect(proxy.url, autocommit=True) as holder, unread_commit(proxy, signs_first) as (store, marker):
        holder.execute(
            "CREATE FUNCTION hold_up() RETURNS trigger LANGUAGE plpgsql AS"
            " $$BEGIN IF NEW.void = 0 THEN PERFORM pg_advisory_xact_lock(1); END IF; RETURN NEW; END$$"
        )
        holder.execute("CREATE TRIGGER hold_up BEFORE INSERT ON semel_marker FOR EACH ROW EXECUTE FUNCTION hold_up()")
        holder.execute("SELECT pg_advisory_lock(1)")
        proxy.let_go()
        wait_until(lambda: is_waiting_for_a_lock(proxy.url))
        assert store.resolve(marker) is None
        holder.execute("SELECT pg_advisory_unlock(1)")
        wait_for_the_writers_end(proxy.url)
        assert stored_ids(store) == ["before"]


def test_only_an_error_of_the_server_is_its_word(store: PostgresStore) -> None:
    with psycopg.connect(store.url, autocommit=True) as session:
        with pytest.raises(psycopg.Error) as refused:
            session.execute("SELECT 1 / 0")
        with pytest.raises(psycopg.Error) as ended:
            session.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        with pytest.raises(psycopg.Error) as gone:
            session.execute("SELECT 1")
    assert [is_refusal(found.value) for found in (refused, ended, gone)] == [True, False, False]


def test_a_session_that_ends_after_its_commit_leaves_no_doubt(proxy: Proxy) -> None:
    """The server has said that it committed, and then that it ends the session, before it was asked for more."""
    with closing(PostgresStore(proxy.url)) as store, ThreadPoolExecutor(1) as pool:
        append(store, "before")
        proxy.cut("open")
        heard = pool.submit(append, store, "after")
        wait_until(lambda: stored_ids(store) == ["before", "after"])
        assert not heard.done()
        end_backends(proxy.url)
        assert heard.result(scaled(DEADLINE_S)) == [2]
        assert append(store, "next") == [3]


@pytest.mark.parametrize("code", ["40001", "40P01"])
def test_a_clash_in_the_last_writes_is_tried_again_in_silence(store: PostgresStore, code: str) -> None:
    append(store, "a")
    writer = store._writer
    execute(store.url, "CREATE SEQUENCE tries")
    fail_records(store, f"IF nextval('tries') < 3 THEN RAISE 'clash' USING ERRCODE = '{code}'; END IF")
    assert append(store, "b") == [2]
    assert execute(store.url, "SELECT last_value FROM tries") == [(3,)]
    assert store._writer is writer


async def test_only_the_commit_whose_last_write_is_refused_fails(store: PostgresStore) -> None:
    append(store, "a")
    writer = store._writer
    fail_records(store, "IF NEW.id = 'bad' THEN RAISE 'bad' USING ERRCODE = '23514'; END IF")
    async with Performer(store) as performer:
        committer = Committer(performer)
        ids = ["good", "bad", "better"]
        answers = await asyncio.gather(
            *(committer.commit([Append(STREAM, Envelope(id=id), identity=id)]) for id in ids), return_exceptions=True
        )
    assert [isinstance(answer, StoreRefused) for answer in answers] == [False, True, False]
    assert stored_ids(store) == ["a", "good", "better"]
    assert store._writer is writer


def fail_records(store: PostgresStore, statement: str) -> None:
    """Run it before each record is inserted."""
    execute(
        store.url,
        f"CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN {statement}; RETURN NEW; END$$",
    )
    execute(store.url, "CREATE TRIGGER fail BEFORE INSERT ON semel_record FOR EACH ROW EXECUTE FUNCTION fail()")


def test_only_what_was_in_doubt_is_resolved(store: PostgresStore) -> None:
    with pytest.raises(InputError):
        store.resolve("nonsense")


def end_backends(url: str) -> None:
    """All connections to the database but the one that asks."""
    execute(
        url,
        "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()",
    )


@pytest.mark.parametrize(("point", "error"), [("commit.begin", StoreUnavailable), ("commit.applied", CommitInDoubt)])
def test_a_server_that_ends_the_connection(
    store: PostgresStore,
    hook: Callable[[Callable[[str], None] | None], None],
    point: str,
    error: type[SemelError],
) -> None:
    append(store, "before")
    hook(lambda reached: end_backends(store.url) if reached == point else None)
    with pytest.raises(error) as found:
        append(store, "lost")
    hook(None)
    if isinstance(found.value, CommitInDoubt):
        assert store.resolve(found.value.marker) is None
    assert append(store, "lost") == [2]


def test_idle_connections_that_died_are_replaced_in_silence(store: PostgresStore) -> None:
    append(store, "a")
    end_backends(store.url)
    assert append(store, "b") == [2]
    end_backends(store.url)
    found = store.read(STREAM)
    assert isinstance(found, Records)
    assert len(found.records) == 2


def test_a_listener_finds_its_way_back(store: PostgresStore) -> None:
    woken = threading.Event()
    stop = store.listen(woken.set)
    end_backends(store.url)
    woken.clear()
    assert woken.wait(scaled(DEADLINE_S)), "back again, it wakes everybody: something may have gone unheard"
    woken.clear()
    append(store, "a")
    assert woken.wait(scaled(DEADLINE_S))
    stop()


@pytest.mark.slow(5)
def test_what_was_committed_survives_a_crash_of_the_server() -> None:
    with PrivatePostgres() as server, server.new_database() as url, closing(PostgresStore(url)) as store:
        append(store, "a", "b")
        server.stop()
        with pytest.raises(StoreUnavailable) as found:
            append(store, "c")
        assert "start PostgreSQL" in found.value.fix
        with pytest.raises(StoreUnavailable):
            store.read(STREAM)
        server.start()
        assert append(store, "c") == [3]
        assert store.epoch == 1


# -- errors that say what to do


def test_urls_that_lead_nowhere(postgres_url: str) -> None:
    with pytest.raises(ConfigError):
        PostgresStore("postgresql://[not a url")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(StoreUnavailable) as found:
        PostgresStore(f"postgresql://user:secret@127.0.0.1:{port}/x")
    assert "start PostgreSQL" in found.value.fix
    assert "secret" not in str(found.value)
    elsewhere = postgres_url.replace(urlsplit(postgres_url).path, "/no_such_database")
    with pytest.raises(StoreUnavailable) as found:
        PostgresStore(elsewhere)
    assert "createdb" in found.value.fix


def test_a_database_without_tables_is_not_a_store_unless_it_may_become_one(postgres_url: str) -> None:
    with pytest.raises(NotAStore) as found:
        PostgresStore(postgres_url, create=False)
    assert "store init" in found.value.fix
    assert execute(postgres_url, "SELECT to_regclass('semel_store')") == [(None,)]
    PostgresStore(postgres_url).close()
    PostgresStore(postgres_url, create=False).close()


def test_somebody_elses_table(postgres_url: str) -> None:
    execute(postgres_url, "CREATE TABLE semel_store (mine text)")
    with pytest.raises(NotAStore):
        PostgresStore(postgres_url)


def test_a_newer_schema_is_refused_and_left_alone(store: PostgresStore) -> None:
    execute(store.url, "UPDATE semel_store SET schema = 999")
    with pytest.raises(SchemaTooNew, match="999") as found:
        PostgresStore(store.url)
    assert "newer Semel" in found.value.fix
    assert re.search(r"knows \d+", found.value.message)
    with pytest.raises(SchemaTooNew):
        store.migrate()


def test_a_read_only_database(store: PostgresStore) -> None:
    append(store, "a")
    name = urlsplit(store.url).path[1:]
    execute(store.url, f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    with closing(PostgresStore(store.url)) as reader:
        assert isinstance(reader.read(STREAM), Records)
        with pytest.raises(StoreReadOnly):
            append(reader, "b")


def test_a_lock_that_is_not_released(store: PostgresStore) -> None:
    append(store, "a")
    with closing(PostgresStore(store.url, lock_s=0.05)) as hasty, psycopg.connect(store.url) as other:
        other.execute("SELECT * FROM semel_stream FOR UPDATE")
        with pytest.raises(StoreBusy) as found:
            append(hasty, "b")
        assert found.value.retryable
        other.rollback()
        assert append(hasty, "b") == [2]


def test_a_full_disk(store: PostgresStore) -> None:
    """The server says it with this code; where it comes from makes no difference to us."""
    append(store, "a")
    execute(
        store.url,
        "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS"
        " $$BEGIN RAISE 'could not extend file' USING ERRCODE = '53100'; END$$",
    )
    execute(store.url, "CREATE TRIGGER full_disk BEFORE INSERT ON semel_record EXECUTE FUNCTION full_disk()")
    with pytest.raises(StoreFull):
        append(store, "b")
    execute(store.url, "DROP TRIGGER full_disk ON semel_record")
    assert append(store, "b") == [2]


@pytest.mark.parametrize("text", ["nul \x00 inside", "lone surrogate \ud800"])
def test_text_that_got_past_the_codec_is_refused_and_nothing_happens(store: PostgresStore, text: str) -> None:
    bad = Envelope(id="bad", subject="x")
    msgspec.structs.force_setattr(bad, "subject", text)
    for op in (Append(STREAM, bad), Enqueue(QUEUE, "bad", bad)):
        with pytest.raises(StoreRefused):
            store.commit([Unit((Append(STREAM, Envelope(id="good")),)), Unit((op,))])
    assert store.head(STREAM).offset == 0
    assert append(store, "good") == [1]


def test_a_database_that_is_not_utf8(postgres_server_url: str) -> None:
    with new_database(postgres_server_url) as url:
        name = urlsplit(url).path[1:] + "_ascii"
        execute(url, f"CREATE DATABASE {name} ENCODING 'SQL_ASCII' TEMPLATE template0")
        try:
            with pytest.raises(NotAStore, match="SQL_ASCII"):
                PostgresStore(url.replace(urlsplit(url).path, "/" + name))
        finally:
            execute(url, f"DROP DATABASE {name} WITH (FORCE)")


# -- opening, epochs, restores


def test_many_may_open_an_empty_database_at_once(postgres_url: str) -> None:
    barrier = threading.Barrier(8)

    def open_store(_: int) -> str:
        barrier.wait(scaled(DEADLINE_S))
        with closing(PostgresStore(postgres_url)) as store:
            return store.store_id

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(open_store, range(8)))) == 1


def test_opening_again_keeps_the_epoch(store: PostgresStore) -> None:
    with closing(PostgresStore(store.url)) as again:
        assert (again.epoch, again.store_id) == (1, store.store_id)
        assert again.migrate() == (NEWEST, NEWEST)


@contextmanager
def copied(url: str) -> Iterator[str]:
    """The database as a backup would bring it back: the same rows in another place."""
    name = urlsplit(url).path[1:]
    copy = sql.Identifier(f"{name}_copy")
    server = url.replace(f"/{name}", "/postgres")
    with psycopg.connect(server, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(copy, sql.Identifier(name)))
        try:
            yield url.replace(f"/{name}", f"/{name}_copy")
        finally:
            admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(copy))


def test_a_restored_database_begins_a_new_epoch(postgres_url: str) -> None:
    with closing(PostgresStore(postgres_url)) as store:
        append(store, "a", "b")
        commit(store, Advance("c", Position(STREAM, 1, 1)), Enqueue(QUEUE, "w", Envelope(id="w")))
        first = commit(store, Claim(QUEUE, "w", lease_s=0.0))[0]
        assert isinstance(first, Claimed)
    with copied(postgres_url) as url, closing(PostgresStore(url)) as restored:
        assert restored.epoch == 2
        assert append(restored, "c") == [2 + EPOCH_GAP + 1]
        assert restored.cursor("c") == Position(STREAM, 2, 1)
        second = commit(restored, Claim(QUEUE, "w"))[0]
        assert isinstance(second, Claimed)
        assert second.rows[0].fence > first.rows[0].fence + EPOCH_GAP
        with closing(PostgresStore(url)) as again:
            assert again.epoch == 2


@pytest.mark.parametrize("change", ["system = '1'", "timeline = 77"])
def test_another_server_or_timeline_begins_a_new_epoch(store: PostgresStore, change: str) -> None:
    execute(store.url, f"UPDATE semel_store SET {change}")
    barrier = threading.Barrier(4)

    def epoch(_: int) -> int:
        barrier.wait(scaled(DEADLINE_S))
        with closing(PostgresStore(store.url)) as opened:
            return opened.epoch

    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(epoch, range(4))) == {2}


def test_a_failover_under_an_open_store_begins_a_new_epoch(store: PostgresStore) -> None:
    """The connections break, and the same URL leads to the server that took over."""
    assert append(store, "a") == [1]
    execute(store.url, "UPDATE semel_store SET timeline = 77")
    end_backends(store.url)
    assert append(store, "b") == [1 + EPOCH_GAP + 1]
    assert store.epoch == 2


def test_a_cursor_beyond_its_stream_proves_a_rewind(store: PostgresStore) -> None:
    append(store, "a")
    commit(store, Advance("c", Position(STREAM, 1, 1)))
    execute(store.url, 'UPDATE semel_cursor SET "offset" = 7')
    with closing(PostgresStore(store.url)) as opened:
        assert opened.epoch == 2
        assert opened.head(STREAM).offset > 7


def test_the_ledger_goes_on_after_a_restore_where_transaction_ids_begin_low_again(store: PostgresStore) -> None:
    commit(store, Log(sent("old")), Append(STREAM, Envelope(id="old")))
    wait_until(lambda: len(store.ledger(START)) == 1)
    high = 10**12
    for table in ("semel_ledger", "semel_record", "semel_stream"):
        execute(store.url, f"UPDATE {table} SET xid = xid + {high}")
    exported = Mark(high * 2, 1)
    commit(store, Put("export/ledger", f"{exported.xid}.{exported.seq}".encode()))
    execute(store.url, "UPDATE semel_store SET tables = 'before'")
    with closing(PostgresStore(store.url)) as restored:
        commit(restored, Log(sent("new")), Append(STREAM, Envelope(id="new")))
        wait_until(lambda: "new" in marks_of(restored, exported))
        assert marks_of(restored) == ["old", "epoch 2", "new"]
        assert [entry.record.envelope.id for entry in restored.index(START)] == ["old", "new"]


def test_a_plain_user_is_enough(store: PostgresStore) -> None:
    """Without the right to ask for the server's identity nothing is known about it, and nothing is concluded."""
    role = "plain_" + os.urandom(4).hex()
    execute(store.url, f"CREATE ROLE {role} LOGIN")
    try:
        execute(store.url, "REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC")
        for kind in ("TABLES", "SEQUENCES"):
            execute(store.url, f"GRANT ALL ON ALL {kind} IN SCHEMA public TO {role}")
        plain = re.sub(r"//[^@]*@", f"//{role}@", store.url)
        with closing(PostgresStore(plain)) as theirs:
            assert theirs.epoch == 1
            assert append(theirs, "a") == [1]
        with closing(PostgresStore(store.url)) as ours:
            assert ours.epoch == 1
    finally:
        execute(store.url, f"DROP OWNED BY {role}")
        execute(store.url, f"DROP ROLE {role}")


# -- the private server


OWNER = """
from semel.testing.postgres import PrivatePostgres
server = PrivatePostgres()
server.start()
print(server.folder, flush=True)
input()
"""


@pytest.mark.slow(5)
def test_a_private_server_goes_with_its_owner_even_by_kill_9() -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert owner.stdout is not None
    folder = Path(owner.stdout.readline().decode().strip())
    assert (folder / "data" / "postmaster.pid").exists()
    owner.send_signal(signal.SIGKILL)
    owner.communicate()
    wait_until(lambda: not folder.exists())


# -- claims while a transaction stays open


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every look from the beginning counts as slow, as it does behind many dead entries."""
    monkeypatch.setattr(postgres_fronts, "SLOW_US", 0)
    monkeypatch.setattr(postgres_fronts, "SLOW_TIMES", 1)
    monkeypatch.setattr(postgres_fronts, "PACE", 1_000_000)


def enqueue(store: PostgresStore, *ids: str, key: str | None = None, **more: Any) -> None:
    commit(store, *(Enqueue(QUEUE, id, Envelope(id=id), key=key, **more) for id in ids))


@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.usefixtures("slow")
def test_rows_that_come_in_order_are_found_from_the_front(store: PostgresStore, key: str | None) -> None:
    for number in range(20):
        enqueue(store, f"m{number}", key=key)
        [row] = commit(store, Claim(QUEUE, "w", limit=5))[0].rows  # type: ignore[union-attr]
        assert row.identity == f"m{number}"
        commit(store, Finish(QUEUE, row.identity, WorkState.DONE, fence=row.fence))
    assert store._fronts.of(QUEUE).rows.is_slow
    assert store._fronts.of(QUEUE).rows.begin() > 0


@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.usefixtures("slow")
def test_a_lease_that_ends_and_a_retry_are_found_from_the_front(store: PostgresStore, key: str | None) -> None:
    enqueue(store, "a", key=key)
    commit(store, Claim(QUEUE, "dies", lease_s=scaled(0.5)))
    assert claim(store) == []
    wait_until(lambda: claim(store) == ["a"])
    row = store.work(QUEUE, "a")
    assert row is not None
    commit(store, Finish(QUEUE, "a", WorkState.SCHEDULED, fence=row.fence, delay_s=0.05, passes=True))
    wait_until(lambda: claim(store) == ["a"])


def test_what_became_visible_late_is_found_by_the_next_look_from_the_beginning(
    store: PostgresStore, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_fronts, "SLOW_US", 0)
    monkeypatch.setattr(postgres_fronts, "SLOW_TIMES", 1)
    clock = [0.0]
    store._fronts = Fronts(lambda: clock[0])
    with psycopg.connect(postgres_url) as late:
        store.bind(late).apply([Enqueue(QUEUE, id, Envelope(id=id), key=key) for id, key in (("x", None), ("y", "k"))])
        enqueue(store, "a")
        assert claim(store) == ["a"]
        late.commit()
    assert claim(store) == []
    assert store.due(QUEUE) is False
    clock[0] += 3600.0
    assert store.due(QUEUE)
    assert sorted(claim(store)) == ["x", "y"]


def test_after_a_failure_claims_look_from_the_beginning(
    store: PostgresStore, postgres_url: str, slow: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with psycopg.connect(postgres_url) as late:
        store.bind(late).apply([Enqueue(QUEUE, "x", Envelope(id="x"))])
        enqueue(store, "a")
        assert claim(store) == ["a"]
        late.commit()
    assert claim(store) == []
    with pytest.raises(StoreRefused):
        commit(store, Advance("c", Position(STREAM, 1, 99)))
    assert claim(store) == ["x"]


@pytest.mark.parametrize("name", ["read_news", "pick_keys", "pick_rows", "work_due"])
def test_a_look_for_work_reads_an_index(store: PostgresStore, postgres_url: str, name: str) -> None:
    """Rows that nobody sees any more are still in the table."""
    values = {
        "read_news": (QUEUE, 10, -1),
        "pick_keys": (QUEUE, 2**60, None, [], 10, -1),
        "pick_rows": (QUEUE, 2**60, 10, -1),
        "work_due": (QUEUE, -1, -1, -1, -1),
    }[name]
    enqueue(store, *(f"m{n}" for n in range(2000)))
    commit(store, *(Enqueue(QUEUE, f"k{n}", Envelope(id="k"), key=f"k{n}") for n in range(2000)))
    claim(store, 1500)
    with psycopg.connect(postgres_url, cursor_factory=psycopg.RawCursor) as connection:
        connection.execute("ANALYZE")
        plan = [line for (line,) in connection.execute(f"EXPLAIN {Q[name]}".encode(), values)]
    assert not [line for line in plan if "Seq Scan" in line], plan


def test_a_claim_of_several_rows_of_each_key_reads_no_more_than_it_wants(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key in range(30):
        enqueue(store, *(f"{key}.{number}" for number in range(30)), key=f"k{key:02}")
    read: list[object] = []
    monkeypatch.setattr(postgres_engine, "work_row_of", lambda row: read.append(row) or work_row_of(row))
    assert len(claim_rows(store, limit=20, per_key=30)) == 20
    assert len(read) <= 20
    read.clear()
    assert len(claim_rows(store, limit=45, per_key=30)) == 45
    assert len(read) <= 45


def claim_rows(store: PostgresStore, **more: Any) -> tuple[WorkRow, ...]:
    result = commit(store, Claim(QUEUE, "w", **more))[0]
    assert isinstance(result, Claimed)
    return result.rows


def test_a_wake_reaches_another_process_and_our_own(postgres_url: str) -> None:
    with closing(PostgresStore(postgres_url)) as one, closing(PostgresStore(postgres_url)) as other:
        heard = [threading.Event(), threading.Event()]
        stops = [store.listen(event.set) for store, event in zip((one, other), heard, strict=True)]
        for event in heard:
            event.clear()
        one.wake()
        assert all(event.wait(scaled(30)) for event in heard)
        for stop in stops:
            stop()


def test_a_wake_of_a_store_that_is_gone_is_no_error(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise StoreUnavailable("gone", fix="wait")

    woken: list[None] = []
    stop = store.listen(lambda: woken.append(None))
    wait_until(lambda: woken)
    woken.clear()
    monkeypatch.setattr(store._pool, "ask", fail)
    store.wake()
    assert woken
    stop()
