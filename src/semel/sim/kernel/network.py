"""Links that lose, double, delay and reorder; that are cut with bytes on the way; and that fall silent for a while."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from semel.kernel.effects import Event, PeerConnected, PeerDisconnected, Received
from semel.kernel.hop import AskForGap, Confirm, HopMessage
from semel.sim.kernel.weather import KernelWorld

if TYPE_CHECKING:
    from semel.sim.kernel.node import Node

STRAGGLER_S = (1.0, 6.0)
DIAL_S = (0.02, 0.2)
DIAL_AGAIN_S = (0.2, 1.0)
NOTICE_S = (0.0, 0.5)


class Link:
    """One sender's way to a service of one or more nodes. The client dials, and dials again; a new connection may
    lead to another node. What was on the way when a connection was cut may still arrive."""

    def __init__(
        self,
        world: KernelWorld,
        name: str,
        hop: str,
        client: Node,
        client_machine: str,
        servers: list[Node],
        server_machine: str,
        *,
        name_per_connection: bool = False,
    ) -> None:
        self.name = name
        self.hop = hop
        self.client_machine = client_machine
        self.arrived = 0
        self._world = world
        self._client = client
        self._servers = servers
        self._server_machine = server_machine
        self._server: Node | None = None
        self._last_server: Node | None = None
        self._connection = 0
        self._dialling = False
        self._silent_until = 0.0
        self._purged = 0
        self._last_arrival = {"up": 0.0, "down": 0.0}
        self._name_per_connection = name_per_connection
        for node in (client, *servers):
            node.links.append(self)

    # -- connections

    def node_started(self, node: Node) -> None:
        if node is self._client:
            self._dial_soon(DIAL_S)

    def node_lost(self, node: Node) -> None:
        if node is self._client:
            self._server = None
        elif node is self._server:
            self.cut()

    def _dial_soon(self, span: tuple[float, float]) -> None:
        if not self._dialling:
            self._dialling = True
            self._world.after(self._world.between(span), f"{self.name} dial", self._dial)

    def _dial(self) -> None:
        self._dialling = False
        if not self._client.up or self._server is not None:
            return
        server = self._choose()
        if not server.up or self._is_silent():
            self._dial_soon(DIAL_AGAIN_S)
            return
        self._server = self._last_server = server
        self._connection += 1
        self._feed(self._client, self.client_machine, PeerConnected(self.name))
        self._feed(server, self._server_machine, PeerConnected(self._peer(self._connection)))

    def _choose(self) -> Node:
        """Mostly another node than last time, as when a balancer moves clients away from one that failed."""
        others = [server for server in self._servers if server is not self._last_server]
        if others and self._world.random.random() < 0.7:
            return self._world.random.choice(others)
        return self._world.random.choice(self._servers)

    def cut(self) -> None:
        """The connection is gone. Both ends notice, each in its own time."""
        if self._server is None:
            return
        server, self._server = self._server, None
        self._world.see("link.cut")
        ends = (
            (self._client, self.client_machine, self.name),
            (server, self._server_machine, self._peer(self._connection)),
        )
        for node, machine, peer in ends:
            gone = PeerDisconnected(peer)
            self._world.after(self._world.between(NOTICE_S), f"{self.name} cut", self._feed, node, machine, gone)
        self._dial_soon(DIAL_AGAIN_S)

    def fall_silent(self, length_s: float) -> None:
        """A partition: nobody notices, nothing arrives."""
        self._world.see("link.partition")
        self._silent_until = self._world.now + length_s

    def heal(self) -> None:
        self._silent_until = 0.0

    def purge(self) -> None:
        """Close the connection and wait out everything on the way: part of putting a backup in place."""
        self.cut()
        self._connection += 1
        self._purged = self._connection

    def _is_silent(self) -> bool:
        return self._world.now < self._silent_until

    def _peer(self, connection: int) -> str:
        return f"{self.name}#{connection}" if self._name_per_connection else self.name

    def _feed(self, node: Node, machine: str, event: Event) -> None:
        node.feed_event(None, machine, event)

    # -- messages

    def carries(self, peer: str) -> bool:
        return peer == self.name or peer.startswith(self.name + "#")

    def send(self, sender: Node, peer: str, message: Any) -> None:
        """Without a connection the message is lost, as is an answer to a connection that is no longer there."""
        if self._server is None or self._is_silent():
            self._world.see("link.no-connection")
        elif sender is self._client:
            self._put_on_way("up", self._server, self._server_machine, message)
        elif sender is self._server and peer == self._peer(self._connection):
            self._put_on_way("down", self._client, self.client_machine, message)

    def _put_on_way(self, direction: str, to: Node, machine: str, message: Any) -> None:
        links = self._world.weather.links
        if self._world.strikes("link.lost", links.loss):
            return
        copies = 2 if self._world.strikes("link.doubled", links.double) else 1
        for _ in range(copies):
            delay_s = self._delay_s(direction)
            args = (direction, to, to.life, machine, message, self._connection)
            self._world.after(delay_s, f"{self.name} {direction} {_label(message)}", self._arrive, *args)

    def _delay_s(self, direction: str) -> float:
        """Without first in, first out a message may overtake another, and some straggle for seconds."""
        links = self._world.weather.links
        delay_s = self._world.between(links.delay_s)
        if self._world.strikes("link.straggler", links.straggle):
            delay_s += self._world.between(STRAGGLER_S)
        at = self._world.now + delay_s
        if links.fifo:
            at = max(at, self._last_arrival[direction])
        elif at < self._last_arrival[direction]:
            self._world.see("link.overtaken")
        self._last_arrival[direction] = max(at, self._last_arrival[direction])
        return at - self._world.now

    def _arrive(self, direction: str, to: Node, life: int, machine: str, message: Any, connection: int) -> None:
        is_late = connection != self._connection or self._server is None
        if is_late and not self._survives(to, life, connection):
            self._world.see("link.lost-in-cut")
            return
        if is_late:
            self._world.see("link.arrived-after-cut")
        if direction == "up":
            self.arrived += 1
        self._world.clock.detail(to.name, message)
        # the client dials one service and knows it by one name; only the server may see a new name per connection
        peer = self._peer(connection) if direction == "up" else self.name
        to.feed_event(None, machine, Received(peer, message))

    def _survives(self, to: Node, life: int, connection: int) -> bool:
        """What was on the way may still reach the process that it was sent to, but not one started since."""
        if to.life != life or connection < self._purged:
            return False
        return self._world.random.random() < self._world.weather.links.survives_cut


def _label(message: Any) -> str:
    """A message as the trace names it."""
    match message:
        case HopMessage(delivery=delivery, attempt=attempt):
            return f"{delivery} attempt {attempt}"
        case Confirm(deliveries=deliveries):
            return f"confirms {' '.join(deliveries)}"
        case AskForGap(session=session, first=first, last=last):
            return f"asks for {session} {first}..{last}"
    return str(message)
