"""The audit under measurement: made, compacted, and counted in turns by Semel and by others."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from semel.bench import spark_peers
from semel.bench.ledgers import generate
from semel.bench.spark import DUCKDB, NAIVE, NAIVE_EVENTS_MAX, POLARS, SEMEL, AuditLine, EngineTime, SparkOptions, Step
from semel.bench.spark_peers import COUNTS, Answered, BenchQuestion, Cells, peak_bytes
from semel.spark.audit.compact import compact, events_folder, read_manifest
from semel.spark.audit.result import CellFigures
from semel.spark.audit.run import AuditOptions, audit, prepared

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEADLINE_S = 1.0
"""Short beside the time that even a small ledger is about, so that lost messages have had their time."""
_AUDIT = AuditOptions(deadline_s=DEADLINE_S)
_LOOKS = 2
"""How often Semel counts before it is measured: Java needs a while until its code is fast, and a slow start would make
the smallest size look slow and the growth small."""


def measure(spark: SparkSession, options: SparkOptions, folder: Path, step: Step) -> tuple[AuditLine, ...]:
    lines = []
    for events in options.events:
        place = folder / "lake"
        place.mkdir()
        lines.append(_line(spark, options, place, events, step))
        shutil.rmtree(place)
    return tuple(lines)


def _line(spark: SparkSession, options: SparkOptions, folder: Path, events: int, step: Step) -> AuditLine:
    size = f"{events:,} events"
    made = generate(folder, events, step=lambda part: step(f"{size}: making them, {part:.0%}"))
    step(f"{size}: compacting")
    compacted = compact(spark, folder)
    assert not compacted.left
    step(f"{size}: the first look")
    question, codes = _first_look(spark, options, folder)
    engines: dict[str, Callable[[], Answered]] = {
        SEMEL: lambda: _semel(spark, folder, codes),
        DUCKDB: lambda: spark_peers.ask(DUCKDB, question),
        POLARS: lambda: spark_peers.ask(POLARS, question),
    }
    if events <= NAIVE_EVENTS_MAX:
        engines[NAIVE] = lambda: spark_peers.naive(spark, question, tuple(codes.values()))
    rounds: dict[str, list[Answered]] = {name: [] for name in engines}
    for number in range(options.rounds):
        for name, count in engines.items():
            if all(found.cells is not None for found in rounds[name]):
                step(f"{size}: {name}, round {number + 1} of {options.rounds}")
                rounds[name].append(count())
    step(f"{size}: the whole audit")
    whole_s = audit(spark, [folder], _AUDIT).seconds
    ours = rounds[SEMEL][0].cells
    assert ours is not None
    times = tuple(_time(name, found, ours) for name, found in rounds.items())
    return AuditLine(events, made.events, made.bytes, compacted.seconds, compacted.bytes, whole_s, times)


def _first_look(
    spark: SparkSession, options: SparkOptions, folder: Path
) -> tuple[BenchQuestion, dict[tuple[str, str], int]]:
    """What the others are asked, and the codes of the hops by their names."""
    for _ in range(_LOOKS - 1):
        _figures(spark, folder)
    with prepared(spark, [folder], _AUDIT) as case:
        case.figures()
        codes = {(way.hop.pipeline, way.hop.hop): way.hop.code for way in case.ways}
        top, days, spill = events_folder(folder), read_manifest(folder).days, folder / "spill"
        files = tuple(str(top / day.path / file.name) for day in days for file in day.files)
        spill.mkdir()
        deadline_us = case.options.deadline_us
        return BenchQuestion(files, case.window_us, deadline_us, case.now, options.threads, str(spill)), codes


def _figures(spark: SparkSession, folder: Path) -> list[CellFigures]:
    with prepared(spark, [folder], _AUDIT) as case:
        return case.figures()


def _semel(spark: SparkSession, folder: Path, codes: dict[tuple[str, str], int]) -> Answered:
    """From the folder to the figures of every window. The memory is that of the JVM since it started."""
    began = time.perf_counter()
    found = _figures(spark, folder)
    seconds = time.perf_counter() - began
    cells: Cells = {
        (codes[cell.pipeline, cell.hop], cell.window): tuple(getattr(cell, name) for name in COUNTS) for cell in found
    }  # fmt: skip
    return Answered(seconds, cells, peak_bytes(_jvm_pid(spark)))


def _jvm_pid(spark: SparkSession) -> int:
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    return int(jvm.java.lang.ProcessHandle.current().pid())


def _time(engine: str, rounds: list[Answered], ours: Cells) -> EngineTime:
    failed = next((each for each in rounds if each.cells is None), None)
    if failed is not None:
        return EngineTime(engine, failed=failed.why)
    seconds = [each.seconds for each in rounds]
    peaks = [each.peak_bytes for each in rounds if each.peak_bytes is not None]
    differs = next((found for each in rounds if (found := difference(ours, each.cells or {}))), "")
    return EngineTime(engine, median(seconds), min(seconds), max(peaks, default=None), differs)


def difference(ours: Cells, theirs: Cells) -> str:
    """The first count in which an engine differs from Semel. One that gives only windows,
    or only totals, is held to those."""
    kinds = {window is None for _, window in theirs} or {False, True}
    wanted = {key: counts for key, counts in ours.items() if (key[1] is None) in kinds}
    if wanted.keys() != theirs.keys():
        return f"it has {len(theirs)} cells and not {len(wanted)}"
    for key, counts in wanted.items():
        for name, ours_count, count in zip(COUNTS, counts, theirs[key], strict=True):
            if ours_count != count:
                return f"{name} of {key} is {count:,} and not {ours_count:,}"
    return ""
