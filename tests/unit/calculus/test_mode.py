from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.calculus.claims import rule_of_three

from semel.calculus.mode import DeliveryMode, MessageCounts, Mode, sample_size
from semel.errors import ConfigError, InputError


class TestDeliveryMode:
    @pytest.mark.parametrize(
        ("reliability", "uniqueness", "mode"),
        [
            (0.9, 0.9, Mode.UNRELIABLE),
            (0.9, 1.0, Mode.AT_MOST_ONCE),
            (1.0, 0.9, Mode.AT_LEAST_ONCE),
            (1.0, 1.0, Mode.EXACTLY_ONCE),
            (0.0, 1.0, Mode.AT_MOST_ONCE),
            (1.0, math.nextafter(1, 0), Mode.AT_LEAST_ONCE),
            (math.nextafter(1, 0), 1.0, Mode.AT_MOST_ONCE),
        ],
    )
    def test_corners_and_borders(self, reliability: float, uniqueness: float, mode: Mode) -> None:
        assert DeliveryMode(reliability, uniqueness).mode() is mode

    def test_tends_to(self) -> None:
        assert DeliveryMode(0.9999, 0.9999).tends_to(0.001) == "tends to exactly once"
        assert DeliveryMode(1.0, 1.0).tends_to(0.001) == "exactly once"
        assert DeliveryMode(0.9999, 0.5).tends_to(0.001) == "tends to at least once"
        assert DeliveryMode(0.99, 1.0).tends_to(0.001) == "at most once"
        assert DeliveryMode(0.99, 0.9995).tends_to(0.001) == "tends to at most once"

    def test_the_product(self) -> None:
        assert DeliveryMode(0.5, 0.8) * DeliveryMode(0.5, 0.5) == DeliveryMode(0.25, 0.4)

    @pytest.mark.parametrize("values", [(1.1, 1), (0.5, -0.1), (math.nan, 1)])
    def test_only_shares(self, values: tuple[float, float]) -> None:
        with pytest.raises(ConfigError, match="no probability"):
            DeliveryMode(*values)


ids = st.integers(0, 8)


class TestCounts:
    @given(st.lists(ids, max_size=12), st.lists(st.integers(0, 12), max_size=30))
    def test_from_any_trace(self, sent: list[int], received: list[int]) -> None:
        counts = MessageCounts.of(sent, received)
        known = [id for id in received if id in sent]
        assert (counts.sent, counts.unique, counts.received) == (len(set(sent)), len(set(known)), len(known))
        assert counts.squares == sum(known.count(id) ** 2 for id in set(known))
        for figure in (counts.reliability, counts.uniqueness):
            assert figure is None or 0 <= figure <= 1
        assert (counts.reliability is None or counts.uniqueness is None) == bool(counts.undefined)

    def test_nothing_sent_or_received(self) -> None:
        nothing, lost = MessageCounts(0, 0, 0), MessageCounts(5, 0, 0)
        assert (nothing.reliability, nothing.uniqueness, nothing.duplication_rate) == (None, None, None)
        assert nothing.undefined == "R and UR are undefined: nothing was sent"
        assert (lost.reliability, lost.uniqueness, lost.duplication_rate) == (0.0, None, None)
        assert lost.undefined == "UR is undefined: nothing was received"
        assert nothing.reliability_interval() == nothing.uniqueness_interval() == (0.0, 1.0)
        assert nothing.verdict(0.1).mode is None
        assert nothing.verdict(0.1).words == nothing.undefined
        assert rule_of_three(nothing) is None
        assert MessageCounts(1, 1, 1).undefined == ""

    @pytest.mark.parametrize(
        "numbers",
        [(1, 2, 2), (3, 2, 1), (3, 0, 1), (-1, 0, 0), (2, 2, 4, 7), (2, 2, 4, 11), (0, 0, 0, 1)],
    )
    def test_numbers_that_cannot_be(self, numbers: tuple[int, ...]) -> None:
        with pytest.raises((InputError, ConfigError)) as caught:
            MessageCounts(*numbers)
        assert caught.value.fix

    def test_squares_at_their_bounds(self) -> None:
        assert MessageCounts(2, 2, 4, 8).squares == 8  # 2 + 2
        assert MessageCounts(2, 2, 4, 10).squares == 10  # 3 + 1


class TestIntervals:
    def test_wilson(self) -> None:
        # solved by hand: the p with (share - p)^2 = z^2 p (1 - p) / n
        low, high = MessageCounts(10, 8, 8).reliability_interval()
        for p in (low, high):
            assert (0.8 - p) ** 2 == pytest.approx(1.96**2 * p * (1 - p) / 10)
        assert MessageCounts(100, 100, 100).reliability_interval() == (pytest.approx(100 / (100 + 1.96**2)), 1.0)
        assert MessageCounts(100, 0, 0).reliability_interval()[0] == 0.0

    def test_wilson_covers(self) -> None:
        chance, inside = random.Random(3), 0
        for _ in range(1000):
            arrived = sum(chance.random() < 0.9 for _ in range(60))
            low, high = MessageCounts(60, arrived, arrived).reliability_interval()
            inside += low <= 0.9 <= high
        assert 920 <= inside <= 980

    def test_the_interval_of_uniqueness_covers(self) -> None:
        """K = 0 with 0.2, otherwise geometric: UR is 0.6."""
        chance, inside = random.Random(4), 0
        for _ in range(500):
            copies = []
            for _ in range(150):
                count = 0 if chance.random() < 0.2 else 1
                while count and chance.random() < 0.4:
                    count += 1
                copies.append(count)
            counts = MessageCounts(150, sum(map(bool, copies)), sum(copies), sum(c * c for c in copies))
            low, high = counts.uniqueness_interval()
            inside += low <= 0.6 <= high
        assert 455 <= inside <= 495

    def test_every_message_exactly_twice_is_no_guess(self) -> None:
        assert MessageCounts(10, 10, 20, 40).uniqueness_interval() == (0.5, 0.5)

    def test_without_squares_the_worst_is_taken(self) -> None:
        counts = MessageCounts(10, 10, 20)
        assert counts.uniqueness_interval() == counts.uniqueness_interval(11**2 + 9)
        assert counts.uniqueness_interval(40) == (0.5, 0.5)

    def test_no_duplicate_is_no_proof(self) -> None:
        low, high = MessageCounts(1000, 1000, 1000).uniqueness_interval()
        assert high == 1
        assert low == pytest.approx(1 - 1.96**2 / 1000, abs=1e-4)


class TestVerdict:
    def test_each_mode(self) -> None:
        n = 100_000
        cases = {
            "tends to exactly once": MessageCounts(n, n, n),
            "tends to at least once": MessageCounts(n, n, 2 * n, 4 * n),
            "tends to at most once": MessageCounts(n, n // 2, n // 2),
            "unreliable": MessageCounts(n, n // 2, n, 2 * n),
        }
        for words, counts in cases.items():
            verdict = counts.verdict(0.001)
            assert verdict.words == words
            assert verdict.mode is not None
            assert verdict.mode.value in words

    def test_too_few_messages(self) -> None:
        verdict = MessageCounts(100, 100, 100).verdict(0.001)
        assert verdict.mode is None
        assert "too few" in verdict.words
        assert MessageCounts(100, 100, 100).verdict(0.0).mode is None

    def test_one_lost_in_many_still_tends_to_exactly_once(self) -> None:
        n = 100_000
        assert MessageCounts(n, n - 1, n - 1).verdict(0.001).mode is Mode.EXACTLY_ONCE
        assert MessageCounts(n, n - 1, n - 1).verdict(0.0).words == "undecided: too few messages for this tolerance"


class TestSampleSize:
    def test_none_lost(self) -> None:
        assert sample_size(0.999) == math.ceil(math.log(0.05) / math.log(0.999)) == 2995
        assert sample_size(0.95) == 59

    @pytest.mark.parametrize("lost", [0, 1, 3])
    def test_it_is_the_smallest(self, lost: int) -> None:
        def passes(n: int) -> float:
            return sum(math.comb(n, k) * 0.1**k * 0.9 ** (n - k) for k in range(lost + 1))

        size = sample_size(0.9, 0.95, lost)
        assert passes(size) <= 0.05 < passes(size - 1)

    def test_the_rule_of_three(self) -> None:
        bound = rule_of_three(MessageCounts(1000, 1000, 1000))
        assert bound == 0.003
        assert sample_size(1 - bound) == pytest.approx(1000, rel=0.002)
        assert rule_of_three(MessageCounts(1000, 999, 999)) is None

    @pytest.mark.parametrize("arguments", [(1.0,), (0.0,), (0.9, 1.0), (0.9, 0.0)])
    def test_what_no_number_shows(self, arguments: tuple[float, ...]) -> None:
        with pytest.raises(InputError, match="no number of messages"):
            sample_size(*arguments)
