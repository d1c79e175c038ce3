"""Runs one seed of one world."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from typing import Any, Protocol

from semel.errors import ConfigError
from semel.sim.report import KERNEL, Report
from semel.sim.world import SeededWorld

Log = Callable[[str], None]


class Scenario(Protocol):
    """What one seed decides: `weather` says what it has drawn, `run` returns the figures of what came of it."""

    world: SeededWorld
    weather: dict[str, Any]

    def run(self) -> dict[str, float]: ...


WORLDS = {
    KERNEL: "semel.sim.kernel.scenario:KernelScenario",
    "pipes": "semel.sim.pipes.scenario:PipesScenario",
    "hub": "semel.sim.hub.scenario:HubScenario",
    "client": "semel.sim.client.scenario:ClientScenario",
}
"""Where each one is. Only the one that is asked for is imported."""


def run(seed: int, plant: str | None = None, *, world: str | None = None, log: Log | None = None) -> Report:
    """Run the world of one seed, with one planted bug if asked. `log` gets a line for everything that happens in it.

    `world` None: the one that has to catch the plant, and without a plant that of the kernel.
    """
    name = world or world_of(plant)
    with _planted(plant):
        scenario = _load(name)(seed, log)
        found = scenario.world
        try:
            figures = scenario.run()
        except Exception as error:
            found.violated(_defect(error))
            figures = {}
    return Report(
        seed=seed,
        plant=plant,
        holds=not found.violations,
        violations=found.violations,
        trace_hash=found.clock.trace_hash(),
        weather=scenario.weather,
        figures=figures,
        seen=dict(sorted(found.seen.items())),
        world=name,
    )


def world_of(plant: str | None) -> str:
    """Where a planted bug shows."""
    if plant is None:
        return KERNEL
    from semel.sim.plants import find

    caught_by = find(plant).caught_by
    return caught_by if caught_by in WORLDS else KERNEL


def _load(name: str) -> Callable[[int, Log | None], Scenario]:
    if name not in WORLDS:
        raise ConfigError(f"there is no world {name!r}", fix=f"choose one of: {', '.join(WORLDS)}")
    module, _, scenario = WORLDS[name].partition(":")
    loaded: Callable[[int, Log | None], Scenario] = getattr(import_module(module), scenario)
    return loaded


def _planted(plant: str | None) -> AbstractContextManager[None]:
    """The bugs are only imported by those who ask for one."""
    if plant is None:
        return nullcontext()
    from semel.sim.plants import planted

    return planted(plant)


def _defect(error: Exception) -> str:
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} in {where.name}, line {where.lineno}: {error}"
