"""Reserved handlers at inline endpoints: a claim is committed, then comes the effect, then the mark.

The row of a reservation has no body. Should its process die, the claim runs out: the next delivery finds it, and
`on_crash` says what that means. A worker that finds it first can do nothing without the body and puts it aside.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from semel.errors import StaleFence, StoreError
from semel.inbox.endpoint import EndpointOptions, FailedHead, OnCrash
from semel.inbox.identity import Identity
from semel.inbox.settle import Exit
from semel.kernel.envelope import Envelope
from semel.kernel.ledger import Event, Kind, message_event
from semel.kernel.ops import (
    Attempts,
    Claim,
    Claimed,
    Duplicate,
    Enqueue,
    Finish,
    Log,
    Op,
    Renew,
    Result,
    WorkRow,
    WorkState,
)
from semel.runtime.inbox.definition import Application
from semel.runtime.inbox.letters import DIED, ENDED, Keeping, is_ambiguous, reservation_of

log = logging.getLogger(__name__)

RENEWALS = 3
"""How often within its time a claim is renewed."""

Commit = Callable[[Sequence[Op]], Awaitable[tuple[Result, ...]]]


@dataclass(frozen=True, slots=True)
class Reservations:
    """The reservation of one message."""

    app: Application
    options: EndpointOptions
    envelope: Envelope
    who: Identity
    commit: Commit

    async def claim(self) -> WorkRow | Exit:
        """One that is parked could be claimed by its identity: who has ended is not asked again."""
        known = await asyncio.to_thread(self.app.store.work, self.who.queue, self.who.identity)
        if known is not None and known.state in ENDED:
            await self.commit((Log(self._event(Kind.DUPLICATE)),))
            return Exit.DUPLICATE_HANDLED
        claim = Claim(self.who.queue, self.app.name, lease_s=self.options.lease_s, identity=self.who.identity)
        first, claimed = await self.commit((self._enqueue(), claim))
        assert isinstance(claimed, Claimed), "a claim answers with rows"
        if claimed.rows:
            return claimed.rows[0]
        is_over = isinstance(first, Duplicate) and first.state in ENDED
        return Exit.DUPLICATE_HANDLED if is_over else Exit.DUPLICATE_OPEN

    def _enqueue(self) -> Enqueue:
        who = self.who
        return Enqueue(
            who.queue,
            who.identity,
            reservation_of(self.envelope),
            scope=who.scope if who.scope != who.queue else None,
            on_fresh=self._event(Kind.ACCEPTED),
            on_duplicate=self._event(Kind.DUPLICATE),
        )

    def _event(self, kind: Kind, row: WorkRow | None = None) -> Event:
        attempt = row.attempts if row is not None else 1
        return message_event(kind, self.options.hop, "", self.envelope, attempt=attempt)

    def ambiguous(self, row: WorkRow) -> Exit | Keeping | None:
        """What a claim that had run out means: whoever had it died, and its effect may have happened."""
        if not is_ambiguous(row) or self.options.on_crash is OnCrash.RETRY:
            return None
        if self.options.on_crash is OnCrash.DROP:
            return Exit.DISCARD
        holds = self.options.failed_head is FailedHead.BLOCKS
        return Keeping(Exit.PARK, WorkState.PARKED, Kind.SUSPENDED, DIED, holds=holds)

    @asynccontextmanager
    async def renewing(self, row: WorkRow) -> AsyncIterator[None]:
        """However long the handler takes, nobody takes it for dead while this process lives."""
        task = asyncio.create_task(self._renew(row))
        try:
            yield
        finally:
            task.cancel()

    async def _renew(self, row: WorkRow) -> None:
        while True:
            await asyncio.sleep(self.options.lease_s / RENEWALS)
            try:
                await self.commit((Renew(row.queue, row.identity, row.fence, self.options.lease_s),))
            except StaleFence:
                return
            except StoreError:
                continue

    def done(self, row: WorkRow, kind: Kind) -> tuple[Op, ...]:
        finish = Finish(row.queue, row.identity, WorkState.DONE, fence=row.fence, keep_s=self.options.keep_s)
        return finish, Log(self._event(kind, row))

    async def mark(self, row: WorkRow, ops: tuple[Op, ...]) -> None:
        """The effect has happened: a mark that cannot be written now fails nothing and is written later."""
        ops = (*self.done(row, Kind.HANDLED), *ops)
        try:
            await self.commit(ops)
        except StaleFence:
            log.warning("%s was handled for longer than its lease", row.identity)
        except StoreError:
            log.warning("the mark of %s will be written later", row.identity)
            self.app.mark_later(ops)

    async def release(self, row: WorkRow, cause: str) -> None:
        """Only a delivery can take it up again: a worker would find no body. When this fails, the claim runs out."""
        finish = Finish(
            row.queue, row.identity, WorkState.DEFERRED, fence=row.fence, cause=cause, attempts=Attempts.RELEASE
        )
        with suppress(StoreError):
            await self.commit((finish,))
