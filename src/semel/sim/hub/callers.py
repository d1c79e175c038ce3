"""A service that calls any node: it publishes, opens sessions, has them closed, and puts clients into a group."""

from __future__ import annotations

from typing import TYPE_CHECKING

from semel.pubsub.hub.calls import (
    Answer,
    Call,
    CloseConnections,
    Connection,
    Group,
    JoinMembers,
    Outcome,
    Publish,
    RemoveMembers,
)
from semel.sim.hub.books import EXTRA
from semel.sim.hub.node import text

if TYPE_CHECKING:
    from semel.sim.hub.members import StormClient
    from semel.sim.hub.storm import HubStorm, StormNode


class Caller:
    """Publishes with a key, again and again until it is done; opens sessions of its own, which it has closed by
    whichever node; and puts clients into a group and out of it, one change at a time. What it is answered has to be
    so."""

    def __init__(self, storm: HubStorm) -> None:
        self.storm = storm
        self.open: dict[str, tuple[StormNode, int, Call]] = {}
        self.done: set[str] = set()
        self.visitors: dict[str, StormNode] = {}
        self.in_doubt: set[str] = set()
        self.answered = 0
        self._count = 0

    def call(self, call: Call, node: StormNode) -> None:
        self._count += 1
        name = f"call {self._count}"
        self.open[name] = node, node.lives, call
        node.tell(name, call)

    def publish(self, group: str, node: StormNode) -> None:
        name = f"rest {self._count}"
        self.call(Publish(Group(group), text(name), key=name), node)

    def close_one(self, node: StormNode) -> None:
        """By whichever node, if it has come into the store."""
        there = sorted(name for name in self.visitors if self.storm.books.row_of(name) is not None)
        if there:
            self.call(CloseConnections(Connection(self.storm.chance.choice(there))), node)

    def change_group(self, client: StormClient, node: StormNode) -> None:
        who = Connection(client.connection)
        changes = [call for *_, call in self.open.values() if isinstance(call, JoinMembers | RemoveMembers)]
        if self.storm.books.row_of(who.name) is None or any(change.who == who for change in changes):
            return
        change = JoinMembers if self.storm.chance.random() < 0.5 else RemoveMembers
        self.call(change(who, (EXTRA,)), node)

    def visit(self, node: StormNode) -> None:
        """A session that nobody comes back to."""
        name = self.next_visitor(node)
        node.open(name, name)

    def next_visitor(self, node: StormNode) -> str:
        self._count += 1
        name = f"visitor-{self._count}"
        self.visitors[name] = node
        return name

    def leave(self) -> None:
        for name, node in self.visitors.items():
            if node in self.storm.nodes:
                node.drop(name)

    def receive(self) -> None:
        for name, (node, life, call) in list(self.open.items()):
            for answer in node.take(name):
                assert isinstance(answer, Answer)
                del self.open[name]
                self.answered += 1
                self.storm.world.clock.note(f"{name} is {answer.outcome.value}")
                self.check(call, answer, node)
            if name in self.open and (node not in self.storm.nodes or node.lives != life):
                del self.open[name]
                self.check(call, Answer(Outcome.FAILED), None)

    def check(self, call: Call, answer: Answer, node: StormNode | None) -> None:
        """`node` answered, if somebody did."""
        if isinstance(call, Publish) and answer.outcome is Outcome.FAILED:
            self.call(call, self.storm.chance.choice(self.storm.nodes))
        elif isinstance(call, CloseConnections) and answer.outcome is Outcome.FAILED and node is not None:
            self.call(call, node)
        elif isinstance(call, Publish):
            self.done.add(call.key or "")
        elif isinstance(call, CloseConnections) and answer.outcome is Outcome.DONE:
            assert isinstance(call.to, Connection)
            if self.storm.books.row_of(call.to.name) is not None:
                self.storm.world.violated(f"{call.to.name} is said to be closed, and is not")
        elif isinstance(call, JoinMembers | RemoveMembers):
            self._changed(call, answer)

    def _changed(self, call: JoinMembers | RemoveMembers, answer: Answer) -> None:
        """One that failed may yet happen, after others. A session that never became durable is nowhere."""
        assert isinstance(call.who, Connection)
        name, row = call.who.name, self.storm.books.row_of(call.who.name)
        if answer.outcome is Outcome.FAILED:
            self.in_doubt.add(name)
        elif row is not None and answer.outcome is not Outcome.DONE:
            self.storm.world.violated(f"{call} was answered {answer}")
        elif row is not None and name not in self.in_doubt and (EXTRA in row.groups) != isinstance(call, JoinMembers):
            self.storm.world.violated(f"{call} is said to be done, and is not")
