"""Clients and a hub with a network between them that breaks: at any byte, for any time, from one seed.

Both ends are the real machines. What is made up is all between them: sockets, delays, commits that fail, a server that
dies, and the application's own code.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count

import msgspec
from tests.unit.pubsub.hub.world import EVERYTHING, HUB, World, frames_of, text

from semel.errors import PeerUnavailable, StoreBusy
from semel.kernel.effects import Send
from semel.kernel.group import CommitGroup
from semel.pubsub.client.events import (
    ClientOptions,
    Closed,
    CloseSocket,
    Connect,
    DeliverMessage,
    Effect,
    Event,
    FrameReceived,
    Keep,
    Kept,
    MarkSent,
    MessageDelivered,
    NotifyApplication,
    OpenFailed,
    OutboxEntry,
    Remove,
    RequestAccepted,
    RequestFailed,
    Result,
    SendFrame,
    SessionLost,
    Settle,
    SocketOpened,
    State,
    Stopped,
    SubmitRequest,
)
from semel.pubsub.client.machine import ClientMachine, Phase
from semel.pubsub.hub.calls import CloseConnections, Connection
from semel.pubsub.hub.machine import HubOptions
from semel.pubsub.hub.record_kinds import RecordKind
from semel.pubsub.hub.sockets import ClosePeer, NewSession, ResumeSession, SocketClosed
from semel.pubsub.protocol.codecs import codec_for
from semel.pubsub.protocol.frames import Codec, Frame, Subprotocol
from semel.pubsub.protocol.messages import JoinGroup, SendToGroup, SequenceAck
from semel.pubsub.protocol.permissions import Permissions
from semel.pubsub.protocol.wire import frame

STREAM = f"hub/{HUB}"
STEPS_MAX = 200_000
NEVER_TRIM_S = 1e9
CODEC = codec_for(Subprotocol.JSON_RELIABLE)


# -- sockets


class Pipe:
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

    def cut(self, rng: random.Random) -> list[bytes]:
        """What still gets through when the socket breaks: the bytes up to some byte."""
        through = []
        left = rng.randint(0, sum(len(each) for each in self.on_the_way if isinstance(each, bytes)))
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
class Link:
    """A socket with its two ends. Each end learns on its own that it is over."""

    peer: str
    actor: Actor
    socket: int
    up: Pipe = field(default_factory=Pipe)
    down: Pipe = field(default_factory=Pipe)
    is_whole: bool = True


class Actor:
    """A client with its application."""

    def __init__(self, world: ClientWorld, name: str, options: ClientOptions) -> None:
        self.world, self.name, self.options = world, name, options
        self.link: Link | None = None
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
        self.client = ClientMachine(self.options, self.world.rng.random, list(self.outbox.values()))
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
        self.tell(ask)

    def publish(
        self, group: str, body: str, *, id: str | None = None, keep: bool = False, timeout_s: float | None = None
    ) -> None:
        token = next(self.world.tokens)
        self.bodies[token] = body
        self.ask(SubmitRequest(token, SendToGroup(group, text(body)), id=id, keep=keep, timeout_s=timeout_s))

    def join(self, group: str) -> None:
        self.ask(SubmitRequest(next(self.world.tokens), JoinGroup(group)))

    def tell(self, event: Event) -> None:
        self.perform(self.client.receive(event, self.world.now))

    def later(self, delay: float, event: Event) -> None:
        life = self.life

        def do() -> None:
            if life == self.life:
                self.tell(event)

        self.world.at(self.world.now + delay, do)

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
            self.tell(Kept([entry.id]))

        life = self.life
        self._busy_until = max(self._busy_until, self.world.now + 0.002)
        self.world.at(self._busy_until, lambda: kept() if life == self.life else None)

    def _watch(self, payload: Frame) -> None:
        request = _decode(payload)
        if isinstance(request, SequenceAck) and request.sequence_id > self._had:
            self.acked_too_early += 1

    def _hand_over(self, effect: DeliverMessage) -> None:
        """The application's code takes some time for each, one after the other."""
        message = effect.message
        assert message.data is not None
        row = (getattr(message, "group", ""), message.data.body.decode(), message.sequence_id or 0)
        self._busy_until = max(self._busy_until, self.world.now + self.world.rng.random() * 0.02)
        life = self.life

        def do() -> None:
            if life == self.life:
                self.got.append(row)
                self._had = row[2]
                self.tell(MessageDelivered(effect.number))

        self.world.at(self._busy_until, do)

    def _settle(self, token: int, result: Result) -> None:
        assert token not in self.settled, "a request is settled once"
        self.settled[token] = result
        request = self._asked[token].request
        if isinstance(request, JoinGroup) and isinstance(result, RequestAccepted):
            self.joined_at.setdefault(request.group, self.world.store.head(STREAM).offset)

    @property
    def losses(self) -> int:
        """How often messages for it may have been lost."""
        return self.life - 1 + sum(isinstance(state, SessionLost) for state in self.states)

    @property
    def unsettled(self) -> set[int]:
        return self._asked.keys() - self.settled.keys()


def _decode(payload: Frame) -> object:
    codec: Codec = CODEC  # type: ignore[assignment]
    return codec.decode(payload)


# -- the world


class ClientWorld(World):
    def __init__(self, seed: int, hub: HubOptions | None = None) -> None:
        self.rng = random.Random(seed)
        self.tokens = count(1)
        self.actors: list[Actor] = []
        self.links: dict[str, Link] = {}
        self.unreachable_until = 0.0
        self.latency_s = 0.005
        self.dies_with_next_commit = False
        self.doubtful_commits = 0
        self._is_dead = False
        self._todo: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._peers = count(1)
        super().__init__(hub or HubOptions(trim_s=NEVER_TRIM_S))

    def actor(self, name: str, options: ClientOptions | None = None) -> Actor:
        actor = Actor(self, name, options or ClientOptions())
        self.actors.append(actor)
        return actor

    # -- time

    def at(self, time: float, do: Callable[[], None]) -> None:
        heappush(self._todo, (time, next(self._order), do))

    def run_for(self, seconds: float) -> None:
        until = self.now + seconds
        for _ in range(STEPS_MAX):
            due = min(self._times(), default=until)
            if due > until:
                self.now = until
                return
            self.now = max(self.now, due)
            self._step()
        raise AssertionError("the world does not come to rest")

    def _times(self) -> list[float]:
        times = [self._todo[0][0]] if self._todo else []
        deadlines = [actor.client.next_deadline() for actor in self.actors]
        return times + [at for at in (*deadlines, self.interpreter.next_deadline()) if at is not None]

    def _step(self) -> None:
        if self._todo and self._todo[0][0] <= self.now:
            heappop(self._todo)[2]()
            return
        for actor in self.actors:
            deadline = actor.client.next_deadline()
            if deadline is not None and deadline <= self.now:
                actor.perform(actor.client.on_timer(self.now))
        self.interpreter.run_timers()

    def _delay(self) -> float:
        return self.rng.random() * self.latency_s

    # -- the network

    def dial(self, actor: Actor, effect: Connect) -> None:
        life = actor.life

        def answer() -> None:
            if life != actor.life or actor.client.phase is Phase.STOPPED:
                return
            if self.now < self.unreachable_until:
                actor.tell(OpenFailed(effect.socket, PeerUnavailable("nobody is there")))
                return
            link = Link(f"p{next(self._peers)}", actor, effect.socket)
            actor.link = self.links[link.peer] = link
            self._protocols[link.peer] = Subprotocol.JSON_RELIABLE
            actor.tell(SocketOpened(effect.socket, Subprotocol.JSON_RELIABLE))
            if effect.recover is None:
                permissions = Permissions.of_roles(EVERYTHING)
                token = f"token of {link.peer}"
                self.tell(
                    link.peer,
                    NewSession(link.peer, token, Subprotocol.JSON_RELIABLE, actor.name, permissions, in_order=True),
                )
            else:
                assert effect.recover.token == f"token of {effect.recover.connection_id}"
                self.tell(link.peer, ResumeSession(effect.recover.connection_id, effect.recover.token, in_order=True))

        self.at(self.now + self._delay(), answer)

    def send_up(self, actor: Actor, socket: int, data: bytes | SocketClosed) -> None:
        link = actor.link
        if link is not None and link.socket == socket and link.is_whole:
            self._travel(link, link.up, data, self._hub_hears)

    def send_effect(self, effect: Send) -> None:
        link, message = self.links.get(effect.peer), effect.message
        if self._is_dead:
            return
        if link is None:
            super().send_effect(effect)
        elif link.is_whole:
            assert isinstance(message, ClosePeer)
            self._travel(link, link.down, message, self._client_hears)

    def write(self, peer: str, written: bytes) -> None:
        link = self.links.get(peer)
        if link is None:
            super().write(peer, written)
        elif link.is_whole:
            for frame in frames_of(written):
                self._travel(link, link.down, frame, self._client_hears)

    def _travel(
        self,
        link: Link,
        pipe: Pipe,
        data: bytes | ClosePeer | SocketClosed,
        hears: Callable[[Link, bytes | ClosePeer | SocketClosed], None],
    ) -> None:
        pipe.on_the_way.append(data)
        pipe.free_at = max(pipe.free_at, self.now + self._delay())

        def arrive() -> None:
            if link.is_whole and pipe.on_the_way and pipe.on_the_way[0] is data:
                pipe.on_the_way.popleft()
                hears(link, data)

        self.at(pipe.free_at, arrive)

    def _hub_hears(self, link: Link, data: bytes | ClosePeer | SocketClosed) -> None:
        if isinstance(data, bytes):
            requests = [_decode(payload) for payload in link.up.come_in(data)]
            if requests:
                self.send(link.peer, *requests)  # type: ignore[arg-type]
        elif isinstance(data, SocketClosed):
            link.is_whole = False
            self.tell(link.peer, data)

    def _client_hears(self, link: Link, data: bytes | ClosePeer | SocketClosed) -> None:
        if isinstance(data, bytes):
            for payload in link.down.come_in(data):
                link.actor.tell(FrameReceived(link.socket, payload))
        elif isinstance(data, ClosePeer):
            link.is_whole = False
            link.actor.tell(Closed(link.socket, data.code, data.reason))

    def cut(self, link: Link, *, hub_knows_after_s: float = 0.0, client_knows: bool = True) -> None:
        """It breaks between two bytes, in each direction. Each end hears of it, or has to find out."""
        if not link.is_whole:
            return
        up, down = link.up.cut(self.rng), link.down.cut(self.rng)
        for data in up:
            self._hub_hears(link, data)
        for data in down:
            self._client_hears(link, data)
        link.is_whole = False
        hub = self.hub

        def hub_knows() -> None:
            if self.hub is hub:
                self.tell(link.peer, SocketClosed())

        self.at(self.now + hub_knows_after_s, hub_knows)
        if client_knows:
            link.actor.later(self._delay(), Closed(link.socket))

    # -- the server

    def restart(self) -> None:
        """What is on its way from the hub may still arrive, what is on its way to it does not."""
        super().restart()
        self.held, self._is_dead, self.dies_with_next_commit = None, False, False
        self.failing.clear()
        for link in list(self.links.values()):
            if link.is_whole:
                link.up.on_the_way.clear()
                self.cut(link)
        self.links.clear()

    def commit(self, group: CommitGroup) -> None:
        if self._is_dead:
            return
        if self.dies_with_next_commit and self.held is None:
            self.store.commit(group.units)
            self._is_dead = True
            self.at(self.now, self.restart)
            return
        if self.doubtful_commits and self.held is None:
            self.doubtful_commits -= 1
            if self.rng.random() < 0.5:
                self.store.commit(group.units)
            self.interpreter.unknown(group)
            self.interpreter.wake()
            return
        super().commit(group)

    # -- what happened

    def published(self) -> list[tuple[int, str, str]]:
        """(offset, group, body) of all messages in the stream."""
        found = self.store.read(STREAM, None, 1_000_000)
        return [
            (record.position.offset, record.target[2:], record.envelope.data.decode())
            for record in found.records  # type: ignore[union-attr]
            if record.kind == RecordKind.MESSAGE
        ]


# -- bad weather


class Weather:
    """What goes wrong, and when. `refuses`: also commits that fail. `loses_sessions`: also what no session survives.
    `crashes`: also the processes of the applications."""

    def __init__(self, world: ClientWorld, *, refuses: bool, loses_sessions: bool, crashes: bool) -> None:
        self._world, self._rng = world, world.rng
        self._faults: list[Callable[[], None]] = [
            self._cut, self._cut, self._cut, self._half_open, self._silence, self._restart, self._die_in_commit,
            self._hold, self._outage, self._slow,
        ]  # fmt: skip
        if refuses:
            self._faults.append(self._refuse)
        if loses_sessions:
            self._faults += [self._close_from_outside, self._long_outage, self._doubt]
        if crashes:
            self._faults += [self._crash] * 3

    def brew(self, seconds: float, faults: int) -> None:
        for _ in range(faults):
            self._world.at(self._world.now + self._rng.random() * seconds, self._rng.choice(self._faults))

    def _some_link(self) -> Link | None:
        whole = [link for link in self._world.links.values() if link.is_whole]
        return self._rng.choice(whole) if whole else None

    def _cut(self) -> None:
        if (link := self._some_link()) is not None:
            self._world.cut(link)

    def _half_open(self) -> None:
        if (link := self._some_link()) is not None:
            self._world.cut(link, hub_knows_after_s=self._rng.random() * 5)

    def _silence(self) -> None:
        if (link := self._some_link()) is not None:
            self._world.cut(link, hub_knows_after_s=40, client_knows=False)

    def _crash(self) -> None:
        self._rng.choice(self._world.actors).crash()

    def _restart(self) -> None:
        self._world.restart()

    def _die_in_commit(self) -> None:
        self._world.dies_with_next_commit = True

    def _refuse(self) -> None:
        self._world.failing += [StoreBusy("the store is busy")] * self._rng.randint(1, 3)

    def _doubt(self) -> None:
        self._world.doubtful_commits += 1

    def _hold(self) -> None:
        world = self._world
        if world.held is None:
            world.held = []
            world.at(world.now + self._rng.random(), world.let_go)

    def _outage(self) -> None:
        world = self._world
        world.unreachable_until = max(world.unreachable_until, world.now + self._rng.random() * 8)
        for link in list(world.links.values()):
            world.cut(link)

    def _slow(self) -> None:
        world = self._world
        world.latency_s = 0.5
        world.at(world.now + 1, lambda: setattr(world, "latency_s", 0.005))

    def _close_from_outside(self) -> None:
        if (link := self._some_link()) is not None:
            session = self._world.hub.outgoing.sockets.get(link.peer)
            if session is not None:
                self._world.tell("rest", CloseConnections(Connection(session.id), reason="enough"))

    def _long_outage(self) -> None:
        world = self._world
        world.unreachable_until = max(world.unreachable_until, world.now + 100)
        for link in list(world.links.values()):
            world.cut(link)


@dataclass(frozen=True)
class Plan:
    """What happens in a world: three clients in two groups publish to each other, in weather."""

    window: int = 256
    inbox_max: int = 1000
    ids: bool = False
    keeps: bool = False
    refuses: bool = True
    loses_sessions: bool = False
    crashes: bool = False
    messages: int = 12
    faults: int = 16
    storm_s: float = 20.0
    calm_s: float = 150.0

    def run(self, seed: int) -> ClientWorld:
        world = ClientWorld(seed)
        options = ClientOptions(window=self.window, inbox_max=self.inbox_max, connect_for_s=None)
        for name, groups in (("ann", "a"), ("ben", "ab"), ("cem", "ab")):
            actor = world.actor(name, options)
            for group in groups:
                actor.join(group)
        weather = Weather(world, refuses=self.refuses, loses_sessions=self.loses_sessions, crashes=self.crashes)
        weather.brew(self.storm_s, self.faults)
        for actor in world.actors:
            for time in self._times(world.rng):
                world.at(world.now + time, self._publish(actor, world.rng.choice("ab")))
        world.run_for(self.storm_s + 1)
        world.failing.clear()
        world.run_for(self.calm_s)
        return world

    def _times(self, rng: random.Random) -> list[float]:
        """Some alone, and some close together, so that several are under way when it breaks."""
        bursts = [rng.random() * self.storm_s for _ in range(3)]
        alone = [rng.random() * self.storm_s for _ in range(self.messages // 3)]
        return sorted([*alone, *(rng.choice(bursts) + rng.random() * 0.02 for _ in range(self.messages - len(alone)))])

    def _publish(self, actor: Actor, group: str) -> Callable[[], None]:
        def do() -> None:
            body = f"{actor.name} {len(actor.bodies)}"
            actor.publish(group, body, id=body if self.ids else None, keep=self.keeps)

        return do


@dataclass(frozen=True)
class SlowNetwork:
    """A client publishes on and on, each frame is on its way for up to `latency_s`, and the store refuses now and then:
    much has been sent when a refusal is heard, and more refusals are on their way back when it is sent again."""

    latency_s: float
    ack_timeout_s: float = 5.0
    refusals_max: int = 10
    timeout_s: float | None = None
    messages: int = 80
    every_s: float = 0.05
    refusals: int = 3
    calm_s: float = 120.0

    def run(self, seed: int) -> ClientWorld:
        world = ClientWorld(seed)
        options = ClientOptions(
            window=256, connect_for_s=None, ack_timeout_s=self.ack_timeout_s, refusals_max=self.refusals_max
        )
        ann = world.actor("ann", options)
        world.run_for(1)
        world.latency_s = self.latency_s
        for number in range(self.messages):
            world.at(world.now + number * self.every_s, lambda: self._publish(ann))
        for _ in range(self.refusals):
            refused_at = world.now + world.rng.random() * self.messages * self.every_s
            world.at(refused_at, lambda: world.failing.append(StoreBusy("the store is busy")))
        world.run_for(self.messages * self.every_s + 1)
        world.failing.clear()
        world.run_for(self.calm_s)
        return world

    def _publish(self, actor: Actor) -> None:
        actor.publish("a", f"{actor.name} {len(actor.bodies)}", timeout_s=self.timeout_s)


# -- what must be true


def check(world: ClientWorld) -> None:
    """Every publish that was taken is in the stream once, and every subscriber has had each message once, in order."""
    published = world.published()
    bodies = [body for _, _, body in published]
    assert len(bodies) == len(set(bodies)), "a message is in the stream twice"
    for actor in world.actors:
        assert not actor.acked_too_early, "acknowledged before the application had it"
        _check_publishes(actor, set(bodies))
        _check_deliveries(actor, published)


def _check_publishes(actor: Actor, bodies: set[str]) -> None:
    for token, body in actor.bodies.items():
        result = actor.settled.get(token)
        if isinstance(result, RequestAccepted):
            assert body in bodies, f"{body} was taken and is not in the stream"
        elif isinstance(result, RequestFailed) and not result.maybe_taken:
            assert body not in bodies, f"{body} was not taken and is in the stream"


def check_nothing_failed(world: ClientWorld) -> None:
    for actor in world.actors:
        assert all(isinstance(result, RequestAccepted) for result in actor.settled.values())


def check_order(world: ClientWorld) -> None:
    """Each publisher's messages are in the stream in the order in which they were asked."""
    bodies = [body for _, _, body in world.published()]
    for actor in world.actors:
        asked = list(actor.bodies.values())
        assert [body for body in bodies if body in asked] == asked, f"the messages of {actor.name} changed places"


def check_order_of_the_rest(world: ClientWorld) -> None:
    """The same where some were given up and are not in the stream."""
    bodies = [body for _, _, body in world.published()]
    for actor in world.actors:
        found = [body for body in bodies if body in actor.bodies.values()]
        rest = [body for body in actor.bodies.values() if body in found]
        assert found == rest, f"the messages of {actor.name} changed places"


def check_kept(world: ClientWorld) -> None:
    """What was in an outbox is in the stream, and in no outbox any more."""
    bodies = {body for _, _, body in world.published()}
    for actor in world.actors:
        assert actor.kept <= bodies, f"{actor.name} has lost {actor.kept - bodies}"
        assert not actor.outbox


def _check_deliveries(actor: Actor, published: Sequence[tuple[int, str, str]]) -> None:
    offsets = {body: offset for offset, _, body in published}
    got = [offsets[body] for _, body, _ in actor.got]
    assert got == sorted(set(got)), "delivered twice or out of order"
    if actor.losses:
        return
    due = {offset for offset, group, _ in published if offset > actor.joined_at.get(group, 1 << 60)}
    assert due <= set(got), f"{actor.name} has not had {sorted(due - set(got))}"


def check_all_is_done(world: ClientWorld) -> None:
    for actor in world.actors:
        assert not actor.unsettled, f"{actor.name} still waits"
        assert not any(isinstance(state, Stopped) for state in actor.states)
        assert actor.client.phase is Phase.READY
