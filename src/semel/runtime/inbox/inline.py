"""Inline endpoints: the handler runs first, then the transport hears what to do with its delivery.

    style        a duplicate                                       a crash in the middle
    eager        never reaches the handler                         rolls back: the broker delivers again
    optimistic   runs, and is rolled back                          rolls back
    reserved     never reaches the handler                         leaves a claim: `on_crash` says what it means
    none         runs again                                        may have had its effect

Whoever is told to give a delivery back must not acknowledge it: somebody else is handling the message at this moment,
or the store could not be asked. What has to be kept, because it is dead, parked or to be tried later, is stored with
its body first (`letters`); from then on it goes its way like a message of a durable endpoint.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

from semel.errors import CommitInDoubt, DuplicateMessage, MessageRefused, StaleFence, StoreBusy, StoreError
from semel.inbox.endpoint import EndpointMode, Style
from semel.inbox.identity import Identity
from semel.inbox.settle import DeliveryEnd, Exit, exit_of, settle
from semel.kernel.effects import OwnTransaction
from semel.kernel.envelope import Envelope
from semel.kernel.ledger import Kind, message_event
from semel.kernel.ops import Applied, Enqueue, Op, Remember, Result, WorkRow, WorkState
from semel.kernel.retry import Again, Decision, Enough, Failure, PauseThen, type_names
from semel.runtime.host.hosting import cause_of
from semel.runtime.host.lease_holder import commit_unit
from semel.runtime.inbox.definition import Application, now_us
from semel.runtime.inbox.endpoint import InboxEndpoint, ReadyHandler
from semel.runtime.inbox.handling import Answer, HandlerRun
from semel.runtime.inbox.letters import Keeping, keep
from semel.runtime.inbox.reserving import Reservations
from semel.stores.points import reach

log = logging.getLogger(__name__)

Attempt = Callable[[], Awaitable[Exit]]


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
        style = handler.style if handler is not None else Style.NONE
        try:
            exit = await self._exit(handler)
        except (StoreBusy, StaleFence):
            exit = Exit.DUPLICATE_OPEN
        except CommitInDoubt:
            exit = Exit.IN_DOUBT
        except StoreError:
            log.warning("the store did not take %s", self.envelope.id, exc_info=True)
            exit = Exit.STORE_DOWN
        reach("inbox.settled")
        return settle(EndpointMode.INLINE, style, exit).delivery

    async def _exit(self, handler: ReadyHandler | None) -> Exit:
        if self.endpoint.options.is_expired(self.envelope.time, now_us()):
            return await self._end(handler, Exit.EXPIRED, Kind.EXPIRED)
        if handler is None:
            error = MessageRefused(
                f"no handler at {self.endpoint.name!r} knows messages of type {self.envelope.type!r}",
                fix="add a handler for it, then replay the dead letter",
            )
            return await self._keep(Enough("dead_letter"), error)
        if handler.style is Style.RESERVED:
            return await self._reserved(handler)
        return await self._attempts(handler, lambda: self._once(handler))

    # -- attempts, and what follows the last

    async def _attempts(self, handler: ReadyHandler, attempt_once: Attempt, row: WorkRow | None = None) -> Exit:
        """Retries happen here: the broker waits meanwhile. What the store says is no failure of the handler."""
        rules, attempt = self.app.rules_for(self.endpoint, handler), 1
        loop = asyncio.get_running_loop()
        while True:
            try:
                return await attempt_once()
            except StoreError:
                raise
            except Exception as error:
                log.warning("the handler of %s failed", self.endpoint.name, exc_info=True)
                failure = Failure(cause_of(error), type_names(type(error)))
                decision = _without_pause(rules.decide(failure, attempt, loop.time(), 0.0))
                if not isinstance(decision, Again) or decision.passes:
                    return await self._give_up(handler, decision, error, row)
                await asyncio.sleep(decision.at - loop.time())
                attempt += 1

    async def _give_up(self, handler: ReadyHandler, decision: Decision, error: Exception, row: WorkRow | None) -> Exit:
        exit = exit_of(decision)
        if exit is Exit.DISCARD:
            return await self._end(handler, exit, Kind.DISCARDED, row)
        if exit is Exit.REQUEUE:
            return exit
        return await self._keep(decision, error, row)

    async def _keep(self, decision: Decision, error: Exception, row: WorkRow | None = None) -> Exit:
        """With its body first; then it may be acknowledged."""
        keeping = _keeping(decision, cause_of(error), asyncio.get_running_loop().time())
        return await self._kept(keeping, row)

    async def _kept(self, keeping: Keeping, row: WorkRow | None) -> Exit:
        enqueue = self.app.enqueue(self.endpoint.name, self.envelope)
        return await asyncio.to_thread(self._keep_now, enqueue, keeping, row)

    def _keep_now(self, enqueue: Enqueue, keeping: Keeping, row: WorkRow | None) -> Exit:
        try:
            return keep(self.app.store, self.app.own_provider, enqueue, keeping, row)
        except StoreError:
            raise
        except Exception:
            # a driver's own error: whether it was committed the next delivery will find out
            log.warning("%s could not be kept", self.envelope.id, exc_info=True)
            return Exit.STORE_DOWN

    async def _end(self, handler: ReadyHandler | None, exit: Exit, kind: Kind, row: WorkRow | None = None) -> Exit:
        """Its identity is remembered, so that the next one is a duplicate; without a style nothing is."""
        if row is not None:
            await self._commit(self._reservations.done(row, kind))
        elif handler is None or handler.style is not Style.NONE:
            await self._commit((self._remember(self._who, kind),))
        return exit

    # -- one attempt

    async def _once(self, handler: ReadyHandler) -> Exit:
        try:
            match handler.style:
                case Style.EAGER:
                    await self._run(handler, before=(self._remember(self._who),))
                case Style.OPTIMISTIC:
                    await self._run(handler, mark=(self._remember(self._who),))
                case _:
                    answer = await self._run(handler)
                    await self._commit(answer if isinstance(answer, tuple) else ())
        except DuplicateMessage:
            return Exit.DUPLICATE_HANDLED
        return Exit.OK

    async def _run(self, handler: ReadyHandler, *, mark: tuple[Op, ...] = (), before: tuple[Op, ...] = ()) -> Answer:
        """What is left to be committed, where the handler had no transaction."""
        run = HandlerRun(self.app.context, handler, self.envelope, self._who, mark, before)
        if handler.signature.is_async:
            return await run.on_loop()
        return await asyncio.get_running_loop().run_in_executor(self.threads, run.in_thread)

    @property
    def _who(self) -> Identity:
        return self.app.identity_of(self.endpoint.name, self.envelope)

    def _remember(self, who: Identity, end: Kind = Kind.HANDLED) -> Remember:
        hop, options = self.endpoint.options.hop, self.endpoint.options
        return Remember(
            who.queue,
            who.identity,
            scope=who.scope if who.scope != who.queue else None,
            keep_s=options.keep_s,
            on_fresh=(
                message_event(Kind.ACCEPTED, hop, "", self.envelope),
                message_event(end, hop, "", self.envelope),
            ),
            on_duplicate=message_event(Kind.DUPLICATE, hop, "", self.envelope),
        )

    # -- reserved: a committed claim, the effect, the mark

    @property
    def _reservations(self) -> Reservations:
        return Reservations(self.app, self.endpoint.options, self.envelope, self._who, self._commit)

    async def _reserved(self, handler: ReadyHandler) -> Exit:
        reservations = self._reservations
        found = await reservations.claim()
        if isinstance(found, Exit):
            return found
        if (ambiguous := reservations.ambiguous(found)) is Exit.DISCARD:
            return await self._end(handler, ambiguous, Kind.DISCARDED, found)
        if isinstance(ambiguous, Keeping):
            return await self._kept(ambiguous, found)
        reach("inbox.reserved")
        async with reservations.renewing(found):
            return await self._reserved_attempts(handler, found)

    async def _reserved_attempts(self, handler: ReadyHandler, row: WorkRow) -> Exit:
        """The claim stays between attempts. It is given back only where the handler has said that it failed: of one
        that was cut off nobody knows whether its effect has happened: the claim runs out, and `on_crash` decides."""
        try:
            exit = await self._attempts(handler, lambda: self._once_reserved(handler, row), row)
        except StoreError as error:
            await self._reservations.release(row, cause_of(error))
            raise
        if exit is Exit.REQUEUE:
            await self._reservations.release(row, "requeued")
        return exit

    async def _once_reserved(self, handler: ReadyHandler, row: WorkRow) -> Exit:
        """A transaction of the handler's own has the mark in it, so only effects outside it can be without."""
        mark = self._reservations.done(row, Kind.HANDLED) if handler.provider is not None else ()
        answer = await self._run(handler, mark=mark)
        if answer is OwnTransaction.LOST:
            return Exit.DUPLICATE_OPEN
        if isinstance(answer, tuple):
            await self._reservations.mark(row, answer)
        return Exit.OK

    async def _commit(self, ops: Sequence[Op]) -> tuple[Result, ...]:
        if not ops:
            return ()
        outcome = await asyncio.to_thread(commit_unit, self.app.store, tuple(ops))
        if not isinstance(outcome, Applied):
            raise StaleFence("another process has the message", fix="give the delivery back")
        return outcome.results


def _without_pause(decision: Decision) -> Decision:
    return decision.then if isinstance(decision, PauseThen) else decision


def _keeping(decision: Decision, cause: str, now: float) -> Keeping:
    match decision:
        case Again(at=at):
            return Keeping(Exit.SCHEDULE, WorkState.SCHEDULED, Kind.FAILED, cause, delay_s=max(0.0, at - now))
        case Enough(then="dead_letter", holds=holds):
            return Keeping(Exit.DEAD_LETTER, WorkState.DEAD, Kind.DEAD_LETTERED, cause, holds=holds)
        case Enough(holds=holds):
            return Keeping(Exit.PARK, WorkState.PARKED, Kind.SUSPENDED, cause, holds=holds)
    raise AssertionError(f"{decision} keeps nothing")
