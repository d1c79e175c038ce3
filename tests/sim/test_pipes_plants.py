"""Every known mistake of pipes is noticed: the same scenario holds without it and fails with it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

import semel.testing.pipe_plants  # noqa: F401  (adds the plants of pipes to the others)
from semel.errors import LimitExceeded
from semel.kernel.effects import Deliver, Delivered, Effect, Received, Send
from semel.kernel.envelope import Envelope
from semel.kernel.hop import Message
from semel.pipes.language.notation import parse_path
from semel.pipes.workers.build import APP, build
from semel.pipes.workers.stage import Stage
from semel.sim.pipes import Simulated, simulate
from semel.testing.plants import PLANTS, planted

Scenario = Callable[[], bool]


def _all_arrive(text: str, *, spacing_s: float | None = None, handler_fails: float = 0.0) -> bool:
    return all(copies > 0 for copies in _simulated(text, spacing_s, handler_fails).copies)


def _none_twice(text: str) -> bool:
    return all(copies < 2 for copies in _simulated(text).copies)


def _in_order(text: str, *, spacing_s: float) -> bool:
    found = _simulated(text, spacing_s)
    return found.unique == found.sent and not found.disorder


def _ends(text: str, *, spacing_s: float) -> bool:
    """It comes to rest, and everything has arrived."""
    try:
        return _all_arrive(text, spacing_s=spacing_s)
    except LimitExceeded:
        return False


def _simulated(text: str, spacing_s: float | None = None, handler_fails: float = 0.0) -> Simulated:
    path = parse_path(text)
    return simulate(
        path, messages=60, seed=5, spacing_s=spacing_s, handler_fails=handler_fails, events_max=20_000
    )  # fmt: skip


def _early_ones_survive_a_restart() -> bool:
    """The first of three is lost, the other two wait in the buffer of a worker that is then started anew."""
    built = build(parse_path("A -[retries=inf,window=3,dedup=strict]-> B"))
    sender, receiver = Stage(built.worker("A").config, "a1"), Stage(built.worker("B").config, "b1")
    for number in (1, 2, 3):
        sent = sender.receive(Received(APP, Envelope(str(number))), 0.0)
        if number > 1:
            _exchange(sender, receiver, sent, 0.0)
    receiver = Stage(built.worker("B").config, "b2")
    return _exchange(sender, receiver, sender.on_timer(1.0), 1.0) == ["1", "2", "3"]


def _exchange(sender: Stage, receiver: Stage, sent: list[Effect], now: float) -> list[str]:
    """Carry what was sent to the receiver, and its confirms back. Returns what it has delivered."""
    delivered: list[str] = []
    for effect in sent:
        assert isinstance(effect, Send)
        assert isinstance(effect.message, Message)
        answers = list(receiver.receive(Received("A", effect.message), now))
        for answer in answers:
            if isinstance(answer, Deliver):
                delivered.append(answer.item.envelope.id)
                answers += receiver.receive(Delivered(answer.token), now)
            elif isinstance(answer, Send):
                sender.receive(Received("B", answer.message), now)
    return delivered


SCENARIOS: dict[str, Scenario] = {
    "pipe-newest-confirm-only": partial(_ends, "A -[retries=inf,timeout=1,delay=0.8]-> B", spacing_s=100),
    "pipe-constant-reference": partial(
        _all_arrive, "A -[loss=0.3,retries=inf,window=4,timeout=1,delay=0.1]-> B", spacing_s=0.05
    ),
    "pipe-confirm-before-handling": partial(_all_arrive, "A -[retries=inf,confirm=processing]-> B{crash=0.3}"),
    "pipe-cascade-confirms-early": partial(_all_arrive, "A -[retries=inf,confirm=cascade]-> B -[loss=0.3]-> C"),
    "pipe-early-one-confirmed": _early_ones_survive_a_restart,
    "pipe-index-passes-over-error": partial(
        _all_arrive, "A -[retries=inf,confirm=processing,dedup=index]-> B", handler_fails=0.3
    ),
    "pipe-dedup-swallows-resend": partial(
        _all_arrive, "A -[retries=inf,confirm=cascade,dedup=id]-> B -[loss=0.4]-> C"
    ),
    "index-dedup-off-by-one": partial(_none_twice, "A -[confirm_loss=0.4,retries=inf,dedup=index]-> B"),
    "resend-reordered": partial(_in_order, "A -[loss=0.3,retries=inf,timeout=1]-> B", spacing_s=0.2),
}  # fmt: skip


@pytest.mark.sim
@pytest.mark.parametrize("name", SCENARIOS)
def test_the_scenario_holds_and_fails_with_the_mistake(name: str) -> None:
    holds = SCENARIOS[name]
    assert holds()
    with planted(name):
        assert not holds()
    assert holds()


def test_every_mistake_of_pipes_has_a_scenario() -> None:
    assert {plant.name for plant in PLANTS.values() if plant.caught_by == "pipes"} <= set(SCENARIOS)
