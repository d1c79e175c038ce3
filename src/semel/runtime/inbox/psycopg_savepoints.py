"""Savepoints between handlers that share a transaction on PostgreSQL."""

from __future__ import annotations

from typing import Any

from psycopg.pq import ExecStatus, TransactionStatus

from semel.errors import StoreUnavailable

SET_POINT = b"SAVEPOINT semel_shared"
GO_BACK = b"ROLLBACK TO SAVEPOINT semel_shared"


class PsycopgSavepoints:
    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def begin(self) -> None:
        """psycopg begins with the first statement."""

    def set(self) -> None:
        """Straight to libpq once a transaction is open: without a cursor."""
        connection = self._connection
        if connection.info.transaction_status == TransactionStatus.INTRANS:
            result = connection.pgconn.exec_(SET_POINT)
            if result.status != ExecStatus.COMMAND_OK:
                raise StoreUnavailable(f"no savepoint: {result.error_message.decode()}", fix="each runs by itself")
        else:
            connection.execute(SET_POINT, prepare=False)

    def go_back(self) -> None:
        self._connection.execute(GO_BACK, prepare=False)
