"""Rows of inline and buffered endpoints: reservations without a body, and messages that are kept with theirs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import msgspec

from semel.errors import StaleFence, StoreError
from semel.inbox.reservation import is_reservation, reservation_of
from semel.inbox.settle import Exit
from semel.kernel.envelope import Envelope
from semel.kernel.lease import RENEW_AT, Guard
from semel.kernel.ledger import Kind, message_event
from semel.kernel.ops import (
    Claim,
    Claimed,
    Duplicate,
    Enqueue,
    Finish,
    Fresh,
    Log,
    Op,
    Renew,
    Result,
    WorkRow,
    WorkState,
)
from semel.runtime.inbox.definition import Application, now_us
from semel.runtime.inbox.endpoint import InboxEndpoint

CommitOps = Callable[[Sequence[Op]], Awaitable[tuple[Result, ...]]]

SETTLE_S = 30.0
"""Between being stored and being put aside a row is due after so long: should the process die in between, it is handled
then, and fails again if it must."""


@dataclass(frozen=True, slots=True)
class Reserving:
    """The claim that a reserved handler runs under."""

    app: Application
    endpoint: InboxEndpoint
    envelope: Envelope
    commit: CommitOps

    async def claim(self) -> WorkRow | Exit:
        """The row, or what became of an earlier delivery. One that is stored with its body is no more the transport's:
        it is a duplicate, whatever becomes of the row."""
        options = self.endpoint.options
        who = self.app.identity_of(self.endpoint.name, self.envelope)
        known = await asyncio.to_thread(self.app.store.work, who.queue, who.identity)
        if known is not None and known.state is not WorkState.DONE and not is_reservation(known.envelope):
            return Exit.DUPLICATE_HANDLED
        enqueue = Enqueue(
            who.queue,
            who.identity,
            reservation_of(self.envelope),
            scope=who.scope if who.scope != who.queue else None,
            on_fresh=message_event(Kind.ACCEPTED, options.hop, "", self.envelope),
            on_duplicate=message_event(Kind.DUPLICATE, options.hop, "", self.envelope),
        )
        claim = Claim(who.queue, self.app.name, lease_s=options.lease_s, identity=who.identity)
        first, claimed = await self.commit((enqueue, claim))
        assert isinstance(claimed, Claimed), "a claim answers with rows"
        if not claimed.rows:
            is_handled = isinstance(first, Duplicate) and first.state is WorkState.DONE
            return Exit.DUPLICATE_HANDLED if is_handled else Exit.DUPLICATE_OPEN
        row = claimed.rows[0]
        # stored with its body since we looked: the claim runs out, and a worker has it then
        return row if is_reservation(row.envelope) else Exit.DUPLICATE_OPEN

    @asynccontextmanager
    async def renewed(self, row: WorkRow) -> AsyncIterator[None]:
        """Others are kept away for as long as the block takes."""
        task = asyncio.create_task(self._renew(row))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _renew(self, row: WorkRow) -> None:
        lease_s = self.endpoint.options.lease_s
        while True:
            await asyncio.sleep(lease_s * RENEW_AT)
            try:
                await self.commit((Renew(row.queue, row.identity, row.fence, lease_s),))
            except StaleFence:
                return
            except StoreError:
                continue

    async def release(self, row: WorkRow, cause: str) -> None:
        """It failed, and is delivered again: only by its identity, since a worker has no body for it."""
        event = message_event(Kind.FAILED, self.endpoint.options.hop, "", self.envelope, cause=cause)
        finish = Finish(row.queue, row.identity, WorkState.DEFERRED, fence=row.fence, cause=cause)
        await self.commit((finish, Log(event)))


@dataclass(frozen=True, slots=True)
class KeptMessage:
    """A message that is stored with its body, because nobody would deliver it again in time."""

    app: Application
    endpoint: InboxEndpoint
    envelope: Envelope
    commit: CommitOps

    async def store(self, to: WorkState, cause: str, row: WorkRow | None, wait_s: float) -> None:
        """`row` is the reservation that it has: the body goes into that. One that is stored already stays as it is."""
        wait_s = wait_s if to is WorkState.SCHEDULED else SETTLE_S
        enqueue = self._enqueue(row, now_us() + round(wait_s * 1_000_000))
        hop = self.endpoint.options.hop
        if to is WorkState.SCHEDULED:
            [answer] = await self.commit((enqueue,))
            if row is not None or isinstance(answer, Fresh):
                await self.commit((Log(message_event(Kind.FAILED, hop, "", self.envelope, cause=cause)),))
            return
        [answer] = await self.commit((enqueue,))
        if row is None and not isinstance(answer, Fresh):
            return
        kind = Kind.DEAD_LETTERED if to is WorkState.DEAD else Kind.SUSPENDED
        finish = Finish(enqueue.queue, enqueue.identity, to, keep_s=None, cause=cause)
        await self.commit((finish, Log(message_event(kind, hop, "", self.envelope, cause=cause))))

    def _enqueue(self, row: WorkRow | None, due: int) -> Enqueue:
        enqueue = self.app.enqueue(self.endpoint.name, self.envelope, due=due)
        if row is None:
            return enqueue
        # only while the reservation is ours; it is not new, and no duplicate either
        guard = Guard(row.queue, row.identity, row.fence)
        return msgspec.structs.replace(enqueue, replace=True, guard=guard, on_fresh=None, on_duplicate=None)
