from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from semel.errors import ConfigError
from semel.inbox.breaker import SLICES, Breaker, BreakerOptions, BreakerState

OPTIONS = BreakerOptions(window_s=100.0, minimum=4, share=0.5, pause_s=30.0)


def end(breaker: Breaker, now: float, *, ok: bool) -> bool:
    turn = breaker.began(now)
    if ok:
        breaker.succeeded(turn, now)
        return False
    return breaker.failed(turn, now)


def opened(now: float = 0.0) -> Breaker:
    breaker = Breaker(OPTIONS)
    for _ in range(OPTIONS.minimum):
        end(breaker, now, ok=False)
    assert breaker.state(now) is BreakerState.OPEN
    return breaker


def test_it_opens_at_the_share_and_not_before_the_minimum() -> None:
    breaker = Breaker(OPTIONS)
    assert [end(breaker, 0.0, ok=ok) for ok in (False, True, True, False)] == [False, False, False, True]
    assert breaker.room(0.0, 8) == 0
    assert breaker.next_deadline() == 30.0


def test_below_the_share_it_stays_closed() -> None:
    breaker = Breaker(OPTIONS)
    assert not any(end(breaker, 0.0, ok=n % 3 > 0) for n in range(1, 100))
    assert breaker.room(0.0, 8) == 8


def test_what_is_older_than_the_window_does_not_count() -> None:
    breaker = Breaker(OPTIONS)
    for _ in range(3):
        end(breaker, 0.0, ok=False)
    assert not end(breaker, 101.0, ok=False)
    assert breaker.state(101.0) is BreakerState.CLOSED


def test_after_the_pause_one_is_tried() -> None:
    breaker = opened()
    assert breaker.room(29.9, 8) == 0
    assert breaker.room(30.0, 8) == 1
    breaker.began(30.0)
    assert breaker.room(30.0, 8) == 0


def test_a_success_closes_it_and_forgets_the_failures() -> None:
    breaker = opened()
    end(breaker, 30.0, ok=True)
    assert breaker.state(30.0) is BreakerState.CLOSED
    assert not end(breaker, 30.0, ok=False)


def test_a_failure_opens_it_again() -> None:
    breaker = opened()
    assert end(breaker, 31.0, ok=False)
    assert breaker.next_deadline() == 61.0


def test_one_that_is_given_back_makes_room_for_another() -> None:
    breaker = opened()
    turn = breaker.began(30.0)
    breaker.released(turn)
    assert breaker.room(30.0, 8) == 1


def test_the_end_of_one_from_before_says_nothing_about_the_one_that_is_tried() -> None:
    breaker = Breaker(OPTIONS)
    slow = breaker.began(0.0)
    for _ in range(4):
        end(breaker, 0.0, ok=False)
    tried = breaker.began(30.0)
    breaker.succeeded(slow, 31.0)
    assert breaker.state(31.0) is BreakerState.TRYING
    assert not breaker.failed(slow, 31.0)
    breaker.succeeded(tried, 32.0)
    assert breaker.state(32.0) is BreakerState.CLOSED


def test_one_that_was_begun_while_it_was_open_changes_nothing() -> None:
    breaker = opened()
    assert not end(breaker, 1.0, ok=False)
    end(breaker, 2.0, ok=True)
    assert breaker.state(2.0) is BreakerState.OPEN
    assert breaker.next_deadline() == 30.0


@given(st.lists(st.floats(0, 10), max_size=300))
def test_its_memory_does_not_grow_with_the_traffic(steps: list[float]) -> None:
    breaker, now = Breaker(OPTIONS), 0.0
    for step in steps:
        now += step
        end(breaker, now, ok=True)
    assert len(breaker._window) <= SLICES + 1


class Life(RuleBasedStateMachine):
    """Any order of beginnings and ends: never more than one is tried, and a pause is over when it is over."""

    @initialize()
    def begin(self) -> None:
        self.breaker = Breaker(OPTIONS)
        self.now = 0.0
        self.running: list[int] = []

    @rule(seconds=st.floats(0, 40))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(asked=st.integers(1, 4))
    def take(self, asked: int) -> None:
        was = self.breaker.state(self.now)
        room = self.breaker.room(self.now, asked)
        assert room <= {BreakerState.CLOSED: asked, BreakerState.OPEN: 0, BreakerState.TRYING: 1}[was]
        self.running += [self.breaker.began(self.now) for _ in range(room)]

    @precondition(lambda self: self.running)
    @rule(data=st.data(), how=st.sampled_from(["ok", "failed", "released"]))
    def finish(self, data: st.DataObject, how: str) -> None:
        turn = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        if how == "ok":
            self.breaker.succeeded(turn, self.now)
        elif how == "failed":
            self.breaker.failed(turn, self.now)
        else:
            self.breaker.released(turn)

    @invariant()
    def a_pause_has_an_end(self) -> None:
        deadline = self.breaker.next_deadline()
        if self.breaker.state(self.now) is BreakerState.OPEN:
            assert deadline is not None
            assert self.now < deadline <= self.now + OPTIONS.pause_s

    @invariant()
    def nothing_waits_for_ever(self) -> None:
        if not self.running and self.breaker.state(self.now) is not BreakerState.OPEN:
            assert self.breaker.room(self.now, 1) == 1


TestLife = Life.TestCase


@pytest.mark.parametrize("wrong", [{"window_s": 0.0}, {"pause_s": 0.0}, {"minimum": 0}, {"share": 0.0}, {"share": 1.1}])
def test_options_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        BreakerOptions(**wrong)
    assert caught.value.fix
