"""Messages with many receivers: what a hub owed to each of its sessions, beside what it says became of that.

A hub writes one record for a message, however many get it, and one ledger row for all that a session has acknowledged
in a second (`confirmed`) or left behind at its end (`expired`, `cancelled`, `discarded`). What was due to a session is
worked out here from the records alone, without asking the hub:

    stays     who was there for which target, between which offsets: from open, join, leave and close
    dues      a row for each message and session whose stay it falls into, by the terms of the message
    told      a row for each of these that a range of the ledger stands for, found by its count and fold

One due is like one message on a hop: its `session` is the receiver, its `idx` the offset. So lost, doubled, out of
order and in flight mean for each receiver what they mean elsewhere.

Whether a filter chose a session, and whether a message was in time for it, is not in the records. Neither is whether a
join held that a crash interrupted. Such dues are `doubtful`: they count if the hub tells of them. Where the fold
cannot say of which, their number counts and their names are not known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from semel.kernel.ledger import Kind
from semel.pubsub.hub import records as hub
from semel.spark.audit import expand
from semel.spark.audit.expand import Ranges

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_EVER = 2**62
_SESSION = ("store", "stream", "peer")
_RANGE = ("store", "history", "seq")
_DUE = ("epoch", "offset", "message", "doubtful", "at")


@dataclass(frozen=True)
class Receivers:
    """`ledger` and `index` as the sources give them. Only what concerns hubs is looked at. Each step is worked out once
    and kept: the figures, the gaps and the findings all look at it."""

    ledger: DataFrame
    index: DataFrame
    about: Ranges

    @cached_property
    def _sessions(self) -> DataFrame:
        """Who was there, from where to where. `last` is null for those who still are."""
        terms = F.from_json("terms", "map<string,string>")
        of = self.index.where(_is_hub() & F.col("type").isin("open", "close"))
        of = of.select(*_of_session(), "type", "offset", "subject", terms.alias("terms"))
        came, went = F.col("type") == "open", F.col("type") == "close"
        start, end = (F.col("terms").getItem(name).cast("long") for name in (hub.START, hub.END))
        found = of.groupBy(*_SESSION).agg(
            F.max(F.when(came, F.col("subject"))).alias("user"),
            F.max(F.when(came, F.coalesce(start, F.col("offset")))).alias("after"),
            F.max(F.when(went, F.coalesce(end, F.col("offset")))).alias("last"),
            F.min_by(F.col("terms").getItem(hub.GROUPS), F.when(came, F.col("offset"))).alias("groups"),
            F.bool_or(came & F.col("terms").getItem(hub.RELIABLE).isNotNull()).alias("is_judged"),
        )
        return found.localCheckpoint()

    @cached_property
    def judged(self) -> DataFrame:
        """The sessions that acknowledge, and of which it is known where they began."""
        return self._sessions.where("is_judged")

    @cached_property
    def _stays(self) -> DataFrame:
        """For which target somebody was there, after and up to which offset."""
        here = (*_SESSION, "after", F.coalesce("last", F.lit(_EVER)).alias("last"))
        user = F.when(F.col("user").isNotNull(), F.concat(F.lit(hub.user_target("")), "user"))
        named = F.array(F.lit(hub.EVERYBODY), F.concat(F.lit(hub.connection_target("")), "peer"), user)
        direct = self.judged.select(*here, F.explode(named).alias("target")).where(F.col("target").isNotNull())
        stays = direct.withColumn("doubtful", F.lit(False)).unionByName(self._group_stays())
        return stays.coalesce(1).localCheckpoint()

    def _group_stays(self) -> DataFrame:
        """From each join to the next leave. Where a join follows a join, or a leave a leave, the first of them may not
        have held: that is seen when a crash came between the record and the row of the session."""
        groups = F.explode(F.from_json("groups", "array<string>"))
        first = self.judged.select(*_SESSION, F.col("after").alias("offset"), groups.alias("group"))
        first = first.select(*_SESSION, "offset", _group(F.col("group")).alias("target"), F.lit(True).alias("joins"))
        changes = self.index.where(_is_hub() & F.col("type").isin("join", "leave"))
        joins = (F.col("type") == "join").alias("joins")
        changes = changes.select(*_of_session(), "offset", "target", joins).unionByName(first)
        order = Window.partitionBy(*_SESSION, "target").orderBy("offset")
        changes = changes.withColumn("next", F.lead("offset").over(order)).withColumn(
            "next_joins", F.lead("joins").over(order)
        )
        again = F.col("joins") == F.col("next_joins")
        stays = changes.where(F.col("joins") | F.coalesce(again, F.lit(False)))
        ends = self.judged.select(*_SESSION, F.coalesce("last", F.lit(_EVER)).alias("gone"))
        last = F.least("gone", F.coalesce("next", F.lit(_EVER)))
        return stays.join(F.broadcast(ends), list(_SESSION)).select(
            *_SESSION, F.col("offset").alias("after"), last.alias("last"), "target",
            F.coalesce(again, F.lit(False)).alias("doubtful"),
        )  # fmt: skip

    @cached_property
    def _dues(self) -> DataFrame:
        terms = F.from_json("terms", "map<string,string>")
        messages = self.index.where(_is_hub() & (F.col("type") == "message")).select(
            "store", "stream", "epoch", "offset", "message", "at", "source", "target", terms.alias("terms")
        )
        stays = F.broadcast(self._stays)
        falls_into = (F.col("offset") > F.col("after")) & (F.col("offset") <= F.col("last"))
        excluded = F.from_json(F.col("terms").getItem(hub.EXCLUDED), "array<string>")
        left_out = (F.col("terms").getItem(hub.NO_ECHO).isNotNull() & (F.col("source") == F.col("peer"))) | (
            F.coalesce(F.array_contains(excluded, F.col("peer")), F.lit(False))
        )
        chosen = F.col("terms").getItem(hub.FILTER).isNotNull() | F.col("terms").getItem(hub.EXPIRES).isNotNull()
        found = messages.join(stays, ["store", "stream", "target"])
        found = found.where(falls_into & ~F.coalesce(left_out, F.lit(False)))
        doubtful = F.col("doubtful") | F.coalesce(chosen, F.lit(False))
        return found.select(*_SESSION, "epoch", "offset", "message", "at", doubtful.alias("doubtful")).localCheckpoint()

    @cached_property
    def _fitted(self) -> DataFrame:
        """Each range beside the dues that lie in it. `counts` says of which of them it tells, `fits` whether these are
        what it counted and folded."""
        of_judged = expand.fanned_ranges(self.ledger).join(F.broadcast(self.judged), list(_SESSION), "left_semi")
        found = expand.matched(of_judged, self._dues, self.about, _SESSION, _DUE)
        whole = Window.partitionBy(*_RANGE)
        hashed, sure = F.xxhash64("record.message"), ~F.col("record.doubtful")
        found = found.withColumn("_hash", hashed).withColumns(
            {
                "_all": F.count("*").over(whole),
                "_sure": F.count_if(sure).over(whole),
                "_all_fold": F.bit_xor("_hash").over(whole),
                "_sure_fold": F.coalesce(F.bit_xor(F.when(sure, F.col("_hash"))).over(whole), F.lit(0)),
            }
        )
        fold, n = F.coalesce("fold", F.col("_all_fold")), F.col("n")
        odd_of_all = F.col("_hash") == F.col("_all_fold").bitwiseXOR(fold)
        odd_of_sure = ~sure & (F.col("_hash") == F.col("_sure_fold").bitwiseXOR(fold))
        found = found.withColumns(
            {
                "_is_all": (F.col("_all") == n) & (F.col("_all_fold") == fold),
                "_is_sure": (F.col("_sure") == n) & (F.col("_sure_fold") == fold),
                "_but_one": (F.col("_all") == n + 1) & (F.count_if(odd_of_all).over(whole) == 1),
                "_and_one": (F.col("_sure") == n - 1) & (F.count_if(odd_of_sure).over(whole) == 1),
            }
        )
        counts = (
            F.when(F.col("_is_all"), F.lit(True))
            .when(F.col("_is_sure"), sure)
            .when(F.col("_and_one"), sure | odd_of_sure)
            .when(F.col("_but_one"), ~odd_of_all)
            .otherwise(sure)
        )
        fits = F.col("_is_all") | F.col("_is_sure") | F.col("_and_one") | F.col("_but_one")
        could = (F.col("_sure") < n) & (n <= F.col("_all"))
        nameless = F.when(~fits & could, n - F.col("_sure"))
        return found.withColumns({"counts": counts, "fits": fits, "nameless": nameless}).localCheckpoint()

    def events(self) -> DataFrame:
        """In the columns of `expand.EVENT`: what was due as sent, what was acknowledged as handled, and the ends."""
        told = self._fitted.where("counts")
        keys = [*_SESSION, "offset"]
        doubtless = told.where("record.doubtful").select(*_SESSION, "record.offset").distinct()
        sent = self._dues.where(~F.col("doubtful"))
        sent = sent.unionByName(self._dues.where("doubtful").join(doubtless, keys, "left_semi"))
        hop = F.concat("stream", F.lit(">sub"))
        common = {"pipeline": F.lit(""), "node": F.lit(""), "attempt": F.lit(1), "cause": F.lit(None).cast("string")}
        of_due = {
            "hop": hop, "kind": F.lit(int(Kind.SENT)).cast("short"), "session": F.col("peer"), "idx": F.col("offset"),
            "ord": F.col("offset"),
        }  # fmt: skip
        confirmed = F.col("kind") == int(Kind.CONFIRMED)
        of_told = {
            "kind": F.when(confirmed, F.lit(int(Kind.HANDLED))).otherwise(F.col("kind")).cast("short"),
            "epoch": F.col("history"), "message": F.col("record.message"), "session": F.col("peer"),
            "idx": F.col("record.offset"), "ord": _place(),
        }  # fmt: skip
        return _events(sent, common | of_due).unionByName(_events(told, of_told))

    def waiting(self) -> DataFrame:
        """The sessions that are still open. What stands after `told` has no events in the ledger yet."""
        ranges = expand.fanned_ranges(self.ledger).groupBy(*_SESSION).agg(F.max("last").alias("told"))
        there = self.judged.where(F.col("last").isNull()).join(ranges, list(_SESSION), "left")
        code = F.xxhash64(F.lit(""), F.concat("stream", F.lit(">sub"))).alias("code")
        return there.select(code, F.col("peer").alias("session"), F.coalesce("told", "after").alias("told"))

    def gaps(self) -> DataFrame:
        """Ranges that do not fit what was due, in the columns of `expand.gaps`."""
        known = self._sessions.where(~F.col("is_judged")).select(*_SESSION)
        rows = expand.fanned_ranges(self.ledger).join(F.broadcast(known), list(_SESSION), "left_anti")
        sums = self._fitted.groupBy(*_RANGE).agg(
            F.first("_sure").alias("found"), F.first("_sure_fold").alias("found_fold"), F.first("fits").alias("fits"),
            F.first("nameless").alias("nameless"),
        )  # fmt: skip
        judged = rows.join(sums, list(_RANGE), "left").withColumn("found", F.coalesce("found", F.lit(0)))
        wrong = ~F.coalesce("fits", F.lit(False)) & F.col("nameless").isNull()
        return judged.where(wrong).drop("fits", "nameless")

    def unnamed(self) -> dict[str, int]:
        """By hop, how many are in the ledger that cannot be named: the terms of a message decide, or the session is one
        that is not judged."""
        known = self._sessions.where(~F.col("is_judged")).select(*_SESSION)
        others = expand.fanned_ranges(self.ledger).join(F.broadcast(known), list(_SESSION), "left_semi")
        nameless = self._fitted.where(F.col("nameless").isNotNull()).dropDuplicates(list(_RANGE))
        rows = others.select("hop", "n").unionByName(nameless.select("hop", F.col("nameless").alias("n")))
        return {row["hop"]: row["n"] for row in rows.groupBy("hop").agg(F.sum("n").alias("n")).collect()}


def _is_hub() -> Column:
    return F.col("stream").startswith("hub/")


def _of_session() -> tuple[Column | str, ...]:
    return "store", "stream", F.col("source").alias("peer")


def _group(name: Column) -> Column:
    return F.concat(F.lit(hub.group_target("")), name)


def _place() -> Column:
    """Ranges in the order in which they were written down, and the records of each in theirs."""
    return F.col("seq") * F.lit(2**32) + (F.col("record.offset") - F.col("first"))


def _events(rows: DataFrame, own: dict[str, Column]) -> DataFrame:
    return rows.select(*(own.get(name, F.col(name)).alias(name) for name in expand.EVENT_COLUMNS))


def unnamed_notes(counts: dict[str, int]) -> Sequence[str]:
    return [
        f"{hop}: of {n:,} deliveries it is known that they ended, but not of which messages: filters and times to live"
        " decided, or sessions that are not judged"
        for hop, n in sorted(counts.items())
    ]
