"""The same seed is the same world: in this process, in another one, and however Python hashes its strings."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from semel.cli.sim import WorldName
from semel.errors import ConfigError
from semel.sim import Report, run, sweep
from semel.sim.scenario import WORLDS

pytestmark = pytest.mark.sim

SEEDS = range(40, 46)

_SCRIPT = """
import json, sys
from semel.sim import run
first, last, *worlds = sys.argv[1:]
print(json.dumps([run(seed, world=world).trace_hash for world in worlds for seed in range(int(first), int(last))]))
"""


def test_the_trace_does_not_depend_on_the_process_or_on_hashing() -> None:
    expected = [run(seed, world=world).trace_hash for world in WORLDS for seed in SEEDS]
    for hash_seed in ("1", "4711"):
        command = [sys.executable, "-c", _SCRIPT, str(SEEDS.start), str(SEEDS.stop), *WORLDS]
        output = subprocess.run(
            command, env={**os.environ, "PYTHONHASHSEED": hash_seed}, capture_output=True, text=True, check=True
        )
        assert json.loads(output.stdout) == expected


@pytest.mark.parametrize("world", WORLDS)
def test_two_seeds_are_two_worlds(world: str) -> None:
    assert len({run(seed, world=world).trace_hash for seed in SEEDS}) == len(SEEDS)


@pytest.mark.parametrize("world", WORLDS)
def test_the_printed_command_names_the_world(world: str) -> None:
    report = run(3, world=world)
    assert report.command == f"semel sim{'' if world == 'kernel' else f' --world {world}'} --seed 3"
    assert report.as_dict()["world"] == world
    assert json.loads(json.dumps(report.as_dict()))


def test_the_command_knows_the_same_worlds() -> None:
    assert [str(name) for name in WorldName] == list(WORLDS)


def test_an_unknown_world_names_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="there is no world 'moon'"):
        run(1, world="moon")


def test_a_failing_seed_fails_again_in_the_same_way_and_says_how() -> None:
    first = next(report for seed in range(50) if not (report := run(seed, "no-dedup")).holds)
    again = run(first.seed, "no-dedup")
    assert (again.trace_hash, again.violations) == (first.trace_hash, first.violations)
    assert f"semel sim --seed {first.seed} --plant no-dedup" in str(first)
    assert first.violations[0] in str(first)


def test_watching_changes_nothing() -> None:
    lines: list[str] = []
    assert run(7, log=lines.append).trace_hash == run(7).trace_hash
    assert len(lines) > run(7).figures["events"]


def test_a_report_is_plain_data() -> None:
    report = run(3)
    plain = json.loads(json.dumps(report.as_dict()))
    assert plain == report.as_dict()
    assert plain["command"] == "semel sim --seed 3"
    assert set(plain["figures"]) == {
        "sent", "accepted", "duplicates", "resent", "handled", "crashes", "virtual_s", "events",
    }  # fmt: skip


def test_a_defect_in_a_machine_is_a_violation_and_not_a_crash_of_the_simulator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("semel.kernel.hop.Receiver._committed", lambda *_: 1 // 0)
    report = run(3)
    assert not report.holds
    assert "ZeroDivisionError" in report.violations[0]


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_sweep_reports_every_seed_in_order(jobs: int) -> None:
    heard: list[Report] = []
    reports = sweep(range(20, 40), "no-dedup", jobs, heard.append)
    assert [report.seed for report in reports] == list(range(20, 40))
    assert list(reports) == heard
    assert [report.seed for report in reports.failed] == [
        report.seed for report in reports if run(report.seed, "no-dedup").violations
    ]
    assert not reports.holds
    assert reports.figures["events"] == sum(report.figures["events"] for report in reports)
