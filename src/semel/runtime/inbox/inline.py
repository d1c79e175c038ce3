"""One delivery at an inline or buffered endpoint: the handler runs in this process, with the body that has come.

    style        a duplicate                                       a crash in the middle
    eager        never reaches the handler                         rolls back: the broker delivers again
    optimistic   runs, and is rolled back                          rolls back
    reserved     never reaches the handler                         leaves a claim: `on_crash` says what it means
    none         runs again                                        may have had its effect

Whoever is told to give a delivery back must not acknowledge it: somebody else is handling the message at this moment,
the endpoint takes nothing just now, or the store could not be asked. What is scheduled, parked or dead is stored with
its body first, and is from then on a row like those of a durable endpoint: what the transport still delivers of it is a
duplicate.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field

from semel.errors import CommitInDoubt, DuplicateMessage, MessageRefused, StaleFence, StoreBusy, StoreError
from semel.inbox.endpoint import OnCrash, Style
from semel.inbox.identity import Identity
from semel.inbox.reservation import DIED, is_ambiguous
from semel.inbox.settle import DeliveryEnd, Exit, RowFate, Settlement, exit_of, settle
from semel.kernel.envelope import Envelope
from semel.kernel.ledger import Kind, message_event
from semel.kernel.ops import Applied, Finish, Log, Op, Remember, Result, WorkRow, WorkState
from semel.kernel.retry import Again, Decision, Failure, PauseThen, type_names
from semel.runtime.host.hosting import cause_of
from semel.runtime.host.lease_holder import commit_unit
from semel.runtime.inbox.definition import Application, now_us
from semel.runtime.inbox.endpoint import InboxEndpoint, ReadyHandler
from semel.runtime.inbox.handling import HandlerRun
from semel.runtime.inbox.reserving import KeptMessage, Reserving

log = logging.getLogger(__name__)

NOT_NOW = Settlement(DeliveryEnd.GIVE_BACK, RowFate.NO_ROW, again=True)
"""The endpoint is paused, or its breaker is open: nothing has begun."""


@dataclass(slots=True)
class Tries:
    """How often a handler has had a message, for one that is tried again from memory."""

    count: int = 0


@dataclass(frozen=True, slots=True)
class InlineDelivery:
    """One delivery. Blocking handlers run on `threads`; None is the loop's own."""

    app: Application
    endpoint: InboxEndpoint
    envelope: Envelope
    threads: Executor | None = None
    tries: Tries = field(default_factory=Tries)

    async def handle(self) -> DeliveryEnd:
        """Run the handler and say what becomes of the delivery."""
        return (await self.settle()).delivery

    async def settle(self) -> Settlement:
        gate, ticket = self.app.gate(self.endpoint.name), object()
        if not gate.enter(ticket, self.app.clock()):
            return NOT_NOW
        try:
            handler = self.app.handlers[self.endpoint.name].get(self.envelope.type)
            style = handler.style if handler is not None else Style.NONE
            return self._settled(style, await self._exit(handler, ticket))
        finally:
            gate.leave(ticket)

    def _settled(self, style: Style, exit: Exit) -> Settlement:
        return settle(self.endpoint.options.mode, style, exit)

    async def _exit(self, handler: ReadyHandler | None, ticket: object) -> Exit:
        """Whatever the store does here, the delivery has an end."""
        try:
            if self.endpoint.is_expired(self.envelope, now_us()):
                return await self._remember_end(handler, Exit.EXPIRED, Kind.EXPIRED)
            if handler is None:
                error = MessageRefused(
                    f"no handler at {self.endpoint.name!r} knows messages of type {self.envelope.type!r}",
                    fix="add a handler for it, then replay the dead letter",
                )
                return await self._keep(WorkState.DEAD, cause_of(error), None)
            if handler.style is not Style.RESERVED:
                return await self._attempts(handler, ticket, None)
            return await self._reserved(handler, ticket)
        except (StaleFence, StoreBusy):
            return Exit.DUPLICATE_OPEN
        except CommitInDoubt:
            return Exit.IN_DOUBT
        except StoreError:
            log.warning("the store did not take %s", self.envelope.id, exc_info=True)
            return Exit.STORE_DOWN

    async def _reserved(self, handler: ReadyHandler, ticket: object) -> Exit:
        """A committed claim, which stays over all attempts, the effect, the mark."""
        row = await self._reserving.claim()
        if isinstance(row, Exit):
            return row
        if is_ambiguous(row) and self.endpoint.options.on_crash is not OnCrash.RETRY:
            return await self._ambiguous(row)
        async with self._reserving.renewed(row):
            return await self._attempts(handler, ticket, row)

    async def _attempts(self, handler: ReadyHandler, ticket: object, row: WorkRow | None) -> Exit:
        """Retries happen here: the broker waits meanwhile."""
        rules, gate = self.app.rules_for(self.endpoint, handler), self.app.gate(self.endpoint.name)
        while True:
            self.tries.count += 1
            try:
                exit = await self._once(handler, row)
                gate.succeeded(ticket, self.app.clock())
                return exit
            except StoreError:
                self.tries.count -= 1  # it says nothing about the handler
                raise
            except Exception as error:
                log.warning("the handler of %s failed", self.endpoint.name, exc_info=True)
                now = self.app.clock()
                gate.failed(ticket, error, now)
                failure = Failure(cause_of(error), type_names(type(error)))
                decision = rules.decide(failure, self.tries.count, now, 0.0)
                if isinstance(decision, PauseThen):
                    gate.pause(now + decision.for_s)
                    decision = decision.then
                if not isinstance(decision, Again) or decision.passes:
                    return await self._give_up(handler, decision, failure.text, row)
                await asyncio.sleep(max(0.0, decision.at - now))
                # each attempt counts; one that was begun is finished, also when the breaker has opened by it
                gate.enter(ticket, self.app.clock())

    async def _give_up(self, handler: ReadyHandler, decision: Decision, cause: str, row: WorkRow | None) -> Exit:
        exit = exit_of(decision)
        match exit:
            case Exit.DEAD_LETTER:
                return await self._keep(WorkState.DEAD, cause, row)
            case Exit.PARK:
                return await self._keep(WorkState.PARKED, cause, row)
            case Exit.SCHEDULE:
                assert isinstance(decision, Again), "only what is tried again is scheduled"
                return await self._keep(WorkState.SCHEDULED, cause, row, decision.at - self.app.clock())
            case Exit.DISCARD if row is not None:
                await self._commit(self._done(row, Kind.DISCARDED, cause))
            case Exit.DISCARD:
                await self._remember_end(handler, exit, Kind.DISCARDED, cause)
            case _ if row is not None:
                await self._reserving.release(row, cause)
        return exit

    # -- one attempt

    async def _once(self, handler: ReadyHandler, row: WorkRow | None) -> Exit:
        who = self.app.identity_of(self.endpoint.name, self.envelope)
        try:
            match handler.style:
                case Style.EAGER:
                    await self._run(handler, who, before=(self._remember(who, Kind.HANDLED),))
                case Style.OPTIMISTIC:
                    await self._run(handler, who, mark=(self._remember(who, Kind.HANDLED),))
                case Style.RESERVED:
                    assert row is not None, "a reserved handler runs under a claim"
                    await self._mark(row, await self._run(handler, who))
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

    # -- what is written about it

    def _remember(self, who: Identity, kind: Kind, cause: str | None = None) -> Remember:
        hop, options = self.endpoint.options.hop, self.endpoint.options
        return Remember(
            who.queue,
            who.identity,
            scope=who.scope if who.scope != who.queue else None,
            keep_s=options.keep_s,
            on_fresh=(
                message_event(Kind.ACCEPTED, hop, "", self.envelope),
                message_event(kind, hop, "", self.envelope, cause=cause),
            ),
            on_duplicate=message_event(Kind.DUPLICATE, hop, "", self.envelope),
        )

    async def _remember_end(
        self, handler: ReadyHandler | None, exit: Exit, kind: Kind, cause: str | None = None
    ) -> Exit:
        """It ends without its effect, and is not handled when it comes again. Where nothing is checked nothing is
        remembered."""
        if handler is not None and handler.style is not Style.NONE:
            who = self.app.identity_of(self.endpoint.name, self.envelope)
            await self._commit((self._remember(who, kind, cause),))
        return exit

    async def _mark(self, row: WorkRow, ops: tuple[Op, ...]) -> None:
        """The effect has happened: a mark that cannot be written now fails nothing and is written later."""
        done = (*self._done(row, Kind.HANDLED), *ops)
        try:
            await self._commit(done)
        except StaleFence:
            log.warning("%s was handled for longer than its lease", row.identity)
        except StoreError:
            log.warning("the mark of %s will be written later", row.identity)
            self.app.mark_later(done)

    def _done(self, row: WorkRow, kind: Kind, cause: str | None = None) -> tuple[Op, ...]:
        options = self.endpoint.options
        done = Finish(row.queue, row.identity, WorkState.DONE, fence=row.fence, keep_s=options.keep_s, cause=cause)
        return done, Log(message_event(kind, options.hop, "", self.envelope, attempt=row.attempts, cause=cause))

    async def _ambiguous(self, row: WorkRow) -> Exit:
        """Whoever had it died, and its effect may have happened."""
        if self.endpoint.options.on_crash is OnCrash.PARK:
            return await self._keep(WorkState.PARKED, DIED, row)
        await self._commit(self._done(row, Kind.DISCARDED, DIED))
        return Exit.DISCARD

    async def _keep(self, to: WorkState, cause: str, row: WorkRow | None, wait_s: float = 0.0) -> Exit:
        """Stored with its body; then it may be acknowledged."""
        kept = KeptMessage(self.app, self.endpoint, self.envelope, self._commit)
        await kept.store(to, cause, row, wait_s)
        return {WorkState.DEAD: Exit.DEAD_LETTER, WorkState.PARKED: Exit.PARK}.get(to, Exit.SCHEDULE)

    @property
    def _reserving(self) -> Reserving:
        return Reserving(self.app, self.endpoint, self.envelope, self._commit)

    async def _commit(self, ops: Sequence[Op]) -> tuple[Result, ...]:
        if not ops:
            return ()
        outcome = await asyncio.to_thread(commit_unit, self.app.store, tuple(ops))
        if not isinstance(outcome, Applied):
            raise StaleFence("another process has the message", fix="give the delivery back")
        return outcome.results
