"""Runs one seed: a storm first, in which safety must hold; then clear weather, in which everything must drain."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from semel.kernel.ledger import START, Kind
from semel.sim.checkers import ALL, Checker
from semel.sim.path import Path
from semel.sim.report import Report
from semel.sim.storm import Storm
from semel.sim.world import World

DRAIN_S = 400.0
"""Virtual time within which everything must have drained once the weather is clear."""

QUIET_S = 10.0
"""Virtual time after that in which late copies and forgotten timers may still do harm."""

EVENTS_MAX = 100_000


def run(seed: int, plant: str | None = None, *, log: Callable[[str], None] | None = None) -> Report:
    """Run the world of one seed, with one planted bug if asked. `log` hears everything that happens in it."""
    with _planted(plant):
        world = World(seed, log)
        try:
            path = Path(world)
            _run(world, path)
            figures = _figures(world, path)
        except Exception as error:
            world.violated(_defect(error))
            figures = {}
    return Report(
        seed=seed,
        plant=plant,
        holds=not world.violations,
        violations=world.violations,
        trace_hash=world.clock.trace_hash(),
        weather=world.weather.as_dict(),
        figures=figures,
        seen=dict(sorted(world.seen.items())),
    )


def _planted(plant: str | None) -> AbstractContextManager[None]:
    """The bugs are only imported by those who ask for one."""
    if plant is None:
        return nullcontext()
    from semel.testing.plants import planted

    return planted(plant)


def _run(world: World, path: Path) -> None:
    checker = Checker(world, path)
    storm = Storm(world, path)
    storm.begin()
    path.start()
    _run_until(world, world.weather.storm_s)
    checker.check(drained=False)
    storm.clear()
    if not world.violations and _drain(world, checker):
        _run_until(world, world.now + QUIET_S)
        checker.check(drained=True)


def _run_until(world: World, until: float) -> None:
    while world.clock.step(until):
        if world.clock.events > EVENTS_MAX:
            raise RuntimeError(f"{EVENTS_MAX} events and no end: something runs in circles")


def _drain(world: World, checker: Checker) -> bool:
    end = world.now + DRAIN_S
    while not world.violations and (left := checker.under_way()):
        if world.now >= end:
            world.violated(f"not drained after {DRAIN_S:.0f} s of clear weather: {left}")
        _run_until(world, world.now + 1.0)
    return not world.violations


def _defect(error: Exception) -> str:
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} in {where.name}, line {where.lineno}: {error}"


def _figures(world: World, path: Path) -> dict[str, float]:
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
