"""Transactions of users in the form in which they have them: what is Semel's and what is theirs is one commit."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from django.db.transaction import atomic
from sqlalchemy import create_engine
from sqlalchemy.orm import sessionmaker
from tests.integration.users import GENERAL, POSTGRES, SQLITE, Way, django_connection

from semel.errors import InputError, LocalProtocolError, NotAStore, StaleFence, StoreBusy
from semel.kernel.envelope import Envelope
from semel.kernel.ledger import Event, Kind
from semel.kernel.ops import Applied, Claim, Claimed, Duplicate, Enqueue, Finish, Fresh, Log, Op, Put, Unit, WorkState
from semel.kernel.store import State, Store
from semel.runtime.transactions import bind
from semel.stores.memory import MemoryStore
from semel.stores.open import open_store
from semel.testing.contract.base import events
from semel.testing.postgres import new_database

pytestmark = pytest.mark.connected

QUEUE = "inbox/orders"
ENQUEUE = Enqueue(
    "outbox/shop", "o", Envelope(id="o", data=b"\x00\xff'%s", headers={"h": "ü $1"}), key="k",
    on_fresh=Event(Kind.SENT, "shop>"),
)  # fmt: skip

WAYS = [
    *((f"sqlite/{name}", way) for name, way in SQLITE.items()),
    *((f"postgres/{name}", way) for name, way in POSTGRES.items()),
]


@pytest.fixture(params=WAYS, ids=[name for name, _ in WAYS])
def named_way(request: pytest.FixtureRequest) -> tuple[str, Way]:
    found: tuple[str, Way] = request.param
    return found


@pytest.fixture
def way(named_way: tuple[str, Way]) -> Way:
    return named_way[1]


@pytest.fixture
def url(named_way: tuple[str, Way], tmp_path: Path, request: pytest.FixtureRequest) -> str:
    if named_way[0].startswith("sqlite/"):
        return f"sqlite:///{tmp_path}/semel.db"
    given: str = request.getfixturevalue("postgres_url")
    return given


@pytest.fixture
def store(url: str, way: Way) -> Iterator[Store]:
    with closing(open_store(url)) as store:
        commit(store, Enqueue(QUEUE, "w", Envelope(id="w")))
        with way(url) as user:
            user.execute("CREATE TABLE effects (n integer)")
            user.commit()
        yield store


def commit(store: Store, *ops: Op) -> object:
    [outcome] = store.commit([Unit(ops)])
    assert isinstance(outcome, Applied), outcome
    return outcome.results[0]


def finish(store: Store, fence: int | None = None) -> Finish:
    claimed = commit(store, Claim(QUEUE, "me"))
    assert isinstance(claimed, Claimed)
    return Finish(QUEUE, "w", WorkState.DONE, fence or claimed.rows[0].fence)


def count(url: str) -> int:
    way = SQLITE["sqlite3"] if url.startswith("sqlite:") else POSTGRES["psycopg"]
    with way(url) as user:
        [(found,)] = user.connection.execute("SELECT count(*) FROM effects").fetchall()
    return int(found)


def state_of(store: Store) -> WorkState:
    row = store.work(QUEUE, "w")
    assert row is not None
    return row.state


def test_what_is_ours_and_theirs_is_one_commit(store: Store, url: str, way: Way) -> None:
    done, told = finish(store), Log(Event(Kind.HANDLED, "inbox/orders>f", message="w"))
    with way(url) as user:
        user.execute("INSERT INTO effects VALUES (1)")
        _, _, verdict = user.apply(store, done, told, ENQUEUE)
        assert isinstance(verdict, Fresh)
        assert (state_of(store), store.work("outbox/shop", "o")) == (WorkState.CLAIMED, None)
        user.commit()
        again = user.apply(store, ENQUEUE)[0]
        user.commit()
    assert again == Duplicate(verdict.position, state=WorkState.READY)
    assert (state_of(store), count(url)) == (WorkState.DONE, 1)
    row = store.work("outbox/shop", "o")
    assert row is not None
    assert (row.envelope, row.key, row.seq) == (ENQUEUE.envelope, "k", verdict.position.offset)
    assert [event.kind for event in events(store)] == [Kind.HANDLED, Kind.SENT]
    claimed = commit(store, Claim("outbox/shop", "relay"))
    assert isinstance(claimed, Claimed)
    assert len(claimed.rows) == 1


def test_ours_may_be_the_first_and_only_statement(store: Store, url: str, way: Way) -> None:
    done = finish(store)
    with way(url) as user:
        user.apply(store, done)
        user.commit()
    assert state_of(store) is WorkState.DONE


def test_a_rollback_and_a_close_take_it_back(store: Store, url: str, way: Way) -> None:
    """We never commit what we did not open."""
    done = finish(store)
    with way(url) as user:
        user.execute("INSERT INTO effects VALUES (1)")
        user.apply(store, done, ENQUEUE)
        user.rollback()
        user.apply(store, done, ENQUEUE)
    assert (state_of(store), store.work("outbox/shop", "o"), count(url)) == (WorkState.CLAIMED, None, 0)


def test_a_stale_fence_leaves_nothing_and_the_transaction_goes_on(store: Store, url: str, way: Way) -> None:
    stale = finish(store, fence=2**40)
    with way(url) as user:
        user.execute("INSERT INTO effects VALUES (1)")
        with pytest.raises(StaleFence):
            user.apply(store, stale, ENQUEUE, Log(Event(Kind.HANDLED, "x", message="w")))
        user.execute("INSERT INTO effects VALUES (2)")
        user.commit()
    assert (state_of(store), store.work("outbox/shop", "o"), count(url)) == (WorkState.CLAIMED, None, 2)
    assert events(store) == []


def test_autocommit_is_refused(store: Store, url: str, way: Way) -> None:
    done = finish(store)
    with way(url, autocommit=True) as user:
        with pytest.raises(InputError, match="no transaction is open") as refused:
            user.apply(store, done, ENQUEUE)
        assert refused.value.fix
    assert (state_of(store), store.work("outbox/shop", "o")) == (WorkState.CLAIMED, None)


@pytest.mark.parametrize("make", [lambda engine: engine, sessionmaker], ids=["engine", "sessionmaker"])
def test_what_only_opens_transactions_is_refused(tmp_path: Path, make: Any) -> None:
    store = open_store(f"sqlite:///{tmp_path}/semel.db")
    engine = create_engine(f"sqlite:///{tmp_path}/semel.db")
    with closing(store), pytest.raises(InputError, match="has no transaction") as refused:
        bind(store, make(engine))
    assert "begin()" in refused.value.fix


def test_another_store_is_refused(
    store: Store, url: str, way: Way, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if url.startswith("sqlite:"):
        check_other(store, f"sqlite:///{tmp_path}/other.db", way)
        return
    with new_database(request.getfixturevalue("postgres_server_url")) as other:
        check_other(store, other, way)


def check_other(store: Store, other: str, way: Way) -> None:
    with closing(open_store(other)) as others, way(other) as user:
        with pytest.raises(InputError, match="another store"):
            user.apply(store, ENQUEUE)
        user.commit()
        assert (store.work("outbox/shop", "o"), others.work("outbox/shop", "o")) == (None, None)


def test_another_engine_is_refused(store: Store, url: str, way: Way) -> None:
    with way(url) as user, pytest.raises(InputError):
        user.apply(MemoryStore(), ENQUEUE)


def test_other_ops_go_the_general_way_where_there_is_one(store: Store, url: str, named_way: tuple[str, Way]) -> None:
    name, way = named_way
    engine, _, form = name.partition("/")
    with way(url) as user:
        if engine == "sqlite" or form in GENERAL:
            user.apply(store, Put("k", b"v"), ENQUEUE)
        else:
            with pytest.raises(LocalProtocolError, match="psycopg"):
                user.apply(store, Put("k", b"v"), ENQUEUE)
        user.commit()
    expected = State(b"v", 1) if engine == "sqlite" or form in GENERAL else None
    assert store.state("k") == expected


@pytest.mark.parametrize("way", [pytest.param(way, id=name) for name, way in POSTGRES.items()])
class TestPostgres:
    @pytest.fixture
    def url(self, postgres_url: str) -> str:
        return postgres_url

    def test_a_commit_that_does_not_wait_for_the_disk_is_refused(self, store: Store, url: str, way: Way) -> None:
        with way(url) as user:
            user.execute("SET LOCAL synchronous_commit = off")
            with pytest.raises(InputError, match="synchronous_commit is off"):
                user.apply(store, ENQUEUE)
            user.execute("SET LOCAL synchronous_commit = on")
            assert isinstance(user.apply(store, ENQUEUE)[0], Fresh)

    def test_who_does_not_wait_hears_at_once_that_another_has_the_identity(
        self, store: Store, url: str, way: Way
    ) -> None:
        with way(url) as first, way(url) as second:
            first.apply(store, ENQUEUE, wait=False)
            second.execute("SET LOCAL lock_timeout = '30s'")
            with pytest.raises(StoreBusy, match="still open"):
                second.apply(store, ENQUEUE, Enqueue("outbox/shop", "p", Envelope(id="p")), wait=False)
            second.execute("INSERT INTO effects VALUES (1)")
            first.commit()
            assert isinstance(second.apply(store, ENQUEUE, wait=False)[0], Duplicate)
            second.commit()
        assert (count(url), store.work("outbox/shop", "p")) == (1, None)

    def test_an_old_view_of_the_database_adds_no_work(self, store: Store, url: str, way: Way) -> None:
        """Who has only the one statement is refused, who can look beside the transaction finds it busy."""
        with way(url) as user:
            user.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            user.execute("SELECT count(*) FROM effects")
            commit(store, ENQUEUE)
            user.apply(store, Log(Event(Kind.HANDLED, "h", message="m")))
            with pytest.raises((StoreBusy, InputError)) as refused:
                user.apply(store, ENQUEUE)
            assert "READ COMMITTED" in (refused.value.fix or "")
            user.rollback()

    def test_a_database_without_tables_is_refused(self, store: Store, way: Way, postgres_server_url: str) -> None:
        with new_database(postgres_server_url) as other, way(other) as user:
            with pytest.raises(NotAStore, match="without Semel's tables"):
                user.apply(store, ENQUEUE)
            user.rollback()


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_django_has_its_transactions_in_atomic_blocks(
    engine: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = f"sqlite:///{tmp_path}/semel.db" if engine == "sqlite" else request.getfixturevalue("postgres_url")
    connection = django_connection(url)
    with closing(open_store(url)) as store, closing(connection):
        with pytest.raises(InputError, match="no transaction") as refused:
            bind(store, connection)
        assert "atomic" in (refused.value.fix or "")
        with atomic(connection.alias):
            bind(store, connection).apply([ENQUEUE])
            with pytest.raises(ZeroDivisionError):
                enqueue_and_fail(store, connection, "taken back")
        with pytest.raises(ZeroDivisionError):
            enqueue_and_fail(store, connection, "gone")
        found = [store.work("outbox/shop", id) is not None for id in ("o", "taken back", "gone")]
        assert found == [True, False, False]
        with atomic(connection.alias):
            connection.set_rollback(True)
            with pytest.raises(InputError, match="failed already"):
                bind(store, connection)


def enqueue_and_fail(store: Store, connection: Any, id: str) -> None:
    with atomic(connection.alias):
        bind(store, connection).apply([Enqueue("outbox/shop", id, Envelope(id=id))])
        raise ZeroDivisionError


def test_a_driver_that_cannot_be_bound_says_what_can() -> None:
    class Connection:
        pass

    Connection.__module__ = "asyncpg.connection"
    with pytest.raises(InputError, match="asyncpg") as refused:
        bind(MemoryStore(), Connection())
    assert "SQLAlchemy" in (refused.value.fix or "")


def test_a_memory_store_binds_its_own() -> None:
    store = MemoryStore()
    connection = store.connect()
    bind(store, connection).apply([Put("k", b"v")])
    connection.commit()
    assert store.state("k") == State(b"v", 1)


def test_nothing_is_imported_that_is_not_asked_for() -> None:
    program = (
        "import sqlite3, sys; from semel.runtime.transactions import bind; from semel import open_store; "
        "store = open_store('memory:'); bind(store, store.connect()); "
        "print([name for name in ('sqlalchemy', 'django', 'psycopg') if name in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"
