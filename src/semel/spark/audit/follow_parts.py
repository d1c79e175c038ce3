"""A batch of what the stores wrote down becomes a part: one row per message and hop, as far as the batch knows.

How a hop is read (see `figures.HopReading`) may change with what is seen there later. The parts therefore hold every
reading: events as they are, handlings as acceptances, and records of streams as what was sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from semel.kernel.ledger import Kind
from semel.spark.audit import compact, expand, figures
from semel.spark.audit.figures import HopReading, LedgerHop
from semel.spark.audit.follow_state import (
    MESSAGES,
    ROWS,
    Folder,
    FollowedPart,
    FollowState,
    columns,
    count_rows,
    mark,
    union,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

STORES = 2
"""Where an event was written down is always kept: another store may come into it at any time."""
EVENTS, TAKEN, RECORDS = range(3)
_ANY = HopReading(LedgerHop("", "", 0, -1, 0))
"""A hop on which everything may have happened, so that every count is made."""
_RANGE_KEY = ("store", "history", "seq")
_STREAMS_MAX = 64


def fold(folder: Folder, state: FollowState, batch: DataFrame, name: str) -> FollowedPart:
    """The part of a batch, written."""
    ledger, index = (
        batch.where(F.col("dataset") == dataset).select(*columns(ROWS[dataset])) for dataset in ("ledger", "index")
    )
    place = folder.path / "parts" / name
    survey = figures.survey(ledger)
    folder.write(index, place / "index")
    events = [expand.singles(ledger), *_expanded(folder, state, ledger, name)]
    folder.write(union([*counted(union(events), survey.hops), _recorded(index)]), place / "messages")
    at = F.unix_micros("at")
    times = ledger.agg(F.min(at), F.max(at)).first()
    streams = compact.records(index).select("stream").distinct().collect()
    return FollowedPart(
        name,
        survey.hops,
        tuple(sorted(row["stream"] for row in streams)),
        tuple((pipeline, hop, int(kind), n) for pipeline, hop, kind, n in survey.metered),
        (times[0], times[1]) if times is not None and times[0] is not None else None,
        count_rows(place / "messages"),
    )


def _expanded(folder: Folder, state: FollowState, ledger: DataFrame, name: str) -> list[DataFrame]:
    """The events of all ranges whose records are there by now. The others wait."""
    waiting = [state.pending] if state.pending else []
    ranges = expand.ranges(ledger).unionByName(folder.read_parts("pending", waiting, ROWS["ledger"]))
    about = figures.survey(ranges).ranges
    if not about.ranges:
        return []
    index = near(folder.read_parts("index", [*state.names, name], ROWS["index"]), ranges)
    gaps = expand.gaps(ranges, index, about).where(F.unix_micros("at") >= state.horizon)
    folder.write(gaps.select(*columns(ROWS["ledger"])), folder.path / "parts" / name / "pending")
    pending = folder.read_parts("pending", [name], ROWS["ledger"])
    complete = ranges.join(pending.select(*_RANGE_KEY), list(_RANGE_KEY), "left_anti")
    return [expand.expand(complete, index, about)]


def near(index: DataFrame, ranges: DataFrame) -> DataFrame:
    """The records that the ranges may name. Files say which offsets are in them, so the others are not read."""
    bounds = ranges.groupBy("stream").agg(F.min("first").alias("first"), F.max("last").alias("last")).collect()
    if not bounds:
        return index.limit(0)
    if len(bounds) > _STREAMS_MAX:
        first, last = min(row["first"] for row in bounds), max(row["last"] for row in bounds)
        return index.where(F.col("offset").between(first, last))
    spans = [(F.col("stream") == row["stream"]) & F.col("offset").between(row["first"], row["last"]) for row in bounds]
    return index.where(reduce(or_, spans))


def counted(events: DataFrame, hops: Sequence[LedgerHop]) -> list[DataFrame]:
    """One row per message and hop: as the events are, and once more with handlings for acceptances."""
    facts = figures.facts(events, (), exact=True, stores=STORES)
    rows = [_marked(figures.messages(facts, [_ANY], STORES), EVENTS)]
    taken = [HopReading(hop, taken=True) for hop in hops if hop.has(*figures.TAKEN)]
    if taken:
        handled = facts.where(F.col("kind").isin(*map(int, figures.TAKEN)))
        found = figures.messages(handled, taken, STORES)
        # all that is not about the acceptance is in the rows of the events already
        rest = [name for name in figures.COUNTS if name != "accepted"]
        rows.append(_marked(found.withColumns({name: F.lit(0).cast("long") for name in rest}), TAKEN))
    return rows


def _recorded(index: DataFrame) -> DataFrame:
    """The records of streams as what was sent, under the code of the stream."""
    facts = compact.records(index).select(
        F.xxhash64(F.lit(""), F.col("stream")).alias("code"), "session", F.col("message").alias("key"),
        F.lit(int(Kind.SENT)).alias("kind"), "idx", F.col("offset").alias("ord"), F.unix_micros("at").alias("at"),
        F.xxhash64("store").alias("store"),
    )  # fmt: skip
    return _marked(figures.messages(facts, [_ANY], STORES), RECORDS)


def merged(rows: DataFrame) -> DataFrame:
    """Rows of several parts put together, each reading by itself."""
    return union([_marked(figures.merged(rows.where(F.col("reading") == of)), of) for of in (EVENTS, TAKEN, RECORDS)])


def _marked(rows: DataFrame, reading: int) -> DataFrame:
    return rows.withColumn("reading", F.lit(reading)).withColumn("mark", mark()).select(*columns(MESSAGES))
