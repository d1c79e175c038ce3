"""Latencies as counts in bins of equal ratio, from which any percentile follows within half a percent.

Two sketches are merged by adding their counts. An exact list of latencies would not fit, and a sketch that Spark has
built in takes the sums beside it out of compiled code, which cost more than all the rest of the audit.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

ERROR = 0.005
"""How far a percentile may be from the latency that it stands for, as a share of it."""
LOG_RATIO = math.log((1 + ERROR) / (1 - ERROR))
"""Between the borders of a bin, as a natural logarithm."""

Sketch = Mapping[int, int]
"""Latencies in microseconds: how many there are in each bin."""


def bin_of(latency: int) -> int:
    """Bin 0 holds what took no time at all; bin n what is above ratio^(n-1) and up to ratio^n."""
    return 0 if latency < 1 else 1 + math.floor(math.log(latency) / LOG_RATIO)


def latency_of(bin: int) -> float:
    """What a bin stands for: the value that is no more than `ERROR` away from either border."""
    return 0.0 if bin < 1 else math.exp((bin - 1) * LOG_RATIO) * (1 + ERROR)


def merged(sketches: Iterable[Sketch | None]) -> dict[int, int]:
    total: dict[int, int] = {}
    for sketch in sketches:
        for bin, count in (sketch or {}).items():
            total[bin] = total.get(bin, 0) + count
    return total


def percentiles(sketch: Sketch | None, ranks: Iterable[float]) -> list[int] | None:
    """The latencies below which these shares of all lie, in microseconds. None when there are none."""
    if not sketch:
        return None
    total, found, seen = sum(sketch.values()), [], 0
    bins = iter(sorted(sketch.items()))
    bin, count = next(bins)
    for rank in sorted(ranks):
        while seen + count < rank * total:
            seen += count
            bin, count = next(bins)
        found.append(round(latency_of(bin)))
    return found
