"""A storm with somebody who asks about connections, whichever node he comes to. What he hears has to be true of all
that had come, and of all that had ended, before he asked, on whichever node."""

from __future__ import annotations

from dataclasses import dataclass

from tests.unit.pubsub.hub.storm import EXTRA, HUB, OPTIONS, Caller, Client, Node, Storm

from semel.kernel.ops import Append
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
    RemoveMembers,
    User,
)
from semel.pubsub.hub.machine import HubOptions
from semel.pubsub.hub.record_kinds import RecordKind
from semel.pubsub.hub.records import group_target

USER = "visitors"
VISITORS = "startswith(connectionId, 'visitor-')"
BY_FILTER = "by filter "


@dataclass(eq=False)
class Asked:
    """What the store held when it was asked: who was there, since when who was in the group, and who had ended."""

    call: Call
    there: set[str]
    members: dict[str, int]
    ended: set[str]


class Asker(Caller):
    def __init__(self, storm: Calls) -> None:
        super().__init__(storm)
        self.calls = storm
        self.asked: list[Asked] = []
        self.answered = self.failed = 0

    def hear(self) -> None:
        super().hear()
        chance, node = self.storm.chance, self.storm.chance.choice(self.storm.nodes)
        roll = chance.random()
        if roll < 0.02:
            self.visit(node)
        elif roll < 0.05:
            self._ask(node)

    def _ask(self, node: Node) -> None:
        chance, there = self.storm.chance, sorted(self.calls.there())
        known = sorted(self.calls.opened)
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

    def visit(self, node: Node) -> None:
        self._count += 1
        name = f"visitor-{self._count}"
        self.visitors[name] = node
        node.connect(name, USER)

    def close_one(self, node: Node) -> None:
        """In its own way."""

    def change_group(self, client: Client, node: Node) -> None:
        """Of whoever there is, whether the node knows of it or not."""
        who = Connection(client.connection)
        changes = (call for *_, call in self.open.values() if isinstance(call, JoinMembers | RemoveMembers))
        if self.storm.row_of(who.name) is None or any(change.who == who for change in changes):
            return
        change = JoinMembers if self.storm.chance.random() < 0.5 else RemoveMembers
        self.call(change(who, (EXTRA,)), node)

    def call(self, call: Call, node: Node) -> None:
        there = self.calls.there()
        rows = ((name, self.storm.row_of(name)) for name in there)
        members = {name: row.groups[EXTRA] for name, row in rows if row is not None and EXTRA in row.groups}
        self.asked.append(Asked(call, there, members, self.calls.opened.keys() - there))
        super().call(call, node)

    def _heard(self, call: Call, answer: Answer, node: Node | None) -> None:
        asked = next(each for each in self.asked if each.call is call)
        self.asked.remove(asked)
        if node is not None and answer.outcome is not Outcome.FAILED:
            self.answered += 1
            self.storm.trouble += [f"{call}: {wrong}" for wrong in self._wrong(asked, answer)]
        elif node is not None:
            self.failed += 1
        if isinstance(call, Publish) or Connection in (type(getattr(call, "to", 0)), type(getattr(call, "who", 0))):
            super()._heard(call, answer, node)

    def _wrong(self, asked: Asked, answer: Answer) -> list[str]:
        match asked.call:
            case Find(who=Connection(name=name)):
                return self._wrongly_found(asked, name, answer.outcome is Outcome.DONE)
            case ListMembers():
                return self._wrongly_listed(asked, {member.connection for member in answer.members})
            case CloseConnections(to=User()):
                return [f"{name} is left" for name in self.calls.there() & asked.there & self.visitors.keys()]
            case JoinMembers(who=Everybody(), groups=(group,)):
                return self._wrongly_joined(asked, group)
        return []

    def _wrongly_found(self, asked: Asked, name: str, is_found: bool) -> list[str]:
        if name in asked.ended and is_found:
            return ["it had ended"]
        if name in asked.there & self.calls.there() - self.calls.ending() and not is_found:
            return ["it was there all the time"]
        return []

    def _wrongly_listed(self, asked: Asked, listed: set[str]) -> list[str]:
        """Who was in it when it was asked, and has not left it since, was in it all the time."""
        stayed = {name for name, since in asked.members.items() if since > self.calls.left.get(name, 0)}
        stayed &= self.calls.there() - self.calls.ending()
        wrong = [f"{name} is not listed" for name in stayed - listed]
        return wrong + [f"{name} had ended" for name in listed & asked.ended]

    def _wrongly_joined(self, asked: Asked, group: str) -> list[str]:
        """It is decided at one place of the stream: if one is in, so is whoever came before it."""
        there = {name for name in self.calls.there() if name.startswith("visitor-")}
        rows = {name: self.storm.row_of(name) for name in there}
        members = {name for name, row in rows.items() if row is not None and group in row.groups}
        last = max((self.calls.opened[name] for name in members), default=0)
        earlier = {name for name in there if self.calls.opened[name] < last}
        return [f"{name} is not in it" for name in (asked.there & there | earlier) - members]


class Calls(Storm):
    """`opened` says where the first record of each session stands, `left` the last with which it
    has left the group."""

    def __init__(self, seed: int, clients: int = 4, faults: float = 0.0, options: HubOptions = OPTIONS) -> None:
        self.opened: dict[str, int] = {}
        self.left: dict[str, int] = {}
        super().__init__(seed, clients, faults, options)
        self.caller: Asker = Asker(self)

    def recorded(self, op: Append, offset: int) -> None:
        if op.kind == RecordKind.OPEN:
            self.opened.setdefault(op.envelope.source, offset)
        elif op.kind == RecordKind.LEAVE and op.target == group_target(EXTRA):
            self.left[op.envelope.source] = offset

    def there(self) -> set[str]:
        prefix = f"hub/{HUB}/session/"
        return {key.removeprefix(prefix) for key, _ in self.nodes[0].store.states(prefix, "", 10_000)}

    def ending(self) -> set[str]:
        """Nobody finds them any more, though they are in the store."""
        return {name for node in self.nodes for name in node.hub.endings.sessions.sessions}
