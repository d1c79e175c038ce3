from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.errors import InputError
from semel.kernel.numbers import NumberSet

NUMBERS = st.lists(st.integers(0, 40) | st.integers(0, 2**64))


@given(NUMBERS)
def test_it_is_the_set_of_what_was_added(numbers: list[int]) -> None:
    seen: set[int] = set()
    found = NumberSet()
    for number in numbers:
        assert found.add(number) == (number not in seen)
        seen.add(number)
    assert all(number in found for number in seen)
    assert not any(number + 1 in found for number in seen if number + 1 not in seen)
    assert len(found) == len(seen)


@given(NUMBERS)
def test_ranges_are_as_few_as_can_be_and_bring_it_back(numbers: list[int]) -> None:
    found = NumberSet()
    for number in numbers:
        found.add(number)
    ranges = list(found.ranges())
    assert all(after[0] > before[1] + 1 for before, after in pairwise(ranges))
    assert NumberSet(ranges) == found


def test_who_counts_upwards_takes_one_range_however_long() -> None:
    found = NumberSet()
    for number in range(1, 10_001):
        found.add(number)
    assert list(found.ranges()) == [(1, 10_000)]


def test_beyond_its_bound_the_lowest_range_is_forgotten() -> None:
    found = NumberSet(ranges_max=2)
    for number in (10, 11, 20, 30):
        found.add(number)
    assert list(found.ranges()) == [(20, 20), (30, 30)]
    assert found.forgotten == 2


def test_sets_cannot_be_made_of_what_is_no_list_of_ranges() -> None:
    for ranges in ([(2, 1)], [(1, 2), (3, 4)], [(5, 6), (1, 2)]):
        with pytest.raises(InputError, match="not a range"):
            NumberSet(ranges)


@given(st.lists(st.integers(0, 30)), st.lists(st.integers(0, 30)))
def test_many_at_once_are_added_as_one_by_one(before: list[int], numbers: list[int]) -> None:
    together, alone = NumberSet(), NumberSet()
    for number in before:
        together.add(number)
        alone.add(number)
    together.add_all(numbers)
    for number in numbers:
        alone.add(number)
    assert together == alone
