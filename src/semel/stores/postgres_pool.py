"""A few connections for readers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from semel.errors import SemelError, StoreUnavailable
from semel.stores.postgres_connection import Call, PostgresConnection, Row, Statements, errors, is_broken
from semel.stores.postgres_witness import Witness

READERS_MAX = 8


class Pool:
    """One that breaks takes the idle ones with it: they broke for the same reason.

    `open` makes one that may be used. What is read is answered for by `witness`."""

    def __init__(self, url: str, open: Callable[[], PostgresConnection], witness: Witness) -> None:
        self._url, self._open, self._witness = url, open, witness
        self._lock = threading.Lock()
        self._idle: list[PostgresConnection] = []
        self._closed = False

    @contextmanager
    def connection(self) -> Iterator[PostgresConnection]:
        connection = self._take_living() or self._open()
        try:
            with errors(self._url):
                yield connection
        finally:
            self._give_back(connection)

    def ask(self, name: str, *params: Any) -> list[Row]:
        """Run one query that only reads."""
        if not self._witness.is_member:
            return self.ask_in_term([(name, params)])[1][0]
        term, (rows, [(lsn,)]) = self.ask_in_term([(name, params), ("flushed", ())])
        self._witness.saw(term, lsn)
        return rows

    def ask_in_term(self, calls: Sequence[Call]) -> tuple[int, list[list[Row]]]:
        """Run queries that only read; the caller tells the witness. On an idle connection that had died they are simply
        run again."""
        connection = self._take()
        if connection is not None:
            try:
                with errors(self._url):
                    return _ask(connection, calls)
            except SemelError:
                if not is_broken(connection):
                    raise
            finally:
                self._give_back(connection)
        with self.connection() as fresh:
            return _ask(fresh, calls)

    def _take_living(self) -> PostgresConnection | None:
        """An idle connection may have died unnoticed, so it is asked for a sign of life."""
        connection = self._take()
        if connection is not None:
            with suppress(psycopg.Error):
                connection.execute("SELECT", prepare=False)
                return connection
            self._give_back(connection)
        return None

    def _take(self) -> PostgresConnection | None:
        with self._lock:
            if self._closed:
                raise StoreUnavailable("the store is closed", fix="open it again")
            gone = [each for each in self._idle if each.term != self._witness.term]
            self._idle = [each for each in self._idle if each not in gone]
            taken = self._idle.pop() if self._idle else None
        for each in gone:
            each.close()
        return taken

    def _give_back(self, connection: PostgresConnection) -> None:
        with self._lock:
            gone = [connection]
            if is_broken(connection):
                gone += self._idle
                self._idle.clear()
            elif self._is_reusable(connection):
                self._idle.append(connection)
                return
        for each in gone:
            each.close()

    def _is_reusable(self, connection: PostgresConnection) -> bool:
        """A standby may be promoted under an open connection, which nobody would notice."""
        is_idle = connection.info.transaction_status == TransactionStatus.IDLE and not connection.is_standby
        return is_idle and not self._closed and len(self._idle) < READERS_MAX

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()


def _ask(session: PostgresConnection, calls: Sequence[Call]) -> tuple[int, list[list[Row]]]:
    return session.term, [cursor.fetchall() for cursor in Statements(session).run_all(calls)]
