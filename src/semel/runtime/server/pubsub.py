"""Pub/sub as a part of a server: hubs, and the ways to them.

    handshake   which client comes in, and to which hub (`pubsub.protocol.handshake`)
    hubs        one machine for each, on the performer (`pubsub.hub.machine`)
    rest        requests become calls on a hub (`pubsub.rest.api`)
    admin       what operators ask of hubs (`runtime.server.pubsub_admin`)

A hub begins when the first one asks for it, from what the store holds of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from importlib import import_module
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

from prometheus_client.metrics_core import Metric

from semel.errors import FrameError, LimitExceeded, SemelError, StoreError, StoreUnavailable
from semel.http import HttpRequest, HttpResponse, json_error, text_response, unavailable
from semel.kernel.store import Store
from semel.pubsub.events import cloudevents
from semel.pubsub.events.abuse import host_of
from semel.pubsub.events.cloudevents import Allowed, EventClient, HandlerFailed, connect_event, read_connect
from semel.pubsub.events.handler_calls import HANDLERS
from semel.pubsub.events.handlers import Handlers, SystemEvent
from semel.pubsub.hub.calls import Answer, Call, Outcome
from semel.pubsub.hub.commits import outward
from semel.pubsub.hub.loading import announced_hubs, known_hubs, load_hub
from semel.pubsub.hub.machine import Hub, HubOptions
from semel.pubsub.hub.records import stream_of
from semel.pubsub.hub.sockets import (
    ClosePeer,
    Frames,
    HubRestarted,
    NewSession,
    ResumeSession,
    SocketClosed,
    SocketDrained,
    SocketStalled,
    Write,
)
from semel.pubsub.protocol.codecs import codec_for
from semel.pubsub.protocol.frames import FRAME_BYTES_MAX, Codec
from semel.pubsub.protocol.handshake import Handshake, HandshakeRefused, Newcomer, Returning, SimpleMode, TurnedAway
from semel.pubsub.protocol.messages import CloseCode, Ping, SendToGroup, SequenceAck, StreamData, StreamEnd
from semel.pubsub.protocol.messages import Request as ClientRequest
from semel.pubsub.rest.admin import PREFIX
from semel.pubsub.rest.api import Rest, RestSettings
from semel.runtime.server.addresses import THIS_MACHINE, in_url
from semel.runtime.server.mounts import Mount
from semel.runtime.server.part import Part, ServerContext, ServerSettings
from semel.runtime.server.pubsub_admin import PubSubAdmin
from semel.runtime.server.pubsub_metrics import TOPICS, Traffic, hub_metrics
from semel.runtime.transports.base import Inbox
from semel.runtime.transports.websocket import Accept, Message, WebSocketPeer, subprotocols

if TYPE_CHECKING:
    from semel.runtime.server.webhooks import Webhooks

log = logging.getLogger(__name__)

HUBS_MAX = 1_000
DEFAULT_ORIGIN = "localhost"
CONNECT_S = 25.0
"""How long an event handler may take to let a client in: a little less than a client may be kept waiting."""
CALL_S = 30.0
BEGIN_S = 5.0
"""How often hubs are looked for that others have begun."""
COMMITS_MAX = 64
"""How many requests that are commits of their own a hub hears at once."""
_TOGETHER = frozenset({SendToGroup, SequenceAck, Ping, StreamData, StreamEnd})
"""Requests that are not: what comes in a row of them is committed together, or not at all."""


@dataclass(frozen=True, slots=True)
class PubSubSettings:
    """`handlers` are the event handlers, by hub. `origin` is the host by which they know this server. Empty: that of
    its first endpoint, or the one on which it listens."""

    hub: HubOptions = field(default_factory=HubOptions)
    handlers: Mapping[str, Handlers] = field(default_factory=dict)
    origin: str = ""

    def origin_at(self, server: ServerSettings) -> str:
        first = server.endpoints[0] if server.endpoints else ""
        here = "" if server.host in THIS_MACHINE else in_url(server.host)
        return self.origin or host_of(urlsplit(first).netloc) or here or DEFAULT_ORIGIN


@dataclass(slots=True)
class _Guest:
    """A socket that was let in. `told` is the first that its hub hears of it, None if it hears nothing. `waiting` is
    what the hub hears when the store has room."""

    link: HubLink | None
    told: NewSession | ResumeSession | None
    codec: Codec | None
    mode: SimpleMode | None = None
    farewell: str = ""
    name: str = ""
    waiting: deque[Frames | SocketClosed] = field(default_factory=deque)

    @property
    def read(self) -> Callable[[Message], ClientRequest]:
        """What a frame means."""
        if self.mode is not None:
            return self.mode.read
        assert self.codec is not None
        return self.codec.decode


class HubLink:
    """What one hub has to do with: its sockets and those who call it."""

    def __init__(self, name: str, webhooks: Webhooks | None = None) -> None:
        self.name, self.webhooks = name, webhooks
        self.sockets: dict[str, WebSocketPeer] = {}
        self.frames_in = self.frames_out = 0
        self._calls: dict[str, asyncio.Future[Answer]] = {}
        self._count = 0
        self._has_begun = False
        self._inbox: Inbox | None = None

    def bind(self, inbox: Inbox) -> None:
        self._inbox = inbox

    def tell(self, peer: str, told: object) -> None:
        assert self._inbox is not None
        self._inbox.received(self, peer, told)

    def enter(self, peer: WebSocketPeer) -> str:
        self._count += 1
        name = f"socket-{self._count}"
        self.sockets[name] = peer
        return name

    async def call(self, call: Call) -> Answer:
        self._count += 1
        name = f"call-{self._count}"
        future = self._calls[name] = asyncio.get_running_loop().create_future()
        try:
            self.tell(name, call)
            async with asyncio.timeout(CALL_S):
                return await future
        except TimeoutError:
            return Answer(Outcome.FAILED, "the hub did not answer in time")
        finally:
            del self._calls[name]

    # -- what the performer asks of a transport

    def send(self, peer: str, message: Any) -> bool:
        if isinstance(message, Answer):
            future = self._calls.get(peer)
            if future is not None and not future.done():
                future.set_result(message)
            return True
        if isinstance(message, Write):
            self._write(message)
            return True
        if isinstance(message, HubRestarted):
            self._begin_anew()
            return True
        if peer == HANDLERS:
            assert self.webhooks is not None
            self.webhooks.hear(message, lambda told: self.tell(HANDLERS, told))
            return True
        socket = self.sockets.get(peer)
        if socket is None:
            return True
        if isinstance(message, ClosePeer):
            socket.close(message.code, message.reason)
        return True

    def _write(self, message: Write) -> None:
        self.frames_out += message.frames
        for peers, frames in message.writes:
            for peer in peers:
                socket = self.sockets.get(peer)
                if socket is not None and not socket.write(frames) and not socket.is_closing:
                    self.tell(peer, SocketStalled())

    def _begin_anew(self) -> None:
        """The first time nobody can have known another hub: whoever is here already came for this one."""
        has_begun, self._has_begun = self._has_begun, True
        if not has_begun:
            return
        for future in self._calls.values():
            if not future.done():
                future.set_result(Answer(Outcome.FAILED, "the hub began anew; ask again"))
        for socket in self.sockets.values():
            if not socket.is_closing:
                socket.close(CloseCode.INTERNAL, "the hub began anew")

    def flush(self) -> None:
        """Sockets gather what is written to them in a tick by themselves."""

    def pause(self) -> None:
        for socket in self.sockets.values():
            socket.hold()

    async def close(self) -> None:
        for future in self._calls.values():
            if not future.done():
                future.set_result(Answer(Outcome.FAILED, "the server is stopping"))
        if self.webhooks is not None:
            await self.webhooks.close()


class PubSub(Part):
    """Hubs, the REST API and what operators ask of them."""

    name = "pubsub"
    topics = TOPICS

    def __init__(self, context: ServerContext, settings: PubSubSettings | None = None) -> None:
        self._performer, self._server = context.performer, context.settings
        settings = settings or PubSubSettings()
        if self._performer.store.url.startswith("postgresql:"):
            settings = replace(settings, hub=replace(settings.hub, is_shared=True))
        self._settings = settings
        self._clock, self._random = context.clock, context.random
        keys, endpoints = self._server.keys, self._server.endpoints
        self._handshake = Handshake(keys, context.random, endpoints)
        self._rest = Rest(RestSettings(keys, endpoints))
        self._links: dict[str, asyncio.Task[HubLink]] = {}
        self._held: list[WebSocketPeer] = []
        self._has_begun = False
        self._performer.on_room(self._release)
        self._outages = self._performer.outages
        self._admin = PubSubAdmin(
            self._performer.store, self._outages, context.authority, self._call, lambda: self._links,
            clock=context.clock,
        )  # fmt: skip
        rest = Mount("/api/", self._respond, body_bytes=FRAME_BYTES_MAX, errors=self._rest.error)
        self.mounts = (
            rest,
            replace(rest, prefix="/client/", sockets=self),
            replace(rest, prefix="/clients/", sockets=self),
            Mount(PREFIX, self._admin.handle, body_bytes=0, errors=json_error),
        )
        # what is left to tell to handlers goes on, whether or not somebody comes
        for name in settings.handlers:
            self._begin_soon(name)

    async def run(self) -> None:
        """Hubs that other nodes have begun, or a server before this one, begin here as well."""
        while True:
            try:
                await self.begin_known()
            except SemelError as error:
                self._outages.met(error, "the hubs of the store cannot begin")
            await asyncio.sleep(BEGIN_S)

    def stop(self) -> None:
        self._admin.stop()

    def metrics(self) -> Iterable[Metric]:
        return hub_metrics(list(self._traffic()))

    async def overview(self) -> Mapping[str, Any]:
        found = list(self._traffic())
        return {"hubs": len(found), "connections": sum(each.sockets for each in found)}

    async def begin_known(self) -> None:
        """The hubs that the store knows, whether or not somebody comes: their sessions wait, and time runs. The first
        time each is looked for; from then on there can be no more than other nodes announce."""
        find = announced_hubs if self._has_begun else known_hubs
        for name in (*self._settings.handlers, *await asyncio.to_thread(lambda: list(find(self._performer.store)))):
            await self.hub(name)
        self._has_begun = True

    async def hub(self, name: str) -> HubLink:
        """The hub of this name, which begins now if it has not yet."""
        if name not in self._links:
            if len(self._links) >= HUBS_MAX:
                raise LimitExceeded(f"there are {HUBS_MAX:,} hubs already", fix="use fewer hubs, and groups in them")
            self._begin_soon(name)
        return await asyncio.shield(self._links[name])

    def _begin_soon(self, name: str) -> None:
        """One that could not begin is forgotten, and begins when it is asked for again."""

        def begun(task: asyncio.Task[HubLink]) -> None:
            if task.cancelled() or task.exception() is not None:
                self._links.pop(name, None)

        self._links[name] = asyncio.create_task(self._begin(name))
        self._links[name].add_done_callback(begun)

    async def _reachable(self, name: str) -> HubLink:
        """The hub, in an outage only if it is there. Nobody is kept waiting for a store that does not answer."""
        outage = self._outages.current
        if outage is not None and (outage.needs_restart or not self._is_there(name)):
            raise StoreUnavailable("the store is in trouble", fix="see what the log says of it")
        return await self.hub(name)

    def _is_there(self, name: str) -> bool:
        task = self._links.get(name)
        return task is not None and task.done() and self._performer.machine(stream_of(name)) is not None

    async def _begin(self, name: str) -> HubLink:
        if name in self._settings.handlers:
            # the HTTP client takes its time to load: others are served meanwhile, and not everybody has event handlers
            await asyncio.to_thread(import_module, "semel.runtime.server.webhooks")
        link = HubLink(name, self._webhooks(name))
        settings, node, random = self._settings, self._server.node, self._random

        def factory(store: Store) -> Any:
            return load_hub(store, name, node, random, settings.hub, settings.handlers.get(name))

        await self._performer.host(factory, transport=link)
        self._performer.attach(link)
        return link

    def _webhooks(self, hub: str) -> Webhooks | None:
        if hub not in self._settings.handlers:
            return None
        from semel.runtime.server.webhooks import Webhooks

        store = self._performer.store

        async def read_body(name: str) -> bytes:
            try:
                return await asyncio.to_thread(lambda: b"".join(store.body(name)))
            except StoreError as error:
                self._outages.met(error, f"{hub}: an event cannot be read")
                raise

        return Webhooks(hub, self._server.keys, self._settings.origin_at(self._server), read_body)

    # -- HTTP

    async def _respond(self, request: HttpRequest) -> HttpResponse:
        asked = self._rest.begin(request, self._clock())
        if isinstance(asked, HttpResponse):
            return asked
        return asked.respond(await self._call(asked.hub, asked.call))

    async def _call(self, hub: str, call: Call) -> Answer:
        try:
            async with asyncio.timeout(CALL_S):
                link = await self._reachable(hub)
            return await link.call(call)
        except TimeoutError:
            return Answer(Outcome.FAILED, outward(None))
        except LimitExceeded as error:
            return Answer(Outcome.FAILED, error.message)
        except SemelError as error:
            self._outages.met(error, f"{hub}: the hub cannot begin")
            return Answer(Outcome.FAILED, outward(error))

    def _traffic(self) -> Iterator[Traffic]:
        for task in self._links.values():
            if task.done() and not task.cancelled() and task.exception() is None:
                link = task.result()
                hub = self._performer.machine(stream_of(link.name))
                known = hub if isinstance(hub, Hub) else None
                sent, failed = (0, 0) if link.webhooks is None else (link.webhooks.requests, link.webhooks.failures)
                yield Traffic(link.name, known, len(link.sockets), link.frames_in, link.frames_out, sent, failed)

    # -- WebSocket

    async def upgrade(self, request: HttpRequest) -> Accept | HttpResponse:
        try:
            return await self._upgrade(request)
        except LimitExceeded as error:
            raise unavailable(error.message) from None
        except StoreError as error:
            self._outages.met(error, "a client was not answered")
            raise unavailable(outward(error)) from None

    async def _upgrade(self, request: HttpRequest) -> Accept | HttpResponse:
        admission = self._handshake.admit(request, subprotocols(request), self._clock())
        if isinstance(admission, Newcomer):
            admission = await self._ask_handler(admission, request)
        match admission:
            case HandshakeRefused(status=status, message=message):
                log.info("a client is refused with %d: %s", status, " ".join(message.split()))
                return text_response(status, message)
            case TurnedAway(subprotocol=subprotocol, reason=reason):
                log.info("a client may not come back: %s", reason)
                return Accept(subprotocol, _Guest(None, None, None, farewell=reason))
            case Returning(hub=hub, subprotocol=subprotocol, known=known) as back:
                resume = ResumeSession(back.connection, back.token, back.in_order)
                guest = _Guest(await self._reachable(hub), resume, _codec(known))
                return Accept(subprotocol, guest)
            case Newcomer(hub=hub, subprotocol=subprotocol, opening=opening, mode=mode):
                return Accept(subprotocol, _Guest(await self._reachable(hub), opening, _codec(subprotocol), mode))

    async def _ask_handler(self, newcomer: Newcomer, request: HttpRequest) -> Newcomer | HandshakeRefused:
        """Whether it may come in, if an event handler wants to decide that. Nothing of it is kept: a client that hears
        no answer comes again."""
        handlers = self._settings.handlers.get(newcomer.hub)
        handler = handlers.for_system_event(SystemEvent.CONNECT) if handlers is not None else None
        webhooks = (await self._reachable(newcomer.hub)).webhooks
        if handler is None or webhooks is None:
            return newcomer
        offered, opening = subprotocols(request), newcomer.opening
        event = connect_event(
            EventClient(
                newcomer.hub, opening.connection, opening.user
            ),  # in which subprotocol is for the handler to say
            round(self._clock() * 1e6),
            claims=newcomer.claims.claims,
            query=parse_qsl(request.query, keep_blank_values=True),
            headers=request.headers.items(),
            subprotocols=offered,
        )
        match read_connect(await webhooks.ask(event, handler, CONNECT_S), offered):
            case Allowed() as allowed:
                return self._handshake.let_in(newcomer, allowed, request, self._clock())
            case cloudevents.HandlerRefused(status=status, message=message):
                return HandshakeRefused(status, message)
            case HandlerFailed(cause=cause):
                log.warning("%s: a client is not let in: %s", newcomer.hub, cause)
                return HandshakeRefused(HTTPStatus.INTERNAL_SERVER_ERROR, "the event handler could not decide")

    def on_open(self, peer: WebSocketPeer) -> None:
        guest = _guest(peer)
        if guest.link is None:
            peer.close(CloseCode.POLICY, guest.farewell)
            return
        guest.name = guest.link.enter(peer)
        guest.link.tell(guest.name, guest.told)

    def on_frames(self, peer: WebSocketPeer, messages: list[Message]) -> None:
        guest = _guest(peer)
        if guest.link is None:
            return
        guest.link.frames_in += len(messages)
        requests: list[ClientRequest] = []
        try:
            requests.extend(map(guest.read, messages))
        except FrameError as error:
            self._tell(peer, guest, requests)
            peer.close(error.close_code, error.reason)
            return
        self._tell(peer, guest, requests)

    def _tell(self, peer: WebSocketPeer, guest: _Guest, requests: Sequence[ClientRequest]) -> None:
        is_waiting = bool(guest.waiting)
        guest.waiting.extend(map(Frames, _parts(requests)))
        if not is_waiting and not self._goes_on(guest):
            peer.hold()
            self._held.append(peer)

    def _goes_on(self, guest: _Guest) -> bool:
        """Tell the hub what waits, as far as the store has room; whether it has now. A few bytes can ask for commits of
        many megabytes, since each writes the whole row of its session."""
        assert guest.link is not None
        while guest.waiting and not self._performer.is_full:
            guest.link.tell(guest.name, guest.waiting.popleft())
        return not self._performer.is_full

    def _release(self) -> None:
        """The store was slower than the clients. Those who waited may go on."""
        if self._held and not self._performer.is_full:
            held, self._held = self._held, []
            for peer in held:
                if self._goes_on(_guest(peer)):
                    peer.release()
                else:
                    self._held.append(peer)

    def on_room(self, peer: WebSocketPeer) -> None:
        peer.release()
        guest = _guest(peer)
        if guest.link is not None:
            guest.link.tell(guest.name, SocketDrained())

    def on_stalled(self, peer: WebSocketPeer) -> None:
        """The hub sends no more messages to who is full. Answers it still gets, so it may ask for no more of them."""
        peer.hold()

    def on_closed(self, peer: WebSocketPeer, code: int | None, reason: str) -> None:
        guest = _guest(peer)
        if guest.link is not None:
            guest.link.sockets.pop(guest.name, None)
            if guest.waiting:
                guest.waiting.append(SocketClosed(code, reason))
            else:
                guest.link.tell(guest.name, SocketClosed(code, reason))


def _guest(peer: WebSocketPeer) -> _Guest:
    assert isinstance(peer.key, _Guest)
    return peer.key


def _parts(requests: Sequence[ClientRequest]) -> Iterator[Sequence[ClientRequest]]:
    """In each as many as may be committed before somebody looks whether the store has room."""
    begin = commits = 0
    if len(requests) > COMMITS_MAX:
        for at, request in enumerate(requests):
            if type(request) not in _TOGETHER:
                commits += 1
                if commits > COMMITS_MAX:
                    yield requests[begin:at]
                    begin, commits = at, 1
    yield requests[begin:]


def _codec(subprotocol: str | None) -> Codec | None:
    return codec_for(subprotocol) if subprotocol is not None else None  # type: ignore[return-value]
