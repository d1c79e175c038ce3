"""Listens to a transport for one endpoint: takes what there is room for, hands it to the endpoint's entrance, and
settles each delivery only then.

    stored, handled, a duplicate, a dead letter    acknowledged
    a durable or buffered endpoint could not       all that was taken goes back, in order; the listener rests, longer
    take it, the store is away                     each time, and begins anew
    an inline endpoint gives one back              this one goes back for a while, longer each time; the others go on
    the endpoint is paused, its breaker is open    all goes back, and nothing is held until it goes on
    the broker is away                             it is dialled again, later and later
    the process ends                               what was begun is finished, the rest goes back

A transport is a small adapter: see `InboxTransport`. `semel.testing.transport_contract` has what each must do.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from enum import Enum
from typing import Any, Protocol

from semel.errors import ConfigError, SemelError
from semel.inbox.endpoint import EndpointMode, EndpointOptions
from semel.inbox.giving_back import GiveBackDelays
from semel.inbox.settle import DeliveryEnd
from semel.kernel.envelope import Envelope
from semel.kernel.retry import RetryPolicy
from semel.runtime.inbox.entrance import Arrival, Entrance
from semel.runtime.inbox.gate import EndpointGate

log = logging.getLogger(__name__)

ROOM_MAX = 500
"""So many messages are taken at a time, at most: those of a durable endpoint are stored in one commit."""
LOOK_S = 0.2
"""How often a listener looks whether its endpoint is paused."""
FINISH_S = 15.0
"""How long a process that ends waits for handlers that have begun."""
REOPEN = RetryPolicy(interval_s=0.2, factor=2.0, interval_max_s=30.0, jitter=0.2)


AGAIN = (DeliveryEnd.GIVE_BACK, DeliveryEnd.NONE_YET)


class TransportDelivery(Protocol):
    """One delivery of a message, to be settled once. `attempt` counts from 1, as far as the broker says it. One that
    `is_cut` was too large to be kept whole: where the broker can, it keeps it."""

    arrival: Arrival
    attempt: int
    is_cut: bool

    async def settle(self, end: DeliveryEnd, delay_s: float = 0.0) -> None:
        """Tell the broker. One that goes back is delivered again after `delay_s`, not before. Raises PeerUnavailable
        when the broker cannot be told: it delivers again by itself then."""


class InboxTransport(Protocol):
    """A connection to one queue of a broker, or to whatever delivers messages and can be told what became of each.

    Trouble with the broker raises PeerUnavailable, and a setting that cannot work ConfigError: the listener closes the
    transport and opens it again later. It is used from one loop.
    """

    name: str
    """For the log: without a password."""

    async def open(self, room: int) -> None:
        """Connect. There are never to be more than `room` unsettled deliveries, counting those not yet received."""

    async def receive(self, limit: int) -> Sequence[TransportDelivery]:
        """Wait for the next, and return those that are there, `limit` at most. May return none after a while. When it
        is cancelled, nothing is lost: what had come is received next, or given back by `close`."""

    async def close(self) -> None:
        """Disconnect, however `open` ended. What was not settled goes back, in the order in which it came."""

    async def warnings(self, endpoint: str, keep_s: float) -> list[str]:
        """After `open`: what is wrong with the broker's own settings for an endpoint that remembers for so long."""


class ListenerState(Enum):
    LISTENING = "listening"
    PAUSED = "paused"
    """The endpoint takes nothing."""
    AWAY = "away"
    """The broker does not answer, or the store did not take what came: it is tried again."""
    ENDED = "ended"


class InboxListener:
    """One endpoint and one transport, in one process."""

    def __init__(
        self,
        options: EndpointOptions,
        entrance: Entrance,
        gate: EndpointGate,
        transport: InboxTransport,
        clock: Any,
        *,
        room: int | None = None,
    ) -> None:
        self.options, self.transport = options, transport
        self.room = room or room_of(options)
        self.state = ListenerState.AWAY
        self.acked = self.given_back = 0
        self._entrance, self._gate, self._clock = entrance, gate, clock
        self._is_inline = options.mode is EndpointMode.INLINE
        self._stop = asyncio.Event()
        self._begun: set[asyncio.Task[None]] = set()
        self._delays = GiveBackDelays()
        self._troubles = 0
        self._is_checked = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"semel-listen-{self.options.name}")

    async def close(self) -> None:
        """Take nothing more, finish what has begun, and give the rest back."""
        self._stop.set()
        if self._task is not None:
            await self._task

    # -- from opening to closing, again and again

    async def _run(self) -> None:
        while not self._stop.is_set():
            if self._gate.takes_nothing(self._clock()):
                self.state = ListenerState.PAUSED
                await self._wait_s(LOOK_S)
                continue
            if await self._is_well(self._open_and_listen()):
                continue
            self.state = ListenerState.AWAY
            self._troubles += 1
            await self._wait_s(REOPEN.wait_s(self._troubles, random.random()))
        self.state = ListenerState.ENDED

    async def _is_well(self, listening: Awaitable[bool]) -> bool:
        try:
            return await listening
        except SemelError as error:
            self._say(error)
        except Exception:
            log.exception("endpoint %r cannot listen to %s", self.options.name, self.transport.name)
        return False

    def _say(self, error: SemelError) -> None:
        what = "endpoint %r cannot listen to %s and tries again: %s"
        level = logging.ERROR if isinstance(error, ConfigError) else logging.WARNING
        log.log(level, what + (" (%s)" if error.fix else "%s"), self.options.name, self.transport.name, error.message,
                error.fix or "")  # fmt: skip

    async def _open_and_listen(self) -> bool:
        """False when the endpoint did not take what came."""
        try:
            await self.transport.open(self.room)
            await self._check()
            self.state = ListenerState.LISTENING
            return await self._listen()
        finally:
            self.state = ListenerState.PAUSED if self._gate.takes_nothing(self._clock()) else ListenerState.AWAY
            await self._finish()
            with suppress(SemelError):
                await self.transport.close()

    async def _check(self) -> None:
        """Once: what an operator has to change is the same after every reconnect."""
        if self._is_checked:
            return
        for warning in await self.transport.warnings(self.options.name, self.options.keep_s):
            log.warning("%s", warning)
        self._is_checked = True

    async def _listen(self) -> bool:
        """Until the endpoint is paused, the process ends, or the endpoint does not take what came. Raises when the
        broker is away."""
        receiving: asyncio.Task[Sequence[TransportDelivery]] | None = None
        stopped = asyncio.create_task(self._stop.wait())
        try:
            while not self._stop.is_set() and not self._gate.takes_nothing(self._clock()):
                if receiving is None and (limit := self._limit()):
                    receiving = asyncio.create_task(_received(self.transport.receive(limit)))
                waited = {stopped, *self._begun, *({receiving} if receiving is not None else ())}
                await asyncio.wait(waited, timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED)
                self._begun = {each for each in self._begun if not _ended(each)}
                if receiving is not None and receiving.done():
                    deliveries, receiving = receiving.result(), None
                    if not await self._take(deliveries):
                        return False
            return True
        finally:
            # what has come in this moment was not settled, so it goes back when the transport is closed
            await _cancelled(stopped, *((receiving,) if receiving is not None else ()))

    def _limit(self) -> int:
        room = self.room - len(self._begun)
        return self._gate.room(self._clock(), room) if self._is_inline and room > 0 else room

    async def _wait_s(self, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stop.wait(), seconds)

    # -- what has come

    async def _take(self, deliveries: Sequence[TransportDelivery]) -> bool:
        """False when some have to come again. They are not settled: all that is unsettled goes back at once, in order,
        or what comes next would overtake them."""
        if self._is_inline:
            self._begun |= {asyncio.create_task(self._handle(each)) for each in deliveries}
            return True
        if not deliveries:
            return True
        ends = await self._entrance.take([each.arrival for each in deliveries])
        is_taken = True
        for delivery, end in zip(deliveries, ends, strict=True):
            if end in AGAIN:
                self.given_back += 1
                is_taken = False
            else:
                await self._settle(delivery, end)
        self._troubles = 0 if is_taken else self._troubles
        return is_taken

    async def _handle(self, delivery: TransportDelivery) -> None:
        """One at an inline endpoint."""
        [end] = await self._entrance.take([delivery.arrival])
        if end in AGAIN:
            id = delivery.arrival.id if isinstance(delivery.arrival, Envelope) else ""
            self.given_back += 1
            await self._unless_stopped(delivery, self._delays.given_back(id, delivery.attempt, random.random()))
        else:
            await self._settle(delivery, end)
            self._troubles = 0

    async def _settle(self, delivery: TransportDelivery, end: DeliveryEnd) -> None:
        if isinstance(delivery.arrival, Envelope):
            self._delays.ended(delivery.arrival.id)
        is_refused = end is DeliveryEnd.NACK or delivery.is_cut
        await delivery.settle(DeliveryEnd.NACK if is_refused else DeliveryEnd.ACK)
        self.acked += not is_refused

    async def _unless_stopped(self, delivery: TransportDelivery, delay_s: float) -> None:
        """A transport may wait by itself before it gives one back: a process that ends waits no longer, and `close`
        gives it back."""
        settling = asyncio.ensure_future(delivery.settle(DeliveryEnd.GIVE_BACK, delay_s))
        stopped = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({settling, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if settling.done():
                settling.result()
        finally:
            await _cancelled(settling, stopped)

    async def _finish(self) -> None:
        """Wait for handlers that have begun. Only when the process ends, who takes too long is cut off, and its message
        goes back."""
        if not self._begun:
            return
        ended, stopped = asyncio.create_task(asyncio.wait(self._begun)), asyncio.create_task(self._stop.wait())
        await asyncio.wait({ended, stopped}, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait({ended}, timeout=FINISH_S)
        await _cancelled(ended, stopped)
        for task in self._begun:
            task.cancel()
        for result in await asyncio.gather(*self._begun, return_exceptions=True):
            if isinstance(result, Exception) and not isinstance(result, SemelError):
                log.error("endpoint %r could not settle a delivery", self.options.name, exc_info=result)
        self._begun = set()


def room_of(options: EndpointOptions) -> int:
    """How many unsettled deliveries an endpoint may have: as many as it handles or stores at a time."""
    return options.parallel if options.mode is EndpointMode.INLINE else min(ROOM_MAX, options.buffer_high)


async def _received(receive: Awaitable[Sequence[TransportDelivery]]) -> Sequence[TransportDelivery]:
    return await receive


def _ended(task: asyncio.Task[None]) -> bool:
    """Raises what it has ended with: a broker that cannot be told is away."""
    if not task.done():
        return False
    task.result()
    return True


async def _cancelled(*tasks: asyncio.Future[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
