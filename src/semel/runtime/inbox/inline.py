"""Inline endpoints: the handler runs first, then the transport hears what to do with its delivery.

`inbox/inline.py` decides; this takes its steps: commits, runs of the handler, waits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

from semel.errors import StaleFence, StoreError
from semel.inbox.identity import Identity
from semel.inbox.inline import CommitOps, InlineSteps, MarkLater, RunHandler, Step, StoreBody, WaitFor
from semel.inbox.settle import DeliveryEnd
from semel.kernel.envelope import Envelope
from semel.kernel.ops import Applied, Op, Result
from semel.kernel.retry import Failure, type_names
from semel.runtime.host.hosting import cause_of
from semel.runtime.host.lease_holder import commit_unit
from semel.runtime.inbox.definition import Application, now_us
from semel.runtime.inbox.endpoint import InboxEndpoint, ReadyHandler
from semel.runtime.inbox.handling import Answer, HandlerRun

log = logging.getLogger(__name__)


def inline_steps(app: Application, endpoint: InboxEndpoint, envelope: Envelope) -> InlineSteps:
    """Everything that is decided about one delivery."""
    handler = app.handlers[endpoint.name].get(envelope.type)
    return InlineSteps(
        endpoint.options,
        handler.style if handler is not None else None,
        app.rules_for(endpoint, handler),
        app.identity_of(endpoint.name, envelope),
        envelope,
        app.enqueue(endpoint.name, envelope),
        app.name,
        failure_of,
    )


def failure_of(error: Exception) -> Failure:
    return Failure(cause_of(error), type_names(type(error)))


@dataclass(frozen=True, slots=True)
class InlineDelivery:
    """One delivery at an inline endpoint. Blocking handlers run on `threads`; None is the loop's own."""

    app: Application
    endpoint: InboxEndpoint
    envelope: Envelope
    threads: Executor | None = None

    async def handle(self) -> DeliveryEnd:
        """Run the handler and say what becomes of the delivery."""
        steps = inline_steps(self.app, self.endpoint, self.envelope).run()
        answer: Any = None
        error: Exception | None = None
        while True:
            try:
                step = steps.throw(error) if error is not None else steps.send(answer)
            except StopIteration as end:
                delivery: DeliveryEnd = end.value
                return delivery
            answer, error = None, None
            try:
                answer = await self._take(step)
            except Exception as raised:
                self._warn(step, raised)
                error = raised

    async def _take(self, step: Step) -> Any:
        match step:
            case CommitOps(ops=ops):
                return await self._commit(ops)
            case RunHandler(before=before, mark=mark):
                return await self._run(before, mark)
            case StoreBody(after_s=after_s):
                due = None if after_s is None else now_us() + round(after_s * 1_000_000)
                [first] = await self._commit((self.app.enqueue(self.endpoint.name, self.envelope, due=due),))
                return first
            case WaitFor(seconds=seconds):
                await asyncio.sleep(seconds)
            case MarkLater(ops=ops):
                log.warning("the mark of %s will be written later", self.envelope.id)
                self.app.mark_later(ops)

    def _warn(self, step: Step, error: Exception) -> None:
        if isinstance(error, StoreError):
            log.warning("the store did not take %s: %s", self.envelope.id, error)
        elif isinstance(step, RunHandler):
            log.warning("the handler of %s failed", self.endpoint.name, exc_info=error)

    async def _run(self, before: tuple[Op, ...], mark: tuple[Op, ...]) -> Answer:
        handler: ReadyHandler = self.app.handlers[self.endpoint.name][self.envelope.type]
        who: Identity = self.app.identity_of(self.endpoint.name, self.envelope)
        run = HandlerRun(self.app.context, handler, self.envelope, who, mark, before)
        if handler.signature.is_async:
            return await run.on_loop()
        return await asyncio.get_running_loop().run_in_executor(self.threads, run.in_thread)

    async def _commit(self, ops: Sequence[Op]) -> tuple[Result, ...]:
        outcome = await asyncio.to_thread(commit_unit, self.app.store, tuple(ops))
        if not isinstance(outcome, Applied):
            raise StaleFence("another process has the message", fix="give the delivery back")
        return outcome.results
