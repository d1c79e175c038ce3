"""Buffered endpoints: a message is acknowledged when it has come, and kept in memory until its handler is done.

A crash loses what is in memory: that is what the mode promises, and what it is fast for. What cannot be handled now is
tried again from memory. The buffer is bounded: with `buffer_high` messages in it nothing more is let in until it is
down to `buffer_low`. What is dead, parked or scheduled is stored, with its body.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, field

from semel.errors import LimitExceeded
from semel.inbox.endpoint import EndpointOptions
from semel.inbox.settle import DeliveryEnd
from semel.kernel.envelope import Envelope
from semel.kernel.retry import RetryPolicy
from semel.runtime.host.log_fields import about, about_many
from semel.runtime.inbox.definition import Application
from semel.runtime.inbox.endpoint import InboxEndpoint
from semel.runtime.inbox.gate import EndpointGate
from semel.runtime.inbox.inline import InlineDelivery, Tries

log = logging.getLogger(__name__)

AGAIN = RetryPolicy(interval_s=0.05, factor=2.0, interval_max_s=5.0)
"""When to look again after a store that was away, or a duplicate that somebody else was handling."""
DRAIN_S = 15.0
"""How long a process that ends goes on with what it has in memory."""
SHOWN_MAX = 20

Waiter = tuple[asyncio.AbstractEventLoop, "asyncio.Future[None]"]


@dataclass(slots=True, eq=False)
class Buffered:
    """A message in memory, how often its handler had it, and how often it had to wait."""

    envelope: Envelope
    tries: Tries = field(default_factory=Tries)
    waits: int = 0


class Buffer:
    """What a buffered endpoint has in memory: waiting, with a handler, or to be tried again. Messages may come from any
    thread or loop; the handlers run on the loop of the service."""

    def __init__(self, options: EndpointOptions) -> None:
        self._name = options.name
        self._high, self._low = options.buffer_high, options.buffer_low
        self._lock = threading.Lock()
        self._waiting: deque[Buffered] = deque()
        self._all: dict[Buffered, None] = {}
        self._is_full = False
        self._is_closed = False
        self._putters: list[Waiter] = []
        self._takers: list[Waiter] = []

    def __len__(self) -> int:
        return len(self._all)

    @property
    def ids(self) -> list[str]:
        with self._lock:
            return [each.envelope.id for each in self._all]

    # -- coming in

    async def put(self, envelope: Envelope) -> bool:
        """Wait for room, then take it in. False: the process is ending, and it must not be acknowledged."""
        while True:
            with self._lock:
                if self._is_closed:
                    return False
                if not self._is_full:
                    self._let_in([envelope])
                    return True
                waiter = _waiter(self._putters)
            await waiter

    def put_now(self, envelopes: Sequence[Envelope]) -> None:
        """All of them, or none."""
        with self._lock:
            if self._is_closed or self._is_full or len(self._all) + len(envelopes) > self._high:
                raise LimitExceeded(
                    f"endpoint {self._name!r} has {len(self._all)} messages in memory and takes no more just now",
                    fix="do not acknowledge them; deliver them later, or wait for room: await app.deliver(...)",
                )
            self._let_in(envelopes)

    def _let_in(self, envelopes: Sequence[Envelope]) -> None:
        for envelope in envelopes:
            item = Buffered(envelope)
            self._all[item] = None
            self._waiting.append(item)
        self._is_full = len(self._all) >= self._high
        _wake(self._takers)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            _wake(self._putters)

    def open(self) -> None:
        with self._lock:
            self._is_closed = False

    # -- those who handle

    async def take(self) -> Buffered:
        while True:
            with self._lock:
                if self._waiting:
                    return self._waiting.popleft()
                waiter = _waiter(self._takers)
            await waiter

    def take_now(self) -> Buffered | None:
        """The next one, if there is one."""
        with self._lock:
            return self._waiting.popleft() if self._waiting else None

    def put_back(self, item: Buffered) -> None:
        """It is tried again, behind what else is there."""
        with self._lock:
            if item in self._all:
                self._waiting.append(item)
                _wake(self._takers)

    def end(self, item: Buffered) -> None:
        with self._lock:
            self._all.pop(item, None)
            if self._is_full and len(self._all) <= self._low:
                self._is_full = False
                _wake(self._putters)

    def give_up(self) -> list[str]:
        """Forget all of it. Returns what that was."""
        ids = self.ids
        with self._lock:
            self._all.clear()
            self._waiting.clear()
            self._is_full = False
        return ids


def _waiter(waiters: list[Waiter]) -> asyncio.Future[None]:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()
    waiters.append((loop, future))
    return future


def _wake(waiters: list[Waiter]) -> None:
    """All of them look again: one that has gone away takes nobody's turn."""
    for loop, future in waiters:
        with suppress(RuntimeError):  # its loop has ended
            loop.call_soon_threadsafe(_resolve, future)
    waiters.clear()


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def buffer_of(app: Application, endpoint: InboxEndpoint) -> Buffer:
    """One for each endpoint of an application in this process."""
    return app.buffers.setdefault(endpoint.name, Buffer(endpoint.options))


async def deliver_buffered(app: Application, endpoint: InboxEndpoint, envelope: Envelope) -> DeliveryEnd:
    _ = app.handlers  # what cannot work is refused before the first message is taken
    return DeliveryEnd.ACK if await buffer_of(app, endpoint).put(envelope) else DeliveryEnd.GIVE_BACK


class BufferRunner:
    """Runs the handlers of one buffered endpoint, `parallel` at a time."""

    def __init__(self, app: Application, endpoint: InboxEndpoint, threads: Executor) -> None:
        self._app, self._endpoint, self._threads = app, endpoint, threads
        self.buffer = buffer_of(app, endpoint)
        self.handled = 0

    def start(self) -> None:
        self.buffer.open()
        self._tasks = [asyncio.create_task(self._run()) for _ in range(self._endpoint.options.parallel)]

    async def close(self, timeout_s: float = DRAIN_S) -> None:
        """Let nothing in, go on with what is there for so long, and say what was given up."""
        self.buffer.close()
        gate, now = self._app.gate(self._endpoint.name), self._app.clock()
        opens_at = gate.next_deadline(now)
        if gate.takes_nothing(now) and (opens_at is None or opens_at > now + timeout_s):
            timeout_s = 0.0  # nothing will be taken in that time
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while len(self.buffer):  # noqa: ASYNC110 - what is tried again comes back by a timer
                    await asyncio.sleep(0.01)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if lost := self.buffer.give_up():
            more = f" and {len(lost) - SHOWN_MAX} more" if len(lost) > SHOWN_MAX else ""
            log.warning(
                "endpoint %r gave up %d messages that it had in memory: %s%s",
                self._endpoint.name, len(lost), ", ".join(lost[:SHOWN_MAX]), more,
                extra=about_many(self._endpoint.name, lost),
            )  # fmt: skip

    async def _run(self) -> None:
        while True:
            item = await self.buffer.take()
            try:
                delivery = InlineDelivery(self._app, self._endpoint, item.envelope, self._threads, item.tries)
                settled = await delivery.settle()
            except Exception:
                log.exception(
                    "endpoint %r could not settle %s; it is tried again", self._endpoint.name, item.envelope.id,
                    extra=about(self._endpoint.name, item.envelope),
                )  # fmt: skip
                self._later(item)
                continue
            if settled.again:
                self._later(item)
            else:
                self.handled += 1
                self.buffer.end(item)

    def _later(self, item: Buffered) -> None:
        wait_s = next_wait_s(item, self._app.gate(self._endpoint.name), self._app.clock())
        asyncio.get_running_loop().call_later(wait_s, self.buffer.put_back, item)


def next_wait_s(item: Buffered, gate: EndpointGate, now: float) -> float:
    """How long a message waits in memory before it is tried again: not before its endpoint takes anything."""
    item.waits += 1
    until = gate.next_deadline(now)
    return max(AGAIN.wait_s(item.waits, 0.0), 0.0 if until is None else until - now)
