"""What only PostgreSQL can get wrong about identities that a sweep moves: a late copy that comes at the same moment."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from typing import Any

import psycopg
import pytest
from psycopg import IsolationLevel
from tests.integration.postgres_stores import execute, wait_until

from semel.errors import StoreBusy, StoreUnavailable
from semel.kernel.envelope import Envelope
from semel.kernel.ops import (
    Applied,
    Claim,
    Claimed,
    Duplicate,
    Enqueue,
    Finish,
    Fresh,
    Op,
    Remember,
    Result,
    Unit,
    WorkState,
)
from semel.kernel.store import Swept
from semel.stores.postgres import PostgresStore
from semel.stores.postgres_connection import Statements
from semel.stores.queries import load_migrations

pytestmark = pytest.mark.connected

QUEUE = "inbox/orders"


@pytest.fixture
def store(postgres_url: str) -> Iterator[PostgresStore]:
    with closing(PostgresStore(postgres_url)) as store:
        yield store


def commit(store: PostgresStore, *ops: Op) -> tuple[Result, ...]:
    outcome = store.commit([Unit(ops)])[0]
    assert isinstance(outcome, Applied), outcome
    return outcome.results


def enqueue(id: str, **more: Any) -> Enqueue:
    return Enqueue(QUEUE, id, Envelope(id=id), **more)


def finish(store: PostgresStore, *ids: str) -> None:
    commit(store, *(enqueue(id) for id in ids))
    commit(store, *(Finish(QUEUE, id, WorkState.DONE) for id in ids))


def sweep(store: PostgresStore, limit: int = 1000) -> Swept:
    return store.sweep(time.time_ns() // 1000, limit)


def count(url: str, table: str) -> int:
    [(rows,)] = execute(url, f"SELECT count(*) FROM {table}")
    return int(rows)


class HeldMove:
    """A sweep that has moved its rows and does not commit before it is told to."""

    def __init__(self, store: PostgresStore, threads: ThreadPoolExecutor, hook: Callable[..., None]) -> None:
        self._moved, self._go_on = threading.Event(), threading.Event()
        hook(self._hold)
        self._done: Future[tuple[int, int]] = threads.submit(store._sweep_done, time.time_ns() // 1000, 1000)
        wait_until(lambda: self._moved.is_set() or self._done.done())

    def _hold(self, point: str) -> None:
        if point == "sweep.deleted":
            self._moved.set()
            wait_until(self._go_on.is_set)

    def let_go(self) -> int:
        """How many rows were moved."""
        self._go_on.set()
        return self._done.result()[0]


def is_waiting(url: str) -> bool:
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    return bool(execute(url, waiting)[0][0])


@pytest.mark.parametrize("op", [enqueue("a"), Remember(QUEUE, "a"), enqueue("a", replace=True)])
def test_a_late_copy_that_waits_for_the_sweep_is_a_duplicate(
    store: PostgresStore, threads: ThreadPoolExecutor, hook: Callable[..., None], op: Op
) -> None:
    """Its insert finds the row deleted and its place free. Who had looked for the identity before would not know it."""
    finish(store, "a")
    with closing(PostgresStore(store.url)) as other:
        move = HeldMove(store, threads, hook)
        late = threads.submit(commit, other, op)
        wait_until(lambda: is_waiting(store.url) or late.done())
        assert move.let_go() == 1
        [again] = late.result()
    assert isinstance(again, Duplicate)
    assert again.state is WorkState.DONE
    is_open = isinstance(op, Enqueue) and op.replace
    assert (count(store.url, "semel_work"), count(store.url, "semel_identity")) == ((1, 0) if is_open else (0, 1))


def test_a_late_copy_in_a_users_transaction_that_waits_for_the_sweep(
    store: PostgresStore, threads: ThreadPoolExecutor, hook: Callable[..., None]
) -> None:
    finish(store, "a")
    with psycopg.connect(store.url) as user:
        move = HeldMove(store, threads, hook)
        late = threads.submit(store.bind(user).apply, [enqueue("a")])
        wait_until(lambda: is_waiting(store.url) or late.done())
        move.let_go()
        [again] = late.result()
        assert isinstance(again, Duplicate)
        user.commit()
    assert count(store.url, "semel_work") == 0


def test_a_sweep_that_comes_to_nothing_leaves_the_row(
    store: PostgresStore, threads: ThreadPoolExecutor, hook: Callable[..., None]
) -> None:
    """The late copy waited for it all the same."""
    finish(store, "a")
    with closing(PostgresStore(store.url)) as other:
        move = HeldMove(store, threads, hook)
        late = threads.submit(commit, other, enqueue("a"))
        wait_until(lambda: is_waiting(store.url) or late.done())
        execute(
            store.url,
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
            " WHERE state = 'idle in transaction' AND datname = current_database()",
        )
        [again] = late.result()
        with pytest.raises(StoreUnavailable):
            move.let_go()
    assert isinstance(again, Duplicate)
    assert (count(store.url, "semel_work"), count(store.url, "semel_identity")) == (1, 0)


@pytest.mark.parametrize("level", [IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE])
def test_a_transaction_with_an_old_view_is_run_again(store: PostgresStore, level: IsolationLevel) -> None:
    """It does not see what was moved since it began, not even the name of the queue."""
    finish(store, "a")
    with psycopg.connect(store.url) as user:
        user.isolation_level = level
        user.execute("SELECT 1 FROM semel_work")
        assert sweep(store).moved == 1
        tx = store.bind(user)
        with pytest.raises(StoreBusy, match="since the transaction began"):
            tx.apply([enqueue("a")])
        assert isinstance(tx.apply([enqueue("b")])[0], Fresh)
        user.rollback()
        assert isinstance(tx.apply([enqueue("a")])[0], Duplicate)
        user.rollback()


def test_a_copy_of_what_is_being_forgotten_gets_an_answer(
    store: PostgresStore, threads: ThreadPoolExecutor, hook: Callable[..., None]
) -> None:
    """It waits for who forgets, and is new then."""
    finish(store, "a")
    assert sweep(store).moved == 1
    with psycopg.connect(store.url) as sweeper, closing(PostgresStore(store.url)) as other:
        sweeper.execute("DELETE FROM semel_identity")
        late = threads.submit(commit, other, enqueue("a", replace=True))
        wait_until(lambda: is_waiting(store.url) or late.done())
        sweeper.commit()
        assert isinstance(late.result()[0], Fresh)
    [claimed] = commit(store, Claim(QUEUE, "w"))
    assert isinstance(claimed, Claimed)
    assert len(claimed.rows) == 1


def test_many_late_copies_while_rows_are_finished_and_swept(store: PostgresStore, threads: ThreadPoolExecutor) -> None:
    """Each identity is new once, whatever the sweep does meanwhile."""
    ids = [f"w{n:03}" for n in range(60)]
    fresh: list[str] = []
    stop = threading.Event()

    def produce() -> None:
        with closing(PostgresStore(store.url)) as mine:
            for _ in range(4):
                for id in ids:
                    [result] = commit(mine, enqueue(id))
                    if isinstance(result, Fresh):
                        fresh.append(id)

    def work() -> None:
        with closing(PostgresStore(store.url)) as mine:
            while not stop.is_set():
                [claimed] = commit(mine, Claim(QUEUE, "w", limit=5))
                assert isinstance(claimed, Claimed)
                for row in claimed.rows:
                    commit(mine, Finish(QUEUE, row.identity, WorkState.DONE, fence=row.fence))
                sweep(mine, 3)

    worker = threads.submit(work)
    producers = [threads.submit(produce) for _ in range(2)]
    for producer in producers:
        producer.result()
    stop.set()
    worker.result()
    assert sorted(fresh) == ids
    assert count(store.url, "semel_work") + count(store.url, "semel_identity") == len(ids)


def test_the_look_for_identities_takes_no_round_trip_of_its_own(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(store, enqueue("a"))
    asked: list[list[str]] = []
    run_all = Statements.run_all

    def note(self: Statements, calls: Any) -> Any:
        asked.append([name for name, _ in calls])
        return run_all(self, calls)

    monkeypatch.setattr(Statements, "run_all", note)
    commit(store, enqueue("b"))
    assert asked == [
        ["begin", "hold_epoch", "store_now", "draw_seats"],
        ["add_work", "known_in_queue"],
    ]


def test_rows_of_an_older_schema_are_moved_by_the_next_sweep(postgres_url: str) -> None:
    steps = load_migrations("postgres")
    for _, step in steps[:4]:
        execute(postgres_url, step)
    execute(postgres_url, "INSERT INTO semel_store (store_id, schema) VALUES ('old', 4)")
    execute(
        postgres_url,
        "INSERT INTO semel_work (seq, queue, scope, identity, state, holds, due, keep_until, id, source, type, size)"
        " SELECT nextval('semel_work_seq'), 'inbox/orders', 'inbox/orders', 'w' || n, 4 + n, false, 0,"
        " 9e15::bigint, 'm', 's', 't', 0 FROM generate_series(0, 2) AS n",
    )
    with closing(PostgresStore(postgres_url)) as store:
        assert sweep(store).moved == 1
        states = [row.state for n in range(3) if (row := store.work(QUEUE, f"w{n}"))]
        assert states == [WorkState.PARKED, WorkState.DONE, WorkState.DEAD]
        assert [row.identity for row in store.work_rows(QUEUE, {WorkState.DEAD})] == ["w2"]


@pytest.mark.parametrize(
    ("query", "index"),
    [
        (
            "SELECT * FROM semel_ledger WHERE message COLLATE \"C\" = 'm' AND message IS NOT NULL",
            "semel_ledger_message",
        ),
        ("SELECT seq FROM semel_work WHERE queue = 'q' AND state = 6 AND seq > 0 ORDER BY seq", "semel_work_aside"),
        ("SELECT seq FROM semel_work WHERE state = 5 AND seq > 0 ORDER BY seq", "semel_work_done"),
        ("SELECT * FROM semel_identity WHERE identity = 'a' AND queue = 1 AND queue <> scope", "semel_identity_queue"),
        ("SELECT * FROM semel_identity WHERE keep_until <= 5 ORDER BY keep_until", "semel_identity_keep"),
    ],
)
def test_what_is_asked_often_has_an_index(store: PostgresStore, query: str, index: str) -> None:
    with psycopg.connect(store.url) as connection:
        connection.execute("SET enable_seqscan = off")
        plan = "\n".join(row[0] for row in connection.execute(f"EXPLAIN {query}".encode()).fetchall())
    assert index in plan
