"""Semel's part of a transaction that a user has opened on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from psycopg import Connection
from psycopg.pq import PipelineStatus, TransactionStatus

from semel.errors import InputError, StoreBusy
from semel.kernel.ops import Op, Result
from semel.stores.apply import apply
from semel.stores.postgres_connection import Statements, errors
from semel.stores.postgres_engine import PostgresEngine, TryAgain
from semel.stores.shared import check_bound, unwrap_bound


class PostgresTx:
    """Semel's writes inside the user's transaction. The user commits or rolls back; no head is locked, nobody is
    notified. A call that raises leaves nothing behind, so the user may go on after catching the error."""

    def __init__(self, url: str, node: str, connection: Any) -> None:
        if not isinstance(connection, Connection):
            raise InputError(
                f"a {type(connection).__name__} is not a psycopg connection", fix="pass a psycopg.Connection"
            )
        if connection.info.encoding != "utf-8":
            raise InputError(f"the connection speaks {connection.info.encoding}", fix="set client_encoding to UTF8")
        self._url, self._node = url, node
        self._connection: Connection[Any] = connection

    def apply(self, ops: Sequence[Op]) -> tuple[Result, ...]:
        unit = check_bound(ops)
        self._check_open()
        with errors(self._url), _savepoint(self._connection):
            engine = PostgresEngine(Statements(self._connection, ours=False).join, self._node, [unit])
            try:
                results = unwrap_bound(apply(engine, [unit])[0])
                engine.flush()
                return results
            except TryAgain as error:
                raise StoreBusy(
                    f"another transaction created the same {error} at this moment",
                    fix="roll back and run the transaction again",
                ) from None

    def _check_open(self) -> None:
        status = self._connection.info.transaction_status
        if status == TransactionStatus.INERROR:
            raise InputError("the transaction has failed already", fix="roll it back and begin again")
        if self._connection.autocommit and status == TransactionStatus.IDLE:
            raise InputError("no transaction is open", fix="use `with connection.transaction():`")


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
