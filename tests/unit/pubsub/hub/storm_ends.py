"""A storm with guests: sessions that come with groups, acknowledge some of what they get, and end in all the ways in
which sessions end. Of each that has ended the ledger must tell all that was due to it, by the records alone."""

from __future__ import annotations

import msgspec
from tests.unit.pubsub.hub.storm import GROUPS, OPTIONS, Caller, Node, Storm

from semel.kernel.ledger import START, fold_ids
from semel.kernel.ledger import Event as LedgerEvent
from semel.kernel.ops import Append
from semel.pubsub.hub import records
from semel.pubsub.hub.machine import HubOptions
from semel.pubsub.hub.record_kinds import RecordKind
from semel.pubsub.hub.sockets import NewSession
from semel.pubsub.protocol.frames import Subprotocol
from semel.pubsub.protocol.messages import CloseCode, GroupMessage, SequenceAck
from semel.pubsub.protocol.permissions import Permissions


class Host(Caller):
    """Closes guests, and lets them come and go."""

    def visit(self, node: Node) -> None:
        self._count += 1
        name = f"visitor-{self._count}"
        self.visitors[name] = node
        node._protocols[name] = Subprotocol.JSON_RELIABLE
        groups = GROUPS[: 1 + self._count % 2]
        node.tell(name, NewSession(name, "token", Subprotocol.JSON_RELIABLE, None, Permissions.of_roles(()), groups))

    def hear(self) -> None:
        super().hear()
        for name, node in list(self.visitors.items()):
            if node in self.storm.nodes:
                self._hear_guest(name, node)

    def _hear_guest(self, name: str, node: Node) -> None:
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


class Ends(Storm):
    def __init__(self, seed: int, clients: int = 4, faults: float = 0.0, options: HubOptions = OPTIONS) -> None:
        self.begins: dict[str, tuple[int, list[str]]] = {}
        self.ends: dict[str, int] = {}
        super().__init__(seed, clients, faults, options)
        self.caller = Host(self)

    def recorded(self, op: Append, offset: int) -> None:
        envelope = op.envelope
        if op.kind == RecordKind.OPEN:
            groups = msgspec.json.decode(envelope.headers.get(records.GROUPS, "[]"), type=list[str])
            self.begins.setdefault(envelope.source, (int(envelope.headers[records.START]), groups))
        elif op.kind == RecordKind.CLOSE:
            self.ends[envelope.source] = int(envelope.headers[records.END])

    def unaccounted(self) -> list[str]:
        """As an audit does it, for the guests."""
        events: list[LedgerEvent] = []
        mark = START
        while found := self.nodes[0].store.ledger(mark):
            events += [entry.event for entry in found]
            mark = found[-1].mark
        wrong = []
        for name in self.ends.keys() & self.caller.visitors.keys():
            due = self._due_to(name)
            told = [event for event in events if event.peer == name and event.hop.endswith(">sub")]
            fold = 0
            for event in told:
                fold ^= event.fold or 0
            if sum(event.n for event in told) != len(due) or fold != fold_ids(due):
                ranges = [(event.kind.name, event.first, event.last, event.n) for event in told]
                wrong.append(f"{len(due)} were due to {name}, and the ledger tells of {ranges}")
        return wrong

    def _due_to(self, name: str) -> list[str]:
        (start, groups), end = self.begins[name], self.ends[name]
        written = ((body, offset) for body, offsets in self.offsets.items() for offset in offsets)
        return [self.ids[at] for body, at in written if start < at <= end and self.targets[body] in groups]
