"""A path as data: what may stand where, and which values it accepts."""

from __future__ import annotations

import math
from typing import Any

import pytest

from semel.errors import ConfigError
from semel.pipes.language.notation import parse_path
from semel.pipes.language.options import ConfirmOn, DedupBy, Options
from semel.pipes.language.path import Branch, Hop, Parallel, Path, Pipe, Point
from semel.pipes.plan.waits import waits_s

A, B, C = Point("A"), Point("B"), Point("C")


def test_the_ends_and_all_points_of_a_path_are_known_whatever_it_is_made_of() -> None:
    path = parse_path("(A -> B) ( -> X -> | -> Y -> ) ((C -> D) -> E)")
    assert (path.first.name, path.last.name) == ("A", "E")
    assert [point.name for point in path.points()] == ["A", "B", "X", "Y", "C", "D", "E"]


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ((), "empty"),
        ((Hop(), A), "take turns"),
        ((A, B), "take turns"),
        ((A, Hop()), "ends in a way"),
        ((A, Hop(), A), "A twice"),
    ],
)
def test_places_and_ways_take_turns(steps: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        Path(steps)
    assert caught.value.fix


def test_a_branch_begins_and_ends_with_a_hop_and_is_not_alone() -> None:
    for steps in ((), (A,), (Hop(), A), (Hop(), Hop(), Hop())):
        with pytest.raises(ConfigError, match="hop, point, hop"):
            Branch(steps)
    with pytest.raises(ConfigError, match="one branch"):
        Parallel((Branch((Hop(),)),))


def test_a_pipe_has_two_ends_and_no_link_of_its_own() -> None:
    with pytest.raises(ConfigError, match="one end"):
        Pipe(Path((A,)), Options())
    with pytest.raises(ConfigError, match="no loss of its own"):
        Pipe(Path((A, Hop(), B)), Options(loss=0.1))


@pytest.mark.parametrize(
    "wrong",
    [
        {"loss": 1.1},
        {"loss": math.nan},
        {"confirm_loss": -0.1},
        {"retries": -1},
        {"retries": 1.5},
        {"retries": math.nan},
        {"repeats": -1},
        {"repeats": 1, "retries": 1},
        {"timeout": 0.0},
        {"timeout": math.inf},
        {"delay": -1.0},
        {"window": 0},
        {"window": 1.5},
        {"size": 0, "dedup": DedupBy.ID},
        {"keep": 1.0},
        {"confirm": ConfirmOn.CASCADE},
    ],
    ids=str,
)
def test_a_wrong_option_is_refused_with_a_fix(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        Options(**wrong)
    assert caught.value.fix


def test_attempts_count_the_first_send() -> None:
    assert [Options(retries=n).attempts for n in (None, 0, 5, math.inf)] == [1, 1, 6, None]
    assert [Options(retries=n).resends for n in (None, 0)] == [False, True]


def test_what_is_stated_is_what_differs_from_the_defaults() -> None:
    assert Options(loss=0.1, window=1, dedup=DedupBy.ID).stated() == {"loss": 0.1, "dedup": DedupBy.ID}


def test_the_name_of_a_path_is_no_part_of_what_it_is() -> None:
    assert Path((A, Hop(), B), "x") == Path((A, Hop(), B), "y")


def test_a_path_prints_as_its_text() -> None:
    assert str(Path((A, Hop(Options(loss=0.5)), B))) == "A -[loss=0.5]-> B"


def test_waits_grow_up_to_a_minute_unless_they_begin_longer() -> None:
    assert Options(retries=1, backoff=2.0).longest_wait == 60
    assert Options(retries=1, timeout=90.0, backoff=2.0).longest_wait == 90
    assert waits_s(Options(retries=3, timeout=10.0, backoff=3.0), endless=False) == 10 + 30 + 60 + 60
    assert waits_s(Options(retries=math.inf), endless=False) == math.inf


@pytest.mark.parametrize(
    "wrong", [{"backoff": 0.5}, {"backoff": math.nan}, {"jitter": 1.5}, {"timeout": 1e-300}, {"delay": 1e308}]
)
def test_waits_have_limits(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        Options(**wrong)  # type: ignore[arg-type]
