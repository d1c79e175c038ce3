"""An audit that goes on: what stores write down is read once, and the windows it is about are judged again.

    state/checkpoint/                   where the query stands in the ledgers and indexes of the stores
    state/parts/<batch>-<id>/messages   one row per message and hop, as far as that batch knows; parts add up
    state/parts/<batch>-<id>/index      records that ranges of later batches may name
    state/parts/<batch>-<id>/pending    ranges whose records are not all there yet
    state/judged/<id>/                  sums of the windows with their revisions, and what is wrong
    state/_state.json                   which of these count

A batch counts once `_state.json` names it, and that is replaced as a whole; a batch that is run again finds itself
named there. So whoever dies at any point goes on with the same result. What has been settled for longer than `keep_s`
is no longer kept message by message: its windows stay as they are.

How a hop is read (see `figures.Way`) may change with what is seen there later. The parts therefore hold every reading:
events as they are, handlings as acceptances, and records of streams as what was sent.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame as Frame
from pyspark.sql import functions as F

from semel.errors import ConfigError, StoreBusy, StoreError
from semel.kernel.ledger import Kind
from semel.runtime.files import sync
from semel.spark.audit import compact, expand, figures, findings, sources
from semel.spark.audit.figures import Hop, Way
from semel.spark.audit.report import COLUMNS, moment
from semel.spark.audit.result import Audit
from semel.spark.audit.run import Case, Options, choose, clock_us, judged_at, notes_of, with_settings
from semel.spark.session import checkpoint_settings, register
from semel.spark.source import MAX_ROWS_PER_BATCH

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

KEEP_S = 7 * 86_400.0
WINDOW_S = 60.0
PARTS_MAX = 16
"""More parts than that are put together into one."""
VERSION = 1
STATE_FILE = "_state.json"

_STORES = 2
"""Where an event was written down is always kept: another store may come into it at any time."""
_EVENTS, _TAKEN, _RECORDS = range(3)
_MESSAGES = (
    "code long, session string, key string, sends long, accepted long, duplicates long, rejected long, ended long, "
    "forwarded long, dropped long, replayed long, confirmed long, first_sent long, first_accepted long, first_at long, "
    "ord long, idx long, store long, reading int"
)
_ROWS = {dataset: f"{schema}, store string, history int" for dataset, schema in sources.SCHEMAS.items()}
_ANY = Way(Hop("", "", 0, -1, 0))
"""A hop on which everything may have happened, so that every count is made."""
_SECOND_US = 1_000_000


class Asked(msgspec.Struct, frozen=True):
    """What the state is about. Another question needs another folder."""

    stores: tuple[str, ...]
    window_us: int
    session_class: str | None
    pipelines: tuple[str, ...]


class Part(msgspec.Struct, frozen=True):
    """What one batch brought, or several of them put together."""

    name: str
    hops: tuple[Hop, ...] = ()
    streams: tuple[str, ...] = ()
    metered: tuple[tuple[str, int, int], ...] = ()
    times: tuple[int, int] | None = None


class State(msgspec.Struct, frozen=True):
    """`horizon`: the windows before it are closed for good. `notes` are what was to be said when it began."""

    asked: Asked
    query: str = ""
    batch: int = -1
    parts: tuple[Part, ...] = ()
    pending: str | None = None
    judged: str | None = None
    horizon: int = 0
    notes: tuple[str, ...] = ()
    version: int = VERSION


@dataclass(frozen=True, slots=True)
class FollowOptions:
    """`every_s` is the time between two judgements. Messages settled for longer than `keep_s` are let go of. `rows_max`
    rows of each ledger and index are taken in at once. `stop` is asked now and then whether to end."""

    folder: Path
    every_s: float = 30.0
    keep_s: float = KEEP_S
    rows_max: int = MAX_ROWS_PER_BATCH
    stop: Callable[[], bool] = lambda: False

    def __post_init__(self) -> None:
        if self.every_s <= 0:
            raise ConfigError(f"every {self.every_s:g} s is not often", fix="give more than 0, such as 30s")
        if self.keep_s <= 0:
            raise ConfigError(f"keeping {self.keep_s:g} s keeps nothing", fix="give more than 0, such as 7d")


def follow(
    spark: SparkSession,
    given: Sequence[str | Path],
    options: Options,
    following: FollowOptions,
    tell: Callable[[Audit, dict[str, DataFrame]], None],
) -> None:
    """Audit the stores again and again until told to stop. `tell` hears every result, with its tables."""
    with opened(spark, given, options, following) as follower:
        while True:
            began = time.monotonic()
            tell(*follower.step())
            while (left := began + following.every_s - time.monotonic()) > 0 and not following.stop():
                time.sleep(min(left, 0.2))
            if following.stop():
                return


@contextmanager
def opened(
    spark: SparkSession, given: Sequence[str | Path], options: Options, following: FollowOptions
) -> Iterator[Follower]:
    """Look at the stores, and take the state where the last run left it. One at a time in a folder."""
    evidence = sources.find(given)
    if evidence.folders:
        raise ConfigError(
            f"{evidence.folders[0]} is an export, and only stores can be followed",
            fix="name the URLs of the stores; audit exports without --follow",
        )
    folder = following.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(folder):
        yield Follower(spark, evidence, options, following, folder)


class Follower:
    """One run. `step` takes in what is new and judges."""

    def __init__(
        self, spark: SparkSession, evidence: sources.Evidence, options: Options, following: FollowOptions, folder: Path
    ) -> None:
        self.spark, self.evidence, self.options = spark, evidence, options
        self.folder, self.keep_us = folder, round(following.keep_s * _SECOND_US)
        window_us = round((options.window_s or WINDOW_S) * _SECOND_US)
        self.asked = Asked(evidence.stores, window_us, options.session_class, options.pipelines)
        self.rows_max = following.rows_max
        self.last: tuple[int, int, tuple[sources.LiveStore, ...], int] | None = None
        self.state = self._found()

    def step(self) -> tuple[Audit, dict[str, DataFrame]]:
        """The tables are good until the next step."""
        self._remove_leftovers()
        clock = clock_us()
        self.evidence = sources.find(self.evidence.names)
        self._drain()
        case = self._judge(clock)
        self._settle(case.now)
        return case.audit(), case.tables()

    # -- the state

    def _found(self) -> State:
        """A state and the checkpoint that it belongs to go together. One without the other is no use: all is read
        again."""
        fresh = State(self.asked, notes=self.evidence.notes)
        path = self.folder / STATE_FILE
        if not path.exists():
            return self._start_over(fresh)
        try:
            state = msgspec.json.decode(path.read_bytes(), type=State)
        except msgspec.DecodeError as error:
            fix = f"remove {self.folder}: everything in it is read from the stores again"
            raise StoreError(f"{path} cannot be read: {error}", fix=fix) from None
        if state.version != VERSION or (state.batch >= 0 and state.query != self._query()):
            return self._start_over(fresh)
        if state.asked != self.asked:
            raise ConfigError(
                f"{self.folder} follows other stores or pipelines, or with another window or class of sessions",
                fix="name another folder with --state, or remove this one",
            )
        return state

    def _start_over(self, state: State) -> State:
        shutil.rmtree(self._checkpoint, ignore_errors=True)
        self._put(state)
        return state

    def _put(self, state: State) -> None:
        """The moment at which it counts."""
        beside = self.folder / f"{STATE_FILE}.{os.getpid()}.part"
        with beside.open("wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(state)))
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self.folder / STATE_FILE)
        self.state = state

    @property
    def _checkpoint(self) -> Path:
        return self.folder / "checkpoint"

    def _query(self) -> str:
        """The id that Spark gave the query, which lives as long as its checkpoint."""
        path = self._checkpoint / "metadata"
        return str(msgspec.json.decode(path.read_bytes())["id"]) if path.exists() else ""

    def _remove_leftovers(self) -> None:
        """What a run that died had written and nobody names, and what was replaced."""
        used = {part.name for part in self.state.parts} | {self.state.pending, self.state.judged}
        for kind in ("parts", "judged"):
            for path in (self.folder / kind).glob("*"):
                if path.name not in used:
                    shutil.rmtree(path)

    def _read(self, dataset: str, names: Sequence[str], schema: str) -> DataFrame:
        paths = [str(path) for name in names if any((path := self.folder / "parts" / name / dataset).glob("*.parquet"))]
        return self.spark.read.schema(schema).parquet(*paths) if paths else self.spark.createDataFrame([], schema)

    # -- what is new

    def _drain(self) -> None:
        """Everything that is in the stores by now, batch by batch."""
        # a thread of its own has no session in the JVM, and without one Spark does not find sources written in Python
        self.spark._jvm.SparkSession.setActiveSession(self.spark._jsparkSession)  # type: ignore[union-attr]
        register(self.spark)
        for name, value in checkpoint_settings(str(self._checkpoint)).items():
            self.spark.conf.set(name, value)
        frames = [self._source(live, dataset) for live in self.evidence.live for dataset in sources.SCHEMAS]
        rows = reduce(lambda left, right: left.unionByName(right, allowMissingColumns=True), frames)
        query = (
            rows.writeStream.foreachBatch(self._fold)
            .option("checkpointLocation", str(self._checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination()
        finally:
            query.stop()

    def _source(self, live: sources.LiveStore, dataset: str) -> DataFrame:
        rows = self.spark.readStream.format("semel").options(
            store=live.url, dataset=dataset, startingPosition="available", maxRowsPerBatch=str(self.rows_max)
        )
        own = {"store": F.lit(live.store), "history": F.lit(live.epoch), "dataset": F.lit(dataset)}
        return rows.load().select(*_columns(sources.SCHEMAS[dataset]), *(c.alias(name) for name, c in own.items()))

    def _fold(self, batch: DataFrame, number: int) -> None:
        """One batch becomes one part."""
        if number <= self.state.batch:
            return
        if number != self.state.batch + 1:
            raise StoreError(
                f"{self.folder} has batch {self.state.batch}, and {number} is next: it was put together by hand",
                fix=f"remove {self.folder}: everything in it is read from the stores again",
            )
        name = f"{number}-{uuid.uuid4().hex[:8]}"
        batch.persist()
        try:
            part = self._part(batch, name)
        finally:
            batch.unpersist()
        old = self.state
        parts = (*old.parts, part)
        self._put(msgspec.structs.replace(old, query=self._query(), batch=number, parts=parts, pending=name))

    def _part(self, batch: DataFrame, name: str) -> Part:
        ledger, index = (
            batch.where(F.col("dataset") == dataset).select(*_columns(_ROWS[dataset]))
            for dataset in ("ledger", "index")
        )
        survey = figures.survey(ledger)
        self._write(index, name, "index")
        events = [expand.singles(ledger), *self._expanded(ledger, name)]
        rows = _union([*_counted(_union(events), survey.hops), _recorded(index)])
        self._write(rows, name, "messages")
        at = F.unix_micros("at")
        times = ledger.agg(F.min(at), F.max(at)).first()
        streams = compact.records(index).select("stream").distinct().collect()
        return Part(
            name,
            survey.hops,
            tuple(sorted(row["stream"] for row in streams)),
            tuple((hop, int(kind), n) for hop, kind, n in survey.metered),
            (times[0], times[1]) if times is not None and times[0] is not None else None,
        )

    def _write(self, rows: DataFrame, name: str, dataset: str) -> None:
        folder = self.folder / "parts" / name / dataset
        rows.coalesce(4).write.mode("overwrite").parquet(str(folder))
        _sync_files(folder)

    def _expanded(self, ledger: DataFrame, name: str) -> list[DataFrame]:
        """The events of all ranges whose records are there by now. The others wait."""
        waiting = [self.state.pending] if self.state.pending else []
        ranges = expand.ranges(ledger).unionByName(self._read("pending", waiting, _ROWS["ledger"]))
        about = figures.survey(ranges).ranges
        if not about.ranges:
            return []
        index = self._read("index", [*(part.name for part in self.state.parts), name], _ROWS["index"])
        gaps = expand.gaps(ranges, index, about)
        self._write(gaps.where(_micros("at") >= self.state.horizon).select(*_columns(_ROWS["ledger"])), name, "pending")
        pending = self._read("pending", [name], _ROWS["ledger"])
        complete = ranges.join(pending.select(*_RANGE_KEY), list(_RANGE_KEY), "left_anti")
        return [expand.expand(complete, index, about)]

    # -- what it means

    def _judge(self, clock: int) -> Followed:
        state = self.state
        hops = figures.together(hop for part in state.parts for hop in part.hops)
        streams = {stream for part in state.parts for stream in part.streams}
        survey = figures.Survey(tuple(hops), metered=tuple(_metered(state.parts)))
        ways = choose(self.options, hops, streams)
        known = [time for part in state.parts if part.times is not None for time in part.times]
        times = (min(known), max(known)) if known else None
        pending = self._read("pending", [state.pending] if state.pending else [], _ROWS["ledger"])
        about = figures.survey(pending).ranges
        names = [part.name for part in state.parts]
        case = Followed(
            spark=self.spark,
            options=self.options,
            evidence=self.evidence,
            compacted=(),
            ledger=pending,
            index=self._read("index", names, _ROWS["index"]),
            raw=True,
            ranges=about,
            ways=tuple(ways),
            streams=frozenset(streams),
            events=sum(way.hop.events for way in ways),
            now=judged_at(self.options, times, clock),
            times=times,
            notes=(*state.notes, *notes_of(ways, survey), *_kept_notes(state.horizon)),
            progress=lambda what, part: None,
            began=time.monotonic(),
            rows=self._read("messages", names, _MESSAGES),
            fixed_window_us=self.asked.window_us,
            horizon=state.horizon,
            judged=self.folder / "judged" / uuid.uuid4().hex[:12],
            before=self.folder / "judged" / state.judged if state.judged else None,
        ).waiting()
        if case.before is not None and self._says_the_same(times):
            case = replace(case, judged=case.before)
        else:
            case.write()
            self._put(msgspec.structs.replace(state, judged=case.judged.name))
        self.last = state.batch, state.horizon, self.evidence.live, case.now
        return case

    def _says_the_same(self, times: tuple[int, int] | None) -> bool:
        """Nothing is new since this process judged last, and everything had settled by then."""
        if self.last is None or self.last[:3] != (self.state.batch, self.state.horizon, self.evidence.live):
            return False
        return times is None or times[1] <= self.last[3] - self.options.deadline_us

    # -- no more than is needed

    def _settle(self, now: int) -> None:
        """Put the parts together, and let go of messages that have been settled for so long that nothing about them is
        expected any more. Their windows have just been judged for the last time."""
        window = self.asked.window_us
        target = (now - self.options.deadline_us - self.keep_us) // window * window
        oldest = [part.times[0] for part in self.state.parts if part.times is not None]
        begin = max(self.state.horizon, min(oldest, default=target))
        is_overdue = target - begin >= max(window, self.keep_us // 8)
        if len(self.state.parts) > PARTS_MAX or is_overdue:
            self._put_together(max(self.state.horizon, target) if is_overdue else self.state.horizon)

    def _put_together(self, horizon: int) -> None:
        state, name = self.state, f"{self.state.batch}-{uuid.uuid4().hex[:8]}"
        names = [part.name for part in state.parts]
        rows = self._read("messages", names, _MESSAGES)
        last = rows.groupBy("session", "key").agg(F.max(F.coalesce("first_sent", "first_at")).alias("last"))
        gone = last.where(F.col("last") < F.lit(horizon)).select("session", "key")
        kept = rows.join(gone, ["session", "key"], "left_anti")
        self._write(_union([_merged(kept, reading) for reading in (_EVENTS, _TAKEN, _RECORDS)]), name, "messages")
        index = self._read("index", names, _ROWS["index"])
        self._write(index.where(_micros("at") >= F.lit(horizon)), name, "index")
        waiting = self._read("pending", [state.pending] if state.pending else [], _ROWS["ledger"])
        self._write(waiting.where(_micros("at") >= F.lit(horizon)), name, "pending")
        parts = (_one_part(name, state.parts),)
        self._put(msgspec.structs.replace(state, parts=parts, pending=name, horizon=horizon))


_RANGE_KEY = ("store", "history", "seq")


def _sync_files(folder: Path) -> None:
    """What is named must be there after a power failure as well."""
    for path in (*folder.glob("*.parquet"), folder):
        sync(path)


def _columns(schema: str) -> list[str]:
    return [column.split()[0] for column in schema.split(", ")]


def _micros(name: str) -> Column:
    return F.unix_micros(name)


def _union(frames: Sequence[DataFrame]) -> DataFrame:
    return reduce(Frame.unionByName, frames)


def _counted(events: DataFrame, hops: Sequence[Hop]) -> list[DataFrame]:
    """One row per message and hop: as the events are, and once more with handlings for acceptances."""
    facts = figures.facts(events, (), exact=True, stores=_STORES)
    rows = [figures.messages(facts, [_ANY], _STORES).withColumn("reading", F.lit(_EVENTS))]
    taken = [Way(hop, taken=True) for hop in hops if hop.has(*figures.TAKEN)]
    if taken:
        handled = facts.where(F.col("kind").isin(*map(int, figures.TAKEN)))
        found = figures.messages(handled, taken, _STORES)
        # all that is not about the acceptance is in the rows of the events already
        rest = [name for name in figures.COUNTS if name != "accepted"]
        found = found.withColumns({name: F.lit(0).cast("long") for name in rest})
        rows.append(found.withColumn("reading", F.lit(_TAKEN)))
    return rows


def _recorded(index: DataFrame) -> DataFrame:
    """The records of streams as what was sent, under the code of the stream."""
    facts = compact.records(index).select(
        F.xxhash64(F.lit(""), F.col("stream")).alias("code"), "session", F.col("message").alias("key"),
        F.lit(int(Kind.SENT)).alias("kind"), "idx", F.col("offset").alias("ord"), _micros("at").alias("at"),
        F.xxhash64("store").alias("store"),
    )  # fmt: skip
    return figures.messages(facts, [_ANY], _STORES).withColumn("reading", F.lit(_RECORDS))


def _merged(rows: DataFrame, reading: int) -> DataFrame:
    return figures.merged(rows.where(F.col("reading") == reading)).withColumn("reading", F.lit(reading))


def _metered(parts: Sequence[Part]) -> Iterator[tuple[str, Kind, int]]:
    sums: dict[tuple[str, int], int] = {}
    for hop, kind, n in (cell for part in parts for cell in part.metered):
        sums[hop, kind] = sums.get((hop, kind), 0) + n
    return ((hop, Kind(kind), n) for (hop, kind), n in sorted(sums.items()))


def _one_part(name: str, parts: Sequence[Part]) -> Part:
    hops = figures.together(hop for part in parts for hop in part.hops)
    times = [time for part in parts if part.times is not None for time in part.times]
    return Part(
        name,
        tuple(hops),
        tuple(sorted({stream for part in parts for stream in part.streams})),
        tuple((hop, int(kind), n) for hop, kind, n in _metered(parts)),
        (min(times), max(times)) if times else None,
    )


def _kept_notes(horizon: int) -> list[str]:
    closed = f"Windows before {moment(horizon)} are closed: what comes in late for them is not counted."
    return [closed] if horizon else []


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    with (folder / "_lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreBusy(
                f"another process follows with {folder}", fix="end it first, or name another folder with --state"
            ) from None
        yield


# -- the audit of what is kept


@dataclass(frozen=True)
class Followed(Case):
    """The audit over the parts, and over what was judged before for windows that are closed. `ledger` are the ranges
    that wait for their records."""

    rows: DataFrame
    fixed_window_us: int
    horizon: int
    judged: Path
    before: Path | None

    @property
    def stores(self) -> int:
        return _STORES

    @cached_property
    def window_us(self) -> int:
        return self.fixed_window_us

    def counted(self, ways: Sequence[Way], *, exact: bool) -> DataFrame:
        """Messages go by their names in any case. Of a range that still waits, the records that are there count."""
        frames = [self.rows]
        if self.ranges.ranges:
            events = expand.expand(self.ledger, self.index, self.ranges)
            frames += _counted(events, [way.hop for way in ways])
        rows = _union(frames)
        taken = [way.hop.code for way in ways if way.taken]
        plain = F.col("reading") == _EVENTS
        if taken:
            plain = plain | ((F.col("reading") == _TAKEN) & F.col("code").isin(*taken))
        read = [rows.where(plain)]
        sent = [(way.hop.sender, way.hop.code) for way in ways if way.implied]
        if sent:
            streams = self.spark.createDataFrame(sent, "_stream string, _hop long")
            streams = streams.select(F.xxhash64(F.lit(""), F.col("_stream")).alias("code"), "_hop")
            records = rows.where(F.col("reading") == _RECORDS).join(F.broadcast(streams), "code")
            read.append(records.withColumn("code", F.col("_hop")).drop("_hop"))
        chosen = _union(read).where(F.col("code").isin(*(way.hop.code for way in ways)))
        return figures.merged(chosen.drop("reading")).select(*figures.MESSAGE)

    def write(self) -> None:
        """Judge, and keep it: the sums of the windows, each with its revision, and the findings."""
        self.judged.mkdir(parents=True)
        sums = self._summed()
        pq.write_table(sums, self.judged / "windows.parquet")
        found = super().findings() if self._is_wrong(sums) else self.spark.createDataFrame([], findings.FINDING)
        found = found.where(F.col("window").isNull() | (F.col("window") >= F.lit(self.horizon)))
        closed = self._before("findings", findings.FINDING)
        if closed is not None:
            found = found.unionByName(closed.where(F.col("window") < F.lit(self.horizon)))
        found.coalesce(1).write.parquet(str(self.judged / "findings"))
        _sync_files(self.judged)
        _sync_files(self.judged / "findings")

    def _is_wrong(self, sums: pa.Table) -> bool:
        """Only then are the messages looked through for which."""
        counted = any(pc.sum(sums[name]).as_py() for name in COLUMNS.values())
        return counted or bool(self.ranges.ranges) or any(self._paths.lost)

    def findings(self) -> DataFrame:
        return self.spark.read.schema(findings.FINDING).parquet(str(self.judged / "findings"))

    def _before(self, name: str, schema: str) -> DataFrame | None:
        if self.before is None or not any((self.before / name).glob("*.parquet")):
            return None
        return self.spark.read.schema(schema).parquet(str(self.before / name))

    def _summed(self) -> pa.Table:
        sums = figures.windows(
            self.messages(),
            window_us=self.window_us,
            deadline_us=self.options.deadline_us,
            now=self.now,
            session_class=self.options.session_class,
        )
        with with_settings(self.spark):
            new = sums.where(F.col("window") >= F.lit(self.horizon)).toArrow()
        old = pq.read_table(self.before / "windows.parquet") if self.before is not None else None
        return revised(old, new, self.horizon)

    @cached_property
    def _windows(self) -> DataFrame:
        return self._window_rows().drop("revision")

    def _window_rows(self) -> DataFrame:
        return self.spark.createDataFrame(pq.read_table(self.judged / "windows.parquet"))

    def tables(self) -> dict[str, DataFrame]:
        """Without the messages, which are in the state. Each window with its revision."""
        tables = super().tables()
        del tables["messages"]
        return tables


def revised(old: pa.Table | None, new: pa.Table, horizon: int) -> pa.Table:
    """The windows as they are now. One that says the same as before stays as it was, one that says something else takes
    its place under the next number. Closed ones stay."""
    before = {_cell(row): row for row in old.to_pylist()} if old is not None else {}
    rows: list[dict[str, Any]] = [row for row in before.values() if row["window"] < horizon]
    for row in new.to_pylist():
        known = before.get(_cell(row))
        if known is not None and _said(known) == _said(row):
            rows.append(known)
        else:
            rows.append({**row, "revision": known["revision"] + 1 if known is not None else 1})
    schema = new.schema.append(pa.field("revision", pa.int64()))
    table = pa.Table.from_pylist(rows, schema)
    return table.take(pc.sort_indices(table, [(name, "ascending") for name in _CELL])) if rows else table


_CELL = ("code", "session_class", "window")


def _cell(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in _CELL)


def _said(row: dict[str, Any]) -> tuple[Any, ...]:
    """Sketches of the same latencies need not be the same bytes."""
    return tuple(value for name, value in sorted(row.items()) if name not in ("sketch", "revision"))
