"""The WebSockets of clients: from the handshake to the hub, and as fast as the store can take it."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from semel.errors import FrameError, LimitExceeded, StoreError
from semel.http import HttpRequest, HttpResponse, text_response, unavailable
from semel.pubsub.events.cloudevents import (
    Allowed,
    EventClient,
    HandlerFailed,
    HandlerRefused,
    connect_event,
    read_connect,
)
from semel.pubsub.events.handler_calls import HANDLERS
from semel.pubsub.events.handlers import Handlers, SystemEvent
from semel.pubsub.hub.calls import Answer, Call, Outcome
from semel.pubsub.hub.commits import public_message
from semel.pubsub.hub.sockets import (
    ClosePeer,
    Frames,
    HubRestarted,
    NewSession,
    ResumeSession,
    SocketClosed,
    SocketDrained,
    SocketStalled,
    WelcomePeer,
    Write,
)
from semel.pubsub.protocol.codecs import codec_for
from semel.pubsub.protocol.frames import Codec
from semel.pubsub.protocol.handshake import (
    Handshake,
    HandshakeRefused,
    NewClient,
    ResumeRefused,
    ReturningClient,
    SimpleMode,
)
from semel.pubsub.protocol.messages import Ping, SendToGroup, SequenceAck, StreamData, StreamEnd
from semel.pubsub.protocol.messages import Request as ClientRequest
from semel.runtime.host.outages import Use
from semel.runtime.host.performer import Performer
from semel.runtime.transports.base import Inbox
from semel.runtime.transports.websocket import Accept, Message, WebSocketPeer, subprotocols
from semel.websocket import CloseCode

if TYPE_CHECKING:
    from semel.runtime.server.webhooks import Webhooks

CALL_S = 30.0
"""How long a hub may take to answer a call."""


class HubLink:
    """The transport of one hub: its sockets, the calls that wait for its answer, and its event handlers."""

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

    def send_to_hub(self, peer: str, message: object) -> None:
        assert self._inbox is not None
        self._inbox.received(self, peer, message)

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
            self.send_to_hub(name, call)
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
            self._restarted()
            return True
        if peer == HANDLERS:
            assert self.webhooks is not None
            self.webhooks.receive(message, lambda reply: self.send_to_hub(HANDLERS, reply))
            return True
        socket = self.sockets.get(peer)
        if socket is None:
            return True
        if isinstance(message, ClosePeer):
            socket.close(message.code, message.reason)
        elif isinstance(message, WelcomePeer):
            socket.welcome()
        return True

    def _write(self, message: Write) -> None:
        self.frames_out += message.frames
        for peers, frames in message.writes:
            for peer in peers:
                socket = self.sockets.get(peer)
                if socket is not None and not socket.write(frames) and not socket.is_closing:
                    self.send_to_hub(peer, SocketStalled())

    def _restarted(self) -> None:
        """A hub says this whenever it starts. At the first start no socket or call can belong to a hub before it."""
        has_begun, self._has_begun = self._has_begun, True
        if not has_begun:
            return
        for future in self._calls.values():
            if not future.done():
                future.set_result(Answer(Outcome.FAILED, "the hub was restarted; ask again"))
        for socket in self.sockets.values():
            if not socket.is_closing:
                socket.close(CloseCode.INTERNAL, "the hub was restarted")

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


log = logging.getLogger(__name__)

CONNECT_S = 25.0
"""How long an event handler may take to let a client in: a little less than a client may be kept waiting."""
COMMITS_MAX = 64
"""How many requests that are commits of their own a hub gets at once."""
_TOGETHER = frozenset({SendToGroup, SequenceAck, Ping, StreamData, StreamEnd})
"""Requests that are not: what comes in a row of them is committed together, or not at all."""


@dataclass(slots=True)
class ClientSocket:
    """A client's WebSocket that was accepted. `session` is what its hub gets first of it. Without a `link` it is only
    closed, for `close_reason`. `waiting` is what goes to the hub when the store has room."""

    link: HubLink | None
    session: NewSession | ResumeSession | None
    codec: Codec | None
    mode: SimpleMode | None = None
    close_reason: str = ""
    name: str = ""
    waiting: deque[Frames | SocketClosed] = field(default_factory=deque)

    @property
    def read(self) -> Callable[[Message], ClientRequest]:
        """What a frame means."""
        if self.mode is not None:
            return self.mode.read
        assert self.codec is not None
        return self.codec.decode


class ClientSockets:
    """A `SocketService`. `find` gives the hub of a name, or raises why it cannot be reached; `handlers` are the event
    handlers, by hub."""

    def __init__(
        self,
        performer: Performer,
        handshake: Handshake,
        handlers: Mapping[str, Handlers],
        find: Callable[[str], Awaitable[HubLink]],
        clock: Callable[[], float],
    ) -> None:
        self._performer, self._handshake, self._handlers = performer, handshake, handlers
        self._reachable, self._clock = find, clock
        self._outages = performer.outages
        self._held: list[WebSocketPeer] = []
        performer.on_room(self._release)

    async def upgrade(self, request: HttpRequest) -> Accept | HttpResponse:
        try:
            return await self._upgrade(request)
        except LimitExceeded as error:
            raise unavailable(error.message) from None
        except StoreError as error:
            self._outages.record(error, "a client was not answered", Use.READING)
            raise unavailable(public_message(error)) from None

    async def _upgrade(self, request: HttpRequest) -> Accept | HttpResponse:
        admission = self._handshake.admit(request, subprotocols(request), self._clock())
        if isinstance(admission, NewClient):
            admission = await self._ask_handler(admission, request)
        match admission:
            case HandshakeRefused(status=status, message=message):
                log.info("a client is refused with %d: %s", status, " ".join(message.split()))
                return text_response(status, message)
            case ResumeRefused(subprotocol=subprotocol, reason=reason):
                log.info("a client may not come back: %s", reason)
                return Accept(subprotocol, ClientSocket(None, None, None, close_reason=reason))
            case ReturningClient(hub=hub, subprotocol=subprotocol, known=known) as back:
                resume = ResumeSession(back.connection, back.token, back.in_order)
                socket = ClientSocket(await self._reachable(hub), resume, _codec(known))
                return Accept(subprotocol, socket)
            case NewClient(hub=hub, subprotocol=subprotocol, session=session, mode=mode):
                socket = ClientSocket(await self._reachable(hub), session, _codec(subprotocol), mode)
                # who does not get `connected` takes the answer for it
                return Accept(subprotocol, socket, waits=mode is not None)

    async def _ask_handler(self, client: NewClient, request: HttpRequest) -> NewClient | HandshakeRefused:
        """Whether it may come in, if an event handler wants to decide that. Nothing of it is kept: a client that gets
        no answer comes again."""
        handlers = self._handlers.get(client.hub)
        handler = handlers.for_system_event(SystemEvent.CONNECT) if handlers is not None else None
        webhooks = (await self._reachable(client.hub)).webhooks
        if handler is None or webhooks is None:
            return client
        offered, session = subprotocols(request), client.session
        event = connect_event(
            EventClient(client.hub, session.connection, session.user),  # in which subprotocol is for the handler to say
            round(self._clock() * 1e6),
            claims=client.claims.claims,
            query=parse_qsl(request.query, keep_blank_values=True),
            headers=request.headers.items(),
            subprotocols=offered,
            certificate=request.certificate,
        )
        match read_connect(await webhooks.ask(event, handler, CONNECT_S), offered):
            case Allowed() as allowed:
                return self._handshake.admit_allowed(client, allowed, request, self._clock())
            case HandlerRefused(status=status, message=message):
                return HandshakeRefused(status, message)
            case HandlerFailed(cause=cause):
                log.warning("%s: a client is not let in: %s", client.hub, cause)
                return HandshakeRefused(HTTPStatus.INTERNAL_SERVER_ERROR, "the event handler could not decide")

    def on_open(self, peer: WebSocketPeer) -> None:
        socket = _socket(peer)
        if socket.link is None:
            peer.close(CloseCode.POLICY, socket.close_reason)
            return
        socket.name = socket.link.enter(peer)
        socket.link.send_to_hub(socket.name, socket.session)

    def on_frames(self, peer: WebSocketPeer, messages: list[Message]) -> None:
        socket = _socket(peer)
        if socket.link is None:
            return
        socket.link.frames_in += len(messages)
        requests: list[ClientRequest] = []
        try:
            requests.extend(map(socket.read, messages))
        except FrameError as error:
            self._send(peer, socket, requests)
            peer.close(error.close_code, error.reason)
            return
        self._send(peer, socket, requests)

    def _send(self, peer: WebSocketPeer, socket: ClientSocket, requests: Sequence[ClientRequest]) -> None:
        is_waiting = bool(socket.waiting)
        socket.waiting.extend(map(Frames, _parts(requests)))
        if not is_waiting and not self._goes_on(socket):
            peer.hold()
            self._held.append(peer)

    def _goes_on(self, socket: ClientSocket) -> bool:
        """Give the hub what waits, as far as the store has room; whether it has now. A few bytes can ask for commits of
        many megabytes, since each writes the whole row of its session."""
        assert socket.link is not None
        while socket.waiting and not self._performer.is_full:
            socket.link.send_to_hub(socket.name, socket.waiting.popleft())
        return not self._performer.is_full

    def _release(self) -> None:
        """The store was slower than the clients. Those who waited may go on."""
        if self._held and not self._performer.is_full:
            held, self._held = self._held, []
            for peer in held:
                if self._goes_on(_socket(peer)):
                    peer.release()
                else:
                    self._held.append(peer)

    def on_room(self, peer: WebSocketPeer) -> None:
        peer.release()
        socket = _socket(peer)
        if socket.link is not None:
            socket.link.send_to_hub(socket.name, SocketDrained())

    def on_stalled(self, peer: WebSocketPeer) -> None:
        """The hub sends no more messages to who is full. Answers it still gets, so it may ask for no more of them."""
        peer.hold()

    def on_closed(self, peer: WebSocketPeer, code: int | None, reason: str) -> None:
        socket = _socket(peer)
        if socket.link is not None:
            socket.link.sockets.pop(socket.name, None)
            if socket.waiting:
                socket.waiting.append(SocketClosed(code, reason))
            else:
                socket.link.send_to_hub(socket.name, SocketClosed(code, reason))


def _socket(peer: WebSocketPeer) -> ClientSocket:
    assert isinstance(peer.key, ClientSocket)
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
