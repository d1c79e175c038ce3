"""SQLAlchemy's connections over PostgreSQL drivers that are not ours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, CursorResult
from sqlalchemy.exc import DBAPIError

from semel.errors import InputError
from semel.kernel.ops import Op, Result
from semel.runtime.transactions.base import PostgresPlace
from semel.stores.postgres_bound import BoundQuery, bound_errors, bound_steps, keep_result_query, run_steps
from semel.stores.postgres_connection import Row

PARAMSTYLES = ("numeric_dollar", "pyformat")


class SqlAlchemyTx:
    """The one statement, and no general way."""

    def __init__(self, store: PostgresPlace, connection: Connection) -> None:
        self._store = store
        self._connection = connection
        self._style = connection.dialect.paramstyle
        if self._style not in PARAMSTYLES:
            raise InputError(
                f"the driver {connection.dialect.driver} is not known", fix="use psycopg, psycopg2 or asyncpg"
            )
        if getattr(connection.connection.dbapi_connection, "autocommit", False):
            raise InputError(
                "no transaction is open: each statement would be committed alone",
                fix="use a connection without the isolation level AUTOCOMMIT",
            )

    def apply(self, ops: Sequence[Op], *, wait: bool = True) -> tuple[Result, ...]:
        return run_steps(bound_steps(ops, self._store.store_id, self._store.node, wait=wait), self._ask)

    def keep_result(self, scope: str, identity: str, result: bytes) -> bool:
        query = keep_result_query(scope, identity, result)
        return self._connection.in_transaction() and bool(self._ask(query))

    def _ask(self, query: BoundQuery) -> Sequence[Row]:
        with bound_errors(self._store.url, DBAPIError):
            return self._run(query).fetchall()

    def _run(self, query: BoundQuery) -> CursorResult[Any]:
        if self._style == "pyformat":
            return self._connection.exec_driver_sql(*query.named())
        text, values = query.numbered()
        return self._connection.exec_driver_sql(text, tuple(values))
