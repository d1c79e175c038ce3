"""`semel bench`: options in, table and exit code out."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from semel.bench import pipes
from semel.bench import store as bench
from semel.bench.pipes import BenchOptions, Line, PipesResult
from semel.bench.store import Measurement, Options, Result
from semel.cli.bench import parse_scales
from semel.errors import ConfigError

from .conftest import Semel


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Options]:
    """A machine on which Semel is as fast as promised, unless there are more than 64 producers."""
    seen: list[Options] = []

    def run(options: Options, console: Console) -> Result:
        seen.append(options)
        console.print("this must not be seen: nobody looks")
        ratio = 0.8 if options.producers <= 64 else 0.1
        line = Measurement(100, 900.0, 50_000.0, 40_000.0, ratio, 1.0, 5.0, 1.5, 3.0)
        return Result(options.engine, options.producers, options.body_bytes, (line,))

    monkeypatch.setattr(bench, "run", run)
    return seen


def test_options_arrive(semel: Semel, asked: list[Options]) -> None:
    Path("here").mkdir()
    ran = semel(
        "bench", "store", "--engine", "postgres", "--url", "postgresql://h/d", "--rows", "200", "--producers", "8",
        "--body-bytes", "10", "--scales", "1,5", "--folder", "here", "--json",
    )  # fmt: skip
    assert (ran.exit_code, ran.err) == (0, "")
    assert asked == [Options("postgres", "postgresql://h/d", 200, 8, 10, (1, 5), Path("here"))]
    assert ran.result["lines"][0]["ratio"] == 0.8


def test_a_promise_that_is_not_kept_is_a_false_claim(semel: Semel, asked: list[Options]) -> None:
    ran = semel("bench", "store", "--producers", "65")
    assert ran.exit_code == 1
    assert "40,000" in ran.out
    assert "must not be seen" not in ran.out + ran.err
    assert "slower than promised" in ran.err
    assert semel("bench", "store", "--producers", "65", "--json").error["code"] == "claim-false"


@pytest.mark.parametrize("text", ["", "1,x", "0,1", "10,1", "1,1"])
def test_scales_rise(text: str) -> None:
    with pytest.raises(ConfigError, match="--scales"):
        parse_scales(text)


def test_a_folder_that_is_not_there(semel: Semel) -> None:
    assert semel("bench", "store", "--folder", "nowhere", "--json").error["message"] == "nowhere is not a folder"


def test_a_small_measurement_for_real(semel: Semel) -> None:
    """How fast it is depends on the machine; that it is measured does not."""
    ran = semel("bench", "store", "--rows", "100", "--scales", "1", "--producers", "4", "--json")
    assert ran.exit_code in (0, 1)
    [line] = ran.result["lines"]
    assert line["semel_per_s"] > 0
    assert line["raw_per_s"] > 0
    assert list(Path().iterdir()) == []


# -- pipes


@pytest.fixture
def asked_pipes(monkeypatch: pytest.MonkeyPatch) -> list[BenchOptions]:
    """A machine on which pipes are as fast as promised, unless the window is 1."""
    seen: list[BenchOptions] = []

    def run(options: BenchOptions, console: Console) -> PipesResult:
        seen.append(options)
        pipe = 90_000.0 if options.window > 1 else 9_000.0
        lines = tuple(Line(options.messages * scale, 300_000.0, 200_000.0, pipe, 9_000.0) for scale in options.scales)
        return PipesResult(options.body_bytes, options.window, lines)

    monkeypatch.setattr(pipes, "run", run)
    return seen


def test_options_of_pipes_arrive(semel: Semel, asked_pipes: list[BenchOptions]) -> None:
    Path("here").mkdir()
    ran = semel(
        "bench", "pipes", "--messages", "200", "--body-bytes", "10", "--window", "7", "--scales", "1,5", "--folder",
        "here", "--json",
    )  # fmt: skip
    assert (ran.exit_code, ran.err) == (0, "")
    assert asked_pipes == [BenchOptions(200, 10, 7, (1, 5), folder=Path("here"))]
    assert ran.result["lines"][0]["ratio"] == 0.45


def test_a_slow_pipe_is_a_false_claim(semel: Semel, asked_pipes: list[BenchOptions]) -> None:
    ran = semel("bench", "pipes", "--window", "1")
    assert ran.exit_code == 1
    assert "0.04" in ran.out
    assert "slower than promised" in ran.err


def test_a_backlog_that_slows_the_pipe_is_a_false_claim() -> None:
    def line(backlog: int, pipe: float, durable: float) -> Line:
        return Line(backlog, 300_000.0, 200_000.0, pipe, durable)

    assert PipesResult(1, 1, (line(1, 90_000, 9_000), line(100, 80_000, 8_000))).holds
    assert not PipesResult(1, 1, (line(1, 90_000, 9_000), line(100, 60_500, 9_000))).holds
    assert not PipesResult(1, 1, (line(1, 90_000, 9_000), line(100, 90_000, 6_000))).holds


@pytest.mark.parametrize("side", pipes.SIDES)
def test_every_side_of_the_bench_moves_its_messages(side: str, tmp_path: Path) -> None:
    assert pipes.measure(side, 50, BenchOptions(window=8, folder=tmp_path)) > 0
