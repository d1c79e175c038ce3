"""The server with its hub, the clients, and the network between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count

from semel.errors import PeerUnavailable
from semel.kernel.effects import Send
from semel.kernel.group import CommitGroup
from semel.kernel.store import Record, Records
from semel.pubsub.client.events import ClientOptions, Closed, Connect, FrameReceived, OpenFailed, SocketOpened
from semel.pubsub.client.machine import Phase
from semel.pubsub.hub.machine import HubOptions
from semel.pubsub.hub.records import RecordKind
from semel.pubsub.hub.sockets import ClosePeer, NewSession, ResumeSession, SocketClosed
from semel.pubsub.protocol.frames import Subprotocol
from semel.pubsub.protocol.permissions import Permissions
from semel.sim.client.actor import STREAM, Actor, SocketLane, SocketLink, decode_request
from semel.sim.hub.node import EVERYTHING, HubNode, frames_of
from semel.sim.world import SeededWorld

NEVER_TRIM_S = 1e9


class ClientWorld(HubNode):
    """A server with a hub, the network, and the clients at its other end."""

    def __init__(self, world: SeededWorld, hub: HubOptions | None = None) -> None:
        self.world, self.chance, self.violated = world, world.random, world.violated
        self.tokens = count(1)
        self.actors: list[Actor] = []
        self.links: dict[str, SocketLink] = {}
        self.unreachable_until = 0.0
        self.latency_s = 0.005
        self.dies_with_next_commit = False
        self.doubtful_commits = 0
        self._is_dead = False
        self._peers = count(1)
        super().__init__(hub or HubOptions(trim_s=NEVER_TRIM_S), clock=world.clock)

    def actor(self, name: str, options: ClientOptions | None = None) -> Actor:
        actor = Actor(self, name, options or ClientOptions())
        self.actors.append(actor)
        return actor

    # -- time

    def run_for(self, seconds: float) -> None:
        self.clock.run_until(self.now + seconds, self._next_deadline, self._run_timers)

    def _next_deadline(self) -> float | None:
        deadlines = (*(actor.client.next_deadline() for actor in self.actors), self.interpreter.next_deadline())
        return min((at for at in deadlines if at is not None), default=None)

    def _run_timers(self) -> None:
        for actor in self.actors:
            deadline = actor.client.next_deadline()
            if deadline is not None and deadline <= self.now:
                actor.perform(actor.client.on_timer(self.now))
        self.interpreter.run_timers()

    def _delay(self) -> float:
        return self.chance.random() * self.latency_s

    # -- the network

    def dial(self, actor: Actor, effect: Connect) -> None:
        life = actor.life

        def answer() -> None:
            if life != actor.life or actor.client.phase is Phase.STOPPED:
                return
            if self.now < self.unreachable_until:
                actor.feed(OpenFailed(effect.socket, PeerUnavailable("nobody is there")))
                return
            peer = f"p{next(self._peers)}"
            link = SocketLink(peer, actor, effect.socket, effect.recover.connection_id if effect.recover else peer)
            actor.link = self.links[link.peer] = link
            self._protocols[link.peer] = Subprotocol.JSON_RELIABLE
            actor.feed(SocketOpened(effect.socket, Subprotocol.JSON_RELIABLE))
            if effect.recover is None:
                permissions = Permissions.of_roles(EVERYTHING)
                token = f"token of {link.peer}"
                self.feed(
                    link.peer,
                    NewSession(link.peer, token, Subprotocol.JSON_RELIABLE, actor.name, permissions, in_order=True),
                )
            else:
                assert effect.recover.token == f"token of {effect.recover.connection_id}"
                self.feed(link.peer, ResumeSession(effect.recover.connection_id, effect.recover.token, in_order=True))

        self.clock.after(self._delay(), f"{actor.name} dials", answer)

    def send_up(self, actor: Actor, socket: int, data: bytes | SocketClosed) -> None:
        link = actor.link
        if link is not None and link.socket == socket and link.is_whole:
            self._travel(link, link.up, data, self._receive_at_hub)

    def send_effect(self, effect: Send) -> None:
        link, message = self.links.get(effect.peer), effect.message
        if self._is_dead:
            return
        if link is None:
            super().send_effect(effect)
        elif link.is_whole:
            assert isinstance(message, ClosePeer)
            self._travel(link, link.down, message, self._receive_at_client)

    def write(self, peer: str, written: bytes) -> None:
        link = self.links.get(peer)
        if link is None:
            super().write(peer, written)
        elif link.is_whole:
            for frame in frames_of(written):
                self._travel(link, link.down, frame, self._receive_at_client)

    def _travel(
        self,
        link: SocketLink,
        lane: SocketLane,
        data: bytes | ClosePeer | SocketClosed,
        receive: Callable[[SocketLink, bytes | ClosePeer | SocketClosed], None],
    ) -> None:
        lane.on_the_way.append(data)
        lane.free_at = max(lane.free_at, self.now + self._delay())

        def arrive() -> None:
            if link.is_whole and lane.on_the_way and lane.on_the_way[0] is data:
                lane.on_the_way.popleft()
                receive(link, data)

        self.clock.at(lane.free_at, f"{link.peer} {'up' if lane is link.up else 'down'} {_label(data)}", arrive)

    def _receive_at_hub(self, link: SocketLink, data: bytes | ClosePeer | SocketClosed) -> None:
        if isinstance(data, bytes):
            requests = [decode_request(payload) for payload in link.up.come_in(data)]
            if requests:
                self.send(link.peer, *requests)  # type: ignore[arg-type]
        elif isinstance(data, SocketClosed):
            link.is_whole = False
            self.feed(link.peer, data)

    def _receive_at_client(self, link: SocketLink, data: bytes | ClosePeer | SocketClosed) -> None:
        if isinstance(data, bytes):
            for payload in link.down.come_in(data):
                link.actor.feed(FrameReceived(link.socket, payload))
        elif isinstance(data, ClosePeer):
            link.is_whole = False
            link.actor.feed(Closed(link.socket, data.code, data.reason))

    def cut(self, link: SocketLink, *, hub_knows_after_s: float = 0.0, client_knows: bool = True) -> None:
        """It breaks between two bytes, in each direction. Each end learns of it, or has to find out."""
        if not link.is_whole:
            return
        up, down = link.up.cut(self.chance), link.down.cut(self.chance)
        for data in up:
            self._receive_at_hub(link, data)
        for data in down:
            self._receive_at_client(link, data)
        link.is_whole = False
        hub = self.hub

        def hub_knows() -> None:
            if self.hub is hub:
                self.feed(link.peer, SocketClosed())

        self.clock.after(hub_knows_after_s, f"{link.peer} is gone", hub_knows)
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
            self.clock.after(0.0, "restart", self.restart)
            return
        if self.doubtful_commits and self.held is None:
            self.doubtful_commits -= 1
            if self.chance.random() < 0.5:
                self.store.commit(group.units)
            self.interpreter.unknown(group)
            self.interpreter.wake()
            return
        super().commit(group)

    # -- what happened

    def records(self) -> Sequence[Record]:
        found = self.store.read(STREAM, None, 1_000_000)
        assert isinstance(found, Records)
        return found.records

    def published(self) -> list[tuple[int, str, str]]:
        """(offset, group, body) of all messages in the stream."""
        return [
            (record.position.offset, record.target[2:], record.envelope.data.decode())
            for record in self.records()
            if record.kind == RecordKind.MESSAGE
        ]


def _label(data: bytes | ClosePeer | SocketClosed) -> str:
    return f"{len(data)} bytes" if isinstance(data, bytes) else type(data).__name__
