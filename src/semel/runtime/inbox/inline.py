"""Takes the steps of one delivery at an inline or buffered endpoint: commits, runs of the handler, waits.

`inbox/inline.py` decides what comes next. The handler runs in this process, with the body that has come.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Hashable, Sequence
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from semel.errors import DuplicateMessage, InputError, StaleFence, StoreError
from semel.inbox.inline import CommitOps, InlineSteps, MarkLater, PauseEndpoint, RunHandler, Step, StoreBody, WaitFor
from semel.inbox.settle import DeliveryEnd, RowFate, Settlement
from semel.kernel.envelope import Envelope
from semel.kernel.lease import RENEW_AT
from semel.kernel.ops import Applied, Duplicate, Op, Renew, Result, WorkRow
from semel.kernel.retry import Failure, type_names
from semel.runtime.host.hosting import cause_of
from semel.runtime.host.lease_holder import commit_unit
from semel.runtime.host.log_fields import about
from semel.runtime.inbox.counts import MessageCount
from semel.runtime.inbox.definition import Application, now_us
from semel.runtime.inbox.endpoint import InboxEndpoint
from semel.runtime.inbox.handling import Answer
from semel.runtime.inbox.watched import WatchedRun
from semel.stores.points import reach

log = logging.getLogger(__name__)


def not_now() -> Settlement:
    """The endpoint is paused, or its breaker is open: nothing has begun."""
    return Settlement(DeliveryEnd.GIVE_BACK, RowFate.NO_ROW, again=True)


@dataclass(slots=True)
class Tries:
    """How often a handler has had a message, for one that is tried again from memory."""

    count: int = 0


def inline_steps(
    app: Application, endpoint: InboxEndpoint, envelope: Envelope, now: int, tries: int = 0
) -> InlineSteps:
    """Everything that is decided about one delivery. `now` is in microseconds."""
    handler = app.handlers[endpoint.name].get(envelope.type)
    refused = None
    try:
        enqueue = app.enqueue(endpoint.name, envelope)
    except InputError as error:
        enqueue, refused = app.enqueue(endpoint.name, envelope, keyed=False), error
    return InlineSteps(
        endpoint.options,
        handler.style if handler is not None else None,
        app.rules_for(endpoint, handler),
        app.identity_of(endpoint.name, envelope),
        envelope,
        enqueue,
        app.name,
        failure_of,
        endpoint.options.is_expired(envelope.time, now),
        tries,
        refused,
    )


def failure_of(error: Exception) -> Failure:
    return Failure(cause_of(error), type_names(type(error)))


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
            return not_now()
        try:
            settled = await self._steps(ticket)
        finally:
            gate.leave(ticket)
        self.app.telemetry.of(self.endpoint.name).settled(settled)
        reach("inbox.settled")
        return settled

    async def _steps(self, ticket: Hashable) -> Settlement:
        steps = inline_steps(self.app, self.endpoint, self.envelope, now_us(), self.tries.count).run()
        answer: Any = None
        error: Exception | None = None
        while True:
            try:
                step = steps.throw(error) if error is not None else steps.send(answer)
            except StopIteration as end:
                settled: Settlement = end.value
                return settled
            answer, error = None, None
            try:
                answer = await self._take(step, ticket)
            except Exception as raised:
                self._warn(step, raised)
                error = raised

    async def _take(self, step: Step, ticket: Hashable) -> Any:
        match step:
            case CommitOps(ops=ops, stores_body=stores_body):
                results = await self._commit(ops)
                if isinstance(results[0], Duplicate):
                    self.app.telemetry.of(self.endpoint.name).add(MessageCount.DUPLICATES)
                if stores_body:
                    reach("letter.stored")
                return results
            case RunHandler():
                return await self._run_counted(step, ticket)
            case StoreBody(after_s=after_s, keyed=keyed):
                due = None if after_s is None else now_us() + round(after_s * 1_000_000)
                enqueue = self.app.enqueue(self.endpoint.name, self.envelope, due=due, keyed=keyed)
                [first] = await self._commit((enqueue,))
                reach("letter.stored")
                return first
            case WaitFor(seconds=seconds):
                self.app.telemetry.of(self.endpoint.name).add(MessageCount.RETRIED)
                await asyncio.sleep(seconds)
                # each attempt counts; one that was begun is finished, also when the breaker has opened by it
                self.app.gate(self.endpoint.name).enter(ticket, self.app.clock())
            case PauseEndpoint(seconds=seconds):
                self.app.gate(self.endpoint.name).pause(self.app.clock() + seconds)
            case MarkLater(ops=ops):
                log.warning("the mark of %s will be written later", self.envelope.id, extra=self._fields)
                self.app.mark_later(ops)

    def _warn(self, step: Step, error: Exception) -> None:
        if isinstance(error, StoreError):
            log.warning("the store did not take %s: %s", self.envelope.id, error, extra=self._fields)
        elif isinstance(error, DuplicateMessage):
            where, id = self.endpoint.name, self.envelope.id
            log.info("%s at %s is a duplicate: it was handled before", id, where, extra=self._fields)
        elif isinstance(step, RunHandler):
            where, id = self.endpoint.name, self.envelope.id
            log.warning("the handler of %s failed at %s", where, id, exc_info=error, extra=self._fields)

    @property
    def _fields(self) -> dict[str, Any]:
        return about(self.endpoint.name, self.envelope)

    # -- the handler

    async def _run_counted(self, step: RunHandler, ticket: Hashable) -> Answer:
        """A store that is away says nothing about the handler: the attempt does not count."""
        gate = self.app.gate(self.endpoint.name)
        self.tries.count += 1
        try:
            async with self._renewed(step.claim):
                answer = await self._run(step)
        except Exception as error:
            if isinstance(error, StoreError):
                self.tries.count -= 1
            gate.failed(ticket, error, self.app.clock())
            raise
        gate.succeeded(ticket, self.app.clock())
        return answer

    async def _run(self, step: RunHandler) -> Answer:
        if step.claim is not None:
            reach("inbox.reserved")
        handler = self.app.handlers[self.endpoint.name][self.envelope.type]
        who = self.app.identity_of(self.endpoint.name, self.envelope)
        watch = self.app.telemetry.watch(self.endpoint.name)
        run = WatchedRun(
            self.app.context, handler, self.envelope, who, step.mark, step.before, watch=watch, attempt=self.tries.count
        )
        if handler.signature.is_async:
            return await run.on_loop()
        return await asyncio.get_running_loop().run_in_executor(self.threads, run.in_thread)

    @asynccontextmanager
    async def _renewed(self, claim: WorkRow | None) -> AsyncIterator[None]:
        """However long the handler takes, nobody takes it for dead while this process lives."""
        if claim is None:
            yield
            return
        task = asyncio.create_task(self._renew(claim))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _renew(self, claim: WorkRow) -> None:
        lease_s = self.endpoint.options.lease_s
        while True:
            await asyncio.sleep(lease_s * RENEW_AT)
            try:
                await self._commit((Renew(claim.queue, claim.identity, claim.fence, lease_s),))
            except StaleFence:
                return
            except StoreError:
                continue

    async def _commit(self, ops: Sequence[Op]) -> tuple[Result, ...]:
        outcome = await asyncio.to_thread(commit_unit, self.app.store, tuple(ops))
        if not isinstance(outcome, Applied):
            raise StaleFence("another process has the message", fix="give the delivery back")
        return outcome.results
