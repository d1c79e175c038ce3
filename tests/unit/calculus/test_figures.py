from __future__ import annotations

import math

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.unit.calculus.claims import leak_by_size, leak_by_time
from tests.unit.calculus.simulate import measure

from semel.calculus.elements import (
    Crash,
    Dedup,
    DurableElement,
    Element,
    LinkElement,
    ParallelElement,
    PipeElement,
    Series,
)
from semel.calculus.figures import Figures, distribution, figures, product_bound, sigma, transmissions, variance
from semel.errors import ConfigError

shares = st.floats(0, 1)
below_one = st.floats(0, 0.95)
links = st.builds(LinkElement, loss=shares, duplicate=shares, confirm_loss=shares)
hops = links | st.builds(PipeElement, links, st.integers(1, 5), st.booleans())
open_links = st.builds(LinkElement, loss=below_one, confirm_loss=below_one)


def pair(got: Figures) -> tuple[float, float]:
    return got.reliability, got.uniqueness


@given(below_one, below_one, st.integers(1, 8))
def test_one_hop_in_closed_form(loss: float, confirm_loss: float, attempts: int) -> None:
    p, q, n = loss, confirm_loss, attempts
    f = p + (1 - p) * q
    got = figures(PipeElement(LinkElement(p, 0, q), n), rtt_s=0.5, timeout_s=2)
    assert got.reliability == pytest.approx(1 - p**n)
    assert got.copies == pytest.approx((1 - f**n) / (1 - q))
    assert got.uniqueness == pytest.approx((1 - p**n) * (1 - q) / (1 - f**n))
    assert got.attempts == pytest.approx((1 - f**n) / ((1 - p) * (1 - q)))
    assert got.time_s == pytest.approx((got.attempts - 1) * 2 + (1 - f**n) * 0.5 + f**n * 2)
    assert got.exact


@given(below_one, below_one)
def test_without_end_in_closed_form(loss: float, confirm_loss: float) -> None:
    got = figures(PipeElement(LinkElement(loss, 0, confirm_loss), None), rtt_s=0.25, timeout_s=1)
    attempts = 1 / ((1 - loss) * (1 - confirm_loss))
    assert pair(got) == pytest.approx((1, 1 - confirm_loss))
    assert got.attempts == pytest.approx(attempts)
    assert got.time_s == pytest.approx(0.25 + (attempts - 1))


@given(below_one, st.integers(1, 8))
def test_blind_repeats_in_closed_form(loss: float, times: int) -> None:
    got = figures(LinkElement(loss, repeats=times - 1))
    assert got.copies == pytest.approx((1 - loss) * times)
    assert got.uniqueness == pytest.approx((1 - loss**times) / ((1 - loss) * times))
    never_confirmed = figures(PipeElement(LinkElement(loss, 0, 1.0), times))
    assert (never_confirmed.copies, never_confirmed.reliability) == pytest.approx((got.copies, got.reliability))


def test_the_copies_of_a_sender_without_end_are_geometric() -> None:
    got = distribution(PipeElement(LinkElement(0.3, 0, 0.4), None), 12)
    assert got == pytest.approx([0.0] + [0.6 * 0.4 ** (k - 1) for k in range(1, 12)], abs=1e-11)


def test_a_distribution_counted_by_hand() -> None:
    assert distribution(LinkElement(0.25, repeats=2), 5) == pytest.approx(
        [1 / 64, 9 / 64, 27 / 64, 27 / 64, 0], abs=1e-11
    )


@given(hops, hops)
def test_the_product_is_a_lower_bound_and_both_gain_alike(first: Element, second: Element) -> None:
    one, two, both = figures(first), figures(second), figures(Series([first, second]))
    bound = product_bound([first, second])
    assert bound == one.delivery_mode * two.delivery_mode
    assert both.reliability >= bound.reliability - 1e-9
    assume(both.reliability > 1e-6)
    assert both.uniqueness >= bound.uniqueness - 1e-9
    assert both.copies == pytest.approx(one.copies * two.copies, rel=1e-6)
    gain = both.reliability / bound.reliability
    assert both.uniqueness / bound.uniqueness == pytest.approx(gain, rel=1e-6)


@given(st.lists(hops, min_size=2, max_size=4))
def test_the_bound_holds_for_longer_ways(elements: list[Element]) -> None:
    bound, exact = product_bound(elements), figures(Series(elements))
    assert exact.reliability >= bound.reliability - 1e-9
    assert exact.uniqueness >= bound.uniqueness - 1e-9 or exact.reliability < 1e-9


@given(st.builds(LinkElement, loss=below_one), hops)
def test_equal_when_the_first_makes_no_duplicates(first: Element, second: Element) -> None:
    assert_equal_to_product(first, second)


@given(hops, st.builds(PipeElement, open_links, st.none()))
def test_equal_when_the_second_loses_nothing(first: Element, second: Element) -> None:
    assert_equal_to_product(first, second)


def assert_equal_to_product(first: Element, second: Element) -> None:
    bound, both = product_bound([first, second]), figures(Series([first, second]))
    assert both.reliability == pytest.approx(bound.reliability, abs=1e-9)
    if both.reliability > 1e-6:
        assert both.uniqueness == pytest.approx(bound.uniqueness, abs=1e-6)


@given(st.floats(0.05, 0.9), st.floats(0.05, 0.9), st.floats(0.05, 0.9))
def test_more_than_the_product_otherwise(loss: float, confirm_loss: float, later: float) -> None:
    elements = [PipeElement(LinkElement(loss, 0, confirm_loss), 3), LinkElement(later)]
    assert figures(Series(elements)).reliability > product_bound(elements).reliability + 1e-7


def test_the_product_is_no_bound_for_a_cascade() -> None:
    elements = [PipeElement(LinkElement(0.2, 0, 0.1), None, cascade=True), LinkElement(0.3, 0, 0.4)]
    assert figures(Series(elements)).uniqueness == pytest.approx(0.9 * 0.6)
    bound = product_bound(elements)
    assert (bound.reliability, bound.uniqueness) == pytest.approx((0.7, 0.9))


@given(hops, hops)
def test_parallel_in_closed_form(first: Element, second: Element) -> None:
    one, two, both = figures(first), figures(second), figures(ParallelElement([first, second]))
    assert both.reliability == pytest.approx(1 - (1 - one.reliability) * (1 - two.reliability))
    assert both.copies == pytest.approx(one.copies + two.copies)


def test_the_spread_is_what_repeated_counts_show() -> None:
    path = Series([PipeElement(LinkElement(0.3, 0.1, 0.4), 3), LinkElement(0.2)])
    runs, messages = 150, 60
    expected = sigma(path, messages)
    counted = [measure(path, messages, seed)[0] for seed in range(runs)]
    for name, values in {
        "reliability": [c.unique / c.sent for c in counted],
        "copies": [c.received / c.sent for c in counted],
        "uniqueness": [c.unique / c.received for c in counted],
    }.items():
        mean = sum(values) / runs
        spread = math.sqrt(sum((value - mean) ** 2 for value in values) / (runs - 1))
        assert spread == pytest.approx(getattr(expected, name), rel=0.25), name


@settings(max_examples=40)
@given(hops)
def test_variance_is_that_of_the_distribution(path: Element) -> None:
    probabilities = distribution(path, 24)  # at most 5 attempts of 2 copies: nothing lies beyond
    mean = sum(k * p for k, p in enumerate(probabilities))
    square = sum(k * k * p for k, p in enumerate(probabilities))
    assert sum(probabilities) == pytest.approx(1)
    assert variance(path) == pytest.approx(square - mean**2, abs=1e-6)


def test_no_spread_where_nothing_is_left_to_chance() -> None:
    assert sigma(LinkElement(), 100) == sigma(LinkElement(loss=1), 100)
    assert sigma(LinkElement(), 100).uniqueness == 0
    assert sigma(PipeElement(LinkElement(0, 0, 1.0), None), 10).copies == math.inf


def test_what_hardly_ever_arrives_still_arrives_once() -> None:
    got = figures(Series([LinkElement(0.999)] * 10))
    assert pair(got) == pytest.approx((1e-30, 1), rel=1e-9)
    assert not got.notes
    doubled = figures(Series([LinkElement(0.999)] * 10 + [LinkElement(duplicate=1.0)]))
    assert pair(doubled) == pytest.approx((1e-30, 0.5), rel=1e-9)


@given(below_one)
def test_one_is_one_in_spite_of_rounding(loss: float) -> None:
    way = PipeElement(Series([LinkElement(loss), LinkElement(0.1), LinkElement(loss / 3)]), None)
    assert pair(figures(way)) == (1, 1)


class TestLeak:
    pipe = PipeElement(LinkElement(0.3, 0, 0.4), None, dedup=True)

    def test_without_a_memory_there_is_none(self) -> None:
        assert figures(PipeElement(LinkElement(0.3, 0, 0.4), None)).leak is None
        assert figures(LinkElement(0.3)).leak is None

    def test_a_memory_for_good_leaks_nothing(self) -> None:
        assert figures(self.pipe).leak == 0

    def test_bounded(self) -> None:
        by_time, by_size = leak_by_time(0.3, 0.4, 5, 2), leak_by_size(0.3, 0.4, 40, 10)
        assert figures(self.pipe, timeout_s=2, keep_s=5).leak == pytest.approx(by_time)
        assert figures(self.pipe, size=40, others_per_timeout=10).leak == pytest.approx(by_size)
        both = figures(self.pipe, timeout_s=2, keep_s=5, size=40, others_per_timeout=10)
        assert both.leak == pytest.approx(max(by_time, by_size))

    @pytest.mark.parametrize(
        "pipe", [PipeElement(LinkElement(0.3), 3, True, True), PipeElement(LinkElement(0.3), 3, True, overlap=1)]
    )
    def test_a_leak_that_is_only_near(self, pipe: PipeElement) -> None:
        assert figures(pipe).exact
        bounded = figures(pipe, keep_s=2)
        assert not bounded.exact
        assert "on receipt" in bounded.notes[0]

    def test_a_longer_way_leaks_like_one_link(self) -> None:
        way = PipeElement(Series([LinkElement(0.1, 0, 0.2), LinkElement(0.2, 0, 0.3)]), None, dedup=True)
        assert figures(way, keep_s=3).leak == pytest.approx(leak_by_time(1 - 0.9 * 0.8, 1 - 0.8 * 0.7, 3, 1))
        assert figures(PipeElement(LinkElement(1.0), 3, dedup=True), keep_s=3).leak == 0


class TestEffort:
    def test_a_way_without_confirms(self) -> None:
        got = figures(Series([LinkElement(0.1), DurableElement(), LinkElement(0.2)]), rtt_s=3)
        assert (got.attempts, got.time_s) == (1, 0)
        assert figures(Series([])) == Figures(1, 1, 1, 1, 0, None, True)

    def test_a_point_before_the_sender(self) -> None:
        got = figures(Series([Crash(0.5), DurableElement(), PipeElement(LinkElement(0.5), None)]))
        assert (got.reliability, got.attempts) == pytest.approx((0.5, 2))

    def test_a_redundant_send_takes_as_long_as_the_slower(self) -> None:
        slow, fast = PipeElement(LinkElement(0.5), None), PipeElement(LinkElement(0.1), None)
        got = figures(ParallelElement([fast, slow]), rtt_s=0.1)
        assert got.attempts == pytest.approx(2)
        assert got.time_s == pytest.approx(0.1 + 1)

    def test_late_confirms_are_asked_for(self) -> None:
        got = figures(PipeElement(LinkElement(), None), rtt_s=2.5, timeout_s=1)
        assert not got.exact
        assert "overlap=2" in got.notes[0]
        told = figures(PipeElement(LinkElement(), None, overlap=2), rtt_s=2.5, timeout_s=1)
        assert told.exact
        assert (told.copies, told.uniqueness, told.attempts, told.time_s) == pytest.approx((3, 1 / 3, 3, 2.5))

    def test_transmissions(self) -> None:
        assert transmissions(Series([LinkElement(0.1, repeats=1), LinkElement(0.5)])) == pytest.approx(2 + 1.8)
        assert transmissions(ParallelElement([LinkElement(), LinkElement(0.5)])) == 2
        assert transmissions(Series([LinkElement(0.5), Dedup(), Crash(0.2), LinkElement()])) == pytest.approx(
            1 + 0.5 * 0.8
        )
        assert transmissions(PipeElement(LinkElement(0.5, 0, 0.5), None)) == pytest.approx(4)
        assert transmissions(PipeElement(LinkElement(loss=1), None)) == math.inf
        assert transmissions(DurableElement()) == 0


def test_what_is_only_a_bound_says_so() -> None:
    uneven = ParallelElement([LinkElement(0.1, 0, 0.1), LinkElement(0.1, 0, 0.5)])
    assert figures(PipeElement(uneven, 3)).exact
    assert "the worst is taken" in figures(PipeElement(PipeElement(uneven, 2), 3)).notes[0]
    even = ParallelElement([LinkElement(0.1, 0, 0.1), LinkElement(0.2, 0, 0.1)])
    assert figures(PipeElement(PipeElement(even, 2), 3)).exact
    assert not figures(PipeElement(Series([uneven, Dedup(), LinkElement(0.1)]), 2)).exact
    cascade = Series([PipeElement(LinkElement(0.1, 0, 0.1), 3, cascade=True), Dedup(), LinkElement(0.1)])
    assert "lower bounds" in figures(ParallelElement([cascade])).notes[0]


@pytest.mark.parametrize("settings", [{"rtt_s": -1}, {"timeout_s": 0}, {"keep_s": 0.0}, {"size": 0}])
def test_wrong_settings(settings: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        figures(PipeElement(LinkElement(), 1, dedup=True), **settings)  # type: ignore[arg-type]
