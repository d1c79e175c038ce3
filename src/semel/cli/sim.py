"""`semel sim`: run the production machines in a made-up world full of faults, one seed after the other."""

from __future__ import annotations

import time
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from semel.cli.options import bundled, option
from semel.cli.terminal import CommandResult, Terminal, claim_false
from semel.errors import EXIT_CLAIM_FALSE, EXIT_HOLDS, ConfigError

if TYPE_CHECKING:
    from semel.sim import Report, Sweep
    from semel.sim.plants import Plant

SEEDS = 200
FAILED_SHOWN = 5
VIOLATIONS_SHOWN = 5


class WorldName(StrEnum):
    KERNEL = "kernel"
    PIPES = "pipes"
    HUB = "hub"
    CLIENT = "client"
    INBOX = "inbox"


@bundled
def sim(
    context: typer.Context,
    world: Annotated[
        WorldName | None,
        option(
            "--world",
            "What to run: the machines of the kernel, paths of pipes, several nodes of a hub, clients with a hub, "
            "or an inbox with its broker. Default: kernel, or where the plant shows.",
        ),
    ] = None,
    seeds: Annotated[int | None, option("--seeds", f"How many seeds to run. Default: {SEEDS}.", "N", min=1)] = None,
    seed: Annotated[int | None, option("--seed", "Run this one; with --seeds, the first of them.", "K", min=0)] = None,
    plant: Annotated[str | None, option("--plant", "Build in a known mistake.", "NAME")] = None,
    plants: Annotated[
        bool, option("--plants", "List the mistakes that can be built in; with --seeds, look that each is caught.")
    ] = False,
    jobs: Annotated[int | None, option("--jobs", "Processes to use. Default: one for each core.", "J", min=1)] = None,
) -> CommandResult:
    """Look for a seed that breaks a promise. The same seed always gives the same world and the same trace hash.

    Exit code 0 when every seed holds, 1 when one fails; each that fails says how to replay it.

    \b
    Examples:
      semel sim --seeds 1000
      semel sim --world hub --seeds 300
      semel sim --world client --seed 4711
      semel sim --plants
      semel sim --plants --world hub --seeds 500
      semel sim --seeds 100 --plant no-dedup
    """
    numbers = range(seed or 0, (seed or 0) + (seeds or SEEDS))
    if plants:
        return _list_plants(world) if seeds is None else _try_plants(world, numbers, context.obj)
    name = _world(world, plant)
    if seeds is None and seed is not None:
        return _run_one(name, seed, plant)
    return _run_many(name, numbers, plant, jobs, context.obj)


def _plants(world: str | None) -> list[Plant]:
    from semel.sim.plants import PLANTS

    return [plant for plant in PLANTS.values() if world in (None, plant.caught_by)]


def _try_plants(world: str | None, seeds: range, terminal: Terminal) -> CommandResult:
    """Each with one seed after the other, until one fails. What only the contract suite catches is left out."""
    from semel.sim import run

    found = [plant for plant in _plants(world) if plant.caught_by != "contract"]
    result: list[dict[str, Any]] = []
    with terminal.progress("plants", len(found)) as update:
        for plant in found:
            caught = next((report for seed in seeds if not (report := run(seed, plant.name)).holds), None)
            result.append(
                {
                    "name": plant.name,
                    "caught_by": plant.caught_by,
                    "command": caught.command if caught else None,
                    "violation": caught.violations[0] if caught else None,
                }
            )
            update(len(result), "plants")
    missed = [row["name"] for row in result if row["command"] is None]
    view = [f"{row['name']}: {row['violation'] or 'not caught'}" for row in result]
    view.append(f"{len(result) - len(missed)} of {len(result)} plants are caught within {len(seeds):,} seeds each")
    error = claim_false(f"not caught: {', '.join(missed)}", "try more seeds: --seeds N")
    return CommandResult(result, view, _exit_code(not missed), error if missed else None)


def _list_plants(world: str | None) -> CommandResult:
    found = _plants(world)
    result = [{"name": plant.name, "description": plant.description, "caught_by": plant.caught_by} for plant in found]
    return CommandResult(result, [plant.name for plant in found])


def _world(world: str | None, plant: str | None) -> str:
    from semel.sim.scenario import world_of

    if plant is not None:
        _check_plant(plant)
    return str(world or world_of(plant))


def _check_plant(name: str) -> None:
    from difflib import get_close_matches

    from semel.sim.plants import PLANTS

    if name not in PLANTS:
        close = get_close_matches(name, PLANTS, n=1)
        hint = f"did you mean {close[0]!r}? " if close else ""
        raise ConfigError(f"there is no plant {name!r}", fix=f"{hint}see: semel sim --plants")


def _run_one(world: str, seed: int, plant: str | None) -> CommandResult:
    from semel.sim import run

    report = run(seed, plant, world=world)
    view = [*_failure(report)] if not report.holds else [f"seed {seed} holds"]
    view += [f"trace hash {report.trace_hash}", _figures(report.figures)]
    return CommandResult(report.as_dict(), view, _exit_code(report.holds), _error([] if report.holds else [report]))


def _run_many(world: str, seeds: range, plant: str | None, jobs: int | None, terminal: Terminal) -> CommandResult:
    from semel.sim import sweep

    began = time.monotonic()
    failed = 0
    with terminal.progress("seeds", len(seeds)) as update:
        done = 0

        def count(report: Report) -> None:
            nonlocal done, failed
            done += 1
            failed += not report.holds
            update(done, f"seeds, {failed} failed" if failed else "seeds")

        # starting more processes than there is work for takes longer than the work
        jobs = 1 if len(seeds) < SEEDS and jobs is None else jobs
        reports = sweep(seeds, plant, jobs, count, world=world)
    return _sweep_answer(world, seeds, plant, reports, time.monotonic() - began)


def _sweep_answer(world: str, seeds: range, plant: str | None, reports: Sweep, seconds: float) -> CommandResult:
    result = {
        "holds": reports.holds,
        "world": world,
        "seeds": len(seeds),
        "first": seeds.start,
        "plant": plant,
        "failed": [report.seed for report in reports.failed],
        "failures": [report.as_dict() for report in reports.failed[:FAILED_SHOWN]],
        "figures": reports.figures,
        "seconds": round(seconds, 3),
    }
    view: list[Any] = [line for report in reports.failed[:FAILED_SHOWN] for line in _failure(report, VIOLATIONS_SHOWN)]
    word = "hold" if reports.holds else f"run, {len(reports.failed):,} fail"
    view += [f"{len(seeds):,} seeds {word} ({seconds:.1f} s)", _figures(reports.figures)]
    return CommandResult(result, view, _exit_code(reports.holds), _error(reports.failed))


def _exit_code(holds: bool) -> int:
    return EXIT_HOLDS if holds else EXIT_CLAIM_FALSE


def _error(failed: list[Report]) -> dict[str, str] | None:
    if not failed:
        return None
    more = f", and {len(failed) - 1:,} more" if len(failed) > 1 else ""
    violation = failed[0].violations[0] if failed[0].violations else "a promise was broken"
    return claim_false(f"seed {failed[0].seed}: {violation}{more}", f"replay it: {failed[0].command}")


def _failure(report: Report, violations_max: int | None = None) -> list[str]:
    """The seed, how to replay it, what broke, and the weather that it had."""
    shown = report.violations[:violations_max]
    hidden = len(report.violations) - len(shown)
    lines = [f"seed {report.seed} fails; replay it with: {report.command}", *(f"  {line}" for line in shown)]
    if hidden:
        lines.append(f"  and {hidden} more")
    return [*lines, "  weather:", *(f"    {name}: {_plain(value)}" for name, value in report.weather.items()), ""]


def _plain(value: Any) -> str:
    """Nested settings on one line, with numbers that can be read: a seed is replayed by its number, not from here."""
    if isinstance(value, dict):
        return " ".join(
            f"{name}=({_plain(part)})" if isinstance(part, dict) else f"{name}={_plain(part)}"
            for name, part in value.items()
        )
    if isinstance(value, list | tuple):
        return "(" + ", ".join(_plain(part) for part in value) + ")"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _figures(figures: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:,.6g}" for name, value in figures.items())
