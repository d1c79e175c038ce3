"""Semel's part of a transaction that a user has opened on PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from psycopg import AsyncConnection, Connection, RawCursor
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row

from semel.errors import InputError, StoreBusy, WrongIsolation
from semel.kernel.ops import Op, Result, Unit
from semel.stores.apply import apply
from semel.stores.postgres_bound import (
    BoundQuery,
    bound_errors,
    bound_steps,
    check_durable,
    check_same_store,
    is_plain,
    keep_result_query,
    run_steps,
)
from semel.stores.postgres_connection import Row, Statements, errors
from semel.stores.postgres_engine import PostgresEngine, TryAgain
from semel.stores.shared import check_bound, unwrap_bound

FIX_AUTOCOMMIT = "use `with connection.transaction():`, or connect without autocommit"


class PostgresTx:
    """Semel's writes inside the user's transaction. The user commits or rolls back; no head is locked, nobody is
    notified.

    A call that we refuse leaves nothing behind, so the user may go on after catching the error. What usually ends a
    handler is one statement (`postgres_bound`): if the server itself fails it, the transaction has failed, as after any
    statement of the user's own. Other ops take several, under a savepoint.
    """

    def __init__(
        self, url: str, node: str, store_id: str, connection: Any, look: Callable[..., list[Row]] | None = None
    ) -> None:
        """`look` asks the store itself, beside the user's transaction."""
        if not isinstance(connection, Connection):
            raise InputError(
                f"a {type(connection).__name__} is not a psycopg connection",
                fix="pass a psycopg.Connection, or use semel.runtime.transactions.bind for what frameworks have",
            )
        self._url, self._node, self._store_id, self._look = url, node, store_id, look
        self._connection: Connection[Any] = connection
        check_open(connection)

    def apply(self, ops: Sequence[Op], *, wait: bool = True) -> tuple[Result, ...]:
        check_open(self._connection)
        plain = is_plain(ops)
        if wait and not plain:
            return self._apply_generally(check_bound(ops))
        try:
            return run_steps(bound_steps(ops, self._store_id, self._node, wait=wait, plain=plain), self._ask)
        except WrongIsolation:
            if not wait:
                raise
            return self._apply_generally(check_bound(ops))

    def keep_result(self, scope: str, identity: str, result: bytes) -> bool:
        query = keep_result_query(scope, identity, result)
        return is_begun(self._connection) and bool(self._ask(query))

    def _ask(self, query: BoundQuery) -> list[Row]:
        """Whether it is prepared is for the connection to say: behind a pooler it must not be."""
        text, values = query.encoded()
        with bound_errors(self._url, psycopg.Error):
            return RawCursor(self._connection, row_factory=tuple_row).execute(text, values).fetchall()

    def _apply_generally(self, unit: Unit) -> tuple[Result, ...]:
        with errors(self._url), bound_errors(self._url, psycopg.Error), _savepoint(self._connection):
            join = Statements(self._connection, ours=False).join
            engine = PostgresEngine(join, self._node, [unit], look=self._look)
            try:
                results = unwrap_bound(apply(engine, [unit])[0])
                engine.flush()
                check_same_store(engine.store_id, self._store_id)
                check_durable(engine.sync)
                return results
            except TryAgain as error:
                raise StoreBusy(
                    f"another transaction created the same {error} at this moment",
                    fix="roll back and run the transaction again",
                ) from None


def is_begun(connection: Connection[Any] | AsyncConnection[Any]) -> bool:
    return connection.info.transaction_status != TransactionStatus.IDLE


def check_open(connection: Connection[Any] | AsyncConnection[Any]) -> None:
    """Refuse a connection on which what is written is lost, or committed at once."""
    if connection.info.encoding != "utf-8":
        raise InputError(f"the connection speaks {connection.info.encoding}", fix="set client_encoding to UTF8")
    status = connection.info.transaction_status
    if status == TransactionStatus.INERROR:
        raise InputError("the transaction has failed already", fix="roll it back and begin again")
    if connection.autocommit and status == TransactionStatus.IDLE:
        raise InputError("no transaction is open: each statement would be committed alone", fix=FIX_AUTOCOMMIT)


@contextmanager
def _savepoint(connection: Connection[Any]) -> Iterator[None]:
    """All or nothing inside a transaction that is not ours. psycopg's own `transaction()` commits at its end when it
    finds none begun, and in a pipeline it cannot tell."""
    connection.execute("SAVEPOINT semel_apply", prepare=False)
    try:
        yield
    except BaseException:
        # a connection that cannot go back cannot commit either
        with suppress(psycopg.Error):
            _go_back(connection)
        raise
    connection.execute("RELEASE SAVEPOINT semel_apply", prepare=False)


def _go_back(connection: Connection[Any]) -> None:
    if connection.pgconn.pipeline_status != PipelineStatus.OFF:
        # one that was aborted takes no statement before it is synchronised, which this does
        with suppress(psycopg.Error), connection.pipeline():
            pass
    connection.execute("ROLLBACK TO SAVEPOINT semel_apply", prepare=False)
    connection.execute("RELEASE SAVEPOINT semel_apply", prepare=False)
