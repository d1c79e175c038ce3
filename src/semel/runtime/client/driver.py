"""Carries out what the machine in `semel.pubsub.client.machine` decides: sockets, timers, the outbox,
and who waits for what.

All of it happens on one loop, and each call to the machine is carried out before the next.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count

from semel.errors import SemelError
from semel.pubsub.client.errors import not_taken_in_time
from semel.pubsub.client.events import (
    Abandoned,
    Acked,
    ClientOptions,
    ClientOutbox,
    CloseSocket,
    Connect,
    DeliverMessage,
    Effect,
    Event,
    GroupLost,
    GroupStateLost,
    Interrupted,
    Keep,
    MarkSent,
    Message,
    NotifyApplication,
    OutboxEntry,
    Remove,
    ReportStates,
    RequestFailed,
    Result,
    SendFrame,
    SessionLost,
    Settle,
    State,
    Stopped,
    StreamEvent,
    StreamOver,
    SubmitRequest,
    Withdraw,
)
from semel.pubsub.client.machine import ClientMachine
from semel.pubsub.protocol.messages import GroupStateItem, Invoke
from semel.runtime.client.outbox import OutboxWriter
from semel.runtime.client.socket import Dialer, Socket
from semel.runtime.host.performer import steady_clock

log = logging.getLogger("semel.client")

TIMER_MAX_S = 30.0


class ClientDriver:
    """`kept` is what the outbox holds from before. `deliver` gets messages in order, `notify` what happens to the
    client as a whole, and `report_states` what changes in watched groups; all are called on the loop."""

    def __init__(
        self,
        dialer: Dialer,
        options: ClientOptions,
        outbox: ClientOutbox | None,
        kept: Sequence[OutboxEntry],
        deliver: Callable[[int, Message], None],
        notify: Callable[[State], None],
        report_states: Callable[[str, tuple[GroupStateItem, ...]], None],
    ) -> None:
        self._dialer, self._deliver, self._notify, self._report_states = dialer, deliver, notify, report_states
        self._clock = steady_clock()
        self._loop = asyncio.get_running_loop()
        self._outbox = OutboxWriter(outbox, self.feed) if outbox is not None else None
        self.machine = ClientMachine(options, random.random, kept)
        self.ended: asyncio.Future[SemelError | None] = self._loop.create_future()
        self._sockets: dict[int, Socket] = {}
        self._waiting: dict[int, asyncio.Future[Result]] = {}
        self._streams: dict[str, Callable[[SemelError | None], None]] = {}
        self._tokens = count(1)
        self._may_read, self._has_room = asyncio.Event(), asyncio.Event()
        self._turn = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0

    def start(self) -> None:
        self._perform(self.machine.start(self._clock()))

    def feed(self, event: Event) -> None:
        self._perform(self.machine.receive(event, self._clock()))

    async def ask(
        self,
        request: Acked | Invoke,
        *,
        id: str | None = None,
        at_least_once: bool = False,
        until_kept: bool = False,
        timeout_s: float | None = None,
    ) -> Result:
        """What became of it. Where there is no room it waits its turn."""
        begin = self._clock()
        try:
            async with asyncio.timeout(timeout_s):
                await self._wait_for_room()
        except TimeoutError:
            return RequestFailed(not_taken_in_time(was_sent=False))
        if timeout_s is not None:
            timeout_s = max(0.0, begin + timeout_s - self._clock())
        keep = self._outbox is not None and id is not None
        return await self._settled(
            lambda token: SubmitRequest(token, request, id, at_least_once, keep, until_kept, timeout_s)
        )

    async def ask_stream(self, make: Callable[[int], StreamEvent]) -> Result:
        """What became of it. `make` gets the token."""
        return await self._settled(make)

    async def _settled(self, make: Callable[[int], Event]) -> Result:
        token = next(self._tokens)
        answer = self._waiting[token] = self._loop.create_future()
        self.feed(make(token))
        try:
            return await answer
        except asyncio.CancelledError:
            self.feed(Withdraw(token))
            raise
        finally:
            self._waiting.pop(token, None)

    def on_stream_over(self, id: str, callback: Callable[[SemelError | None], None]) -> None:
        """Learn why a stream is over. If another has its id, it will not begin."""
        self._streams.setdefault(id, callback)

    def off_stream_over(self, id: str, callback: Callable[[SemelError | None], None]) -> None:
        if self._streams.get(id) == callback:
            del self._streams[id]

    async def _wait_for_room(self) -> None:
        async with self._turn:
            while not self.machine.room and not self.ended.done():
                self._has_room.clear()
                await self._has_room.wait()

    async def close(self) -> None:
        """After the machine has ended: all that it has begun."""
        if self._timer is not None:
            self._timer.cancel()
        tasks = [socket.task for socket in self._sockets.values()]
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._outbox is not None:
            await self._outbox.close()

    # -- effects

    def _perform(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            self._perform_one(effect)
        if self.machine.is_reading:
            self._may_read.set()
        else:
            self._may_read.clear()
        if self.machine.room or self.ended.done():
            self._has_room.set()
        self._set_timer()

    def _perform_one(self, effect: Effect) -> None:
        match effect:
            case SendFrame(socket=number, frame=frame):
                if (socket := self._sockets.get(number)) is not None:
                    socket.send(frame)
            case DeliverMessage(number=number, message=message):
                self._deliver(number, message)
            case Settle(token=token, result=result):
                if (answer := self._waiting.get(token)) is not None and not answer.done():
                    answer.set_result(result)
            case Connect(socket=number):
                self._connect(effect)
            case CloseSocket(socket=number, code=code, reason=reason):
                if (socket := self._sockets.get(number)) is not None:
                    socket.close(code, reason)
            case NotifyApplication(state=state):
                self._report_state(state)
            case StreamOver(stream_id=id, error=error):
                if (callback := self._streams.pop(id, None)) is not None:
                    callback(error)
            case ReportStates(group=group, changed=changed):
                self._report_states(group, changed)
            case Keep() | MarkSent() | Remove():
                self._write_down(effect)

    def _connect(self, effect: Connect) -> None:
        socket = Socket(effect.socket, partial(self._dialer.dial, effect.recover), self.feed, self._may_read)
        self._sockets[effect.socket] = socket
        socket.task.add_done_callback(partial(self._socket_ended, effect.socket))

    def _socket_ended(self, number: int, task: asyncio.Task[None]) -> None:
        del self._sockets[number]
        if not task.cancelled() and task.exception() is not None:
            log.error("a socket ended in a way that Semel does not know", exc_info=task.exception())

    def _write_down(self, effect: Keep | MarkSent | Remove) -> None:
        assert self._outbox is not None
        match effect:
            case Keep(entry=entry):
                self._outbox.keep(entry)
            case MarkSent(ids=ids, at=at):
                written = self._outbox.mark(ids, at)
                for socket in self._sockets.values():
                    socket.wait_for(written)
            case Remove(id=id):
                self._outbox.remove(id)

    def _report_state(self, state: State) -> None:
        if isinstance(state, Interrupted | SessionLost | GroupLost | GroupStateLost | Abandoned):
            log.warning("%s: %s", type(state).__name__, state.error.message)
        if isinstance(state, Stopped):
            self.ended.set_result(state.error)
        self._notify(state)

    # -- timers

    def _set_timer(self) -> None:
        """A timer that fires too early does no harm, and setting a new one for every frame would cost more."""
        deadline = self.machine.next_deadline()
        if deadline is None or (self._timer is not None and self._timer_at <= deadline):
            return
        if self._timer is not None:
            self._timer.cancel()
        wait_s = min(max(0.0, deadline - self._clock()), TIMER_MAX_S)
        self._timer, self._timer_at = self._loop.call_later(wait_s, self._ring), deadline

    def _ring(self) -> None:
        self._timer = None
        self._perform(self.machine.on_timer(self._clock()))
