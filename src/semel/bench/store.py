"""`semel bench store`: what full durability costs, beside the disk and beside raw batches of the same rows.

For each amount of rows already stored (1x, 10x, 100x) and in turns, so that a noisy machine hurts both alike:

* raw: one process inserts batches of 100 finished rows, one commit per batch;
* semel: 64 producers commit one message each at a time, and wait for it;
* alone: one producer, one message at a time.

Every figure is at the same durability: a commit is answered when the disk has it.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from semel.bench.disk import fdatasync_rate
from semel.bench.sides import HOP, STREAM, Bench, SqliteBench
from semel.errors import ConfigError
from semel.kernel.envelope import Envelope, mint_id
from semel.kernel.ledger import Event, Kind
from semel.kernel.ops import Append
from semel.kernel.store import Store
from semel.runtime.host.committer import Committer
from semel.runtime.host.loop import run as run_loop
from semel.runtime.host.performer import Performer

RAW_BATCH = 100
SCALES = (1, 10, 100)
ROUNDS = 3
RATIO_WANTED = 0.5
P99_WANTED_MS = 20.0
ALONE_EXTRA_MS = 1.0
ALONE_TURNS = 5
ALONE_ROWS = 200
ALONE_DISK_S = 0.2


@dataclass(frozen=True, slots=True)
class StoreBenchOptions:
    """`rows` is the 1x of stored rows and the size of each measurement; `url` is a PostgreSQL server to use."""

    engine: str = "sqlite"
    url: str | None = None
    rows: int = 5000
    producers: int = 64
    body_bytes: int = 500
    scales: tuple[int, ...] = SCALES
    folder: Path = field(default_factory=Path.cwd)


@dataclass(frozen=True, slots=True)
class Measurement:
    """One line of the table. Rates are rows per second, waits are milliseconds."""

    stored: int
    fdatasync_per_s: float
    raw_per_s: float
    semel_per_s: float
    ratio: float
    p50_ms: float
    p99_ms: float
    alone_p50_ms: float
    alone_limit_ms: float

    @property
    def holds(self) -> bool:
        return self.ratio >= RATIO_WANTED and self.p99_ms < P99_WANTED_MS and self.alone_p50_ms <= self.alone_limit_ms


@dataclass(frozen=True, slots=True)
class Result:
    engine: str
    producers: int
    body_bytes: int
    lines: tuple[Measurement, ...]

    @property
    def holds(self) -> bool:
        return all(line.holds for line in self.lines)

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "lines": [{**asdict(line), "holds": line.holds} for line in self.lines]}


def run(options: StoreBenchOptions, console: Console) -> Result:
    """Measure, showing progress on `console`. Temporary data is removed."""
    with ExitStack() as stack:
        bench = stack.enter_context(_open(options))
        progress = stack.enter_context(Progress(console=console, transient=True))
        task = progress.add_task("measuring", total=len(options.scales) * (ROUNDS + 1))
        lines = [_measure(bench, options, scale, lambda: progress.advance(task)) for scale in options.scales]
    return Result(options.engine, options.producers, options.body_bytes, tuple(lines))


def table(result: Result) -> Table:
    """The result for people."""
    view = Table(
        title=f"{result.engine}: {result.producers} producers, {result.body_bytes} byte bodies, full durability"
    )
    for name in (
        "rows stored",
        "fdatasync/s",
        "raw rows/s",
        "semel rows/s",
        "ratio",
        "wait p50",
        "wait p99",
        "alone p50",
    ):
        view.add_column(name, justify="right")
    for line in result.lines:
        view.add_row(
            f"{line.stored:,}",
            f"{line.fdatasync_per_s:,.0f}",
            f"{line.raw_per_s:,.0f}",
            f"{line.semel_per_s:,.0f}",
            f"{line.ratio:.2f}",
            f"{line.p50_ms:.1f} ms",
            f"{line.p99_ms:.1f} ms",
            f"{line.alone_p50_ms:.2f} ms",
        )
    return view


def _open(options: StoreBenchOptions) -> Bench:
    if options.engine == "sqlite":
        return SqliteBench(options.folder)
    if options.engine == "postgres":
        from semel.bench.postgres import PostgresBench

        return PostgresBench(options.url, options.folder)
    raise ConfigError(f"there is no engine {options.engine!r}", fix="use sqlite or postgres")


def make_envelopes(count: int, body_bytes: int) -> list[Envelope]:
    body = b"x" * body_bytes
    return [
        Envelope(id=mint_id(time.time(), os.urandom(10)), session=f"session-{number % 100}", index=number, data=body)
        for number in range(count)
    ]


def _appends(envelopes: Sequence[Envelope]) -> list[Append]:
    accepted = Event(Kind.ACCEPTED, HOP)
    return [Append(STREAM, envelope, identity=envelope.id, on_fresh=accepted) for envelope in envelopes]


def _measure(bench: Bench, options: StoreBenchOptions, scale: int, step: Callable[[], None]) -> Measurement:
    _fill(bench, options, scale * options.rows)
    _round(bench, options)  # not counted: both sides begin with warm caches and warm code
    step()
    rounds = []
    for _ in range(ROUNDS):
        rounds.append(_round(bench, options))
        step()
    rates = sorted(rounds, key=lambda found: found[1] / found[0])
    raw, semel = rates[len(rates) // 2][:2]
    waits = sorted(wait for _, _, found in rounds for wait in found)
    disk, alone = _measure_alone(bench, options)
    bench.stored += (ROUNDS + 1) * options.rows + len(alone)
    return Measurement(
        stored=scale * options.rows,
        fdatasync_per_s=disk,
        raw_per_s=raw,
        semel_per_s=semel,
        ratio=semel / raw,
        p50_ms=_percentile(waits, 0.5),
        p99_ms=_percentile(waits, 0.99),
        alone_p50_ms=_percentile(alone, 0.5),
        alone_limit_ms=2000 / disk + ALONE_EXTRA_MS,
    )


def _measure_alone(bench: Bench, options: StoreBenchOptions) -> tuple[float, list[float]]:
    """The limit of the disk and the waits of one producer, in turns: a slow moment of the disk hurts both alike."""
    rates: list[float] = []
    waits: list[float] = []
    for _ in range(ALONE_TURNS):
        rates.append(fdatasync_rate(bench.folder, ALONE_DISK_S))
        waits += run_loop(_alone(bench.store, _appends(make_envelopes(ALONE_ROWS, options.body_bytes))))
    return median(rates), sorted(waits)


def _fill(bench: Bench, options: StoreBenchOptions, rows: int) -> None:
    """Bring both sides to the wanted amount of stored rows, in large batches."""
    while bench.stored < rows:
        count = min(20_000, rows - bench.stored)
        bench.raw.insert(bench.raw.prepare(make_envelopes(count, options.body_bytes), 1000))
        run_loop(_fill_store(bench.store, _appends(make_envelopes(count, options.body_bytes))))
        bench.stored += count


async def _fill_store(store: Store, appends: Sequence[Append]) -> None:
    async with Performer(store) as performer:
        committer = Committer(performer)
        await asyncio.gather(*(committer.commit(appends[at : at + 500]) for at in range(0, len(appends), 500)))


def _round(bench: Bench, options: StoreBenchOptions) -> tuple[float, float, list[float]]:
    """Raw rows per second, Semel's rows per second, and how long each producer waited each time."""
    batches = bench.raw.prepare(make_envelopes(options.rows, options.body_bytes), RAW_BATCH)
    begin = time.perf_counter()
    bench.raw.insert(batches)
    raw = options.rows / (time.perf_counter() - begin)
    appends = _appends(make_envelopes(options.rows, options.body_bytes))
    seconds, waits = run_loop(_together(bench.store, appends, options.producers))
    return raw, options.rows / seconds, waits


async def _together(store: Store, appends: Sequence[Append], producers: int) -> tuple[float, list[float]]:
    waits: list[float] = []
    async with Performer(store) as performer:
        committer = Committer(performer)

        async def produce(number: int) -> None:
            for append in appends[number::producers]:
                begin = time.perf_counter()
                await committer.commit((append,))
                waits.append(1000 * (time.perf_counter() - begin))

        begin = time.perf_counter()
        await asyncio.gather(*(produce(number) for number in range(producers)))
        seconds = time.perf_counter() - begin
    return seconds, waits


async def _alone(store: Store, appends: Sequence[Append]) -> list[float]:
    _, waits = await _together(store, appends, 1)
    return waits


def _percentile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
