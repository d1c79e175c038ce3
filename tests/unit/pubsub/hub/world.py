"""A node of a hub, with everything that takes time done at once. For tests of what is said to whom."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from semel.kernel.effects import Read
from semel.kernel.interpreter import Seat
from semel.pubsub.hub.calls import Answer, Call
from semel.pubsub.protocol.messages import JoinGroup, SendToGroup
from semel.sim.hub.node import EVERYTHING, HUB, HubNode, HubProcess, frames_of, payload_of, text
from semel.sim.process import Loading, Process

__all__ = ["EVERYTHING", "HUB", "SlowWorld", "World", "frames_of", "payload_of", "text"]


class _WorldProcess(HubProcess):
    """What it reads and loads is the node's to decide, so that a test can replace it there."""

    _node: World

    def read(self, seat: Seat, effect: Read) -> None:
        self._node.read(seat, effect)

    def load(self, seat: Seat, effect: Loading) -> None:
        self._node.load(seat, effect)


class World(HubNode):
    def begin_process(self) -> HubProcess:
        return _WorldProcess(self)

    def read(self, seat: Seat, effect: Read) -> None:
        Process.read(self.process, seat, effect)

    def load(self, seat: Seat, effect: Loading) -> None:
        Process.load(self.process, seat, effect)

    def join(self, peer: str, group: str, ack_id: int = 1) -> None:
        self.send(peer, JoinGroup(group, ack_id))

    def publish(self, peer: str, group: str, body: str, ack_id: int | None = None) -> None:
        self.send(peer, SendToGroup(group, text(body), ack_id))

    def call(self, call: Call) -> Answer:
        self.feed("rest", call)
        [answer] = self.take("rest")
        assert isinstance(answer, Answer)
        return answer

    def call_later(self, call: Call) -> bool:
        """Without waiting for the answer."""
        self.feed("later", call)
        return not self.take("later")

    def bodies(self, peer: str) -> list[str]:
        """The bodies of the messages among it."""
        return [said.data.body.decode() for said in self.take(peer) if getattr(said, "data", None) is not None]  # type: ignore[union-attr]


class SlowWorld(World):
    """Reads wait in `reads`, if that is a list."""

    reads: list[Callable[[], None]] | None = None

    def read(self, seat: Seat, effect: Read) -> None:
        read = partial(super().read, seat, effect)
        if self.reads is None:
            read()
        else:
            self.reads.append(read)

    def go_on(self) -> None:
        while self.reads:
            self.reads.pop(0)()
        self.reads = None
