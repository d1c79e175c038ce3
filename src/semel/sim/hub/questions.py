"""Somebody who asks any node about connections. The answer has to be true of all that had come, and of all that had
ended, before the question, on whichever node."""

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
    JoinMembers,
    ListMembers,
    Outcome,
    Publish,
    User,
)
from semel.sim.hub.books import EXTRA
from semel.sim.hub.callers import Caller

if TYPE_CHECKING:
    from semel.sim.hub.storm import HubStorm, StormNode

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
