"""Connections and sessions of SQLAlchemy, over whichever driver they use.

Those whose calls are awaited run the same code by `run_sync`, which is made for that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from semel.errors import InputError
from semel.kernel.ops import Op, Result
from semel.kernel.store import AsyncTx, Store, Tx
from semel.runtime.transactions.base import need_postgres, need_sqlite


def bind(store: Store, connection: Any) -> Tx | AsyncTx:
    if isinstance(connection, async_scoped_session):
        connection = connection()
    if isinstance(connection, AsyncConnection | AsyncSession):
        return AsyncSqlAlchemyTx(store, connection)
    if not isinstance(connection, Connection | Session | scoped_session):
        raise InputError(
            f"a {type(connection).__name__} of SQLAlchemy has no transaction",
            fix="pass the Connection or Session that it opens: `with engine.begin() as connection:`,"
            " `with sessions.begin() as session:`",
        )
    return bind_connection(store, connection)


def bind_connection(store: Store, connection: Any) -> Tx:
    """A Session has its Connection for as long as its transaction lasts."""
    own: Connection = connection if isinstance(connection, Connection) else connection.connection()
    if not own.in_transaction():
        # as its first statement would: otherwise its commit would do nothing
        own.begin()
    if own.dialect.name == "sqlite":
        return _bind_sqlite(need_sqlite(store), own)
    if own.dialect.name == "postgresql":
        return _bind_postgres(store, own)
    raise InputError(f"Semel has no store on {own.dialect.name}", fix="use SQLite or PostgreSQL")


def _bind_sqlite(store: Store, connection: Connection) -> Tx:
    driver = connection.connection.driver_connection
    return store.bind(AdaptedSqliteSession(connection) if connection.dialect.is_async else driver)


def _bind_postgres(store: Store, connection: Connection) -> Tx:
    place = need_postgres(store)
    if connection.dialect.driver == "psycopg" and not connection.dialect.is_async:
        return store.bind(connection.connection.driver_connection)
    # it needs psycopg, which somebody with SQLite may not have
    from semel.runtime.transactions.sqlalchemy_postgres import SqlAlchemyTx

    return SqlAlchemyTx(place, connection)


class AsyncSqlAlchemyTx:
    def __init__(self, store: Store, connection: AsyncConnection | AsyncSession) -> None:
        self._store = store
        self._connection = connection

    async def apply(self, ops: Sequence[Op], *, wait: bool = True) -> tuple[Result, ...]:
        return await self._connection.run_sync(lambda own: bind_connection(self._store, own).apply(ops, wait=wait))

    async def keep_result(self, scope: str, identity: str, result: bytes) -> bool:
        def keep(own: Any) -> bool:
            return own.in_transaction() and bind_connection(self._store, own).keep_result(scope, identity, result)

        return await self._connection.run_sync(keep)


class AdaptedSqliteSession:
    """An aiosqlite connection, by what SQLAlchemy has made of it: a cursor whose calls wait for another thread.

    `BEGIN` is tried once, for as long as the connection itself waits: to sleep here would stop the event loop.
    """

    busy_s = 0.0

    def __init__(self, connection: Connection) -> None:
        self._adapted: Any = connection.connection.dbapi_connection
        self._driver: Any = connection.connection.driver_connection

    @property
    def in_transaction(self) -> bool:
        return bool(self._driver.in_transaction)

    @property
    def autocommits(self) -> bool:
        return self._driver.isolation_level is None

    def execute(self, sql: str, params: Any = ()) -> Any:
        cursor = self._adapted.cursor()
        cursor.execute(sql, params)
        return cursor

    def executemany(self, sql: str, rows: Any) -> Any:
        cursor = self._adapted.cursor()
        cursor.executemany(sql, list(rows))
        return cursor

    @contextmanager
    def as_it_is(self) -> Iterator[None]:
        driver = self._driver
        theirs = driver.row_factory, driver.text_factory
        driver.row_factory, driver.text_factory = None, str
        try:
            yield
        finally:
            driver.row_factory, driver.text_factory = theirs
