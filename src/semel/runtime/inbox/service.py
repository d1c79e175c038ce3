"""Runs an application in this process: a worker for each endpoint, the relay of its outbox, and the sweeper.

An inline endpoint has a worker for what it had to keep: replayed dead letters, what is to be tried later, and what a
relay has put there.

Any number of processes may run the same application. They share the work through claims in the store, and what one of
them held when it died is claimed by another after the lease: there is no leader.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from semel.errors import HandlerCutOff, MessageRefused, StoreError
from semel.inbox.endpoint import EndpointOptions, FailedHead, OnCrash, Style
from semel.inbox.outbox import OutboxCalls, outbox_hop, outbox_queue
from semel.kernel.effects import OwnTransaction, Pause, Resume
from semel.kernel.ledger import Kind, message_event
from semel.kernel.ops import Attempts, Finish, Log, Op, WorkRow, WorkState
from semel.kernel.retry import RetryPolicy
from semel.kernel.work import Worker, WorkerConfig
from semel.runtime.host.committer import Committer
from semel.runtime.host.loop import run as run_loop
from semel.runtime.host.performer import Performer
from semel.runtime.host.sweeper import Sweeper
from semel.runtime.inbox.definition import Application, Periodic, now_us
from semel.runtime.inbox.endpoint import InboxEndpoint, ReadyHandler
from semel.runtime.inbox.handling import Answer, HandlerRun
from semel.runtime.inbox.letters import DIED, is_ambiguous, is_reservation
from semel.runtime.inbox.operating import LETTERS, paused_endpoints
from semel.runtime.inbox.policies import EndpointPolicy
from semel.runtime.inbox.relay import Relay
from semel.stores.points import reach

log = logging.getLogger(__name__)

IDLE_S = 0.2
PAUSES_S = 1.0
DRAIN_LOOK_S = 0.02
RELAY_PARALLEL = 16
RELAY_LEASE_S = 10.0
RELAY_RETRY = RetryPolicy(interval_s=0.5, factor=2.0, interval_max_s=60.0)
"""What is in the outbox was promised: it is sent until somebody has it, or an operator ends it."""


class InboxService:
    """`async with InboxService(app):` handles messages until the block ends, then finishes what has begun."""

    def __init__(self, app: Application, *, name: str = "") -> None:
        self.app = app
        self.name = name or f"{app.name}@{socket.gethostname()}:{os.getpid()}"
        self.handled = 0
        self._workers: dict[str, str] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        _ = self.app.handlers  # refuses here, before anything runs
        threads = sum(each.options.parallel for each in self.app.endpoints.values()) or 1
        self.threads = ThreadPoolExecutor(threads, thread_name_prefix=f"semel-inbox-{self.app.name}")
        self.performer = Performer(self.app.store)
        await self.performer.start()
        self.committer = Committer(self.performer)
        for endpoint in self.app.endpoints.values():
            self._add_worker(endpoint)
        paused = await asyncio.to_thread(paused_endpoints, self.app)
        for name in paused:
            self._feed(name, Pause())
        self._add_relay()
        sweeper = Sweeper(self.app.store, failed=lambda error, what: self.performer.outages.record(error))
        self._begin(
            sweeper.run(), self._watch_pauses(paused), *(self._send_periodic(each) for each in self.app.periodic)
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.performer.close()
        self.threads.shutdown(wait=False, cancel_futures=True)

    def _begin(self, *jobs: Any) -> None:
        self._tasks += [asyncio.get_running_loop().create_task(job) for job in jobs]

    # -- workers

    def _add_worker(self, endpoint: InboxEndpoint) -> None:
        options = endpoint.options
        name = f"{self.name}/{options.name}"
        capacity = options.parallel + _ahead(options)
        config = WorkerConfig(
            name,
            options.queue,
            options.hop,
            parallel=options.parallel,
            lease_s=options.lease_s,
            idle_s=IDLE_S,
            ahead=capacity - options.parallel,
            batch=max(1, capacity // 2),
            keep_s=options.keep_s,
            dead_keep_s=None,
            policy=EndpointPolicy(
                {name: self.app.rules_for(endpoint, each) for name, each in self.app.handlers[options.name].items()},
                self.app.rules_for(endpoint, None),
            ),
        )
        self._workers[options.name] = name
        self.performer.add(Worker(config), handler=_RowHandler(self, endpoint).deliver)

    def _add_relay(self) -> None:
        relay = Relay(outbox_hop(self.app.name), self.app.enqueue, self.app.senders)
        config = WorkerConfig(
            f"{self.name}/outbox",
            outbox_queue(self.app.name),
            outbox_hop(self.app.name),
            parallel=RELAY_PARALLEL,
            lease_s=RELAY_LEASE_S,
            idle_s=IDLE_S,
            retry=RELAY_RETRY,
            keep_s=self.app.keep_s,
            dead_keep_s=None,
        )
        self.performer.add(Worker(config), handler=relay.deliver)

    # -- what operators and schedules ask for

    async def _watch_pauses(self, paused: set[str]) -> None:
        """An endpoint that was paused by any process is paused in all of them."""
        while True:
            await asyncio.sleep(PAUSES_S)
            with suppress(StoreError):
                found = await asyncio.to_thread(paused_endpoints, self.app)
                for name in found - paused:
                    self._feed(name, Pause())
                for name in paused - found:
                    self._feed(name, Resume())
                paused = found

    def _feed(self, endpoint: str, event: Pause | Resume) -> None:
        if endpoint in self._workers:
            self.performer.feed(self._workers[endpoint], event)

    async def _send_periodic(self, periodic: Periodic) -> None:
        """Each process puts the next one into the outbox. They give it the same id, so it is one message."""
        after = now_us()
        while True:
            calls = OutboxCalls(self.app.name)
            due = periodic.schedule.next_after(after)
            calls.schedule_next(periodic.schedule, periodic.make(), periodic.to, after=after)
            with suppress(StoreError):
                await self.committer.commit(calls.enqueues)
                after = due
            await asyncio.sleep(max(1.0, (due - now_us()) / 1_000_000))


@dataclass(frozen=True, slots=True)
class _RowHandler:
    """Takes the rows of one endpoint."""

    service: InboxService
    endpoint: InboxEndpoint

    async def deliver(self, row: Any) -> Answer:
        assert isinstance(row, WorkRow), "an endpoint is a queue of work"
        app, options = self.service.app, self.endpoint.options
        if is_reservation(row):
            return await self._put_aside(row)
        handler = app.handlers[options.name].get(row.envelope.type)
        if options.is_expired(row.envelope.time, now_us()):
            return await self._end(row, WorkState.DONE, Kind.EXPIRED, "it came too late")
        if handler is None:
            raise MessageRefused(
                f"no handler at {options.name!r} knows messages of type {row.envelope.type!r}",
                fix="add a handler for it, then replay the dead letter",
            )
        if handler.style is Style.RESERVED and is_ambiguous(row) and options.on_crash is not OnCrash.RETRY:
            return await self._ambiguous(row)
        reach("inbox.claimed")
        self.service.handled += 1
        return await self._run_or_cut_off(handler, row)

    async def _run_or_cut_off(self, handler: ReadyHandler, row: WorkRow) -> Answer:
        """A process that ends waits no longer for its handlers. What they did in a transaction is rolled back, and the
        message is given back uncounted; of a reserved one nobody knows: its claim runs out, and `on_crash` decides."""
        try:
            return await self._run(handler, row)
        except asyncio.CancelledError:
            if handler.style is Style.RESERVED:
                return OwnTransaction.LOST
            raise HandlerCutOff("the process ended before the handler did", fix="it will be handled again") from None

    async def _run(self, handler: ReadyHandler, row: WorkRow) -> Answer:
        app = self.service.app
        who = app.identity_of(self.endpoint.name, row.envelope)
        run = HandlerRun(app.context, handler, row.envelope, who, self._mark(row))
        if handler.signature.is_async:
            return await run.on_loop()
        return await self.service.performer.loop.run_in_executor(self.service.threads, run.in_thread)

    def _mark(self, row: WorkRow) -> tuple[Op, ...]:
        options = self.endpoint.options
        done = Finish(row.queue, row.identity, WorkState.DONE, fence=row.fence, keep_s=options.keep_s)
        return done, Log(message_event(Kind.HANDLED, options.hop, "", row.envelope, attempt=row.attempts))

    async def _ambiguous(self, row: WorkRow) -> Answer:
        """Whoever had it died, and its effect may have happened."""
        if self.endpoint.options.on_crash is OnCrash.DROP:
            return await self._end(row, WorkState.DONE, Kind.DISCARDED, DIED)
        return await self._end(row, WorkState.PARKED, Kind.SUSPENDED, DIED)

    async def _put_aside(self, row: WorkRow) -> Answer:
        """A reservation whose claim has run out: only the next delivery has the body."""
        if self.endpoint.options.on_crash is OnCrash.DROP:
            return await self._ambiguous(row)
        aside = Finish(
            row.queue, row.identity, WorkState.DEFERRED, fence=row.fence, cause=DIED, attempts=Attempts.RELEASE
        )
        await self.service.committer.commit([aside])
        return OwnTransaction.FINISHED

    async def _end(self, row: WorkRow, to: WorkState, kind: Kind, cause: str) -> Answer:
        options = self.endpoint.options
        holds = to is WorkState.PARKED and options.failed_head is FailedHead.BLOCKS
        finish = Finish(row.queue, row.identity, to, fence=row.fence, keep_s=options.keep_s, cause=cause, holds=holds)
        event = message_event(kind, options.hop, "", row.envelope, attempt=row.attempts, cause=cause)
        await self.service.committer.commit([finish, Log(event)])
        return OwnTransaction.FINISHED


def _ahead(options: EndpointOptions) -> int:
    """How many may wait in memory. Where a claim that ran out is not simply tried again, none: one that nobody has
    begun would count as one whose effect may have happened."""
    if options.on_crash is not OnCrash.RETRY:
        return 0
    return min(options.buffer_low if options.parallel == 1 else options.parallel, options.buffer_high)


# -- ways to run it


def run_until_signalled(app: Application) -> None:
    run_loop(_until_signalled(app))


async def _until_signalled(app: Application) -> None:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    try:
        async with InboxService(app):
            await stop.wait()
    finally:
        app.close()


def drain(app: Application, timeout_s: float) -> int:
    return run_loop(_drain(app, timeout_s))


async def _drain(app: Application, timeout_s: float) -> int:
    async with InboxService(app) as service, asyncio.timeout(timeout_s):
        while await asyncio.to_thread(has_due_work, app):  # noqa: ASYNC110 - other processes may work at it too
            await asyncio.sleep(DRAIN_LOOK_S)
    return service.handled


def has_due_work(app: Application) -> bool:
    """Whether a message can be handled, is being handled or is to be tried again. One that was sent for later is not
    due, and neither is one behind a dead letter of its key or at an endpoint that is paused."""
    paused = paused_endpoints(app)
    endpoints = [each for each in app.endpoints.values() if each.name not in paused]
    queues = [outbox_queue(app.name), *(each.options.queue for each in endpoints)]
    before = app.store.work_counts()
    if any(app.store.due(queue) or _has_open_rows(app, queue) for queue in queues):
        return True
    # one that went from a queue to another meanwhile may have been seen in neither
    return app.store.work_counts() != before


def _has_open_rows(app: Application, queue: str) -> bool:
    """The store's own look may miss what has just come, so the rows are asked as well."""
    now, blocked = now_us(), {row.key for row in app.store.work_rows(queue, LETTERS)} - {None}
    rows = app.store.work_rows(queue, (WorkState.CLAIMED, WorkState.READY, WorkState.SCHEDULED))
    return any(_is_due(row, now) and row.key not in blocked for row in rows)


def _is_due(row: WorkRow, now: int) -> bool:
    return row.state is not WorkState.SCHEDULED or row.attempts > 0 or row.due <= now
