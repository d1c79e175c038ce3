"""Guests: sessions that come with groups, acknowledge some of what they get, and end in all the ways in which sessions
end. Of each that has ended the ledger must tell all that was due to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from semel.pubsub.protocol.messages import CloseCode, GroupMessage, SequenceAck
from semel.sim.hub.callers import Caller
from semel.sim.hub.members import GROUPS

if TYPE_CHECKING:
    from semel.sim.hub.storm import StormNode


class GuestCaller(Caller):
    """Closes guests, and lets them come and go."""

    def visit(self, node: StormNode) -> None:
        name = self.next_visitor(node)
        node.connect(name, roles=(), groups=GROUPS[: 1 + self._count % 2])

    def receive(self) -> None:
        super().receive()
        for name, node in list(self.visitors.items()):
            if node in self.storm.nodes:
                self._receive_for(name, node)

    def _receive_for(self, name: str, node: StormNode) -> None:
        chance = self.storm.chance
        numbers = [said.sequence_id or 0 for said in node.take(name) if isinstance(said, GroupMessage)]
        if numbers and chance.random() < 0.5:
            node.send(name, SequenceAck(chance.choice(numbers)))
        roll = chance.random()
        if roll < 0.004:
            node.drop(name)
        elif roll < 0.006:
            node.drop(name, CloseCode.NORMAL)
        elif roll < 0.02:
            node.drop(name)
            self.visitors[name] = chance.choice(self.storm.nodes)
            self.visitors[name].resume(name, name)
