"""Wakes whoever waits for a commit: at once for this process's own, by a cheap look for those of others.

SQLite cannot call another process. It can tell for the price of one pragma whether anybody else has committed, so one
thread looks every few milliseconds, and only while somebody waits. When nobody has committed for a second it looks a
quarter as often, until somebody does: an idle server is not to keep a processor busy.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from semel.errors import SemelError

T = TypeVar("T")

QUIET_S = 1.0
QUIET_FACTOR = 4

log = logging.getLogger(__name__)


class Waking:
    def __init__(self, version: Callable[[], int], every_s: float) -> None:
        self._version = version
        self._every_s = every_s
        self._changed = threading.Condition()
        self._count = 0
        self._waiting = 0
        self._listeners: list[Callable[[], None]] = []
        self._watcher: threading.Thread | None = None
        self._closed = threading.Event()

    def wake(self) -> None:
        """Something was committed."""
        with self._changed:
            self._count += 1
            self._changed.notify_all()
            listeners = list(self._listeners)
        for listener in listeners:
            try:
                listener()
            except Exception:
                # somebody's callback must neither undo a commit nor keep it from the others
                log.exception("a listener failed")

    def until(self, look: Callable[[], T], is_enough: Callable[[T], bool], timeout_s: float) -> T:
        """Look now and after each commit, until there is enough or the time is up."""
        deadline = time.monotonic() + timeout_s
        while True:
            count = self._count
            found = look()
            left = deadline - time.monotonic()
            if is_enough(found) or left <= 0 or self._closed.is_set():
                return found
            with self._changed:
                self._waiting += 1
                self._watch()
                self._changed.wait_for(lambda seen=count: self._count != seen, left)  # type: ignore[misc]
                self._waiting -= 1

    def listen(self, wake: Callable[[], None]) -> Callable[[], None]:
        with self._changed:
            self._listeners.append(wake)
            self._watch()
        return lambda: self._listeners.remove(wake)

    def _watch(self) -> None:
        if self._watcher is None:
            self._watcher = threading.Thread(target=self._look, name="semel-waking", daemon=True)
            self._watcher.start()

    def _look(self) -> None:
        seen, quiet_s, every_s = -1, 0.0, self._every_s
        while not self._closed.wait(every_s):
            if not self._waiting and not self._listeners:
                continue
            try:
                version = self._version()
            except SemelError:
                continue
            if version != seen:
                seen, quiet_s = version, 0.0
                self.wake()
            quiet_s += every_s
            every_s = self._every_s * (QUIET_FACTOR if quiet_s > QUIET_S else 1)

    def close(self) -> None:
        self._closed.set()
        with self._changed:
            self._count += 1
            self._changed.notify_all()
        if self._watcher is not None and self._watcher is not threading.current_thread():
            self._watcher.join()
