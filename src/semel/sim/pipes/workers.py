"""The workers of a simulated path: the production machines, volatile or on a memory store, and how they die."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from semel.kernel.effects import (
    Close,
    Deliver,
    Delivered,
    DeliverFailed,
    Effect,
    Event,
    Notify,
    Send,
)
from semel.kernel.effects import Resume as ResumeEvent
from semel.kernel.group import CommitGroup
from semel.kernel.hop import AskForGap, Confirm
from semel.kernel.interpreter import Seat
from semel.kernel.ledger import Kind
from semel.kernel.ops import Append, Applied, Duplicate, Fresh, Log, Op, Outcome
from semel.pipes.language.options import DedupBy
from semel.pipes.workers.build import WorkerPlan
from semel.pipes.workers.durable import DurableStage
from semel.pipes.workers.stage import Stage
from semel.sim.process import Process
from semel.stores.memory import MemoryStore

Hops = dict[str, "Counter[Kind]"]


class Surroundings(Protocol):
    """What a worker needs of the world."""

    now: float

    def strikes(self, probability: float) -> bool: ...

    def send(self, worker: str, peer: str, message: Any) -> None: ...

    def handle(self, id: str) -> bool:
        """The application's handler. False: it failed."""
        ...


class Volatile:
    """A stage in memory. When it dies, a new one with a new run takes its place."""

    def __init__(self, plan: WorkerPlan, world: Surroundings, hops: Hops) -> None:
        self.name = plan.config.name
        self._config = plan.config
        self._crash = plan.crash
        self._world = world
        self._hops = hops
        self._lives = 0
        self.has_timers = any(outlet.resend is not None for outlet in plan.config.outlets) or any(
            inlet.dedup is DedupBy.STRICT for inlet in plan.config.inlets
        )
        self._begin()

    def _begin(self) -> None:
        self._lives += 1
        self.machine = Stage(self._config, f"{self.name}.{self._lives}")
        self.next_deadline = self.machine.next_deadline

    def receive(self, event: Event, *, in_danger: bool) -> None:
        """`in_danger`: it may die with what it has just received."""
        machine = self.machine
        if not in_danger or not self._crash:
            self.perform(machine.receive(event, self._world.now))
            return
        before = machine.unconfirmed
        sent = {outlet.meter.hop: Counter(outlet.meter.counts) for outlet in machine.outlets}
        effects = machine.receive(event, self._world.now)
        passes_on = machine.unconfirmed > before or any(_is_data(effect) for effect in effects)
        if passes_on and self._world.strikes(self._crash):
            self._die(effects, sent)
        else:
            self.perform(effects)

    def _die(self, effects: Sequence[Effect], sent: Hops) -> None:
        """What it confirms on receipt it has confirmed; what it would have passed on dies with it, unsent."""
        self._count_arrivals()
        self._add(sent)
        self._begin()
        self.perform([effect for effect in effects if isinstance(effect, Send) and _is_answer(effect.message)])

    def run_timers(self) -> None:
        self.perform(self.machine.on_timer(self._world.now))

    def perform(self, effects: Sequence[Effect]) -> None:
        world = self._world
        for effect in effects:
            if type(effect) is Send:
                world.send(self.name, effect.peer, effect.message)
            elif type(effect) is Deliver:
                handled = world.handle(effect.item.envelope.id)
                event = Delivered(effect.token) if handled else DeliverFailed(effect.token, "the handler failed")
                self.perform(self.machine.receive(event, world.now))

    def count(self) -> None:
        """Add what the meters have counted in this life."""
        self._count_arrivals()
        self._add({outlet.meter.hop: outlet.meter.counts for outlet in self.machine.outlets})

    def _count_arrivals(self) -> None:
        for inlet in self.machine.inlets:
            self._add({inlet.meter.hop: inlet.meter.counts})

    def _add(self, counts: Mapping[str, Mapping[Kind, int]]) -> None:
        for hop, found in counts.items():
            self._hops.setdefault(hop, Counter()).update(found)


class Durable(Process):
    """A durable stage in the production interpreter, on a memory store that survives it.

    When it dies, it has committed what it was receiving and confirmed nothing of it. Should it stand suspended after
    its retries, somebody lets it go on at once.
    """

    has_timers = True

    def __init__(self, plan: WorkerPlan, world: Surroundings, hops: Hops) -> None:
        self.name = plan.config.name
        self._config = plan.config
        self._crash = plan.crash
        self._world = world
        self._hops = hops
        self._outlets = {outlet.peer: outlet.hop for outlet in plan.config.outlets}
        self._sent: set[tuple[str, str]] = set()
        self.store = MemoryStore(node=self.name, clock=lambda: int(world.now * 1_000_000))
        self._jobs: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        super().__init__(lambda: world.now)
        self._start()

    def _start(self) -> None:
        self._jobs.clear()
        self._dying = False
        self.begin(lambda: self._world.now)
        self.next_deadline = self.interpreter.next_deadline
        self._seat = self.interpreter.add(DurableStage(self._config, self.store))
        self._settle()

    def receive(self, event: Event, *, in_danger: bool) -> None:
        self._dying = in_danger and self._world.strikes(self._crash)
        self.interpreter.feed(self._seat, event)
        self._settle()
        if self._dying:
            self._start()

    def run_timers(self) -> None:
        self.interpreter.run_timers()
        self._settle()

    def soon(self, do: Callable[..., None], *args: Any) -> None:
        self._jobs.append((do, args))

    def _settle(self) -> None:
        """One thing after the other, each when the interpreter is done with the last one."""
        while self._jobs:
            do, args = self._jobs.popleft()
            do(*args)

    def count(self) -> None: ...

    # -- the interpreter's driver

    def land(self, group: CommitGroup) -> None:
        outcomes = self.store.commit(group.units)
        self._count_arrivals(group, outcomes)
        if self._dying:
            self._jobs.clear()
            return
        self.interpreter.committed(group, outcomes)
        self.soon(self.interpreter.wake)

    def send(self, seat: Seat, effect: Send) -> None:
        if not _is_answer(effect.message):
            self._count_sent(effect.peer, effect.message.delivery)
        self._world.send(self.name, effect.peer, effect.message)

    def handle(self, item: Any) -> tuple[Op, ...]:
        if not self._world.handle(item.envelope.id):
            raise RuntimeError("the handler failed")
        return ()

    def notify(self, seat: Seat, effect: Notify) -> None:
        if effect.topic == "suspended":
            self.soon(self.interpreter.feed, seat, ResumeEvent())

    def closed(self, seat: Seat, effect: Close) -> None:
        self.soon(self._start)

    # -- counting: a durable stage keeps no meters, its ledger does

    def _count_sent(self, peer: str, delivery: str) -> None:
        again = (peer, delivery) in self._sent
        self._sent.add((peer, delivery))
        self._hops.setdefault(self._outlets[peer], Counter())[Kind.RESENT if again else Kind.SENT] += 1

    def _count_arrivals(self, group: CommitGroup, outcomes: Sequence[Outcome]) -> None:
        for unit, outcome in zip(group.units, outcomes, strict=True):
            if not isinstance(outcome, Applied):
                continue
            for op, result in zip(unit.ops, outcome.results, strict=True):
                if isinstance(op, Append) and op.on_duplicate is not None and isinstance(result, Fresh | Duplicate):
                    kind = Kind.ACCEPTED if isinstance(result, Fresh) else Kind.DUPLICATE
                    self._hops.setdefault(op.on_duplicate.hop, Counter())[kind] += 1
                elif isinstance(op, Log) and op.event.kind in (Kind.DUPLICATE, Kind.DROPPED):
                    self._hops.setdefault(op.event.hop, Counter())[op.event.kind] += 1


def _is_answer(message: Any) -> bool:
    return isinstance(message, Confirm | AskForGap)


def _is_data(effect: Effect) -> bool:
    return isinstance(effect, Deliver) or (isinstance(effect, Send) and not _is_answer(effect.message))
