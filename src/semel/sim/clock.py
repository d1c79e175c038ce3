"""Virtual time. Nothing waits: time jumps to whatever is due next, and what is due together keeps its order."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

BEGIN_S = 1_000_000.0
"""What clocks without drift show when the world begins. Small, so that microseconds stay exact in a float."""

TICK_S = 1e-6
"""A timer fires this much late: a deadline that was converted to world time and back must have passed."""

STEPS_MAX = 200_000


class Clock:
    """The list of what is to happen. `trace_hash` covers the time and the name of everything that did happen."""

    def __init__(self, log: Callable[[str], None] | None = None) -> None:
        self.now = 0.0
        self.events = 0
        self._log = log
        self._due: list[tuple[float, int, str, Callable[..., None], tuple[Any, ...]]] = []
        self._order = 0
        self._trace = blake2b(digest_size=16)

    def after(self, delay_s: float, what: str, do: Callable[..., None], *args: Any) -> None:
        self.at(self.now + delay_s, what, do, *args)

    def at(self, time: float, what: str, do: Callable[..., None], *args: Any) -> None:
        self._order += 1
        heapq.heappush(self._due, (time, self._order, what, do, args))

    def step(self, until: float) -> bool:
        """Let the next thing happen. False when nothing is due before `until`, which is then the time."""
        if not self._due or self._due[0][0] > until:
            self.now = max(self.now, until)
            return False
        self.now, _, what, do, args = heapq.heappop(self._due)
        self.events += 1
        self.note(what)
        do(*args)
        return True

    def run_until(
        self, until: float, next_deadline: Callable[[], float | None], run_timers: Callable[[], None]
    ) -> None:
        """For worlds in which the timers of machines are not things that are due, but asked for before each step."""
        for _ in range(STEPS_MAX):
            deadline = next_deadline()
            timer = deadline if deadline is not None else until + 1
            if self.step(max(self.now, min(timer, until))):
                continue
            if timer > until:
                return
            run_timers()
        raise RuntimeError(f"{STEPS_MAX} steps and no end: something runs in circles")

    def note(self, what: str) -> None:
        """Make something part of the trace."""
        line = f"{self.now:.6f} {what}"
        self._trace.update(line.encode())
        if self._log is not None:
            self._log(line)

    def detail(self, *what: object) -> None:
        """Tell whoever listens more than the trace holds."""
        if self._log is not None:
            self._log(" ".join(["   ", *map(str, what)]))

    def trace_hash(self) -> str:
        return self._trace.hexdigest()


@dataclass(frozen=True, slots=True)
class Drift:
    """How one machine's clock differs from the world's: it shows `offset_s` more and runs at `rate`."""

    offset_s: float = 0.0
    rate: float = 1.0

    def local(self, now: float) -> float:
        return BEGIN_S + self.offset_s + now * self.rate

    def world(self, local: float) -> float:
        return (local - BEGIN_S - self.offset_s) / self.rate
