from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.calculus.claims import leak_by_size, leak_by_time, leaky_uniqueness

from semel.calculus.dedup import (
    leak,
    monotonic_reliability,
    span_for_leak,
    span_of_size,
    span_of_time,
    strict_reliability,
    uniqueness_of_leak,
)
from semel.errors import ConfigError
from semel.kernel.dedup import IdWindow, MonotonicIndex

below_one = st.floats(0.01, 0.9)


def passes(
    chance: random.Random, loss: float, confirm_loss: float, window: IdWindow, attempts: int, others: int
) -> int:
    """How often one message passes the window: attempts are 1 s apart, with so many other ids in between."""
    passed = 0
    for attempt in range(attempts):
        for other in range(others if attempt else 0):
            window.is_new(f"{attempt}/{other}", float(attempt))
        if chance.random() < loss:
            continue
        passed += window.is_new("it", float(attempt))
        if chance.random() >= confirm_loss:
            break
    return passed


@pytest.mark.parametrize("attempts", [None, 5])
@pytest.mark.parametrize(("size", "keep_s", "others"), [(10**6, 1, 0), (10**6, 2.5, 0), (6, 10**6, 2), (5, 10**6, 2)])
def test_the_leak_of_the_real_window(size: int, keep_s: float, others: int, attempts: int | None) -> None:
    loss, confirm_loss, messages = 0.3, 0.6, 6_000
    chance = random.Random(8)
    passed = [
        passes(chance, loss, confirm_loss, IdWindow(size, keep_s), attempts or 1000, others) for _ in range(messages)
    ]
    if others:
        expected = leak_by_size(loss, confirm_loss, size, others, attempts)
    else:
        expected = leak_by_time(loss, confirm_loss, keep_s, 1, attempts)
    sigma = (expected * (1 - expected) / messages) ** 0.5
    assert sum(count > 1 for count in passed) / messages == pytest.approx(expected, abs=4 * sigma)
    if attempts is None:
        unique = sum(map(bool, passed)) / sum(passed)
        span = span_of_size(size, others) if others else span_of_time(keep_s, 1)
        assert unique == pytest.approx(leaky_uniqueness(loss, confirm_loss, span), abs=0.02)


@pytest.mark.parametrize("attempts", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("span", [1, 2, 3])
def test_the_leak_by_adding_up_every_case(span: int, attempts: int) -> None:
    loss, confirm_loss, total = 0.3, 0.4, 0.0
    weight = {"lost": loss, "unheard": (1 - loss) * confirm_loss, "heard": (1 - loss) * (1 - confirm_loss)}
    for fates in itertools.product(weight, repeat=attempts):
        arrived = [n for n, fate in enumerate(fates) if fate != "lost" and "heard" not in fates[:n]]
        if any(n - arrived[0] >= span for n in arrived):
            probability = 1.0
            for fate in fates:
                probability *= weight[fate]
            total += probability
    assert leak(loss, confirm_loss, span, attempts) == pytest.approx(total)


def test_edges() -> None:
    assert leak(0.3, 0.4, None) == 0
    assert leak(1.0, 0.4, 1) == 0
    assert leak(0.3, 0.0, 1) == 0
    assert leak(0.3, 1.0, 50) == pytest.approx(1)
    assert leak(0.3, 0.4, 1) == 0.4
    assert span_of_size(5, 0) is None
    assert [span_of_time(keep_s, 2) for keep_s in (0.1, 2, 2.1, 4)] == [1, 1, 2, 2]
    assert [span_of_size(size, 2) for size in (1, 2, 3, 4)] == [1, 1, 2, 2]


@given(below_one, below_one, st.floats(1e-9, 1))
def test_the_span_is_the_smallest(loss: float, confirm_loss: float, wanted: float) -> None:
    span = span_for_leak(loss, confirm_loss, wanted)
    assert span is not None
    assert leak(loss, confirm_loss, span) <= wanted
    assert span == 1 or leak(loss, confirm_loss, span - 1) > wanted


def test_no_span() -> None:
    assert span_for_leak(0.3, 0.4, 0) is None
    assert span_for_leak(0.3, 1.0, 0.5) is None
    assert span_for_leak(0.3, 0.0, 0) == 1


@pytest.mark.parametrize("burst", [1, 2, 3, 4, 5, 6])
def test_a_shuffled_burst_in_every_order(burst: int) -> None:
    passed = orders = 0
    for order in itertools.permutations(range(1, burst + 1)):
        window = MonotonicIndex()
        passed += sum(window.is_new(index) for index in order)
        orders += 1
    assert monotonic_reliability(burst) == pytest.approx(passed / orders / burst)


@pytest.mark.parametrize(("given_up", "sent"), [(0.0, 5), (1.0, 5), (0.5, 1), (0.2, 7), (0.001, 1000), (1e-12, 10)])
def test_a_strict_receiver_added_up(given_up: float, sent: int) -> None:
    """Message n passes when it and all before it came."""
    by_hand = sum((1 - given_up) ** n for n in range(1, sent + 1)) / sent
    assert strict_reliability(given_up, sent) == pytest.approx(by_hand, rel=1e-9)


@pytest.mark.parametrize(
    "call",
    [
        lambda: leak(0.5, 0.5, 0),
        lambda: leak(2, 0.5, 1),
        lambda: leak(0.5, 0.5, 1, 0),
        lambda: span_of_time(0, 1),
        lambda: span_of_size(0, 1),
        lambda: span_of_size(1, -1),
        lambda: span_for_leak(0.5, 0.5, 2),
        lambda: monotonic_reliability(0),
        lambda: strict_reliability(0.5, 0),
    ],
)
def test_wrong_values(call: object) -> None:
    with pytest.raises(ConfigError):
        call()  # type: ignore[operator]


@pytest.mark.parametrize("leak", [0.0, 0.3, 0.9])
def test_without_end_a_leak_is_what_uniqueness_lacks(leak: float) -> None:
    assert uniqueness_of_leak(1.0, leak) == pytest.approx(1 - leak)


def test_of_what_never_arrives_nothing_leaks() -> None:
    assert uniqueness_of_leak(0.0, 0.5) == 1
    assert uniqueness_of_leak(1.0, 1.0) == 0
