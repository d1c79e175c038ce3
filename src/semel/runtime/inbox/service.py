"""Runs an application in this process: a worker for each durable endpoint, the relay of its outbox, and the sweeper.

Any number of processes may run the same application. They share the work through claims in the store, and what one of
them held when it died is claimed by another after the lease: there is no leader.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from semel.errors import MessageRefused, StoreError
from semel.inbox.endpoint import EndpointMode, EndpointOptions, OnCrash, Style
from semel.inbox.identity import Identity
from semel.inbox.outbox import OutboxCalls, outbox_hop, outbox_queue
from semel.kernel.effects import OwnTransaction, Pause, Resume
from semel.kernel.ledger import Kind, message_event
from semel.kernel.ops import Finish, Log, Op, WorkRow, WorkState
from semel.kernel.retry import RetryPolicy
from semel.kernel.work import Worker, WorkerConfig
from semel.runtime.host.committer import Committer
from semel.runtime.host.loop import run as run_loop
from semel.runtime.host.performer import Performer
from semel.runtime.host.sweeper import Sweeper
from semel.runtime.inbox.definition import Application, Periodic, now_us
from semel.runtime.inbox.endpoint import InboxEndpoint, ReadyHandler
from semel.runtime.inbox.handling import Answer, HandlerContext, HandlerRun
from semel.runtime.inbox.lanes import RUN_AHEAD, HandlerLanes, LaneRunner, RowEnd
from semel.runtime.inbox.operating import LETTERS, paused_endpoints
from semel.runtime.inbox.policies import EndpointPolicy
from semel.runtime.inbox.relay import Relay
from semel.runtime.inbox.shared_commit import run_alone, run_together

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
        self._handled = 0
        self._lanes: list[HandlerLanes] = []
        self._workers: dict[str, str] = {}
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def handled(self) -> int:
        """How many messages were given to handlers."""
        return self._handled + sum(lanes.handled for lanes in self._lanes)

    async def __aenter__(self) -> Self:
        _ = self.app.handlers  # refuses here, before anything runs
        threads = sum(each.options.parallel for each in self.app.endpoints.values()) or 1
        self.threads = ThreadPoolExecutor(threads, thread_name_prefix=f"semel-inbox-{self.app.name}")
        self.performer = Performer(self.app.store)
        await self.performer.start()
        self.committer = Committer(self.performer)
        for endpoint in self.app.endpoints.values():
            if endpoint.options.mode is EndpointMode.DURABLE:
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
        for lanes in self._lanes:
            lanes.close()
        self.threads.shutdown(wait=False, cancel_futures=True)

    def _begin(self, *jobs: Any) -> None:
        self._tasks += [asyncio.get_running_loop().create_task(job) for job in jobs]

    # -- workers

    def _add_worker(self, endpoint: InboxEndpoint) -> None:
        options = endpoint.options
        name = f"{self.name}/{options.name}"
        begun = options.parallel * options.share_commit
        ahead = options.buffer_low if begun == 1 else max(begun, RUN_AHEAD)
        capacity = begun + min(ahead, options.buffer_high)
        in_lanes = all(not each.signature.is_async for each in self.app.handlers[options.name].values())
        config = WorkerConfig(
            name,
            options.queue,
            options.hop,
            parallel=(parallel := min(capacity, begun + RUN_AHEAD) if in_lanes else options.parallel),
            lease_s=options.lease_s,
            idle_s=IDLE_S,
            ahead=capacity - parallel,
            batch=max(1, capacity // 2),
            keep_s=options.keep_s,
            dead_keep_s=None,
            policy=EndpointPolicy(
                {name: self.app.rules_for(endpoint, each) for name, each in self.app.handlers[options.name].items()},
                self.app.rules_for(endpoint, None),
            ),
        )
        self._workers[options.name] = name
        worker, rows = Worker(config), _RowHandler(self, endpoint, self.app.context)
        if not in_lanes:
            self.performer.add(worker, handler=rows.deliver)
            return
        runner = LaneRunner(
            options.name,
            rows.in_lane,
            rows.deliver,
            lambda token: worker.may_begin(token, self.performer.now()),
            options.share_commit,
        )
        self._lanes.append(HandlerLanes(self.performer, runner, options.parallel))
        self.performer.add(worker, taker=self._lanes[-1].take)

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
    context: HandlerContext

    def in_lane(self, rows: Sequence[WorkRow]) -> Sequence[RowEnd]:
        """On a thread. What needs no handler, or a decision before it, is left to the loop."""
        handlers = self.service.app.handlers[self.endpoint.name]
        ready = [handlers.get(row.envelope.type) for row in rows]
        runs = [
            HandlerRun(self.context, handler, row.envelope, self._identity(row), self._mark(row))
            if handler is not None and not self._needs_decision(handler, row)
            else None
            for handler, row in zip(ready, rows, strict=True)
        ]
        providers = {run.handler.provider for run in runs if run is not None}
        if len(providers) == 1:
            ends = iter(run_together([run for run in runs if run is not None]))
        else:
            ends = iter([run_alone(run) for run in runs if run is not None])
        return [
            RowEnd(None) if run is None else with_key(next(ends), row.key) for run, row in zip(runs, rows, strict=True)
        ]

    def _needs_decision(self, handler: ReadyHandler, row: WorkRow) -> bool:
        options = self.endpoint.options
        is_late = options.expire_s is not None and is_expired(options, row, now_us())
        return is_late or (handler.style is Style.RESERVED and is_taken_over(row))

    async def deliver(self, row: Any) -> Answer:
        assert isinstance(row, WorkRow), "an endpoint is a queue of work"
        app, options = self.service.app, self.endpoint.options
        handler = app.handlers[options.name].get(row.envelope.type)
        if is_expired(options, row, now_us()):
            return await self._end(row, WorkState.DONE, Kind.EXPIRED, "it came too late")
        if handler is None:
            raise MessageRefused(
                f"no handler at {options.name!r} knows messages of type {row.envelope.type!r}",
                fix="add a handler for it, then replay the dead letter",
            )
        if handler.style is Style.RESERVED and is_taken_over(row) and options.on_crash is not OnCrash.RETRY:
            return await self._ambiguous(row)
        self.service._handled += 1
        return await self._run(handler, row)

    async def _run(self, handler: ReadyHandler, row: WorkRow) -> Answer:
        run = HandlerRun(self.context, handler, row.envelope, self._identity(row), self._mark(row))
        if handler.signature.is_async:
            return await run.on_loop()
        return await self.service.performer.loop.run_in_executor(self.service.threads, run.in_thread)

    def _identity(self, row: WorkRow) -> Identity:
        return self.service.app.identity_of(self.endpoint.name, row.envelope)

    def _mark(self, row: WorkRow) -> tuple[Op, ...]:
        options = self.endpoint.options
        done = Finish(row.queue, row.identity, WorkState.DONE, fence=row.fence, keep_s=options.keep_s)
        return done, Log(message_event(Kind.HANDLED, options.hop, "", row.envelope, attempt=row.attempts))

    async def _ambiguous(self, row: WorkRow) -> Answer:
        """Whoever had it died, and its effect may have happened."""
        cause = "its worker died while it had this message: its effect may have happened"
        if self.endpoint.options.on_crash is OnCrash.DROP:
            return await self._end(row, WorkState.DONE, Kind.DISCARDED, cause)
        return await self._end(row, WorkState.PARKED, Kind.SUSPENDED, cause)

    async def _end(self, row: WorkRow, to: WorkState, kind: Kind, cause: str) -> Answer:
        options = self.endpoint.options
        finish = Finish(row.queue, row.identity, to, fence=row.fence, keep_s=options.keep_s, cause=cause)
        event = message_event(kind, options.hop, "", row.envelope, attempt=row.attempts, cause=cause)
        await self.service.committer.commit([finish, Log(event)])
        return OwnTransaction.FINISHED


def with_key(ended: RowEnd, key: str | None) -> RowEnd:
    """The next message of the key may be handled now, by whoever hears of it first."""
    return ended if key is None or ended.answer is not OwnTransaction.FINISHED else RowEnd(ended.answer, has_news=True)


def is_taken_over(row: WorkRow) -> bool:
    """Whether whoever had it before never said what became of it."""
    return row.taken_over


def is_expired(options: EndpointOptions, row: WorkRow, now: int) -> bool:
    time = row.envelope.time
    return options.expire_s is not None and time is not None and now > time + options.expire_s * 1_000_000


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
    endpoints = [each for each in app.endpoints.values() if each.options.mode is EndpointMode.DURABLE]
    queues = [outbox_queue(app.name), *(each.options.queue for each in endpoints if each.name not in paused)]
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
