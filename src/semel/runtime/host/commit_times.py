"""How long commits take, as counts of those that took up to so long."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate

LIMITS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class CommitTimes:
    """How long transactions take. Each carries the commits of many callers; `commits` counts those."""

    __slots__ = ("_counts", "commits", "sum_s")

    def __init__(self) -> None:
        self._counts = [0] * (len(LIMITS_S) + 1)
        self.sum_s = 0.0
        self.commits = 0

    def add(self, took_s: float, commits: int) -> None:
        self._counts[bisect_left(LIMITS_S, took_s)] += 1
        self.sum_s += took_s
        self.commits += commits

    def up_to(self) -> Iterator[tuple[float, int]]:
        """How many took at most so long, for each limit and for ever."""
        return zip((*LIMITS_S, float("inf")), accumulate(self._counts), strict=True)
