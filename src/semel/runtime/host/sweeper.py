"""Retention in the background: removes what nobody needs any more, as fast as it accumulates and no faster.

One sweep is a few short transactions. While there is more to remove, the sweeper goes on after a pause that is as long
as the sweep took, so producers have the store for at least half of the time; a backlog that stays makes the pauses
shorter, down to a tenth.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from semel.errors import StoreError
from semel.kernel.store import Store, Swept


@dataclass(slots=True)
class Total:
    """How much has been removed since the sweeper started; what `/metrics` and `status` show."""

    rows: int = 0
    sweeps: int = 0
    behind: bool = False


class Sweeper:
    """`failed` gets why a sweep failed. It will be tried again."""

    def __init__(
        self, store: Store, *, every_s: float = 5.0, limit: int = 500, failed: Callable[[StoreError, str], None]
    ) -> None:
        self._store = store
        self._failed = failed
        self._every_s = every_s
        self._limit = limit
        self._eager = 1.0
        self.total = Total()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            pause_s = await self.sweep_once()
            await asyncio.sleep(pause_s)

    async def sweep_once(self) -> float:
        """Sweep, and answer how long to wait before the next one."""
        begin = time.monotonic()
        try:
            swept = await asyncio.to_thread(self._store.sweep, time.time_ns() // 1000, self._limit)
        except StoreError as error:
            self._failed(error, "a sweep failed and will be tried again")
            return self._every_s
        return self._pause(swept, time.monotonic() - begin)

    def _pause(self, swept: Swept, took_s: float) -> float:
        self.total.rows += swept.total
        self.total.sweeps += 1
        self.total.behind = swept.more
        if not swept.more:
            self._eager = 1.0
            return self._every_s
        pause = took_s * self._eager
        self._eager = max(0.1, self._eager * 0.9)
        return pause
