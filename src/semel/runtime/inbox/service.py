"""Runs an application in this process: a worker for each endpoint, the relay of its outbox, and the sweeper.

Listeners bring messages from brokers, where an endpoint listens to one. An inline or buffered endpoint has a worker for
what it had to keep: replayed dead letters, what is to be tried later, and what a relay has put there.

Any number of processes may run the same application. They share the work through claims in the store, and what one of
them held when it died is claimed by another after the lease: there is no leader.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any, Self

from semel.errors import InputError, StoreError
from semel.inbox.endpoint import EndpointMode, EndpointOptions, OnCrash
from semel.inbox.outbox import OutboxCalls, destination_of, outbox_hop, outbox_queue, public_text
from semel.inbox.reservation import is_reservation
from semel.kernel.effects import OwnTransaction, Pause, Resume
from semel.kernel.envelope import rfc3339
from semel.kernel.ledger import Kind, message_event
from semel.kernel.ops import Finish, Log, WorkRow, WorkState
from semel.kernel.retry import RetryPolicy
from semel.kernel.work import Worker, WorkerConfig
from semel.runtime.brokers.senders import BrokerSenders
from semel.runtime.host.committer import Committer
from semel.runtime.host.loop import run as run_loop
from semel.runtime.host.performer import Performer
from semel.runtime.host.sweeper import Sweeper
from semel.runtime.inbox.buffered import BufferRunner
from semel.runtime.inbox.counts import CountedPolicy
from semel.runtime.inbox.definition import Application, Periodic, now_us
from semel.runtime.inbox.endpoint import InboxEndpoint
from semel.runtime.inbox.following import FollowRunner, StreamFollower
from semel.runtime.inbox.handling import Answer
from semel.runtime.inbox.lanes import RUN_AHEAD, HandlerLanes, LaneRunner
from semel.runtime.inbox.listening import InboxListener
from semel.runtime.inbox.operating import LETTERS, paused_endpoints
from semel.runtime.inbox.owners import lost_endpoints
from semel.runtime.inbox.policies import EndpointPolicy
from semel.runtime.inbox.relay import Relay, RelayPolicy
from semel.runtime.inbox.row_handler import RowHandler
from semel.runtime.inbox.senders import AskedToWait, HttpSenders

log = logging.getLogger(__name__)

IDLE_S = 0.2
PAUSES_S = 1.0
AHEAD_S = 0.2
"""A worker holds what its handlers do in about this time: the rest is for other processes, which may be idle."""
PERIODIC_S_MIN = 1.0
DRAIN_LOOK_S = 0.02
RELAY_PARALLEL = 16
RELAY_LEASE_S = 10.0
RELAY_RETRY = RetryPolicy(interval_s=0.5, factor=2.0, interval_max_s=60.0)
"""What is in the outbox was promised: it is sent until somebody has it, or an operator ends it."""


class InboxService:
    """`async with InboxService(app):` handles messages until the block ends, then finishes what has begun."""

    def __init__(self, app: Application, *, name: str = "", listeners: Sequence[InboxListener] = ()) -> None:
        self.app = app
        self.listeners = tuple(listeners)
        self.name = name or f"{app.name}@{socket.gethostname()}:{os.getpid()}"
        self._rows: list[RowHandler] = []
        self._lanes: list[HandlerLanes] = []
        self._workers: dict[str, str] = {}
        self._lost: set[str] = set()
        self._tasks: list[asyncio.Task[None]] = []
        self._runners: list[BufferRunner] = []

    async def __aenter__(self) -> Self:
        _ = self.app.handlers  # refuses here, before anything runs
        for name in self.app.settings.endpoints.keys() - self.app.endpoints.keys():
            log.warning("%s sets up endpoint %r, which %s has not", self.app.settings.where, name, self.app.name)
        threads = sum(each.options.parallel for each in self.app.endpoints.values()) or 1
        self.threads = ThreadPoolExecutor(threads, thread_name_prefix=f"semel-inbox-{self.app.name}")
        self.performer = Performer(self.app.store, clock=self.app.clock)
        await self.performer.start()
        self.committer = Committer(self.performer)
        for endpoint in self.app.endpoints.values():
            # what is replayed or scheduled is a row at every endpoint
            self._add_worker(endpoint)
            if endpoint.options.mode is EndpointMode.BUFFERED:
                self._runners.append(BufferRunner(self.app, endpoint, self.threads))
        paused = await asyncio.to_thread(paused_endpoints, self.app)
        for name in paused:
            self._feed(name, Pause())
        self._http = HttpSenders(self.app.hub)
        self._brokers = BrokerSenders(self.app.brokers, self.app.name)
        self._add_relay()
        sweeper = Sweeper(self.app.store, failed=lambda error, what: self.performer.outages.record(error))
        self._follows = FollowRunner(self.app, owner=self.name)
        self._begin(
            *self._follows.jobs(),
            sweeper.run(),
            self._watch_pauses(paused),
            *(self._send_periodic(each) for each in self.app.periodic),
        )
        for runner in self._runners:
            runner.start()
        for listener in self.listeners:
            listener.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.gather(*(each.close() for each in self.listeners))
        await asyncio.gather(*(each.close() for each in self._runners))
        for name in self._workers:
            self.app.gate(name).hold(False)  # nobody would notice any more that it goes on
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._follows.close()
        await self.performer.close()
        await self._http.close()
        await self._brokers.close()
        for lanes in self._lanes:
            lanes.close()
        self.threads.shutdown(wait=False, cancel_futures=True)

    @property
    def followers(self) -> list[StreamFollower]:
        return self._follows.followers

    def has_unread(self) -> bool:
        """Whether a stream that is followed has something that was not taken yet."""
        return self._follows.has_unread()

    @property
    def handled(self) -> int:
        """How many messages were given to handlers."""
        counters: list[RowHandler | HandlerLanes | BufferRunner] = [*self._rows, *self._lanes, *self._runners]
        return sum(each.handled for each in counters)

    def _begin(self, *jobs: Any) -> None:
        self._tasks += [asyncio.get_running_loop().create_task(job) for job in jobs]

    # -- workers

    def _add_worker(self, endpoint: InboxEndpoint) -> None:
        options = endpoint.options
        name = f"{self.name}/{options.name}"
        begun = options.parallel * options.share_commit
        in_lanes = all(not each.signature.is_async for each in self.app.handlers[options.name].values())
        capacity = begun + _ahead(options, begun)
        parallel = min(capacity, begun + RUN_AHEAD) if in_lanes else options.parallel
        config = WorkerConfig(
            name,
            options.queue,
            options.hop,
            parallel=parallel,
            lease_s=options.lease_s,
            idle_s=IDLE_S,
            ahead=capacity - parallel,
            batch=max(1, capacity // 2),
            ahead_s=AHEAD_S,
            at_once=begun,
            keep_s=options.keep_s,
            dead_keep_s=None,
            policy=CountedPolicy(self._policy(endpoint), self.app.telemetry.of(options.name)),
            gate=self.app.gate(options.name),
        )
        self._workers[options.name] = name
        worker = Worker(config)
        rows = RowHandler(self.app, endpoint, self.app.context, self.committer, self.threads)
        self._rows.append(rows)
        if not in_lanes:
            self.performer.add(worker, handler=rows.deliver)
            return
        gate, clock = self.app.gate(options.name), self.app.clock

        def may_begin(token: int) -> bool:
            return worker.may_begin(token, self.performer.now()) and not gate.takes_nothing(clock())

        runner = LaneRunner(options.name, rows.in_lane, rows.deliver, may_begin, rows.cut_off, options.share_commit)
        self._lanes.append(HandlerLanes(self.performer, runner, options.parallel))
        self.performer.add(worker, taker=self._lanes[-1].take)

    def _policy(self, endpoint: InboxEndpoint) -> EndpointPolicy:
        handlers = self.app.handlers[endpoint.name]
        by_type = {name: self.app.rules_for(endpoint, each) for name, each in handlers.items()}
        return EndpointPolicy(by_type, self.app.rules_for(endpoint, None))

    def _add_relay(self) -> None:
        # what the application brings comes before what comes with Semel
        senders = {**self._http.by_kind, **self._brokers.by_kind, **self.app.senders}
        relay = Relay(outbox_hop(self.app.name), self.app.enqueue, senders, memory=self.app.memory_of, now=now_us)
        config = WorkerConfig(
            f"{self.name}/outbox",
            outbox_queue(self.app.name),
            outbox_hop(self.app.name),
            parallel=RELAY_PARALLEL,
            lease_s=RELAY_LEASE_S,
            idle_s=IDLE_S,
            policy=CountedPolicy(RelayPolicy(RELAY_RETRY), self.app.telemetry.of(outbox_queue(self.app.name))),
            keep_s=self.app.keep_s,
            dead_keep_s=None,
            delivery=_delivery_of,
        )
        self.performer.add(Worker(config), handler=partial(self._relay, relay))

    async def _relay(self, relay: Relay, row: Any) -> Answer:
        try:
            with self.app.telemetry.relaying(outbox_queue(self.app.name), row) as traced:
                return await relay.deliver(traced)
        except AskedToWait as asked:
            return await self._postpone(row, asked)

    async def _postpone(self, row: WorkRow, asked: AskedToWait) -> Answer:
        """The other side says when it may be sent again."""
        again = Finish(
            row.queue, row.identity, WorkState.SCHEDULED, fence=row.fence, delay_s=asked.wait_s, cause=asked.message
        )
        hop = outbox_hop(self.app.name)
        event = message_event(
            Kind.FAILED, hop, "", row.envelope, delivery=_delivery_of(row), attempt=row.attempts, cause=asked.message
        )
        await self.committer.commit([again, Log(event)])
        return OwnTransaction.FINISHED

    # -- what operators and schedules ask for

    async def _watch_pauses(self, paused: set[str]) -> None:
        """An endpoint that was paused by any process is paused in all of them."""
        while True:
            await asyncio.sleep(PAUSES_S)
            with suppress(StoreError):
                found = await asyncio.to_thread(self._not_ours)
                for name in found - paused:
                    self._feed(name, Pause())
                for name in paused - found:
                    self._feed(name, Resume())
                paused = found

    def _not_ours(self) -> set[str]:
        """Endpoints that an operator has paused, or that another application has taken over."""
        lost = lost_endpoints(self.app.store, self.app.name, self._workers)
        for name in lost - self._lost:
            log.error("endpoint %r was taken over by another application: this process takes nothing from it", name)
        self._lost = lost
        return paused_endpoints(self.app) | lost

    def _feed(self, endpoint: str, event: Pause | Resume) -> None:
        if endpoint in self._workers:
            self.app.gate(endpoint).hold(isinstance(event, Pause))
            self.performer.feed(self._workers[endpoint], event)

    async def _send_periodic(self, periodic: Periodic) -> None:
        """Each process puts the next one into the outbox. They give it the same id, so it is one message. One that
        cannot be made is tried again when its time has come, and then left out."""
        after = now_us()
        while True:
            due, calls = periodic.schedule.next_after(after), OutboxCalls(self.app.name)
            try:
                made = periodic.make()
                calls.schedule_next(periodic.schedule, made, periodic.to, after=after, **periodic.attributes)
                await self.committer.commit(calls.enqueues)
                after = due
            except StoreError:
                log.info("the store did not take the next %r; it will be put there later", periodic.schedule.name)
            except Exception:
                after = due if now_us() >= due else after
                log.exception("the periodic message %r of %s cannot be made", periodic.schedule.name, rfc3339(due))
            await asyncio.sleep(max(PERIODIC_S_MIN, (due - now_us()) / 1_000_000))


def _ahead(options: EndpointOptions, begun: int) -> int:
    """How many may wait in memory. Where a claim that ran out is not simply tried again, none: one that nobody has
    begun would count as one whose effect may have happened."""
    if options.on_crash is not OnCrash.RETRY:
        return 0
    return min(options.buffer_low if begun == 1 else max(begun, RUN_AHEAD), options.buffer_high)


# -- ways to run it


def run_until_signalled(app: Application, listeners: Callable[[], Sequence[InboxListener]] = tuple) -> None:
    run_loop(_until_signalled(app, listeners))


async def _until_signalled(app: Application, listeners: Callable[[], Sequence[InboxListener]]) -> None:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    try:
        async with InboxService(app, listeners=listeners()):
            await stop.wait()
    finally:
        app.close()


def drain(app: Application, timeout_s: float) -> int:
    return run_loop(drain_async(app, timeout_s))


async def drain_async(app: Application, timeout_s: float) -> int:
    async with InboxService(app) as service, asyncio.timeout(timeout_s):
        while await asyncio.to_thread(_has_something, service):  # noqa: ASYNC110 - other processes may work at it too
            await asyncio.sleep(DRAIN_LOOK_S)
    for buffer in app.buffers.values():
        buffer.open()  # the process goes on, and may drain again
    return service.handled


def _has_something(service: InboxService) -> bool:
    """Rows twice: the relay fills streams, and a stream becomes rows between two looks."""
    return has_due_work(service.app) or service.has_unread() or has_due_work(service.app)


def _delivery_of(row: WorkRow) -> str:
    """Where it goes: one id may go to several places, and the ledger tells them apart by this."""
    try:
        return public_text(destination_of(row.envelope))
    except InputError:
        return ""


def has_due_work(app: Application) -> bool:
    """Whether a message can be handled, is being handled or is to be tried again. One that was sent for later is not
    due, and neither is one behind a dead letter of its key or at an endpoint that is paused or has an open breaker."""
    paused = paused_endpoints(app) | {name for name in app.endpoints if app.gate(name).takes_nothing(app.clock())}
    open_endpoints = [each for each in app.endpoints.values() if each.name not in paused]
    if any(app.buffers.get(each.name) for each in open_endpoints):
        return True
    queues = [outbox_queue(app.name), *(each.options.queue for each in open_endpoints)]
    before = app.store.work_counts()
    if any(app.store.due(queue) or _has_open_rows(app, queue) for queue in queues):
        return True
    # one that went from a queue to another meanwhile may have been seen in neither
    return app.store.work_counts() != before


def _has_open_rows(app: Application, queue: str) -> bool:
    """The store's own look may miss what has just come, so the rows are asked as well."""
    now, blocked = now_us(), {row.key for row in app.store.work_rows(queue, LETTERS)} - {None}
    rows = app.store.work_rows(queue, (WorkState.CLAIMED, WorkState.READY, WorkState.SCHEDULED))
    return any(_is_due(row, now) and row.key not in blocked and not _is_delivered(app, row) for row in rows)


def _is_delivered(app: Application, row: WorkRow) -> bool:
    """Whether a transport's delivery has it: only workers have longer names than the application."""
    return is_reservation(row.envelope) and row.state is WorkState.CLAIMED and row.owner == app.name


def _is_due(row: WorkRow, now: int) -> bool:
    return row.state is not WorkState.SCHEDULED or row.attempts > 0 or row.due <= now
