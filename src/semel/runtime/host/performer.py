"""Performs what machines ask for: the asyncio driver of `kernel.interpreter`.

    loop thread      machines, timers, transports, handlers that are coroutines
    writer thread    store.commit, one group at a time
    reader threads   store.read, store.state, and whatever builds a machine

All commits that wait when the writer is free share one transaction; while it is under way the next group gathers. The
completions of a group reach the loop in one call: machines get them, and only then do their sends go out.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import accumulate
from types import TracebackType
from typing import Any, Self, get_args

from semel.errors import HandlerError, PeerUnavailable, SemelError, StoreUnavailable
from semel.kernel.effects import (
    Close,
    Deliver,
    DeliverFailed,
    Drain,
    Effect,
    Event,
    Loading,
    Machine,
    Notify,
    OwnTransaction,
    PeerConnected,
    PeerDisconnected,
    Read,
    Received,
    Send,
    SendFailed,
    Sent,
    delivered,
)
from semel.kernel.group import CommitGroup, Completion, GroupLimits, in_words
from semel.kernel.interpreter import Interpreter, Seat
from semel.kernel.ops import Append, Enqueue, Finish, Op, WorkRow
from semel.kernel.retry import type_names
from semel.kernel.store import Record, Store
from semel.runtime.host.hosting import Factory, Handler, Host, Hosts, Taker, cause_of
from semel.runtime.host.log_fields import about_item
from semel.runtime.host.outages import Outages, Use, is_outage
from semel.runtime.host.threads import Readers, Report, Writer, hand_over, run_in_thread
from semel.runtime.transports.base import Transport
from semel.stores.bodies import read_whole
from semel.stores.points import reach

LIMITS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class CommitTimes:
    """How long transactions take. Each carries the commits of many callers; `commits` counts those."""

    __slots__ = ("_counts", "commits", "sum_s")

    def __init__(self) -> None:
        self._counts = [0] * (len(LIMITS_S) + 1)
        self.sum_s = 0.0
        self.commits = 0

    def add(self, took_s: float, commits: int) -> None:
        self._counts[bisect_left(LIMITS_S, took_s)] += 1
        self.sum_s += took_s
        self.commits += commits

    def up_to(self) -> Iterator[tuple[float, int]]:
        """How many took at most so long, for each limit and for ever."""
        return zip((*LIMITS_S, float("inf")), accumulate(self._counts), strict=True)


log = logging.getLogger(__name__)

Observer = Callable[[str, Notify | Close], None]
"""Called, with a machine's name, with what people should know about it."""

TIMER_MAX_S = 30.0
"""A clock that was passed in may be set forward while the loop sleeps: look at it at least this often."""

TIMER_MIN_S = 0.001

GIVE_UP_S = 1.0
"""How long closing waits on, after its time is up, for handlers that were cancelled and for what they commit."""

THREADS_END_S = 5.0
TRY_READING_S = 0.5
"""However much is committed while reading does not work, reading is tried once in this time."""

_OPS = get_args(Op)
_NEWS = (Append, Enqueue, Finish)


class _Interpreter(Interpreter):
    """The kernel's interpreter, except that the performer chooses the moment at which the next group begins."""

    def __init__(self, performer: Performer, clock: Callable[[], float], limits: GroupLimits | None) -> None:
        super().__init__(performer, clock, limits, performer._on_defect)
        self._waiting = performer._commits_wait

    def _begin_commit(self) -> None:
        self._waiting()

    def begin(self) -> None:
        super()._begin_commit()


class Performer:
    """Hosts machines on one store. `async with Performer(store) as performer:` starts it and closes it cleanly.

    `doubt_s` is how long a commit in doubt may hold everything up before it is given up as unknown. `clock` is the time
    of the machines; see `steady_clock`. The store belongs to the caller, who closes it afterwards.
    """

    def __init__(
        self,
        store: Store,
        *,
        limits: GroupLimits | None = None,
        clock: Callable[[], float] | None = None,
        doubt_s: float = 30.0,
        readers: int = 2,
        handler_threads: int = 8,
    ) -> None:
        self.store = store
        self._clock = clock or steady_clock()
        self._doubt_s = doubt_s
        self._reader_count = readers
        self._interpreter = _Interpreter(self, self._clock, limits)
        self._queue = self._interpreter.queue
        self._executor = ThreadPoolExecutor(handler_threads, thread_name_prefix="semel-handler")
        self._hosts = Hosts()
        self._transports: list[Transport] = []
        self._observers: list[Observer] = []
        self._on_room: list[Callable[[], None]] = []
        self._on_end: list[Callable[[], None]] = []
        self._outbox: list[tuple[Seat, Send]] = []
        self._handlers: set[asyncio.Task[None]] = set()
        self.commit_times = CommitTimes()
        self.outages = Outages()
        self._tried_reading_at = float("-inf")
        self.unanswered = ""
        """After closing: which commits could not be reported to anybody, in words."""
        self._under_way: CommitGroup | None = None
        self._under_way_since = 0.0
        self._begin_due = False
        self._tick_due = False
        self._wake_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at: float | None = None
        self._closing = False
        self._started = False
        self._refusing = False
        self._closed = False
        self._group_ended = asyncio.Event()

    # -- life

    async def start(self) -> Self:
        self.loop = asyncio.get_running_loop()
        self._writer = Writer(
            self.store,
            self.loop,
            self._interpreter,
            self._group_done,
            doubt_s=self._doubt_s,
            trouble=self.outages.record,
        )
        self._readers = Readers(self.loop, self._reader_count)
        self._stop_listening = self.store.listen(self._store_changed)
        self._started = True
        return self

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self, timeout_s: float = 30.0) -> None:
        """Take no more work, finish what was taken, tell the machines, send what they answer.

        Handlers run to their end first, may still commit, and keep their leases. Those that outlast the time are
        cancelled. Commits that do are answered as failed or unknown: then the store hangs, and what became of them
        only the store can tell.
        """
        if self._closing or not self._started:
            return
        self._closing = True
        self._stop_listening()
        for transport in self._transports:
            transport.pause()
        for host in self._hosts:
            seat = self._interpreter.seat(host.name)
            if seat is not None:
                seat.is_resting = True
                if getattr(seat.machine, "wants_rest", False):
                    self.feed(host.name, Drain())
        try:
            async with asyncio.timeout(timeout_s):
                await self._end_handlers()
                self._refusing = True
                await self._drain()
        except TimeoutError:
            self._refusing = True
            await self._give_up()
        self._tick()
        await self._end()

    async def _end_handlers(self) -> None:
        while self._handlers:
            await asyncio.wait(self._handlers)

    async def _drain(self) -> None:
        """Machines may answer a completion with another commit, so look again after each group."""
        while len(self._queue):
            self._group_ended.clear()
            await self._group_ended.wait()

    async def _give_up(self) -> None:
        """Cancelled handlers and their commits get a last moment. A store that hangs gets no more than that."""
        for task in self._handlers:
            task.cancel()
        with suppress(TimeoutError):
            async with asyncio.timeout(GIVE_UP_S):
                await self._end_handlers()
                await self._drain()
        if self._under_way is not None:
            self.unanswered = in_words(self._under_way.members)
            log.error("closed while the store did not answer; in doubt: %s", self.unanswered)
            self._interpreter.unknown(self._under_way)
        while (group := self._queue.next_group()) is not None:
            self._interpreter.failed(group, closed_error())

    async def _end(self) -> None:
        self._closed = True
        self._group_ended.set()
        for call in self._on_end:
            call()
        if self._timer is not None:
            self._timer.cancel()
        for transport in self._transports:
            await transport.close()
        for host in self._hosts:
            self._interpreter.remove(host.name)
        self._executor.shutdown(wait=False, cancel_futures=True)
        await run_in_thread(self.loop, self._stop_threads)

    def _stop_threads(self) -> None:
        """A store that does not answer is not waited for: its threads end with the process."""
        wait_s = 0.0 if self._under_way is not None or self.outages.current is not None else THREADS_END_S
        self._writer.stop(wait_s)
        self._readers.stop(wait_s)

    # -- machines

    def add(
        self,
        machine: Machine,
        *,
        factory: Factory | None = None,
        handler: Handler | None = None,
        inline: bool = False,
        taker: Taker | None = None,
        transport: Transport | None = None,
        peers: Collection[str] | None = None,
    ) -> None:
        """Start a machine. With a `factory` it starts again from the store when it asks to be reloaded.

        An `inline` handler is called on the loop itself: for functions that are quick and wait for nothing. A `taker`
        has its own way to run what is delivered, see `take_part`.

        It sends through `transport` and receives what `peers` send there (None: all of them). Two senders that share a
        transport need their own peers, or one would take the other's confirms for its own.
        """
        self.check_open()
        wants_sent = getattr(machine, "wants_sent", False)
        self._hosts.add(Host(machine.name, factory, handler, transport, peers, inline, wants_sent, taker))
        self._interpreter.add(machine)
        self._touch()

    async def host(
        self,
        factory: Factory,
        *,
        handler: Handler | None = None,
        inline: bool = False,
        transport: Transport | None = None,
        peers: Collection[str] | None = None,
    ) -> None:
        """Build a machine from the store and start it. See `add`."""
        built: asyncio.Future[Machine] = self.loop.create_future()
        self._readers.submit(
            partial(factory, self.store),
            lambda machine: None if built.done() else built.set_result(machine),
            lambda error: None if built.done() else built.set_exception(error),
        )
        self.add(
            await built, factory=factory, handler=handler, inline=inline, transport=transport, peers=peers
        )  # fmt: skip

    def remove(self, name: str) -> None:
        self._hosts.remove(name)
        self._interpreter.remove(name)

    def machine(self, name: str) -> Machine | None:
        """The machine of that name as it stands, to look at; None while it is being reloaded."""
        seat = self._interpreter.seat(name)
        return seat.machine if seat is not None else None

    def _on_defect(self, seat: Seat, error: Exception) -> Sequence[Effect]:
        """It is reported, and the machine starts again. The others go on."""
        log.exception("machine %s failed", seat.machine.name)
        return Notify("machine-failed", f"{seat.machine.name}: {cause_of(error)}"), Close("reload")

    def feed(self, name: str, event: Event) -> None:
        """Hand an event to a machine by name: an operator's `Resume`, say. Nothing happens if there is none."""
        seat = self._interpreter.seat(name)
        if seat is not None:
            self._interpreter.feed(seat, event)
            self._touch()

    def observe(self, observer: Observer) -> None:
        """Call it with every `Notify`, and with every `Close` of a machine that does not come back."""
        self._observers.append(observer)

    def attach(self, transport: Transport) -> None:
        """Let a transport speak to the machines that were added with it. It is closed with the performer."""
        self._transports.append(transport)
        transport.bind(self)

    @property
    def is_open(self) -> bool:
        """It has been started and is not closed."""
        return self._started and not self._refusing

    def check_open(self) -> None:
        if not self.is_open:
            raise closed_error()

    # -- commits

    @property
    def is_full(self) -> bool:
        return self._queue.is_full

    def submit(self, ops: tuple[Op, ...], chain: str | None, done: Callable[[Completion], None]) -> None:
        """Commit for somebody who is not a machine; `done` gets what became of it. Call it on the loop."""
        self._queue.submit(ops, chain, 0, done)
        self._commits_wait()

    def under_way_s(self) -> float:
        """How long the store has been at the transaction that it is at."""
        return 0.0 if self._under_way is None else time.perf_counter() - self._under_way_since

    def on_room(self, call: Callable[[], None]) -> None:
        """Call it whenever the queue may have become shorter."""
        self._on_room.append(call)

    def on_end(self, call: Callable[[], None]) -> None:
        """Call it on the loop when nothing will be committed any more."""
        self._on_end.append(call)

    async def room(self) -> None:
        """Wait until the queue is no longer full."""
        while self.is_full and not self._closed:
            self._group_ended.clear()
            await self._group_ended.wait()

    def _commits_wait(self) -> None:
        """Begin a turn of the loop later, so that whoever commits in this one or the next shares the transaction.

        Right after a group this means: its sends leave first, and those who get them, or have waited to be read,
        join the next one. Starting it at once keeps the disk busier but halves the groups, and the two threads then
        fight for the interpreter lock: measured with 64 producers on SQLite, a quarter to a third fewer commits per
        second; with a thousand subscribers of a hub, half as many deliveries.
        """
        if self._under_way is None and not self._begin_due:
            self._begin_due = True
            self.loop.call_soon(self.loop.call_soon, self._begin)

    def _begin(self) -> None:
        self._begin_due = False
        if self._under_way is None and not self._closed:
            self._interpreter.begin()

    def commit(self, group: CommitGroup) -> None:
        self._under_way, self._under_way_since = group, time.perf_counter()
        self._writer.put(group)
        self._offer_room()

    def _offer_room(self) -> None:
        for call in self._on_room:
            call()

    def _group_done(self, group: CommitGroup, report: Report, error: SemelError | None) -> None:
        """Report, then send: a confirm leaves only after the machines have their completions."""
        if self._closed:
            return
        self._under_way = None
        self.commit_times.add(time.perf_counter() - self._under_way_since, len(group.members))
        if error is None:
            self.outages.committed()
            if self.outages.is_unreadable and self.loop.time() - self._tried_reading_at >= TRY_READING_S:
                self.try_reading()
        else:
            self.outages.record(error)
        report()
        if self._hosts and _is_news(group):
            self._interpreter.wake(is_own=True)
        reach("perform.completed")
        self._offer_room()
        self._group_ended.set()
        if self._hosts:
            self._tick()

    # -- reads

    def read(self, seat: Seat, effect: Read) -> None:
        read = partial(read_whole, self.store) if effect.bodies else self.store.read
        self._readers.submit(
            partial(read, effect.stream, effect.after, effect.limit),
            partial(self._succeeded, self._interpreter.read_done, seat, effect),
            partial(self._failed, self._interpreter.read_failed, seat, effect),
        )

    def load(self, seat: Seat, effect: Loading) -> None:
        self._readers.submit(
            partial(effect.of, self.store),
            partial(self._succeeded, self._interpreter.load_done, seat, effect),
            partial(self._failed, self._interpreter.load_failed, seat, effect),
        )

    def try_reading(self, done: Callable[[], None] = lambda: None) -> None:
        """Whether that works again: nobody else may read for a long time."""
        self._tried_reading_at = self.loop.time()

        def succeeded(_: object) -> None:
            self.outages.was_read()
            done()

        def failed(error: SemelError) -> None:
            self.outages.record(error, use=Use.READING)
            done()

        self._readers.submit(partial(self.store.state, f"trial/{self.store.node}"), succeeded, failed)

    def _succeeded(
        self, report: Callable[[Seat, Any, Any], None], seat: Seat, effect: Read | Loading, answer: Any
    ) -> None:
        self.outages.was_read()
        self._load_ended(report, seat, effect, answer)

    def _load_ended(
        self, report: Callable[[Seat, Any, Any], None], seat: Seat, effect: Read | Loading, answer: Any
    ) -> None:
        report(seat, effect, answer)
        self._touch()

    def _failed(
        self,
        report: Callable[[Seat, Any, Any], None],
        seat: Seat,
        effect: Read | Loading,
        error: SemelError,
    ) -> None:
        self.outages.record(error, use=Use.READING)
        self._load_ended(report, seat, effect, error)

    def _store_changed(self) -> None:
        """Called from any thread. Our own commits wake the machines themselves, together with the completions."""
        if self._wake_due or not self._hosts or self._writer.is_current():
            return
        self._wake_due = True
        hand_over(self.loop, self._wake)

    def _wake(self) -> None:
        self._wake_due = False
        if not self._closing:
            self._interpreter.wake()
            self._touch()

    # -- the wire

    def send(self, seat: Seat, effect: Send) -> None:
        self._outbox.append((seat, effect))

    def _flush(self) -> None:
        outbox, self._outbox = self._outbox, []
        for seat, effect in outbox:
            event = self._put_on_wire(seat, effect)
            if event is not None:
                self._interpreter.feed(seat, event)
        for transport in self._transports:
            transport.flush()

    def _put_on_wire(self, seat: Seat, effect: Send) -> Event | None:
        host = self._hosts.get(seat.machine.name)
        if host is not None and host.transport is not None and host.transport.send(effect.peer, effect.message):
            return Sent(effect.peer) if host.wants_sent else None
        error = PeerUnavailable(f"no connection to {effect.peer}, or its buffer is full", fix="it will be sent again")
        return SendFailed(effect.peer, error)

    def received(self, transport: Transport, peer: str, message: Any) -> None:
        self._feed_receivers(transport, peer, Received(peer, message))

    def connected(self, transport: Transport, peer: str) -> None:
        self._feed_receivers(transport, peer, PeerConnected(peer))

    def disconnected(self, transport: Transport, peer: str) -> None:
        self._feed_receivers(transport, peer, PeerDisconnected(peer))

    def _feed_receivers(self, transport: Transport, peer: str, event: Event) -> None:
        if self._closing:
            return
        for host in self._hosts.receivers(transport, peer):
            self.feed(host.name, event)

    # -- the application

    def deliver(self, seat: Seat, effect: Deliver) -> None:
        host = self._hosts.get(seat.machine.name)
        if host is not None and host.taker is not None:
            host.taker(effect, partial(self._interpreter.feed, seat))
            return
        if host is not None and host.inline:
            self._interpreter.feed(seat, self._handle_inline(host, effect))
            return
        task = self.loop.create_task(self._handle(seat, effect))
        self._handlers.add(task)
        task.add_done_callback(self._handlers.discard)

    def take_part(self, job: Coroutine[Any, Any, None]) -> None:
        """Closing waits for this as for a handler, and cancels it when the time is up."""
        task = self.loop.create_task(job)
        self._handlers.add(task)
        task.add_done_callback(self._handlers.discard)

    def now(self) -> float:
        """The time of the machines."""
        return self._clock()

    def reported(self) -> None:
        """A taker has reported events to machines."""
        self._touch()

    @staticmethod
    def _handle_inline(host: Host, effect: Deliver) -> Event:
        assert host.handler is not None, "an inline handler is a handler"
        try:
            return delivered(effect.token, _checked_answer(host.name, effect.item, host.handler(effect.item)))
        except Exception as error:
            _warn(host.name, effect.item)
            return failure_event(effect.token, error)

    async def _handle(self, seat: Seat, effect: Deliver) -> None:
        event: Event = DeliverFailed(effect.token, "cancelled: the process is shutting down")
        try:
            event = delivered(effect.token, await self._call_handler(seat.machine.name, effect.item))
        except (Exception, SystemExit) as error:
            _warn(seat.machine.name, effect.item)
            event = failure_event(effect.token, error)
        finally:
            self._interpreter.feed(seat, event)
            self._touch()

    async def _call_handler(self, name: str, item: WorkRow | Record) -> tuple[Op, ...] | OwnTransaction:
        host = self._hosts.get(name)
        if host is None or host.handler is None:
            raise HandlerError(f"{name} has no handler", fix="pass handler= when the machine is added")
        if inspect.iscoroutinefunction(host.handler):
            result: Any = await host.handler(item)
        else:
            result = await self.loop.run_in_executor(self._executor, host.handler, item)
            if inspect.isawaitable(result):
                result = await result
        return _checked_answer(name, item, result)

    # -- people

    def notify(self, seat: Seat, effect: Notify) -> None:
        # an outage is logged when it begins, with its cause; what follows from it is no news
        is_known = effect.is_store and self.outages.current is not None
        log.log(logging.INFO if is_known else logging.WARNING, "%s: %s", effect.topic, effect.detail)
        self._observed(seat.machine.name, effect)

    def closed(self, seat: Seat, effect: Close) -> None:
        host = self._hosts.get(seat.machine.name)
        if host is None or self._closing:
            return
        if effect.reason == "reload" and host.factory is not None:
            self._reload_later(host)
            return
        self._hosts.remove(host.name)
        log.warning("%s stopped: %s", host.name, effect.reason or "finished")
        self._observed(host.name, effect)

    def _observed(self, name: str, effect: Notify | Close) -> None:
        for observer in self._observers:
            try:
                observer(name, effect)
            except Exception:
                log.exception("an observer failed")

    def _reload_later(self, host: Host) -> None:
        wait_s = host.reload_wait_s(self.loop.time())
        log.info("%s starts again in %.2f s", host.name, wait_s)
        self.loop.call_later(wait_s, self._reload, host)

    def _reload(self, host: Host) -> None:
        if host.factory is not None and not self._closing and self._hosts.get(host.name) is host:
            self._readers.submit(
                partial(host.factory, self.store), partial(self._reloaded, host), partial(self._reload_failed, host)
            )

    def _reloaded(self, host: Host, machine: Machine) -> None:
        if not self._closing and self._hosts.get(host.name) is host:
            self._interpreter.add(machine)
            self._touch()

    def _reload_failed(self, host: Host, error: SemelError) -> None:
        self.outages.record(error, use=Use.READING)
        level = logging.INFO if is_outage(error) else logging.WARNING
        log.log(level, "%s could not start again: %s", host.name, error.message)
        self._reload_later(host)

    # -- time

    def _touch(self) -> None:
        """A machine has got an event: at the end of this tick, send what it wants sent and set the timer."""
        if not self._tick_due:
            self._tick_due = True
            self.loop.call_soon(self._end_tick)

    def _end_tick(self) -> None:
        self._tick_due = False
        if not self._closed:
            self._tick()

    def _tick(self) -> None:
        if self._outbox:
            self._flush()
        if self._outbox:
            self._touch()
        self._set_timer()

    def _set_timer(self) -> None:
        deadline = self._interpreter.next_deadline()
        if deadline == self._timer_at and self._timer is not None:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_at = deadline
        if deadline is not None:
            wait_s = min(max(deadline - self._clock(), TIMER_MIN_S), TIMER_MAX_S)
            self._timer = self.loop.call_later(wait_s, self._run_timers)

    def _run_timers(self) -> None:
        self._timer = None
        if not self._closed:
            self._interpreter.run_timers()
            self._tick()


def steady_clock() -> Callable[[], float]:
    """The wall time of now, and from then on the time that has passed. A wall clock that is set back would stop
    renewals and resends for as long, and one that is set forward would send everything again at once."""
    begin = time.time() - time.monotonic()
    return lambda: begin + time.monotonic()


def closed_error() -> StoreUnavailable:
    return StoreUnavailable("the performer is closed or not started", fix="use it inside `async with Performer(…)`")


def _is_news(group: CommitGroup) -> bool:
    """Whether a reader or a worker may find something new. Claims and cursors bring nothing: two idle workers that
    woke each other by looking for work would never rest."""
    return any(isinstance(op, _NEWS) for member in group.members for op in member.unit.ops)


def failure_event(token: int, error: BaseException) -> DeliverFailed:
    return DeliverFailed(token, cause_of(error), type_names(type(error)))


def _checked_answer(name: str, item: WorkRow | Record, result: Any) -> tuple[Op, ...] | OwnTransaction:
    if not isinstance(result, OwnTransaction):
        return _checked_ops(name, result)
    if not isinstance(item, WorkRow):
        raise HandlerError(f"the handler of {name} says {result} of a record", fix="return ops in a list, or None")
    return result


def _checked_ops(name: str, result: Any) -> tuple[Op, ...]:
    if result is None:
        return ()
    ops = tuple(result) if isinstance(result, Iterable) else (result,)
    if not isinstance(result, Iterable) or not all(isinstance(op, _OPS) for op in ops):
        raise HandlerError(f"the handler of {name} returned {result!r:.80}", fix="return ops in a list, or None")
    return ops


def _warn(machine: str, item: WorkRow | Record) -> None:
    fields = about_item(item)
    log.warning("the handler of %s failed at %s", machine, item.envelope.id, exc_info=True, extra=fields)
