"""Learns of every commit by LISTEN and NOTIFY, on one connection and one thread that start when somebody waits."""

from __future__ import annotations

import logging
import selectors
import socket
import threading
import time
from collections.abc import Callable
from typing import TypeVar

import psycopg

from semel.errors import SemelError
from semel.stores.postgres_connection import PostgresConnection

log = logging.getLogger(__name__)

T = TypeVar("T")
SAFETY_S = 5.0
"""When nothing has come for so long, everybody looks by themselves."""
AGAIN_S = 1.0


class ChangeListener:
    """`open` makes a connection that may be used. `is_own` says of the id of a server process whether it works for this
    very store, which wakes us by itself."""

    def __init__(self, open: Callable[[], PostgresConnection], is_own: Callable[[int], bool]) -> None:
        self._open, self._is_own = open, is_own
        self._changed = threading.Condition()
        self._count = 0
        self._wakes: list[Callable[[], None]] = []
        self._thread: threading.Thread | None = None
        self._is_listening = threading.Event()
        self._closed = threading.Event()
        self._stop_read, self._stop_write = socket.socketpair()

    def until(self, look: Callable[[], T], is_enough: Callable[[T], bool], timeout_s: float) -> T:
        """Look now and after each commit, until there is enough or the time is up."""
        deadline = time.monotonic() + timeout_s
        while True:
            count = self._count
            found = look()
            left = deadline - time.monotonic()
            if is_enough(found) or left <= 0 or self._closed.is_set():
                return found
            if self._thread is None:
                self._start()
                continue
            with self._changed:
                self._changed.wait_for(lambda seen=count: self._count != seen, min(left, SAFETY_S))  # type: ignore[misc]

    def listen(self, wake: Callable[[], None]) -> Callable[[], None]:
        with self._changed:
            self._wakes.append(wake)
        self._start()
        return lambda: self._forget(wake)

    def _forget(self, wake: Callable[[], None]) -> None:
        with self._changed:
            if wake in self._wakes:
                self._wakes.remove(wake)

    def wake(self) -> None:
        with self._changed:
            self._count += 1
            self._changed.notify_all()
            wakes = list(self._wakes)
        for wake in wakes:
            try:
                wake()
            except Exception:
                # somebody's callback must neither undo a commit nor keep it from the others
                log.exception("a listener failed")

    def _start(self) -> None:
        """Returns when it listens, so that no commit after this call is missed."""
        with self._changed:
            if self._thread is None and not self._closed.is_set():
                self._thread = threading.Thread(target=self._run, name="semel-listen", daemon=True)
                self._thread.start()
        self._is_listening.wait(SAFETY_S)

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                connection = self._open()
            except SemelError:
                self._closed.wait(AGAIN_S)
                continue
            try:
                self._wait_for_changes(connection)
            except (psycopg.Error, OSError):
                self._closed.wait(AGAIN_S)
            finally:
                connection.close()

    def _wait_for_changes(self, connection: PostgresConnection) -> None:
        """What happened before we listened may have been missed, so the first thing is a wake."""
        connection.execute("LISTEN semel")
        self._is_listening.set()
        self.wake()
        with selectors.DefaultSelector() as selector:
            selector.register(connection.fileno(), selectors.EVENT_READ)
            selector.register(self._stop_read, selectors.EVENT_READ)
            while not self._closed.is_set():
                is_time = not selector.select(SAFETY_S)
                connection.pgconn.consume_input()
                notices = list(iter(connection.pgconn.notifies, None))
                if is_time or not all(self._is_own(each.be_pid) for each in notices):
                    self.wake()

    def close(self) -> None:
        self._closed.set()
        self._is_listening.set()
        self._stop_write.close()
        with self._changed:
            self._count += 1
            self._changed.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._stop_read.close()
