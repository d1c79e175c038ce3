"""The whole audit: from sources to figures, findings and chains.

with prepared(spark, sources, options) as case:     # survey: hops, kinds, time
    audit = case.audit()                            # one pass; a second one only where something is wrong
    case.tables()["windows"].write.parquet("…")
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import pyarrow as pa
from pyspark.sql import DataFrame as Frame
from pyspark.sql import functions as F

from semel.errors import InputError
from semel.kernel.ledger import Kind
from semel.spark.audit import chains, compact, expand, figures, findings, identity, notes, receivers, sources
from semel.spark.audit.chains import ChainComparison, ChainPoint
from semel.spark.audit.figures import HopReading, LedgerHop
from semel.spark.audit.result import Audit, CellFigures, Chain, Finding, LostInside, WindowState
from semel.spark.session import with_settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DEADLINE_S = 300.0
NEWEST: Literal["newest"] = "newest"
WINDOWS_AIM = 120
WINDOWS_FILLED_MAX = 10_000
WINDOWS_MAX = 1_000_000
_STEPS_S = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21_600, 43_200, 86_400, 604_800)
SKETCHES_HASHED = {"spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "1000000"}
"""Sketches are kept in a hash table of the windows, not sorted after the first 128 of them."""

LITTLE = 200_000
_UNCOMPILED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
"""Compiling a query takes longer than interpreting it for so few rows: a fifth of a small audit."""


@dataclass(frozen=True, slots=True)
class AuditOptions:
    """`deadline_s` is the time that a message may take; only after that is it lost. `window_s` None chooses one that
    gives about a hundred windows. Times are in microseconds. `now` is when it is judged: None is the clock where there
    is a live store, and the newest event where there are folders only, which "newest" asks for in any case. Messages
    count that were sent from `since` on and before `until`.
    `session_class` is a regular expression: what its first group finds in the session is its class."""

    deadline_s: float = DEADLINE_S
    window_s: float | None = None
    now: int | Literal["newest"] | None = None
    since: int | None = None
    until: int | None = None
    pipelines: tuple[str, ...] = ()
    session_class: str | None = None
    examples_max: int = 20

    def __post_init__(self) -> None:
        if self.deadline_s < 0:
            raise InputError(f"a deadline of {self.deadline_s:g} s is in the past", fix="give 0 or more")
        if self.window_s is not None and self.window_s < 0.001:
            raise InputError(f"a window of {self.window_s:g} s holds nothing", fix="give 0.001 or more")
        if self.since is not None and self.until is not None and self.until <= self.since:
            raise InputError("the time ends before it begins", fix="give an end that is later than the beginning")
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
class PreparedAudit:
    """The evidence, looked through once: which hops there are and how each is to be read."""

    spark: SparkSession
    options: AuditOptions
    evidence: sources.Evidence
    compacted: tuple[DataFrame, ...]
    ledger: DataFrame
    index: DataFrame
    raw: bool
    ranges: expand.Ranges
    ways: tuple[HopReading, ...]
    streams: frozenset[str]
    one_session: bool
    """In the compacted days no id is in two sessions."""
    events: int
    now: int
    times: tuple[int, int] | None
    """When the oldest and the newest event were written."""
    notes: tuple[str, ...]
    held: tuple[tuple[int, str, int], ...]
    """Sessions that wait behind a gap in a pipeline: the code of the hop, the session, the index that is missing."""
    progress: Callable[[str, float], None]
    began: float

    # -- what is read

    @property
    def stores(self) -> int:
        """How many orders there are side by side: offsets of two stores, or of two streams, cannot be compared."""
        return max(len(self.evidence.stores), *(len(way.hop.lanes) for way in self.ways), 1)

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
        if self._receivers is not None:
            frames.append(self._receivers.events())
        return frames

    @cached_property
    def _receivers(self) -> receivers.Receivers | None:
        """What hubs owed to their sessions, where there are any."""
        if not (self.raw and any(way.hop.is_fanned for way in self.ways)):
            return None
        return receivers.Receivers(self.ledger, self._whole_index(), self.ranges)

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

    def waiting(self) -> Self:
        """With what the pipelines on Spark say about how far they are. The records behind that are in flight."""
        at = F.unix_micros("at")
        codes = {way.hop.hop: way.hop.code for way in self.ways if way.implied}
        held = tuple((codes[each.hop], each.session, each.index) for each in self.evidence.held if each.hop in codes)
        self = replace(self, held=held, notes=(*self.notes, *notes.held(self.evidence.held, self.ways)))
        taken = [each for each in self.evidence.taken if each.hop in codes]
        if not taken:
            return self
        ahead = [
            (F.col("store") == each.store) & (F.col("stream") == each.stream) & (F.col("offset") > each.offset)
            for each in taken
        ]
        row = self.all_records().agg(*(F.min(F.when(is_ahead, at)) for is_ahead in ahead)).first()
        since: dict[int, int] = {}
        for each, first in zip(taken, row or (), strict=True):
            if first is not None:
                since[codes[each.hop]] = min(first, since.get(codes[each.hop], first))
        ways = tuple(replace(way, waits_from=since.get(way.hop.code)) for way in self.ways)
        return replace(self, ways=ways, notes=(*self.notes, *notes.waiting(ways, self._path_span.settled_at)))

    def facts(self, ways: Sequence[HopReading], moves: DataFrame | None, *, exact: bool = False) -> DataFrame:
        """What the figures need, with the events of a session side by side. Rows that lie in buckets stay there, unless
        some of them belong to other sessions."""
        frames = [self._facts(rows, ways, exact) for rows in self.compacted]
        if self.raw:
            rows = self._raw_events()
            if any(way.implied for way in ways):
                rows.append(compact.as_events(compact.records(self.index)))
            frames.append(self._facts(_union(rows), ways, exact))
        if moves is not None:
            return identity.moved(_union(frames), moves, exact=exact).repartition("session")
        if self.raw:
            rest = frames.pop()
            frames.append(rest.repartition(compact.BUCKETS, "session") if frames else rest.repartition("session"))
        return _union(frames)

    def _facts(self, rows: DataFrame, ways: Sequence[HopReading], exact: bool) -> DataFrame:
        found = figures.facts(rows, ways, exact=exact, stores=self.stores)
        return found.where(F.col("code").isin(*(way.hop.code for way in ways))) if self.options.pipelines else found

    # -- one row per message

    def counted(self, ways: Sequence[HopReading], *, exact: bool) -> DataFrame:
        """One row per message and hop, with what was counted and without verdicts."""
        return figures.messages(self.facts(ways, self._moves, exact=exact), ways, self.stores)

    @property
    def by_id(self) -> bool:
        """Whether an id may be in two sessions. Of days that were compacted by themselves it is known."""
        return self.raw or len(self.compacted) != 1 or not self.one_session

    @cached_property
    def _moves(self) -> DataFrame | None:
        """The events that belong to a message of another session."""
        if not self.by_id:
            return None
        # what was sent in the time asked for may have arrived after it, in another session
        whole = self.options.since is None and self.options.until is None
        suspects = identity.suspects(self._probed(), self.ways) if whole else list(self.ways)
        if not suspects:
            return None
        rows = figures.messages(self.facts(suspects, None), suspects, self.stores)
        codes = [way.hop.code for way in suspects]
        return identity.collect_if_small(identity.moves(rows.where(F.col("code").isin(*codes)), suspects))

    def messages(self, *, exact: bool = False) -> DataFrame:
        """With verdicts: those that were sent in the time that was asked for."""
        return self._judged(self.ways, exact=exact, since=self.options.since, until=self.options.until)

    def _judged(
        self, ways: Sequence[HopReading], *, exact: bool, since: int | None = None, until: int | None = None
    ) -> DataFrame:
        return self._with_verdicts(self.counted(ways, exact=exact), ways, since, until)

    def _with_verdicts(
        self, rows: DataFrame, ways: Sequence[HopReading], since: int | None, until: int | None
    ) -> DataFrame:
        return figures.judged(
            rows,
            ways,
            now=self.now,
            deadline_us=self.options.deadline_us,
            since=since,
            until=until,
            stores=self.stores,
            waiting=self._waiting_sessions(),
        )

    def _waiting_sessions(self) -> DataFrame | None:
        """Sessions with an index behind which nothing is settled: subscribers of hubs, and sessions behind a gap."""
        frames = [self._receivers.waiting()] if self._receivers is not None else []
        if self.held:
            frames.append(self.spark.createDataFrame(list(self.held), "code long, session string, told long"))
        return _union(frames) if frames else None

    def _probed(self) -> list[dict[str, Any]]:
        return self._first_sums.select(["code", "messages", *identity.PROBES]).to_pylist()

    # -- sums

    @cached_property
    def window_us(self) -> int:
        span = self._span()
        if self.options.window_s is None:
            return _window_us(span)
        window = round(self.options.window_s * 1_000_000)
        if span // window > WINDOWS_MAX:
            fix = (
                f"choose a window (--window, window_s) of {span / WINDOWS_MAX / 1_000_000:.0f} s or more, "
                "or a later beginning (--since, since)"
            )
            raise InputError(f"{span // window:,} windows are more than anybody can look at", fix=fix)
        return window

    def _span(self) -> int:
        """How much time the evidence is about, of the time that was asked for."""
        if self.times is None:
            return 0
        oldest, newest = self.times
        since, until = self.options.since, self.options.until
        return max(0, min(newest, until or newest) - max(oldest, since or oldest))

    @cached_property
    def _windows(self) -> DataFrame:
        """The sums of all windows. They are few, so they are kept."""
        found = self._first_sums if self._moves is None else self._summed(self.messages())
        return self.spark.createDataFrame(found.drop_columns(["messages", *(identity.PROBES if self.by_id else ())]))

    @cached_property
    def _first_sums(self) -> pa.Table:
        """As if every session were known to both sides. Mostly that is so."""
        rows = figures.messages(self.facts(self.ways, None), self.ways, self.stores)
        return self._summed(self._with_verdicts(rows, self.ways, self.options.since, self.options.until))

    def _summed(self, rows: DataFrame) -> pa.Table:
        found = figures.windows(
            rows,
            window_us=self.window_us,
            deadline_us=self.options.deadline_us,
            now=self.now,
            session_class=self.options.session_class,
            more=identity.probes() if self.by_id else None,
        )
        with with_settings(self.spark, SKETCHES_HASHED):
            return found.toArrow()

    def _window_sums(self) -> list[dict[str, Any]]:
        return [row.asDict() for row in self._windows.collect()]

    def figures(self) -> list[CellFigures]:
        """The figures of every window by hop and session class; those with `window` None are for the whole time."""
        ways = {way.hop.code: way for way in self.ways}
        rows = self._window_sums()
        found = [figures.figures(row, ways) for row in (*rows, *figures.totals(rows))]
        return sorted(found, key=lambda cell: (cell.pipeline, cell.hop, cell.session_class, cell.window or 0))

    # -- what is wrong

    def gaps(self) -> DataFrame | None:
        """Ranges that do not fit the index, though their records were not trimmed. Compacted days have none."""
        found = self._misfits()
        return None if found is None else found.where(~F.col("trimmed"))

    def _misfits(self) -> DataFrame | None:
        if not self.raw or not self.ranges.ranges:
            return None
        rows = expand.gaps(self._chosen(expand.ranges(self.ledger)), self._whole_index(), self.ranges)
        if self._receivers is not None:
            rows = rows.unionByName(self._chosen(self._receivers.gaps()))
        return expand.with_trimmed(rows, self.evidence.firsts)

    def _chosen(self, rows: DataFrame) -> DataFrame:
        """The rows of the pipelines that were asked for."""
        names = self.options.pipelines
        return rows.where(F.col("pipeline").isin(*names)) if names else rows

    def _count_misfits(self) -> tuple[int, dict[tuple[str, str], int]]:
        """Gaps, and ranges whose records were trimmed, by pipeline and hop."""
        found = self._misfits()
        rows = found.groupBy("trimmed", "pipeline", "hop").count().collect() if found is not None else []
        gaps = sum(row["count"] for row in rows if not row["trimmed"])
        return gaps, {(row["pipeline"], row["hop"]): row["count"] for row in rows if row["trimmed"]}

    def findings(self) -> DataFrame:
        rows = findings.findings(
            self.messages(exact=True), self.ways, window_us=self.window_us, session_class=self.options.session_class
        )
        gaps = self.gaps()
        found = [rows, *self._inside_findings(), *([] if gaps is None else [findings.gap_findings(gaps)])]
        return _union(found)

    def _inside_findings(self) -> Iterator[DataFrame]:
        """Only where something was lost inside a worker are the events looked through for which."""
        where = [stay for stay, lost in zip(self._stays, self._paths.lost, strict=True) if lost]
        for first in range(0, len(where), chains.BITS):
            stays = where[first : first + chains.BITS]
            rows = chains.lost_inside(self._judged(self._with_receipts, exact=True), stays, self._path_span)
            yield findings.inside_findings(
                rows, stays, window_us=self.window_us, session_class=self.options.session_class
            )

    # -- from end to end

    @cached_property
    def _chains(self) -> list[tuple[LedgerHop, ...]]:
        """A hop with many receivers is the end of the ways that lead there: what arrives is another thing than what was
        sent, once for each of them."""
        return chains.chains_of([way.hop for way in self.ways if not way.hop.is_fanned])

    @cached_property
    def _stays(self) -> list[chains.ChainStay]:
        return chains.stays_of(self._chains, [way.hop for way in self.ways], self.streams)

    @property
    def _with_receipts(self) -> tuple[HopReading, ...]:
        return (*self.ways, *(stay.receipts for stay in self._stays if stay.receipts is not None))

    @property
    def _path_span(self) -> chains.JudgedSpan:
        return chains.JudgedSpan(self.now, self.options.deadline_us, self.options.since, self.options.until)

    @cached_property
    def _paths(self) -> chains.Paths:
        """Whatever was sent on the first hop in the time asked for is followed for as long as the evidence goes."""
        if not self._chains:
            return chains.Paths()
        rows = self._judged(self._with_receipts, exact=False)
        waiting = [way.hop.code for way in self.ways if way.waits_from is not None]
        if waiting:
            ahead = F.col("in_flight") & F.col("code").isin(*waiting)
            rows = rows.withColumn("sends", F.when(ahead, F.lit(0)).otherwise(F.col("sends")))
        sent_on = {way.hop.code for way in self.ways if not way.unseen} if self.by_id else None
        return chains.measure(rows, self._chains, self._stays, self._path_span, sent_on=sent_on)

    def chains(self, totals: Sequence[CellFigures]) -> list[Chain]:
        return chains.figures_of(self._chains, self._stays, self._paths, totals)

    def inside(self) -> list[LostInside]:
        """What was lost inside workers, by the hop that brought it."""
        return [stay.inside(lost) for stay, lost in zip(self._stays, self._paths.lost, strict=True) if lost]

    def compare(self, sender: str, receiver: str) -> ChainComparison:
        """Any two points by the ids of the messages seen there."""
        of, to = ChainPoint.parse(sender, "sent"), ChainPoint.parse(receiver, "accepted")
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
        gaps, trimmed = self._count_misfits()
        result = Audit(
            sources=self.evidence.names,
            now=self.now or None,
            deadline_s=self.options.deadline_s,
            window_s=self.window_us / 1_000_000,
            events=self.events,
            totals=tuple(totals),
            windows=tuple(windows),
            gaps=gaps,
            notes=(*self.notes, *notes.skewed(totals), *notes.trimmed(trimmed), *self._unnamed_notes()),
        )
        self.progress("following chains", 0.7)
        result = replace(result, chains=tuple(self.chains(totals)), inside=tuple(self.inside()))
        self.progress("listing what is wrong", 0.85)
        result = replace(result, notes=(*result.notes, *self._start_notes(totals)))
        if self.options.examples_max and any(result.count(finding) for finding in Finding):
            result = replace(result, examples=tuple(findings.examples(self.findings(), self.options.examples_max)))
        self.progress("done", 1.0)
        return replace(result, seconds=time.monotonic() - self.began)

    def _unnamed_notes(self) -> Sequence[str]:
        return receivers.unnamed_notes(self._receivers.unnamed()) if self._receivers is not None else ()

    def _start_notes(self, totals: Sequence[CellFigures]) -> list[str]:
        """Messages are only looked through for it where some of a stream are lost."""
        lost = {(cell.pipeline, cell.hop) for cell in totals if cell.lost}
        ways = [way for way in self.ways if way.implied and (way.hop.pipeline, way.hop.hop) in lost]
        return notes.late_starts(findings.starts(self.messages(), ways)) if ways else []

    def _window_rows(self) -> DataFrame:
        return self._windows

    def tables(self) -> dict[str, DataFrame]:
        """The result as tables, for notebooks and for other tools."""
        return {"windows": self._window_table(), "messages": self._message_table(), "findings": self.findings()}

    def _window_table(self) -> DataFrame:
        names = _names(self.spark, self.ways)
        windows = figures.with_ranks(self._window_rows()).join(names, "code")
        return windows.select(
            "pipeline", "hop", "session_class", F.timestamp_micros("window").alias("window"), *figures.SUMS,
            "latencies", F.col("ranks").alias("latency_us_p50_p90_p99_p999"), "latency_max", "skewed", "skew", "sketch",
            *(name for name in windows.columns if name == "revision"),
        )  # fmt: skip

    def _message_table(self) -> DataFrame:
        names = _names(self.spark, self.ways)
        messages = self.messages(exact=True).withColumnRenamed("key", "message").join(F.broadcast(names), "code")
        return messages.select(
            "pipeline", "hop", "session", "message", "idx", "sends", "arrivals", "accepted", "duplicates", "rejected",
            "ended", "replayed", "confirmed", *(F.timestamp_micros(name).alias(name) for name in _TIMES),
            "held", "lost", "given_up", "in_flight", "phantom", "copies", "disorder", "unbalanced",
        )  # fmt: skip


_TIMES = ("first_sent", "first_accepted")


def audit(
    spark: SparkSession,
    sources: Sequence[str | Path],
    options: AuditOptions | None = None,
    progress: Callable[[str, float], None] = lambda what, part: None,
) -> Audit:
    """Audit everything that the sources hold."""
    with prepared(spark, sources, options, progress) as case:
        return case.audit()


@contextmanager
def prepared(
    spark: SparkSession,
    given: Sequence[str | Path],
    options: AuditOptions | None = None,
    progress: Callable[[str, float], None] = lambda what, part: None,
) -> Iterator[PreparedAudit]:
    """Look through the sources. What the case gives is good until the block ends."""
    began, options = time.monotonic(), options or AuditOptions()
    clock = clock_us()
    progress("looking at the sources", 0.0)
    evidence = sources.find(given)
    days, rest = compact.split(evidence)
    with compact.events_table(spark, days) as tables:
        progress("surveying the hops", 0.05)
        raw = bool(rest or evidence.live or not days)
        ledger = sources.ledger(spark, evidence, [part for part in rest if part.dataset == "ledger"])
        index = sources.index(spark, evidence, [part for part in rest if part.dataset == "index"])
        hops = [hop for found in days for day in found.days for hop in day.hops]
        survey = figures.survey(ledger) if raw else figures.Survey()
        hops = figures.together([*hops, *survey.hops])
        known = {stream for found in days for day in found.days for stream in day.streams}
        if raw:
            known |= _streams(index, hops)
        _check_pipelines(options, hops)
        chosen = choose(options, hops, known)
        times = _times(evidence, ledger)
        case = PreparedAudit(
            spark=spark,
            options=options,
            evidence=evidence,
            compacted=tuple(tables),
            ledger=ledger,
            index=index,
            raw=raw,
            ranges=survey.ranges,
            ways=tuple(chosen),
            streams=frozenset(known),
            one_session=all(day.split == 0 for found in days for day in found.days)
            and sum(len(found.days) for found in days) == 1,
            events=sum(way.hop.events for way in chosen),
            now=judged_at(options, times, clock if evidence.live else None),
            times=times,
            notes=(*evidence.notes, *notes.of(chosen, survey, options.pipelines)),
            held=(),
            progress=progress,
            began=began,
        )
        with as_much_as(spark, case.events):
            yield case.waiting()


def as_much_as(spark: SparkSession, rows: int) -> AbstractContextManager[None]:
    """Inside, queries over so many rows run as quickly as they can."""
    return with_settings(spark, _UNCOMPILED if rows <= LITTLE else {})


def _streams(index: DataFrame, hops: Sequence[LedgerHop]) -> set[str]:
    """Which senders are streams, and which workers keep receipts. Senders are only asked about on hops where nobody
    writes down what was sent."""
    names = {hop.sender for hop in hops if not hop.has(Kind.SENT, Kind.RESENT)}
    names |= {chains.receipts_of(hop.receiver) for hop in hops if hop.has(Kind.FORWARDED)}
    if not names:
        return set()
    rows = compact.records(index).where(F.col("stream").isin(*names))
    return {row["stream"] for row in rows.select("stream").distinct().collect()}


def choose(options: AuditOptions, hops: Sequence[LedgerHop], streams: Iterable[str]) -> list[HopReading]:
    """How the hops of the pipelines that were asked for are to be read."""
    found = figures.ways(hops, streams)
    return [way for way in found if not options.pipelines or way.hop.pipeline in options.pipelines]


def _check_pipelines(options: AuditOptions, hops: Sequence[LedgerHop]) -> None:
    known = {hop.pipeline for hop in hops}
    for pipeline in options.pipelines:
        if pipeline not in known:
            names = ", ".join(sorted(name or '""' for name in known)) or "none"
            fix = f"name one of these (--pipeline, pipelines): {names}"
            raise InputError(f"there is no pipeline {pipeline!r} in these sources", fix=fix)


def _times(evidence: sources.Evidence, ledger: DataFrame) -> tuple[int, int] | None:
    """When the oldest and the newest event were written: files say it in their footers, live stores are asked."""
    parts = evidence.of("ledger")
    times = [time for part in parts for time in (part.oldest, part.newest) if time is not None]
    if evidence.live:
        at = F.unix_micros("at")
        row = ledger.agg(F.min(at).alias("oldest"), F.max(at).alias("newest")).first()
        times += [time for time in row or () if time is not None]
    return (min(times), max(times)) if times else None


def clock_us() -> int:
    return time.time_ns() // 1000


def judged_at(options: AuditOptions, times: tuple[int, int] | None, clock: int | None) -> int:
    """What a live store does not say by now, its receiver does not do: its silence counts. `clock` is the time before
    the stores were looked at, since none of them can tell of what came after. Without a live store it is None: an
    export speaks of the past, and is judged as of then. One without any event speaks of no time: 0."""
    if isinstance(options.now, int):
        return options.now
    if clock is not None and options.now is None:
        return clock
    return times[1] if times is not None else 0


def _window_us(span_us: int) -> int:
    step = next((step for step in _STEPS_S if span_us <= step * 1_000_000 * WINDOWS_AIM), _STEPS_S[-1])
    return step * 1_000_000


def _filled(cells: Sequence[CellFigures], window_us: int) -> list[CellFigures]:
    """With a cell for every window in which nothing was sent, as long as these are not too many."""
    by_hop: dict[tuple[str, str, str], dict[int, CellFigures]] = {}
    for cell in cells:
        assert cell.window is not None
        by_hop.setdefault((cell.pipeline, cell.hop, cell.session_class), {})[cell.window] = cell
    filled: list[CellFigures] = []
    for name, known in by_hop.items():
        first, last = min(known), max(known)
        if (last - first) // window_us > WINDOWS_FILLED_MAX:
            filled += known.values()
            continue
        for window in range(first, last + 1, window_us):
            filled.append(known.get(window) or CellFigures(*name, window, WindowState.EMPTY))
    return filled


def _names(spark: SparkSession, ways: Sequence[HopReading]) -> DataFrame:
    rows = [(way.hop.code, way.hop.pipeline, way.hop.hop) for way in ways]
    return spark.createDataFrame(rows, "code long, pipeline string, hop string")


def _union(frames: Sequence[DataFrame]) -> DataFrame:
    return reduce(Frame.unionByName, frames)
