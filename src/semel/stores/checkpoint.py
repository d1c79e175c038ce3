"""Moves SQLite's write-ahead log into the database file beside the commits instead of inside them.

SQLite does this in the commit that makes the log too long, and everybody in that commit waits. Here a thread copies the
bulk while commits go on. It can never finish, because the log grows meanwhile; so the writer copies the small rest
after one of its commits, and with the next one the log starts again.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue

LOG_BYTES = 16 * 1024 * 1024
COMMIT_BYTES = 24 * 1024
"""About what a commit writes to the log whatever it holds: the pages of heads, counters and the ends of trees."""

BACKSTOP_PAGES = 25_000
"""At this length SQLite does it by itself after all, should the thread not keep up."""


class Checkpointer:
    def __init__(self, connect: Callable[[], sqlite3.Connection]) -> None:
        self._connect = connect
        self._bytes = 0
        self._copying = False
        self._requests: SimpleQueue[bool] = SimpleQueue()
        """True asks for a copy, False ends the thread. A queue loses neither, whatever the thread is doing."""
        self._rest = threading.Event()
        self._thread: threading.Thread | None = None

    def committed(self, writer: sqlite3.Connection, size: int) -> None:
        """Called by the writer after each commit, with the bytes of the bodies in it."""
        self._bytes += COMMIT_BYTES + 2 * size
        if self._rest.is_set():
            self._rest.clear()
            self._copying = False
            self._bytes = 0
            copy_log(writer)
        elif self._bytes >= LOG_BYTES and not self._copying:
            self._copying = True
            self._requests.put(True)
            self._start()

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="semel-checkpoint", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        connection = self._connect()
        while self._requests.get():
            copy_log(connection)
            self._rest.set()

    def close(self) -> None:
        self._requests.put(False)
        if self._thread is not None:
            self._thread.join()


def copy_log(connection: sqlite3.Connection) -> None:
    """As much as can be copied without waiting for anybody. A failure costs nothing: the log is still there."""
    with suppress(sqlite3.Error):
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
