"""Where the transactions of handlers come from.

A provider opens one transaction as a context manager: committed at its end, rolled back by an exception. SQLite and
PostgreSQL connections to the inbox's own database come with Semel; for anything else the user says how:

    app.provide(Session, sessions.begin)            SQLAlchemy: a sessionmaker or async_sessionmaker
    app.provide(Connection, engine.begin)
    app.provide(BaseDatabaseWrapper, django_transaction())

Connections that Semel opened are used again. One that broke, or that a handler left in a state that is not its own, is
closed instead.
"""

from __future__ import annotations

import inspect
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    suppress,
)
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Generic, Protocol, TypeVar

from semel.errors import ConfigError, StoreUnavailable
from semel.kernel.ops import Op
from semel.kernel.store import Store
from semel.runtime.transactions.base import PostgresPlace, need_postgres
from semel.stores.sqlite import SqliteStore

C = TypeVar("C")

IDLE_MAX = 64


class Transactions(Protocol):
    """Opens one transaction; `with` or `async with`, by what `is_async` says."""

    def __call__(self) -> AbstractContextManager[Any] | AbstractAsyncContextManager[Any]: ...


@dataclass(frozen=True, slots=True)
class Provider:
    """`kind` is what a handler asks for by annotation. `commit` writes the end of a message and commits, both at once;
    it answers False when it can do only one after the other, and has done nothing."""

    kind: type
    begin: Transactions
    close: Callable[[], None] = lambda: None
    commit: Callable[[Any, Sequence[Op]], bool] | None = None

    @property
    def is_async(self) -> bool:
        """Known by the kind: an async connection or session has an async way to leave."""
        return hasattr(self.kind, "__aenter__")


class _Idle(Generic[C]):
    """Connections that nobody uses just now, the last one used first."""

    def __init__(self, connect: Callable[[], C], close: Callable[[C], None]) -> None:
        self._connect, self._close = connect, close
        self._lock = threading.Lock()
        self._idle: list[C] = []
        self._closed = False

    def take(self) -> C:
        with self._lock:
            if self._closed:
                raise StoreUnavailable("the application is closed", fix="handle messages while it runs")
            if self._idle:
                return self._idle.pop()
        return self._connect()

    def give_back(self, connection: C) -> None:
        with self._lock:
            if not self._closed and len(self._idle) < IDLE_MAX:
                self._idle.append(connection)
                return
        self._close(connection)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            self._close(connection)


# -- SQLite


def sqlite_provider(store: SqliteStore) -> Provider:
    """The write lock begins with the handler's first write, so a handler that reads and computes keeps nobody
    waiting."""

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(store.path, isolation_level="IMMEDIATE", check_same_thread=False, timeout=store.busy_s)

    idle = _Idle(connect, sqlite3.Connection.close)

    @contextmanager
    def begin() -> Iterator[sqlite3.Connection]:
        # the lock is taken by the handler's own first write, which cannot wait in turn: so those who do go first
        store.give_way(store.busy_s)
        connection = idle.take()
        try:
            yield connection
            connection.commit()
        except BaseException:
            with suppress(sqlite3.Error):
                connection.close()
            raise
        idle.give_back(connection)

    return Provider(sqlite3.Connection, begin, idle.close)


# -- PostgreSQL


def psycopg_providers(store: PostgresPlace) -> list[Provider]:
    import psycopg

    from semel.runtime.inbox.psycopg_watch import WatchedAsyncCursor, WatchedCursor
    from semel.stores.postgres_done import DoneCommit

    url = store.url

    def connect() -> psycopg.Connection[Any]:
        return psycopg.connect(url, cursor_factory=WatchedCursor)

    idle: _Idle[psycopg.Connection[Any]] = _Idle(connect, lambda connection: connection.close())

    @contextmanager
    def begin() -> Iterator[psycopg.Connection[Any]]:
        connection = idle.take()
        try:
            yield connection
            connection.commit()
        except BaseException:
            # a server notices a closed connection a moment later, and until then the next attempt would find our locks
            with suppress(psycopg.Error):
                connection.rollback()
            with suppress(psycopg.Error):
                connection.close()
            raise
        idle.give_back(connection)

    @asynccontextmanager
    async def begin_async() -> AsyncIterator[psycopg.AsyncConnection[Any]]:
        # committed at its end, rolled back by an exception, and closed: its loop may be gone by the next message
        connecting = psycopg.AsyncConnection.connect(url, cursor_factory=WatchedAsyncCursor)
        async with await connecting as connection:
            yield connection

    at_once = DoneCommit(url, store.node, store.store_id)
    return [
        Provider(psycopg.Connection, begin, idle.close, at_once.commit),
        Provider(psycopg.AsyncConnection, begin_async),
    ]


def own_providers(store: Store) -> list[Provider]:
    """For connections to the database that the store is in."""
    if isinstance(store, SqliteStore):
        return [sqlite_provider(store)]
    if store.url.startswith("postgres"):
        return psycopg_providers(need_postgres(store))
    return []


def django_transaction(using: str = "default") -> Transactions:
    """A block of `transaction.atomic` on one of Django's databases. A connection that Django would close at the end of
    a request is closed at the end of the message."""

    @contextmanager
    def begin() -> Iterator[Any]:
        django = import_module("django.db")
        connection = django.connections[using]
        try:
            with django.transaction.atomic(using):
                yield connection
        finally:
            connection.close_if_unusable_or_obsolete()

    return begin


def given_provider(kind: type, begin: Any) -> Provider:
    """One that the user brought."""
    if not isinstance(kind, type):
        raise ConfigError(f"{kind!r} is not a type", fix="name what handlers annotate: app.provide(Session, ...)")
    if not callable(begin):
        raise ConfigError(
            f"{begin!r} does not open a transaction of {kind.__qualname__}",
            fix="pass a function that returns a context manager: sessions.begin, engine.begin",
        )
    if inspect.iscoroutinefunction(begin):
        raise ConfigError(
            f"{begin.__qualname__} is a coroutine function", fix="decorate it with contextlib.asynccontextmanager"
        )
    return Provider(kind, begin)
