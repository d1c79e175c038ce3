"""What is commonly said about reliability and uniqueness; where it is loose, the condition that makes it true.

The claims are numbered as in the text that they are taken from; the remarks where it is loose have letters.
"""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.calculus.claims import (
    effective_confirm_loss,
    horizon_s,
    keep_for_leak,
    keep_for_uniqueness,
    leak_by_size,
    leak_by_time,
    outlasts,
    retries_for,
    retries_for_reliability,
    rule_of_three,
    size_for_leak,
    smallest,
    uniqueness_without_dedup,
)
from tests.unit.calculus.simulate import measure

from semel.calculus.dedup import leak, monotonic_reliability, strict_reliability
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
from semel.calculus.figures import Figures, Unreachable, figures, product_bound, transmissions, window_for_throughput
from semel.calculus.mode import DeliveryMode, MessageCounts, Mode, sample_size
from semel.calculus.timing import copies_without_loss
from semel.errors import ConfigError
from semel.kernel.dedup import IdWindow, MonotonicIndex, Passed, StrictIndex
from semel.kernel.retry import RetryPolicy

LOCAL = LinkElement()


def hop(loss: float, confirm_loss: float, attempts: int | None, dedup: bool = False) -> PipeElement:
    return PipeElement(LinkElement(loss, 0, confirm_loss), attempts, dedup)


def pair(got: Figures | DeliveryMode) -> tuple[float, float]:
    return got.reliability, got.uniqueness


class TestFigures:
    def test_01_reliability_is_at_most_one(self) -> None:
        """With stable ids, and when ids that nobody sent do not count."""
        counts = MessageCounts.of(sent="abc", received="aabzzz")
        assert (counts.reliability, counts.received) == (2 / 3, 3)

    def test_02_uniqueness_of_a_half_is_twice_on_average(self) -> None:
        counts = MessageCounts.of(sent="ab", received="aaab")
        assert counts.uniqueness == 0.5
        assert counts.duplication_rate == 2
        assert counts.squares == 3**2 + 1**2  # and yet b came only once

    def test_03_four_modes(self) -> None:
        modes = {(r, u): DeliveryMode(r, u).mode() for r in (0.5, 1.0) for u in (0.5, 1.0)}
        assert modes == {
            (0.5, 0.5): Mode.UNRELIABLE,
            (0.5, 1.0): Mode.AT_MOST_ONCE,
            (1.0, 0.5): Mode.AT_LEAST_ONCE,
            (1.0, 1.0): Mode.EXACTLY_ONCE,
        }

    def test_04_exactly_once_relaxed(self) -> None:
        counts, _ = measure(hop(0.3, 0.3, None, dedup=True), 10_000, seed=1)
        assert (counts.unique, counts.received) == (10_000, 10_000)
        assert rule_of_three(counts) == pytest.approx(0.0003)
        assert counts.verdict(0.001).words == "tends to exactly once"
        assert counts.verdict(0.0).mode is None


class TestSeries:
    AMO, ALO = LinkElement(0.3), hop(0.2, 0.4, None)

    def test_05_figures_multiply(self) -> None:
        """Only when the first makes no duplicates or the second loses nothing; otherwise it is a lower bound."""
        assert pair(figures(Series([self.AMO, self.ALO]))) == pytest.approx(pair(product_bound([self.AMO, self.ALO])))
        other_way = pair(figures(Series([self.ALO, self.AMO])))
        assert other_way == pytest.approx((0.7 / (1 - 0.4 * 0.3), 0.6 / (1 - 0.4 * 0.3)))
        assert other_way == pytest.approx((0.795, 0.682), abs=5e-4)
        assert pair(product_bound([self.ALO, self.AMO])) == pytest.approx((0.7, 0.6))

    MODES: dict[Mode, Element] = {  # noqa: RUF012
        Mode.UNRELIABLE: LinkElement(0.3, duplicate=0.3),
        Mode.AT_MOST_ONCE: AMO,
        Mode.AT_LEAST_ONCE: ALO,
        Mode.EXACTLY_ONCE: LOCAL,
    }

    @pytest.mark.parametrize("first", Mode)
    @pytest.mark.parametrize("second", Mode)
    def test_06_modes_in_series(self, first: Mode, second: Mode) -> None:
        """A mode promises both things or one of them, and a series only what both parts promise."""
        path = Series([self.MODES[first], self.MODES[second]])
        keeps_all = {Mode.AT_LEAST_ONCE, Mode.EXACTLY_ONCE}
        keeps_one = {Mode.AT_MOST_ONCE, Mode.EXACTLY_ONCE}
        expected = Mode.of({first, second} <= keeps_all, {first, second} <= keeps_one)
        assert figures(path).delivery_mode.mode() is expected
        counts, _ = measure(path, 3_000, seed=2)
        assert counts.verdict(0.01).mode is expected

    def test_06_the_four_examples(self) -> None:
        def mode(*parts: Mode) -> Mode:
            return figures(Series([self.MODES[part] for part in parts])).delivery_mode.mode()

        assert mode(Mode.AT_MOST_ONCE, Mode.AT_LEAST_ONCE) is Mode.UNRELIABLE
        assert mode(Mode.EXACTLY_ONCE, Mode.AT_LEAST_ONCE) is Mode.AT_LEAST_ONCE
        assert mode(Mode.EXACTLY_ONCE, Mode.AT_MOST_ONCE) is Mode.AT_MOST_ONCE
        assert all(mode(Mode.UNRELIABLE, other) is Mode.UNRELIABLE for other in Mode)

    def test_06_unreliable_and_then_a_memory_is_at_most_once(self) -> None:
        """So "unreliable with anything is unreliable" needs: with anything that has no memory of the whole way."""
        path = Series([self.MODES[Mode.UNRELIABLE], self.ALO, Dedup()])
        assert figures(path).delivery_mode.mode() is Mode.AT_MOST_ONCE

    @pytest.mark.parametrize("hops", [1, 5, 30])
    def test_07_long_ways_decay_unless_wrapped(self, hops: int) -> None:
        way = Series([LinkElement(0.1, 0, 0.1)] * hops)
        assert figures(way).reliability == pytest.approx(0.9**hops)
        assert figures(PipeElement(way, None)).reliability == pytest.approx(1)
        assert figures(PipeElement(way, 100)).reliability == pytest.approx(1 - (1 - 0.9**hops) ** 100)

    def test_dedup_belongs_at_the_end(self) -> None:
        hops = hop(0.5, 0.5, 3), hop(0.5, 0.5, 3)
        end, between = figures(Series([*hops, Dedup()])), figures(Series([hops[0], Dedup(), hops[1]]))
        assert pair(end) == (pytest.approx(0.793, abs=5e-4), 1)
        assert pair(between) == pytest.approx((0.875**2, figures(hops[1]).uniqueness))
        assert between.reliability == pytest.approx(0.766, abs=5e-4)

    def test_parallel(self) -> None:
        assert pair(figures(ParallelElement([LOCAL, LOCAL]))) == (1, 0.5)
        assert pair(figures(ParallelElement([LinkElement(0.1), LinkElement(0.3)]))) == pytest.approx((0.97, 0.97 / 1.6))


class TestPipes:
    def test_08_local_delivery_is_exactly_once_while_both_live(self) -> None:
        assert pair(figures(LOCAL)) == (1, 1)
        assert pair(figures(Series([LOCAL, Crash(0.2)]))) == (0.8, 1)

    def test_09_a_pipe_is_measured_without_its_ends(self) -> None:
        pipe = hop(0.2, 0.2, 5, dedup=True)
        delivery = Series([LOCAL, pipe, LinkElement(0.1)])
        assert figures(pipe).reliability == pytest.approx(1 - 0.2**5)
        assert figures(delivery).reliability == pytest.approx(0.9 * figures(pipe).reliability)

    @pytest.mark.parametrize("confirm_loss", [0.0, 0.5, 1.0])
    def test_10_retries_halve_the_loss(self, confirm_loss: float) -> None:
        """R is 1 - p^N, whatever becomes of the confirms."""
        got = [figures(hop(0.5, confirm_loss, attempts)).reliability for attempts in (1, 2, 3, None)]
        assert got == pytest.approx([0.5, 0.75, 0.875, 1.0])

    def test_11_retries_cost_uniqueness(self) -> None:
        got = [pair(figures(hop(0.5, 0.5, attempts))) for attempts in (1, 2, 3, None)]
        assert [uniqueness for _, uniqueness in got] == pytest.approx([1, 0.857, 0.757, 0.5], abs=5e-4)
        assert pair(figures(hop(0.3, 0.2, 3))) == pytest.approx((0.973, 0.851), abs=5e-4)

    def test_12_confirms_and_timeouts_drive_the_retries(self) -> None:
        assert figures(hop(0, 0, None)).attempts == 1
        assert copies_without_loss(rtt_s=0.9, timeout_s=1) == 1
        assert copies_without_loss(rtt_s=1.1, timeout_s=1) == 2
        assert figures(hop(0.5, 0, None), rtt_s=0.1, timeout_s=3).time_s == pytest.approx(0.1 + 3)

    def test_13_what_is_received_twice_stays_so_but_need_not_be_passed_on(self) -> None:
        before = hop(0.2, 0.5, None)
        assert figures(before).uniqueness == pytest.approx(0.5)
        assert pair(figures(Series([before, Dedup()]))) == (1, 1)

    def test_14_dedup_by_id(self) -> None:
        """Doubled, replayed and shuffled as they like: UR 1 and R as it was, with a memory that is large enough."""
        chance = random.Random(3)
        arrived = [id for id in range(200) if id % 5] * 3
        chance.shuffle(arrived)
        window = IdWindow(size=200, keep_s=10)
        passed = [id for id in arrived if window.is_new(str(id), 0.0)]
        counts = MessageCounts.of(range(200), passed)
        assert (counts.reliability, counts.uniqueness) == (0.8, 1.0)
        assert leak(0.3, 0.4, span=1) == 0.4
        assert leak(0.3, 0.4, span=9) == pytest.approx(0.4 * 0.58**8)

    def test_15_dedup_by_index_costs_reliability_where_order_is_lost(self) -> None:
        assert monotonic_reliability(100) == pytest.approx(0.0519, abs=5e-5)
        assert monotonic_reliability(1) == 1
        assert strict_reliability(0.001, 1000) == pytest.approx(0.63, abs=0.005)
        strict: StrictIndex[str] = StrictIndex()
        assert strict.offer(1, "a", 0.0) == Passed(((1, "a"),))
        assert not isinstance(strict.offer(3, "c", 0.0), Passed)


class TestErrorsOnTheWay:
    def test_16_a_stage_multiplies(self) -> None:
        """When the hop before it makes no duplicates: each copy that comes has its own chance to live."""
        clean = [hop(0.2, 0, None), Crash(0.3), hop(0.2, 0, None)]
        assert figures(Series(clean)).reliability == pytest.approx(0.7)
        doubled = [hop(0.2, 0.4, None), Crash(0.3), hop(0.2, 0, None)]
        assert figures(Series(doubled)).reliability == pytest.approx(1 - 0.6 * 0.3 / (1 - 0.4 * 0.3))
        once = [hop(0.2, 0.4, None, dedup=True), Crash(0.3), hop(0.2, 0, None)]
        assert figures(Series(once)).reliability == pytest.approx(0.7)

    def test_17_an_injected_pipe_gets_around_it(self) -> None:
        way = Series([LinkElement(0.2, 0, 0.1), Crash(0.3), LinkElement(0.1, 0, 0.1)])
        assert pair(figures(PipeElement(way, None, dedup=True))) == pytest.approx((1, 1))
        counts, _ = measure(PipeElement(way, None, dedup=True), 2_000, seed=4)
        assert (counts.unique, counts.received) == (2_000, 2_000)

    @pytest.mark.parametrize("bad", range(4))
    def test_18_a_cascade_holds_the_message_until_the_last_confirms(self, bad: int) -> None:
        stages: list[Element] = [
            LinkElement(0.1, 0, 0.1),
            LinkElement(0.1, 0, 0.1),
            Crash(0.0),
            LinkElement(0.1, 0, 0.1),
        ]
        stages[bad] = Crash(0.6) if bad == 2 else LinkElement(0.6, 0, 0.1)
        first, *onward = stages
        assert figures(Series([PipeElement(first, None, cascade=True), *onward])).reliability == pytest.approx(1)
        on_receipt = figures(Series([PipeElement(first, None), *onward])).reliability
        assert on_receipt < 0.9

    def test_18_in_closed_form(self) -> None:
        way = Series([PipeElement(LinkElement(0.2, 0, 0.1), 5, cascade=True), LinkElement(0.3, 0, 0.4)])
        assert figures(way).reliability == pytest.approx(1 - (1 - 0.8 * 0.7) ** 5)
        endless = Series([PipeElement(LinkElement(0.2, 0, 0.1), None, cascade=True), LinkElement(0.3, 0, 0.4)])
        assert pair(figures(endless)) == pytest.approx((1, 0.9 * 0.6))
        for z in (0.0, 0.5):
            around = PipeElement(Series([LinkElement(0.2, 0, 0.1), LinkElement(0.3, 0, 0.4)]), 5)
            assert way.apply(0.0, z)[1] == pytest.approx(around.apply(0.0, z)[1])

    def test_18_a_memory_in_a_cascade(self) -> None:
        """It saves the confirm that is lost on the way back, not the one that is lost onward."""
        onward = LinkElement(0.3, 0, 0.4)
        assert figures(
            Series([PipeElement(LinkElement(0.2, 0, 0.5), None, True, True), onward])
        ).uniqueness == pytest.approx(0.6)
        naive = Series([PipeElement(LinkElement(0.2, 0, 0.5), None, cascade=True), Dedup(), onward])
        assert figures(naive).reliability == pytest.approx(0.7)  # it drops the resend of what went astray

    def test_19_processing_is_confirmed_when_it_is_done(self) -> None:
        processed = Series([PipeElement(LinkElement(0.1, 0, 0.2), None, cascade=True), Crash(0.3)])
        received = Series([PipeElement(LinkElement(0.1, 0, 0.2), None, dedup=True), Crash(0.3)])
        assert pair(figures(processed)) == pytest.approx((1, 0.8))
        assert pair(figures(received)) == pytest.approx((0.7, 1))

    def test_20_a_store_holds_while_it_keeps_the_data(self) -> None:
        way = Series([hop(0.2, 0.2, None, dedup=True), DurableElement(), hop(0.2, 0.2, None, dedup=True)])
        assert pair(figures(way)) == pytest.approx((1, 1))
        assert outlasts(time_s=60, outage_mean_s=60) == pytest.approx(1 - 1 / math.e)
        assert outlasts(time_s=24 * 3600, outage_mean_s=60) == pytest.approx(1)

    @pytest.mark.parametrize(
        ("hops", "cascade", "stored"),
        [(1, 1.23, 1.23), (2, 2.90, 2.47), (3, 5.10, 3.70), (5, 11.7, 6.17), (8, 30.7, 9.88)],
    )
    def test_20_what_a_store_saves(self, hops: int, cascade: float, stored: float) -> None:
        link = LinkElement(0.1, 0, 0.1)
        assert transmissions(Series([PipeElement(link, None, cascade=True), *[link] * (hops - 1)])) == pytest.approx(
            cascade, rel=5e-3
        )
        assert transmissions(Series([PipeElement(link, None, dedup=True), DurableElement()] * hops)) == pytest.approx(
            stored, rel=5e-3
        )

    def test_20_a_cascade_ends_at_the_store(self) -> None:
        to_store = Series(
            [PipeElement(LinkElement(0.1, 0, 0.1), None, cascade=True), DurableElement(), LinkElement(0.9)]
        )
        assert figures(to_store).attempts == pytest.approx(1 / 0.81)

    def test_21_reading_again_from_a_store(self) -> None:
        """All of it, perhaps repeated: B crashes before or after the effect, and reads again from its index."""
        read = PipeElement(Series([LinkElement(0.1), Crash(0.2), LinkElement(0, 0, 0.3)]), None)
        assert pair(figures(Series([hop(0.2, 0.2, None, dedup=True), DurableElement(), read]))) == pytest.approx(
            (1, 0.7)
        )

    def test_22_reading_again_from_the_start(self) -> None:
        kept = range(100)
        counts = MessageCounts.of(kept, [*range(60), *kept])  # the index was lost after 60
        assert (counts.reliability, counts.uniqueness) == (1, 100 / 160)


class TestWhereItIsLoose:
    @pytest.mark.parametrize("loss", [0.0, 0.5, 0.9])
    @pytest.mark.parametrize("confirm_loss", [0.0, 0.2, 0.5])
    def test_a_only_lost_confirms_make_duplicates(self, loss: float, confirm_loss: float) -> None:
        """UR tends to 1/2 only when half of the confirms are lost; the loss of messages has no part in it."""
        assert figures(hop(loss, confirm_loss, None)).uniqueness == pytest.approx(1 - confirm_loss)

    def test_a_and_early_timeouts(self) -> None:
        assert figures(PipeElement(LinkElement(), None, overlap=2)).uniqueness == pytest.approx(1 / 3)

    def test_b_uniqueness_is_no_probability(self) -> None:
        """The mean of unique/received over messages is another number than the ratio of the means."""
        counts = MessageCounts.of("ab", "aaab")
        assert counts.uniqueness == 0.5
        assert pytest.approx(2 / 3) == (1 / 3 + 1 / 1) / 2

    def test_c_nothing_sent_or_received(self) -> None:
        assert MessageCounts(0, 0, 0).reliability is None
        assert MessageCounts(5, 0, 0).uniqueness is None
        assert figures(LinkElement(loss=1)).uniqueness == 1
        assert "undefined" in figures(LinkElement(loss=1)).notes[0]

    def test_d_reliability_depends_on_when_it_is_read(self) -> None:
        """After n timeouts it looks as if there were only n + 1 attempts; what is in flight looks lost."""
        chance, sent = random.Random(5), 4_000
        arrives_at = [next(n for n in range(1000) if chance.random() >= 0.5) for _ in range(sent)]
        for read_at in (0, 1, 3):
            seen = sum(at <= read_at for at in arrives_at)
            low, high = MessageCounts(sent, seen, seen).reliability_interval(z=4)
            assert low <= figures(hop(0.5, 0, read_at + 1)).reliability <= high
        assert MessageCounts(sent, sent, sent).reliability == figures(hop(0.5, 0, None)).reliability == 1

    def test_e_in_an_outage_the_horizon_counts_and_not_the_retries(self) -> None:
        many = RetryPolicy(retries=30, interval_s=1)
        few = RetryPolicy(retries=6, interval_s=1, factor=2)
        assert (horizon_s(many), horizon_s(few)) == (30, 63)
        assert outlasts(horizon_s(few), 60) > outlasts(horizon_s(many), 60)
        assert figures(hop(0.5, 0, 31)).reliability > figures(hop(0.5, 0, 7)).reliability  # were losses independent

    def test_f_late_confirms_that_are_ignored_are_lost(self) -> None:
        in_time, confirm_loss = 0.7, 0.2
        chance, copies, messages = random.Random(6), 0, 20_000
        for _ in range(messages):
            while True:
                copies += 1
                if chance.random() >= confirm_loss and chance.random() < in_time:
                    break
        lost = effective_confirm_loss(confirm_loss, in_time)
        assert messages / copies == pytest.approx(figures(hop(0, lost, None)).uniqueness, abs=0.015)
        assert figures(hop(0, effective_confirm_loss(0, 0), None)).copies == math.inf == copies_without_loss(6, 5, True)

    def test_g_a_sender_must_live_or_have_written_it_down(self) -> None:
        assert figures(Series([Crash(0.1), hop(0.2, 0.2, None)])).reliability == pytest.approx(0.9)
        assert figures(Series([DurableElement(), hop(0.2, 0.2, None)])).reliability == pytest.approx(1)

    def test_h_lower_or_equal(self) -> None:
        trace = [1, 2, 2, 3, 3]
        index, last, only_lower = MonotonicIndex(), 0, []
        for arrived in trace:
            if not arrived < last:
                only_lower.append(arrived)
                last = arrived
        assert only_lower == trace
        assert [arrived for arrived in trace if index.is_new(arrived)] == [1, 2, 3]

    def test_i_one_is_never_measured(self) -> None:
        counts = MessageCounts(2_995, 2_995, 2_995)
        assert counts.reliability == 1
        assert counts.reliability_interval()[0] < 1
        assert sample_size(0.999) == 2_995
        assert counts.verdict(0.002).mode is Mode.EXACTLY_ONCE
        assert counts.verdict(0.0001).mode is None

    def test_j_a_resend_keeps_its_id(self) -> None:
        attempts = [("a", 1), ("a", 2), ("b", 1)]  # (content, fresh id of each attempt)
        by_content = MessageCounts.of("ab", [content for content, _ in attempts])
        by_attempt = MessageCounts.of(attempts, attempts)
        assert by_content.uniqueness == 2 / 3
        assert by_attempt.uniqueness == 1  # twice the same, and nothing shows it


# -- what reaches a figure that is wanted


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
