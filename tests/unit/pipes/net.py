"""A small network of nodes for tests: parcels find their way by their routes, over links that lose, double and reorder.

Time is virtual and everything by chance comes from one seed, so a failing run fails again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol

from semel.kernel.effects import Event, Machine, Notify, Received, Send
from semel.kernel.interpreter import Seat
from semel.pipes.services.channel import addressed
from semel.pipes.workers.route import NoRoute, Parcel, Router, ToNode, ToWorker, arrived_from
from semel.sim.process import Process
from semel.sim.world import Clock


class Addressed(Machine, Protocol):
    @property
    def addresses(self) -> tuple[str, ...]: ...


@dataclass
class Link:
    loss: float = 0.0
    double: float = 0.0
    delay_s: tuple[float, float] = (0.01, 0.01)


class Node(Process):
    """`apps` are plain workers: a function that gets a parcel and says what to send."""

    def __init__(self, net: Net, name: str) -> None:
        self.net, self.name = net, name
        self.machines: list[Addressed] = []
        self.apps: dict[str, Callable[[Parcel], list[Parcel]]] = {}
        self.forwarders: set[str] = set()
        super().__init__(lambda: net.now)

    def machine(self, address: str) -> Addressed | None:
        return next((machine for machine in self.machines if address in machine.addresses), None)

    def send(self, seat: Seat, effect: Send) -> None:
        self.net.send(self, effect.message)

    def notify(self, seat: Seat, effect: Notify) -> None:
        self.net.notes.append(effect)


class Net:
    def __init__(self, seed: int = 0) -> None:
        self.clock = Clock()
        self.random = Random(seed)
        self.nodes: dict[str, Node] = {}
        self.links: dict[frozenset[str], Link] = {}
        self.notes: list[Notify] = []
        self.astray: list[str] = []
        self.carried: list[tuple[str, str, Parcel]] = []

    @property
    def now(self) -> float:
        return self.clock.now

    def node(self, name: str) -> Node:
        self.nodes[name] = Node(self, name)
        return self.nodes[name]

    def link(self, one: str, other: str, **options: Any) -> Link:
        self.links[frozenset((one, other))] = made = Link(**options)
        return made

    def calm(self) -> None:
        for link in self.links.values():
            link.loss = link.double = 0.0

    # -- machines

    def start(self, node: Node, machine: Addressed) -> None:
        """Start a machine, in the place of the one that had its name."""
        node.machines = [each for each in node.machines if each.name != machine.name]
        node.machines.append(machine)
        node.interpreter.add(machine)

    def tell(self, node: Node, machine: Addressed, event: Event) -> None:
        seat = node.interpreter.seat(machine.name)
        assert seat is not None
        node.interpreter.feed(seat, event)

    # -- parcels

    def send(self, node: Node, parcel: Parcel) -> None:
        workers = {*node.apps, *(address for machine in node.machines for address in machine.addresses)}
        peers = [name for name in self.nodes if frozenset((node.name, name)) in self.links]
        match Router(workers, node.forwarders, peers).route(parcel):
            case ToWorker(worker=worker) as found:
                self.clock.after(0.0, "arrives", self._arrive, node, worker, found)
            case ToNode(node=peer, parcel=onward):
                self._cross(node, peer, onward)
            case NoRoute(reason=reason):
                self.astray.append(reason)

    def _arrive(self, node: Node, worker: str, found: ToWorker) -> None:
        if worker in node.apps:
            for answer in node.apps[worker](found.parcel):
                self.send(node, answer)
        elif (machine := node.machine(worker)) is not None:
            self.tell(node, machine, Received(found.parcel.sender, addressed(found)))

    def _cross(self, node: Node, peer: str, parcel: Parcel) -> None:
        link = self.links[frozenset((node.name, peer))]
        self.carried.append((node.name, peer, parcel))
        if self.random.random() < link.loss:
            return
        for _ in range(2 if self.random.random() < link.double else 1):
            delay_s = self.random.uniform(*link.delay_s)
            self.clock.after(delay_s, "crosses", self.send, self.nodes[peer], arrived_from(node.name, parcel))

    # -- time

    def run(self, seconds: float) -> None:
        self.clock.run_until(self.now + seconds, self._next_deadline, self._run_timers)

    def _next_deadline(self) -> float | None:
        deadlines = (node.interpreter.next_deadline() for node in self.nodes.values())
        return min((at for at in deadlines if at is not None), default=None)

    def _run_timers(self) -> None:
        for node in self.nodes.values():
            node.interpreter.run_timers()
