"""Looks after the store of a server: notices trouble that nobody has met yet, and that it is over.

While all is well nothing is written: the store is asked now and then. In an outage something is committed once a
second, like whatever else waits to be committed, and the first commit that succeeds ends it, whosever it is. Where
reading was in trouble the performer tries that after a commit, and it has to succeed too.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

from semel.errors import SemelError, StoreUnavailable
from semel.kernel.effects import Committed
from semel.kernel.group import Completion
from semel.kernel.ops import Put
from semel.kernel.store import LedgerHorizon
from semel.runtime.host.outages import Use
from semel.runtime.host.performer import Performer
from semel.runtime.host.threads import run_in_thread

LOOK_S = 1.0
"""How often it is looked whether a commit takes too long, and in an outage whether it is over."""
CHECK_S = 5.0
"""How often the store is asked while all is well."""
HORIZON_S = 10.0
"""How often it is looked how far the ledger is held back."""
KEEP_S = 1.0
"""However often somebody wants to know, the store is asked once in this time."""
SLOW_S = 2.0
"""A store that takes longer to answer than this is in trouble."""
TRIAL_BYTES = 64 * 1024
"""A full disk may still have room for a word or two."""


class StoreWatch:
    def __init__(self, performer: Performer) -> None:
        self._performer, self._store, self.outages = performer, performer.store, performer.outages
        self._key = f"trial/{performer.store.node}"
        self._checking: asyncio.Future[None] | None = None
        self._checked_at = float("-inf")
        self.horizon = LedgerHorizon()
        self._is_trying = False
        self._tried_at = float("-inf")

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            self.look()

    async def run_horizon(self) -> None:
        """Until cancelled. Beside the looks: how long it takes says nothing about the health of the store."""
        while True:
            await self.look_at_horizon()
            await asyncio.sleep(HORIZON_S)

    async def look_at_horizon(self) -> None:
        with suppress(SemelError):
            self.horizon = await asyncio.to_thread(self._store.horizon)

    def look(self) -> None:
        if self.outages.current is not None:
            self._try()
        else:
            self._check(KEEP_S if self._performer.under_way_s() > SLOW_S else CHECK_S)

    async def is_well(self) -> bool:
        """Whether it takes commits, as of now or a moment ago. An answer takes no longer than a slow store may."""
        if self.outages.current is None:
            self._check(KEEP_S)
            assert self._checking is not None
            await asyncio.wait([self._checking], timeout=SLOW_S)
            if not self._checking.done():
                self._complain(Use.BOTH)
        else:
            self._try()
        return self.outages.current is None

    async def look_again(self, within_s: float) -> None:
        """Whether an outage is over by now, at the last moment."""
        if self.outages.current is not None and not self.outages.current.needs_restart:
            tried = asyncio.Event()

            def committed(completion: Completion) -> None:
                if isinstance(completion, Committed) and self.outages.is_unreadable:
                    self._performer.try_reading(tried.set)
                else:
                    tried.set()

            self._performer.submit((Put(self._key, None),), None, committed)
            with suppress(TimeoutError):
                await asyncio.wait_for(tried.wait(), within_s)

    def _check(self, keep_s: float) -> None:
        """One at a time, on a thread of its own: a store that hangs takes the thread with it."""
        now = time.monotonic()
        if self._checking is not None and (not self._checking.done() or now - self._checked_at <= keep_s):
            if not self._checking.done() and now - self._checked_at > SLOW_S:
                self._complain(Use.BOTH)
            return
        self._checked_at = now
        self._checking = run_in_thread(self._performer.loop, self._store.check)
        self._checking.add_done_callback(self._checked)

    def _checked(self, asked: asyncio.Future[None]) -> None:
        error = None if asked.cancelled() else asked.exception()
        if isinstance(error, SemelError):
            self.outages.record(error, use=Use.BOTH)
        elif error is not None:
            trouble = StoreUnavailable(f"{type(error).__name__}: {error}", fix="report this")
            self.outages.record(trouble, use=Use.BOTH)
        elif self._performer.under_way_s() > SLOW_S:
            self._complain(Use.COMMITTING)

    def _complain(self, use: Use) -> None:
        trouble = StoreUnavailable(
            f"it has not answered for {SLOW_S:g} s", fix="look at the database, its disk and who else uses it"
        )
        self.outages.record(trouble, use=use)

    def _try(self) -> None:
        """What becomes of it the performer tells, as of every commit."""
        current, now = self.outages.current, time.monotonic()
        if current is None or current.needs_restart or not self._performer.is_open:
            return
        if not self._is_trying and now - self._tried_at >= KEEP_S:
            self._is_trying, self._tried_at = True, now
            self._performer.submit((Put(self._key, bytes(TRIAL_BYTES)),), None, self._tried)

    def _tried(self, completion: Completion) -> None:
        self._is_trying = False
        if isinstance(completion, Committed) and self._performer.is_open:
            self._performer.submit((Put(self._key, None),), None, lambda _: None)
