"""Each long campaign at a twentieth of its size. The simulator's twentieth is tests/sim."""

from __future__ import annotations

import json

import pytest
from rich.console import Console

from semel.testing import soak


@pytest.mark.parametrize("part", sorted(set(soak.PARTS) - {"sim", "spark"}))
def test_campaign_holds(part):
    check_twentieth(part)


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(900)
def test_spark_campaign_holds():
    check_twentieth("spark")


def check_twentieth(part):
    figures = soak.run(part, soak.TWENTIETH, Console(quiet=True))
    assert figures["holds"], figures
    assert figures["size"] == soak.PARTS[part].size * soak.TWENTIETH


def test_evidence_names_figures_seed_commit_and_machine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = soak.write_evidence("retention", soak.run("retention", 0.001, Console(quiet=True)))
    evidence = json.loads(path.read_text())
    assert path.as_posix() == "docs/evidence/retention.json"
    assert {"holds", "seed", "size", "seconds", "commit", "machine"} <= set(evidence)


def test_an_unknown_part_lists_the_known_ones(capsys):
    assert soak.main(["nonsense"]) == 2
    shown = capsys.readouterr().err
    assert all(f"PART={name}" in shown for name in soak.PARTS)
