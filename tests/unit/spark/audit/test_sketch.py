"""The sketch of latencies: every percentile is near the exact one, however the latencies were put together."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.spark.audit.sketch import ERROR, bin_of, latency_of, merged, percentiles

RANKS = (0.5, 0.9, 0.99, 0.999)
latencies = st.lists(st.integers(0, 10**12), min_size=1, max_size=60)


def sketch(values: list[int]) -> dict[int, int]:
    return merged({bin_of(value): 1} for value in values)


@given(latencies)
def test_percentiles_are_within_the_error(values: list[int]) -> None:
    found = percentiles(sketch(values), RANKS)
    assert found is not None
    exact = [sorted(values)[max(0, math.ceil(rank * len(values)) - 1)] for rank in RANKS]
    for estimate, true in zip(found, exact, strict=True):
        assert abs(estimate - true) <= 1 + ERROR * 1.01 * true


@given(latencies, latencies)
def test_two_sketches_are_merged_into_the_sketch_of_all(some: list[int], others: list[int]) -> None:
    assert merged([sketch(some), sketch(others), None]) == sketch(some + others)


@pytest.mark.parametrize("empty", [None, {}])
def test_nothing_has_no_percentiles(empty: dict[int, int] | None) -> None:
    assert percentiles(empty, RANKS) is None


def test_no_time_at_all_is_told_as_that() -> None:
    assert percentiles(sketch([0, 0, 0]), RANKS) == [0, 0, 0, 0]
    assert latency_of(bin_of(0)) == 0
