"""SQLite's errors in our words."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from semel.errors import NotAStore, SemelError, StoreBusy, StoreFull, StoreReadOnly, StoreRefused, StoreUnavailable


def code_of(error: sqlite3.Error) -> int:
    """The primary result code, without the detail in the higher bits."""
    return int(getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)) & 0xFF


@contextmanager
def errors(path: Path) -> Iterator[None]:
    """SQLite's errors in our words. What is the data's fault is StoreRefused; the rest is about the file."""
    try:
        yield
    except (sqlite3.IntegrityError, sqlite3.InterfaceError, sqlite3.DataError, OverflowError) as error:
        raise StoreRefused(
            f"SQLite refused the data: {error}", fix="correct the message that was being stored"
        ) from error
    except sqlite3.Error as error:
        raise _file_error(path, error) from error


def _file_error(path: Path, error: sqlite3.Error) -> SemelError:
    code = code_of(error)
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return locked(path)
    if code == sqlite3.SQLITE_FULL:
        return StoreFull(f"no space left for {path}", fix="free disk space; nothing written so far is lost")
    if code == sqlite3.SQLITE_READONLY:
        return StoreReadOnly(f"{path} may not be written", fix="correct the permissions of the file and its folder")
    if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
        return NotAStore(f"{path} is not a SQLite database: {error}", fix="name another file; this one was not changed")
    if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH):
        return StoreUnavailable(
            f"{path} cannot be opened: {error}", fix="check that the folder exists and may be written"
        )
    if code == sqlite3.SQLITE_TOOBIG:
        return StoreRefused(f"SQLite refused the data: {error}", fix="store large bodies in chunks with put_body()")
    return StoreUnavailable(f"SQLite failed on {path}: {error}", fix="check the disk and the file, then try again")


def locked(path: Path) -> StoreBusy:
    return StoreBusy(f"{path} is locked by another process", fix="close the program that holds it, or try again")
