"""The whole audit: from sources to figures, findings and chains.

with prepared(spark, sources, options) as case:     # survey: hops, kinds, time
    audit = case.audit()                            # one pass; a second one only where something is wrong
    case.tables()["windows"].write.parquet("…")
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame as Frame
from pyspark.sql import functions as F

from semel.errors import InputError
from semel.kernel.ledger import Kind
from semel.spark.audit import chains, compact, expand, figures, findings, sources
from semel.spark.audit.chains import Comparison, Point
from semel.spark.audit.figures import Way
from semel.spark.audit.result import Audit, Chain, Figures, Finding, WindowState

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DEADLINE_S = 60.0
WINDOWS_AIM = 120
WINDOWS_FILLED_MAX = 10_000
WINDOWS_MAX = 1_000_000
_STEPS_S = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21_600, 43_200, 86_400, 604_800)
_SETTINGS = {"spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "1000000"}
"""Sketches are kept in a hash table of the windows, not sorted after the first 128 of them."""


@dataclass(frozen=True, slots=True)
class Options:
    """`deadline_s` is the time that a message may take; only after that is it lost. `window_s` None chooses one that
    gives about a hundred windows. `now` and `since` are in microseconds; `now` None is the time of the newest event.
    `session_class` is a regular expression: what its first group finds in the session is its class."""

    deadline_s: float = DEADLINE_S
    window_s: float | None = None
    now: int | None = None
    since: int | None = None
    pipelines: tuple[str, ...] = ()
    session_class: str | None = None
    examples_max: int = 20

    def __post_init__(self) -> None:
        if self.deadline_s < 0:
            raise InputError(f"a deadline of {self.deadline_s:g} s is in the past", fix="give 0 or more")
        if self.window_s is not None and self.window_s < 0.001:
            raise InputError(f"a window of {self.window_s:g} s holds nothing", fix="give 0.001 or more")
        if self.examples_max < 0:
            raise InputError(f"{self.examples_max} examples cannot be", fix="give 0 or more")
        if self.session_class is not None:
            _check_class(self.session_class)

    @property
    def deadline_us(self) -> int:
        return round(self.deadline_s * 1_000_000)


def _check_class(pattern: str) -> None:
    try:
        groups = re.compile(pattern).groups
    except re.error as error:
        raise InputError(f"{pattern!r} is no regular expression: {error}", fix="try ^([a-z]+)-") from None
    if not groups:
        fix = "put the part that names the class in brackets, such as ^([a-z]+)-"
        raise InputError(f"{pattern!r} has no group", fix=fix)


@dataclass(frozen=True)
class Case:
    """The evidence, looked through once: which hops there are and how each is to be read."""

    spark: SparkSession
    options: Options
    evidence: sources.Evidence
    compacted: tuple[DataFrame, ...]
    ledger: DataFrame
    index: DataFrame
    raw: bool
    ranges: expand.Ranges
    ways: tuple[Way, ...]
    events: int
    now: int
    notes: tuple[str, ...]
    progress: Callable[[str, float], None]
    began: float

    # -- what is read

    @property
    def stores(self) -> int:
        return len(self.evidence.stores)

    def all_events(self) -> DataFrame:
        """Every event about one message, in the columns of `expand.EVENT`."""
        frames = [rows.where(F.col("kind") != figures.RECORD) for rows in self.compacted]
        if self.raw:
            frames += self._raw_events()
        return _union([frame.select(*expand.EVENT_COLUMNS) for frame in frames])

    def _raw_events(self) -> list[DataFrame]:
        frames = [expand.singles(self.ledger)]
        if self.ranges.ranges:
            frames.append(expand.expand(expand.ranges(self.ledger), self._whole_index(), self.ranges))
        return frames

    def _whole_index(self) -> DataFrame:
        """A range that is not compacted yet may name records of a day that is."""
        return sources.index(self.spark, self.evidence) if self.compacted else self.index

    def all_records(self) -> DataFrame:
        """The messages of all streams."""
        columns = ("store", "stream", "offset", "message", "session", "idx", "at")
        frames = [compact.as_records(rows) for rows in self.compacted]
        if self.raw:
            frames.append(compact.records(self.index))
        return _union([frame.select(*columns) for frame in frames])

    def facts(self, *, exact: bool = False) -> DataFrame:
        """What the figures need, with the events of a session side by side. Rows that lie in buckets stay there."""
        frames = [self._facts(rows, exact) for rows in self.compacted]
        if self.raw:
            rows = self._raw_events()
            if any(way.implied for way in self.ways):
                rows.append(compact.as_events(compact.records(self.index)))
            rest = self._facts(_union(rows), exact)
            frames.append(rest.repartition(compact.BUCKETS, "session") if frames else rest.repartition("session"))
        return _union(frames)

    def _facts(self, rows: DataFrame, exact: bool) -> DataFrame:
        return self._chosen(figures.facts(rows, self.ways, exact=exact, stores=self.stores))

    def _chosen(self, rows: DataFrame) -> DataFrame:
        if not self.options.pipelines:
            return rows
        return rows.where(F.col("code").isin(*(way.hop.code for way in self.ways)))

    # -- one row per message

    def messages(self, *, exact: bool = False) -> DataFrame:
        rows = figures.messages(self.facts(exact=exact), self.ways, self.stores)
        return figures.judged(
            rows,
            self.ways,
            now=self.now,
            deadline_us=self.options.deadline_us,
            since=self.options.since,
            stores=self.stores,
        )

    # -- sums

    @cached_property
    def window_us(self) -> int:
        span = self._span()
        if self.options.window_s is None:
            return _window_us(span)
        window = round(self.options.window_s * 1_000_000)
        if span // window > WINDOWS_MAX:
            fix = f"choose a window of {span / WINDOWS_MAX / 1_000_000:.0f} s or more, or a later beginning"
            raise InputError(f"{span // window:,} windows are more than anybody can look at", fix=fix)
        return window

    def _span(self) -> int:
        """How much time the evidence is about, as far as it can be told without reading it."""
        if self.options.since is not None:
            return max(0, self.now - self.options.since)
        oldest = [part.oldest for part in self.evidence.of("ledger") if part.oldest is not None]
        if self.evidence.live:
            row = self.ledger.agg(F.min(F.unix_micros("at")).alias("at")).first()
            oldest += [row["at"]] if row is not None and row["at"] is not None else []
        return max(0, self.now - min(oldest, default=self.now))

    @cached_property
    def _windows(self) -> DataFrame:
        """The sums of all windows. They are few, so they are kept."""
        found = figures.windows(
            self.messages(),
            window_us=self.window_us,
            deadline_us=self.options.deadline_us,
            now=self.now,
            session_class=self.options.session_class,
        )
        with _settings(self.spark):
            return self.spark.createDataFrame(found.toArrow(), found.schema)

    def figures(self) -> list[Figures]:
        """Of every window, and with `window` None of the whole time, by hop and session class."""
        ways = {way.hop.code: way for way in self.ways}
        rows = figures.with_ranks(figures.with_totals(self._windows)).collect()
        found = [figures.figures(row.asDict(), ways) for row in rows]
        return sorted(found, key=lambda cell: (cell.pipeline, cell.hop, cell.session_class, cell.window or 0))

    # -- what is wrong

    def gaps(self) -> DataFrame | None:
        """Ranges that do not fit the index. Compacted days have none."""
        if not self.raw or not self.ranges.ranges:
            return None
        return expand.gaps(expand.ranges(self.ledger), self._whole_index(), self.ranges)

    def findings(self) -> DataFrame:
        rows = findings.findings(
            self.messages(exact=True), self.ways, window_us=self.window_us, session_class=self.options.session_class
        )
        gaps = self.gaps()
        return rows if gaps is None else rows.unionByName(findings.gap_findings(gaps))

    def chains(self, totals: Sequence[Figures]) -> list[Chain]:
        ways = chains.chains_of([way.hop for way in self.ways])
        if not ways:
            return []
        return chains.measure(
            self.messages(), ways, totals, now=self.now, deadline_us=self.options.deadline_us
        )  # fmt: skip

    def compare(self, sender: str, receiver: str) -> Comparison:
        """Any two points by the ids of the messages seen there."""
        of, to = Point.parse(sender, "sent"), Point.parse(receiver, "accepted")
        events, records = self.all_events(), self.all_records()
        seen = [chains.seen_at(point, events, records, self.ways) for point in (of, to)]
        return chains.compare(seen[0], seen[1], of, to, self.options.examples_max)

    # -- all together

    def audit(self) -> Audit:
        self.progress("counting", 0.2)
        cells = self.figures()
        totals = [cell for cell in cells if cell.window is None]
        windows = _filled([cell for cell in cells if cell.window is not None], self.window_us)
        self.progress("checking ranges", 0.6)
        gaps = self.gaps()
        gap_count = gaps.count() if gaps is not None else 0
        result = Audit(
            sources=self.evidence.names,
            now=self.now,
            deadline_s=self.options.deadline_s,
            window_s=self.window_us / 1_000_000,
            events=self.events,
            totals=tuple(totals),
            windows=tuple(windows),
            gaps=gap_count,
            notes=(*self.notes, *_skew_notes(totals)),
        )
        self.progress("following chains", 0.7)
        result = replace(result, chains=tuple(self.chains(totals)))
        self.progress("listing what is wrong", 0.85)
        if self.options.examples_max and any(result.count(finding) for finding in Finding):
            result = replace(result, examples=tuple(findings.examples(self.findings(), self.options.examples_max)))
        self.progress("done", 1.0)
        return replace(result, seconds=time.monotonic() - self.began)

    def tables(self) -> dict[str, DataFrame]:
        """The result as tables, for notebooks and for other tools."""
        names = _names(self.spark, self.ways)
        windows = figures.with_ranks(self._windows).join(names, "code")
        cells = windows.select(
            "pipeline", "hop", "session_class", F.timestamp_micros("window").alias("window"), *figures.SUMS,
            "latencies", F.col("ranks").alias("latency_us_p50_p90_p99_p999"), "latency_max", "skewed", "skew", "sketch",
        )  # fmt: skip
        messages = self.messages(exact=True).withColumnRenamed("key", "message").join(F.broadcast(names), "code")
        messages = messages.select(
            "pipeline", "hop", "session", "message", "idx", "sends", "arrivals", "accepted", "duplicates", "rejected",
            "ended", "replayed", "confirmed", *(F.timestamp_micros(name).alias(name) for name in _TIMES),
            "held", "lost", "given_up", "in_flight", "phantom", "copies", "disorder", "unbalanced",
        )  # fmt: skip
        return {"windows": cells, "messages": messages, "findings": self.findings()}


_TIMES = ("first_sent", "first_accepted")


def audit(
    spark: SparkSession,
    sources: Sequence[str | Path],
    options: Options | None = None,
    progress: Callable[[str, float], None] = lambda what, part: None,
) -> Audit:
    """Audit everything that the sources hold."""
    with prepared(spark, sources, options, progress) as case:
        return case.audit()


@contextmanager
def prepared(
    spark: SparkSession,
    given: Sequence[str | Path],
    options: Options | None = None,
    progress: Callable[[str, float], None] = lambda what, part: None,
) -> Iterator[Case]:
    """Look through the sources. What the case gives is good until the block ends."""
    began, options = time.monotonic(), options or Options()
    progress("looking at the sources", 0.0)
    evidence = sources.find(given)
    days, rest = compact.split(evidence)
    with compact.events_table(spark, days) as tables:
        progress("surveying the hops", 0.05)
        raw = bool(rest or evidence.live or not days)
        ledger = sources.ledger(spark, evidence, [part for part in rest if part.dataset == "ledger"])
        index = sources.index(spark, evidence, [part for part in rest if part.dataset == "index"])
        hops = [figures.Hop(*_fields(hop)) for found in days for day in found.days for hop in day.hops]
        survey = figures.survey(ledger) if raw else figures.Survey()
        hops = figures.together([*hops, *survey.hops])
        known = {stream for found in days for day in found.days for stream in day.streams}
        if raw:
            known |= _streams(index, hops)
        found = figures.ways(hops, known)
        chosen = [way for way in found if not options.pipelines or way.hop.pipeline in options.pipelines]
        _check_pipelines(options, hops)
        yield Case(
            spark=spark,
            options=options,
            evidence=evidence,
            compacted=tuple(tables),
            ledger=ledger,
            index=index,
            raw=raw,
            ranges=survey.ranges,
            ways=tuple(chosen),
            events=sum(way.hop.events for way in chosen),
            now=options.now if options.now is not None else _newest(evidence, ledger),
            notes=(*_notes(chosen), *_metered(survey)),
            progress=progress,
            began=began,
        )


def _fields(hop: compact.HopOf) -> tuple[str, str, int, int, int]:
    return hop.pipeline, hop.hop, hop.code, hop.kinds, hop.events


def _streams(index: DataFrame, hops: Sequence[figures.Hop]) -> set[str]:
    """Which senders are streams. Only asked about hops on which nobody writes down what was sent."""
    senders = {hop.sender for hop in hops if not hop.has(Kind.SENT, Kind.RESENT)}
    if not senders:
        return set()
    rows = compact.records(index).where(F.col("stream").isin(*senders))
    return {row["stream"] for row in rows.select("stream").distinct().collect()}


def _check_pipelines(options: Options, hops: Sequence[figures.Hop]) -> None:
    known = {hop.pipeline for hop in hops}
    for pipeline in options.pipelines:
        if pipeline not in known:
            names = ", ".join(sorted(name or '""' for name in known)) or "none"
            raise InputError(f"there is no pipeline {pipeline!r} in these sources", fix=f"the pipelines are: {names}")


def _newest(evidence: sources.Evidence, ledger: DataFrame) -> int:
    """The time of the newest event: files say it in their footers, live stores are asked."""
    times = [part.newest for part in evidence.of("ledger") if part.newest is not None]
    if evidence.live:
        row = ledger.agg(F.max(F.unix_micros("at")).alias("at")).first()
        times += [row["at"]] if row is not None and row["at"] is not None else []
    return max(times, default=0)


def _window_us(span_us: int) -> int:
    step = next((step for step in _STEPS_S if span_us <= step * 1_000_000 * WINDOWS_AIM), _STEPS_S[-1])
    return step * 1_000_000


def _filled(cells: Sequence[Figures], window_us: int) -> list[Figures]:
    """With a cell for every window in which nothing was sent, as long as these are not too many."""
    by_hop: dict[tuple[str, str, str], dict[int, Figures]] = {}
    for cell in cells:
        assert cell.window is not None
        by_hop.setdefault((cell.pipeline, cell.hop, cell.session_class), {})[cell.window] = cell
    filled: list[Figures] = []
    for name, known in by_hop.items():
        first, last = min(known), max(known)
        if (last - first) // window_us > WINDOWS_FILLED_MAX:
            filled += known.values()
            continue
        for window in range(first, last + 1, window_us):
            filled.append(known.get(window) or Figures(*name, window, WindowState.EMPTY))
    return filled


def _notes(ways: Sequence[Way]) -> list[str]:
    notes = []
    for way in ways:
        hop = way.hop
        if way.unseen:
            notes.append(f"{hop.hop}: nobody wrote down what was sent, so nothing can be said about losses")
        if hop.has(Kind.SENT, Kind.RESENT) and not hop.has(Kind.ACCEPTED, Kind.DUPLICATE, Kind.REJECTED):
            notes.append(f"{hop.hop}: nobody wrote down what arrived; is the receiver's ledger among the sources?")
    return notes


def _metered(survey: figures.Survey) -> list[str]:
    return [
        f"{hop}: {n:,} times {kind.name.lower()} was counted without ids and is not audited"
        for hop, kind, n in survey.metered
    ]


def _skew_notes(totals: Sequence[Figures]) -> list[str]:
    return [
        f"{cell.hop}: {cell.latency.skewed:,} messages were accepted up to {cell.latency.skew_ms:g} ms before they were"
        " sent: the clocks differ, and these are left out of the latencies"
        for cell in totals
        if cell.latency.skewed
    ]


def _names(spark: SparkSession, ways: Sequence[Way]) -> DataFrame:
    rows = [(way.hop.code, way.hop.pipeline, way.hop.hop) for way in ways]
    return spark.createDataFrame(rows, "code long, pipeline string, hop string")


def _union(frames: Sequence[DataFrame]) -> DataFrame:
    return reduce(Frame.unionByName, frames)


@contextmanager
def _settings(spark: SparkSession) -> Iterator[None]:
    before = {key: spark.conf.get(key, None) for key in _SETTINGS}
    for key, value in _SETTINGS.items():
        spark.conf.set(key, value)
    try:
        yield
    finally:
        for key, old in before.items():
            spark.conf.unset(key) if old is None else spark.conf.set(key, old)
