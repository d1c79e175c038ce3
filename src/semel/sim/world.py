"""One seed's world: its time, its chance, and what was seen in it."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from random import Random
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


class SeededWorld:
    """Everything that happens by chance asks here, so one seed decides all of it. `seen` counts what did happen."""

    def __init__(self, seed: int, log: Callable[[str], None] | None = None) -> None:
        self.random = Random(seed)
        self.clock = Clock(log)
        self.seen: Counter[str] = Counter()
        self.violations: list[str] = []
        self.is_clear = False

    @property
    def now(self) -> float:
        return self.clock.now

    def after(self, delay_s: float, what: str, do: Callable[..., None], *args: Any) -> None:
        self.clock.after(delay_s, what, do, *args)

    def strikes(self, fault: str, probability: float) -> bool:
        """Whether a fault happens now. Never once the weather has cleared."""
        if probability <= 0 or self.is_clear or self.random.random() >= probability:
            return False
        self.see(fault)
        return True

    def repeat_until_clear(self, every_s: float, what: str, do: Callable[[], None]) -> None:
        """At random times, so often on average, until the weather clears. 0 is never."""

        def strike() -> None:
            if not self.is_clear:
                do()
                self.repeat_until_clear(every_s, what, do)

        if every_s > 0:
            self.after(self.random.expovariate(1 / every_s), what, strike)

    def see(self, what: str, count: int = 1) -> None:
        self.seen[what] += count

    def between(self, span: tuple[float, float]) -> float:
        return span[0] + (span[1] - span[0]) * self.random.random()

    def violated(self, what: str) -> None:
        """Something that must never happen has happened. The first few say enough."""
        if len(self.violations) < 20 and what not in self.violations:
            self.violations.append(what)
            self.clock.note(f"violated {what}")
