"""`semel sim`: exit codes, and what a failing seed says about itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
from tests.unit.cli.conftest import Semel

import semel.sim
from semel.sim import Report, Sweep
from semel.sim.plants import PLANTS


def report(seed: int, *violations: str, plant: str | None = None, world: str = "kernel") -> Report:
    weather = {"links": {"loss": 0.123456, "delay": {"s": (0.5, 2)}}, "nodes": 2, "restore": False}
    return Report(seed, plant, not violations, list(violations), f"hash-{seed}", weather, {"sent": 10.0}, world=world)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """A simulator in which seeds that divide by seven fail. Tells what it was asked."""
    seen: list[object] = []

    def run(seed: int, plant: str | None = None, *, world: str = "kernel") -> Report:
        seen.append((seed, plant) if world == "kernel" else (seed, plant, world))
        return report(seed, *(["a was lost", "b was doubled"] if seed % 7 == 0 else []), plant=plant, world=world)

    def sweep(
        seeds: Iterable[int], plant: str | None, jobs: int | None, progress: Callable[[Report], None], *, world: str
    ) -> Sweep:
        reports = Sweep(run(seed, plant, world=world) for seed in seeds)
        for each in reports:
            progress(each)
        seen.append(("jobs", jobs))
        return reports

    monkeypatch.setattr(semel.sim, "run", run)
    monkeypatch.setattr(semel.sim, "sweep", sweep)
    return seen


def test_plants_are_listed_one_a_line(semel: Semel) -> None:
    ran = semel("sim", "--plants")
    assert ran.exit_code == 0
    assert ran.out.splitlines() == list(PLANTS)
    assert semel("sim", "--plants", "--json").result == [
        {"name": plant.name, "description": plant.description, "caught_by": plant.caught_by}
        for plant in PLANTS.values()
    ]


def test_plants_of_one_world(semel: Semel) -> None:
    listed = semel("sim", "--plants", "--world", "pipes").out.splitlines()
    assert listed == [plant.name for plant in PLANTS.values() if plant.caught_by == "pipes"]


def test_plants_are_tried_until_each_is_caught(semel: Semel, asked: list[object]) -> None:
    names = [plant.name for plant in PLANTS.values() if plant.caught_by == "pipes"]
    ran = semel("sim", "--plants", "--world", "pipes", "--seed", "5", "--seeds", "10")
    assert ran.exit_code == 0
    assert ran.out.splitlines() == [
        *(f"{name}: a was lost" for name in names),
        f"{len(names)} of {len(names)} plants are caught within 10 seeds each",
    ]
    assert asked[:3] == [(5, names[0]), (6, names[0]), (7, names[0])]
    missed = semel("sim", "--plants", "--world", "pipes", "--seed", "1", "--seeds", "2", "--json")
    assert (missed.exit_code, missed.error["fix"]) == (1, "try more seeds: --seeds N")
    assert missed.result[0] == {"name": names[0], "caught_by": "pipes", "command": None, "violation": None}


def test_a_world_is_named_or_that_of_the_plant(semel: Semel, asked: list[object]) -> None:
    ran = semel("sim", "--world", "hub", "--seed", "14")
    assert ran.exit_code == 1
    assert ran.err == ("error: seed 14: a was lost\n  fix: replay it: semel sim --world hub --seed 14\n")
    semel("sim", "--seed", "1", "--plant", "pipe-constant-reference")
    assert asked == [(14, None, "hub"), (1, "pipe-constant-reference", "pipes")]
    assert semel("sim", "--world", "hub", "--seeds", "3", "--json").result["world"] == "hub"


def test_an_unknown_world_is_an_error_of_usage(semel: Semel) -> None:
    ran = semel("sim", "--world", "moon")
    assert ran.exit_code == 2
    assert "moon" in ran.err


def test_seeds_that_hold(semel: Semel, asked: list[object]) -> None:
    ran = semel("sim", "--seed", "1", "--seeds", "6")
    assert (ran.exit_code, ran.err) == (0, "")
    assert ran.out.startswith("6 seeds hold (")
    assert asked[:6] == [(seed, None) for seed in range(1, 7)]
    result = semel("sim", "--seed", "1", "--seeds", "6", "--json").result
    assert (result["holds"], result["seeds"], result["first"], result["failed"]) == (True, 6, 1, [])
    assert result["figures"] == {"sent": 60.0}


def test_a_seed_that_fails_prints_its_command_and_its_weather(semel: Semel, asked: list[object]) -> None:
    ran = semel("sim", "--seed", "10", "--seeds", "10", "--plant", "no-dedup")
    assert ran.exit_code == 1
    assert ran.out.splitlines()[:8] == [
        "seed 14 fails; replay it with: semel sim --seed 14 --plant no-dedup",
        "  a was lost",
        "  b was doubled",
        "  weather:",
        "    links: loss=0.123 delay=(s=(0.5, 2))",
        "    nodes: 2",
        "    restore: False",
        "",
    ]
    assert "10 seeds run, 1 fail (" in ran.out
    assert ran.err == ("error: seed 14: a was lost\n  fix: replay it: semel sim --seed 14 --plant no-dedup\n")
    answer = semel("sim", "--seed", "10", "--seeds", "10", "--plant", "no-dedup", "--json")
    assert answer.exit_code == 1
    assert answer.error["code"] == "claim-false"
    [failure] = answer.result["failures"]
    assert (answer.result["failed"], failure["seed"], failure["weather"]["nodes"]) == ([14], 14, 2)
    assert failure["command"] == "semel sim --seed 14 --plant no-dedup"


def test_many_failures_are_counted_and_a_few_are_shown(semel: Semel, asked: list[object]) -> None:
    ran = semel("sim", "--seeds", "100")
    assert ran.out.count("replay it with") == 5
    assert "100 seeds run, 15 fail" in ran.out
    assert "and 14 more" in ran.err
    assert len(semel("sim", "--seeds", "100", "--json").result["failed"]) == 15


def test_one_seed_alone_shows_its_trace_hash(semel: Semel, asked: list[object]) -> None:
    assert semel("sim", "--seed", "8").out == "seed 8 holds\ntrace hash hash-8\nsent 10\n"
    ran = semel("sim", "--seed", "7")
    assert ran.exit_code == 1
    assert "trace hash hash-7" in ran.out
    answer = semel("sim", "--seed", "8", "--json")
    assert (answer.exit_code, answer.result["trace_hash"], answer.result["holds"]) == (0, "hash-8", True)


def test_without_a_number_there_are_two_hundred_seeds_on_every_core(semel: Semel, asked: list[object]) -> None:
    semel("sim")
    assert asked[0] == (0, None)
    assert asked[199:] == [(199, None), ("jobs", None)]
    asked.clear()
    semel("sim", "--seeds", "3")
    assert asked[-1] == ("jobs", 1)
    semel("sim", "--seeds", "3", "--jobs", "2")
    assert asked[-1] == ("jobs", 2)


def test_an_unknown_plant_is_an_error_of_usage(semel: Semel) -> None:
    ran = semel("sim", "--plant", "no-dedupp", "--json")
    assert (ran.exit_code, ran.error["message"]) == (2, "there is no plant 'no-dedupp'")
    assert ran.error["fix"] == "did you mean 'no-dedup'? see: semel sim --plants"


@pytest.mark.sim
def test_the_real_simulator_answers_the_same_each_time_and_notices_a_plant(semel: Semel) -> None:
    first, again = (semel("sim", "--seed", "11", "--json") for _ in range(2))
    assert first.exit_code == 0
    assert first.result["trace_hash"] == again.result["trace_hash"]
    assert semel("sim", "--seeds", "5").exit_code == 0
    assert semel("sim", "--seeds", "40", "--plant", "no-dedup", "--json").exit_code == 1
