"""One turn of an audit that goes on: only what is new is judged, and what was judged before is put right by it.

    touched    the messages that something new is known of, or that have had their time since the last turn
    before     what the last turn has counted of them
    after      what is to be counted of them now
    windows    what they were, less `before`, plus `after`

A message takes all its hops along, so verdicts that look at several of them have what they need. Order is about the
other messages of the session as well: of these the highest index is kept (`lanes`), because acceptances come in the
order in which they happened. Where one does not, its whole session is judged.

Everything that is kept is judged when the hops are to be read in another way, when something else is asked, or when the
largest latency of a window may have become smaller.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import functions as F

from semel.spark.audit import expand, findings, follow_parts, follow_windows
from semel.spark.audit.chains import Paths
from semel.spark.audit.follow_scope import LANE, MESSAGE, MessageScope
from semel.spark.audit.follow_state import (
    MESSAGES,
    WATCHED,
    Folder,
    FollowState,
    HopReadings,
    Lanes,
    LastJudgement,
    columns,
    count_rows,
    mark,
    sync_files,
    union,
)
from semel.spark.audit.follow_windows import Row
from semel.spark.audit.report import COLUMNS
from semel.spark.audit.run import PreparedAudit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_MARKS_FEW = 1_000_000


@dataclass(frozen=True, slots=True)
class Turned:
    """What the state has to say from now on."""

    judgement: LastJudgement
    lanes: tuple[Lanes, ...]
    closed: Paths
    late: int = 0


def judge(folder: Folder, state: FollowState, case: PreparedAudit) -> Turned | None:
    """The next judgement, written and not yet named; None where the last one still holds."""
    return _Turn(folder, state, case).run()


def reading_of(case: PreparedAudit) -> HopReadings:
    return HopReadings(
        tuple((way.hop.code, way.implied, way.unseen, way.taken, way.shared) for way in case.ways),
        tuple(tuple(hop.code for hop in chain) for chain in case._chains),
        tuple(
            (stay.into.code, *(hop.code for hop in stay.onward), *([stay.receipts.hop.code] if stay.receipts else []))
            for stay in case._stays
        ),
        case.options.deadline_us,
        case.options.since,
        case.options.until,
    )


class _Turn:
    def __init__(self, folder: Folder, state: FollowState, case: PreparedAudit) -> None:
        self.folder, self.state, self.case, self.last = folder, state, case, state.judgement
        self.reading = reading_of(case)
        self.into = folder.fresh("judged")
        self.waits = {way.hop.code: way.waits_from for way in case.ways if way.waits_from is not None}
        self.used: list[MessageScope | DataFrame] = []

    def run(self) -> Turned | None:
        if self._still_holds():
            return None
        self.into.mkdir(parents=True)
        try:
            self._write_waiting()
            turned = (self._some(self.last) if self._is_comparable() else None) or self._all()
            return replace(turned, late=self._count_late())
        finally:
            for each in self.used:
                each.close() if isinstance(each, MessageScope) else each.unpersist()

    def _is_comparable(self) -> bool:
        return self.last is not None and self.last.reading == self.reading and self.last.now <= self.case.now

    def _still_holds(self) -> bool:
        """Nothing is new, and no message has had its time since."""
        last = self.last
        if last is None or not self._is_comparable() or self.case.ranges.ranges or last.ranges:
            return False
        settled = self.case.now - self.case.options.deadline_us
        return (
            set(self.state.names) <= set(last.parts)
            and last.waits == self.waits
            and last.held == self.case.held
            and (last.due is None or last.due > settled)
        )

    def _write_waiting(self) -> None:
        """For a range that still waits, the records that are there count."""
        if self.case.ranges.ranges:
            index = follow_parts.near(self.case.index, self.case.ledger)
            events = expand.expand(self.case.ledger, index, self.case.ranges)
            rows = union(follow_parts.counted(events, [way.hop for way in self.case.ways]))
            self.folder.write(rows, self.into / "waiting")

    def _waiting(self, of: Path) -> DataFrame:
        return self.folder.read([of / "waiting"], MESSAGES)

    def _kept(self, rows: DataFrame) -> DataFrame:
        """Without the messages that were let go of."""
        gone = self.folder.marks_forgotten(self.state)
        return rows if gone is None else rows.join(gone, "mark", "left_anti").select(*rows.columns)

    def _scope(self, rows: DataFrame, case: PreparedAudit | None = None, **more: Any) -> MessageScope:
        scope = replace(MessageScope.of(case or self.case, rows, self.state.asked.window_us), **more)
        self.used.append(scope)
        return scope

    def _persisted(self, rows: DataFrame) -> DataFrame:
        self.used.append(rows.persist())
        return rows

    def _handy(self, marks: DataFrame) -> DataFrame:
        """Few marks go to where the rows are, and not the rows to them."""
        return F.broadcast(marks) if self._persisted(marks).count() <= _MARKS_FEW else marks

    # -- everything

    def _all(self) -> Turned:
        rows = self.folder.read_parts("messages", self.state.names, MESSAGES)
        scope = self._scope(self._kept(rows.unionByName(self._waiting(self.into))))
        horizon = self.state.horizon
        sums, count = scope.sums(horizon)
        old = self._old_windows()
        self._write_windows(follow_windows.revised(old, sums, horizon))
        is_wrong = _is_wrong(sums, scope)
        new = scope.wrong(horizon) if is_wrong else self.folder.read([], findings.FINDING)
        self._write_findings(new, self._old_findings().where(F.col("window") < F.lit(horizon)))
        self.folder.write(scope.watched(), self.into / "watched")
        closed = self.state.closed if self._has_the_same_chains() else Paths()
        lanes = self._write_lanes(scope.lanes_after(None, self.state.turn))
        return Turned(self._judgement(closed + scope.paths, count), (lanes,), closed)

    def _has_the_same_chains(self) -> bool:
        was, reading = self.last.reading if self.last is not None else None, self.reading
        return was is not None and (was.chains, was.stays) == (reading.chains, reading.stays)

    # -- only what is new

    def _some(self, last: LastJudgement | None) -> Turned | None:
        assert last is not None
        was = self.folder.path / "judged" / last.name
        watched = self.folder.read([was / "watched"], WATCHED)
        touched = self._touched(last, was, watched)
        before, after, again = self._both(last, was, watched, touched)
        if not again.isEmpty():
            touched = self._handy(touched.union(self._of_sessions(again)).distinct())
            before, after, _ = self._both(last, was, watched, touched, again)
        horizon = self.state.horizon
        old, (less, _), (more, count) = self._old_windows(), before.sums(horizon), after.sums(horizon)
        assert old is not None
        windows = follow_windows.put_right(old, less, more)
        if windows is None:
            return None
        self._write_windows(windows)
        self._put_findings_right(last, was, (before, less), (after, more), touched)
        kept = watched.join(touched, "mark", "left_anti").select(*columns(WATCHED))
        self.folder.write(kept.unionByName(after.watched()), self.into / "watched")
        lanes = self._write_lanes(after.lanes_after(after.lanes, self.state.turn))
        paths = last.paths + -before.paths + after.paths
        return Turned(self._judgement(paths, count), (*self.state.lanes, lanes), self.state.closed)

    def _touched(self, last: LastJudgement, was: Path, watched: DataFrame) -> DataFrame:
        """The marks of the messages to judge."""
        settled = self.case.now - self.case.options.deadline_us
        marks = [
            self._new_rows().select("mark"),
            watched.where(F.col("due") <= F.lit(settled)).select("mark"),
            *(self._waiting(of).select("mark") for of in (was, self.into)),
            *self._waited(last),
            *self._held(last),
        ]
        return self._handy(self._kept(union(marks).distinct()))

    def _new_rows(self) -> DataFrame:
        judged = self.last.parts if self.last is not None else ()
        fresh = [name for name in self.state.names if name not in judged]
        return self.folder.read_parts("messages", fresh, MESSAGES)

    def _count_late(self) -> int:
        gone = self.folder.marks_forgotten(self.state)
        new = self._new_rows().select("mark").distinct()
        return new.join(gone, "mark", "left_semi").count() if gone is not None else 0

    def _waited(self, last: LastJudgement) -> Iterable[DataFrame]:
        """What pipelines have taken in the meantime, or have fallen behind with."""
        rows = self.folder.read_parts("messages", self.state.names, MESSAGES)
        for way in self.case.ways:
            code = way.hop.code
            times = [times[code] for times in (last.waits, self.waits) if code in times]
            if times and last.waits.get(code) != self.waits.get(code):
                # the records of an implied hop are under the code of their stream
                here = F.col("code").isin(code) | (F.col("code") == F.xxhash64(F.lit(""), F.lit(way.hop.sender)))
                since = F.coalesce("first_sent", "first_at") >= F.lit(min(times))
                yield rows.where(here & since).select("mark")

    def _held(self, last: LastJudgement) -> Iterable[DataFrame]:
        """The messages of sessions that wait for another index than they did, or wait no more."""
        changed = {session for _, session, _ in set(last.held) ^ set(self.case.held)}
        if changed:
            rows = self.folder.read_parts("messages", self.state.names, MESSAGES)
            sessions = self.folder.spark.createDataFrame([(session,) for session in sorted(changed)], "session string")
            yield rows.join(F.broadcast(sessions), "session", "left_semi").select("mark")

    def _of_sessions(self, sessions: DataFrame) -> DataFrame:
        rows = self.folder.read_parts("messages", self.state.names, MESSAGES)
        rows = rows.unionByName(self._waiting(self.into))
        return self._kept(rows.join(sessions, "session", "left_semi").select("mark").distinct())

    def _both(
        self, last: LastJudgement, was: Path, watched: DataFrame, touched: DataFrame, again: DataFrame | None = None
    ) -> tuple[MessageScope, MessageScope, DataFrame]:
        """Before and after, and the sessions in which something happened between what was known. The order of those
        in `again` is judged from the beginning."""
        judged = [part for part in self.state.parts if part.name in last.parts]
        parts, new = self._persisted(self.folder.of_marks(judged, touched)), self._new_rows()
        rows_before = parts.unionByName(_of(self._waiting(was), touched))
        rows_after = union([parts, *(_of(rows, touched) for rows in (new, self._waiting(self.into)))])
        ways = tuple(replace(way, waits_from=last.waits.get(way.hop.code)) for way in self.case.ways)
        disorder = watched.where(F.col("highest").isNotNull()).select(*MESSAGE, "highest")
        case = replace(self.case, ways=ways, now=last.now, held=last.held)
        before = self._scope(rows_before, case, disorder=disorder)
        known = before.placed
        assert known is not None
        sessions = rows_after.select("session").distinct()
        lanes = self._persisted(self.folder.lanes(self.state.lanes, sessions))
        if again is not None:
            known = known.join(again, "session", "left_anti")
            rest, redone = (lanes.join(again, "session", how) for how in ("left_anti", "left_semi"))
            nothing = {name: F.lit(None).cast("long") for name in ("last_ord", "highest")}
            lanes = rest.unionByName(redone.withColumns(nothing))
        after = self._scope(rows_after, lanes=lanes, known=known)
        return before, after, self._persisted(_disturbed(after, known, lanes))

    # -- what is written

    def _old_windows(self) -> pa.Table | None:
        return pq.read_table(self._was / "windows.parquet") if self._was is not None else None

    def _old_findings(self) -> DataFrame:
        return self.folder.read([self._was / "findings"] if self._was is not None else [], findings.FINDING)

    @property
    def _was(self) -> Path | None:
        return self.folder.path / "judged" / self.last.name if self.last is not None else None

    def _write_windows(self, windows: pa.Table) -> None:
        pq.write_table(windows, self.into / "windows.parquet")
        sync_files(self.into)

    def _write_findings(self, *frames: DataFrame) -> None:
        place = self.into / "findings"
        union(frames).coalesce(1).write.parquet(str(place))
        sync_files(place)

    def _put_findings_right(
        self,
        last: LastJudgement,
        was: Path,
        before: tuple[MessageScope, list[Row]],
        after: tuple[MessageScope, list[Row]],
        touched: DataFrame,
    ) -> None:
        if not last.ranges and not any(_is_wrong(sums, scope) for scope, sums in (before, after)):
            shutil.copytree(was / "findings", self.into / "findings")
            return sync_files(self.into / "findings")
        closed = F.col("window") < F.lit(self.state.horizon)
        old = self._old_findings().where(F.col("window").isNotNull()).withColumn("mark", mark("message"))
        others = old.where(~closed).join(touched, "mark", "left_anti").select(*findings.COLUMNS)
        rows = old.where(closed).select(*findings.COLUMNS)
        self._write_findings(rows, others, after[0].wrong(self.state.horizon))

    def _write_lanes(self, rows: DataFrame) -> Lanes:
        place = self.folder.fresh("lanes")
        self.folder.write(rows, place)
        return Lanes(place.name, count_rows(place))

    def _judgement(self, paths: Paths, rows: int) -> LastJudgement:
        due = [
            pc.min(pq.read_table(path, columns=["due"])["due"]).as_py()
            for path in (self.into / "watched").glob("*.parquet")
        ]
        return LastJudgement(
            self.into.name,
            self.state.names,
            self.reading,
            self.case.now,
            self.waits,
            paths,
            min((time for time in due if time is not None), default=None),
            bool(self.case.ranges.ranges),
            rows,
            self.case.held,
        )


def _of(rows: DataFrame, touched: DataFrame) -> DataFrame:
    return rows.join(touched, "mark", "left_semi").select(*columns(MESSAGES))


def _disturbed(after: MessageScope, known: DataFrame, lanes: DataFrame) -> DataFrame:
    """Sessions whose acceptances did not come in the order in which they happened: one that was known is now another,
    or belongs to another session, or a new one stands before the last that is known."""
    was = known.select(*MESSAGE, *(F.col(name).alias(f"_{name}") for name in ("ord", "idx", "store")))
    far = lanes.select(*LANE, "last_ord")
    rows = after.taken.where(F.col("accepted") > 0).join(was, list(MESSAGE), "left").join(far, list(LANE), "left")
    is_same = F.lit(True)
    for name in ("ord", "idx", "store"):
        is_same = is_same & F.col(name).eqNullSafe(F.col(f"_{name}"))
    is_old = F.col("_ord").isNotNull()
    moved = (is_old & ~is_same) | (~is_old & F.coalesce(F.col("ord") < F.col("last_ord"), F.lit(False)))
    gone = known.join(after.taken.where(F.col("accepted") > 0), list(MESSAGE), "left_anti")
    return rows.where(moved).select("session").union(gone.select("session")).distinct()


def _is_wrong(sums: Iterable[Row], scope: MessageScope) -> bool:
    """Only then are the messages looked through for which."""
    counted = any(row[name] for row in sums for name in COLUMNS.values())
    return counted or bool(scope.ranges.ranges) or any(scope.paths.lost)
