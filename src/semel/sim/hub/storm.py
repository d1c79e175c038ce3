"""Everything that takes time ends when chance wants it, nodes die, clients come back elsewhere. The store is the real
one for memory, the machines are those that run in production."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from semel.errors import StoreUnavailable
from semel.kernel.effects import Send
from semel.kernel.group import CommitGroup
from semel.kernel.interpreter import Interpreter
from semel.kernel.ops import Append, Applied, Fresh
from semel.pubsub.hub.calls import Answer, Call
from semel.pubsub.hub.machine import HubOptions
from semel.pubsub.hub.sockets import ClosePeer, HubRestarted
from semel.sim.hub.callers import Caller
from semel.sim.hub.members import GROUPS, HubBooks, StormClient
from semel.sim.hub.node import HubNode, HubProcess
from semel.sim.process import Answering
from semel.sim.world import SeededWorld
from semel.websocket import CloseCode

AWAY = StoreUnavailable("the storm")
CLIENTS = 4
CALM_TURNS = 60
NODES_MAX = 3


class StormProcess(HubProcess):
    """What it asks waits at its node. A machine that was started again finishes its commits, as in production."""

    _node: StormNode

    def commit(self, group: CommitGroup) -> None:
        self._node.groups.append((self.interpreter, group))

    def ask(self, look: Callable[[Any], Any], done: Answering, failed: Answering) -> None:
        self._node.ask(look, done, failed)


class StormNode(HubNode):
    """What takes time waits in `pending` until the storm lets it happen; commits happen in their order."""

    def __init__(self, storm: HubStorm, name: str, beside: HubNode | None) -> None:
        self.storm = storm
        self.lives = 0
        self.groups: list[tuple[Interpreter, CommitGroup]] = []
        self.pending: list[Callable[[], None]] = []
        super().__init__(storm.options, name, beside, storm.world.clock)

    def begin_process(self) -> HubProcess:
        return StormProcess(self)

    def send_effect(self, effect: Send) -> None:
        """As the server does: a hub that begins knows nobody who was there before."""
        if not isinstance(effect.message, HubRestarted):
            super().send_effect(effect)
            return
        self.lives += 1
        for client in self.storm.clients:
            if client.node is self:
                self.sent[client.socket].append(ClosePeer(CloseCode.INTERNAL, "the hub was started again"))

    def commit_one(self) -> None:
        interpreter, group = self.groups.pop(0)
        is_failing, is_unknown = self.storm.is_faulty("commit.failed"), self.storm.is_faulty("commit.unknown", 0.3)
        if is_failing:
            self.pending.append(
                partial(interpreter.unknown, group) if is_unknown else partial(interpreter.failed, group, AWAY)
            )
            return
        outcomes = self.store.commit(group.units)
        for unit, outcome in zip(group.units, outcomes, strict=True):
            if isinstance(outcome, Applied):
                for op, result in zip(unit.ops, outcome.results, strict=True):
                    if isinstance(op, Append) and isinstance(result, Fresh):
                        self.storm.books.record(op, result.position.offset)
                        self.storm.world.clock.note(f"{self.node} has {result.position.offset}")
        # the machine may have been started again when the answer comes
        self.pending.append(
            partial(interpreter.unknown, group) if is_unknown else partial(interpreter.committed, group, outcomes)
        )
        for node in self.storm.nodes:
            node.pending.append(partial(node.interpreter.wake, is_own=node is self))

    def ask(self, look: Callable[[Any], Any], done: Answering, failed: Answering) -> None:
        """The store is looked at at one time, and the answer comes then or at another one."""

        def looked() -> None:
            if self.storm.is_faulty("read.failed"):
                self.pending.append(lambda: failed(AWAY))
                return
            found = look(self.store)
            if self.storm.chance.random() < 0.7:
                done(found)
            else:
                self.pending.append(lambda: done(found))

        self.pending.append(looked)

    def step(self) -> bool:
        """One thing that was under way happens. Answers to commits keep their order, as those of one writer do."""
        chance = self.storm.chance
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


class HubStorm:
    """`faults`: how often the store does not do what it is asked, or does not say that it did. `restless`: how often
    clients drop their sockets, and whether they come back at once."""

    def __init__(
        self, world: SeededWorld, options: HubOptions, faults: float, restless: float, caller: type[Caller] = Caller
    ) -> None:
        self.world, self.chance = world, world.random
        self.options, self.faults, self.restless = options, faults, restless
        self.nodes: list[StormNode] = []
        self.clients: list[StormClient] = []
        self._names = 0
        self._sockets = 0
        first = self.start_node()
        self.books = HubBooks(first.store)
        self.start_node()
        self.clients = [StormClient(self, f"client-{number}") for number in range(CLIENTS)]
        self.caller = caller(self)

    def is_faulty(self, fault: str, part: float = 1.0) -> bool:
        return self.world.strikes(fault, self.faults * part)

    def fresh_socket(self, client: StormClient) -> str:
        self._sockets += 1
        return f"{client.name} by {self._sockets}"

    def start_node(self) -> StormNode:
        self._names += 1
        node = StormNode(self, f"node-{self._names}", self.nodes[0] if self.nodes else None)
        self.nodes.append(node)
        return node

    def kill_node(self) -> None:
        if len(self.nodes) < 2:
            return
        node = self.chance.choice(self.nodes)
        self.world.see("node.killed")
        self.nodes.remove(node)
        node.die()
        for client in self.clients:
            if client.node is node:
                client.node = None

    def run(self, steps: int, messages: int) -> None:
        left = messages
        for number in range(steps):
            self.world.clock.note(f"step {number}")
            left -= self._act(left > 0)
            for each in self.clients:
                each.receive()
            self.caller.receive()
        self._clear_up()

    def _act(self, may_publish: bool) -> bool:
        """Something that somebody does, or that happens by itself. Returns whether a message was published."""
        chance = self.chance
        roll = chance.random()
        client = chance.choice(self.clients)
        is_published = False
        if roll < 0.6:
            chance.choice(self.nodes).step()
        elif roll < 0.75 and may_publish and client.is_connected:
            is_published = True
            if chance.random() < 0.2:
                self.caller.publish(chance.choice(GROUPS), chance.choice(self.nodes))
            else:
                client.publish(chance.choice(GROUPS), chance.random() < 0.02, chance.random() < 0.1)
        elif roll < 0.81:
            client.acknowledge()
        elif roll < 0.89:
            if client.node is None:
                client.connect(chance.choice(self.nodes))
            elif chance.random() < self.restless:
                self.world.see("client.dropped")
                client.drop()
        elif roll < 0.91:
            self._pass_time(chance.uniform(0, 6))
        elif roll < 0.925:
            self.kill_node()
        elif roll < 0.94 and len(self.nodes) < NODES_MAX:
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
            client.connect(chance.choice(self.nodes))
        return is_published

    # -- when the weather has cleared

    def _clear_up(self) -> None:
        """Everything that was asked for is done, and everybody is served."""
        self.world.is_clear = True
        for _ in range(CALM_TURNS):
            self._settle()
            for client in self.clients:
                client.receive()
                if client.node is None:
                    client.connect(self.nodes[0])
            self._settle()
            for client in self.clients:
                client.receive()
                client.send_again()
            self._pass_time(3.0)
            self.caller.receive()
            if not any(client.unacked for client in self.clients) and not self.caller.open and self._are_served():
                return

    def _are_served(self) -> bool:
        return all({body for _, body in client.got}.issuperset(self.due(client)) for client in self.clients)

    def due(self, client: StormClient) -> list[str]:
        """What was written after it learned that it is in the group, and before it asked to be out."""
        return [
            body
            for offset, body in self.books.written()
            if not client.is_own_quiet(body)
            and any(
                stay.group == self.books.targets[body] and stay.since < offset <= stay.until for stay in client.stays
            )
        ]

    def acknowledge_all(self) -> None:
        """Everybody is there and acknowledges what it got, and the nodes write that down."""
        for _ in range(6):
            for client in self.clients:
                if client.node is None:
                    client.connect(self.nodes[0])
            self._settle()
            for client in self.clients:
                client.receive()
                client.acknowledge()
            self._pass_time(1.5)
        self._settle()

    def wait(self, seconds: float) -> None:
        """Nobody does anything."""
        for _ in range(round(seconds / 3)):
            self._settle()
            self._pass_time(3.0)
        self._settle()

    def empty(self) -> None:
        """Everybody acknowledges and goes, and time passes."""
        self.caller.leave()
        for _ in range(round(self.options.recovery_s / 3) + 40):
            self._settle()
            for client in self.clients:
                client.receive()
                client.acknowledge()
                client.drop()
            self._pass_time(3.0)
        self._settle()

    def ask(self, node: StormNode, call: Call) -> Answer:
        """And wait for the answer."""
        node.feed("asked", call)
        self._settle()
        [answer] = node.take("asked")
        assert isinstance(answer, Answer)
        return answer

    def _settle(self) -> None:
        while any(node.step() for node in self.nodes):
            for client in self.clients:
                client.receive()

    def _pass_time(self, seconds: float) -> None:
        self.nodes[0].pass_time(seconds)
