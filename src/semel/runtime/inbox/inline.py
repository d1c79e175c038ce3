"""Inline endpoints: the handler runs first, then the transport hears what to do with its delivery.

    style        a duplicate                                       a crash in the middle
    eager        never reaches the handler                         rolls back: the broker delivers again
    optimistic   runs, and is rolled back                          rolls back
    reserved     never reaches the handler                         leaves a claim: `on_crash` says what it means
    none         runs again                                        may have had its effect

Whoever is told to give a delivery back must not acknowledge it: somebody else is handling the message at this moment,
or the store could not be asked.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

from semel.errors import CommitInDoubt, DuplicateMessage, MessageRefused, StaleFence, StoreBusy, StoreError
from semel.inbox.endpoint import EndpointMode, OnCrash, Style
from semel.inbox.identity import Identity
from semel.inbox.settle import DeliveryEnd, Exit, exit_of, settle
from semel.kernel.envelope import Envelope
from semel.kernel.ledger import Kind, message_event
from semel.kernel.ops import (
    Applied,
    Claim,
    Claimed,
    Duplicate,
    Enqueue,
    Finish,
    Log,
    Op,
    Remember,
    Result,
    WorkRow,
    WorkState,
)
from semel.kernel.retry import Again, Decision, Failure, type_names
from semel.runtime.host.hosting import cause_of
from semel.runtime.host.lease_holder import commit_unit
from semel.runtime.inbox.definition import Application
from semel.runtime.inbox.endpoint import InboxEndpoint, ReadyHandler
from semel.runtime.inbox.handling import HandlerRun

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class InlineDelivery:
    """One delivery at an inline endpoint. Blocking handlers run on `threads`; None is the loop's own."""

    app: Application
    endpoint: InboxEndpoint
    envelope: Envelope
    threads: Executor | None = None

    async def handle(self) -> DeliveryEnd:
        """Run the handler and say what becomes of the delivery."""
        handler = self.app.handlers[self.endpoint.name].get(self.envelope.type)
        if handler is None:
            error = MessageRefused(
                f"no handler at {self.endpoint.name!r} knows messages of type {self.envelope.type!r}",
                fix="add a handler for it, then replay the dead letter",
            )
            return await self._end_dead(Style.NONE, error)
        return await self._attempts(handler)

    async def _attempts(self, handler: ReadyHandler) -> DeliveryEnd:
        """Retries happen here: the broker waits meanwhile."""
        rules, attempt = self.app.rules_for(self.endpoint, handler), 1
        loop = asyncio.get_running_loop()
        while True:
            try:
                return self._settled(handler.style, await self._once(handler))
            except StoreBusy:
                return self._settled(handler.style, Exit.DUPLICATE_OPEN)
            except CommitInDoubt:
                return self._settled(handler.style, Exit.IN_DOUBT)
            except StoreError:
                log.warning("the store did not take %s", self.envelope.id, exc_info=True)
                return self._settled(handler.style, Exit.STORE_DOWN)
            except Exception as error:
                log.warning("the handler of %s failed", self.endpoint.name, exc_info=True)
                failure = Failure(cause_of(error), type_names(type(error)))
                decision = rules.decide(failure, attempt, loop.time(), 0.0)
                if not isinstance(decision, Again) or decision.passes:
                    return await self._give_up(handler.style, decision, error)
                await asyncio.sleep(decision.at - loop.time())
                attempt += 1

    async def _give_up(self, style: Style, decision: Decision, error: Exception) -> DeliveryEnd:
        if exit_of(decision) in (Exit.DEAD_LETTER, Exit.PARK):
            return await self._end_dead(style, error)
        return self._settled(style, exit_of(decision))

    def _settled(self, style: Style, exit: Exit) -> DeliveryEnd:
        return settle(EndpointMode.INLINE, style, exit).delivery

    # -- one attempt

    async def _once(self, handler: ReadyHandler) -> Exit:
        who = self.app.identity_of(self.endpoint.name, self.envelope)
        try:
            match handler.style:
                case Style.EAGER:
                    await self._run(handler, who, before=(self._remember(who),))
                case Style.OPTIMISTIC:
                    await self._run(handler, who, mark=(self._remember(who),))
                case Style.RESERVED:
                    return await self._reserved(handler, who)
                case Style.NONE:
                    await self._commit(await self._run(handler, who))
        except DuplicateMessage:
            return Exit.DUPLICATE_HANDLED
        return Exit.OK

    async def _run(
        self, handler: ReadyHandler, who: Identity, *, mark: tuple[Op, ...] = (), before: tuple[Op, ...] = ()
    ) -> tuple[Op, ...]:
        """What is left to be committed: nothing, where the handler had a transaction."""
        run = HandlerRun(self.app.context, handler, self.envelope, who, mark, before)
        if handler.signature.is_async:
            answer = await run.on_loop()
        else:
            answer = await asyncio.get_running_loop().run_in_executor(self.threads, run.in_thread)
        return answer if isinstance(answer, tuple) else ()

    def _remember(self, who: Identity) -> Remember:
        hop, options = self.endpoint.options.hop, self.endpoint.options
        return Remember(
            who.queue,
            who.identity,
            scope=who.scope if who.scope != who.queue else None,
            keep_s=options.keep_s,
            on_fresh=(
                message_event(Kind.ACCEPTED, hop, "", self.envelope),
                message_event(Kind.HANDLED, hop, "", self.envelope),
            ),
            on_duplicate=message_event(Kind.DUPLICATE, hop, "", self.envelope),
        )

    # -- reserved: a committed claim, the effect, the mark

    async def _reserved(self, handler: ReadyHandler, who: Identity) -> Exit:
        row, first = await self._claim(who)
        if row is None:
            return Exit.DUPLICATE_HANDLED if _is_handled(first) else Exit.DUPLICATE_OPEN
        if row.taken_over and self.endpoint.options.on_crash is not OnCrash.RETRY:
            return await self._ambiguous(row)
        try:
            ops = await self._run(handler, who)
        except BaseException:
            await self._commit((Finish(row.queue, row.identity, WorkState.READY, fence=row.fence),))
            raise
        await self._mark(row, ops)
        return Exit.OK

    async def _claim(self, who: Identity) -> tuple[WorkRow | None, Result]:
        """The row has no body: the broker has it, and delivers it again if we die."""
        options = self.endpoint.options
        bare = Envelope(self.envelope.id, source=self.envelope.source, type=self.envelope.type)
        enqueue = Enqueue(
            who.queue,
            who.identity,
            bare,
            scope=who.scope if who.scope != who.queue else None,
            on_fresh=message_event(Kind.ACCEPTED, options.hop, "", self.envelope),
            on_duplicate=message_event(Kind.DUPLICATE, options.hop, "", self.envelope),
        )
        claim = Claim(who.queue, self.app.name, lease_s=options.lease_s, identity=who.identity)
        first, claimed = await self._commit((enqueue, claim))
        assert isinstance(claimed, Claimed), "a claim answers with rows"
        return (claimed.rows[0] if claimed.rows else None), first

    async def _mark(self, row: WorkRow, ops: tuple[Op, ...]) -> None:
        """The effect has happened: a mark that cannot be written now fails nothing and is written later."""
        try:
            await self._commit((*self._done(row, Kind.HANDLED), *ops))
        except StaleFence:
            log.warning("%s was handled for longer than its lease", row.identity)
        except StoreError:
            log.warning("the mark of %s will be written later", row.identity)
            self.app.mark_later((*self._done(row, Kind.HANDLED), *ops))

    async def _ambiguous(self, row: WorkRow) -> Exit:
        """Whoever had it died, and its effect may have happened."""
        if self.endpoint.options.on_crash is OnCrash.DROP:
            await self._commit(self._done(row, Kind.DISCARDED))
            return Exit.DISCARD
        event = message_event(Kind.SUSPENDED, self.endpoint.options.hop, "", self.envelope)
        await self._commit((Finish(row.queue, row.identity, WorkState.PARKED, fence=row.fence), Log(event)))
        return Exit.PARK

    def _done(self, row: WorkRow, kind: Kind) -> tuple[Op, ...]:
        options = self.endpoint.options
        done = Finish(row.queue, row.identity, WorkState.DONE, fence=row.fence, keep_s=options.keep_s)
        return done, Log(message_event(kind, options.hop, "", self.envelope, attempt=row.attempts))

    # -- dead letters

    async def _end_dead(self, style: Style, error: Exception) -> DeliveryEnd:
        """Kept with its body first; then it may be acknowledged."""
        options = self.endpoint.options
        enqueue = self.app.enqueue(options.name, self.envelope)
        cause = cause_of(error)
        dead = Finish(enqueue.queue, enqueue.identity, WorkState.DEAD, keep_s=None, cause=cause)
        event = message_event(Kind.DEAD_LETTERED, options.hop, "", self.envelope, cause=cause)
        try:
            await self._commit((enqueue,))
            await self._commit((dead, Log(event)))
        except StoreError:
            return self._settled(style, Exit.STORE_DOWN)
        return self._settled(style, Exit.DEAD_LETTER)

    async def _commit(self, ops: Sequence[Op]) -> tuple[Result, ...]:
        if not ops:
            return ()
        outcome = await asyncio.to_thread(commit_unit, self.app.store, tuple(ops))
        if not isinstance(outcome, Applied):
            raise StaleFence("another process has the message", fix="give the delivery back")
        return outcome.results


def _is_handled(first: Result) -> bool:
    return isinstance(first, Duplicate) and first.state is WorkState.DONE
