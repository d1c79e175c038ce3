"""Where living entries begin in indexes whose front is full of dead ones.

PostgreSQL keeps what a transaction may still want to see. While one stays open, everything that is claimed and finished
meanwhile leaves dead entries at the front of its queue's indexes, and a look from the beginning walks over all of them
each time. So a look from the beginning that was slow is made seldom: those in between begin where the last one found
something alive.

What becomes visible late, below that place, is found by the next look from the beginning. That comes after a time in
proportion to what such a look takes, so it never costs more than a small share; while it is quick, every look is one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LOWEST = -(2**63)
SLOW_US = 150
"""A look that takes longer has walked over a thousand dead entries or two, or the machine was busy."""
SLOW_TIMES = 3
"""So many in a row are no accident."""
PACE = 50
"""Looks from the beginning take at most one part in so many of the time."""


class Front:
    """Where the claims of one index of one queue begin to look."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.start = LOWEST
        self._slow = 0
        self._full_at: float | None = None

    @property
    def is_slow(self) -> bool:
        """Whether the last looks from the beginning were."""
        return self._full_at is not None

    def begin(self) -> int:
        """Where the next look begins."""
        return LOWEST if self._full_at is None or self._clock() >= self._full_at else self.start

    def looked(self, begin: int, alive: int, took_us: int) -> None:
        """A look that began there has found nothing alive before `alive`."""
        self.start = alive
        if begin != LOWEST:
            return
        self._slow = self._slow + 1 if took_us >= SLOW_US else 0
        self._full_at = self._clock() + PACE * took_us / 1_000_000 if self._slow >= SLOW_TIMES else None


class QueueFronts:
    """By when they are due: rows without a key, keys, and rows of keys that wait for their turn. By number: news."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.rows, self.keys, self.waiting, self.news = (Front(clock) for _ in range(4))

    def begins(self) -> tuple[int, int, int, int] | None:
        """Where a look at all of them begins. None when it is time for a claim to look from the beginning."""
        fronts = (self.rows, self.keys, self.waiting, self.news)
        begins = [front.begin() for front in fronts]
        if any(front.is_slow and begin == LOWEST for front, begin in zip(fronts, begins, strict=True)):
            return None
        return begins[0], begins[1], begins[2], begins[3]


class Fronts:
    """The fronts of all queues of a store, as far as this process knows. Forgotten whenever anything goes wrong."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._queues: dict[str, QueueFronts] = {}

    def of(self, queue: str) -> QueueFronts:
        found = self._queues.get(queue)
        if found is None:
            found = self._queues[queue] = QueueFronts(self._clock)
        return found

    @contextmanager
    def unless_it_fails(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._queues = {}
            raise
