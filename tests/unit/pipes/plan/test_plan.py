"""What a path promises: the closed forms, and the same path simulated."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from tests.unit.pipes.strategies import paths

from semel.calculus.figures import sigma
from semel.errors import ConfigError
from semel.pipes.language.notation import parse_path
from semel.pipes.language.path import Path
from semel.pipes.plan.curves import over_loss, over_retries
from semel.pipes.plan.elements import element
from semel.pipes.plan.plan import Plan, plan
from semel.sim.pipes import Simulated, simulate

SOURCE_EXAMPLE = "A -[loss=0.1,confirm_loss=0.05,retries=5]-> B -[dedup=id]-> C"
HALF = "loss=.5,confirm_loss=.5,retries=2"


def planned(text: str) -> Plan:
    return plan(parse_path(text))


# -- closed forms


@pytest.mark.parametrize(
    ("text", "reliability", "uniqueness"),
    [
        ("A", 1, 1),
        ("A -> B", 1, 1),
        ("A -[loss=.3]-> B", 0.7, 1),
        ("A -[loss=.5,confirm_loss=.5,retries=0]-> B", 0.5, 1),
        ("A -[loss=.5,confirm_loss=.5,retries=1]-> B", 0.75, 0.857142857),
        ("A -[loss=.5,confirm_loss=.5,retries=2]-> B", 0.875, 0.756756757),
        ("A -[loss=.5,confirm_loss=.5,retries=inf]-> B", 1, 0.5),
        ("A -[loss=.3,confirm_loss=.2,retries=2]-> B", 0.973, 0.850881),
        ("A -[loss=.3,repeats=2]-> B", 0.973, 0.973 / 2.1),
        ("A -[loss=.3,duplicate=.2]-> B", 0.7, 1 / 1.2),
        # at most once before at least once, and the other way round
        ("A -[loss=.3]-> B -[confirm_loss=.4,retries=inf]-> C", 0.7, 0.6),
        ("A -[confirm_loss=.4,retries=inf]-> B -[loss=.3]-> C", 0.7 / 0.88, 0.6 / 0.88),
        # dedup at the end, and between
        (f"A -[{HALF}]-> B -[{HALF},dedup=id]-> C", 0.793396, 1),
        (f"A -[{HALF},dedup=id]-> B -[{HALF}]-> C", 0.765625, 0.756757),
        (SOURCE_EXAMPLE, 1 - 1e-6, 1),
        ("A -[loss=.1 | loss=.3]-> B", 0.97, 0.60625),
        ("A -[loss=.2,confirm_loss=.1,retries=inf,confirm=cascade]-> B -[loss=.3,confirm_loss=.4]-> C", 1, 0.54),
        ("A -> (P1 -[loss=.1]-> X{crash=.05} -[loss=.2]-> P2){retries=inf} -> B", 1, 1),
        ("A -> (P1 -[loss=.1]-> X{crash=.05} -[loss=.2]-> P2){retries=1} -> B", 1 - 0.316**2, 1),
        ("A -> X{crash=.1} -> B", 0.9, 1),
        ("A -> X{crash=.1,durable=yes} -> B", 1, 1),
        ("A -[retries=3]-> X{crash=.1} -> B", 0.9, 1),
        ("A -[retries=3,confirm=processing]-> B{crash=.1}", 1 - 1e-4, 1),
        # index numbers are the hop's own: what came twice, goes twice
        ("A -[confirm_loss=.5,retries=inf]-> B -[dedup=index]-> C", 1, 0.5),
        ("A -[confirm_loss=.5,retries=inf]-> B -[dedup=id]-> C", 1, 1),
        ("A -[loss=1]-> B", 0, 1),
        ("A -[loss=1,retries=inf]-> B", 0, 1),
        ("A -[confirm_loss=1,retries=inf]-> B", 1, 0),
    ],
)  # fmt: skip
def test_the_closed_forms_come_out(text: str, reliability: float, uniqueness: float) -> None:
    found = planned(text)
    assert found.reliability == pytest.approx(reliability, abs=1e-6)
    assert found.uniqueness == pytest.approx(uniqueness, abs=1e-6)


def test_hops_have_their_own_figures_and_those_so_far() -> None:
    found = planned("A -[confirm_loss=.4,retries=inf]-> B -[loss=.3]-> C")
    first, second = found.hops
    assert (first.name, second.name) == ("A>B", "B>C")
    assert (first.mode, second.mode) == ("at least once", "at most once")
    assert second.alone.reliability == pytest.approx(0.7)
    assert second.so_far is not None
    assert second.so_far.reliability == pytest.approx(found.reliability)
    assert first.alone.attempts == pytest.approx(1 / 0.6)
    assert found.product.reliability == pytest.approx(0.7)
    assert found.product.reliability < found.reliability


def test_what_lies_inside_pipes_and_branches_is_told_too() -> None:
    pipe, branches = planned("(P1 -[loss=.1]-> X -> P2){retries=2} ( -> | -[loss=.2]-> Y -> ) B").hops
    assert [(each.name, each.alone.reliability) for each in pipe.inside] == [("P1>X", 0.9), ("X>P2", 1.0)]
    assert [each.name for each in branches.inside] == ["P2>B", "P2>Y", "Y>B"]
    assert (pipe.kind, branches.kind) == ("pipe", "branches")


def test_time_is_the_round_trip_and_the_timeouts() -> None:
    [hop] = planned("A -[loss=.5,retries=inf,delay=100ms,timeout=2s]-> B").hops
    assert hop.time_s == pytest.approx(0.2 + 1 * 2)
    assert planned("A -[delay=1s]-> B -[delay=2s]-> C").time_s == 3


def test_small_losses_keep_their_digits() -> None:
    found = element(parse_path("A -[loss=1e-12]-> B -[loss=1e-12]-> C"))
    assert found.apply(0.0, 0.0)[1] == pytest.approx(2e-12, rel=1e-9)


def test_the_result_is_plain_json_even_where_something_has_no_end() -> None:
    result = planned("A -[confirm_loss=1,retries=inf]-> B").as_dict()
    assert result["copies"] is None
    json.loads(json.dumps(result, allow_nan=False))


# -- against the machines


@pytest.mark.sim
@pytest.mark.parametrize(
    "text",
    [
        "A -[loss=.3,confirm_loss=.2,retries=2]-> B",
        "A -[loss=.5,confirm_loss=.5,retries=2]-> B -[loss=.5,confirm_loss=.5,retries=2,dedup=index]-> C",
        "A -[loss=.3,repeats=2,dedup=index]-> B -[duplicate=.3]-> C",
        "A -[loss=.2,confirm_loss=.1,retries=2,confirm=cascade]-> B -[loss=.3,confirm_loss=.4]-> C",
        "A -[loss=.2,confirm_loss=.1,retries=3,confirm=cascade,dedup=id]-> B -[loss=.3,confirm_loss=.4]-> C",
        "A -[loss=.2,confirm_loss=.3,retries=3,confirm=processing]-> B{crash=.3}",
        "A -[loss=.2,confirm_loss=.3,retries=3,dedup=id]-> B{crash=.3} -> C",
        "A -[loss=.2,confirm_loss=.3,retries=3,dedup=index]-> B{crash=.3} -> C",
        "A -[loss=.2,confirm_loss=.3,retries=3]-> S{durable=yes} -[loss=.3,confirm_loss=.2]-> C",
        "A -[duplicate=.3]-> B -[confirm_loss=.1,retries=3,dedup=strict]-> S{durable=yes} -> C",
        "A ( -[loss=.1,confirm_loss=.1,retries=1]-> X{crash=.1} -[loss=.2]-> | -[loss=.3]-> ) B -> C",
        "A -[confirm_loss=.4,retries=2]-> (P1 -[loss=.2,confirm_loss=.2]-> X{crash=.2} -> P2{crash=.2}){retries=2}",
        "A -> (P1 -[loss=.3,confirm_loss=.2,retries=1,dedup=id]-> X -[loss=.2,confirm_loss=.3]-> P2)"
        "{retries=2,timeout=9s} -> B",
    ],
)  # fmt: skip
def test_what_is_calculated_is_what_the_machines_do(text: str) -> None:
    found = planned(text)
    assert found.exact
    messages = 1500
    measured = simulate(found.path, messages=messages, seed=5)
    spread = sigma(found.element, messages)
    assert measured.unique / messages == pytest.approx(found.reliability, abs=4 * spread.reliability + 1e-9)
    assert measured.received / messages == pytest.approx(found.end.copies, abs=4 * spread.copies + 1e-9)
    assert measured.transmissions / messages == pytest.approx(found.transmissions, rel=0.06)


# -- what is not exact


def timed(text: str, messages: int = 3000) -> tuple[Plan, Simulated]:
    """The plan, and what is measured when time decides and messages never meet."""
    found = planned(text)
    return found, simulate(found.path, messages=messages, seed=3, spacing_s=100_000.0)


@pytest.mark.parametrize(
    "text",
    [
        "A -[retries=inf,timeout=2s,dedup=id,confirm=cascade]-> B -[delay=600ms]-> C",
        "A -> (P1 -[loss=.5,retries=2]-> X -> P2){retries=inf,timeout=4s} -> B",
        "A -[delay=400ms,retries=1,jitter=0.1]-> B",
    ],
)
def test_a_timeout_long_enough_is_exact(text: str) -> None:
    found, measured = timed(text)
    spread = sigma(found.element, measured.sent)
    assert found.exact
    assert measured.received / measured.sent == pytest.approx(found.end.copies, abs=4 * spread.copies + 1e-9)


def test_at_the_end_of_the_path_an_id_is_handled_once() -> None:
    found, measured = timed("A -[repeats=1]-> B -[retries=inf,dedup=id,confirm=processing]-> C", 300)
    assert found.uniqueness == measured.unique / measured.received == 1


@pytest.mark.parametrize(
    "text",
    [
        "A -[loss=0.5,confirm_loss=0.9,retries=inf,dedup=id,keep=1s]-> B",
        "A -[loss=0.5,confirm_loss=0.9,retries=inf,dedup=id,keep=5s]-> B",
        "A -[loss=0.3,confirm_loss=0.5,retries=6,dedup=id,keep=2s]-> B",
    ],
)
def test_what_leaks_past_a_memory_lowers_uniqueness(text: str) -> None:
    found, measured = timed(text)
    assert not found.exact
    assert measured.unique / measured.received == pytest.approx(found.uniqueness, rel=0.08)


def test_a_tiny_leak_or_loss_is_never_exactly_once() -> None:
    assert planned("A -[confirm_loss=.01,retries=inf,dedup=id,keep=60s]-> B").mode == "tends to exactly once"
    found = planned("A -[loss=.1,retries=13,dedup=id]-> B")
    assert found.mode == found.hops[0].mode == "tends to exactly once"
    assert planned("A -[loss=.1,confirm_loss=.3,retries=inf,dedup=id]-> B").mode == "exactly once"


def test_what_leaks_past_a_size_depends_on_the_rate() -> None:
    text = "A -[confirm_loss=.5,retries=inf,dedup=id,size=10,window=5]-> B"
    found = planned(text)
    assert found.hops[0].alone.leak is None
    assert any("without a rate" in doubt for doubt in found.doubts)
    assert plan(parse_path(text), rate=10).hops[0].alone.leak == 0.5
    assert planned(text.replace("size", "delay=250ms,size")).hops[0].alone.leak == 0.5
    assert planned(text.replace("window=5", "window=1")).exact


def test_a_durable_hop_inside_a_pipe_leaves_its_ends_as_they_are() -> None:
    found = planned("A -[repeats=1]-> (P1 -[retries=2,durable=yes]-> X -> P2){retries=3} -> B")
    assert found.uniqueness == 0.5


# -- laws


REFUSED = ("confirm=processing", "dedup=session", "cannot be durable", "has repeats", "narrower than", "one point and")


@settings(max_examples=60)
@given(paths())
def test_any_path_has_figures_within_their_bounds(path: Path) -> None:
    try:
        found = plan(path)
    except ConfigError as error:
        if not any(words in error.message for words in REFUSED):
            raise
        return
    assert 0 <= found.reliability <= 1
    assert 0 <= found.uniqueness <= 1
    json.dumps(found.as_dict(), allow_nan=False)


@pytest.mark.parametrize(
    "way", ["", "loss=.1", "loss=.1,retries=3", "loss=.1,retries=3,dedup=id", "retries=1,confirm=cascade"]
)
def test_a_path_as_long_as_can_be_is_planned_soon(way: str) -> None:
    found = planned(f" -[{way}]-> ".join(f"p{n}" for n in range(1000)))
    assert len(found.hops) == 999


def test_pipes_in_pipes_are_planned_up_to_a_depth() -> None:
    def nested(depth: int) -> str:
        return "(" * depth + "A -> B" + "".join(f"){{retries=1}} -> p{n}" for n in range(depth))

    planned(nested(8))
    with pytest.raises(ConfigError, match="more than 8 pipes"):
        planned(nested(9))


def test_processing_belongs_to_the_end_of_the_path() -> None:
    with pytest.raises(ConfigError, match="processing at B"):
        planned("A -[retries=1,confirm=processing]-> B -> C")


def test_a_session_takes_a_durable_end() -> None:
    with pytest.raises(ConfigError, match="dedup=session at B needs a memory"):
        planned("A -[dedup=session]-> B")
    assert planned("A -[confirm_loss=.5,retries=3,dedup=session]-> B{durable=yes}").uniqueness == 1


# -- curves


def test_curves_begin_and_end_where_the_formulas_do() -> None:
    path = parse_path("A -[loss=.5,confirm_loss=.5,retries=2]-> B")
    retries, loss = over_retries(path), over_loss(path)
    assert retries.reliability[:3] == pytest.approx((0.5, 0.75, 0.875))
    assert retries.uniqueness[0] == 1
    assert loss.x[0] == 0
    assert loss.reliability[0] == 1
    assert loss.reliability[loss.x.index(0.5)] == pytest.approx(0.875)


def test_a_curve_goes_into_pipes_and_branches() -> None:
    path = parse_path("(P1 -[loss=.5]-> P2){retries=1} -[loss=.5 | loss=.1]-> B")
    loss = over_loss(path)
    at = loss.x.index(0.5)
    assert loss.reliability[at] == pytest.approx(0.75 * 0.75)
    assert over_retries(parse_path("A -[loss=.5]-> B -> C")).reliability[1] == pytest.approx(0.75)


def test_the_element_of_a_path_has_its_figures() -> None:
    path = parse_path(SOURCE_EXAMPLE)
    assert 1 - element(path).apply(0.0, 0.0)[1] == pytest.approx(plan(path).reliability)
