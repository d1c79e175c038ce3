"""A node of a hub on a store in memory: what clients and services do there, and what it says to them.

Everything that takes time is done at once, unless a subclass decides otherwise.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from semel.errors import SemelError
from semel.kernel.effects import Close, Notify, Received, Send
from semel.kernel.group import CommitGroup
from semel.kernel.interpreter import Interpreter, Seat
from semel.pubsub.hub.calls import Answer
from semel.pubsub.hub.loading import load_hub
from semel.pubsub.hub.machine import Hub, HubOptions
from semel.pubsub.hub.sockets import ClosePeer, Frames, NewSession, ResumeSession, SocketClosed, WelcomePeer, Write
from semel.pubsub.protocol.codecs import codec_for
from semel.pubsub.protocol.frames import Subprotocol
from semel.pubsub.protocol.messages import (
    Connected,
    Data,
    DataType,
    Request,
    Response,
    SequenceAck,
)
from semel.pubsub.protocol.permissions import Permissions
from semel.sim.process import Process
from semel.sim.world import Clock
from semel.stores.memory import MemoryStore

HUB = "chat"
BEGIN_S = 1_800_000_000.0
EVERYTHING = ("webpubsub.joinLeaveGroup", "webpubsub.sendToGroup")


def text(body: str) -> Data:
    return Data(DataType.TEXT, body.encode())


class HubProcess(Process):
    """One life of a node. What takes time is the node's to decide."""

    def __init__(self, node: HubNode) -> None:
        self._node, self.store = node, node.store
        super().__init__(lambda: node.now)

    def commit(self, group: CommitGroup) -> None:
        """What is left of a hub that has been started again commits nothing any more."""
        if self._node.process is self:
            self._node.commit(group)

    def send(self, seat: Seat, effect: Send) -> None:
        self._node.send_effect(effect)

    def notify(self, seat: Seat, effect: Notify) -> None:
        self._node.notes.append(effect)

    def closed(self, seat: Seat, effect: Close) -> None:
        assert effect.reason == "reload"
        self._node.restart()


class HubNode:
    def __init__(
        self,
        options: HubOptions | None = None,
        node: str = "node",
        beside: HubNode | None = None,
        clock: Clock | None = None,
    ) -> None:
        """`beside` is another node on the same store."""
        self.clock: Clock = beside.clock if beside is not None else clock or Clock()
        self.clock.now = max(self.clock.now, BEGIN_S)
        self.node = node
        self.nodes: list[HubNode] = [] if beside is None else beside.nodes
        self.nodes.append(self)
        self.store: MemoryStore = MemoryStore(clock=lambda: round(self.now * 1e6)) if beside is None else beside.store
        self.options = options
        self.sent: dict[str, list[Response | ClosePeer | Answer]] = defaultdict(list)
        self.notes: list[Notify] = []
        self.failing: list[SemelError] = []
        self.held: list[CommitGroup] | None = None
        self._protocols: dict[str, str] = {}
        self._back: set[str] = set()
        self._minted: list[int] = [1_000_000] if beside is None else beside._minted
        self.restart()

    @property
    def now(self) -> float:
        return self.clock.now

    @now.setter
    def now(self, now: float) -> None:
        self.clock.now = now

    def restart(self) -> None:
        """As after kill -9: nothing is left but the store."""
        self.process = self.begin_process()
        self.hub: Hub = self.load_hub()
        self.seat = self.interpreter.add(self.hub)

    def begin_process(self) -> HubProcess:
        return HubProcess(self)

    def load_hub(self) -> Hub:
        return load_hub(self.store, HUB, self.node, self._random, self.options)

    @property
    def interpreter(self) -> Interpreter:
        return self.process.interpreter

    def _random(self, count: int) -> bytes:
        self._minted[0] += 1
        return self._minted[0].to_bytes(count)

    # -- what clients and services do

    def connect(
        self,
        peer: str,
        user: str | None = None,
        roles: Sequence[str] = EVERYTHING,
        protocol: str = Subprotocol.JSON_RELIABLE,
        groups: tuple[str, ...] = (),
        in_order: bool = False,
    ) -> None:
        self._protocols[peer] = protocol
        permissions = Permissions.of_roles(roles)
        opened = NewSession(peer, f"token of {peer}", protocol, user, permissions, groups, in_order=in_order)
        self.feed(peer, opened)

    def open(self, peer: str, connection: str) -> None:
        """A new session whose name is not that of its socket."""
        self._protocols[peer] = Subprotocol.JSON_RELIABLE
        self.feed(
            peer, NewSession(connection, "token", Subprotocol.JSON_RELIABLE, None, Permissions.of_roles(EVERYTHING))
        )

    def resume(self, peer: str, connection: str, in_order: bool = False) -> None:
        self._protocols[peer] = Subprotocol.JSON_RELIABLE
        self._back.add(peer)
        self.feed(peer, ResumeSession(connection, f"token of {connection}", in_order))

    def send(self, peer: str, *requests: Request) -> None:
        self.feed(peer, Frames(requests))

    def ack(self, peer: str, sequence_id: int) -> None:
        self.send(peer, SequenceAck(sequence_id))

    def drop(self, peer: str, code: int | None = None) -> None:
        self.feed(peer, SocketClosed(code))

    def feed(self, peer: str, event: object) -> None:
        self.interpreter.feed(self.seat, Received(peer, event))

    def pass_time(self, seconds: float) -> None:
        """For all nodes that live."""
        self.clock.now += seconds
        for world in list(self.nodes):
            world.interpreter.run_timers()

    def die(self) -> None:
        """As by kill -9, and nobody starts it again."""
        self.nodes.remove(self)

    # -- what they receive

    def take(self, peer: str) -> list[Response | ClosePeer | Answer]:
        """What was sent to a peer since the last time, without the `connected` of a client that has come back."""
        sent = self.sent.pop(peer, [])
        return sent[1:] if peer in self._back and sent and isinstance(sent[0], Connected) else sent

    # -- the driver

    def commit(self, group: CommitGroup) -> None:
        if self.held is not None:
            self.held.append(group)
        elif self.failing:
            self.interpreter.failed(group, self.failing.pop(0))
        else:
            outcomes = self.store.commit(group.units)
            self.interpreter.committed(group, outcomes)
            for world in list(self.nodes):
                world.interpreter.wake(is_own=world is self)

    def let_go(self) -> None:
        """Commits that were held back happen now."""
        held, self.held = self.held or [], None
        for group in held:
            self.commit(group)

    def send_effect(self, effect: Send) -> None:
        message = effect.message
        if isinstance(message, Write):
            for peers, written in message.writes:
                for peer in peers:
                    self.write(peer, written)
        elif not isinstance(message, WelcomePeer):
            self.sent[effect.peer].append(message)

    def write(self, peer: str, written: bytes) -> None:
        codec = codec_for(self._protocols[peer])
        for frame in frames_of(written):
            self.sent[peer].append(codec.decode_response(payload_of(frame)))  # type: ignore[union-attr]


def frames_of(written: bytes) -> Iterator[bytes]:
    """Each frame alone. All of them are whole."""
    while written:
        begin, size = _measure(written)
        assert len(written) >= begin + size
        yield written[: begin + size]
        written = written[begin + size :]


def payload_of(frame: bytes) -> str | bytes:
    """Undo `wire.frame`."""
    begin, _ = _measure(frame)
    return frame[begin:].decode() if frame[0] == 0x81 else frame[begin:]


def _measure(data: bytes) -> tuple[int, int]:
    """Where the payload of the first frame begins, and its size."""
    if data[1] == 126:
        return 4, int.from_bytes(data[2:4])
    return (10, int.from_bytes(data[2:10])) if data[1] == 127 else (2, data[1])
