"""RabbitMQ by AMQP 0-9-1: a queue with manual acks and a prefetch as a transport, and a sender that waits for the
confirm.

RabbitMQ knows no delay for what goes back, so it is held here that long and counts as unsettled. Queues and exchanges
are the operator's: nothing is declared here.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from functools import partial
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import httpx

from semel.errors import ConfigError, PeerUnavailable, RemoteProtocolError
from semel.inbox.broker_messages import ForeignMessage, event_headers
from semel.inbox.outbox import Destination
from semel.inbox.redelivery import QueueFacts, queue_warnings
from semel.inbox.settle import DeliveryEnd
from semel.inbox.sources import BrokerSource
from semel.kernel.envelope import Envelope
from semel.runtime.brokers.common import CONFIRM_S, CONNECT_S, arrival_of, client_of, is_cut, said, shown

log = logging.getLogger(__name__)

IDLE_S = 5.0
"""After so long without a message the queue is looked at: RabbitMQ ends a consumer whose queue is gone."""
PREFETCH_MAX = 65_535
SHORT_BYTES_MAX = 255
"""A short string of the protocol: message-id, type and content-type are such."""


async def connect_amqp(url: str, name: str) -> Any:
    """A connection that ends when it is lost."""
    aio_pika = client_of("aio_pika", "amqp")
    try:
        return await aio_pika.connect(
            url, timeout=CONNECT_S, client_properties={"connection_name": name}, connection_class=aio_pika.Connection
        )
    except (OSError, aio_pika.exceptions.AMQPError, TimeoutError, ValueError) as error:
        raise PeerUnavailable(
            f"{shown(url)} does not answer: {said(error)}", fix="see that RabbitMQ runs there and knows the user"
        ) from None


class AmqpDelivery:
    def __init__(self, transport: AmqpTransport, raw: Any) -> None:
        message = message_of(raw)
        count = (raw.headers or {}).get("x-delivery-count")
        self.arrival = arrival_of(message, transport.source)
        self.attempt = 1 + (count if isinstance(count, int) else bool(raw.redelivered))
        self.is_cut = is_cut(message)
        self.raw = raw
        self._transport = transport

    async def settle(self, end: DeliveryEnd, delay_s: float = 0.0) -> None:
        match end:
            case DeliveryEnd.ACK | DeliveryEnd.ACKED_BEFORE:
                await self._transport.settle(self, self.raw.ack())
            case DeliveryEnd.NACK:
                await self._transport.settle(self, self.raw.reject(requeue=False))
            case _:
                if delay_s > 0:
                    await asyncio.sleep(delay_s)
                await self._transport.settle(self, self.raw.nack(requeue=True))


def message_of(raw: Any) -> ForeignMessage:
    return ForeignMessage(
        raw.body,
        raw.routing_key or "",
        id=raw.message_id or None,
        type=raw.type or None,
        content_type=raw.content_type or None,
        time=int(raw.timestamp.timestamp() * 1_000_000) if raw.timestamp is not None else None,
        headers={name: text for name, value in (raw.headers or {}).items() if (text := as_text(value)) is not None},
    )


def as_text(value: Any) -> str | None:
    """A header of RabbitMQ has a type. Tables and lists, such as x-death, are the broker's own and stay behind."""
    if isinstance(value, bytes):
        with suppress(UnicodeDecodeError):
            return value.decode()
        return None
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, datetime):
        return value.isoformat()
    return str(value) if isinstance(value, str | int | float) else None


class AmqpTransport:
    def __init__(self, url: str, source: BrokerSource, name: str) -> None:
        self.source, self.name = source, f"{source} at {shown(url)}"
        self._url, self._client_name = url, name
        self._connection: Any = None
        self._channel: Any = None
        self._queue: Any = None
        self._tag = ""
        self._come: deque[Any] = deque()
        self._wake = asyncio.Event()
        self._unsettled: dict[AmqpDelivery, None] = {}
        self._end: str | None = None

    # -- opening and closing

    async def open(self, room: int) -> None:
        aio_pika = client_of("aio_pika", "amqp")
        self._end = None
        self._connection = connection = await connect_amqp(self._url, self._client_name)
        lost = partial(self._lost, connection)
        connection.close_callbacks.add(lost)
        try:
            self._channel = await connection.channel(publisher_confirms=False)
            self._channel.close_callbacks.add(lost)
            await self._channel.set_qos(prefetch_count=min(room, PREFETCH_MAX))
            self._queue = await self._channel.declare_queue(self.source.name, passive=True)
            self._tag = await self._queue.consume(self._arrived, no_ack=False)
        except aio_pika.exceptions.ChannelNotFoundEntity:
            raise ConfigError(f"there is no queue {self.source.name!r}", fix="declare it, and bind it") from None
        except (aio_pika.exceptions.AMQPError, OSError, TimeoutError) as error:
            raise PeerUnavailable(
                f"queue {self.source.name!r} cannot be listened to: {said(error)}", fix="see what RabbitMQ says of it"
            ) from None

    async def close(self) -> None:
        """A channel that ends gives all that was not settled back to its queue, each to its old place."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        with suppress(Exception):
            async with asyncio.timeout(CONNECT_S):
                await connection.close()
        self._unsettled.clear()
        self._come.clear()

    def _lost(self, connection: Any, _sender: Any, error: BaseException | None = None) -> None:
        if connection is self._connection:  # and not one that was closed before it was opened again
            self._end = said(error) if error is not None else "the channel is closed"
            self._wake.set()

    # -- receiving

    async def receive(self, limit: int) -> Sequence[AmqpDelivery]:
        while not self._come:
            self._check_open()
            self._wake.clear()
            try:
                await asyncio.wait_for(self._wake.wait(), IDLE_S)
            except TimeoutError:
                await self._look()
                return []
        self._check_open()  # what came by a channel that has ended cannot be settled
        found: list[AmqpDelivery] = []
        while self._come and len(found) < limit:
            delivery = AmqpDelivery(self, self._come.popleft())
            self._unsettled[delivery] = None
            found.append(delivery)
        return found

    def _check_open(self) -> None:
        if self._end is not None:
            raise PeerUnavailable(f"the connection to RabbitMQ is lost: {self._end}", fix="it is dialled again")

    async def _look(self) -> None:
        aio_pika = client_of("aio_pika", "amqp")
        try:
            found = await self._channel.declare_queue(self.source.name, passive=True, timeout=CONFIRM_S)
        except (aio_pika.exceptions.AMQPError, OSError, TimeoutError) as error:
            raise PeerUnavailable(
                f"queue {self.source.name!r} is gone: {said(error)}", fix="declare it again"
            ) from None
        if not found.declaration_result.consumer_count:
            raise PeerUnavailable(f"queue {self.source.name!r} was made again", fix="it is listened to again")

    async def _arrived(self, raw: Any) -> None:
        self._come.append(raw)
        self._wake.set()

    # -- settling

    async def settle(self, delivery: AmqpDelivery, answer: Any) -> None:
        if delivery not in self._unsettled or self._end is not None:
            answer.close()
            raise PeerUnavailable("the delivery went with its channel", fix="it is delivered again")
        aio_pika = client_of("aio_pika", "amqp")
        try:
            await answer
        except (aio_pika.exceptions.AMQPError, OSError, RuntimeError) as error:
            raise PeerUnavailable(
                f"RabbitMQ did not take the answer: {said(error)}", fix="it is dialled again"
            ) from None
        self._unsettled.pop(delivery, None)

    # -- its own settings

    async def warnings(self, endpoint: str, keep_s: float) -> list[str]:
        if not self.source.management:
            log.info(
                "the settings of queue %r are not read: say where RabbitMQ's HTTP API is, ?management=http://...",
                self.source.name,
            )
            return []
        try:
            facts = await read_queue(self.source.management, self._url, self.source.name)
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError) as error:
            return [f"the settings of queue {self.source.name!r} cannot be read: {said(error)}"]
        return queue_warnings(facts, endpoint, keep_s)


async def read_queue(management: str, url: str, queue: str) -> QueueFacts:
    """By the HTTP API, with the user of the connection unless the URL names another. AMQP itself does not tell."""
    parts, broker = urlsplit(management), urlsplit(url)
    user = parts.username or broker.username or "guest"
    password = parts.password or broker.password or "guest"
    vhost = unquote(broker.path.removeprefix("/")) or "/"
    base = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"
    async with httpx.AsyncClient(follow_redirects=False, trust_env=False, timeout=CONNECT_S) as http:
        answer = await http.get(
            f"{base}/api/queues/{quote(vhost, safe='')}/{quote(queue, safe='')}",
            auth=(unquote(user), unquote(password)),
        )
    answer.raise_for_status()
    found = answer.json()
    return facts_of(queue, found.get("arguments") or {}, _policy(found), bool(found.get("durable", True)))


def _policy(found: dict[str, Any]) -> dict[str, Any]:
    policy = found.get("effective_policy_definition")
    return policy if isinstance(policy, dict) else {}


def facts_of(queue: str, arguments: dict[str, Any], policy: dict[str, Any], is_durable: bool) -> QueueFacts:
    """Where both the queue and a policy say it, the lower number holds."""

    def lowest(name: str) -> int | None:
        said = [each for each in (arguments.get(f"x-{name}"), policy.get(name)) if isinstance(each, int)]
        return min(said, default=None)

    ttl, expires = lowest("message-ttl"), lowest("expires")
    return QueueFacts(
        queue,
        ttl_s=None if ttl is None else ttl / 1000,
        expires_s=None if expires is None else expires / 1000,
        max_length=lowest("max-length"),
        delivery_limit=lowest("delivery-limit"),
        has_dead_letters="x-dead-letter-exchange" in arguments or "dead-letter-exchange" in policy,
        is_durable=is_durable,
        overflow=str(arguments.get("x-overflow") or policy.get("overflow") or "drop-head"),
    )


# -- out


class AmqpSender:
    """Publishes with `mandatory` on one channel with confirms, which is made with the first message. The routing key
    is the destination's; the exchange is that of the URL, `?exchange=orders`, or the default one, whose keys are
    queues."""

    def __init__(self, url: str, name: str) -> None:
        self._url, self._exchange_name = exchange_of(url)
        self._name = name
        self._connection: Any = None
        self._exchange: Any = None
        self._dialling = asyncio.Lock()
        self._turns: dict[str, tuple[asyncio.Lock, int]] = {}

    async def send(self, destination: Destination, envelope: Envelope) -> None:
        aio_pika = client_of("aio_pika", "amqp")
        exchange = await self._connected(aio_pika)
        message = aio_pika.Message(
            envelope.data,
            headers=dict(event_headers(envelope)),
            message_id=_short(envelope.id),
            type=_short(envelope.type),
            content_type=_short(envelope.datacontenttype),
            delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
        )
        try:
            async with self._alone(envelope.id), asyncio.timeout(CONFIRM_S):
                await exchange.publish(message, destination.to, mandatory=True)
        except aio_pika.exceptions.PublishError:
            raise PeerUnavailable(
                f"no queue takes {destination}", fix="declare and bind a queue for it; it is sent again"
            ) from None
        except aio_pika.exceptions.ChannelNotFoundEntity:
            raise PeerUnavailable(
                f"there is no exchange {self._exchange_name!r}", fix="declare it; it is sent again"
            ) from None
        except (aio_pika.exceptions.ProtocolSyntaxError, ValueError) as error:
            raise RemoteProtocolError(f"{destination} does not take it: {said(error)}", fix="send less") from None
        except (aio_pika.exceptions.AMQPError, OSError, TimeoutError, RuntimeError) as error:
            raise PeerUnavailable(f"{destination} did not confirm: {said(error)}", fix="it is sent again") from None

    @asynccontextmanager
    async def _alone(self, id: str) -> AsyncIterator[None]:
        """One after the other of those with the same id: the client library tells messages that come back by their id,
        and would take the one that no queue took for sent, and the other for refused."""
        turn, waiting = self._turns.get(id) or (asyncio.Lock(), 0)
        self._turns[id] = turn, waiting + 1
        try:
            async with turn:
                yield
        finally:
            turn, waiting = self._turns.pop(id)
            if waiting > 1:
                self._turns[id] = turn, waiting - 1

    async def _connected(self, aio_pika: Any) -> Any:
        async with self._dialling:
            if self._exchange is None or self._exchange.channel.is_closed:
                await self.close()
                self._connection = await connect_amqp(self._url, self._name)
                channel = await self._connection.channel(publisher_confirms=True, on_return_raises=True)
                self._exchange = await self._found(aio_pika, channel)
            return self._exchange

    async def _found(self, aio_pika: Any, channel: Any) -> Any:
        if not self._exchange_name:
            return channel.default_exchange
        try:
            return await channel.get_exchange(self._exchange_name, ensure=True)
        except (aio_pika.exceptions.AMQPError, OSError, TimeoutError) as error:
            raise PeerUnavailable(
                f"exchange {self._exchange_name!r} cannot be used: {said(error)}", fix="declare it; it is sent again"
            ) from None

    async def close(self) -> None:
        connection, self._connection, self._exchange = self._connection, None, None
        if connection is not None:
            with suppress(Exception):
                async with asyncio.timeout(CONNECT_S):
                    await connection.close()


def _short(text: str | None) -> str | None:
    """What is longer stands in the headers alone."""
    return text if text is not None and len(text.encode()) <= SHORT_BYTES_MAX else None


def exchange_of(url: str) -> tuple[str, str]:
    """The URL without `exchange`, which the client library would not know, and the exchange."""
    head, _, query = url.partition("?")
    parts = [each for each in query.split("&") if each]
    exchange = next((unquote(each.partition("=")[2]) for each in parts if each.startswith("exchange=")), "")
    rest = "&".join(each for each in parts if not each.startswith("exchange="))
    return f"{head}?{rest}" if rest else head, exchange
