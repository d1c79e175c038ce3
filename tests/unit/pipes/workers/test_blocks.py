"""Each building block promises what it says: it is run, as stages, over links that lose, double and reorder."""

from __future__ import annotations

import heapq
import inspect
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.kernel.effects import Deliver, Delivered, Effect, Machine, Notify, Received, Resume, Send
from semel.kernel.envelope import Envelope
from semel.kernel.hop import HopMessage
from semel.pipes.language.options import ConfirmOn
from semel.pipes.workers import blocks
from semel.pipes.workers.blocks import (
    Ends,
    Ordering,
    confirm_pipe,
    continuous,
    durable_pipe,
    id_dedup,
    index_dedup,
    ordering_pipe,
    reliable_dedup_pipe,
    resend_pipe,
    strict,
    weaken,
)
from semel.pipes.workers.durable import DurableStage
from semel.pipes.workers.stage import Stage
from unit.kernel.bench import Bench

IDS = [f"m{number:02d}" for number in range(40)]
SEEDS = range(6)
Block = Callable[[str, str], Ends]


class Wire:
    """Two machines with a hostile link between them, in virtual time."""

    def __init__(
        self, ends: Ends, seed: int = 0, *, loss: float = 0.3, double: float = 0.2, delay_s: Sequence[float] = (0, 0.3)
    ) -> None:
        self.now = 0.0
        self.random = Random(seed)
        self.loss, self.double, self.delay_s = loss, double, delay_s
        self.machines: dict[str, Machine] = {
            ends.sender.name: Stage(ends.sender, "s1"),
            ends.receiver.name: Stage(ends.receiver, "r1"),
        }
        self.taken: list[str] = []
        self.notes: list[str] = []
        self._due: list[tuple[float, int, str, Any]] = []
        self._order = 0

    def offer(self, ids: Sequence[str]) -> None:
        for id in ids:
            self.perform("A", self.machines["A"].receive(Received("app", Envelope(id)), self.now))

    def perform(self, name: str, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send(peer=peer, message=message):
                    self._put_on_way(name, peer, message)
                case Deliver(item=item, token=token):
                    self.taken.append(item.envelope.id)
                    self.perform(name, self.machines[name].receive(Delivered(token), self.now))
                case Notify(topic=topic):
                    self.notes.append(topic)

    def _put_on_way(self, sender: str, peer: str, message: Any) -> None:
        if self.random.random() < self.loss:
            return
        for _ in range(2 if self.random.random() < self.double else 1):
            self._order += 1
            at = self.now + self.random.uniform(*self.delay_s)
            heapq.heappush(self._due, (at, self._order, peer, Received(sender, message)))

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while (at := self._next()) is not None and at <= until:
            self.now = max(self.now, at)
            if self._due and self._due[0][0] <= self.now:
                _, _, name, event = heapq.heappop(self._due)
                self.perform(name, self.machines[name].receive(event, self.now))
                continue
            for name, machine in self.machines.items():
                deadline = machine.next_deadline()
                if deadline is not None and deadline <= self.now:
                    self.perform(name, machine.on_timer(self.now))
        self.now = until

    def _next(self) -> float | None:
        deadlines = [at for machine in self.machines.values() if (at := machine.next_deadline()) is not None]
        return min([*deadlines, *(due[0] for due in self._due[:1])], default=None)


def sent_through(block: Block, seed: int, **weather: Any) -> Wire:
    wire = Wire(block("A", "B"), seed, **weather)
    wire.offer(IDS)
    wire.run(300)
    return wire


def is_unique(ids: Sequence[str]) -> bool:
    return len(set(ids)) == len(ids)


# -- one by one


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("window", [1, 8])
@pytest.mark.parametrize("confirm", [ConfirmOn.RECEIPT, ConfirmOn.PROCESSING])
def test_resend_pipe_loses_nothing_and_doubles(seed: int, window: int, confirm: ConfirmOn) -> None:
    wire = sent_through(partial(resend_pipe, window=window, confirm=confirm), seed)
    assert set(wire.taken) == set(IDS)
    assert not is_unique(wire.taken)
    if window == 1:
        assert list(dict.fromkeys(wire.taken)) == IDS


def test_resend_pipe_with_few_retries_gives_up_and_goes_on() -> None:
    wire = sent_through(partial(resend_pipe, window=4, retries=1), 1, loss=0.6)
    assert 0 < len(set(wire.taken)) < len(IDS)
    assert "given-up" in wire.notes


@pytest.mark.parametrize("seed", SEEDS)
def test_confirm_pipe_stops_at_a_loss_and_leaves_no_gap(seed: int) -> None:
    wire = sent_through(partial(confirm_pipe, timeout_s=5.0), seed, double=0.0)
    assert wire.taken == IDS[: len(wire.taken)]
    assert len(wire.taken) < len(IDS)
    assert wire.notes == ["suspended"]
    wire.loss = 0.0
    wire.perform("A", wire.machines["A"].receive(Resume(), wire.now))
    wire.run(100)
    assert list(dict.fromkeys(wire.taken)) == IDS


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("block", [id_dedup, index_dedup, strict])
def test_dedups_by_themselves_lose_and_do_not_double(block: Block, seed: int) -> None:
    wire = sent_through(block, seed, double=0.6)
    assert is_unique(wire.taken)
    assert 0 < len(wire.taken) < len(IDS)
    if block is not id_dedup:
        assert wire.taken == sorted(wire.taken)


@pytest.mark.parametrize("seed", SEEDS)
def test_id_dedup_forgets_as_it_was_told(seed: int) -> None:
    wire = sent_through(partial(id_dedup, size=1), seed, loss=0.0, double=0.9)
    assert not is_unique(wire.taken)


@pytest.mark.parametrize("seed", SEEDS)
def test_strict_puts_back_in_order_what_index_dedup_loses(seed: int) -> None:
    weather = {"loss": 0.0, "double": 0.3}
    assert sent_through(strict, seed, **weather).taken == IDS
    assert len(sent_through(index_dedup, seed, **weather).taken) < len(IDS) / 2


@pytest.mark.parametrize("seed", SEEDS)
def test_continuous_leaves_no_gap_and_stops_at_a_loss(seed: int) -> None:
    wire = sent_through(continuous, seed)
    assert wire.taken == IDS[: len(wire.taken)]
    assert len(wire.taken) < len(IDS)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("window", [1, 16])
@pytest.mark.parametrize("confirm", [ConfirmOn.RECEIPT, ConfirmOn.PROCESSING])
def test_ordering_pipe_is_absolute(seed: int, window: int, confirm: ConfirmOn) -> None:
    assert sent_through(partial(ordering_pipe, window=window, confirm=confirm), seed).taken == IDS


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("confirm", [ConfirmOn.RECEIPT, ConfirmOn.PROCESSING])
def test_reliable_dedup_pipe_loses_nothing_and_doubles_nothing(seed: int, confirm: ConfirmOn) -> None:
    wire = sent_through(partial(reliable_dedup_pipe, confirm=confirm), seed)
    assert sorted(wire.taken) == IDS
    assert sent_through(partial(reliable_dedup_pipe, window=1), seed).taken == IDS


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_durable_pipe_outlives_both_ends(seed: int, ordered: bool) -> None:
    """Each end on a store of its own; both are built again from it again and again."""
    random = Random(seed)
    ends = durable_pipe("A", "B", window=4, ordered=ordered)
    benches = {"A": Bench(), "B": Bench()}
    configs = {"A": ends.sender, "B": ends.receiver}
    assert ends.durable

    def start(name: str) -> None:
        benches[name].add(DurableStage(configs[name], benches[name].store))

    for name in benches:
        start(name)
    pending = list(IDS)
    for step in range(400):
        if step > 300:
            pending += [id for id in IDS if id not in benches["B"].delivered and id not in pending]
        if pending:
            seat = benches["A"].interpreter.seat("A")
            assert seat is not None
            benches["A"].interpreter.feed(seat, Received("app", Envelope(pending.pop(0))))
            benches["A"].run()
        for near, far in (("A", "B"), ("B", "A")):
            sent = benches[near].wires.pop(far, [])
            random.shuffle(sent)
            for _, message in sent:
                seat = benches[far].interpreter.seat(far)
                assert seat is not None
                for _ in range(random.choice((0, 1, 1, 2)) if step < 300 else 1):
                    benches[far].interpreter.feed(seat, Received(near, message))
            benches[far].run()
        if random.random() < 0.1 and step < 300:
            start(random.choice("AB"))
        for bench in benches.values():
            bench.wait(0.5)
    assert sorted(benches["B"].delivered) == IDS
    if ordered:
        assert benches["B"].delivered == IDS


# -- words


def test_every_block_says_what_it_promises_and_what_not() -> None:
    made = [
        each
        for name, each in inspect.getmembers(blocks, inspect.isfunction)
        if each.__module__ == blocks.__name__ and not name.startswith("_") and each is not weaken
    ]
    assert len(made) == 9
    for block in made:
        assert block.__doc__
        assert "It does not" in block.__doc__
        assert isinstance(block("A", "B"), Ends)


def test_the_two_ends_belong_together() -> None:
    for block in (resend_pipe, confirm_pipe, id_dedup, ordering_pipe, durable_pipe):
        ends = block("A", "B")
        assert ends.sender.outlets[0].peer == ends.receiver.name == "B"
        assert ends.receiver.inlets[0].peers == (ends.sender.name,)
        assert ends.sender.outlets[0].hop == ends.receiver.inlets[0].hop == "A>B"
        waits = ends.sender.outlets[0].resend is not None
        assert (ends.receiver.inlets[0].confirm is not None) == waits


def test_what_pipelining_leaves_of_an_order() -> None:
    assert weaken(Ordering.MONOTONIC, Ordering.CONTINUOUS) is Ordering.MONOTONIC
    assert weaken(Ordering.STRICT, Ordering.CONTINUOUS) is Ordering.MONOTONIC
    assert weaken(Ordering.STRICT, Ordering.NONE) is Ordering.NONE
    assert weaken(Ordering.ABSOLUTE, Ordering.STRICT) is Ordering.STRICT


orderings = st.sampled_from(Ordering)


@given(orderings, orderings, orderings)
def test_weakening_has_no_order_of_its_own(a: Ordering, b: Ordering, c: Ordering) -> None:
    assert weaken(a, b) is weaken(b, a)
    assert weaken(a, weaken(b, c)) is weaken(weaken(a, b), c)
    assert weaken(a, a) is a
    assert weaken(a, Ordering.ABSOLUTE) is a
    assert weaken(a, b).value <= a.value


def test_the_first_stage_takes_messages_of_stages_before_it() -> None:
    wire = Wire(ordering_pipe("A", "B"), loss=0.0, double=0.0)
    wire.perform("A", wire.machines["A"].receive(Received("Z", HopMessage("z/1", Envelope("a"), 1)), 0.0))
    wire.run(1)
    assert wire.taken == ["a"]


@pytest.mark.parametrize("block", [resend_pipe, ordering_pipe, reliable_dedup_pipe, durable_pipe])
def test_waits_may_grow_and_spread(block: Callable[..., Ends]) -> None:
    (fixed,), (growing,) = block("S", "R").sender.outlets, block("S", "R", backoff=2.0, jitter=0.25).sender.outlets
    assert fixed.resend is not None
    assert growing.resend is not None
    attempts = (1, 2, 3, 99)
    assert [fixed.resend.retry.wait_s(attempt, 0.5) for attempt in attempts] == [1.0] * 4
    assert [growing.resend.retry.wait_s(attempt, 0.0) for attempt in attempts] == [2.0, 4.0, 8.0, 60.0]
    assert growing.resend.retry.jitter == 0.25
