"""A broker in memory with one queue, for tests of listeners: it can lose connections, be away, and lose acks."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from semel.errors import PeerUnavailable
from semel.inbox.broker_messages import ForeignMessage
from semel.inbox.settle import DeliveryEnd
from semel.inbox.sources import BrokerSource
from semel.runtime.brokers.common import arrival_of, is_cut

WAIT_S = 5.0


@dataclass(eq=False)
class Queued:
    message: ForeignMessage
    place: int
    deliveries: int = 0


@dataclass(eq=False)
class MemoryBroker:
    """`waiting` are not with anybody; `refused` are what listeners took off the queue with a nack."""

    source: BrokerSource = field(default_factory=lambda: BrokerSource("amqp", "orders"))
    waiting: list[Queued] = field(default_factory=list)
    refused: list[ForeignMessage] = field(default_factory=list)
    is_away: bool = False
    acks_lost: int = 0
    """So many acks are lost, each with its connection."""
    transports: list[MemoryTransport] = field(default_factory=list)
    _places: int = 0

    def transport(self) -> MemoryTransport:
        return MemoryTransport(self)

    def publish(self, message: ForeignMessage) -> None:
        self._places += 1
        self.put(Queued(message, self._places))

    def put(self, queued: Queued) -> None:
        """Where it was before, if it was there."""
        self.waiting.append(queued)
        self.waiting.sort(key=lambda each: each.place)
        self.wake()

    def cut(self) -> None:
        """End all connections without a word."""
        for transport in list(self.transports):
            transport.lose()

    def wake(self) -> None:
        for transport in self.transports:
            transport.wake.set()


class MemoryDelivery:
    def __init__(self, transport: MemoryTransport, queued: Queued) -> None:
        self.arrival = arrival_of(queued.message, transport.broker.source)
        self.attempt, self.is_cut = queued.deliveries, is_cut(queued.message)
        self.queued = queued
        self._transport = transport

    async def settle(self, end: DeliveryEnd, delay_s: float = 0.0) -> None:
        if end is DeliveryEnd.GIVE_BACK and delay_s > 0:
            await asyncio.sleep(delay_s)
        self._transport.settled(self, end)


class MemoryTransport:
    """`unsettled_max` is the most that it ever had handed out."""

    def __init__(self, broker: MemoryBroker) -> None:
        self.broker, self.name = broker, "a broker in memory"
        self.unsettled: dict[MemoryDelivery, None] = {}
        self.unsettled_max = 0
        self.wake = asyncio.Event()
        self._is_lost = True

    async def open(self, room: int) -> None:
        if self.broker.is_away:
            raise PeerUnavailable("the broker is away", fix="let it come back")
        self.room, self._is_lost = room, False
        self.broker.transports.append(self)

    async def receive(self, limit: int) -> Sequence[MemoryDelivery]:
        while not self.broker.waiting:
            self._check()
            self.wake.clear()
            try:
                await asyncio.wait_for(self.wake.wait(), WAIT_S)
            except TimeoutError:
                return []
        self._check()
        found = []
        for queued in self.broker.waiting[:limit]:
            queued.deliveries += 1
            found.append(MemoryDelivery(self, queued))
        del self.broker.waiting[:limit]
        self.unsettled |= dict.fromkeys(found)
        self.unsettled_max = max(self.unsettled_max, len(self.unsettled))
        assert len(self.unsettled) <= self.room, "a listener takes no more than it said"
        return found

    def settled(self, delivery: MemoryDelivery, end: DeliveryEnd) -> None:
        self._check()
        if self.broker.acks_lost and end is DeliveryEnd.ACK:
            self.broker.acks_lost -= 1
            self.lose()
            self._check()
        del self.unsettled[delivery]
        if end is DeliveryEnd.NACK:
            self.broker.refused.append(delivery.queued.message)
        elif end is DeliveryEnd.GIVE_BACK:
            self.broker.put(delivery.queued)

    def lose(self) -> None:
        self._is_lost = True
        if self in self.broker.transports:
            self.broker.transports.remove(self)
        unsettled, self.unsettled = self.unsettled, {}
        for each in unsettled:
            self.broker.put(each.queued)
        self.wake.set()

    def _check(self) -> None:
        if self._is_lost:
            raise PeerUnavailable("the connection is lost", fix="dial again")

    async def close(self) -> None:
        self.lose()

    async def warnings(self, endpoint: str, keep_s: float) -> list[str]:
        return []
