"""One seed's world: its time, its chance, and what was seen in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

from semel.sim.clock import Clock


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

    def again_and_again(self, every_s: float, what: str, do: Callable[[], None]) -> None:
        """At random times, so often on average, until the weather clears. 0 is never."""

        def strike() -> None:
            if not self.is_clear:
                do()
                self.again_and_again(every_s, what, do)

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
