"""A service that calls any node: it publishes, opens sessions, has them closed, and puts clients into a group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from semel.pubsub.hub.calls import (
    Answer,
    Call,
    CloseConnections,
    Connection,
    Everybody,
    Find,
    Group,
    JoinMembers,
    ListMembers,
    Outcome,
    Publish,
    RemoveMembers,
    User,
)
from semel.pubsub.protocol.messages import GroupMessage, SequenceAck
from semel.sim.hub.members import EXTRA, GROUPS
from semel.sim.hub.node import text
from semel.websocket import CloseCode

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
        node.feed(name, call)

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


class GuestCaller(Caller):
    """Closes guests, and lets them come and go: sessions that come with groups, acknowledge some of what they get, and
    end in all the ways in which sessions end. Of each that has ended the ledger must tell all that was due to it."""

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
        numbers = [response.sequence_id or 0 for response in node.take(name) if isinstance(response, GroupMessage)]
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


USER = "visitors"
VISITORS = "startswith(connectionId, 'visitor-')"
BY_FILTER = "by filter "


@dataclass(eq=False)
class Question:
    """What the store held when it was asked: who was there, since when who was in the group, and who had ended."""

    call: Call
    there: set[str]
    members: dict[str, int]
    ended: set[str]


class QuestionCaller(Caller):
    def __init__(self, storm: HubStorm) -> None:
        super().__init__(storm)
        self.books = storm.books
        self.asked: list[Question] = []
        self._closing: set[str] = set()

    def receive(self) -> None:
        super().receive()
        chance, node = self.storm.chance, self.storm.chance.choice(self.storm.nodes)
        roll = chance.random()
        if roll < 0.02:
            self.visit(node)
        elif roll < 0.05:
            self._ask(node)

    def _ask(self, node: StormNode) -> None:
        chance, there = self.storm.chance, sorted(self.books.sessions())
        known = sorted(self.books.opened)
        roll = chance.random()
        if roll < 0.3 and known:
            self.call(Find(Connection(chance.choice(known))), node)
        elif roll < 0.5:
            self.call(ListMembers(EXTRA, limit=1000), node)
        elif roll < 0.7 and self.visitors.keys() & there:
            self.call(CloseConnections(Connection(chance.choice(sorted(self.visitors.keys() & there)))), node)
        elif roll < 0.98:
            self.call(JoinMembers(Everybody(), (f"{BY_FILTER}{self._count}",), filter=VISITORS), node)
        else:
            self.call(CloseConnections(User(USER)), node)

    def visit(self, node: StormNode) -> None:
        node.connect(self.next_visitor(node), USER)

    def close_one(self, node: StormNode) -> None:
        """In its own way."""

    def call(self, call: Call, node: StormNode) -> None:
        there = self.books.sessions()
        rows = ((name, self.books.row_of(name)) for name in there)
        members = {name: row.groups[EXTRA] for name, row in rows if row is not None and EXTRA in row.groups}
        self.asked.append(Question(call, there, members, self.books.opened.keys() - there))
        if isinstance(call, CloseConnections):
            # from now on it may end at any time, also if this is never answered
            self._closing |= {call.to.name} if isinstance(call.to, Connection) else self.visitors.keys()
        super().call(call, node)

    def check(self, call: Call, answer: Answer, node: StormNode | None) -> None:
        question = next(each for each in self.asked if each.call is call)
        self.asked.remove(question)
        if node is not None and answer.outcome is not Outcome.FAILED:
            for wrong in self._wrong(question, answer):
                self.storm.world.violated(f"{call}: {wrong}")
        if isinstance(call, Publish) or Connection in (type(getattr(call, "to", 0)), type(getattr(call, "who", 0))):
            super().check(call, answer, node)

    def _wrong(self, question: Question, answer: Answer) -> list[str]:
        match question.call:
            case Find(who=Connection(name=name)):
                return self._wrongly_found(question, name, answer.outcome is Outcome.DONE)
            case ListMembers():
                return self._wrongly_listed(question, {member.connection for member in answer.members})
            case CloseConnections(to=User()):
                return [f"{name} is left" for name in self.books.sessions() & question.there & self.visitors.keys()]
            case JoinMembers(who=Everybody(), groups=(group,)):
                return self._wrongly_joined(question, group)
        return []

    def _wrongly_found(self, question: Question, name: str, is_found: bool) -> list[str]:
        if name in question.ended and is_found:
            return ["it had ended"]
        if name in question.there & self.books.sessions() - self._closing and not is_found:
            return ["it was there all the time"]
        return []

    def _wrongly_listed(self, question: Question, listed: set[str]) -> list[str]:
        """Who was in it when it was asked, and has not left it since, was in it all the time."""
        stayed = {name for name, since in question.members.items() if since > self.books.left.get(name, 0)}
        stayed &= self.books.sessions() - self._closing
        wrong = [f"{name} is not listed" for name in sorted(stayed - listed)]
        return wrong + [f"{name} had ended" for name in sorted(listed & question.ended)]

    def _wrongly_joined(self, question: Question, group: str) -> list[str]:
        """It is decided at one place of the stream: if one is in, so is whoever came before it."""
        there = {name for name in self.books.sessions() if name.startswith("visitor-")}
        rows = {name: self.books.row_of(name) for name in there}
        members = {name for name, row in rows.items() if row is not None and group in row.groups}
        last = max((self.books.opened[name] for name in members), default=0)
        earlier = {name for name in there if self.books.opened[name] < last}
        return [f"{name} is not in it" for name in sorted((question.there & there | earlier) - members)]
