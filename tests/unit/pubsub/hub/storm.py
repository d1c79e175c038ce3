"""Several nodes of a hub in bad weather: everything that takes time ends when chance wants it, nodes die, clients come
back elsewhere. The store is the real one for memory, the machines are those that run in production."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from tests.unit.pubsub.hub.world import HUB, World, text

from semel.errors import StoreUnavailable
from semel.kernel.effects import Load, LoadAll, LoadHead, Read, Send
from semel.kernel.group import Group
from semel.kernel.interpreter import Interpreter, Seat
from semel.kernel.ledger import START, Kind, fold_ids
from semel.kernel.ledger import Event as LedgerEvent
from semel.kernel.ops import Append, Applied, Fresh
from semel.pubsub.hub.calls import (
    Answer,
    Call,
    CloseConnections,
    Connection,
    JoinMembers,
    Outcome,
    Publish,
    RemoveMembers,
)
from semel.pubsub.hub.calls import Group as ToGroup
from semel.pubsub.hub.floors import read_floor
from semel.pubsub.hub.machine import HubOptions
from semel.pubsub.hub.record_kinds import RecordKind
from semel.pubsub.hub.session_rows import SessionRow, read_session, session_key
from semel.pubsub.hub.sockets import ClosePeer, HubRestarted
from semel.pubsub.protocol.messages import (
    Ack,
    CloseCode,
    Connected,
    ErrorName,
    GroupMessage,
    JoinGroup,
    LeaveGroup,
    SendToGroup,
)
from semel.sim.hub.node import HubProcess
from semel.stores.bodies import read_whole

GROUPS = ("red", "blue")
EXTRA = "by service"
RECOVERY_S = 400.0
OPTIONS = HubOptions(is_shared=True, lease_s=10.0, trim_s=2.0, recovery_s=RECOVERY_S)
FEW_ROWS = 3
LARGE = " " * 300_000
AWAY = StoreUnavailable("the storm")


class StormProcess(HubProcess):
    _node: Node

    def commit(self, group: Group) -> None:
        self._node.groups.append((self.interpreter, group))


class Node(World):
    """What takes time waits in `pending` until the storm lets it happen; commits happen in their order."""

    def __init__(self, storm: Storm, name: str, beside: World | None) -> None:
        self.storm = storm
        self.groups: list[tuple[Interpreter, Group]] = []
        self.pending: list[Callable[[], None]] = []
        super().__init__(storm.options, name, beside)

    def begin_process(self) -> HubProcess:
        return StormProcess(self)

    def send_effect(self, effect: Send) -> None:
        """As the server does: a hub that begins knows nobody who was there before."""
        if isinstance(effect.message, HubRestarted):
            for client in self.storm.clients:
                if client.node is self:
                    self.said[client.socket].append(ClosePeer(CloseCode.INTERNAL, "the hub began anew"))
        else:
            super().send_effect(effect)

    def commit(self, group: Group) -> None:
        """Also of the machine before, if this one has begun anew."""
        raise AssertionError

    def commit_one(self) -> None:
        interpreter, group = self.groups.pop(0)
        is_failing, is_unknown = self.storm.is_faulty(), self.storm.is_faulty(0.3)
        if is_failing:
            self.pending.append(
                partial(interpreter.unknown, group) if is_unknown else partial(interpreter.failed, group, AWAY)
            )
            return
        outcomes = self.store.commit(group.units)
        for unit, outcome in zip(group.units, outcomes, strict=True):
            if isinstance(outcome, Applied):
                for op, result in zip(unit.ops, outcome.results, strict=True):
                    if not isinstance(op, Append) or not isinstance(result, Fresh):
                        continue
                    if op.kind == RecordKind.MESSAGE:
                        self.storm.written(op, result.position.offset)
                    else:
                        self.storm.recorded(op, result.position.offset)
        # the machine may have begun anew when the answer comes
        self.pending.append(
            partial(interpreter.unknown, group) if is_unknown else partial(interpreter.committed, group, outcomes)
        )
        for world in list(self.nodes):
            assert isinstance(world, Node)
            world.pending.append(partial(world.interpreter.wake, is_own=world is self))

    def read(self, seat: Seat, effect: Read) -> None:
        read = partial(read_whole, self.store) if effect.bodies else self.store.read
        self._later(
            lambda: read(effect.stream, effect.after, effect.limit),
            partial(self.interpreter.read_done, seat, effect),
            partial(self.interpreter.read_failed, seat, effect),
        )

    def load(self, seat: Seat, effect: Load | LoadAll | LoadHead) -> None:
        self._later(
            lambda: effect.of(self.store),
            partial(self.interpreter.load_done, seat, effect),
            partial(self.interpreter.load_failed, seat, effect),
        )

    def _later(self, look: Callable[[], object], done: Callable[..., None], failed: Callable[..., None]) -> None:
        """The store is looked at at one time, and the answer comes then or at another one."""

        def looked() -> None:
            if self.storm.is_faulty():
                self.pending.append(lambda: failed(AWAY))
                return
            found = look()
            if self.storm.chance.random() < 0.7:
                done(found)
            else:
                self.pending.append(lambda: done(found))

        self.pending.append(looked)

    def step(self, chance: random.Random) -> bool:
        """One thing that was under way happens. Answers to commits keep their order, as those of one writer do."""
        choices: list[Callable[[], None]] = []
        if self.groups:
            choices.append(self.commit_one)
        if self.pending:
            choices.append(
                lambda: self.pending.pop(0 if chance.random() < 0.7 else chance.randrange(len(self.pending)))()
            )
        if not choices:
            return False
        chance.choice(choices)()
        return True


Ask = JoinGroup | LeaveGroup | SendToGroup


class Stay:
    """What is written after `since` and before `until` is promised. After `out` nothing may come, up to `again`."""

    def __init__(self, group: str, since: float) -> None:
        self.group, self.since = group, since
        self.until = self.out = self.again = math.inf


class Client:
    """Does what the protocol asks: resends under the same ackId, drops what it has, acknowledges what it got."""

    def __init__(self, storm: Storm, name: str) -> None:
        self.storm, self.name, self.connection = storm, name, ""
        self.node: Node | None = None
        self.socket = ""
        self.is_connected = False
        self.last = self.last_heard = 0
        self.got: list[tuple[int, str]] = []
        self.unacked: dict[int, Ask] = {}
        self.stays: list[Stay] = []
        self.wrong: list[str] = []
        self._ack_id = 0
        for group in GROUPS:
            self._ask(lambda id, group=group: JoinGroup(group, id))  # type: ignore[misc]

    def _ask(self, make: Callable[[int], Ask]) -> None:
        self._ack_id += 1
        request = self.unacked[self._ack_id] = make(self._ack_id)
        if self.node is not None and self.is_connected:
            self.node.send(self.socket, request)

    def publish(self, group: str, is_large: bool = False, no_echo: bool = False) -> None:
        body = f"{self.name} {id_of(self, no_echo)}"
        self._ask(lambda id: SendToGroup(group, text(body + LARGE * is_large), id, no_echo))

    def stay(self, group: str) -> Stay | None:
        return next((stay for stay in reversed(self.stays) if stay.group == group), None)

    def change_group(self, group: str) -> None:
        """Leave it, or come in again. One change at a time."""
        if any(isinstance(ask, JoinGroup | LeaveGroup) and ask.group == group for ask in self.unacked.values()):
            return
        stay = self.stay(group)
        if stay is not None and stay.until == math.inf:
            stay.until = self.storm.last_offset
            self._ask(lambda id: LeaveGroup(group, id))
        elif stay is not None:
            stay.again = self.storm.last_offset
            self._ask(lambda id: JoinGroup(group, id))

    def come(self, node: Node) -> None:
        self.node, self.socket, self.last_heard = node, self.storm.fresh_socket(self), 0
        if not self.is_connected:
            # who never heard of a session has no token for it
            self.connection = f"session of {self.socket}"
            node.open(self.socket, self.connection)
            return
        node.resume(self.socket, self.connection)
        for request in list(self.unacked.values()):
            node.send(self.socket, request)

    def drop(self) -> None:
        if self.node is not None and self.node in self.node.nodes:
            self.node.drop(self.socket)
        self.node = None

    def hear(self) -> None:
        if self.node is None:
            return
        for said in self.node.take(self.socket):
            match said:
                case Connected():
                    self.is_connected = True
                    for request in list(self.unacked.values()):
                        self.node.send(self.socket, request)
                case Ack(ack_id=id, error=error):
                    if error is None or error.name == ErrorName.DUPLICATE:
                        request = self.unacked.pop(id, None)
                        if isinstance(request, JoinGroup):
                            self.stays.append(Stay(request.group, self.storm.last_offset))
                        elif isinstance(request, LeaveGroup):
                            stay = self.stay(request.group)
                            assert stay is not None
                            stay.out = self.storm.last_offset
                case GroupMessage(sequence_id=offset, data=data):
                    assert offset is not None
                    assert data is not None
                    if offset <= self.last_heard:
                        self.wrong.append(f"{offset} came after {self.last_heard} on one socket")
                    self.last_heard = offset
                    if offset > self.last:
                        self.last = offset
                        self.got.append((offset, data.body.decode().rstrip()))
                case ClosePeer(code=code, reason=reason):
                    if code is CloseCode.POLICY:
                        self.wrong.append(f"refused for good: {reason}")
                    self.node = None
                    return

    def acknowledge(self) -> None:
        if self.node is not None and self.last:
            self.node.ack(self.socket, self.last)


def id_of(client: Client, no_echo: bool) -> str:
    return f"{client._ack_id + 1}{' quiet' if no_echo else ''}"


class Caller:
    """A service: publishes with a key, again and again until it is done; opens sessions of its own, which it has closed
    by whichever node; and puts clients into a group and out of it, one change at a time. What it hears has to hold."""

    def __init__(self, storm: Storm) -> None:
        self.storm = storm
        self.open: dict[str, tuple[Node, str, Call]] = {}
        self.done: set[str] = set()
        self.visitors: dict[str, Node] = {}
        self.in_doubt: set[str] = set()
        self._count = 0

    def call(self, call: Call, node: Node) -> None:
        self._count += 1
        name = f"call {self._count}"
        self.open[name] = node, node.hub.node, call
        node.tell(name, call)

    def publish(self, group: str, node: Node) -> None:
        name = f"rest {self._count}"
        self.call(Publish(ToGroup(group), text(name), key=name), node)

    def close_one(self, node: Node) -> None:
        """If the node knows of it."""
        known = sorted(name for name in self.visitors if node.hub.roster.get(name) or node.hub.elsewhere.get(name))
        if known:
            self.call(CloseConnections(Connection(self.storm.chance.choice(known))), node)

    def change_group(self, client: Client, node: Node) -> None:
        """If the node knows of it."""
        who = Connection(client.connection)
        if not (node.hub.roster.get(who.name) or node.hub.elsewhere.get(who.name)):
            return
        if any(isinstance(call, JoinMembers | RemoveMembers) and call.who == who for *_, call in self.open.values()):
            return
        change = JoinMembers if self.storm.chance.random() < 0.5 else RemoveMembers
        self.call(change(who, (EXTRA,)), node)

    def visit(self, node: Node) -> None:
        """A session that nobody comes back to."""
        self._count += 1
        name = f"visitor-{self._count}"
        self.visitors[name] = node
        node.open(name, name)

    def go(self) -> None:
        for name, node in self.visitors.items():
            if node in self.storm.nodes:
                node.drop(name)

    def hear(self) -> None:
        for name, (node, incarnation, call) in list(self.open.items()):
            for answer in node.take(name):
                assert isinstance(answer, Answer)
                del self.open[name]
                self._heard(call, answer, node)
            if name in self.open and (node not in self.storm.nodes or node.hub.node != incarnation):
                del self.open[name]
                self._heard(call, Answer(Outcome.FAILED), None)

    def _heard(self, call: Call, answer: Answer, node: Node | None) -> None:
        """`node` answered, if somebody did. It knew of the session, and so it has to know what became of that."""
        if isinstance(call, Publish) and answer.outcome is Outcome.FAILED:
            self.call(call, self.storm.chance.choice(self.storm.nodes))
        elif isinstance(call, CloseConnections) and answer.outcome is Outcome.FAILED and node is not None:
            self.call(call, node)
        elif isinstance(call, Publish):
            self.done.add(call.key or "")
        elif isinstance(call, CloseConnections) and answer.outcome is Outcome.DONE:
            assert isinstance(call.to, Connection)
            if self.storm.row_of(call.to.name) is not None:
                self.storm.trouble.append(f"{call.to.name} is said to be closed, and is not")
        elif isinstance(call, JoinMembers | RemoveMembers):
            self._changed(call, answer)

    def _changed(self, call: JoinMembers | RemoveMembers, answer: Answer) -> None:
        """One that failed may yet happen, after others. A session that never became durable is nowhere."""
        assert isinstance(call.who, Connection)
        name, row = call.who.name, self.storm.row_of(call.who.name)
        if answer.outcome is Outcome.FAILED:
            self.in_doubt.add(name)
        elif row is not None and answer.outcome is not Outcome.DONE:
            self.storm.trouble.append(f"{call} was answered {answer}")
        elif row is not None and name not in self.in_doubt and (EXTRA in row.groups) != isinstance(call, JoinMembers):
            self.storm.trouble.append(f"{call} is said to be done, and is not")


class Storm:
    """`faults`: how often the store does not do what it is asked, or does not say that it did. Every other storm reads
    few records at once, so that reading takes longer than what happens meanwhile."""

    def __init__(self, seed: int, clients: int = 4, faults: float = 0.0, options: HubOptions = OPTIONS) -> None:
        self.chance, self.faults = random.Random(seed), faults
        self.options = replace(options, read_rows=FEW_ROWS) if seed // 4 % 2 else options
        self.restless = 0.9 if seed // 8 % 2 else 0.3
        self.trouble: list[str] = []
        self.caller = Caller(self)
        self.offsets: dict[str, list[int]] = {}
        self.targets: dict[str, str] = {}
        self.ids: dict[int, str] = {}
        self.last_offset = 0
        self.nodes: list[Node] = []
        self.clients: list[Client] = []
        self._names = 0
        self._sockets = 0
        for _ in range(2):
            self.start_node()
        self.clients = [Client(self, f"client-{number}") for number in range(clients)]

    def is_faulty(self, part: float = 1.0) -> bool:
        return self.faults > 0 and self.chance.random() < self.faults * part

    def written(self, op: Append, offset: int) -> None:
        self.last_offset = offset
        body = (op.envelope.data or b"".join(self.nodes[0].store.body(op.envelope.blob.name))).decode().rstrip()  # type: ignore[union-attr]
        self.offsets.setdefault(body, []).append(offset)
        self.targets[body] = op.target[2:]
        self.ids[offset] = op.envelope.id

    def recorded(self, op: Append, offset: int) -> None:
        """Something else than a message."""

    def fresh_socket(self, client: Client) -> str:
        self._sockets += 1
        return f"{client.name} by {self._sockets}"

    def row_of(self, connection: str) -> SessionRow | None:
        state = self.nodes[0].store.state(session_key(HUB, connection))
        return read_session(state.value) if state is not None else None

    def start_node(self) -> None:
        self._names += 1
        beside = self.nodes[0] if self.nodes else None
        self.nodes.append(Node(self, f"node-{self._names}", beside))

    def kill_node(self) -> None:
        if len(self.nodes) < 2:
            return
        node = self.chance.choice(self.nodes)
        self.nodes.remove(node)
        node.die()
        for client in self.clients:
            if client.node is node:
                client.node = None

    def run(self, steps: int, messages: int) -> None:
        chance, left = self.chance, messages
        for _ in range(steps):
            roll = chance.random()
            client = chance.choice(self.clients)
            if roll < 0.6:
                self._something_happens()
            elif roll < 0.75 and left and client.is_connected:
                left -= 1
                if chance.random() < 0.2:
                    self.caller.publish(chance.choice(GROUPS), chance.choice(self.nodes))
                else:
                    client.publish(chance.choice(GROUPS), chance.random() < 0.02, chance.random() < 0.1)
            elif roll < 0.81:
                client.acknowledge()
            elif roll < 0.89:
                if client.node is None:
                    client.come(chance.choice(self.nodes))
                elif chance.random() < self.restless:
                    client.drop()
            elif roll < 0.91:
                self._pass_time(chance.uniform(0, 6))
            elif roll < 0.925:
                self.kill_node()
            elif roll < 0.94 and len(self.nodes) < 3:
                self.start_node()
            elif roll < 0.96 and client.is_connected:
                client.change_group(chance.choice(GROUPS))
            elif roll < 0.975:
                self.caller.change_group(client, chance.choice(self.nodes))
            elif roll < 0.98:
                self.caller.visit(chance.choice(self.nodes))
            else:
                self.caller.close_one(chance.choice(self.nodes))
            if self.restless > 0.5 and client.node is None and client.is_connected and chance.random() < 0.5:
                client.come(chance.choice(self.nodes))
            for each in self.clients:
                each.hear()
            self.caller.hear()
        self._heal()

    def _something_happens(self) -> None:
        self.chance.choice(self.nodes).step(self.chance)

    def wait(self, seconds: float) -> None:
        """Nobody does anything."""
        for _ in range(round(seconds / 3)):
            self._quiet()
            self._pass_time(3.0)
        self._quiet()

    def _pass_time(self, seconds: float) -> None:
        self.nodes[0].pass_time(seconds)

    def _heal(self) -> None:
        """The weather clears: everything that was asked for is done, and everybody is served."""
        self.faults = 0.0
        for _ in range(60):
            self._quiet()
            for client in self.clients:
                client.hear()
                if client.node is None:
                    client.come(self.nodes[0])
            self._quiet()
            for client in self.clients:
                client.hear()
                if client.node is not None and client.is_connected:
                    for request in list(client.unacked.values()):
                        client.node.send(client.socket, request)
            self._pass_time(3.0)
            self.caller.hear()
            if not any(client.unacked for client in self.clients) and not self.caller.open and self._are_served():
                return

    def acknowledge_all(self) -> None:
        """Everybody is there and acknowledges what it got, and the nodes write that down."""
        for _ in range(6):
            for client in self.clients:
                if client.node is None:
                    client.come(self.nodes[0])
            self._quiet()
            for client in self.clients:
                client.hear()
                client.acknowledge()
            self._pass_time(1.5)
        self._quiet()

    def empty(self) -> None:
        """Everybody acknowledges and goes, and time passes: nothing is left."""
        self.caller.go()
        for _ in range(round(RECOVERY_S / 3) + 40):
            self._quiet()
            for client in self.clients:
                client.hear()
                client.acknowledge()
                client.drop()
            self._pass_time(3.0)
        self._quiet()
        store, living = self.nodes[0].store, {node.hub.node for node in self.nodes}
        for kind in ("session", "acks", "spill"):
            self.trouble += [f"{key} is left" for key, _ in store.states(f"hub/{HUB}/{kind}/")]
        floors = {key.rpartition("/")[2]: read_floor(state) for key, state in store.states(f"hub/{HUB}/floor/")}
        if floors.keys() != living:
            self.trouble.append(f"floors of {sorted(floors)}, but {sorted(living)} live")
        head = store.head(f"hub/{HUB}").offset
        self.trouble += [f"{node} pins {floor} of {head}" for node, floor in floors.items() if floor < head]
        for node in self.nodes:
            left = {part: count for part, count in node.hub.in_flight().items() if count}
            if left:
                self.trouble.append(f"{node.hub.node} keeps {left}")

    def _quiet(self) -> None:
        while any(node.step(self.chance) for node in self.nodes):
            for client in self.clients:
                client.hear()

    def _are_served(self) -> bool:
        return all({body for _, body in client.got}.issuperset(self.due(client)) for client in self.clients)

    # -- what has to hold

    def due(self, client: Client) -> list[str]:
        """What was written after it heard that it is in the group, and before it asked to be out."""
        written = sorted((offset, body) for body, offsets in self.offsets.items() for offset in offsets)
        return [
            body
            for offset, body in written
            if not (body.startswith(f"{client.name} ") and body.endswith(" quiet"))
            and any(stay.group == self.targets[body] and stay.since < offset <= stay.until for stay in client.stays)
        ]

    def _not_due(self, client: Client) -> list[str]:
        """What came all the same."""
        return [
            body
            for offset, body in client.got
            if (body.startswith(f"{client.name} ") and body.endswith(" quiet"))
            or any(stay.group == self.targets[body] and stay.out < offset <= stay.again for stay in client.stays)
        ]

    def wrong(self) -> list[str]:
        found = [*self.trouble, *(trouble for client in self.clients for trouble in client.wrong)]
        found += [f"{key} is done and not written" for key in self.caller.done if key not in self.offsets]
        found += [f"nobody answered {call}" for _, _, call in self.caller.open.values()]
        found += [f"{body} stands at {at}" for body, at in self.offsets.items() if len(at) > 1]
        for client in self.clients:
            found += [f"{client.name} never heard of {request}" for request in client.unacked.values()]
            found += self._wrong_with(client)
            found += self._wrong_in_ledger(client)
        return found

    def _wrong_with(self, client: Client) -> list[str]:
        """Before a join was acknowledged nothing is promised, and what comes all the same is no harm."""
        due, got = self.due(client), [body for _, body in client.got]
        received = [body for body in got if body in set(due)]
        found = [
            f"{client.name} got {body} as another" for offset, body in client.got if self.offsets[body] != [offset]
        ]
        found += [f"{client.name} got {body}, which it should not" for body in self._not_due(client)]
        if received != due:
            found.append(f"{client.name} got {len(received)} of {len(due)}: {sorted(set(due) - set(got))[:5]}")
        return found

    def _wrong_in_ledger(self, client: Client) -> list[str]:
        """Each delivery is written down once, and none that was not made. What was not promised may be held for
        delivered by a node that did not know better."""
        got, found, before = {offset for offset, _ in client.got}, [], 0
        due = {self.offsets[body][0] for body in self.due(client)}
        for event in self._confirmed(client.connection):
            assert event.first is not None
            assert event.last is not None
            told = f"{event.n} of {event.first} to {event.last} confirmed by {client.name}"
            inside = {offset for offset in self.ids if event.first <= offset <= event.last}
            if not before < event.first <= event.last:
                found.append(f"{told} after {before}")
            if event.n > len(inside & got) + len(inside - due - got):
                found.append(f"{told}, but only {len(inside & got)} were had")
            if event.n == len(inside) and event.fold != fold_ids(self.ids[offset] for offset in inside):
                found.append(f"{told}, but those were others")
            before = event.last
        return found

    def untold(self) -> list[str]:
        """What was due, came and was acknowledged, but is not in the ledger: an audit would take it for lost."""
        found = []
        for client in self.clients:
            left = {self.offsets[body][0] for body in self.due(client)}
            for event in self._confirmed(client.connection):
                inside = {offset for offset in left if (event.first or 0) <= offset <= (event.last or 0)}
                if event.n < len(inside):
                    found.append(f"only {event.n} of {sorted(inside)} confirmed by {client.name}")
                left -= inside
            if left:
                found.append(f"{sorted(left)} never confirmed by {client.name}")
        return found

    def _confirmed(self, connection: str) -> list[LedgerEvent]:
        entries, mark = [], START
        while found := self.nodes[0].store.ledger(mark):
            entries += [entry.event for entry in found]
            mark = found[-1].mark
        return [event for event in entries if event.kind is Kind.CONFIRMED and event.peer == connection]
