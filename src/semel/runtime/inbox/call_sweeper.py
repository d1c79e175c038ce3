"""Sweeps for applications that nobody runs: whoever only calls `app.first` has no sweeper in the background.

A sweep follows the first call of a process, then every so many calls, and every so many seconds while there are calls:
a process that lives for one call sweeps too, and one that gets thousands a second sweeps as often as it has to. Each
row passes twice, first to leave only its identity and later to be forgotten.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from semel.errors import StoreError
from semel.kernel.store import Store

log = logging.getLogger(__name__)

EVERY_S = 60.0
EVERY_CALLS = 1000
ROWS = 500
BUDGET_S = 2.0


class CallSweeper:
    """On a thread: the caller's transaction may hold the lock that a sweep waits for."""

    def __init__(self, store: Callable[[], Store], *, every_s: float = EVERY_S, every_calls: int = EVERY_CALLS) -> None:
        self._store = store
        self._every_s, self._every_calls = every_s, every_calls
        self._swept_at: float | None = None
        self._calls = 0
        self._sweeping = threading.Lock()

    def called(self) -> None:
        self._calls += 1
        now = time.monotonic()
        if self._swept_at is not None and now - self._swept_at < self._every_s and self._calls < self._every_calls:
            return
        if self._sweeping.acquire(blocking=False):
            self._swept_at, self._calls = now, 0
            threading.Thread(target=self._sweep, name="semel-inbox-sweep", daemon=True).start()

    def _sweep(self) -> None:
        """In short transactions, for a while: what is left then is for the next sweep."""
        end = time.monotonic() + BUDGET_S
        try:
            while self._store().sweep(time.time_ns() // 1000, ROWS).more and time.monotonic() < end:
                pass
        except StoreError as error:
            log.info("a sweep failed and will be tried again: %s", error)
        finally:
            self._sweeping.release()
