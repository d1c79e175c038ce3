"""The simulator of paths: the same seed gives the same world, and a world that cannot end is not begun."""

from __future__ import annotations

import math

import pytest

from semel.errors import ConfigError, LimitExceeded
from semel.pipes.language.notation import parse_path
from semel.sim.pipes import HopCounts, Simulated, simulate


def run(text: str, messages: int = 200, seed: int = 1, **options: object) -> Simulated:
    return simulate(parse_path(text), messages=messages, seed=seed, **options)  # type: ignore[arg-type]


BUSY = "A -[loss=0.3,confirm_loss=0.2,duplicate=0.2,retries=3]-> B{crash=0.1} -[loss=0.2,dedup=id]-> C"


@pytest.mark.parametrize("text", [BUSY, "A -[loss=0.3,retries=inf]-> S{durable=yes,crash=0.3} -[loss=0.3]-> B"])
def test_a_seed_decides_everything(text: str) -> None:
    assert run(text) == run(text)
    assert run(text).hops != run(text, seed=2).hops


def test_a_perfect_path_delivers_each_message_once_and_in_order() -> None:
    found = run("A -> B -> C", messages=50)
    assert (found.sent, found.unique, found.received, found.sum_of_squares) == (50, 50, 50, 50)
    assert (found.transmissions, found.disorder, found.duration_s) == (100, 0, 0.0)
    assert (found.reliability, found.uniqueness) == (1.0, 1.0)
    assert found.hops == {"A>B": HopCounts(50, accepted=50), "B>C": HopCounts(50, accepted=50)}


def test_nothing_arrives_where_everything_is_lost() -> None:
    found = run("A -[loss=1,retries=2]-> B", messages=10)
    assert (found.unique, found.received, found.reliability, found.uniqueness) == (0, 0, 0.0, None)
    assert found.hops["A>B"] == HopCounts(10, resent=20, given_up=10)
    assert found.hops["A>B"].attempts == 3.0
    assert HopCounts().attempts is None


def test_the_sums_fit_together() -> None:
    found = run(BUSY)
    assert found.received == sum(found.copies)
    assert found.sum_of_squares == sum(copies**2 for copies in found.copies)
    assert found.transmissions == sum(hop.transmissions for hop in found.hops.values())
    first = found.hops["A>B"]
    assert first.entered == first.confirmed + first.given_up == 200


def test_time_is_that_of_the_timeouts_and_delays() -> None:
    assert run("A -[delay=0.25,retries=inf]-> B", messages=4).duration_s == pytest.approx(4 * 0.5)
    assert run("A -[loss=1,retries=2,timeout=3]-> B", messages=1).duration_s == pytest.approx(9.0)


def test_the_door_of_a_second_branch_is_no_link() -> None:
    assert run("A -[ | | ]-> B", messages=10).transmissions == 30


def test_messages_have_numbers_of_their_session() -> None:
    found = run("A -[loss=.3,confirm_loss=.5,retries=inf,dedup=session]-> B{durable=yes}", messages=50)
    assert (found.unique, found.received, found.disorder) == (50, 50, 0)


def test_a_pipe_counts_the_data_on_every_link_and_no_handing_over() -> None:
    bare = run("(P1 -> X -> P2){retries=1}", messages=10)
    packed = run("(P1 -[retries=1]-> X -> P2){retries=1}", messages=10)
    assert (bare.transmissions, packed.transmissions) == (20, 20)
    assert packed.hops["P1>P2"].confirmed == 10


def test_each_link_of_a_route_loses_and_doubles_in_turn() -> None:
    assert run("(P1 -[duplicate=1]-> X -[duplicate=1]-> P2){retries=1}", messages=5).copies == (4,) * 5
    assert run("(P1 -> X{crash=1} -> P2){retries=1}", messages=5).received == 0
    assert run("(P1 -[confirm_loss=1]-> X -> P2){retries=2}", messages=5).copies == (3,) * 5


def test_with_a_spacing_messages_meet() -> None:
    """Three are in flight when the first one's confirm comes back; without a window they go out one by one."""
    wide = run("A -[delay=0.5,retries=inf,window=8,timeout=9]-> B", messages=20, spacing_s=0.25)
    one = run("A -[delay=0.5,retries=inf,timeout=9]-> B", messages=20, spacing_s=0.25)
    assert wide.duration_s == pytest.approx(19 * 0.25 + 1.0)
    assert one.duration_s == pytest.approx(20.0)
    assert (wide.unique, one.unique, one.disorder) == (20, 20, 0)


def test_a_wide_window_over_a_losing_link_loses_the_order_unless_it_is_strict() -> None:
    text = "A -[loss=0.3,delay=0.1,retries=inf,window=8{}]-> B"
    assert run(text.format(""), spacing_s=0.1).disorder > 0
    strict = run(text.format(",dedup=strict"), spacing_s=0.1)
    assert (strict.disorder, strict.unique, strict.received) == (0, 200, 200)


def test_a_timeout_below_the_round_trip_sends_what_nobody_lost() -> None:
    found = run("A -[delay=1.25,retries=inf,timeout=1]-> B", messages=10, spacing_s=100.0)
    assert found.copies == (math.ceil(2.5 / 1.0),) * 10


def test_a_handler_that_fails_is_asked_again_or_the_message_is_lost() -> None:
    assert run("A -[retries=inf,confirm=processing]-> B", handler_fails=0.5).unique == 200
    assert run("A -[retries=inf]-> B", handler_fails=0.5).unique < 150
    assert run("A -[retries=inf]-> S{durable=yes}", handler_fails=0.5).copies == (1,) * 200


def test_a_suspended_durable_point_is_let_go_on() -> None:
    found = run("S{durable=yes} -[loss=0.6,retries=1]-> B", messages=50)
    assert found.copies == (1,) * 50


def test_a_durable_point_sends_again_in_each_of_its_lives() -> None:
    found = run("A -[retries=inf]-> S{durable=yes,crash=0.5} -> B", messages=100)
    assert found.copies == (1,) * 100
    assert found.hops["A>S"].resent > 50
    assert found.hops["A>S"].duplicates == found.hops["A>S"].resent
    assert found.hops["S>B"] == HopCounts(100, accepted=100)


@pytest.mark.parametrize(
    "text",
    [
        "A -[loss=1,retries=inf]-> B",
        "A -[confirm_loss=1,retries=inf]-> B",
        "A -[retries=inf,confirm=cascade]-> B -[loss=1]-> C",
        "A -[retries=inf,confirm=cascade]-> B{crash=1} -> C",
        "A -[retries=inf,confirm=processing]-> B{crash=1}",
        "A -[retries=inf]-> S{durable=yes,crash=1}",
        "(P1 -> X{crash=1} -> P2){retries=inf}",
        "(P1 -[loss=1,retries=1]-> X -> P2){retries=inf}",
        "(P1 -[retries=1]-> X{crash=1} -> P2){retries=inf}",
        "(P1 -[confirm_loss=1,retries=1]-> X -> P2){retries=inf}",
        "S{durable=yes} -[loss=1,retries=1]-> B",
    ],
)
def test_a_path_without_end_is_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError, match="sends for ever") as caught:
        run(text)
    assert caught.value.fix


def test_a_handler_that_always_fails_is_refused_where_its_sender_waits() -> None:
    with pytest.raises(ConfigError, match="A>B sends for ever"):
        run("A -[retries=inf,confirm=processing]-> B", handler_fails=1.0)


@pytest.mark.parametrize(
    "text",
    [
        "A -[retries=inf]-> B{crash=1} -> C",
        "A -[retries=inf,confirm=cascade]-> B ( -[loss=1]-> | -> ) C",
        "A -[retries=inf,confirm=cascade]-> S{durable=yes} -> C{crash=1} -> D",
    ],
)
def test_a_path_that_ends_although_it_loses_is_not_refused(text: str) -> None:
    assert run(text, messages=3).sent == 3


def test_a_run_that_takes_too_long_is_ended_and_names_the_path() -> None:
    text = "A -[confirm_loss=0.99999,retries=inf]-> B"
    with pytest.raises(LimitExceeded, match=r"confirm_loss=0\.99999.*message 1 of 5"):
        run(text, messages=5, events_max=1000)
    with pytest.raises(LimitExceeded, match="virtual time"):
        run(text, messages=5, time_max_s=100.0)


def test_what_cannot_be_simulated_is_refused() -> None:
    with pytest.raises(ConfigError, match="0 messages"):
        run("A -> B", messages=0)
    for spacing in (0.0, -1.0, math.nan):
        with pytest.raises(ConfigError, match="spacing"):
            run("A -> B", spacing_s=spacing)
