"""Runs the handlers of one endpoint for the rows that its worker has claimed, on the loop or in lanes of threads.

`inbox/rows.py` decides which rows a handler gets. What a handler raises goes to the worker, whose policy decides.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any

from semel.errors import HandlerCutOff, MessageRefused, StoreError
from semel.inbox.endpoint import Style
from semel.inbox.rows import RowEnd, done_row, leaves_doubt, row_end
from semel.kernel.effects import OwnTransaction
from semel.kernel.ops import WorkRow
from semel.runtime.host.committer import Committer
from semel.runtime.host.log_fields import about_item
from semel.runtime.inbox.definition import Application, now_us
from semel.runtime.inbox.endpoint import InboxEndpoint, ReadyHandler
from semel.runtime.inbox.gate import ticket_of
from semel.runtime.inbox.handling import Answer, HandlerContext, HandlerRun
from semel.runtime.inbox.lanes import LaneEnd
from semel.runtime.inbox.shared_commit import SharedCommits, run_alone
from semel.runtime.inbox.watched import WatchedRun
from semel.stores.points import reach

log = logging.getLogger(__name__)


@dataclass(slots=True)
class RowHandler:
    """`deliver` runs on the loop, `in_lane` on a thread. `handled` counts what was given to handlers on the loop."""

    app: Application
    endpoint: InboxEndpoint
    context: HandlerContext
    committer: Committer
    threads: Executor
    handled: int = 0
    _shared: SharedCommits = field(default_factory=SharedCommits)

    # -- on a thread

    def in_lane(self, rows: Sequence[WorkRow]) -> Sequence[LaneEnd]:
        """What no handler gets is left to the loop."""
        runs = [self._lane_run(row) for row in rows]
        ready = [run for run in runs if run is not None]
        together = len({run.handler.provider for run in ready}) == 1
        ends = iter(self._run_shared(ready) if together else [run_alone(run) for run in ready])
        ended = [
            LaneEnd(None) if run is None else self._lane_end(run, row, next(ends))
            for run, row in zip(runs, rows, strict=True)
        ]
        self._report_to_gate(rows, ended)
        return ended

    def _run_shared(self, runs: Sequence[HandlerRun]) -> Sequence[LaneEnd]:
        if len(runs) == 1:
            return self._shared.run(runs)
        with self.app.telemetry.spans.settling(self.endpoint.name, [run.envelope for run in runs]):
            return self._shared.run(runs)

    def _lane_run(self, row: WorkRow) -> HandlerRun | None:
        handler = self._handler(row)
        if handler is None or row_end(self.endpoint.options, handler.style, row, now_us()) is not None:
            return None
        reach("inbox.claimed")
        return self._run_of(handler, row)

    def _lane_end(self, run: HandlerRun, row: WorkRow, ended: LaneEnd) -> LaneEnd:
        if isinstance(ended.answer, StoreError) and leaves_doubt(run.handler.style, ended.answer):
            log.warning(
                "the store did not take the end of %s", row.identity, exc_info=ended.answer, extra=about_item(row)
            )
            return LaneEnd(OwnTransaction.LOST)
        if row.key is not None and ended.answer is OwnTransaction.FINISHED:
            # the next message of the key may be handled now, by whoever is notified first
            return LaneEnd(ended.answer, has_news=True)
        return ended

    def _report_to_gate(self, rows: Sequence[WorkRow], ended: Sequence[LaneEnd]) -> None:
        gate, now = self.app.gate(self.endpoint.name), self.app.clock()
        for row, each in zip(rows, ended, strict=True):
            if isinstance(each.answer, BaseException):
                gate.failed(ticket_of(row), each.answer, now)
            elif each.answer is OwnTransaction.LOST:
                gate.leave(ticket_of(row))
            elif each.answer is not None:
                gate.succeeded(ticket_of(row), now)

    # -- on the loop

    async def deliver(self, row: Any) -> Answer:
        assert isinstance(row, WorkRow), "an endpoint is a queue of work"
        handler = self._handler(row)
        end = row_end(self.endpoint.options, handler.style if handler is not None else None, row, now_us())
        if end is not None:
            return await self._end(row, end)
        if handler is None:
            raise MessageRefused(
                f"no handler at {self.endpoint.name!r} knows messages of type {row.envelope.type!r}",
                fix="add a handler for it, then replay the dead letter",
            )
        reach("inbox.claimed")
        self.handled += 1
        return await self._run_or_cut_off(handler, row)

    async def _run_or_cut_off(self, handler: ReadyHandler, row: WorkRow) -> Answer:
        try:
            return await self._run(handler, row)
        except asyncio.CancelledError:
            cut_off = self.cut_off(row)
            if isinstance(cut_off, HandlerCutOff):
                raise cut_off from None
            return cut_off
        except StoreError as error:
            if not leaves_doubt(handler.style, error):
                raise
            log.warning("the store did not take the end of %s", row.identity, exc_info=True, extra=about_item(row))
            return OwnTransaction.LOST

    async def _run(self, handler: ReadyHandler, row: WorkRow) -> Answer:
        run, gate = self._run_of(handler, row), self.app.gate(self.endpoint.name)
        try:
            if handler.signature.is_async:
                answer = await run.on_loop()
            else:
                answer = await asyncio.get_running_loop().run_in_executor(self.threads, run.in_thread)
        except Exception as error:
            gate.failed(ticket_of(row), error, self.app.clock())
            raise
        gate.succeeded(ticket_of(row), self.app.clock())
        return answer

    async def _end(self, row: WorkRow, end: RowEnd) -> Answer:
        """When the store does not take it, the claim runs out and it is decided again."""
        try:
            await self.committer.commit(end.ops(self.endpoint.options, row))
        except (StoreError, asyncio.CancelledError):
            log.warning("the store did not take the end of %s", row.identity, exc_info=True, extra=about_item(row))
            return OwnTransaction.LOST
        return OwnTransaction.FINISHED

    # -- both

    def cut_off(self, row: WorkRow) -> OwnTransaction | HandlerCutOff:
        """A process that ends waits no longer for its handlers. What they did in a transaction is rolled back, and the
        message is given back uncounted; of a reserved one nobody knows: its claim runs out, and `on_crash` decides."""
        handler = self._handler(row)
        if handler is not None and handler.style is Style.RESERVED:
            return OwnTransaction.LOST
        return HandlerCutOff("the process ended before the handler did", fix="it will be handled again")

    def _handler(self, row: WorkRow) -> ReadyHandler | None:
        return self.app.handlers[self.endpoint.name].get(row.envelope.type)

    def _run_of(self, handler: ReadyHandler, row: WorkRow) -> HandlerRun:
        who = self.app.identity_of(self.endpoint.name, row.envelope)
        mark = done_row(self.endpoint.options, row, row.envelope)
        watch = self.app.telemetry.watch(self.endpoint.name)
        return WatchedRun(self.context, handler, row.envelope, who, mark, watch=watch, attempt=row.attempts)
