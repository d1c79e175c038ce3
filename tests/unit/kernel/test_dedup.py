"""The three ways to tell new from old, each beside a naive model of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.errors import ConfigError
from semel.kernel.dedup import (
    Early,
    GapAsked,
    GapPolicy,
    GapSkipped,
    GivenUp,
    IdWindow,
    MonotonicIndex,
    OnGap,
    Overflow,
    Passed,
    Repeated,
    StrictIndex,
)

arrivals = st.lists(st.tuples(st.sampled_from("abcdefgh"), st.floats(0, 3)), max_size=60)
indexes = st.lists(st.integers(1, 12), max_size=60)


class NaiveWindow:
    """Everything seen, with its time; searched from the start each time."""

    def __init__(self, size: int, keep_s: float) -> None:
        self.size, self.keep_s = size, keep_s
        self.seen: list[tuple[str, float]] = []
        self.leaked = 0

    def is_new(self, id: str, now: float) -> bool:
        self.seen = [(seen, until) for seen, until in self.seen if until > now]
        if id in [seen for seen, _ in self.seen]:
            return False
        self.seen.append((id, now + self.keep_s))
        if len(self.seen) > self.size:
            del self.seen[0]
            self.leaked += 1
        return True


@given(st.integers(1, 5), st.floats(0.5, 8), arrivals)
def test_a_window_agrees_with_a_list(size: int, keep_s: float, arrivals: list[tuple[str, float]]) -> None:
    window, naive = IdWindow(size, keep_s), NaiveWindow(size, keep_s)
    now = 0.0
    for id, wait in arrivals:
        now += wait
        assert window.is_new(id, now) == naive.is_new(id, now)
        assert len(window) == len(naive.seen) <= size
        assert window.leaked == naive.leaked


@given(st.integers(1, 5), arrivals, arrivals)
def test_a_restored_window_goes_on(size: int, before: list[tuple[str, float]], after: list[tuple[str, float]]) -> None:
    window, now = IdWindow(size, 5.0), 0.0
    for id, wait in before:
        now += wait
        window.is_new(id, now)
    restored = IdWindow(size, 5.0)
    restored.restore(window.snapshot())
    for id, wait in after:
        now += wait
        assert restored.is_new(id, now) == window.is_new(id, now)


def test_a_repeat_does_not_extend_the_memory() -> None:
    window = IdWindow(10, 5.0)
    assert [window.is_new("a", now) for now in (0.0, 4.0, 4.9, 5.0)] == [True, False, False, True]


@pytest.mark.parametrize(("size", "keep_s"), [(0, 1.0), (1, 0.0), (-1, 1.0), (1, -1.0)])
def test_a_window_that_remembers_nothing_is_refused(size: int, keep_s: float) -> None:
    with pytest.raises(ConfigError):
        IdWindow(size, keep_s)


@given(indexes, st.integers(0, 5))
def test_monotonic_passes_what_is_above_everything_before(arrivals: list[int], last: int) -> None:
    index, top = MonotonicIndex(last), last
    for number in arrivals:
        assert index.is_new(number) == (number > top)
        top = max(top, number)
        assert index.snapshot() == top


def test_monotonic_takes_an_equal_index_for_a_duplicate() -> None:
    index = MonotonicIndex()
    assert [index.is_new(number) for number in (1, 1, 2, 2, 1)] == [True, False, True, False, False]


def test_a_restored_monotonic_goes_on() -> None:
    index = MonotonicIndex()
    index.restore(7)
    assert not index.is_new(7)
    assert index.is_new(8)


@given(indexes, st.integers(1, 6))
def test_strict_passes_each_once_and_in_order(arrivals: list[int], buffer_max: int) -> None:
    strict: StrictIndex[str] = StrictIndex(buffer_max=buffer_max)
    passed: list[int] = []
    early: set[int] = set()
    for number in arrivals:
        outcome = strict.offer(number, f"item {number}", now=0.0)
        if number <= len(passed):
            assert outcome == Repeated(waiting=False)
        elif number in early:
            assert outcome == Repeated(waiting=True)
        elif number > len(passed) + 1:
            assert outcome == (Overflow() if len(early) == buffer_max else Early())
            early |= {number} if outcome == Early() else set()
        else:
            assert isinstance(outcome, Passed)
            run = [number]
            while run[-1] + 1 in early:
                run.append(run[-1] + 1)
            assert outcome.items == tuple((index, f"item {index}") for index in run)
            passed += run
            early -= set(run)
        assert len(strict) == len(early) <= buffer_max
        assert strict.snapshot() == len(passed) + 1
    assert passed == list(range(1, len(passed) + 1))


@given(st.permutations(range(1, 9)), st.integers(1, 7))
def test_strict_loses_nothing_while_the_sender_sends_again(order: list[int], buffer_max: int) -> None:
    strict: StrictIndex[None] = StrictIndex(buffer_max=buffer_max)
    passed: list[int] = []
    for _ in range(8):
        for number in order:
            outcome = strict.offer(number, None, now=0.0)
            passed += [index for index, _ in outcome.items] if isinstance(outcome, Passed) else []
    assert passed == list(range(1, 9))


def test_waiting_for_ever_sets_no_deadline() -> None:
    strict: StrictIndex[str] = StrictIndex()
    strict.offer(5, "e", now=0.0)
    assert strict.next_deadline() is None
    assert strict.on_timer(1e9) is None
    assert strict.first_waiting() == "e"


def test_a_gap_is_skipped_after_its_time_and_named() -> None:
    strict: StrictIndex[str] = StrictIndex(gap=GapPolicy(OnGap.SKIP, 10.0))
    strict.offer(3, "c", now=1.0)
    strict.offer(4, "d", now=5.0)
    strict.offer(7, "g", now=6.0)
    assert strict.next_deadline() == 11.0
    assert strict.on_timer(10.9) is None
    assert strict.on_timer(11.0) == GapSkipped(1, 2, ((3, "c"), (4, "d")))
    assert strict.next_deadline() == 21.0
    assert strict.on_timer(21.0) == GapSkipped(5, 6, ((7, "g"),))
    assert strict.next_deadline() is None
    assert strict.offer(2, "b", now=30.0) == Repeated(waiting=False)


def test_a_gap_is_asked_for_again_and_again() -> None:
    strict: StrictIndex[str] = StrictIndex(gap=GapPolicy(OnGap.ASK, 10.0))
    strict.offer(4, "d", now=0.0)
    assert strict.on_timer(10.0) == GapAsked(1, 3)
    assert strict.on_timer(20.0) == GapAsked(1, 3)
    assert strict.offer(1, "a", now=21.0) == Passed(((1, "a"),))
    assert strict.on_timer(31.0) == GapAsked(2, 3)


def test_a_filled_gap_needs_no_timer() -> None:
    strict: StrictIndex[str] = StrictIndex(gap=GapPolicy(OnGap.SKIP, 10.0))
    strict.offer(2, "b", now=0.0)
    strict.offer(1, "a", now=1.0)
    assert strict.next_deadline() is None
    assert strict.on_timer(100.0) is None


def test_a_full_buffer_still_takes_the_next_one() -> None:
    strict: StrictIndex[str] = StrictIndex(buffer_max=1)
    assert strict.offer(3, "c", now=0.0) == Early()
    assert strict.offer(2, "b", now=0.0) == Overflow()
    assert strict.offer(1, "a", now=0.0) == Passed(((1, "a"),))


def test_restore_forgets_what_was_not_confirmed() -> None:
    strict: StrictIndex[str] = StrictIndex(gap=GapPolicy(OnGap.SKIP, 1.0))
    strict.offer(3, "c", now=0.0)
    strict.restore(2)
    assert (len(strict), strict.next_deadline(), strict.first_waiting()) == (0, None, None)
    assert strict.offer(2, "b", now=0.0) == Passed(((2, "b"),))


def test_a_gap_policy_that_acts_at_once_is_refused() -> None:
    with pytest.raises(ConfigError):
        GapPolicy(OnGap.SKIP, 0.0)


def test_an_index_that_was_given_up_is_known_once() -> None:
    given_up = GivenUp()
    given_up.add(3, 5)
    given_up.add(9, 8)
    assert [given_up.take(index) for index in (2, 4, 4, 3, 5, 5, 6, 8, 9)] == [
        False, True, False, True, True, False, False, False, False,
    ]  # fmt: skip


def test_a_memory_that_keeps_all_joins_its_lowest_ranges_and_forgets_none() -> None:
    given_up = GivenUp(keep_all=True)
    odd = range(1, 6 * GivenUp.RANGES_MAX, 2)
    for index in odd:
        given_up.add(index, index)
    assert len(given_up.snapshot()) == GivenUp.RANGES_MAX
    assert all(given_up.take(index) for index in reversed(odd))
    assert len(given_up.snapshot()) <= GivenUp.RANGES_MAX


def test_the_memory_of_what_was_given_up_is_bounded_and_keeps_the_newest() -> None:
    given_up = GivenUp()
    for index in range(2, 2 * GivenUp.RANGES_MAX + 4, 2):
        given_up.add(index, index)
    assert not given_up.take(2)
    assert given_up.take(4)


@given(st.lists(st.integers(1, 12), max_size=40), st.data())
def test_a_run_passes_as_the_same_offers_one_by_one(arrivals: list[int], data: st.DataObject) -> None:
    arrivals = sorted(arrivals) if data.draw(st.booleans()) else arrivals
    one, many = (StrictIndex[int](gap=GapPolicy(OnGap.SKIP, 1.0)) for _ in range(2))
    expected = [one.offer(index, at, now=0.0) for at, index in enumerate(arrivals)]
    found: list[object] = []
    while len(found) < len(arrivals):
        at = len(found)
        end = many.pass_run(arrivals, at)
        found += [Passed(((arrivals[each], each),)) for each in range(at, end)]
        if end < len(arrivals):
            found.append(many.offer(arrivals[end], end, now=0.0))
    assert found == expected
    assert (many.next, many.early(), many.next_deadline()) == (one.next, one.early(), one.next_deadline())


@given(indexes, indexes, st.sampled_from(OnGap))
def test_a_machine_restored_with_all_it_knew_goes_on(before: list[int], after: list[int], then: OnGap) -> None:
    first: StrictIndex[str] = StrictIndex(buffer_max=3, gap=GapPolicy(then, 2.0))
    for now, index in enumerate(before):
        first.offer(index, str(index), float(now))
        first.on_timer(float(now))
    second: StrictIndex[str] = StrictIndex(buffer_max=3, gap=GapPolicy(then, 2.0))
    second.restore(first.snapshot())
    second.restore_early(first.early(), first.next_deadline(), now=1e9)
    second.given_up.restore(first.given_up.snapshot())
    for now, index in enumerate(after, start=len(before)):
        assert second.offer(index, str(index), float(now)) == first.offer(index, str(index), float(now))
        assert second.on_timer(float(now)) == first.on_timer(float(now))
        assert second.given_up.take(index) == first.given_up.take(index)


@pytest.mark.parametrize(("then", "deadline"), [(OnGap.SKIP, 15.0), (OnGap.WAIT, None)])
def test_what_waited_under_another_policy_gets_the_time_of_the_new_one(then: OnGap, deadline: float | None) -> None:
    strict: StrictIndex[str] = StrictIndex(gap=GapPolicy(then, 5.0))
    strict.restore(1)
    strict.restore_early({3: "c"}, None if then is OnGap.SKIP else 7.0, now=10.0)
    assert strict.next_deadline() == deadline
    strict.restore_early({}, 7.0, now=10.0)
    assert strict.next_deadline() is None


def test_a_gap_can_be_given_up_before_its_time() -> None:
    strict: StrictIndex[str] = StrictIndex(gap=GapPolicy(OnGap.SKIP, 10.0))
    strict.offer(3, "c", now=0.0)
    strict.offer(5, "e", now=0.0)
    assert strict.skip_gap(now=1.0) == GapSkipped(1, 2, ((3, "c"),))
    assert strict.next_deadline() == 11.0
    assert strict.given_up.take(2)


def test_a_gap_is_given_up_only_as_far_as_what_has_arrived() -> None:
    strict: StrictIndex[str] = StrictIndex(buffer_max=1, gap=GapPolicy(OnGap.SKIP, 10.0))
    strict.offer(5, "e", now=0.0)
    assert strict.offer(3, "c", now=0.0) == Overflow()
    assert strict.skip_gap(now=1.0, arrived=3) == GapSkipped(1, 2, ())
    assert strict.offer(3, "c", now=1.0) == Passed(((3, "c"),))
    assert strict.skip_gap(now=1.0, arrived=9) == GapSkipped(4, 4, ((5, "e"),))
