"""Cursors that note when a statement begins a transaction: a handler's second one means that it has ended the first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from psycopg import AsyncConnection, AsyncCursor, Connection, Cursor
from psycopg.pq import TransactionStatus

AnyConnection = Connection[Any] | AsyncConnection[Any]


@dataclass(slots=True)
class _Notes:
    """What happened since a handler got the connection."""

    was_begun: bool
    begun: int = 0
    used: int = 0
    in_block: bool = False
    """The first statement found a transaction that no statement had begun: one of `connection.transaction()`, which
    commits at its end."""

    def note(self, is_idle: bool) -> None:
        if is_idle:
            self.begun += 1
        elif not self.used and not self.was_begun:
            self.in_block = True
        self.used += 1

    def has_ended(self, is_idle: bool) -> bool:
        if self.was_begun:
            return is_idle or self.begun > 0
        return self.in_block or self.begun > 1 or (is_idle and self.used > 0)


_NOTES: WeakKeyDictionary[AnyConnection, _Notes] = WeakKeyDictionary()


def _is_idle(connection: AnyConnection) -> bool:
    return connection.pgconn.transaction_status == TransactionStatus.IDLE


def _note(connection: AnyConnection) -> None:
    notes = _NOTES.get(connection)
    if notes is not None:
        notes.note(_is_idle(connection))


class WatchedCursor(Cursor[Any]):
    def execute(self, *args: Any, **options: Any) -> Any:
        _note(self.connection)
        return super().execute(*args, **options)

    def executemany(self, *args: Any, **options: Any) -> None:
        _note(self.connection)
        super().executemany(*args, **options)

    def copy(self, *args: Any, **options: Any) -> Any:
        _note(self.connection)
        return super().copy(*args, **options)


class WatchedAsyncCursor(AsyncCursor[Any]):
    async def execute(self, *args: Any, **options: Any) -> Any:
        _note(self.connection)
        return await super().execute(*args, **options)

    async def executemany(self, *args: Any, **options: Any) -> None:
        _note(self.connection)
        await super().executemany(*args, **options)

    def copy(self, *args: Any, **options: Any) -> Any:
        _note(self.connection)
        return super().copy(*args, **options)


def watch_psycopg(connection: Any) -> Any:
    notes = _NOTES[connection] = _Notes(was_begun=not _is_idle(connection))
    return lambda: notes.has_ended(_is_idle(connection))
