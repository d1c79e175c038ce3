"""How long to wait at most. Every limit is for hangs, not for speed: it is written for a machine that is at rest, and a
machine that is slow or busy is given as many times longer as it is slower.

    await asyncio.wait_for(done, limits.scaled(30))
    limits.wait_until(lambda: path.exists(), "the file")
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from functools import cache

WAIT_S = 60.0
FACTOR_MAX = 60.0
POLL_S = 0.01
VARIABLE = "SEMEL_TEST_FACTOR"
"""Set, it takes the place of what is measured."""

SAMPLE_STEPS = 2_000_000
SAMPLE_S = 0.1
"""What so many steps take on a common machine at rest."""


def scaled(seconds: float) -> float:
    """The limit on this machine as it is now."""
    return seconds * factor()


def factor() -> float:
    """How many times slower this machine is than one at rest: as measured when this process first asked, or more when
    more programs want to run by now than there are processors."""
    if given := os.environ.get(VARIABLE):
        return max(1.0, float(given))
    return min(FACTOR_MAX, max(1.0, measured(), crowding(os.getloadavg()[0], processors())))


@cache
def measured() -> float:
    """By the clock and not by the processor's time: what others take away counts."""
    began, total = time.perf_counter(), 0
    for step in range(SAMPLE_STEPS):
        total += step & 7
    return (time.perf_counter() - began) / SAMPLE_S


def crowding(load: float, processors: int) -> float:
    return load / processors


def processors() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def wait_until(condition: Callable[[], object], what: str, seconds: float = WAIT_S) -> None:
    """Look until it is true. Raises TimeoutError, with what was waited for, when it never is."""
    limit = scaled(seconds)
    until = time.monotonic() + limit
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError(f"{what} did not come within {math.ceil(limit)} s")
        time.sleep(POLL_S)
