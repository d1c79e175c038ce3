"""Notices a handler that ends the transaction it was given, by `commit()`, `rollback()` or `with connection:`.

Its effect and its mark are then no longer one commit. What tells, for each kind of connection:

    sqlite3      there is no transaction although rows were changed
    psycopg      there is no transaction although a cursor was used, or a second one was begun by a statement; the
                 cursors of connections that Semel opens say so (`psycopg_watch`)
    SQLAlchemy   there is no transaction; it was begun before the handler
    Django       refuses it by itself inside `atomic`

A sqlite3 handler that commits and writes again is not noticed.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any

from semel.errors import TransactionEnded
from semel.runtime.transactions.base import family_of

EndedItself = Callable[[], bool]
"""Whether the transaction that was there has been ended since."""


def watched(transaction: Any) -> EndedItself:
    """Call it before the handler runs, and what it returns after that."""
    if isinstance(transaction, sqlite3.Connection):
        return _watch_sqlite(transaction)
    match family_of(transaction):
        case "psycopg":
            from semel.runtime.inbox.psycopg_watch import watch_psycopg  # where SQLite is all there is, it is not

            return watch_psycopg(transaction)
        case "sqlalchemy":
            return lambda: not transaction.in_transaction()
    return lambda: False


def _watch_sqlite(connection: sqlite3.Connection) -> EndedItself:
    was_begun, changes = connection.in_transaction, connection.total_changes
    return lambda: not connection.in_transaction and (was_begun or connection.total_changes != changes)


def check_not_ended(handler: str, ended: EndedItself) -> None:
    if ended():
        raise TransactionEnded(
            f"handler {handler} has ended its transaction itself: its effect may be there without its mark",
            fix="leave out commit(), rollback(), executescript() and `with connection:`; Semel commits when the handler"
            " has returned. Then look whether the effect is there, and discard or replay the dead letter",
        )
