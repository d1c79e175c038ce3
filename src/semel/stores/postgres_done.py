"""A handler's mark and its COMMIT in one message to the server, on connections that Semel has opened.

The statement is the one of `postgres_bound` for a row that is simply done and one event, prepared once for each
connection. It fails by itself when anything stands against it, so the COMMIT behind it is never reached. PostgreSQL's
simple protocol takes both in one message, and there the values are literals.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

from psycopg import Connection, OperationalError
from psycopg.errors import error_from_result
from psycopg.pq import ConnStatus, Escaping, PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row

from semel.kernel.ops import Op
from semel.stores.postgres_bound import DONE_OR_FAIL, done_values
from semel.stores.postgres_tx import PostgresTx

NAME = b"semel_done"
NOT_DONE = "22012"
"""The statement divides by the number of rows that it has finished."""


class DoneCommit:
    """Ends the transaction of a handler, where that can be done at once."""

    def __init__(self, url: str, node: str, store_id: str) -> None:
        self._url, self._node, self._store_id = url, node, store_id
        self._is_ready: WeakKeyDictionary[Connection[Any], bool] = WeakKeyDictionary()

    def commit(self, connection: Connection[Any], ops: Sequence[Op]) -> bool:
        """False: nothing was done, and the caller applies and commits. An error means that it was rolled back, or that
        the connection is lost, as after any COMMIT."""
        pgconn = connection.pgconn
        if pgconn.transaction_status != TransactionStatus.INTRANS or pgconn.pipeline_status != PipelineStatus.OFF:
            return False
        values = done_values(ops, self._store_id, self._node)
        if values is None or not self._prepare(connection):
            return False
        result = pgconn.exec_(b"EXECUTE %b(%b); COMMIT" % (NAME, b",".join(_literals(pgconn, values))))
        if result.command_status == b"COMMIT":
            return True
        if pgconn.status == ConnStatus.BAD:
            raise OperationalError(f"the connection was lost: {pgconn.get_error_message()}")
        error = error_from_result(result, "utf-8")
        if error.sqlstate == NOT_DONE:
            self._explain(connection, ops)
        raise error

    def _prepare(self, connection: Connection[Any]) -> bool:
        """Not behind a pooler, which knows nothing of names in SQL: there the server is another process than the one
        that the connection knows."""
        is_ready = self._is_ready.get(connection)
        if is_ready is None:
            cursor = connection.cursor(row_factory=tuple_row)
            [(pid,)] = cursor.execute("SELECT pg_backend_pid()", prepare=False).fetchall()
            is_ready = pid == connection.info.backend_pid and connection.info.encoding == "utf-8"
            if is_ready:
                cursor.execute(b"PREPARE %b AS %b" % (NAME, DONE_OR_FAIL), prepare=False)
            self._is_ready[connection] = is_ready
        return is_ready

    def _explain(self, connection: Connection[Any], ops: Sequence[Op]) -> None:
        """The same the long way says what it was. Nothing of that is kept."""
        connection.rollback()
        try:
            PostgresTx(self._url, self._node, self._store_id, connection).apply(ops)
        finally:
            connection.rollback()


def _literals(pgconn: Any, values: Sequence[str | None]) -> list[bytes]:
    return [_literal(pgconn, value) for value in values]


def _literal(pgconn: Any, value: str | None) -> bytes:
    if value is None:
        return b"NULL"
    if "'" in value or "\\" in value:
        return bytes(Escaping(pgconn).escape_literal(value.encode()))
    return b"'%b'" % value.encode()
