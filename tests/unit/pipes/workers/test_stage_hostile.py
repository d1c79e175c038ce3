"""Stages over a link that loses, doubles and reorders, while either end may be started again at any time.

What may never happen, whatever does: a confirm for something that was not handled, a strict inlet that lets pass out of
order or twice, more unconfirmed messages than the window allows. And once the link is quiet, everything that a sender
still has comes through.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from semel.kernel.effects import Deliver, Delivered, DeliverFailed, Effect, Received, Send
from semel.kernel.envelope import Envelope
from semel.kernel.hop import Confirm, HopMessage
from semel.pipes.language.notation import parse_path
from semel.pipes.language.options import DedupBy
from semel.pipes.workers.build import APP, build
from semel.pipes.workers.stage import Stage

FEW = settings(max_examples=60, stateful_step_count=60)
SELDOM = st.sampled_from((False,) * 7 + (True,))
"""If it came as often as the rest, nothing would live long enough to go wrong."""


class Hostile(RuleBasedStateMachine):
    """A path of stages. Wires hold what is under way; each rule lets one thing happen."""

    text = ""
    window = 1
    fails = True
    """Whether the handler may fail. Where nobody sends again what failed, it may not."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.lives = 0
        self.offered = 0
        self.wires: list[tuple[str, str, Any]] = []
        self.working: list[tuple[str, int, str]] = []
        self.handled: Counter[str] = Counter()
        self.handled_by_last: Counter[str] = Counter()
        """By the last worker as it lives now."""
        self.confirmed: set[str] = set()
        self.in_flight: dict[str, str] = {}
        self.passed: list[tuple[str, int]] = []
        self.kept: set[str] = set()
        self.ids: dict[tuple[str, int], str] = {}
        self.built = build(parse_path(self.text))
        self.stages: dict[str, Stage] = {}
        for worker in self.built.workers:
            self.start(worker.config.name)

    def start(self, name: str) -> None:
        self.lives += 1
        self.stages[name] = Stage(self.built.worker(name).config, f"{name}.{self.lives}")

    # -- rules

    @rule()
    def offer(self) -> None:
        self.offered += 1
        self.kept.add(str(self.offered))
        self.feed(self.built.first, APP, Envelope(str(self.offered)))

    @precondition(lambda self: self.wires)
    @rule(data=st.data(), fate=st.sampled_from(("arrives", "arrives", "twice", "lost")))
    def carry(self, data: st.DataObject, fate: str) -> None:
        at = data.draw(st.integers(0, len(self.wires) - 1))
        sender, receiver, message = self.wires[at]
        if fate != "twice":
            del self.wires[at]
        if fate != "lost":
            self.feed(receiver, sender, message)

    @precondition(lambda self: self.wires)
    @rule()
    def carry_all(self) -> None:
        wires, self.wires = self.wires, []
        for sender, receiver, message in wires:
            self.feed(receiver, sender, message)

    @precondition(lambda self: self.working)
    @rule(data=st.data(), good=st.booleans())
    def handler_returns(self, data: st.DataObject, good: bool) -> None:
        worker, token, id = self.working.pop(data.draw(st.integers(0, len(self.working) - 1)))
        self.finish(worker, token, id, good or not self.fails)

    @rule(data=st.data())
    def time_passes(self, data: st.DataObject) -> None:
        self.now += 1.0
        self.fire(data.draw(st.sampled_from(sorted(self.stages))))

    @rule(data=st.data(), happens=SELDOM)
    def restart(self, data: st.DataObject, happens: bool) -> None:
        if not happens:
            return
        name = data.draw(st.sampled_from(sorted(self.stages)))
        self.start(name)
        self.working = [each for each in self.working if each[0] != name]
        if name == self.built.first:
            self.kept.clear()
            self.in_flight.clear()
        if name == self.built.last:
            self.last_started_anew()

    def last_started_anew(self) -> None:
        self.passed.clear()
        self.handled_by_last.clear()

    # -- what must hold at all times

    @invariant()
    def what_is_confirmed_was_handled(self) -> None:
        assert self.confirmed <= set(self.handled)

    @invariant()
    def no_more_than_the_window_is_unconfirmed(self) -> None:
        assert len(self.in_flight) <= self.window

    @invariant()
    def with_a_memory_nothing_is_handled_twice(self) -> None:
        if self.built.worker(self.built.last).config.inlets[-1].dedup is not DedupBy.NONE:
            assert all(times == 1 for times in self.handled_by_last.values())

    @invariant()
    def strict_means_once_and_in_order(self) -> None:
        if self.built.worker(self.built.last).config.inlets[-1].dedup is not DedupBy.STRICT:
            return
        for run in {run for run, _ in self.passed}:
            indexes = [index for at, index in self.passed if at == run]
            assert indexes == sorted(set(indexes))
            left_out = set(range(indexes[0], indexes[-1])) - set(indexes)
            assert {self.ids[run, index] for index in left_out} <= self.confirmed, "only what a former life has handled"

    def teardown(self) -> None:
        """The link is good from now on: what the sender still has comes through."""
        for _ in range(100):
            if not self.step() and not any(stage.unconfirmed for stage in self.stages.values()):
                break
        assert self.kept <= set(self.handled)
        assert not any(stage.unconfirmed for stage in self.stages.values())

    def step(self) -> bool:
        """Carry and handle all there is, then let the time run out. False when nothing was there."""
        found = bool(self.wires or self.working)
        while self.wires or self.working:
            if self.wires:
                sender, receiver, message = self.wires.pop(0)
                self.feed(receiver, sender, message)
            else:
                self.finish(*self.working.pop(0), good=True)
        self.now += 1.0
        for name in self.stages:
            self.fire(name)
        return found

    # -- the world around the stages

    def feed(self, name: str, peer: str, message: Any) -> None:
        if name == self.built.first and isinstance(message, Confirm):
            for delivery in message.deliveries:
                id = self.in_flight.pop(delivery, None)
                self.confirmed |= {id} if id is not None else set()
        self.perform(name, self.stages[name].receive(Received(peer, message), self.now))

    def fire(self, name: str) -> None:
        deadline = self.stages[name].next_deadline()
        if deadline is not None and deadline <= self.now:
            self.perform(name, self.stages[name].on_timer(self.now))

    def finish(self, worker: str, token: int, id: str, good: bool) -> None:
        if good:
            self.handled[id] += 1
            self.handled_by_last[id] += 1
        event = Delivered(token) if good else DeliverFailed(token, "not today")
        self.perform(worker, self.stages[worker].receive(event, self.now))

    def perform(self, name: str, effects: Any) -> None:
        for effect in effects:
            self.perform_one(name, effect)

    def perform_one(self, name: str, effect: Effect) -> None:
        if isinstance(effect, Deliver):
            self.working.append((name, effect.token, effect.item.envelope.id))
        elif isinstance(effect, Send):
            if name == self.built.first and isinstance(effect.message, HopMessage):
                self.in_flight[effect.message.delivery] = effect.message.envelope.id
            self.wires.append((name, effect.peer, effect.message))


class Processing(Hostile):
    text = "A -[retries=inf,window=3,confirm=processing]-> B"
    window = 3


class ProcessingOnceById(Hostile):
    text = "A -[retries=inf,window=3,confirm=processing,dedup=id]-> B"
    window = 3


class ProcessingByIndex(Hostile):
    """One at a time: with more under way, an index that comes late is dropped, and said to be."""

    text = "A -[retries=inf,confirm=processing,dedup=index]-> B"


class Strict(Hostile):
    text = "A -[retries=inf,window=3,confirm=processing,dedup=strict]-> B"
    window = 3

    def perform_one(self, name: str, effect: Effect) -> None:
        super().perform_one(name, effect)
        if isinstance(effect, Deliver) and effect.attempt == 1:
            self.passed.append((self.runs[effect.item.envelope.id], effect.item.position.offset))

    def finish(self, worker: str, token: int, id: str, good: bool) -> None:
        if good:
            self.finished.append((self.runs[id], id))
        super().finish(worker, token, id, good)

    def last_started_anew(self) -> None:
        super().last_started_anew()
        self.finished.clear()

    @invariant()
    def what_fails_is_not_overtaken(self) -> None:
        for run in {run for run, _ in self.finished}:
            ids = [int(id) for at, id in self.finished if at == run]
            assert ids == sorted(ids)

    def feed(self, name: str, peer: str, message: Any) -> None:
        if isinstance(message, HopMessage):
            run = self.runs[message.envelope.id] = message.delivery.rpartition("/")[0]
            self.ids[run, message.index] = message.envelope.id
        super().feed(name, peer, message)

    def __init__(self) -> None:
        self.runs: dict[str, str] = {}
        self.finished: list[tuple[str, str]] = []
        super().__init__()


class StrictOneByOne(Strict):
    text = "A -[retries=inf,confirm=processing,dedup=strict]-> B"
    window = 1


class Cascade(Hostile):
    text = "A -[retries=inf,window=2,confirm=cascade]-> B -> C"
    window = 2


class CascadeOnceById(Hostile):
    text = "A -[retries=inf,window=2,confirm=cascade,dedup=id]-> B -[dedup=id]-> C"
    window = 2


class CascadeOverRetries(Hostile):
    text = "A -[retries=inf,window=2,confirm=cascade,dedup=id]-> B -[retries=1,confirm=cascade]-> C"
    window = 2


class CascadeOverBranches(Hostile):
    text = "A -[retries=inf,confirm=cascade]-> B ( -[retries=1,confirm=cascade]-> X -> | -> ) C"


class AroundAMiddle(Hostile):
    text = "A -[retries=inf,confirm=cascade]-> (P1 -[retries=1]-> X -> P2){retries=1,confirm=cascade} -> C"


class OnReceipt(Hostile):
    """Confirmed is not handled here, and a crash loses it: only the window and the end are checked."""

    text = "A -[retries=inf,window=2]-> B"
    window = 2
    fails = False

    def what_is_confirmed_was_handled(self) -> None: ...

    def restart(self) -> None: ...


TestProcessing = Processing.TestCase
TestProcessingOnceById = ProcessingOnceById.TestCase
TestProcessingByIndex = ProcessingByIndex.TestCase
TestStrict = Strict.TestCase
TestStrictOneByOne = StrictOneByOne.TestCase
TestCascade = Cascade.TestCase
TestCascadeOnceById = CascadeOnceById.TestCase
TestCascadeOverRetries = CascadeOverRetries.TestCase
TestCascadeOverBranches = CascadeOverBranches.TestCase
TestAroundAMiddle = AroundAMiddle.TestCase
TestOnReceipt = OnReceipt.TestCase

for _machine in (*Hostile.__subclasses__(), StrictOneByOne):
    _machine.TestCase.settings = FEW
