"""Each long campaign at a twentieth of its size. The twentieth of the simulator is tests/sim, that of Spark in
tests/spark; of a hub, what needs more than a file and half a minute is smaller still, in test_pubsub_campaign;
that of queues beside an open transaction counts pages instead of time, in test_postgres_xmin."""

from __future__ import annotations

import json
from typing import Any

import pytest
from rich.console import Console
from tests.campaigns import soak, spark_campaign
from tests.campaigns.evidence import write_evidence

SMALLER_ELSEWHERE = {"sim", "spark", "pubsub-nodes", "pubsub-bounded", "failover", "xmin"}


@pytest.mark.slow(20)
@pytest.mark.parametrize("part", sorted(set(soak.PARTS) - SMALLER_ELSEWHERE - {"inbox"}))
def test_campaign_holds(part):
    check_twentieth(part)


@pytest.mark.slow(40)
def test_the_campaign_of_the_inbox_holds_and_its_kills_meet_somebody_at_work():
    figures = check_twentieth("inbox")
    assert figures["kills"] == 10
    assert figures["broker_kills"] >= 1
    assert sum(place["handled_at_second_attempt_or_later"] for place in figures["places"].values()) > 0


@pytest.mark.parametrize("faults", [spark_campaign.Faults(), spark_campaign.FEW, spark_campaign.FEWER])
def test_every_fault_of_the_spark_campaign_finds_something_to_break(tmp_path, faults):
    """In any order that a seed may choose: a commit can be deleted where a batch was committed just before."""
    for seed in range(50):
        campaign = spark_campaign.Campaign(spark_campaign.Place("", ""), tmp_path, 0, seed, faults)
        names = [fault.__name__.lstrip("_") for fault in campaign._faults()]
        assert [names.count(name) for name in ("kill_in_a_batch", "kill_after_landing", "delete_a_commit")] == [
            faults.kills, faults.kills_after_landing, faults.commits_deleted,
        ]  # fmt: skip
        assert names.count("delete_the_checkpoint") == faults.checkpoints_deleted
        assert all(names[at - 1] == "kill_in_a_batch" for at, name in enumerate(names) if name == "delete_a_commit")
        assert names[0].startswith("kill")


def check_twentieth(part: str) -> dict[str, Any]:
    figures = soak.run(part, soak.TWENTIETH, Console(quiet=True))
    assert figures["holds"], figures
    assert figures["size"] == soak.PARTS[part].size * soak.TWENTIETH
    return figures


def test_evidence_names_figures_seed_commit_and_machine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = write_evidence("retention", soak.run("retention", 0.001, Console(quiet=True)))
    evidence = json.loads(path.read_text())
    assert path.as_posix() == "docs/evidence/retention.json"
    assert {"holds", "seed", "size", "seconds", "commit", "machine"} <= set(evidence)


def test_an_unknown_part_lists_the_known_ones(capsys):
    assert soak.main(["nonsense"]) == 2
    shown = capsys.readouterr().err
    assert all(f"PART={name}" in shown for name in soak.PARTS)
