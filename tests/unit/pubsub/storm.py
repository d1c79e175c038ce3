"""Several nodes of a hub in bad weather: everything that takes time ends when chance wants it, nodes die, clients come
back elsewhere. The store is the real one for memory, the machines are those that run in production."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

from tests.unit.pubsub.world import HUB, World, text

from semel.kernel.effects import Load, LoadAll, Read
from semel.kernel.group import Group
from semel.kernel.interpreter import Interpreter, Seat
from semel.kernel.ops import Append, Applied, Fresh, RecordKind
from semel.pubsub.hub import HubOptions, Shut
from semel.pubsub.messages import Ack, CloseCode, Connected, ErrorName, GroupMessage, JoinGroup, SendToGroup
from semel.stores.bodies import read_whole

GROUPS = ("red", "blue")
OPTIONS = HubOptions(is_shared=True, lease_s=10.0, trim_s=2.0, recovery_s=10_000.0)


class Node(World):
    """What takes time waits in `pending` until the storm lets it happen; commits happen in their order."""

    def __init__(self, storm: Storm, name: str, beside: World | None) -> None:
        self.storm = storm
        self.groups: list[tuple[Interpreter, Group]] = []
        self.pending: list[Callable[[], None]] = []
        super().__init__(OPTIONS, name, beside)

    def commit(self, group: Group) -> None:
        """Also of the machine before, if this one has begun anew."""
        asked = next(each for each in self.interpreters if each.queue._under_way is group)
        self.groups.append((asked, group))

    def commit_one(self) -> None:
        interpreter, group = self.groups.pop(0)
        outcomes = self.store.commit(group.units)
        for unit, outcome in zip(group.units, outcomes, strict=True):
            if isinstance(outcome, Applied):
                for op, result in zip(unit.ops, outcome.results, strict=True):
                    if isinstance(op, Append) and op.kind is RecordKind.MESSAGE and isinstance(result, Fresh):
                        self.storm.written(op, result.position.offset)
        # the machine may have begun anew when the answer comes
        self.pending.append(lambda: interpreter.committed(group, outcomes))
        for world in list(self.nodes):
            assert isinstance(world, Node)
            world.pending.append(partial(world.interpreter.wake, is_own=world is self))

    def read(self, seat: Seat, effect: Read) -> None:
        read = partial(read_whole, self.store) if effect.bodies else self.store.read
        interpreter = self.interpreter
        self.pending.append(
            lambda: interpreter.read_done(seat, effect, read(effect.stream, effect.after, effect.limit))
        )

    def load(self, seat: Seat, effect: Load | LoadAll) -> None:
        interpreter = self.interpreter
        self.pending.append(lambda: interpreter.load_done(seat, effect, effect.of(self.store)))

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


class Client:
    """Does what the protocol asks: resends under the same ackId, drops what it has, acknowledges what it got."""

    def __init__(self, storm: Storm, name: str) -> None:
        self.storm, self.name = storm, name
        self.node: Node | None = None
        self.socket = ""
        self.is_connected = False
        self.last = 0
        self.got: list[tuple[int, str]] = []
        self.unacked: dict[int, JoinGroup | SendToGroup] = {}
        self.joined: dict[str, int] = {}
        self.wrong: list[str] = []
        self._ack_id = 0
        for group in GROUPS:
            self._ask(lambda id, group=group: JoinGroup(group, id))  # type: ignore[misc]

    def _ask(self, make: Callable[[int], JoinGroup | SendToGroup]) -> None:
        self._ack_id += 1
        request = self.unacked[self._ack_id] = make(self._ack_id)
        if self.node is not None and self.is_connected:
            self.node.send(self.socket, request)

    def publish(self, group: str) -> None:
        self._ask(lambda id: SendToGroup(group, text(f"{self.name} {id}"), id))

    def come(self, node: Node) -> None:
        self.node, self.socket = node, self.storm.fresh_socket(self)
        if not self.is_connected and self.last == 0 and not self.got and not self.storm.is_known(self.name):
            node.open(self.socket, self.name)
            return
        node.resume(self.socket, self.name)
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
                            self.joined[request.group] = self.storm.last_offset
                case GroupMessage(sequence_id=offset, data=data):
                    assert offset is not None
                    assert data is not None
                    if offset > self.last:
                        self.last = offset
                        self.got.append((offset, data.body.decode()))
                case Shut(code=code, reason=reason):
                    if code is CloseCode.POLICY:
                        self.wrong.append(f"refused for good: {reason}")
                    self.node = None
                    return

    def acknowledge(self) -> None:
        if self.node is not None and self.last:
            self.node.ack(self.socket, self.last)


class Storm:
    def __init__(self, seed: int, clients: int = 4) -> None:
        self.chance = random.Random(seed)
        self.offsets: dict[str, list[int]] = {}
        self.targets: dict[str, str] = {}
        self.last_offset = 0
        self.nodes: list[Node] = []
        self._names = 0
        self._sockets = 0
        for _ in range(2):
            self.start_node()
        self.clients = [Client(self, f"client-{number}") for number in range(clients)]

    def written(self, op: Append, offset: int) -> None:
        self.last_offset = offset
        body = op.envelope.data.decode()
        self.offsets.setdefault(body, []).append(offset)
        self.targets[body] = op.target[2:]

    def fresh_socket(self, client: Client) -> str:
        self._sockets += 1
        return f"{client.name} by {self._sockets}"

    def is_known(self, connection: str) -> bool:
        return bool(self.nodes[0].store.states(f"hub/{HUB}/session/{connection}"))

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
                client.publish(chance.choice(GROUPS))
            elif roll < 0.85:
                client.acknowledge()
            elif roll < 0.93:
                if client.node is None:
                    client.come(chance.choice(self.nodes))
                elif chance.random() < 0.3:
                    client.drop()
            elif roll < 0.95:
                self._pass_time(chance.uniform(0, 6))
            elif roll < 0.965:
                self.kill_node()
            elif roll < 0.98 and len(self.nodes) < 3:
                self.start_node()
            for each in self.clients:
                each.hear()
        self._heal()

    def _something_happens(self) -> None:
        self.chance.choice(self.nodes).step(self.chance)

    def _pass_time(self, seconds: float) -> None:
        self.nodes[0].pass_time(seconds)

    def _heal(self) -> None:
        """The weather clears: everything that was asked for is done, and everybody is served."""
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
            if not any(client.unacked for client in self.clients) and self._are_served():
                return

    def _quiet(self) -> None:
        while any(node.step(self.chance) for node in self.nodes):
            for client in self.clients:
                client.hear()

    def _are_served(self) -> bool:
        return all({body for _, body in client.got}.issuperset(self.due(client)) for client in self.clients)

    # -- what has to hold

    def due(self, client: Client) -> list[str]:
        """What was written after it heard that it is in the group."""
        written = sorted((offset, body) for body, offsets in self.offsets.items() for offset in offsets)
        return [body for offset, body in written if client.joined.get(self.targets[body], offset) < offset]

    def wrong(self) -> list[str]:
        found = [trouble for client in self.clients for trouble in client.wrong]
        found += [f"{body} stands at {at}" for body, at in self.offsets.items() if len(at) > 1]
        for client in self.clients:
            found += [f"{client.name} never heard of {request}" for request in client.unacked.values()]
            found += self._wrong_with(client)
        return found

    def _wrong_with(self, client: Client) -> list[str]:
        """Before a join was acknowledged nothing is promised, and what comes all the same is no harm."""
        due, got = self.due(client), [body for _, body in client.got]
        received = [body for body in got if body in set(due)]
        found = [
            f"{client.name} got {body} as another" for offset, body in client.got if self.offsets[body] != [offset]
        ]
        if received != due:
            found.append(f"{client.name} got {len(received)} of {len(due)}: {sorted(set(due) - set(got))[:5]}")
        return found
