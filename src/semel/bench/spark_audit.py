"""The audit under measurement: made, compacted, and counted in turns by Semel and by others."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.bench import spark_peers
from semel.bench.spark import DUCKDB, NAIVE, NAIVE_EVENTS_MAX, POLARS, SEMEL, AuditLine, EngineTime, SparkOptions, Step
from semel.bench.spark_peers import COUNTS, Answered, BenchQuestion, Cells, peak_bytes
from semel.kernel.ledger import START, Kind, Mark
from semel.runtime.export.exporter import (
    ID_FILE,
    SEGMENT_ROWS,
    EpochStart,
    Segment,
    _parquet_bytes,
    dataset_folder,
    dataset_schema,
    mark_text,
)
from semel.spark.audit.compact import compact, events_folder, read_manifest
from semel.spark.audit.result import CellFigures
from semel.spark.audit.run import AuditOptions, audit, prepared

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PIPELINES = ("chat", "mail")
HOPS = ("app>edge", "edge>hub", "hub>desk")
STORE, EPOCH, NODE, DAY = "bench", 1, "bench", "2026-01-01"
BEGIN_US = 1_767_225_600_000_000
"""The first moment of that day. The events of one folder are all of one day."""

EVENTS_PER_MESSAGE = 3 * len(HOPS)
MESSAGES_PER_SESSION = 1000 // EVENTS_PER_MESSAGE
SESSIONS_AT_ONCE = 1000
STEP_US = 1000
LATENCY_US = (5_000, 8_000)
"""The least, and what is added on average."""
WORK_US = 500
AGAIN_US = 20_000
LOST, TWICE, REPEATED, LATE, UNSENT = 0.001, 0.001, 0.001, 0.001, 0.0001
LATE_PLACES = 2.5

_MIX = np.uint64(0x9E3779B97F4A7C15)
_HEX = np.array([list(f"{byte:02x}".encode()) for byte in range(256)], dtype=np.uint8)


@dataclass(frozen=True, slots=True)
class Generated:
    """What lies in the folder now."""

    events: int
    bytes: int


def generate(
    folder: Path,
    events: int,
    *,
    seed: int = 1,
    segment_rows: int = SEGMENT_ROWS,
    step: Callable[[float], None] = lambda part: None,
) -> Generated:
    """Write about so many events into an export folder, without a store. `step` gets the part that is written.

    Two pipelines of three hops. A message goes over the hops of its pipeline one after the other and leaves `sent`,
    `accepted` and `forwarded` on each. A few are lost, accepted twice, found to be duplicates, late by several places
    of their session, or accepted though nobody wrote down that they were sent. Everything is drawn from a seed and made
    in pieces of one segment, so that a hundred million events need no more memory than one million.
    """
    top = dataset_folder(folder, "ledger")
    for place in (top / f"day={DAY}", top / "_manifest" / f"day={DAY}", top / "_epochs"):
        place.mkdir(parents=True)
    (folder / ID_FILE).write_text("bench\n")
    (top / "_epochs" / f"{STORE}-{EPOCH}.json").write_bytes(
        msgspec.json.encode(EpochStart(STORE, EPOCH, mark_text(START)))
    )
    messages = max(1, events // EVENTS_PER_MESSAGE)
    each = max(1, segment_rows // EVENTS_PER_MESSAGE)
    rng = np.random.default_rng(seed)
    sessions_at_once = min(SESSIONS_AT_ONCE, max(1, messages // MESSAGES_PER_SESSION))
    written = size = 0
    for first in range(0, messages, each):
        numbers = np.arange(first, min(messages, first + each))
        rows = _events(numbers, sessions_at_once, rng)
        size += _write_segment(top, _table(rows, written))
        written += len(rows["at"])
        step(min(1.0, (first + each) / messages))
    return Generated(written, size)


# -- what happens to the messages

Events = dict[str, Any]
"""Columns by name: `number` of the message, `session`, `idx`, `hop`, `kind` and `at`."""


def _events(numbers: Any, sessions_at_once: int, rng: Any) -> Events:
    """Groups of sessions come one after the other, and in a group the sessions take turns."""
    group, place = np.divmod(numbers, sessions_at_once * MESSAGES_PER_SESSION)
    session = group * sessions_at_once + place % sessions_at_once
    idx = place // sessions_at_once + 1
    late_us = LATE_PLACES * sessions_at_once * STEP_US
    at = BEGIN_US + numbers * STEP_US
    alive = np.ones(len(numbers), dtype=bool)
    parts: list[tuple[Any, int, Kind, Any]] = []
    for hop in range(len(HOPS)):
        lost, twice, repeated, late, unsent = (
            rng.random(len(numbers)) < share for share in (LOST, TWICE, REPEATED, LATE, UNSENT)
        )
        latency = LATENCY_US[0] + rng.exponential(LATENCY_US[1], len(numbers)) + late * late_us
        arrived = at + latency.astype(np.int64)
        came = alive & ~lost
        parts += [
            (alive & ~(unsent & came), hop, Kind.SENT, at),
            (came, hop, Kind.ACCEPTED, arrived),
            (came, hop, Kind.FORWARDED, arrived + WORK_US),
            (came & twice, hop, Kind.ACCEPTED, arrived + AGAIN_US),
            (came & twice, hop, Kind.FORWARDED, arrived + AGAIN_US + WORK_US),
            (came & repeated, hop, Kind.DUPLICATE, arrived + AGAIN_US),
        ]
        alive, at = came, arrived + WORK_US
    chosen = [np.flatnonzero(mask) for mask, *_ in parts]
    which = np.concatenate(chosen)
    rows = {
        "number": numbers[which],
        "session": session[which],
        "idx": idx[which],
        "hop": np.concatenate(
            [np.full(len(c), hop, np.int32) for c, (_, hop, _, _) in zip(chosen, parts, strict=True)]
        ),
        "kind": np.concatenate(
            [np.full(len(c), int(kind), np.int16) for c, (_, _, kind, _) in zip(chosen, parts, strict=True)]
        ),
        "at": np.concatenate([when[c] for c, (*_, when) in zip(chosen, parts, strict=True)]),
    }
    order = np.argsort(rows["at"], kind="stable")
    return {name: column[order] for name, column in rows.items()}


# -- as a segment


def _table(rows: Events, before: int) -> Any:
    count = len(rows["at"])
    ones = pa.array(np.ones(count, dtype=np.int32))
    known = {
        "seq": pa.array(np.arange(before + 1, before + 1 + count)),
        "at": pa.array(rows["at"]),
        "node": _repeated(NODE, count),
        "pipeline": _named(rows["session"] % len(PIPELINES), PIPELINES),
        "hop": _named(rows["hop"], HOPS),
        "kind": pa.array(rows["kind"]),
        "message": _ids(rows["number"]),
        "session": _sessions(rows["session"]),
        "idx": pa.array(rows["idx"]),
        "peer": _repeated("", count),
        "n": ones,
        "attempt": ones,
    }
    schema = dataset_schema("ledger")
    columns = [
        known[field.name].cast(field.type) if field.name in known else pa.nulls(count, field.type) for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _repeated(text: str, count: int) -> Any:
    return _named(np.zeros(count, dtype=np.int32), (text,))


def _named(numbers: Any, names: tuple[str, ...]) -> Any:
    return pa.array(names).take(pa.array(numbers))


def _ids(numbers: Any) -> Any:
    """16 hexadecimal digits that look like chance and are different for different numbers."""
    mixed = ((numbers.astype(np.uint64) + np.uint64(1)) * _MIX).astype(">u8")
    digits = _HEX[mixed.view(np.uint8)]
    ends = np.arange(len(numbers) + 1, dtype=np.int32) * 16
    return pa.StringArray.from_buffers(len(numbers), pa.py_buffer(ends), pa.py_buffer(digits.tobytes()))


def _sessions(numbers: Any) -> Any:
    digits = pc.utf8_lpad(pa.array(numbers).cast(pa.string()), 8, "0")
    return pc.binary_join_element_wise(pa.scalar("session"), digits, "-")


def _write_segment(top: Path, table: Any) -> int:
    first, last = (Mark(0, table["seq"][at].as_py()) for at in (0, -1))
    name = f"day={DAY}/seg-{STORE}-{EPOCH}-{first}-{last}"
    marks = {"first": mark_text(first), "last": mark_text(last), "min": mark_text(first), "max": mark_text(last)}
    metadata = {
        "semel.dataset": "ledger/v1", "semel.store": STORE, "semel.epoch": str(EPOCH),
        "semel.range": f"{marks['first']}..{marks['last']}", "semel.day": DAY,
    }  # fmt: skip
    content = _parquet_bytes(table.to_batches(), "ledger", metadata)
    (top / f"{name}.parquet").write_bytes(content)
    digest = sha256(content).hexdigest()
    segment = Segment(
        f"{name}.parquet", STORE, EPOCH, day=DAY, rows=table.num_rows, bytes=len(content), sha256=digest, **marks
    )
    (top / "_manifest" / f"{name}.json").write_bytes(msgspec.json.encode(segment))
    return len(content)


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
