"""From wish to setting: the fewest retries, the shortest memory, the narrowest window, and what cannot be had."""

from __future__ import annotations

import math

import pytest

from semel.errors import ConfigError
from semel.pipes.language.notation import parse_path
from semel.pipes.plan.plan import Plan, plan
from semel.pipes.plan.solve import solve


def planned(text: str) -> Plan:
    return plan(parse_path(text))


def changes(text: str, **wanted: float) -> tuple[list[str], bool]:
    solution = solve(parse_path(text), **wanted)
    assert solution.plan == plan(solution.path)
    return [f"{change.where} {change.option}={change.new}" for change in solution.changes], solution.reached


def test_the_fewest_retries_are_found() -> None:
    assert changes("A -[loss=.1]-> B", reliability=0.999) == (["A>B retries=2"], True)
    assert changes("A -[loss=.1,retries=5]-> B", reliability=0.999) == ([], True)
    assert changes("A -[loss=.1,retries=1]-> B", reliability=0.9999) == (["A>B retries=3"], True)
    assert changes("A -[loss=.5]-> B -[loss=.1]-> C", reliability=0.99) == (["A>B retries=6", "B>C retries=2"], True)


def test_one_retry_less_would_not_do() -> None:
    solution = solve(parse_path("A -[loss=.5]-> B -[loss=.1]-> C"), reliability=0.99)
    for first, second in ((5, 2), (6, 1)):
        fewer = planned(f"A -[loss=.5,retries={first}]-> B -[loss=.1,retries={second}]-> C")
        assert fewer.reliability < 0.99 <= solution.plan.reliability


def test_a_pipe_is_given_the_retries_for_what_it_goes_around() -> None:
    assert changes("A -> (P1 -[loss=.5]-> X -[loss=.5]-> P2) -> B", reliability=0.9) == (["P1>P2 retries=8"], True)


def test_certainty_needs_retries_without_end() -> None:
    assert changes("A -[loss=.1]-> B", reliability=1) == (["A>B retries=inf"], True)


def test_uniqueness_needs_dedup_at_the_end() -> None:
    assert changes("A -[confirm_loss=.1,retries=3]-> B -> C", uniqueness=0.99) == (["B>C dedup=id"], True)
    assert changes("A -> (P1 -[confirm_loss=.1]-> P2){retries=3}", uniqueness=0.99) == (["P1>P2 dedup=id"], True)
    assert changes("A -[confirm_loss=.1,retries=3]-> B -[dedup=index]-> C", uniqueness=0.99) == (["B>C dedup=id"], True)


def test_a_memory_is_made_long_enough_and_no_longer() -> None:
    hop = "loss=.1,confirm_loss=.1,retries=inf,timeout=2s,dedup=id"
    [change], reached = changes(f"A -[{hop},keep=1s]-> B", uniqueness=0.999)
    assert reached
    seconds = int(change.removeprefix("A>B keep=").removesuffix("s"))
    leaks = [planned(f"A -[{hop},keep={keep}s]-> B").hops[0].alone.leak for keep in (seconds, seconds - 2)]
    assert leaks[0] is not None
    assert leaks[1] is not None
    assert leaks[0] <= 0.001 < leaks[1]
    assert changes(f"A -[{hop},size=1,window=10]-> B", uniqueness=0.999)[0] != []


def test_without_a_rate_a_time_is_proposed_and_no_size() -> None:
    path = parse_path("A -[confirm_loss=.5,retries=inf,dedup=id,size=10,window=5]-> B")
    solution = solve(path, uniqueness=0.99)
    assert solution.reached
    assert {(change.option, change.new) for change in solution.changes} == {("size", "none"), ("keep", "7s")}
    assert [change.option for change in solve(path, uniqueness=0.99, rate=20).changes] == ["window", "size"]


def test_a_window_carries_the_rate() -> None:
    assert changes("A -[retries=3,delay=50ms]-> B", rate=100) == (["A>B window=10"], True)


@pytest.mark.parametrize(
    ("text", "wanted", "words"),
    [
        ("A -> X{crash=.1} -> B", {"reliability": 0.99}, "X may crash"),
        ("A -[loss=1]-> B", {"reliability": 0.99}, "Nothing arrives over A>B"),
        ("A -[|]-> B", {"uniqueness": 0.99}, "behind the place where the branches meet"),
        ("A -[confirm_loss=.1,retries=inf,dedup=id,keep=5s]-> B", {"uniqueness": 1.0}, "no memory of ids with an end"),
        ("A -[loss=1,retries=inf]-> B", {"rate": 5.0}, "never confirmed"),
    ],
)
def test_what_cannot_be_had_says_why(text: str, wanted: dict[str, float], words: str) -> None:
    solution = solve(parse_path(text), **wanted)
    assert not solution.reached
    assert words in " ".join(solution.why)


@pytest.mark.parametrize("wanted", [{"reliability": 1.1}, {"uniqueness": math.nan}, {"rate": 0.0}])
def test_a_wish_that_makes_no_sense_is_refused(wanted: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        solve(parse_path("A -> B"), **wanted)
