"""A look from the beginning is made each time while it is quick, and seldom when it is not."""

from __future__ import annotations

import pytest

from semel.stores.postgres_fronts import LOWEST, PACE, SLOW_TIMES, SLOW_US, Front, Fronts


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def find_slow(front: Front, alive: int = 10) -> None:
    for _ in range(SLOW_TIMES):
        front.looked(LOWEST, alive, 50_000)


def test_every_look_is_one_from_the_beginning_while_that_is_quick() -> None:
    front = Front(Clock())
    for alive in (10, 20, 30):
        assert front.begin() == LOWEST
        front.looked(LOWEST, alive, SLOW_US - 1)
    assert not front.is_slow


def test_after_a_slow_one_looks_begin_where_something_was_alive() -> None:
    clock = Clock()
    front = Front(clock)
    find_slow(front)
    assert (front.begin(), front.is_slow) == (10, True)
    front.looked(10, 25, 80)
    assert front.begin() == 25
    clock.now += 0.05 * PACE
    assert front.begin() == LOWEST


def test_a_quick_look_from_the_beginning_ends_it() -> None:
    clock = Clock()
    front = Front(clock)
    find_slow(front)
    clock.now += 60.0
    front.looked(front.begin(), 12, 50)
    assert (front.begin(), front.is_slow) == (LOWEST, False)


def test_a_slow_look_from_the_front_says_nothing_about_the_beginning() -> None:
    front = Front(Clock())
    find_slow(front)
    front.looked(10, 20, 900_000)
    assert front.begin() == 20


def test_a_machine_that_was_busy_for_a_moment_changes_nothing() -> None:
    front = Front(Clock())
    for _ in range(10):
        for _ in range(SLOW_TIMES - 1):
            front.looked(LOWEST, 10, 50_000)
        front.looked(LOWEST, 10, 50)
        assert front.begin() == LOWEST


def test_when_it_is_time_for_a_claim_to_look_from_the_beginning_there_may_be_work() -> None:
    clock = Clock()
    fronts = Fronts(clock).of("inbox/a")
    assert fronts.begins() == (LOWEST,) * 4
    find_slow(fronts.keys, 7)
    assert fronts.begins() == (LOWEST, 7, LOWEST, LOWEST)
    clock.now += 60.0
    assert fronts.begins() is None


def test_whatever_fails_makes_the_next_look_begin_at_the_beginning() -> None:
    fronts = Fronts(Clock())
    find_slow(fronts.of("inbox/a").rows, 7)
    with fronts.unless_it_fails():
        pass
    assert fronts.of("inbox/a").rows.begin() == 7
    with pytest.raises(KeyError), fronts.unless_it_fails():
        raise KeyError
    assert fronts.of("inbox/a").rows.begin() == LOWEST
