"""Runs one seed of one world, or many on as many processes as asked."""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from functools import partial
from importlib import import_module
from itertools import islice
from typing import Any, Protocol

from semel.errors import ConfigError
from semel.sim.world import SeededWorld

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
    "inbox": "semel.sim.inbox.scenario:InboxScenario",
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


BATCH = 8


def sweep(
    seeds: Iterable[int],
    plant: str | None = None,
    jobs: int | None = None,
    progress: Callable[[Report], None] | None = None,
    *,
    world: str | None = None,
) -> Sweep:
    """The reports of all seeds. `progress` gets each one when it is done; `jobs` None uses every core."""
    jobs = jobs or os.cpu_count() or 1
    reports = Sweep()
    for report in _run_here(seeds, plant, world) if jobs == 1 else _run_on(jobs, seeds, plant, world):
        reports.append(report)
        if progress is not None:
            progress(report)
    return reports


def _run_here(seeds: Iterable[int], plant: str | None, world: str | None) -> Iterator[Report]:
    for seed in seeds:
        yield run(seed, plant, world=world)


def _run_on(jobs: int, seeds: Iterable[int], plant: str | None, world: str | None) -> Iterator[Report]:
    """Fresh processes, so that nothing of this one (threads, patches, random state) leaks into a world."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        for reports in pool.map(partial(_run_batch, plant, world), _batches(seeds)):
            yield from reports


def _batches(seeds: Iterable[int]) -> Iterator[list[int]]:
    numbers = iter(seeds)
    while batch := list(islice(numbers, BATCH)):
        yield batch


def _run_batch(plant: str | None, world: str | None, seeds: list[int]) -> list[Report]:
    return [run(seed, plant, world=world) for seed in seeds]
