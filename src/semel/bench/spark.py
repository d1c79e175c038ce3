"""`semel bench spark`: the audit beside other engines on the same files, and how fast rows go through Spark.

* audit: for each size a ledger is made and compacted, then Semel, DuckDB, Polars and (at the smaller sizes) a naive
  Spark formulation count it in turns, so that a noisy machine hurts all alike. They must agree on every count.
* source: a store's stream, read through `format("semel")`, beside the same rows in Parquet: every column, and the six
  that a message cannot do without.
* reorder: two regional copies of the same messages through `in_session_order`, and what its state takes.
* delivery: two stores through the delivery pipeline into a third stream. Nothing is promised about this one.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTS = ("audit", "source", "reorder", "delivery")
EVENTS = (5_000_000, 20_000_000)
EVENTS_MIN, EVENTS_MAX = 10_000, 500_000_000
"""All events of a ledger are of one day, which holds no more."""
ROUNDS = 3
THREADS = 2
NAIVE_EVENTS_MAX = 5_000_000
DELIVERY_ROWS_MAX = 200_000

DUCKDB_RATIO_FROM = 20_000_000
"""From this size on Semel's time is held against DuckDB's. Below it, starting a Spark job is most of it."""
DUCKDB_RATIO_WANTED = 2.5
GROWTH_WANTED = 1.1
"""Time per event at the largest size, as a multiple of that at the smallest."""
SOURCE_RATIO_WANTED = 0.6
SOURCE_COLUMNS = 6
REORDER_WANTED = 100_000.0
STATE_GROWTH_WANTED = 1.25
"""State in the second half of the batches, as a multiple of the first half. The sessions are the same throughout."""

SEMEL, DUCKDB, POLARS, NAIVE = "semel", "duckdb", "polars", "naive spark"
Step = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class SparkOptions:
    """`events` are the sizes of the audit; `rows` is how many the other parts read. `memory` is the heap of the JVM,
    None for what the session chooses. `url` is a PostgreSQL server to use instead of a private one."""

    events: tuple[int, ...] = EVENTS
    rows: int = 1_000_000
    parts: tuple[str, ...] = PARTS
    rounds: int = ROUNDS
    threads: int = THREADS
    memory: str | None = None
    postgres: bool = False
    url: str | None = None
    folder: Path = field(default_factory=Path.cwd)


@dataclass(frozen=True, slots=True)
class EngineTime:
    """How long an engine took in each round. `differs`: where its counts are not Semel's; `failed`: why it has none."""

    engine: str
    seconds: float = 0.0
    best: float = 0.0
    peak_bytes: int | None = None
    differs: str = ""
    failed: str = ""


@dataclass(frozen=True, slots=True)
class AuditLine:
    """`size` was asked for, `events` there are. `whole_s` is an audit with everything: chains, ranges, and examples of
    what is wrong."""

    size: int
    events: int
    raw_bytes: int
    compact_s: float
    compact_bytes: int
    whole_s: float
    engines: tuple[EngineTime, ...]

    def of(self, engine: str) -> EngineTime | None:
        return next((each for each in self.engines if each.engine == engine), None)

    @property
    def seconds(self) -> float:
        found = self.of(SEMEL)
        assert found is not None
        return found.seconds

    def ratio(self, engine: str) -> float | None:
        """Semel's time as a multiple of another's."""
        found = self.of(engine)
        return self.seconds / found.seconds if found is not None and found.seconds else None


@dataclass(frozen=True, slots=True)
class SourceLine:
    """Rows per second out of a store, and out of Parquet. `agrees`: both gave the same sums. What is wanted of the
    speed is meant for six `columns`: of all fourteen most are the same throughout, which costs Parquet nothing."""

    engine: str
    columns: int
    rows: int
    store_per_s: float
    parquet_per_s: float
    agrees: bool

    @property
    def ratio(self) -> float:
        return self.store_per_s / self.parquet_per_s


@dataclass(frozen=True, slots=True)
class ReorderLine:
    """`steady_per_s` leaves out the first batch, which starts everything. `state_bytes` is by batch."""

    rows: int
    messages: int
    passed: int
    rows_per_s: float
    steady_per_s: float
    state_bytes: tuple[int, ...]

    @property
    def state_growth(self) -> float:
        half = len(self.state_bytes) // 2
        return max(self.state_bytes[half:]) / max(self.state_bytes[:half])


@dataclass(frozen=True, slots=True)
class DeliveryLine:
    """From two stores through merge and order into one stream. `delivered` must be `messages`."""

    rows: int
    messages: int
    delivered: int
    rows_per_s: float


@dataclass(frozen=True, slots=True)
class SparkResult:
    """What was measured. Parts that were not asked for are empty."""

    threads: int
    heap: str
    audit: tuple[AuditLine, ...] = ()
    source: tuple[SourceLine, ...] = ()
    reorder: ReorderLine | None = None
    delivery: DeliveryLine | None = None

    @property
    def growth(self) -> float | None:
        if len(self.audit) < 2:
            return None
        first, last = self.audit[0], self.audit[-1]
        return (last.seconds / last.events) / (first.seconds / first.events)

    @property
    def misses(self) -> list[str]:
        """What is worse than wanted, each in a sentence."""
        return [*self._audit_misses(), *self._source_misses(), *self._flow_misses()]

    def _audit_misses(self) -> Iterator[str]:
        for line in self.audit:
            for each in line.engines:
                if each.differs:
                    yield f"{each.engine} at {line.events:,} events: {each.differs}"
            if line.size >= DUCKDB_RATIO_FROM:
                ratio = line.ratio(DUCKDB)
                if ratio is None:
                    yield f"DuckDB did not count {line.events:,} events, so there is nothing to compare with"
                elif ratio > DUCKDB_RATIO_WANTED:
                    found = f"takes {ratio:.2f} times as long as DuckDB, not {DUCKDB_RATIO_WANTED}"
                    yield f"the audit of {line.events:,} events {found}"
        if self.growth is not None and self.growth > GROWTH_WANTED:
            found = f"takes {self.growth:.2f} times as long at the largest size as at the smallest"
            yield f"an event {found}, not {GROWTH_WANTED}"

    def _source_misses(self) -> Iterator[str]:
        for line in self.source:
            if not line.agrees:
                yield f"{line.engine}: the store and Parquet do not give the same rows"
            if line.ratio < SOURCE_RATIO_WANTED and line.columns == SOURCE_COLUMNS:
                found = f"{line.ratio:.2f} of the speed of Parquet, not {SOURCE_RATIO_WANTED}"
                yield f"{line.engine}: the source has {found}"

    def _flow_misses(self) -> Iterator[str]:
        if (reorder := self.reorder) is not None:
            if reorder.passed != reorder.messages:
                yield f"{reorder.passed:,} of {reorder.messages:,} messages came out in order"
            if reorder.steady_per_s < REORDER_WANTED:
                yield f"{reorder.steady_per_s:,.0f} rows/s are put in order, not {REORDER_WANTED:,.0f}"
            if reorder.state_growth > STATE_GROWTH_WANTED:
                yield f"the state has grown {reorder.state_growth:.2f} times, and the sessions were the same"
        if self.delivery is not None and self.delivery.delivered != self.delivery.messages:
            yield f"{self.delivery.delivered:,} of {self.delivery.messages:,} messages were delivered"

    @property
    def holds(self) -> bool:
        return not self.misses

    def as_dict(self) -> dict[str, Any]:
        audit = [
            {**asdict(line), "ratio_to_duckdb": line.ratio(DUCKDB), "ratio_to_polars": line.ratio(POLARS)}
            for line in self.audit
        ]
        source = [{**asdict(line), "ratio": line.ratio} for line in self.source]
        reorder = self.reorder and {**asdict(self.reorder), "state_growth": self.reorder.state_growth}
        own = {"audit": audit, "source": source, "reorder": reorder, "growth": self.growth}
        return {**asdict(self), **own, "misses": self.misses, "holds": self.holds}


def run(options: SparkOptions, console: Console, spark: SparkSession | None = None) -> SparkResult:
    """Measure, showing progress on `console`. Temporary data is removed. A session that is given stays open."""
    from semel.bench import spark_audit, spark_flow, spark_peers
    from semel.spark.session import need_pyspark

    need_pyspark()
    if "audit" in options.parts:
        spark_peers.check_installed()
    with (
        tempfile.TemporaryDirectory(prefix="semel-bench-", dir=options.folder) as temporary,
        Progress(console=console, transient=True) as progress,
    ):
        folder = Path(temporary).resolve()
        task = progress.add_task("starting Spark", total=None)
        with _session(options, folder, spark) as session:

            def step(text: str) -> None:
                progress.update(task, description=text)

            lines = spark_audit.measure(session, options, folder, step) if "audit" in options.parts else ()
            source = spark_flow.measure_source(session, options, folder, step) if "source" in options.parts else ()
            reorder = spark_flow.measure_reorder(session, options, folder, step) if "reorder" in options.parts else None
            delivery = (
                spark_flow.measure_delivery(session, options, folder, step) if "delivery" in options.parts else None
            )
            heap = session.conf.get("spark.driver.memory", "") or ""
    return SparkResult(options.threads, heap, lines, source, reorder, delivery)


@contextmanager
def _session(options: SparkOptions, folder: Path, given: SparkSession | None) -> Iterator[SparkSession]:
    if given is not None:
        yield given
        return
    from semel.spark.session import spark_session

    places = {"spark.sql.warehouse.dir": str(folder / "warehouse"), "spark.local.dir": str(folder / "local")}
    spark = spark_session(
        app="semel-bench", master=f"local[{options.threads}]", memory=options.memory, settings=places
    )  # fmt: skip
    try:
        yield spark
    finally:
        spark.stop()


# -- for people


def tables(result: SparkResult) -> list[Table]:
    found = [_audit_table(result)] if result.audit else []
    found += [_source_table(result.source)] if result.source else []
    return [*found, *([_flow_table(result)] if result.reorder or result.delivery else [])]


def _table(title: str, columns: Sequence[str]) -> Table:
    view = Table(title=title)
    for number, name in enumerate(columns):
        view.add_column(name, justify="right" if number else "left")
    return view


def _audit_table(result: SparkResult) -> Table:
    title = f"audit: {result.threads} threads each, heap {result.heap or 'as Spark chooses'}"
    view = _table(title, ("", "events", "median", "best", "events/s", "of DuckDB", "memory", ""))
    for line in result.audit:
        size = f"{line.events:,}"
        laid = f"{line.raw_bytes / 2**20:,.0f} to {line.compact_bytes / 2**20:,.0f} MiB"
        view.add_row("compact", size, _s(line.compact_s), "", _rate(line.events, line.compact_s), "", "", laid)
        for each in line.engines:
            duckdb = line.of(DUCKDB)
            ratio = f"{each.seconds / duckdb.seconds:.2f}" if duckdb and duckdb.seconds and each.seconds else ""
            memory = "" if each.peak_bytes is None else f"{each.peak_bytes / 2**30:.2f} GiB"
            view.add_row(
                each.engine, size, _s(each.seconds), _s(each.best), _rate(line.events, each.seconds), ratio, memory,
                each.failed or each.differs or "agrees",
            )  # fmt: skip
        view.add_row("semel, whole audit", size, _s(line.whole_s), "", _rate(line.events, line.whole_s), "", "", "once")
        view.add_section()
    if result.growth is not None:
        view.caption = f"time per event at the largest size: {result.growth:.2f} times that at the smallest"
    return view


def _source_table(lines: Sequence[SourceLine]) -> Table:
    names = ("store", "columns", "rows", "store rows/s", "Parquet rows/s", "ratio", "")
    view = _table("source: rows of a stream", names)
    for line in lines:
        rates = (f"{line.store_per_s:,.0f}", f"{line.parquet_per_s:,.0f}", f"{line.ratio:.2f}")
        view.add_row(line.engine, str(line.columns), f"{line.rows:,}", *rates, "agrees" if line.agrees else "differs")
    return view


def _flow_table(result: SparkResult) -> Table:
    view = _table("streams", ("", "rows", "messages", "came out", "rows/s", "steady rows/s", "state"))
    if (reorder := result.reorder) is not None:
        first, last = (f"{reorder.state_bytes[at] / 2**20:.1f}" for at in (0, -1))
        view.add_row(
            "reorder", f"{reorder.rows:,}", f"{reorder.messages:,}", f"{reorder.passed:,}",
            f"{reorder.rows_per_s:,.0f}", f"{reorder.steady_per_s:,.0f}", f"{first} to {last} MiB",
        )  # fmt: skip
    if (delivery := result.delivery) is not None:
        counts = (delivery.rows, delivery.messages, delivery.delivered)
        view.add_row("delivery", *(f"{count:,}" for count in counts), f"{delivery.rows_per_s:,.0f}", "", "")
    return view


def _s(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds else "-"


def _rate(events: int, seconds: float) -> str:
    return f"{events / seconds:,.0f}" if seconds else "-"
