"""Performs what machines ask for: the asyncio driver of `kernel.interpreter`.

    loop thread      machines, timers, transports, handlers that are coroutines
    writer thread    store.commit, one group at a time
    reader threads   store.read, store.state, and whatever builds a machine

All commits that wait when the writer is free share one transaction; while it is under way the next group gathers. The
completions of a group reach the loop in one call: machines hear of them, and only then do their sends go out.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import Any, Self, get_args

from semel.errors import HandlerError, LocalProtocolError, PeerUnavailable, SemelError, StoreUnavailable
from semel.kernel.effects import (
    Close,
    Connected,
    Deliver,
    Delivered,
    DeliverFailed,
    Disconnected,
    Event,
    Load,
    Machine,
    Notify,
    Read,
    Received,
    Send,
    SendFailed,
    Sent,
)
from semel.kernel.group import Completion, Group, GroupLimits
from semel.kernel.interpreter import Interpreter, Seat
from semel.kernel.ops import Append, Enqueue, Finish, Op, WorkRow
from semel.kernel.store import Record, Store
from semel.runtime.hosting import Factory, Guarded, Handler, Host, cause_of
from semel.runtime.threads import Readers, Report, Writer
from semel.runtime.transports.base import Transport
from semel.stores.points import reach

log = logging.getLogger(__name__)

Observer = Callable[[str, Notify | Close], None]
"""Hears, with a machine's name, what people should know about it."""

TIMER_MAX_S = 30.0
"""The clock of machines may be set forward while the loop sleeps: look at it at least this often."""

HANDLERS_END_S = 1.0
"""How long cancelled handlers get to clean up."""

_OPS = get_args(Op)
_NEWS = (Append, Enqueue, Finish)


class _Interpreter(Interpreter):
    """The kernel's interpreter, except that the performer chooses the moment at which the next group begins."""

    def __init__(self, performer: Performer, clock: Callable[[], float], limits: GroupLimits | None) -> None:
        super().__init__(performer, clock, limits)
        self._waiting = performer._commits_wait

    def _begin_commit(self) -> None:
        self._waiting()

    def begin(self) -> None:
        super()._begin_commit()


class Performer:
    """Hosts machines on one store. `async with Performer(store) as performer:` starts it and closes it cleanly.

    `doubt_s` is how long a commit in doubt may hold everything up before it is given up as unknown. The store belongs
    to the caller, who closes it afterwards.
    """

    def __init__(
        self,
        store: Store,
        *,
        limits: GroupLimits | None = None,
        clock: Callable[[], float] = time.time,
        doubt_s: float = 30.0,
        readers: int = 2,
        handler_threads: int = 8,
    ) -> None:
        self.store = store
        self._clock = clock
        self._doubt_s = doubt_s
        self._reader_count = readers
        self._interpreter = _Interpreter(self, clock, limits)
        self._queue = self._interpreter.queue
        self._executor = ThreadPoolExecutor(handler_threads, thread_name_prefix="semel-handler")
        self._hosts: dict[str, Host] = {}
        self._transports: list[Transport] = []
        self._observers: list[Observer] = []
        self._on_room: list[Callable[[], None]] = []
        self._room: list[asyncio.Future[None]] = []
        self._outbox: list[tuple[Seat, Send]] = []
        self._handlers: set[asyncio.Task[None]] = set()
        self._busy = False
        self._begin_due = False
        self._tick_due = False
        self._wake_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at: float | None = None
        self._closing = False
        self._closed = False
        self._drained: asyncio.Event = asyncio.Event()

    # -- life

    async def start(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._writer = Writer(self.store, self._loop, self._interpreter, self._group_done, doubt_s=self._doubt_s)
        self._readers = Readers(self._loop, self._reader_count)
        self._stop_listening = self.store.listen(self._store_changed)
        return self

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self, timeout_s: float = 30.0) -> None:
        """Take no more work, finish what was taken, tell the machines, send what they answer.

        Handlers that outlast the time are cancelled, and commits that do are answered as unknown or failed: then the
        store hangs, and only the store can tell.
        """
        if self._closing:
            return
        self._closing = True
        self._stop_listening()
        for transport in self._transports:
            transport.pause()
        try:
            async with asyncio.timeout(timeout_s):
                await self._end_handlers()
                await self._drain()
        except TimeoutError:
            await self._cancel_handlers()
        self._tick()
        self._give_up_commits()
        await self._end()

    async def _end_handlers(self) -> None:
        while self._handlers:
            await asyncio.wait(self._handlers)

    async def _cancel_handlers(self) -> None:
        for task in self._handlers:
            task.cancel()
        if self._handlers:
            await asyncio.wait(self._handlers, timeout=HANDLERS_END_S)

    async def _drain(self) -> None:
        """Machines may answer a completion with another commit, so look again after each group."""
        while len(self._queue):
            self._drained.clear()
            await self._drained.wait()

    def _give_up_commits(self) -> None:
        """Nothing is left here unless the store hangs. Nobody waits for an answer that will not come."""
        if self._busy and self._under_way is not None:
            self._queue.unknown(self._under_way)
        while (group := self._queue.next_group()) is not None:
            self._queue.failed(group, closed_error())

    async def _end(self) -> None:
        self._closed = True
        for name in list(self._hosts):
            self._interpreter.remove(name)
        if self._timer is not None:
            self._timer.cancel()
        for transport in self._transports:
            await transport.close()
        for waiter in self._room:
            if not waiter.done():
                waiter.set_result(None)
        self._executor.shutdown(wait=False, cancel_futures=True)
        wait_s = 0.0 if self._busy else 5.0
        self._writer.stop(wait_s)
        self._readers.stop(wait_s)
