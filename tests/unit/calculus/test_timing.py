from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.calculus.claims import effective_confirm_loss, horizon_s, outlasts

from semel.calculus.timing import copies_without_loss, expected_attempts, overlap, time_per_message
from semel.errors import ConfigError
from semel.kernel.retry import RetryPolicy


@given(st.floats(0, 0.99), st.integers(1, 12), st.integers(0, 4))
def test_attempts_added_up_one_by_one(unconfirmed: float, attempts: int, late: int) -> None:
    """Attempt n+1 is sent when the first n - late were not confirmed."""
    by_hand = sum(unconfirmed ** max(0, n - late) for n in range(attempts))
    assert expected_attempts(unconfirmed, attempts, late) == pytest.approx(by_hand)
    endless = sum(unconfirmed ** max(0, n - late) for n in range(4000))
    assert expected_attempts(unconfirmed, None, late) == pytest.approx(endless)


def test_attempts_without_any_confirm() -> None:
    assert expected_attempts(1, 5) == 5
    assert expected_attempts(1, None) == math.inf
    assert time_per_message(math.inf, 1, 1) == math.inf


def test_time_as_played_out() -> None:
    chance, total, messages = random.Random(5), 0.0, 40_000
    for _ in range(messages):
        failed = 0
        while failed < 3 and chance.random() < 0.4:
            failed += 1
        total += failed * 2.0 + (0.5 if failed < 3 else 0)
    expected = time_per_message(expected_attempts(0.4, 3), 0.5, 2.0, given_up=0.4**3)
    assert total / messages == pytest.approx(expected, rel=0.02)


def play_without_loss(rtt_s: float, timeout_s: float, newest_only: bool, most: int = 200) -> float:
    for sent in range(1, most):
        next_send = sent * timeout_s
        heard = [n * timeout_s + rtt_s for n in ([sent - 1] if newest_only else range(sent))]
        if any(at <= next_send for at in heard):
            return sent
    return math.inf


@pytest.mark.parametrize("newest_only", [False, True])
@pytest.mark.parametrize("rtt_s", [0.0, 0.5, 1.0, 1.5, 6.0, 7.25])
@pytest.mark.parametrize("timeout_s", [1.0, 5.0])
def test_late_confirms_on_a_perfect_link(rtt_s: float, timeout_s: float, newest_only: bool) -> None:
    assert copies_without_loss(rtt_s, timeout_s, newest_only) == play_without_loss(rtt_s, timeout_s, newest_only)


def test_overlap() -> None:
    assert [overlap(rtt_s, 2.0) for rtt_s in (0, 1, 2, 2.1, 4, 4.1)] == [0, 0, 0, 1, 1, 2]


def test_effective_confirm_loss() -> None:
    assert effective_confirm_loss(0.2, 1) == pytest.approx(0.2)
    assert effective_confirm_loss(0.2, 0) == 1
    assert effective_confirm_loss(0, 0.75) == 0.25


policies = st.builds(
    RetryPolicy,
    retries=st.integers(0, 200),
    interval_s=st.floats(0.1, 5),
    factor=st.floats(1, 3),
    interval_max_s=st.floats(5, 100),
    jitter=st.floats(0, 1),
)


@given(policies)
def test_the_horizon_is_the_sum_of_the_shortest_waits(policy: RetryPolicy) -> None:
    assert policy.retries is not None
    waits = [policy.wait_s(attempt, 1.0) for attempt in range(1, policy.retries + 1)]
    assert horizon_s(policy) == pytest.approx(sum(waits), abs=1e-9)


def test_horizons() -> None:
    assert horizon_s(RetryPolicy(retries=None)) == math.inf
    assert horizon_s(RetryPolicy(retries=0)) == 0
    assert horizon_s(RetryPolicy(retries=10**12, interval_s=1)) == 10**12
    assert horizon_s(RetryPolicy(retries=5, interval_s=1, factor=2)) == 31


def test_an_outage() -> None:
    assert outlasts(0, 10) == 0
    assert outlasts(math.inf, 10) == 1
    chance = random.Random(6)
    held = sum(chance.expovariate(1 / 10) < 7 for _ in range(20_000)) / 20_000
    assert outlasts(7, 10) == pytest.approx(held, abs=0.015)


@pytest.mark.parametrize(
    "call",
    [
        lambda: expected_attempts(1.1, 2),
        lambda: expected_attempts(0.5, 0),
        lambda: time_per_message(1, -1, 1),
        lambda: time_per_message(1, 1, 0),
        lambda: overlap(1, 0),
        lambda: overlap(math.inf, 1),
        lambda: effective_confirm_loss(0.5, 2),
        lambda: outlasts(-1, 1),
        lambda: outlasts(1, 0),
    ],
)
def test_wrong_values(call: object) -> None:
    with pytest.raises(ConfigError):
        call()  # type: ignore[operator]
