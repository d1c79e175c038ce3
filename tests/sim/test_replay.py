"""The same seed is the same world: in this process, in another one, and however Python hashes its strings."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from semel.sim import Report, run, sweep

pytestmark = pytest.mark.sim

SEEDS = range(40, 52)

_SCRIPT = """
import json, sys
from semel.sim import run
print(json.dumps({seed: run(seed).trace_hash for seed in range(int(sys.argv[1]), int(sys.argv[2]))}))
"""


def test_the_trace_does_not_depend_on_the_process_or_on_hashing() -> None:
    expected = {str(seed): run(seed).trace_hash for seed in SEEDS}
    for hash_seed in ("1", "4711"):
        command = [sys.executable, "-c", _SCRIPT, str(SEEDS.start), str(SEEDS.stop)]
        output = subprocess.run(
            command, env={**os.environ, "PYTHONHASHSEED": hash_seed}, capture_output=True, text=True, check=True
        )
        assert json.loads(output.stdout) == expected


def test_two_seeds_are_two_worlds() -> None:
    assert len({run(seed).trace_hash for seed in SEEDS}) == len(SEEDS)


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
