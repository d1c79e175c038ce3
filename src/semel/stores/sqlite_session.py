"""A connection of the user's to a SQLite file, as Semel uses it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

from semel.errors import InputError


class SqliteSession(Protocol):
    """A connection of the user's as Semel uses it: rows are tuples and texts are str, whatever the user has set."""

    @property
    def in_transaction(self) -> bool: ...

    @property
    def autocommits(self) -> bool:
        """Whether a transaction is there only when the user begins one."""
        ...

    @property
    def busy_s(self) -> float | None:
        """How long `BEGIN` may be tried, or None for as long as the connection itself waits."""
        ...

    def execute(self, sql: str, params: Any = ()) -> Any: ...

    def executemany(self, sql: str, rows: Any) -> Any: ...

    def as_it_is(self) -> AbstractContextManager[None]:
        """For as long as the user's factories are not to count."""
        ...


class Sqlite3Session:
    """A connection of the `sqlite3` module. Cursors are made without its row factory."""

    busy_s = None

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    @property
    def in_transaction(self) -> bool:
        return self._connection.in_transaction

    @property
    def autocommits(self) -> bool:
        """Before Python 3.12 there is no attribute for it."""
        mode = getattr(self._connection, "autocommit", -1)
        return mode is True or (mode == -1 and self._connection.isolation_level is None)

    def execute(self, sql: str, params: Any = ()) -> sqlite3.Cursor:
        return sqlite3.Cursor(self._connection).execute(sql, params)

    def executemany(self, sql: str, rows: Any) -> sqlite3.Cursor:
        return sqlite3.Cursor(self._connection).executemany(sql, rows)

    @contextmanager
    def as_it_is(self) -> Iterator[None]:
        theirs, self._connection.text_factory = self._connection.text_factory, str
        try:
            yield
        finally:
            self._connection.text_factory = theirs


def session_of(connection: Any) -> SqliteSession:
    if isinstance(connection, sqlite3.Connection):
        return Sqlite3Session(connection)
    if not hasattr(connection, "as_it_is"):
        raise InputError(
            f"a {type(connection).__name__} is not a sqlite3 connection",
            fix="pass a sqlite3.Connection, or use semel.runtime.transactions.bind for what frameworks have",
        )
    session: SqliteSession = connection
    return session
