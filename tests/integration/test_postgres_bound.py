"""The one statement in a user's transaction, beside other transactions."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from typing import Any

import psycopg
import pytest
from msgspec.structs import replace
from tests.integration.postgres_stores import DEADLINE_S, execute, wait_until

from semel.errors import InputError, StaleFence, StoreBusy, StoreRefused
from semel.kernel.envelope import Envelope
from semel.kernel.ledger import START, Event, Kind
from semel.kernel.ops import (
    Applied,
    Attempts,
    Claim,
    Claimed,
    Duplicate,
    Enqueue,
    Finish,
    Fresh,
    Log,
    Op,
    Remember,
    Result,
    Unit,
    WorkRow,
    WorkState,
)
from semel.stores import postgres_bound
from semel.stores.postgres import PostgresStore
from semel.stores.postgres_bound import bound_steps
from semel.testing.limits import scaled

pytestmark = pytest.mark.connected

QUEUE = "inbox/orders"
TOLD = Event(Kind.ACCEPTED, "x>inbox/orders")
AGAIN = Event(Kind.DUPLICATE, "x>inbox/orders")
ENQUEUE = Enqueue(QUEUE, "a", Envelope(id="a"), on_fresh=TOLD, on_duplicate=AGAIN)


@pytest.fixture
def store(postgres_url: str) -> Iterator[PostgresStore]:
    with closing(PostgresStore(postgres_url)) as store:
        yield store


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


def commit(store: PostgresStore, *ops: Op) -> tuple[Result, ...]:
    [outcome] = store.commit([Unit(ops)])
    assert isinstance(outcome, Applied), outcome
    return outcome.results


def claim(store: PostgresStore, limit: int = 10, lease_s: float = 3600.0) -> tuple[WorkRow, ...]:
    [claimed] = commit(store, Claim(QUEUE, "w", limit, lease_s=lease_s))
    assert isinstance(claimed, Claimed)
    return claimed.rows


def done(row: WorkRow) -> Finish:
    return Finish(QUEUE, row.identity, WorkState.DONE, row.fence)


def in_thread(pool: ThreadPoolExecutor, store: PostgresStore, user: Any, *ops: Op) -> Future[tuple[Result, ...]]:
    """The call waits for a lock when this returns."""
    future = pool.submit(store.bind(user).apply, ops)
    sql = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    wait_until(lambda: future.done() or execute(store.url, sql) == [(1,)])
    return future


def kinds(store: PostgresStore) -> list[Kind]:
    return [entry.event.kind for entry in store.ledger(START)]


class CountedConnection(psycopg.Connection[Any]):
    """Counts how often it waits for the server."""

    trips = 0

    def wait(self, *args: Any, **kwargs: Any) -> Any:
        self.trips += 1
        return super().wait(*args, **kwargs)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize(("is_new", "trips"), [(False, 1), (True, 2)])
def test_it_is_one_round_trip_and_a_look_after_new_rows(
    store: PostgresStore, rows: int, *, is_new: bool, trips: int
) -> None:
    """A sweep may have moved a row of the same identity while the statement ran: the look is in a later view."""
    if not is_new:
        commit(store, Remember(QUEUE, "a"))
    commit(store, *(Enqueue(QUEUE, f"w{number}", Envelope(id="w"), key="k") for number in range(rows)))
    [claimed] = commit(store, Claim(QUEUE, "w", rows, 3600.0, per_key=rows))
    assert isinstance(claimed, Claimed)
    finishes = [done(row) for row in claimed.rows]
    assert len(finishes) == rows
    with CountedConnection.connect(store.url) as user:
        user.execute("SELECT 1")
        tx = store.bind(user)
        user.trips = 0
        tx.apply([*finishes, Log(Event(Kind.HANDLED, "h", message="w")), ENQUEUE])
        assert user.trips == trips


DONE = Event(
    Kind.HANDLED, "inbox/orders>handler", pipeline="q", message="ä", delivery="d", session="s", idx=3, peer="p",
    attempt=4, cause="c", trace="t",
)  # fmt: skip


@pytest.mark.parametrize(
    "event", [DONE, replace(DONE, stream="x", epoch=1, fold=5), replace(DONE, idx=None, delivery=None, trace=None)]
)
@pytest.mark.parametrize("changes", [{}, {"cause": "late"}, {"attempts": Attempts.RESET}])
def test_the_shorter_ways_leave_the_same_behind_as_the_store_itself(
    store: PostgresStore, event: Event, changes: dict[str, Any]
) -> None:
    for name in ("a", "b"):
        envelope = Envelope(id=name, data=b"body", headers={"x": "y"})
        commit(store, Enqueue(QUEUE, name, envelope, key="k" + name))
    rows = {row.identity: row for row in claim(store)}
    ops = {
        name: (Finish(QUEUE, name, WorkState.DONE, fence=row.fence, keep_s=60.0, **changes), Log(event))
        for name, row in rows.items()
    }
    commit(store, *ops["a"])
    with psycopg.connect(store.url) as connection:
        store.bind(connection).apply(ops["b"])
    columns = (
        "state, holds, turn IS NULL, attempts, cause, fence, headers, data, blob, size, key IS NULL, keep_until - due"
    )
    left = [execute(store.url, f"SELECT {columns} FROM semel_work WHERE identity = '{name}'") for name in rows]
    assert left[0] == left[1]
    wait_until(lambda: len(store.ledger(START)) == 2)
    assert [entry.event for entry in store.ledger(START)] == [event, event]


def test_who_comes_second_waits_and_is_told_where_the_first_one_is(
    store: PostgresStore, pool: ThreadPoolExecutor
) -> None:
    """The first one's row is in no view of the second one's statement."""
    with psycopg.connect(store.url) as first, psycopg.connect(store.url) as second:
        [fresh] = store.bind(first).apply([ENQUEUE])
        assert isinstance(fresh, Fresh)
        late = in_thread(pool, store, second, ENQUEUE, Enqueue(QUEUE, "b", Envelope(id="b"), on_fresh=TOLD))
        first.commit()
        duplicate, other = late.result(scaled(DEADLINE_S))
        second.commit()
    assert duplicate == Duplicate(fresh.position, state=WorkState.READY)
    assert isinstance(other, Fresh)
    wait_until(lambda: len(kinds(store)) == 3)
    assert sorted(kinds(store)) == [Kind.ACCEPTED, Kind.ACCEPTED, Kind.DUPLICATE]


def test_who_comes_second_is_the_first_one_when_that_rolls_back(store: PostgresStore, pool: ThreadPoolExecutor) -> None:
    with psycopg.connect(store.url) as first, psycopg.connect(store.url) as second:
        store.bind(first).apply([ENQUEUE])
        late = in_thread(pool, store, second, ENQUEUE)
        first.rollback()
        assert isinstance(late.result(scaled(DEADLINE_S))[0], Fresh)
        second.commit()
    assert kinds(store) == [Kind.ACCEPTED]


def test_a_row_that_is_gone_again_after_the_wait_is_new(store: PostgresStore, pool: ThreadPoolExecutor) -> None:
    """Somebody enqueues it and takes it away before the second look."""
    asked = []

    def ask(query: Any) -> list[Any]:
        text, values = query.numbered()
        rows = psycopg.RawCursor(second).execute(text.encode(), values).fetchall()
        asked.append(rows)
        if len(asked) == 1:
            execute(store.url, "DELETE FROM semel_work")
        return rows

    with psycopg.connect(store.url) as first, psycopg.connect(store.url) as second:
        store.bind(first).apply([ENQUEUE])
        steps = bound_steps([ENQUEUE], store.store_id, store.node)
        late = pool.submit(postgres_bound.run_steps, steps, ask)
        wait_until(lambda: execute(store.url, "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"))
        first.commit()
        assert isinstance(late.result(scaled(DEADLINE_S))[0], Fresh)
        second.commit()
    assert len(asked) == 3  # the last one is whether a sweep has moved it
    assert [row.identity for row in claim(store)] == ["a"]


def test_another_scope_at_the_same_moment_spoils_the_transaction(
    store: PostgresStore, pool: ThreadPoolExecutor
) -> None:
    """A part of the call has been written by then. Whoever commits all the same commits nothing."""
    with psycopg.connect(store.url) as first, psycopg.connect(store.url) as second:
        store.bind(first).apply([ENQUEUE])
        theirs = Enqueue(QUEUE, "a", Envelope(id="theirs"), scope="x")
        late = in_thread(pool, store, second, theirs, Log(Event(Kind.HANDLED, "h", message="m")))
        first.commit()
        with pytest.raises(StoreRefused, match="'a' of another scope"):
            late.result(scaled(DEADLINE_S))
        with pytest.raises(InputError, match="failed already"):
            store.bind(second)
        second.commit()
    wait_until(lambda: kinds(store))
    assert kinds(store) == [Kind.ACCEPTED]
    assert execute(store.url, "SELECT id FROM semel_work") == [("a",)]


@pytest.mark.parametrize("late_op", [ENQUEUE, Remember(QUEUE, "a"), Remember(QUEUE, "a", scope="x")])
def test_an_identity_that_is_swept_at_this_moment_spoils_the_transaction(
    store: PostgresStore, pool: ThreadPoolExecutor, late_op: Op
) -> None:
    """It is remembered and moved while the statement waits for another row, and its insert meets nobody."""
    commit(store, Enqueue(QUEUE, "w", Envelope(id="w")))
    [row] = claim(store)
    with psycopg.connect(store.url) as other, psycopg.connect(store.url) as user:
        other.execute("UPDATE semel_work SET due = due + 1000000")
        late = in_thread(pool, store, user, done(row), late_op, Log(Event(Kind.HANDLED, "h", message="m")))
        commit(store, Remember(QUEUE, "a", result=b"r"))
        assert store.sweep(time.time_ns() // 1000).moved == 1
        other.commit()
        with pytest.raises(StoreBusy, match="moved by a sweep") as busy:
            late.result(scaled(DEADLINE_S))
        assert "run the transaction again" in (busy.value.fix or "")
        user.commit()
    found = store.work(QUEUE, "w")
    assert found is not None
    assert (found.state, store.ledger(START)) == (WorkState.CLAIMED, [])
    assert execute(store.url, "SELECT identity FROM semel_work") == [("w",)]


@pytest.mark.parametrize("level", [psycopg.IsolationLevel.REPEATABLE_READ, psycopg.IsolationLevel.SERIALIZABLE])
def test_a_transaction_with_one_view_looks_beside_it(store: PostgresStore, level: psycopg.IsolationLevel) -> None:
    commit(store, Enqueue(QUEUE, "w", Envelope(id="w")))
    [row] = claim(store)
    with psycopg.connect(store.url) as user:
        user.isolation_level = level
        user.execute("SELECT count(*) FROM semel_work")
        commit(store, Remember(QUEUE, "a"))
        assert store.sweep(time.time_ns() // 1000).moved == 1
        tx = store.bind(user)
        with pytest.raises(InputError, match="does not see") as refused:
            tx.apply([ENQUEUE, done(row)], wait=False)
        assert "READ COMMITTED" in (refused.value.fix or "")
        steps = bound_steps([ENQUEUE], store.store_id, store.node)
        with pytest.raises(InputError, match="does not see"):
            postgres_bound.run_steps(steps, tx._ask)  # type: ignore[attr-defined] # what drivers without another way do
        with pytest.raises(StoreBusy, match="moved by a sweep"):
            tx.apply([ENQUEUE])
        assert isinstance(tx.apply([Remember(QUEUE, "b"), done(row)])[0], Fresh)
        user.commit()
    assert execute(store.url, "SELECT identity, state FROM semel_work ORDER BY seq") == [("w", 5), ("b", 5)]


def test_who_does_not_wait_does_not_wait_to_remember(store: PostgresStore) -> None:
    with psycopg.connect(store.url) as first, psycopg.connect(store.url) as second:
        store.bind(first).apply([Remember(QUEUE, "a")], wait=False)
        second.execute("SET lock_timeout = '30s'")
        with pytest.raises(StoreBusy, match="still open"):
            store.bind(second).apply([Remember(QUEUE, "a")], wait=False)
        first.commit()
        found = store.bind(second).apply([Remember(QUEUE, "a")], wait=False)[0]
        assert isinstance(found, Duplicate)


@pytest.mark.parametrize("others", [0, 2])
def test_a_claim_that_is_taken_over_at_this_moment_is_stale(
    store: PostgresStore, pool: ThreadPoolExecutor, others: int
) -> None:
    """The new fence is committed while the statement waits: its own view still shows the old one."""
    commit(store, *(Enqueue(QUEUE, f"w{number}", Envelope(id="w")) for number in range(others + 1)))
    rows = claim(store, lease_s=0.0)
    ops = [*(done(row) for row in rows), ENQUEUE, Log(Event(Kind.HANDLED, "h", message="w"))]
    with psycopg.connect(store.url) as other, psycopg.connect(store.url) as user:
        [claimed] = store.bind(other).apply([Claim(QUEUE, "other", identity="w0")])
        assert isinstance(claimed, Claimed)
        assert claimed.rows
        late = in_thread(pool, store, user, *ops)
        other.commit()
        with pytest.raises(StaleFence):
            late.result(scaled(DEADLINE_S))
        user.commit()
    assert (store.work(QUEUE, "a"), store.ledger(START)) == (None, [])
    states = [row.state for number in range(others + 1) if (row := store.work(QUEUE, f"w{number}"))]
    assert states == [WorkState.CLAIMED] * (others + 1)


def test_a_lease_that_is_renewed_meanwhile_can_be_finished(store: PostgresStore, pool: ThreadPoolExecutor) -> None:
    commit(store, ENQUEUE)
    [row] = claim(store)
    with psycopg.connect(store.url) as other, psycopg.connect(store.url) as user:
        other.execute("UPDATE semel_work SET due = due + 1000000")
        late = in_thread(pool, store, user, done(row))
        other.commit()
        late.result(scaled(DEADLINE_S))
        user.commit()
    found = store.work(QUEUE, "a")
    assert found is not None
    assert found.state is WorkState.DONE


def test_two_calls_with_the_same_rows_the_other_way_round_do_not_deadlock(store: PostgresStore) -> None:
    commit(store, *(Enqueue(QUEUE, id, Envelope(id=id)) for id in "abcd"))
    rows = claim(store)
    new = [Enqueue("outbox/shop", id, Envelope(id=id)) for id in "zyxw"]

    def end(order: int) -> None:
        for _ in range(20):
            with psycopg.connect(store.url) as user:
                store.bind(user).apply([*[done(row) for row in rows][::order], *new[::order]])
                user.rollback()

    with ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(end, order) for order in (1, -1)]:
            future.result(scaled(DEADLINE_S))


def test_who_does_not_wait_is_free_again_after_a_rollback(store: PostgresStore) -> None:
    with psycopg.connect(store.url) as first, psycopg.connect(store.url) as second:
        store.bind(first).apply([ENQUEUE], wait=False)
        second.execute("SET lock_timeout = '30s'")
        with pytest.raises(StoreBusy, match="still open"):
            store.bind(second).apply([ENQUEUE], wait=False)
        first.rollback()
        assert isinstance(store.bind(second).apply([ENQUEUE], wait=False)[0], Fresh)


def test_the_ledger_of_a_call_is_read_in_its_place(store: PostgresStore) -> None:
    """The mark is the transaction's, so an entry does not appear behind a reader; the time is the server's."""
    before = time.time_ns() // 1000 - 60_000_000
    with psycopg.connect(store.url) as user:
        store.bind(user).apply([Log(Event(Kind.HANDLED, "h", message="open"))])
        [(xid,)] = user.execute("SELECT pg_current_xact_id()::text::bigint").fetchall()
        commit(store, Log(Event(Kind.HANDLED, "h", message="later")))
        assert store.ledger(START) == []
        user.commit()
    wait_until(lambda: len(store.ledger(START)) == 2)
    entries = store.ledger(START)
    assert [entry.event.message for entry in entries] == ["open", "later"]
    assert (entries[0].mark.xid, entries[0].node) == (xid, "local")
    assert before < entries[0].at < before + 120_000_000


def test_a_base_of_transaction_ids_is_added(store: PostgresStore) -> None:
    execute(store.url, "UPDATE semel_store SET xid_base = 1000000000")
    with psycopg.connect(store.url) as user:
        store.bind(user).apply([Log(Event(Kind.HANDLED, "h", message="m"))])
    wait_until(lambda: store.ledger(START))
    assert store.ledger(START)[0].mark.xid > 1_000_000_000


def test_behind_a_pooler_nothing_is_left_in_the_session(store: PostgresStore) -> None:
    with psycopg.connect(store.url, prepare_threshold=None) as user:
        for number in range(10):
            store.bind(user).apply([Enqueue(QUEUE, f"{number}", Envelope(id="m"))], wait=False)
            user.commit()
        assert user.execute("SELECT count(*) FROM pg_prepared_statements").fetchall() == [(0,)]
        locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
        assert user.execute(locks).fetchall() == [(0,)]
