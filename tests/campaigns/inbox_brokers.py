"""The brokers of the inbox campaign: what is set up there, how orders are put in, and what is left in the end.

Orders are published by the brokers' own clients, and each waits for the broker's word. An order whose word did not come
is published again under its id: whether the broker has the first one nobody knows.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import aio_pika
import nats
from nats.js.api import AckPolicy, ConsumerConfig
from tests.campaigns.inbox_soak_child import BULK, NOT_STRICT, ORDERS, RECEIPTS
from tests.tools.brokers import HOST, PASSWORD, USER, BrokerProcess, NatsServer, RabbitServer

from semel.testing.limits import scaled

ACK_WAIT_S = 1.0
"""How long JetStream waits for the ack of a process that was killed. RabbitMQ sees its connection end."""
WINDOW_S = 0.1
"""JetStream's own memory of ids: as short as it may be, so that copies are seen."""
TYPE = "Order"
# a client library that has lost its broker says so, on standard error if nobody listens; here that is meant
logging.getLogger("aiormq").addHandler(logging.NullHandler())


class SoakBroker(ABC):
    """One server, in one run. `tag` sets what belongs to the run apart."""

    kind: str

    def __init__(self, server: BrokerProcess, url: str, tag: str, plant: str | None) -> None:
        self.server, self.url, self.tag, self.plant = server, url, tag, plant
        self._dialling = asyncio.Lock()
        self._lost, self._up = asyncio.Event(), asyncio.Event()
        self._up.set()
        self._client: Any = None

    @property
    @abstractmethod
    def listens(self) -> dict[str, str]: ...

    @property
    @abstractmethod
    def to_inbox(self) -> str: ...

    @property
    @abstractmethod
    def to_queue(self) -> str: ...

    @abstractmethod
    async def set_up(self) -> None: ...

    @abstractmethod
    async def waiting(self) -> int:
        """How many deliveries nobody has, where an endpoint listens."""

    @abstractmethod
    async def in_queue(self) -> list[tuple[str, bytes]]:
        """Id and body of all that is in the queue that nobody reads."""

    @abstractmethod
    async def _dial(self) -> Any: ...

    @abstractmethod
    async def _put(self, client: Any, endpoint: str, id: str, body: bytes) -> None: ...

    async def put(self, endpoint: str, id: str, body: bytes) -> None:
        """Raises when the broker does not say that it has it."""
        await self._up.wait()
        client = await self._connected()
        putting = asyncio.ensure_future(self._put(client, endpoint, id, body))
        lost = asyncio.ensure_future(self._lost.wait())
        try:
            await asyncio.wait({putting, lost}, return_when=asyncio.FIRST_COMPLETED)
            if not putting.done():
                raise ConnectionError("the connection was lost before the broker answered")
            putting.result()
        except Exception:
            if self._client is client:
                await self._leave()
            raise
        finally:
            putting.cancel()
            lost.cancel()
            await asyncio.gather(putting, lost, return_exceptions=True)

    async def _connected(self) -> Any:
        async with self._dialling:
            if self._client is None:
                self._lost = asyncio.Event()
                self._client = await self._dial()
            return self._client

    async def kill(self) -> None:
        """With -9; it comes back with what it has."""
        self._up.clear()
        await asyncio.to_thread(self.server.kill)
        await self._leave()
        await asyncio.to_thread(self.server.start)
        self._up.set()

    async def _leave(self) -> None:
        """Whoever waits for an answer on this connection waits no longer."""
        self._lost.set()
        await self.close()

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with suppress(Exception):
                await client.close()


class SoakNats(SoakBroker):
    kind = "nats"

    @property
    def _stream(self) -> str:
        return f"SOAK-{self.tag}"

    @property
    def listens(self) -> dict[str, str]:
        strict = "" if self.plant == NOT_STRICT else "&strict=yes"
        orders = f"nats:{self._stream}?id=json:id&type=text:{TYPE}"
        return {
            ORDERS: f"{orders}&consumer={ORDERS}{strict}",
            BULK: f"{orders}&consumer={BULK}",
            RECEIPTS: f"nats:{self._stream}?consumer={RECEIPTS}",
        }

    @property
    def to_inbox(self) -> str:
        return f"nats:{self.tag}.{RECEIPTS}"

    @property
    def to_queue(self) -> str:
        return f"nats:{self.tag}-bare.all"

    async def set_up(self) -> None:
        stream = (await self._connected()).jetstream(timeout=scaled(10))
        for name, subject in ((self._stream, self.tag), (f"{self._stream}-bare", f"{self.tag}-bare")):
            await stream.add_stream(name=name, subjects=[f"{subject}.>"], duplicate_window=WINDOW_S, max_age=86_400)
        for name in (ORDERS, BULK, RECEIPTS):
            is_strict = name == ORDERS and self.plant != NOT_STRICT
            config = ConsumerConfig(
                durable_name=name, filter_subject=f"{self.tag}.{name}", ack_policy=AckPolicy.EXPLICIT, max_deliver=-1,
                ack_wait=scaled(ACK_WAIT_S), max_ack_pending=1 if is_strict else None,
            )  # fmt: skip
            await stream.add_consumer(self._stream, config)

    async def _dial(self) -> Any:
        async def quiet(*_: object) -> None:
            pass

        return await nats.connect(
            f"nats://{HOST}:{self.server.port}", user=USER, password=PASSWORD, allow_reconnect=False, error_cb=quiet
        )

    async def _put(self, client: Any, endpoint: str, id: str, body: bytes) -> None:
        await client.jetstream(timeout=scaled(10)).publish(f"{self.tag}.{endpoint}", body)

    async def waiting(self) -> int:
        stream = (await self._connected()).jetstream(timeout=scaled(10))
        found = [await stream.consumer_info(self._stream, name) for name in (ORDERS, BULK, RECEIPTS)]
        return sum((each.num_pending or 0) + (each.num_ack_pending or 0) for each in found)

    async def in_queue(self) -> list[tuple[str, bytes]]:
        stream = (await self._connected()).jetstream(timeout=scaled(10))
        name = f"{self._stream}-bare"
        left = (await stream.stream_info(name)).state.messages
        reader = await stream.pull_subscribe(f"{self.tag}-bare.>", stream=name)
        found: list[tuple[str, bytes]] = []
        while len(found) < left:
            for each in await reader.fetch(500, timeout=scaled(10)):
                found.append((each.headers["Nats-Msg-Id"], each.data))
                await each.ack()
        return found


@dataclass(frozen=True, slots=True)
class _Channel:
    connection: Any
    channel: Any

    async def close(self) -> None:
        await self.connection.close()


class SoakRabbit(SoakBroker):
    kind = "amqp"

    def _queue(self, name: str) -> str:
        return f"{self.tag}-{name}"

    @property
    def listens(self) -> dict[str, str]:
        return {name: f"amqp:{self._queue(name)}" for name in (ORDERS, BULK, RECEIPTS)}

    @property
    def to_inbox(self) -> str:
        return f"amqp:{self._queue(RECEIPTS)}"

    @property
    def to_queue(self) -> str:
        return f"amqp:{self._queue('bare')}"

    async def set_up(self) -> None:
        channel = (await self._connected()).channel
        for name in (ORDERS, BULK, RECEIPTS, "bare"):
            is_strict = name == ORDERS and self.plant != NOT_STRICT
            arguments = {"x-single-active-consumer": True} if is_strict else {}
            await channel.declare_queue(self._queue(name), durable=True, arguments=arguments)

    async def _dial(self) -> Any:
        connection = await aio_pika.connect(self.url, timeout=scaled(30))
        return _Channel(connection, await connection.channel(publisher_confirms=True, on_return_raises=True))

    async def _put(self, client: Any, endpoint: str, id: str, body: bytes) -> None:
        message = aio_pika.Message(body, message_id=id, type=TYPE, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
        await client.channel.default_exchange.publish(message, self._queue(endpoint))

    async def waiting(self) -> int:
        """What a listener holds is not counted: look when nobody listens."""
        channel = (await self._connected()).channel
        found = [await channel.declare_queue(self._queue(each), passive=True) for each in (ORDERS, BULK, RECEIPTS)]
        return sum(each.declaration_result.message_count for each in found)

    async def in_queue(self) -> list[tuple[str, bytes]]:
        channel = (await self._connected()).channel
        queue = await channel.declare_queue(self._queue("bare"), passive=True)
        found: list[tuple[str, bytes]] = []
        while (message := await queue.get(no_ack=True, fail=False)) is not None:
            found.append((message.message_id, message.body))
        return found


def make_broker(server: BrokerProcess, tag: str, plant: str | None) -> SoakBroker:
    if isinstance(server, NatsServer):
        return SoakNats(server, server.url, tag, plant)
    assert isinstance(server, RabbitServer)
    return SoakRabbit(server, server.url, tag, plant)
