from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.errors import ConfigError
from semel.kernel.envelope import Envelope
from semel.kernel.ops import WorkRow, WorkState
from semel.kernel.retry import Again, AnyFailure, Enough, Failure, RetryPolicy, type_names

policies = st.builds(
    RetryPolicy,
    retries=st.none() | st.integers(0, 20),
    interval_s=st.floats(0, 60),
    factor=st.floats(1, 10),
    interval_max_s=st.floats(60, 1e6),
    jitter=st.floats(0, 1),
)


@given(policies, st.integers(1, 10**6), st.floats(0, 0.999999))
def test_a_wait_stays_between_its_bounds(policy: RetryPolicy, attempt: int, chance: float) -> None:
    wait = policy.wait_s(attempt, chance)
    assert math.isfinite(wait)
    assert 0 <= wait <= policy.interval_max_s
    full = policy.wait_s(attempt, 0.0)
    assert full * (1 - policy.jitter) - 1e-9 <= wait <= full


@given(policies, st.integers(1, 100))
def test_waits_never_shrink(policy: RetryPolicy, attempt: int) -> None:
    assert policy.wait_s(attempt, 0.0) <= policy.wait_s(attempt + 1, 0.0)


@given(policies, st.integers(1, 40), st.floats(0, 1e9))
def test_exactly_the_retries_asked_for(policy: RetryPolicy, attempt: int, now: float) -> None:
    decision = policy.decide(attempt, now, 0.5)
    if policy.retries is None or attempt <= policy.retries:
        assert isinstance(decision, Again)
        assert decision.at >= now
    else:
        assert decision == Enough(policy.then)


def test_a_fixed_interval() -> None:
    policy = RetryPolicy(retries=3, interval_s=7.0)
    assert [policy.decide(attempt, 100.0, 0.9) for attempt in (1, 2, 3, 4)] == [
        Again(107.0),
        Again(107.0),
        Again(107.0),
        Enough("suspend"),
    ]


def test_doubling_up_to_the_maximum() -> None:
    policy = RetryPolicy(interval_s=1.0, factor=2.0, interval_max_s=10.0)
    assert [policy.wait_s(attempt, 0.0) for attempt in range(1, 7)] == [1, 2, 4, 8, 10, 10]


def test_jitter_takes_from_the_end_of_the_wait() -> None:
    policy = RetryPolicy(interval_s=10.0, jitter=0.2)
    assert (policy.wait_s(1, 0.0), policy.wait_s(1, 0.5)) == (10.0, 9.0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"retries": -1},
        {"interval_s": -1.0},
        {"interval_s": 10.0, "interval_max_s": 5.0},
        {"factor": 0.5},
        {"jitter": -0.1},
        {"jitter": 1.1},
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        RetryPolicy(**wrong)
    assert caught.value.fix


def test_the_last_attempt_is_one_more_than_the_retries() -> None:
    assert (RetryPolicy(retries=0).last_attempt, RetryPolicy(retries=3).last_attempt) == (1, 4)
    assert RetryPolicy().last_attempt is None


def test_a_policy_for_any_failure_decides_as_its_retry_policy() -> None:
    retry = RetryPolicy(retries=1, interval_s=10.0, then="park")
    policy = AnyFailure(retry)
    row = WorkRow("q", "i", None, 1, WorkState.CLAIMED, 0, 1, 1, "w", Envelope("i"))
    decisions = [policy.decide(Failure("no", ("ValueError",)), row, attempt, 5.0, 0.0) for attempt in (1, 2)]
    assert decisions == [Again(15.0), Enough("park")]
    assert policy.last_attempt(row) == 2


def test_the_names_of_an_exceptions_class_begin_with_the_most_specific() -> None:
    assert type_names(FileNotFoundError) == ("FileNotFoundError", "OSError", "Exception", "BaseException")
    assert type_names(ConfigError)[:2] == ("semel.errors.ConfigError", "semel.errors.SemelError")
