"""An audit that goes on: what stores write down is read once, and only what it changes is judged again.

    drain     what is new in the stores becomes parts (`follow_parts`)
    judge     the messages that it is about get new verdicts, and the windows new sums (`follow_turn`)
    settle    parts are put together, and what has been settled for longer than `keep_s` is let go of

`follow_state` says what is kept in the folder.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import cached_property, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import functions as F

from semel.errors import ConfigError, StoreError
from semel.spark.audit import figures, findings, follow_parts, follow_turn, notes, sources
from semel.spark.audit.chains import Paths
from semel.spark.audit.follow_scope import MessageScope
from semel.spark.audit.follow_state import (
    FORGOTTEN,
    LANES,
    MESSAGES,
    ROWS,
    AuditQuestion,
    Folder,
    FollowState,
    Forgotten,
    Lanes,
    LastJudgement,
    columns,
    count_rows,
    metered,
    part_name,
    suffix,
    together,
)
from semel.spark.audit.result import Audit, CellFigures
from semel.spark.audit.run import AuditOptions, PreparedAudit, as_much_as, choose, clock_us, judged_at
from semel.spark.session import checkpoint_settings, register
from semel.spark.source import MAX_ROWS_PER_BATCH

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

KEEP_S = 7 * 86_400.0
WINDOW_S = 60.0
PARTS_MAX = 16
"""Once there are more parts than that, some of them are put together."""
REMEMBERED = 4
"""For so many times `keep_s` is a message known to have been let go of."""
_SECOND_US = 1_000_000


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
    options: AuditOptions,
    following: FollowOptions,
    on_result: Callable[[Audit, dict[str, DataFrame]], None],
) -> None:
    """Audit the stores again and again until `following.stop`. `on_result` gets every result, with its tables."""
    with opened(spark, given, options, following) as follower:
        while True:
            began = time.monotonic()
            on_result(*follower.step())
            while (left := began + following.every_s - time.monotonic()) > 0 and not following.stop():
                time.sleep(min(left, 0.2))
            if following.stop():
                return


@contextmanager
def opened(
    spark: SparkSession, given: Sequence[str | Path], options: AuditOptions, following: FollowOptions
) -> Iterator[AuditFollower]:
    """Look at the stores, and take the state where the last run left it. One at a time in a folder."""
    evidence = sources.find(given)
    if evidence.folders:
        raise ConfigError(
            f"{evidence.folders[0]} is an export, and only stores can be followed",
            fix="name the URLs of the stores; audit exports without --follow",
        )
    folder = Folder(spark, following.folder.absolute())
    with folder.alone():
        yield AuditFollower(spark, evidence, options, following, folder)


class AuditFollower:
    """One run. `step` takes in what is new and judges."""

    def __init__(
        self,
        spark: SparkSession,
        evidence: sources.Evidence,
        options: AuditOptions,
        following: FollowOptions,
        folder: Folder,
    ) -> None:
        self.spark, self.evidence, self.options, self.folder = spark, evidence, options, folder
        self.keep_us, self.rows_max = round(following.keep_s * _SECOND_US), following.rows_max
        window_us = round((options.window_s or WINDOW_S) * _SECOND_US)
        self.asked = AuditQuestion(evidence.stores, window_us, options.session_class, options.pipelines)
        self.state = folder.found(FollowState(self.asked, notes=evidence.notes))

    def step(self) -> tuple[Audit, dict[str, DataFrame]]:
        """The tables are good until the next step."""
        self.folder.remove_leftovers(self.state)
        clock = clock_us()
        self.evidence = sources.find(self.evidence.names)
        self._drain()
        with as_much_as(self.spark, sum(part.rows for part in self.state.parts)):
            case = self._judge(clock)
            self._settle(case)
            return case.audit(), case.tables()

    def _put(self, state: FollowState) -> None:
        self.folder.put(state)
        self.state = state

    # -- what is new

    def _drain(self) -> None:
        """Everything that is in the stores by now, batch by batch."""
        # a thread of its own has no session in the JVM, and without one Spark does not find sources written in Python
        self.spark._jvm.SparkSession.setActiveSession(self.spark._jsparkSession)  # type: ignore[union-attr]
        register(self.spark)
        for name, value in checkpoint_settings(str(self.folder.checkpoint)).items():
            self.spark.conf.set(name, value)
        frames = [self._source(live, dataset) for live in self.evidence.live for dataset in sources.SCHEMAS]
        rows = reduce(lambda left, right: left.unionByName(right, allowMissingColumns=True), frames)
        query = (
            rows.writeStream.foreachBatch(self._fold)
            .option("checkpointLocation", str(self.folder.checkpoint))
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
        return rows.load().select(*columns(sources.SCHEMAS[dataset]), *(c.alias(name) for name, c in own.items()))

    def _fold(self, batch: DataFrame, number: int) -> None:
        """One batch becomes one part. One that is run again finds itself there."""
        if number <= self.state.batch:
            return
        if number != self.state.batch + 1:
            raise StoreError(
                f"{self.folder.path} has batch {self.state.batch}, and {number} is next: it was put together by hand",
                fix=f"remove {self.folder.path}: everything in it is read from the stores again",
            )
        name = part_name(number)
        batch.persist()
        try:
            with as_much_as(batch.sparkSession, batch.count()):
                part = follow_parts.fold(self.folder, self.state, batch, name)
        finally:
            batch.unpersist()
        old, query = self.state, self.folder.query()
        self._put(msgspec.structs.replace(old, query=query, batch=number, parts=(*old.parts, part), pending=name))

    # -- what it means

    def _judge(self, clock: int) -> Followed:
        case = self._case(clock).waiting()
        turned = follow_turn.judge(self.folder, self.state, case)
        if turned is not None:
            self._put(
                msgspec.structs.replace(
                    self.state,
                    judgement=turned.judgement,
                    lanes=turned.lanes,
                    closed=turned.closed,
                    late=self.state.late + turned.late,
                    turn=self.state.turn + 1,
                )
            )
        return Followed.of(case, self.folder, self.state)

    def _case(self, clock: int) -> PreparedAudit:
        state = self.state
        hops = figures.together(hop for part in state.parts for hop in part.hops)
        streams = {stream for part in state.parts for stream in part.streams}
        survey = figures.Survey(tuple(hops), metered=tuple(metered(state.parts)))
        chosen = choose(self.options, hops, streams)
        ways = [way for way in chosen if not way.hop.is_fanned]
        known = [time for part in state.parts if part.times is not None for time in part.times]
        times = (min(known), max(known)) if known else None
        pending = self.folder.read_parts("pending", [state.pending] if state.pending else [], ROWS["ledger"])
        return PreparedAudit(
            spark=self.spark,
            options=self.options,
            evidence=self.evidence,
            compacted=(),
            ledger=pending,
            index=self.folder.read_parts("index", state.names, ROWS["index"]),
            raw=True,
            ranges=figures.survey(pending).ranges,
            ways=tuple(ways),
            streams=frozenset(streams),
            one_session=False,
            events=sum(way.hop.events for way in ways),
            now=judged_at(self.options, times, clock),
            times=times,
            notes=(*state.notes, *notes.of(ways, survey, self.options.pipelines), *notes.fanned(chosen)),
            held=(),
            progress=lambda what, part: None,
            began=time.monotonic(),
        )

    # -- no more than is needed

    def _settle(self, case: PreparedAudit) -> None:
        """Put parts together, and let go of messages that have been settled for so long that nothing about them is
        expected any more. Their windows have just been judged for the last time."""
        window, state = self.asked.window_us, self.state
        target = (case.now - self.options.deadline_us - self.keep_us) // window * window
        oldest = [part.times[0] for part in state.parts if part.times is not None]
        begin = max(state.horizon, min(oldest, default=target))
        if target - begin >= max(window, self.keep_us // 8):
            self._put(let_go(self.folder, state, case, target, REMEMBERED * self.keep_us))
        elif len(state.parts) > PARTS_MAX:
            self._put(put_together(self.folder, state))
        if len(self.state.lanes) > PARTS_MAX:
            self._put(put_lanes_together(self.folder, self.state))


# -- the audit of what is kept


@dataclass(frozen=True)
class Followed(PreparedAudit):
    """What the last judgement says. `ledger` are the ranges that wait for their records."""

    place: Path
    judgement: LastJudgement
    late: int

    @classmethod
    def of(cls, case: PreparedAudit, folder: Folder, state: FollowState) -> Self:
        assert state.judgement is not None
        of_case = {field.name: getattr(case, field.name) for field in fields(PreparedAudit)}
        of_case["notes"] = (*case.notes, *notes.kept(state.horizon))
        return cls(
            **of_case, place=folder.path / "judged" / state.judgement.name, judgement=state.judgement, late=state.late
        )

    @property
    def stores(self) -> int:
        return follow_parts.STORES

    @cached_property
    def window_us(self) -> int:
        return round((self.options.window_s or WINDOW_S) * _SECOND_US)

    def _whole_index(self) -> DataFrame:
        return follow_parts.near(self.index, self.ledger)

    def findings(self) -> DataFrame:
        return self.spark.read.schema(findings.FINDING).parquet(str(self.place / "findings"))

    @cached_property
    def _paths(self) -> Paths:
        return self.judgement.paths

    @cached_property
    def _windows(self) -> DataFrame:
        return self._window_rows().drop("revision")

    def _window_rows(self) -> DataFrame:
        return self.spark.createDataFrame(self._read_windows()).drop("messages")

    def _window_sums(self) -> list[dict[str, Any]]:
        rows = self._read_windows().to_pylist()
        return [{**row, "sketch": dict(row["sketch"])} for row in rows]

    def _read_windows(self) -> pa.Table:
        return pq.read_table(self.place / "windows.parquet")

    def _start_notes(self, totals: Sequence[CellFigures]) -> list[str]:
        """The messages are not looked through again for it."""
        return []

    def audit(self) -> Audit:
        return replace(super().audit(), late=self.late)

    def tables(self) -> dict[str, DataFrame]:
        """Without the messages, which are in the state. Each window with its revision."""
        return {"windows": self._window_table(), "findings": self.findings()}


# -- letting go

# Of a message that was let go of, a mark stays for a while. What comes of it later is known to be late, and is not
# taken for a message that nobody sent.


def put_together(folder: Folder, state: FollowState) -> FollowState:
    """The newest parts become one. All of them have been judged."""
    count = suffix([part.rows for part in state.parts])
    names = state.names[-count:]
    rows = folder.read_parts("messages", names, MESSAGES)
    return _replaced(folder, state, count, rows, folder.read_parts("index", names, ROWS["index"]))


def let_go(folder: Folder, state: FollowState, case: PreparedAudit, horizon: int, remember_us: int) -> FollowState:
    """Close the windows before `horizon`, and keep the messages only to which something has happened since."""
    rows = folder.read_parts("messages", state.names, MESSAGES)
    before = folder.marks_forgotten(state)
    if before is not None:
        rows = rows.join(before, "mark", "left_anti")
    last = rows.groupBy("mark").agg(F.max(F.coalesce("first_sent", "first_at")).alias("last"))
    place = folder.fresh("forgotten")
    folder.write(last.where(F.col("last") < F.lit(horizon)).select("mark"), place)
    gone = folder.read([place], FORGOTTEN)
    scope = MessageScope.of(case, rows.join(gone, "mark", "left_semi"), state.asked.window_us)
    closed = state.closed + scope.paths
    scope.close()
    index = folder.read_parts("index", state.names, ROWS["index"]).where(_since(horizon))
    known = [each for each in state.forgotten if each.horizon >= horizon - remember_us]
    forgotten = (*known, Forgotten(place.name, horizon)) if count_rows(place) else tuple(known)
    state = msgspec.structs.replace(state, horizon=horizon, forgotten=forgotten, closed=closed)
    state = _replaced(folder, state, len(state.parts), rows.join(gone, "mark", "left_anti"), index)
    sessions = folder.read_parts("messages", state.names, MESSAGES).select("session").distinct()
    return _with_lanes(folder, state, folder.lanes(state.lanes, sessions), len(state.lanes))


def _since(horizon: int) -> Column:
    return F.unix_micros("at") >= F.lit(horizon)


def _replaced(folder: Folder, state: FollowState, count: int, rows: DataFrame, index: DataFrame) -> FollowState:
    """One part in the place of the last ones."""
    name = part_name(state.batch)
    place = folder.path / "parts" / name
    folder.write_by_time(follow_parts.merged(rows), place / "messages")
    folder.write(index.repartitionByRange("stream", "offset").sortWithinPartitions("stream", "offset"), place / "index")
    waiting = folder.read_parts("pending", [state.pending] if state.pending else [], ROWS["ledger"])
    folder.write(waiting.where(_since(state.horizon)), place / "pending")
    part = together(name, state.parts[-count:], count_rows(place / "messages"))
    parts = (*state.parts[:-count], part)
    assert state.judgement is not None
    judgement = msgspec.structs.replace(state.judgement, parts=tuple(each.name for each in parts))
    return msgspec.structs.replace(state, parts=parts, pending=name, judgement=judgement)


def put_lanes_together(folder: Folder, state: FollowState) -> FollowState:
    count = suffix([each.rows for each in state.lanes])
    return _with_lanes(folder, state, folder.lanes(state.lanes[-count:]), count)


def _with_lanes(folder: Folder, state: FollowState, rows: DataFrame, count: int) -> FollowState:
    place = folder.fresh("lanes")
    folder.write(rows.select(*columns(LANES)), place)
    lanes = (*state.lanes[: len(state.lanes) - count], Lanes(place.name, count_rows(place)))
    return msgspec.structs.replace(state, lanes=lanes)
