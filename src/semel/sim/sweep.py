"""Runs many seeds, on as many processes as asked."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import islice

from semel.sim.report import Report, Sweep
from semel.sim.scenario import run

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
