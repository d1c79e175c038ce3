"""Some of the messages that are kept, judged: what a turn compares before and after."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Self

from pyspark.sql import functions as F

from semel.spark.audit import figures, follow_parts, identity
from semel.spark.audit.chains import Paths
from semel.spark.audit.figures import HopReading
from semel.spark.audit.follow_state import LANES, columns, mark, union
from semel.spark.audit.follow_windows import Row
from semel.spark.audit.run import SKETCHES_HASHED, PreparedAudit
from semel.spark.session import with_settings

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

MESSAGE = ("code", "session", "key")
LANE = ("code", "session", "store")


@dataclass(frozen=True)
class MessageScope(PreparedAudit):
    """The audit of some messages. `lanes` say how far their sessions had come without them. `known` has those whose
    order is known: out of order with a `highest`, otherwise in order. With `disorder`, that is all that are out of
    order, every one that was accepted is known."""

    rows: DataFrame
    window: int
    lanes: DataFrame | None = None
    known: DataFrame | None = None
    disorder: DataFrame | None = None

    @classmethod
    def of(cls, case: PreparedAudit, rows: DataFrame, window: int) -> Self:
        return cls(
            **{field.name: getattr(case, field.name) for field in fields(PreparedAudit)}, rows=rows, window=window
        )

    @property
    def stores(self) -> int:
        return follow_parts.STORES

    @cached_property
    def window_us(self) -> int:
        return self.window

    @cached_property
    def taken(self) -> DataFrame:
        """One row per message and hop, without verdicts. Messages go by their names in any case."""
        ways = self._with_receipts
        handled = [way.hop.code for way in ways if way.taken]
        plain = F.col("reading") == follow_parts.EVENTS
        if handled:
            plain = plain | ((F.col("reading") == follow_parts.TAKEN) & F.col("code").isin(*handled))
        read = [self.rows.where(plain)]
        sent = [(way.hop.sender, way.hop.code) for way in ways if way.implied]
        if sent:
            streams = self.spark.createDataFrame(sent, "_stream string, _hop long")
            streams = streams.select(F.xxhash64(F.lit(""), F.col("_stream")).alias("code"), "_hop")
            records = self.rows.where(F.col("reading") == follow_parts.RECORDS).join(F.broadcast(streams), "code")
            read.append(records.withColumn("code", F.col("_hop")).drop("_hop"))
        chosen = union(read).where(F.col("code").isin(*(way.hop.code for way in ways)))
        rows = figures.merged(chosen.drop("reading", "mark")).select(*figures.MESSAGE)
        return figures.merged(identity.united(rows, self.ways)).select(*figures.MESSAGE).persist()

    @cached_property
    def placed(self) -> DataFrame | None:
        """The messages whose order is known."""
        if self.disorder is None:
            return self.known
        accepted = self.taken.where(F.col("accepted") > 0).select(*MESSAGE, "ord", "idx", "store")
        return accepted.join(self.disorder, list(MESSAGE), "left").persist()

    @cached_property
    def verdicts(self) -> DataFrame:
        ways = self._with_receipts
        rows = self.taken if self.lanes is None else self.taken.unionByName(_as_rows(self.lanes))
        found = figures.judged(
            rows,
            ways,
            now=self.now,
            deadline_us=self.options.deadline_us,
            stores=self.stores,
            waiting=self._waiting_sessions(),
        ).where(F.col("key").isNotNull())
        if self.placed is not None:
            known = self.placed.select(*MESSAGE, F.lit(True).alias("_known"), F.col("highest").alias("_highest"))
            is_known, highest = F.col("_known").isNotNull(), F.col("_highest")
            found = found.join(known, list(MESSAGE), "left").withColumns(
                {
                    "disorder": F.when(is_known, highest.isNotNull()).otherwise(F.col("disorder")),
                    "highest": F.when(is_known, highest).otherwise(F.col("highest")),
                }
            )
        return found.persist()

    def _judged(
        self, ways: Sequence[HopReading], *, exact: bool, since: int | None = None, until: int | None = None
    ) -> DataFrame:
        here = F.col("code").isin(*(way.hop.code for way in ways))
        return self.verdicts.where(here & figures.sent_within(F.col("when"), since, until))

    def sums(self, horizon: int) -> tuple[list[Row], int]:
        """The sums of the windows that are not closed, each with its number of `messages`, and how many in all."""
        found = figures.windows(
            self.messages(),
            window_us=self.window,
            deadline_us=self.options.deadline_us,
            now=self.now,
            session_class=self.options.session_class,
        )
        with with_settings(self.spark, SKETCHES_HASHED):
            sums: list[Row] = found.toArrow().to_pylist()
        return [row for row in sums if row["window"] >= horizon], sum(row["messages"] for row in sums)

    @property
    def paths(self) -> Paths:
        return self._paths

    def wrong(self, horizon: int) -> DataFrame:
        found = self.findings()
        return found.where(F.col("window").isNull() | (F.col("window") >= F.lit(horizon)))

    def watched(self) -> DataFrame:
        """Messages that the mere passing of time will change, from `due` on; and those out of order."""
        ahead = [
            F.when(time > F.lit(self.now - self.options.deadline_us), time)
            for time in (F.col("when"), F.coalesce("first_accepted", "first_at"))
        ]
        rows = self.verdicts.select(
            *MESSAGE, mark().alias("mark"), F.least(*ahead).alias("due"),
            F.when(F.col("disorder"), F.col("highest")).alias("highest"),
        )  # fmt: skip
        return rows.where(F.col("due").isNotNull() | F.col("highest").isNotNull())

    def lanes_after(self, before: DataFrame | None, turn: int) -> DataFrame:
        """How far the sessions have come with these messages."""
        place = F.col("idx").alias("highest")
        rows = self.taken.where(F.col("accepted") > 0).select(*LANE, F.col("ord").alias("last_ord"), place)
        if before is not None:
            rows = rows.unionByName(before.select(*LANE, "last_ord", "highest"))
        last = rows.groupBy(*LANE).agg(F.max("last_ord").alias("last_ord"), F.max("highest").alias("highest"))
        return last.withColumn("turn", F.lit(turn).cast("long")).select(*columns(LANES))

    def close(self) -> None:
        for name in ("taken", "placed", "verdicts"):
            if self.__dict__.get(name) is not None:
                self.__dict__[name].unpersist()


def _as_rows(lanes: DataFrame) -> DataFrame:
    """What a session has done so far, as a row like that of a message. It has no key."""
    own: dict[str, Column] = {"accepted": F.lit(1), "ord": F.col("last_ord"), "idx": F.col("highest")}
    zero = {name: F.lit(0) for name in figures.COUNTS}
    known = {name: F.col(name) for name in LANE} | zero | own
    nothing = {"key": F.lit(None).cast("string")}
    return lanes.select(
        *((known | nothing).get(name, F.lit(None)).cast("string" if name in _TEXTS else "long").alias(name)
          for name in figures.MESSAGE)
    )  # fmt: skip


_TEXTS = ("session", "key")
