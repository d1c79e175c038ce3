"""NATS JetStream: a durable pull consumer with explicit acks as a transport, and a sender that waits for the PubAck.

A pull asks for what is there, and when there is nothing, for the next one message: no request is left open that could
bring more than there is room for. While a delivery is unsettled the server hears from time to time that somebody is at
work, so that it is not delivered to another meanwhile. The connection is not kept up by the client library: a listener
and a relay dial again by themselves.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import unquote, urlsplit

from semel.errors import ConfigError, PeerUnavailable, RemoteProtocolError
from semel.inbox.broker_messages import ForeignMessage, event_headers, quoted
from semel.inbox.outbox import Destination
from semel.inbox.redelivery import JetStreamFacts, jetstream_warnings, window_warning
from semel.inbox.settle import DeliveryEnd
from semel.inbox.sources import BrokerSource
from semel.kernel.envelope import Envelope
from semel.runtime.brokers.common import CONFIRM_S, CONNECT_S, arrival_of, client_of, is_cut, said, shown

log = logging.getLogger(__name__)

ID_HEADER = "Nats-Msg-Id"
WAIT_S = 5.0
"""How long a pull waits for the next message."""
MARGIN_S = 2.0
PULL_S = 10.0
ACK_WAIT_S = 30.0
ALIVE_SHARE = 3
"""So many times within the server's patience it hears that a delivery is still being worked on."""
_NONE = frozenset({"404", "408"})
_NO_ROOM = frozenset({10002, 10023, 10047, 10077})
"""Limits of the account, of the server's storage and of the stream: there may be room again later."""


async def connect_nats(url: str, name: str, *, closed: Any = None) -> Any:
    """A connection that ends when it is lost. `url` may name several servers, with commas between them."""
    nats = client_of("nats", "nats")

    async def quiet(error: Exception) -> None:
        log.debug("%s: %s", shown(url), said(error))

    servers, login = _login(url)
    client = nats.aio.client.Client()
    try:
        async with asyncio.timeout(CONNECT_S):
            await client.connect(
                servers=servers, **login, name=name, allow_reconnect=False, max_reconnect_attempts=1,
                reconnect_time_wait=0.1, connect_timeout=int(CONNECT_S), error_cb=quiet, closed_cb=closed,
            )  # fmt: skip
    except (OSError, nats.errors.Error, TimeoutError, ValueError) as error:
        await client.close()
        raise PeerUnavailable(f"{shown(url)} does not answer: {said(error)}", fix="see that NATS runs there") from None
    return client


def _login(url: str) -> tuple[list[str], dict[str, str]]:
    """The servers, and who we are there: the client library would take a percent-encoded password as it is written."""
    servers, login = [], {}
    for each in url.split(","):
        parts = urlsplit(each)
        servers.append(parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl())
        if parts.username and parts.password:
            login = {"user": unquote(parts.username), "password": unquote(parts.password)}
        elif parts.username:
            login = {"token": unquote(parts.username)}
    return servers, login


class NatsDelivery:
    def __init__(self, transport: NatsTransport, raw: Any, message: ForeignMessage) -> None:
        self.arrival = arrival_of(message, transport.source)
        self.attempt = max(1, raw.metadata.num_delivered or 1)
        self.is_cut = is_cut(message)
        self.raw = raw
        self._transport = transport

    async def settle(self, end: DeliveryEnd, delay_s: float = 0.0) -> None:
        match end:
            case DeliveryEnd.ACK | DeliveryEnd.ACKED_BEFORE:
                await self._transport.settle(self, self.raw.ack())
            case DeliveryEnd.NACK:
                await self._transport.settle(self, self.raw.term())
            case _:
                await self._transport.settle(self, self.raw.nak(delay_s))


class NatsTransport:
    """`consumer` is the durable consumer that all processes of an application share; it is made where there is none."""

    def __init__(self, url: str, source: BrokerSource, consumer: str) -> None:
        self.source, self.name = source, f"{source} at {shown(url)}"
        self._url, self._consumer = url, source.consumer or consumer
        self._client: Any = None
        self._inbox: Any = None
        self._come: deque[Any] = deque()
        self._wake = asyncio.Event()
        self._unsettled: dict[NatsDelivery, None] = {}
        self._alive: asyncio.Task[None] | None = None
        self._ack_wait_s = ACK_WAIT_S
        self._prefix = ""
        self._pulls = 0

    # -- opening and closing

    async def open(self, room: int) -> None:
        self._come.clear()
        self._client = await connect_nats(self._url, f"semel {self._consumer}", closed=self._lost)
        nats = client_of("nats", "nats")
        try:
            config = await self._ready_consumer(nats, room)
            self._ack_wait_s = config.ack_wait or ACK_WAIT_S
            self._prefix = self._client.new_inbox()
            self._inbox = await self._client.subscribe(f"{self._prefix}.*", cb=self._arrived)
        except (nats.errors.Error, TimeoutError) as error:
            raise PeerUnavailable(
                f"JetStream does not answer: {said(error)}", fix="see that jetstream is enabled there"
            ) from None
        self._alive = asyncio.get_running_loop().create_task(self._say_alive())

    async def _ready_consumer(self, nats: Any, room: int) -> Any:
        manager = self._client.jsm(timeout=PULL_S)
        try:
            info = await manager.consumer_info(self.source.name, self._consumer)
        except nats.js.errors.NotFoundError:
            info = await self._make_consumer(nats, manager, room)
        config = info.config
        if config.deliver_subject or config.ack_policy != nats.js.api.AckPolicy.EXPLICIT:
            raise ConfigError(
                f"consumer {self._consumer!r} of stream {self.source.name!r} is no pull consumer with explicit acks",
                fix="name another with ?consumer=, or let Semel make it",
            )
        if self.source.strict and config.max_ack_pending != 1:
            raise ConfigError(
                f"consumer {self._consumer!r} lets {config.max_ack_pending} messages be under way and is to be strict",
                fix="set its max_ack_pending to 1",
            )
        return config

    async def _make_consumer(self, nats: Any, manager: Any, room: int) -> Any:
        wanted = nats.js.api.ConsumerConfig(
            durable_name=self._consumer,
            filter_subject=self.source.subject or None,
            ack_policy=nats.js.api.AckPolicy.EXPLICIT,
            ack_wait=ACK_WAIT_S,
            max_deliver=-1,
            max_ack_pending=1 if self.source.strict else None,
        )
        try:
            return await manager.add_consumer(self.source.name, wanted)
        except nats.js.errors.NotFoundError:
            raise ConfigError(
                f"there is no stream {self.source.name!r}", fix="create it, with the subjects that are published to"
            ) from None

    async def close(self) -> None:
        if self._alive is not None:
            self._alive.cancel()
            await asyncio.gather(self._alive, return_exceptions=True)
        client, self._client, self._alive = self._client, None, None
        if client is None:
            return
        with suppress(Exception):
            async with asyncio.timeout(CONNECT_S):
                if not client.is_closed:
                    await self._give_back(client)
        self._unsettled.clear()
        self._come.clear()
        with suppress(Exception):
            await client.close()

    async def _give_back(self, client: Any) -> None:
        """All of it, in the order in which it came: that of the deliveries that were handed out, then the others."""
        if self._inbox is not None:
            await self._inbox.drain()  # what is on its way comes yet
        for raw in [*(each.raw for each in self._unsettled), *self._come]:
            if raw.reply and not _status(raw):
                await raw.nak()
        await client.flush()

    async def _lost(self) -> None:
        self._wake.set()

    # -- receiving

    async def receive(self, limit: int) -> Sequence[NatsDelivery]:
        if not self._come:
            await self._pull(limit, wait_s=None)
        if not self._come:
            await self._pull(1, wait_s=WAIT_S)
        found: list[NatsDelivery] = []
        while self._come and len(found) < limit:
            found.append(self._delivery(self._come.popleft()))
        return found

    async def _pull(self, batch: int, wait_s: float | None) -> None:
        """Ask for what is there, or wait for the next. It ends with the last message or with a word of the server."""
        asked: dict[str, Any] = {"batch": batch}
        if wait_s is None:
            asked["no_wait"] = True
        else:
            asked["expires"] = int(wait_s * 1e9)
        self._pulls += 1
        answers = f"{self._prefix}.{self._pulls}"
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self.source.name}.{self._consumer}"
        await self._send_answer(self._client.publish(subject, json.dumps(asked).encode(), answers))
        with suppress(TimeoutError):
            async with asyncio.timeout((wait_s + MARGIN_S) if wait_s is not None else PULL_S):
                while not self._is_answered(answers, batch):
                    self._wake.clear()
                    await self._wake.wait()
            return
        # no answer at all: what is left of the request may still bring something, and is taken then
        if wait_s is None and not self._come:
            raise PeerUnavailable("JetStream does not answer a pull", fix="see the state of its stream and consumer")

    def _is_answered(self, answers: str, batch: int) -> bool:
        if self._client.is_closed:
            raise PeerUnavailable("the connection to NATS is lost", fix="it is dialled again")
        for raw in [each for each in self._come if _status(each)]:
            self._come.remove(raw)
            if raw.subject == answers and _is_last(raw):
                return True  # the word on an earlier pull says nothing about this one
        return len(self._come) >= batch

    async def _arrived(self, raw: Any) -> None:
        self._come.append(raw)
        self._wake.set()

    def _delivery(self, raw: Any) -> NatsDelivery:
        headers = dict(raw.headers or {})
        message = ForeignMessage(
            raw.data,
            raw.subject,
            id=headers.get(ID_HEADER),
            content_type=next((value for name, value in headers.items() if name.lower() == "content-type"), None),
            time=int(raw.metadata.timestamp.timestamp() * 1_000_000),
            headers=headers,
        )
        delivery = NatsDelivery(self, raw, message)
        self._unsettled[delivery] = None
        return delivery

    # -- settling

    async def settle(self, delivery: NatsDelivery, answer: Any) -> None:
        if delivery not in self._unsettled:
            answer.close()
            raise PeerUnavailable("the delivery went with its connection", fix="it is delivered again")
        await self._send_answer(answer)
        self._unsettled.pop(delivery, None)

    async def _send_answer(self, answer: Any) -> None:
        nats = client_of("nats", "nats")
        try:
            await answer
        except (nats.errors.Error, OSError) as error:
            raise PeerUnavailable(f"NATS did not take the answer: {said(error)}", fix="it is dialled again") from None

    async def _say_alive(self) -> None:
        """Deliveries that take long are not delivered to another meanwhile."""
        while True:
            await asyncio.sleep(self._ack_wait_s / ALIVE_SHARE)
            for delivery in list(self._unsettled):
                with suppress(Exception):
                    await delivery.raw.in_progress()

    # -- its own settings

    async def warnings(self, endpoint: str, keep_s: float) -> list[str]:
        nats = client_of("nats", "nats")
        manager = self._client.jsm(timeout=PULL_S)
        try:
            stream = (await manager.stream_info(self.source.name)).config
            consumer = (await manager.consumer_info(self.source.name, self._consumer)).config
        except (nats.errors.Error, TimeoutError) as error:
            return [f"the settings of stream {self.source.name!r} cannot be read: {said(error)}"]
        facts = JetStreamFacts(
            self.source.name,
            self._consumer,
            max_age_s=stream.max_age or None,
            max_messages=_limit(stream.max_msgs),
            max_bytes=_limit(stream.max_bytes),
            max_deliver=_limit(consumer.max_deliver),
            ack_wait_s=consumer.ack_wait or ACK_WAIT_S,
            discards_old=stream.discard == nats.js.api.DiscardPolicy.OLD,
        )
        return jetstream_warnings(facts, endpoint, keep_s)


def _limit(number: int | None) -> int | None:
    return number if number is not None and number > 0 else None


def _status(raw: Any) -> str:
    """The server's own word on a pull; a message has none."""
    return (raw.headers or {}).get("Status", "") if not raw.reply else ""


def _is_last(raw: Any) -> bool:
    """Whether there is nothing more, for now. Raises for what no other pull would change."""
    status, description = _status(raw), str(raw.headers.get("Description", ""))
    if status in _NONE or description.startswith("Exceeded MaxAckPending"):
        return True
    if status == "100":
        return False
    raise PeerUnavailable(f"JetStream answers a pull with {status} {description}", fix="see the state of its consumer")


# -- out


class NatsSender:
    """Sends to subjects of JetStream streams, on one connection that is made with the first message."""

    def __init__(self, url: str, name: str) -> None:
        self._url, self._name = url, name
        self._client: Any = None
        self._dialling = asyncio.Lock()
        self._closed = asyncio.Event()
        self._checked: set[str] = set()

    async def send(self, destination: Destination, envelope: Envelope) -> None:
        nats = client_of("nats", "nats")
        client = await self._connected()
        headers = {**event_headers(envelope), ID_HEADER: quoted(envelope.id)}
        if envelope.datacontenttype:
            headers["content-type"] = envelope.datacontenttype
        try:
            ack = await self._unless_closed(
                client.jetstream().publish(destination.to, envelope.data, timeout=CONFIRM_S, headers=headers)
            )
        except nats.js.errors.NoStreamResponseError:
            raise PeerUnavailable(
                f"no stream takes {destination}", fix="create a stream with this subject; it is sent again"
            ) from None
        except (nats.errors.MaxPayloadError, nats.errors.BadSubjectError, nats.errors.BadHeaderError) as error:
            raise RemoteProtocolError(f"{destination} does not take it: {said(error)}", fix=_SMALLER) from None
        except nats.js.errors.APIError as error:
            raise _refused(destination, error) from None
        except (nats.errors.Error, OSError, TimeoutError) as error:
            raise PeerUnavailable(f"{destination} did not answer: {said(error)}", fix="it is sent again") from None
        await self._check(nats, client, ack.stream)

    async def _unless_closed(self, publish: Any) -> Any:
        """The client library would go on waiting for an answer on a connection that is lost."""
        publishing, closed = asyncio.ensure_future(publish), asyncio.ensure_future(self._closed.wait())
        try:
            await asyncio.wait({publishing, closed}, return_when=asyncio.FIRST_COMPLETED)
            if publishing.done():
                return publishing.result()
            raise PeerUnavailable("the connection to NATS was lost before it answered", fix="it is sent again")
        finally:
            publishing.cancel()
            closed.cancel()
            await asyncio.gather(publishing, closed, return_exceptions=True)

    async def _connected(self) -> Any:
        async with self._dialling:
            if self._client is None or self._client.is_closed:
                self._closed = asyncio.Event()
                self._client = await connect_nats(self._url, self._name, closed=self._lost)
            return self._client

    async def _lost(self) -> None:
        self._closed.set()

    async def _check(self, nats: Any, client: Any, stream: str) -> None:
        if stream in self._checked:
            return
        self._checked.add(stream)
        with suppress(nats.errors.Error, OSError, TimeoutError):
            config = (await client.jsm(timeout=CONFIRM_S).stream_info(stream)).config
            if (warning := window_warning(stream, config.duplicate_window or 0.0)) is not None:
                log.warning("%s", warning)

    async def close(self) -> None:
        if self._client is not None:
            with suppress(Exception):
                await self._client.close()


_SMALLER = "send less, or raise the limit of the server; then replay the dead letter"


def _refused(destination: Destination, error: Any) -> Exception:
    text = f"{destination} answered {error.code}: {error.description}"
    is_full = error.err_code in _NO_ROOM
    if is_full or (error.code or 500) >= 500:
        return PeerUnavailable(text, fix="it is sent again")
    return RemoteProtocolError(text, fix="correct the stream or the message, then replay the dead letter")
