"""What came of a seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

KERNEL = "kernel"
"""The world that is meant when none is named."""


@dataclass(frozen=True, slots=True)
class Report:
    """`holds` when no promise was broken. `command` replays the seed; the same seed always has the same trace hash."""

    seed: int
    plant: str | None
    holds: bool
    violations: list[str]
    trace_hash: str
    weather: dict[str, Any]
    figures: dict[str, float]
    seen: dict[str, int] = field(default_factory=dict)
    world: str = KERNEL

    @property
    def command(self) -> str:
        world = f" --world {self.world}" if self.world != KERNEL else ""
        plant = f" --plant {self.plant}" if self.plant else ""
        return f"semel sim{world} --seed {self.seed}{plant}"

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "command": self.command}

    def __str__(self) -> str:
        if self.holds:
            return f"seed {self.seed} holds"
        return "\n".join([f"seed {self.seed} fails; replay it with: {self.command}", *self.violations])


class Sweep(list[Report]):
    """The reports of many seeds, in the order of the seeds."""

    def __init__(self, reports: Iterable[Report] = ()) -> None:
        super().__init__(reports)

    @property
    def holds(self) -> bool:
        return not self.failed

    @property
    def failed(self) -> list[Report]:
        return [report for report in self if not report.holds]

    @property
    def figures(self) -> dict[str, float]:
        return _sum(report.figures for report in self)

    @property
    def seen(self) -> dict[str, int]:
        return {name: int(count) for name, count in _sum(report.seen for report in self).items()}


def _sum(counts: Iterable[dict[str, Any]]) -> dict[str, float]:
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return {name: total[name] for name in sorted(total)}
