"""A small network of nodes for tests: parcels find their way by their routes, over links that lose, double and reorder.

Time is virtual and everything by chance comes from one seed, so a failing run fails again.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, Protocol

from semel.kernel.effects import Effect, Event, Machine, Notify, Received, Send
from semel.pipes.services.channel import addressed
from semel.pipes.workers.route import Astray, Parcel, Router, ToNode, ToWorker, arrived_from


class Addressed(Machine, Protocol):
    @property
    def addresses(self) -> tuple[str, ...]: ...


@dataclass
class Link:
    loss: float = 0.0
    double: float = 0.0
    delay_s: tuple[float, float] = (0.01, 0.01)


@dataclass
class Node:
    """`apps` are plain workers: a function that gets a parcel and says what to send."""

    name: str
    machines: list[Addressed] = field(default_factory=list)
    apps: dict[str, Callable[[Parcel], list[Parcel]]] = field(default_factory=dict)
    forwarders: set[str] = field(default_factory=set)

    def machine(self, address: str) -> Addressed | None:
        return next((machine for machine in self.machines if address in machine.addresses), None)


class Net:
    def __init__(self, seed: int = 0) -> None:
        self.now = 0.0
        self.random = Random(seed)
        self.nodes: dict[str, Node] = {}
        self.links: dict[frozenset[str], Link] = {}
        self.notes: list[Notify] = []
        self.astray: list[str] = []
        self.carried: list[tuple[str, str, Parcel]] = []
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0

    def node(self, name: str) -> Node:
        self.nodes[name] = Node(name)
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
        self._perform(node, machine.start(self.now))

    def tell(self, node: Node, machine: Addressed, event: Event) -> None:
        self._perform(node, machine.receive(event, self.now))

    def _perform(self, node: Node, effects: Any) -> None:
        effect: Effect
        for effect in effects:
            match effect:
                case Send(message=Parcel() as parcel):
                    self.send(node, parcel)
                case Notify():
                    self.notes.append(effect)
                case _:
                    raise AssertionError(f"a channel does not ask for {effect}")

    # -- parcels

    def send(self, node: Node, parcel: Parcel) -> None:
        workers = {*node.apps, *(address for machine in node.machines for address in machine.addresses)}
        peers = [name for name in self.nodes if frozenset((node.name, name)) in self.links]
        match Router(workers, node.forwarders, peers).route(parcel):
            case ToWorker(worker=worker) as found:
                self.after(0.0, lambda: self._arrive(node, worker, found))
            case ToNode(node=peer, parcel=onward):
                self._cross(node, peer, onward)
            case Astray(reason=reason):
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
            arrives = lambda: self.send(self.nodes[peer], arrived_from(node.name, parcel))  # noqa: E731
            self.after(self.random.uniform(*link.delay_s), arrives)

    # -- time

    def after(self, delay_s: float, do: Callable[[], None]) -> None:
        self._order += 1
        heapq.heappush(self._due, (self.now + delay_s, self._order, do))

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while (at := self._next()) is not None and at <= until:
            self.now = max(self.now, at)
            if self._due and self._due[0][0] <= self.now:
                heapq.heappop(self._due)[2]()
            else:
                self._timers()
        self.now = until

    def _next(self) -> float | None:
        times = [
            at for node in self.nodes.values() for each in node.machines if (at := each.next_deadline()) is not None
        ]
        return min([*times, *(due[0] for due in self._due[:1])], default=None)

    def _timers(self) -> None:
        for node in self.nodes.values():
            for machine in list(node.machines):
                deadline = machine.next_deadline()
                if deadline is not None and deadline <= self.now:
                    self._perform(node, machine.on_timer(self.now))
