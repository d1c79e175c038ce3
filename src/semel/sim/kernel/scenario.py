"""A storm first, in which safety must hold; then clear weather, in which everything must drain."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from semel.kernel.ledger import START, Kind
from semel.sim.kernel.checkers import ALL, Checker
from semel.sim.kernel.path import SimulatedPath
from semel.sim.kernel.storm import Storm
from semel.sim.kernel.world import KernelWorld

DRAIN_S = 400.0
"""Virtual time within which everything must have drained once the weather is clear."""

QUIET_S = 10.0
"""Virtual time after that in which late copies and forgotten timers may still do harm."""

EVENTS_MAX = 100_000


class KernelScenario:
    def __init__(self, seed: int, log: Callable[[str], None] | None = None) -> None:
        self.world = KernelWorld(seed, log)
        self.weather: dict[str, Any] = self.world.weather.as_dict()

    def run(self) -> dict[str, float]:
        world, path = self.world, SimulatedPath(self.world)
        checker, storm = Checker(world, path), Storm(world, path)
        storm.begin()
        path.start()
        _run_until(world, world.weather.storm_s)
        checker.check(drained=False)
        storm.clear()
        if not world.violations and _drain(world, checker):
            _run_until(world, world.now + QUIET_S)
            checker.check(drained=True)
        return _figures(world, path)


def _run_until(world: KernelWorld, until: float) -> None:
    while world.clock.step(until):
        if world.clock.events > EVENTS_MAX:
            raise RuntimeError(f"{EVENTS_MAX} events and no end: something runs in circles")


def _drain(world: KernelWorld, checker: Checker) -> bool:
    end = world.now + DRAIN_S
    while not world.violations and (left := checker.under_way()):
        if world.now >= end:
            world.violated(f"not drained after {DRAIN_S:.0f} s of clear weather: {left}")
        _run_until(world, world.now + 1.0)
    return not world.violations


def _figures(world: KernelWorld, path: SimulatedPath) -> dict[str, float]:
    counts = dict.fromkeys(Kind, 0)
    for database in path.databases:
        for entry in database.store.ledger(START, ALL):
            counts[entry.event.kind] += entry.event.n
    return {
        "sent": counts[Kind.SENT],
        "accepted": counts[Kind.ACCEPTED],
        "duplicates": counts[Kind.DUPLICATE],
        "resent": counts[Kind.RESENT],
        "handled": counts[Kind.HANDLED],
        "crashes": world.seen["node.crash"] + world.seen["store.crash"],
        "virtual_s": round(world.now, 3),
        "events": world.clock.events,
    }
