"""The contract of transports, by a real RabbitMQ: through a proxy that can cut the connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from itertools import count

import aio_pika
import pytest
import pytest_asyncio
from tests.tools.brokers import HOST, WITHOUT_RABBITMQ, Rabbit, RabbitServer, has_rabbitmq, shared_rabbitmq
from tests.tools.held_proxy import drop_all

from semel.inbox.sources import parse_source
from semel.runtime.brokers.amqp import AmqpTransport
from semel.testing.byte_faults import ByteProxy
from semel.testing.transport_contract import Effects, HeldApp, TransportContract, TransportRig

_numbers = count(1)


@pytest.fixture(scope="module")
def server() -> Iterator[RabbitServer]:
    with shared_rabbitmq() as server:
        yield server


class AmqpRig:
    """A queue for each test. The id stands in a header of its own: who publishes without a message-id by this client
    library has a random one."""

    def __init__(self, server: RabbitServer, kind: str) -> None:
        self.server, self.name, self.kind = server, f"orders{next(_numbers)}", kind

    async def __aenter__(self) -> AmqpRig:
        self.proxy = ByteProxy((HOST, self.server.port))
        await self.proxy.start()
        async with Rabbit(self.server) as channel:
            await channel.declare_queue(self.name, durable=True, arguments={"x-queue-type": self.kind})
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.proxy.close()

    def transport(self) -> AmqpTransport:
        source = parse_source(f"amqp:{self.name}?id=header:Order-Id")
        return AmqpTransport(self.server.url_at(self.proxy.port), source, "shop/orders")

    async def publish(self, id: str | None, data: bytes) -> None:
        async with Rabbit(self.server) as channel:
            headers = {"Order-Id": id} if id is not None else {}
            message = aio_pika.Message(data, headers=headers, type="order", delivery_mode=2)
            await channel.default_exchange.publish(message, self.name)

    async def waiting(self) -> int:
        async with Rabbit(self.server) as channel:
            queue = await channel.declare_queue(self.name, passive=True)
        return int(queue.declaration_result.message_count)

    async def cut(self) -> None:
        drop_all(self.proxy)

    async def stop(self) -> None:
        await asyncio.to_thread(self.server.stop)

    async def start(self) -> None:
        await asyncio.to_thread(self.server.start)


@pytest.mark.contract
@pytest.mark.connected
@pytest.mark.skipif(not has_rabbitmq(), reason=WITHOUT_RABBITMQ)
# the client library leaves connections behind that could not be made
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
class AmqpContract(TransportContract):
    kind = ""

    @pytest_asyncio.fixture
    async def rig(self, server: RabbitServer) -> AsyncIterator[AmqpRig]:
        async with AmqpRig(server, self.kind) as rig:
            yield rig

    @pytest.mark.slow(12)
    async def test_a_broker_that_restarts_is_dialled_again(
        self, rig: TransportRig, app: HeldApp, effects: Effects
    ) -> None:
        await super().test_a_broker_that_restarts_is_dialled_again(rig, app, effects)

    @pytest.mark.slow(12)
    async def test_a_broker_that_is_away_at_first_is_found_later(
        self, rig: TransportRig, app: HeldApp, effects: Effects
    ) -> None:
        await super().test_a_broker_that_is_away_at_first_is_found_later(rig, app, effects)


class TestClassicQueue(AmqpContract):
    kind = "classic"


class TestQuorumQueue(AmqpContract):
    kind = "quorum"
    # RabbitMQ takes its time to restart, and then it is the same for both
    test_a_broker_that_restarts_is_dialled_again = None  # type: ignore[assignment]
    test_a_broker_that_is_away_at_first_is_found_later = None  # type: ignore[assignment]
