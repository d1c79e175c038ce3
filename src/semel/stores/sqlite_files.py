"""Notices that the files of a SQLite store were removed or replaced while this process uses them.

What is open stays open when its name is gone. SQLite would go on writing into a database, or a log, that no path leads
to any more, call that durable, and all of it would end with the process. So it is looked whether the paths still lead
to the files that were opened: the database before a transaction begins, and all of them before its commit is answered.
The index of the log is one of them: through it processes agree on who writes.
"""

from __future__ import annotations

import ctypes
import os
import sqlite3
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from semel.errors import StoreGone
from semel.stores.sidecar import Sidecar

FIX = "put the files back where they were, then restart this process; do not copy over files that are in use"

_Known = tuple[str, int, int]
"""A name, and the inode and device that it led to."""


class Files:
    """`path` may be relative, or a link. What counts is where it leads for whoever starts next: by its full name, from
    the folder in which this process began."""

    def __init__(self, path: Path) -> None:
        self.database = os.path.abspath(path)
        self._known: tuple[_Known, ...] = ()

    def note_database(self) -> None:
        """Before it is opened, so that one that is put in its place from now on is noticed."""
        if os.path.exists(self.database):
            self._known = (_know(self.database),)

    def note(self) -> None:
        """These are the files that are open. SQLite keeps the log beside the file itself, not beside a link to it."""
        real = os.path.realpath(self.database)
        self.check()
        database = self._known or (_know(self.database),)
        self._known = (*database, _know(f"{real}-wal"), _know(f"{real}-shm"))

    def check(self) -> None:
        _check(self._known)

    def check_database(self) -> None:
        """The first of them only: for a third of the price it sees nearly every case."""
        _check(self._known[:1])

    def are_others(self) -> bool:
        """Whether somebody else's file stands under one of the names."""
        for name, ino, dev in self._known:
            with suppress(OSError):
                found = os.stat(name)
                if found.st_ino != ino or found.st_dev != dev:
                    return True
        return False


def _know(name: str) -> _Known:
    try:
        found = os.stat(name)
    except OSError as error:
        raise _gone(name, error) from None
    return name, found.st_ino, found.st_dev


def _check(files: tuple[_Known, ...]) -> None:
    """Inside every commit: nothing here that could be spared."""
    try:
        for name, ino, dev in files:
            found = os.stat(name)
            if found.st_ino != ino or found.st_dev != dev:
                raise StoreGone(f"{name} was replaced while this process used it", fix=FIX)
    except OSError as error:
        raise _gone(str(error.filename), error) from None


def _gone(name: str, error: OSError) -> StoreGone:
    return StoreGone(f"{name} is gone while this process used it: {error.strerror}", fix=FIX)


def check_not_lost(path: Path, sidecar: Sidecar) -> None:
    """A store that was here and is not any more: an empty one in its place would begin a second history in silence.
    The sidecar is looked for first, since whoever makes a store makes the sidecar last."""
    if sidecar.path.exists() and not (path.exists() and path.stat().st_size):
        raise StoreGone(
            f"{path} is {'empty' if path.exists() else 'gone'}, but {sidecar.path.name} says that there was a store",
            fix=f"put {path.name} and {path.name}-wal back, from a backup if need be; "
            f"or remove {sidecar.path} to begin with an empty store: what was in the old one is lost then",
        )


def leave_open(connections: Iterable[sqlite3.Connection]) -> None:
    """Never close these. The last one to close a database moves the log into it and deletes the log by its name, and
    both may be somebody else's by now. They end with the process, which tells SQLite nothing."""
    for connection in connections:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))
