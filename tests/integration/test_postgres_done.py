"""Mark and COMMIT in one message: they happen together, or neither does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest
from psycopg import errors
from tests.integration.postgres_stores import execute, wait_until
from tests.tools.pgbouncer import pgbouncer, program

from semel.errors import InputError, StaleFence
from semel.kernel.envelope import Envelope
from semel.kernel.ledger import START, Event, Kind
from semel.kernel.ops import Applied, Claim, Claimed, Enqueue, Finish, Log, Op, Unit, WorkRow, WorkState
from semel.stores.postgres import PostgresStore
from semel.stores.postgres_done import DoneCommit

pytestmark = pytest.mark.connected

QUEUE = "inbox/orders"


@pytest.fixture
def store(postgres_url: str) -> Iterator[PostgresStore]:
    with closing(PostgresStore(postgres_url)) as store:
        execute(store.url, "CREATE TABLE effect (id text)")
        yield store


@pytest.fixture
def user(store: PostgresStore) -> Iterator[psycopg.Connection[Any]]:
    with closing(psycopg.connect(store.url)) as connection:
        yield connection


@pytest.fixture
def ends(store: PostgresStore) -> DoneCommit:
    return DoneCommit(store.url, store.node, store.store_id)


def claimed(store: PostgresStore, id: str = "a", key: str | None = None) -> WorkRow:
    envelope = Envelope(id=id, data=b"body", headers={"x": "y"})
    [outcome] = store.commit([Unit((Enqueue(QUEUE, id, envelope, key=key), Claim(QUEUE, "w", lease_s=3600.0)))])
    assert isinstance(outcome, Applied)
    found = outcome.results[1]
    assert isinstance(found, Claimed)
    return found.rows[0]


def mark(row: WorkRow, event: Event | None = None, **changes: Any) -> tuple[Op, ...]:
    event = event or Event(Kind.HANDLED, "inbox/orders>handler", message=row.identity)
    return Finish(QUEUE, row.identity, WorkState.DONE, **{"fence": row.fence, "keep_s": 60.0, **changes}), Log(event)


def write(connection: psycopg.Connection[Any], id: str = "a") -> None:
    connection.execute("INSERT INTO effect VALUES (%s)", (id,))


def effects(store: PostgresStore) -> list[str]:
    return [id for (id,) in execute(store.url, "SELECT id FROM effect ORDER BY id")]


def state(store: PostgresStore, id: str = "a") -> WorkState:
    row = store.work(QUEUE, id)
    assert row is not None
    return row.state


@pytest.mark.parametrize("id", ["plain", "it's", "a\\b'c", "ä€", "'; DROP TABLE effect; --", "%s $1 \\'"])
def test_it_leaves_the_same_behind_as_the_long_way(
    store: PostgresStore, ends: DoneCommit, user: psycopg.Connection[Any], id: str
) -> None:
    event = Event(
        Kind.HANDLED, "inbox/orders>handler", pipeline=id, message=id, delivery=id, session=id, idx=3, peer=id,
        attempt=4, cause=id, trace=id,
    )  # fmt: skip
    for name, at_once in ((id, True), (f"{id}-long", False)):
        row = claimed(store, name, key="k")
        write(user, name)
        if at_once:
            assert ends.commit(user, mark(row, event))
        else:
            store.bind(user).apply(mark(row, event))
            user.commit()
    assert effects(store) == sorted([id, f"{id}-long"])
    columns = "state, holds, attempts, cause, headers, data, blob, size, key IS NULL, keep_until - due"
    left = execute(store.url, f"SELECT {columns} FROM semel_work ORDER BY seq")
    assert len(left) == 2
    assert left[0] == left[1]
    wait_until(lambda: len(store.ledger(START)) == 2)
    assert [entry.event for entry in store.ledger(START)] == [event, event]


def test_a_stale_fence_takes_the_effect_with_it(
    store: PostgresStore, ends: DoneCommit, user: psycopg.Connection[Any]
) -> None:
    row = claimed(store)
    write(user)
    with pytest.raises(StaleFence):
        ends.commit(user, mark(row, fence=row.fence - 1))
    assert (effects(store), state(store)) == ([], WorkState.CLAIMED)
    write(user)
    assert ends.commit(user, mark(row)), "the connection can be used again"
    assert effects(store) == ["a"]


def test_a_commit_that_is_not_durable_or_of_another_store_is_refused(
    store: PostgresStore, ends: DoneCommit, user: psycopg.Connection[Any]
) -> None:
    row = claimed(store)
    user.execute("SET synchronous_commit = off")
    user.commit()
    write(user)
    with pytest.raises(InputError, match="synchronous_commit is off"):
        ends.commit(user, mark(row))
    with closing(psycopg.connect(store.url)) as other:
        write(other)
        with pytest.raises(InputError, match="another store"):
            DoneCommit(store.url, store.node, "another").commit(other, mark(row))
    assert (effects(store), state(store)) == ([], WorkState.CLAIMED)


@pytest.mark.parametrize(
    ("raises", "error"),
    [("RAISE unique_violation", errors.UniqueViolation), ("PERFORM 1 / 0", errors.DivisionByZero)],
)
def test_what_fails_at_commit_has_not_marked(
    store: PostgresStore, ends: DoneCommit, user: psycopg.Connection[Any], raises: str, error: type[Exception]
) -> None:
    execute(
        store.url,
        f"CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN {raises}; RETURN NULL; END'",
    )
    execute(
        store.url,
        "CREATE CONSTRAINT TRIGGER late AFTER INSERT ON effect DEFERRABLE INITIALLY DEFERRED"
        " FOR EACH ROW EXECUTE FUNCTION refuse()",
    )
    row = claimed(store)
    write(user)
    with pytest.raises(error):
        ends.commit(user, mark(row))
    assert (effects(store), state(store)) == ([], WorkState.CLAIMED)


def test_what_it_cannot_do_at_once_it_leaves_alone(
    store: PostgresStore, ends: DoneCommit, user: psycopg.Connection[Any]
) -> None:
    row, commit = claimed(store), ends.commit
    assert not commit(user, mark(row)), "nothing was begun"
    write(user)
    assert not commit(user, (*mark(row), Enqueue(QUEUE, "b", Envelope(id="b")))), "a message is sent"
    assert not commit(user, mark(row, cause="late")), "the row says more"
    assert not commit(user, mark(row, fence=None)), "no claim"
    assert state(store) is WorkState.CLAIMED
    user.rollback()
    assert effects(store) == []


def test_a_connection_that_is_lost_says_so(
    store: PostgresStore, ends: DoneCommit, user: psycopg.Connection[Any]
) -> None:
    row = claimed(store)
    write(user)
    execute(store.url, "SELECT pg_terminate_backend(%s)", user.info.backend_pid)
    with pytest.raises(psycopg.OperationalError):
        ends.commit(user, mark(row))
    assert (effects(store), state(store)) == ([], WorkState.CLAIMED)


@pytest.mark.skipif(program() is None, reason="there is no PgBouncer: scripts/system-needs.toml names its package")
def test_behind_a_pooler_it_is_left_to_the_long_way(store: PostgresStore, ends: DoneCommit) -> None:
    row = claimed(store)
    with pgbouncer(store.url) as url, closing(psycopg.connect(url, prepare_threshold=None)) as pooled:
        write(pooled)
        assert not ends.commit(pooled, mark(row))
        assert state(store) is WorkState.CLAIMED
        pooled.rollback()
