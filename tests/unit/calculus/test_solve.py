from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.calculus.claims import (
    keep_for_leak,
    keep_for_uniqueness,
    leak_by_size,
    leak_by_time,
    retries_for,
    retries_for_reliability,
    size_for_leak,
    smallest,
    uniqueness_without_dedup,
)

from semel.calculus.elements import LinkElement, PipeElement, Series
from semel.calculus.figures import Figures, Unreachable, figures, window_for_throughput
from semel.errors import ConfigError

below_one = st.floats(0.01, 0.95)


@given(below_one, st.floats(0.01, 0.999999))
def test_the_fewest_retries_of_a_link(loss: float, wanted: float) -> None:
    retries = retries_for_reliability(loss, wanted)
    assert isinstance(retries, int)
    assert 1 - loss ** (retries + 1) >= wanted - 1e-9
    assert retries == 0 or 1 - loss**retries < wanted


@given(below_one, st.floats(0.01, 0.999))
def test_searching_finds_what_the_closed_form_says(loss: float, wanted: float) -> None:
    found = retries_for(lambda retries: figures(PipeElement(LinkElement(loss, 0, 0.3), retries + 1)), wanted)
    closed = retries_for_reliability(loss, wanted)
    assert isinstance(found, int)
    assert isinstance(closed, int)
    assert found in (closed, closed + 1)  # the search takes no rounding for reached


def test_halves() -> None:
    assert [retries_for_reliability(0.5, wanted) for wanted in (0.5, 0.75, 0.875, 0.876)] == [0, 1, 2, 3]
    assert retries_for_reliability(0, 1) == 0
    assert retries_for_reliability(1, 0) == 0


def test_retries_that_do_not_help() -> None:
    nothing, one = retries_for_reliability(1, 0.5), retries_for_reliability(0.5, 1)
    assert isinstance(nothing, Unreachable)
    assert "nothing arrives" in nothing.why
    assert isinstance(one, Unreachable)
    assert "infinite" in one.why
    lossy_end = retries_for(
        lambda n: figures(Series([PipeElement(LinkElement(0.5), n + 1), LinkElement(0.1)])), 0.95, most=100
    )
    assert isinstance(lossy_end, Unreachable)
    assert lossy_end.best == pytest.approx(0.9)
    assert "even 100" in lossy_end.why


@given(st.integers(0, 300), st.integers(0, 300))
def test_the_smallest_of_a_monotone_function(threshold: int, least: int) -> None:
    asked: list[int] = []

    def figures_of(n: int) -> Figures:
        asked.append(n)
        return Figures(float(n >= threshold), 1, 1, 1, 0, None, True)

    got = smallest(figures_of, lambda f: f.reliability == 1, figure=lambda f: f.reliability, least=least, most=300)
    assert got == max(threshold, least)
    assert min(asked) >= least
    assert max(asked) <= 300
    assert len(asked) <= 20


@given(below_one, below_one, st.floats(1e-6, 1), st.sampled_from([0.5, 1.0, 3.0]))
def test_the_shortest_memory(loss: float, confirm_loss: float, wanted: float, timeout_s: float) -> None:
    keep_s = keep_for_leak(loss, confirm_loss, wanted, timeout_s)
    assert isinstance(keep_s, float)
    assert leak_by_time(loss, confirm_loss, keep_s, timeout_s) <= wanted
    if keep_s > timeout_s:
        assert leak_by_time(loss, confirm_loss, keep_s - timeout_s, timeout_s) > wanted


@given(below_one, below_one, st.floats(1e-4, 1), st.sampled_from([0.5, 1.0, 2.5, 7.0]))
def test_the_smallest_memory(loss: float, confirm_loss: float, wanted: float, others: float) -> None:
    size = size_for_leak(loss, confirm_loss, wanted, others)
    assert isinstance(size, int)
    assert leak_by_size(loss, confirm_loss, size, others) <= wanted
    assert size == 1 or leak_by_size(loss, confirm_loss, size - 1, others) > wanted


def test_no_memory_is_enough() -> None:
    for never in (keep_for_leak(0.3, 1.0, 0.1, 1), size_for_leak(0.3, 1.0, 0.1, 5)):
        assert isinstance(never, Unreachable)
        assert "outlives any memory" in never.why
    for_good = keep_for_uniqueness(0.3, 0.4, 1.0, 1)
    assert isinstance(for_good, Unreachable)
    assert "for good" in for_good.why
    assert size_for_leak(0.3, 0.4, 0.0, 0) == 1
    assert keep_for_uniqueness(0.3, 0.0, 1.0, 2) == 2


def test_a_wanted_uniqueness() -> None:
    assert keep_for_uniqueness(0.5, 0.5, 0.75, 1) == 4  # 0.5 * 0.75^3 = 0.21, 0.5 * 0.75^2 = 0.28
    assert uniqueness_without_dedup(0.1, 0.9) == pytest.approx(0.9)
    limited = uniqueness_without_dedup(0.2, 0.9)
    assert isinstance(limited, Unreachable)
    assert limited.best == pytest.approx(0.8)
    assert "1 - confirm loss" in limited.why


def test_windows() -> None:
    assert window_for_throughput(1000, 0.2) == 200
    assert window_for_throughput(1000, 0.2001) == 201
    assert window_for_throughput(1, 0.01) == window_for_throughput(0, 5) == 1
    lossy = figures(PipeElement(LinkElement(0.1, 0, 0.1), None), rtt_s=0.2, timeout_s=0.5)
    assert window_for_throughput(100, lossy.time_s) == math.ceil(100 * (0.2 + (1 / 0.81 - 1) * 0.5))
    stuck = window_for_throughput(1, math.inf)
    assert isinstance(stuck, Unreachable)
    with pytest.raises(ConfigError):
        window_for_throughput(-1, 1)
