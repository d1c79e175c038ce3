"""`semel bench spark` for real, on little data: how fast it is depends on the machine, what it counts does not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from rich.console import Console

from semel.bench import spark_audit, spark_flow, spark_peers
from semel.bench.spark import DUCKDB, NAIVE, POLARS, SEMEL, SparkOptions, SparkResult, run
from semel.bench.spark_peers import COUNTS, BenchQuestion, ask

EVENTS = 20_000


def bench(spark: SparkSession, folder: Path, part: str, **more: object) -> SparkResult:
    options = SparkOptions(events=(EVENTS,), rows=5_000, parts=(part,), rounds=1, folder=folder)
    result = run(replace(options, **more), Console(quiet=True), spark)  # type: ignore[arg-type]
    assert list(folder.iterdir()) == []
    return result


def test_all_engines_agree_on_every_count(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[spark_peers.Answered] = []

    def listening(engine: str, question: BenchQuestion) -> spark_peers.Answered:
        asked.append(ask(engine, question))
        return asked[-1]

    monkeypatch.setattr(spark_audit.spark_peers, "ask", listening)
    monkeypatch.setattr(spark_audit, "_LOOKS", 1)
    result = bench(spark, tmp_path, "audit")
    [line] = result.audit
    assert [(each.engine, each.differs) for each in line.engines] == [
        (SEMEL, ""), (DUCKDB, ""), (POLARS, ""), (NAIVE, ""),
    ]  # fmt: skip
    assert all(each.seconds > 0 for each in line.engines)
    assert all(time > 0 for time in (line.compact_s, line.whole_s))
    assert line.events == pytest.approx(EVENTS, rel=0.02)
    # there was something to find of everything that can be planted
    cells = asked[0].cells or {}
    found = {name: sum(counts[at] for counts in cells.values()) for at, name in enumerate(COUNTS)}
    assert {name for name, count in found.items() if not count} <= {"given_up", "in_flight", "phantoms"}
    assert found["sent"] == pytest.approx(EVENTS / 3, rel=0.02)


def test_rows_through_spark_are_the_same_rows(spark: SparkSession, tmp_path: Path) -> None:
    lines = bench(spark, tmp_path, "source").source
    assert [(line.engine, line.columns, line.rows, line.agrees) for line in lines] == [
        ("sqlite", 6, 5_000, True), ("sqlite", 14, 5_000, True),
    ]  # fmt: skip
    assert all(min(line.store_per_s, line.parquet_per_s) > 0 for line in lines)


def test_every_message_is_put_in_order_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_flow, "BATCHES", 3)
    line = bench(spark, tmp_path, "reorder").reorder
    assert line is not None
    assert (line.messages, line.passed) == (2_500, 2_500)
    assert line.rows > 4_900
    assert len(line.state_bytes) == 3
    assert min(line.state_bytes) > 0


def test_every_message_is_delivered_once(spark: SparkSession, tmp_path: Path) -> None:
    line = bench(spark, tmp_path, "delivery", rows=2_000).delivery
    assert line is not None
    assert (line.messages, line.delivered) == (1_000, 1_000)
