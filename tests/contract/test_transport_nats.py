"""The contract of transports, by a real NATS server: through a proxy that can cut the connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import count
from typing import Any

import pytest
import pytest_asyncio
from nats.js.api import ConsumerConfig
from tests.tools.brokers import HOST, JetStream, NatsServer, shared_nats
from tests.tools.held_proxy import drop_all

from semel.inbox.settle import DeliveryEnd
from semel.inbox.sources import parse_source
from semel.kernel.envelope import Envelope
from semel.runtime.brokers.nats import ACK_WAIT_S as ACK_WAIT
from semel.runtime.brokers.nats import ALIVE_SHARE, NatsDelivery, NatsTransport
from semel.testing.byte_faults import ByteProxy
from semel.testing.limits import scaled
from semel.testing.transport_contract import TransportContract

_numbers = count(1)
ACK_WAIT_S = 0.5


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with shared_nats() as server:
        yield server


class NatsRig:
    """A stream for each test. The id stands in a header of its own: under Nats-Msg-Id the stream itself would drop what
    is published twice."""

    def __init__(self, server: NatsServer) -> None:
        self.server, self.name = server, f"ORDERS{next(_numbers)}"
        self.transports: list[NatsTransport] = []

    async def __aenter__(self) -> NatsRig:
        self.proxy = ByteProxy((HOST, self.server.port))
        await self.proxy.start()
        async with self.stream() as js:
            await js.add_stream(name=self.name, subjects=[self.name])
            # a broker that waits long before it delivers again would make the tests long
            await js.add_consumer(
                self.name, ConsumerConfig(durable_name="shop", ack_policy="explicit", ack_wait=scaled(ACK_WAIT_S))
            )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.proxy.close()

    def stream(self) -> Any:
        return JetStream(self.server.port)

    def transport(self) -> NatsTransport:
        source = parse_source(f"nats:{self.name}?consumer=shop&id=header:Order-Id&type=text:order")
        self.transports.append(NatsTransport(self.server.url_at(self.proxy.port), source, "shop-orders"))
        return self.transports[-1]

    async def publish(self, id: str | None, data: bytes) -> None:
        async with self.stream() as js:
            await js.publish(self.name, data, headers={"Order-Id": id} if id is not None else None)

    async def waiting(self) -> int:
        async with self.stream() as js:
            info = await js.consumer_info(self.name, "shop")
        is_open = any(each._client is not None for each in self.transports)
        return info.num_pending + (0 if is_open else info.num_ack_pending)

    async def cut(self) -> None:
        drop_all(self.proxy)

    async def stop(self) -> None:
        self.server.kill()

    async def start(self) -> None:
        self.server.start()


@pytest.mark.contract
@pytest.mark.connected
class TestNatsTransport(TransportContract):
    @pytest_asyncio.fixture
    async def rig(self, server: NatsServer) -> AsyncIterator[NatsRig]:
        async with NatsRig(server) as rig:
            yield rig


# -- what only NATS needs


@pytest_asyncio.fixture
async def patient(server: NatsServer) -> AsyncIterator[NatsRig]:
    """With a server that waits for long before it delivers again by itself."""
    async with NatsRig(server) as rig:
        async with rig.stream() as js:
            await js.delete_consumer(rig.name, "shop")
        yield rig


def ids(deliveries: Sequence[NatsDelivery]) -> list[str]:
    return [each.arrival.id for each in deliveries if isinstance(each.arrival, Envelope)]


@pytest.mark.connected
async def test_a_transport_that_closes_gives_all_back_at_once_and_in_order(patient: NatsRig) -> None:
    for id in ("a", "b", "c", "d"):
        await patient.publish(id, b"{}")
    first, second = patient.transport(), patient.transport()
    await first.open(4)
    deliveries = await first.receive(3)
    assert ids(deliveries) == ["a", "b", "c"]
    await deliveries[1].settle(DeliveryEnd.ACK)
    await first.close()
    await second.open(4)
    async with asyncio.timeout(ACK_WAIT / 2):
        found: list[str] = []
        while len(found) < 3:
            found += ids(await second.receive(4 - len(found)))
    assert found == ["a", "c", "d"]
    await second.close()


@pytest.mark.connected
async def test_what_is_being_worked_on_is_not_delivered_to_another(server: NatsServer) -> None:
    async with NatsRig(server) as rig:
        await rig.publish("a", b"{}")
        busy = rig.transport()
        await busy.open(1)
        [delivery] = await busy.receive(1)
        said = asyncio.Event()
        in_progress, times = delivery.raw.in_progress, count(1)

        async def counted() -> None:
            await in_progress()
            if next(times) > 2 * ALIVE_SHARE:  # twice as long as the server would wait
                said.set()

        delivery.raw.in_progress = counted
        async with asyncio.timeout(scaled(60)):
            await said.wait()
        async with rig.stream() as js:
            info = await js.consumer_info(rig.name, "shop")
        assert (info.num_ack_pending, info.num_redelivered) == (1, 0)
        await delivery.settle(DeliveryEnd.ACK)
        await busy.close()
