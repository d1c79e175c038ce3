"""Connections of psycopg, whose calls block or are awaited."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg import AsyncConnection, AsyncRawCursor
from psycopg.rows import tuple_row

from semel.kernel.ops import Op, Result
from semel.kernel.store import AsyncTx, Store, Tx
from semel.runtime.transactions.base import PostgresPlace, need_postgres
from semel.stores.postgres_bound import BoundQuery, bound_errors, bound_steps, keep_result_query, run_steps_async
from semel.stores.postgres_connection import Row
from semel.stores.postgres_tx import check_open, is_begun


def bind(store: Store, connection: Any) -> Tx | AsyncTx:
    place = need_postgres(store)
    return AsyncPsycopgTx(place, connection) if isinstance(connection, AsyncConnection) else store.bind(connection)


class AsyncPsycopgTx:
    """On a connection whose calls are awaited there is the one statement, and no general way."""

    def __init__(self, store: PostgresPlace, connection: AsyncConnection[Any]) -> None:
        self._store = store
        self._connection = connection
        check_open(connection)

    async def apply(self, ops: Sequence[Op], *, wait: bool = True) -> tuple[Result, ...]:
        check_open(self._connection)
        return await run_steps_async(bound_steps(ops, self._store.store_id, self._store.node, wait=wait), self._ask)

    async def keep_result(self, scope: str, identity: str, result: bytes) -> bool:
        query = keep_result_query(scope, identity, result)
        return is_begun(self._connection) and bool(await self._ask(query))

    async def _ask(self, query: BoundQuery) -> list[Row]:
        text, values = query.encoded()
        with bound_errors(self._store.url, psycopg.Error):
            cursor = AsyncRawCursor(self._connection, row_factory=tuple_row)
            await cursor.execute(text, values)
            return await cursor.fetchall()
