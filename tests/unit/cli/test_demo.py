"""`semel demo`: options in, verdict out. What the demo does is tested with the demo."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from tests.unit.cli.conftest import Semel

import semel.demo
from semel.demo import DemoOptions


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[DemoOptions]:
    seen: list[DemoOptions] = []

    def run(options: DemoOptions, console: Console) -> Any:
        seen.append(options)
        console.print("the story so far")
        holds = options.plant is None
        return SimpleNamespace(holds=holds, exit_code=0 if holds else 1, as_dict=lambda: {"holds": holds})

    monkeypatch.setattr(semel.demo, "run", run)
    return seen


def test_without_options_it_is_the_demo_that_its_authors_meant(semel: Semel, asked: list[DemoOptions]) -> None:
    ran = semel("demo")
    assert (ran.exit_code, ran.out, ran.err) == (0, "the story so far\n", "")
    assert asked == [DemoOptions(audit=True, hub=True, inbox=True)]


def test_options_arrive(semel: Semel, asked: list[DemoOptions]) -> None:
    semel(
        "demo", "--messages", "5", "--loss", "0.5", "--doubling", "0.4", "--delay", "0.3", "--cuts", "0.2", "--kills",
        "1", "--seed", "9", "--keep", "--folder", "here", "--plant", "no-order", "--no-hub", "--no-inbox",
        "--no-audit",
    )  # fmt: skip
    assert asked == [DemoOptions(5, 0.5, 0.4, 0.3, 0.2, 1, 9, True, Path("here"), "no-order")]


def test_for_a_machine_there_is_the_verdict_alone(semel: Semel, asked: list[DemoOptions]) -> None:
    ran = semel("demo", "--json")
    assert (ran.exit_code, ran.result, ran.err) == (0, {"holds": True}, "")


def test_a_verdict_that_is_not_exactly_once_is_a_false_claim(semel: Semel, asked: list[DemoOptions]) -> None:
    ran = semel("demo", "--plant", "no-dedup", "--json")
    assert (ran.exit_code, ran.error["code"]) == (1, "claim-false")
    assert ran.error["fix"] == "the mistake 'no-dedup' was built in: leave out --plant"


def test_options_that_make_no_sense_are_errors_of_usage(semel: Semel) -> None:
    for option, value in (("--messages", "0"), ("--loss", "1.5"), ("--kills", "-1"), ("--plant", "none")):
        assert semel("demo", option, value, "--json").error["code"] == "config"
