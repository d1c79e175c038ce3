"""A client with its application: what it asked, what it was answered, and what it got."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

import msgspec

from semel.pubsub.client.events import (
    ClientOptions,
    CloseSocket,
    Connect,
    DeliverMessage,
    Effect,
    Event,
    Interrupted,
    Keep,
    Kept,
    MarkSent,
    MessageDelivered,
    NotifyApplication,
    Online,
    OutboxEntry,
    Recovered,
    Remove,
    RequestAccepted,
    Result,
    SendFrame,
    SessionLost,
    Settle,
    State,
    SubmitRequest,
)
from semel.pubsub.client.machine import ClientMachine
from semel.pubsub.hub.sockets import ClosePeer, SocketClosed
from semel.pubsub.protocol.codecs import codec_for
from semel.pubsub.protocol.frames import Codec, Frame, Subprotocol
from semel.pubsub.protocol.messages import JoinGroup, SendToGroup, SequenceAck
from semel.sim.hub.node import HUB, text
from semel.websocket import frame

if TYPE_CHECKING:
    from semel.sim.client.network import ClientWorld


class SocketLane:
    """One direction of a socket: bytes on their way, in order, and the close after them."""

    def __init__(self) -> None:
        self.on_the_way: deque[bytes | ClosePeer | SocketClosed] = deque()
        self.free_at = 0.0
        self._rest = b""

    def come_in(self, data: bytes) -> list[Frame]:
        """Whole frames, as far as they have come in."""
        self._rest += data
        found: list[Frame] = []
        while (end := _end_of_frame(self._rest)) is not None:
            whole, self._rest = self._rest[:end], self._rest[end:]
            body = whole[_header(whole) :]
            found.append(body.decode() if whole[0] == 0x81 else body)
        return found

    def cut(self, chance: Random) -> list[bytes]:
        """What still gets through when the socket breaks: the bytes up to some byte."""
        through = []
        left = chance.randint(0, sum(len(each) for each in self.on_the_way if isinstance(each, bytes)))
        for each in self.on_the_way:
            if not isinstance(each, bytes) or left <= 0:
                break
            through.append(each[:left])
            left -= len(each)
        self.on_the_way.clear()
        return through


def _header(data: bytes) -> int:
    return {126: 4, 127: 10}.get(data[1], 2)


def _end_of_frame(data: bytes) -> int | None:
    if len(data) < 2 or len(data) < _header(data):
        return None
    size = data[1] if data[1] < 126 else int.from_bytes(data[2 : _header(data)])
    end = _header(data) + size
    return end if len(data) >= end else None


@dataclass(eq=False)
class SocketLink:
    """A socket with its two ends. Each end learns on its own that it is over."""

    peer: str
    actor: Actor
    socket: int
    connection: str
    up: SocketLane = field(default_factory=SocketLane)
    down: SocketLane = field(default_factory=SocketLane)
    is_whole: bool = True


STREAM = f"hub/{HUB}"
CODEC = codec_for(Subprotocol.JSON_RELIABLE)


class Actor:
    """A client with its application."""

    def __init__(self, world: ClientWorld, name: str, options: ClientOptions) -> None:
        self.world, self.name, self.options = world, name, options
        self.link: SocketLink | None = None
        self.got: list[tuple[str, str, int]] = []
        self.states: list[State] = []
        self.settled: dict[int, Result] = {}
        self.joined_at: dict[str, int] = {}
        self.outbox: dict[str, OutboxEntry] = {}
        self.kept: set[str] = set()
        self.bodies: dict[int, str] = {}
        self.acked_too_early = 0
        self._had = 0
        self._asked: dict[int, SubmitRequest] = {}
        self._busy_until = 0.0
        self.life = 0
        self.client = self._begin()

    def _begin(self) -> ClientMachine:
        self.life += 1
        self.client = ClientMachine(self.options, self.world.chance.random, list(self.outbox.values()))
        self.perform(self.client.start(self.world.now))
        return self.client

    def crash(self) -> None:
        """The process of the application dies and comes back. Only its outbox is left."""
        if self.link is not None:
            self.world.cut(self.link)
        self._asked.clear()
        self._begin()

    def ask(self, ask: SubmitRequest) -> None:
        self._asked[ask.token] = ask
        self.feed(ask)

    def publish(
        self, group: str, body: str, *, id: str | None = None, keep: bool = False, timeout_s: float | None = None
    ) -> None:
        token = next(self.world.tokens)
        self.bodies[token] = body
        self.ask(SubmitRequest(token, SendToGroup(group, text(body)), id=id, keep=keep, timeout_s=timeout_s))

    def join(self, group: str) -> None:
        self.ask(SubmitRequest(next(self.world.tokens), JoinGroup(group)))

    def feed(self, event: Event) -> None:
        self.perform(self.client.receive(event, self.world.now))

    def later(self, delay: float, event: Event) -> None:
        life = self.life

        def do() -> None:
            if life == self.life:
                self.feed(event)

        self.world.clock.after(delay, f"{self.name} {type(event).__name__}", do)

    def perform(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case Connect():
                    self.world.dial(self, effect)
                case SendFrame(socket=socket, frame=payload):
                    self._watch(payload)
                    self.world.send_up(self, socket, frame(payload))
                case CloseSocket(socket=socket, code=code):
                    self.world.send_up(self, socket, SocketClosed(code))
                    self.link = None
                case DeliverMessage():
                    self._hand_over(effect)
                case Settle(token=token, result=result):
                    self._settle(token, result)
                case NotifyApplication(state=state):
                    self.states.append(state)
                case Keep(entry=entry):
                    self._keep(entry)
                case MarkSent(ids=ids, at=at):
                    for id in ids:
                        self.outbox[id] = msgspec.structs.replace(self.outbox[id], sent_at=at)
                case Remove(id=id):
                    self.outbox.pop(id, None)

    def _keep(self, entry: OutboxEntry) -> None:
        def kept() -> None:
            self.outbox[entry.id] = entry
            self.kept.add(entry.request.data.body.decode())
            self.feed(Kept([entry.id]))

        life = self.life
        self._busy_until = max(self._busy_until, self.world.now + 0.002)
        self.world.clock.at(self._busy_until, f"{self.name} kept", lambda: kept() if life == self.life else None)

    def _watch(self, payload: Frame) -> None:
        request = decode_request(payload)
        if isinstance(request, SequenceAck) and request.sequence_id > self._had:
            self.acked_too_early += 1

    def _hand_over(self, effect: DeliverMessage) -> None:
        """The application's code takes some time for each, one after the other."""
        message = effect.message
        assert message.data is not None
        row = (getattr(message, "group", ""), message.data.body.decode(), message.sequence_id or 0)
        self._busy_until = max(self._busy_until, self.world.now + self.world.chance.random() * 0.02)
        life = self.life

        def do() -> None:
            if life == self.life:
                self.got.append(row)
                self._had = row[2]
                self.feed(MessageDelivered(effect.number))

        self.world.clock.at(self._busy_until, f"{self.name} has {row[2]}", do)

    def _settle(self, token: int, result: Result) -> None:
        if token in self.settled:
            self.world.violated(f"{self.name}: a request was settled twice")
        self.settled[token] = result
        request = self._asked[token].request
        if isinstance(request, JoinGroup) and isinstance(result, RequestAccepted):
            self.joined_at.setdefault(request.group, self.world.store.head(STREAM).offset)

    @property
    def losses(self) -> int:
        """How often messages for it may have been lost."""
        return self.life - 1 + sum(isinstance(state, SessionLost) for state in self.states)

    @property
    def connection(self) -> str:
        """The id of its session, as the application knows it; empty while there is no socket."""
        sessions = [state for state in self.states if isinstance(state, Online | Recovered | Interrupted | SessionLost)]
        return sessions[-1].connection_id if sessions and isinstance(sessions[-1], Online | Recovered) else ""

    @property
    def unsettled(self) -> set[int]:
        return self._asked.keys() - self.settled.keys()


def decode_request(payload: Frame) -> object:
    codec: Codec = CODEC  # type: ignore[assignment]
    return codec.decode(payload)
