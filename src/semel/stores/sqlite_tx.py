"""Semel's part of a transaction that a user has opened on SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from semel.errors import InputError
from semel.kernel.ops import Op, Result, Unit
from semel.stores.apply import apply
from semel.stores.checks import check_result
from semel.stores.shared import check_bound, unwrap_bound
from semel.stores.sqlite_engine import Q, SqliteEngine
from semel.stores.sqlite_session import SqliteSession, session_of

if TYPE_CHECKING:
    from semel.stores.sqlite import SqliteStore

SYNCHRONOUS = ("OFF", "NORMAL", "FULL", "EXTRA")
FIX_SAME_FILE = "open the store and the connection on the same file"


class SqliteTx:
    """Semel's writes inside the user's transaction. The user commits or rolls back."""

    def __init__(self, store: SqliteStore, connection: sqlite3.Connection | SqliteSession) -> None:
        self._store = store
        self._session = session_of(connection)
        self._check_begun()
        store._check_files()
        with store._watched(), self._session.as_it_is():
            self._check_file()

    def apply(self, ops: Sequence[Op], *, wait: bool = True) -> tuple[Result, ...]:
        unit = check_bound(ops)
        session = self._session
        self._check_begun()
        self._store._check_files()
        with self._store._watched(), session.as_it_is():
            self._check_durable()
            if not session.in_transaction:
                self._store.begin_users(session)
            session.execute("SAVEPOINT semel")
            try:
                results = self._apply(unit)
            except BaseException:
                session.execute("ROLLBACK TO semel")
                raise
            finally:
                session.execute("RELEASE semel")
        return results

    def keep_result(self, scope: str, identity: str, result: bytes) -> bool:
        values = (check_result(result), scope, identity)
        self._check_begun()
        with self._store._watched(), self._session.as_it_is():
            if not self._session.in_transaction:
                return False
            return bool(self._session.execute(Q["keep_result"], values).fetchall())

    def _apply(self, unit: Unit) -> tuple[Result, ...]:
        engine = SqliteEngine(self._session, self._store._clock(), self._store.node)
        results = unwrap_bound(apply(engine, [unit])[0])
        engine.finish()
        return results

    def _check_begun(self) -> None:
        if self._session.autocommits and not self._session.in_transaction:
            raise InputError(
                "no transaction is open: what is written would be gone when the connection is closed",
                fix="execute BEGIN IMMEDIATE first, or connect without autocommit",
            )

    def _check_file(self) -> None:
        """A copy of the store has its name too, so the file has to be the same."""
        session = self._session
        if not session.execute("SELECT 1 FROM main.sqlite_schema WHERE name = 'semel_store'").fetchall():
            raise InputError("the connection leads to a database without Semel's tables", fix=FIX_SAME_FILE)
        [(store_id,)] = session.execute("SELECT store_id FROM main.semel_store").fetchall()
        files = [file for _, name, file in session.execute("PRAGMA database_list").fetchall() if name == "main"]
        if store_id != self._store.store_id or not all(_is_same(file, self._store.path) for file in files):
            raise InputError(f"the connection leads to another store: {files[0] or 'in memory'}", fix=FIX_SAME_FILE)

    def _check_durable(self) -> None:
        [(number,)] = self._session.execute("PRAGMA main.synchronous").fetchall()
        if number < SYNCHRONOUS.index("FULL"):
            raise InputError(
                f"synchronous is {SYNCHRONOUS[number]} on this connection: a commit could be lost with the power",
                fix="execute PRAGMA synchronous = FULL before the transaction begins",
            )


def _is_same(file: str, path: Path) -> bool:
    try:
        return bool(file) and path.samefile(file)
    except OSError:
        return False
