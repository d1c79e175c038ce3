"""Hops in a row, from the first sender to the last receiver; and any two points beside each other.

The figures of the hops predict those of the whole: R is their product. What is measured end to end, by the ids of the
messages, may be less. The rest was lost inside the workers between the hops, where no hop sees it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import mul
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from semel.calculus.mode import Counts, DeliveryMode
from semel.errors import InputError
from semel.kernel.ledger import Kind
from semel.spark.audit.figures import Hop, Way
from semel.spark.audit.result import Chain, Figures

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

CHAINS_MAX = 64
"""A web of hops has more ways through it than anybody reads."""
_BITS = 62


def chains_of(hops: Sequence[Hop]) -> list[tuple[Hop, ...]]:
    """All ways of two hops or more that cannot be made longer, within one pipeline. No hop comes twice in one."""
    found: list[tuple[Hop, ...]] = []
    for pipeline in sorted({hop.pipeline for hop in hops}):
        mine = [hop for hop in hops if hop.pipeline == pipeline and hop.receiver]
        reached = {hop.receiver for hop in mine if hop.receiver != hop.sender}
        begins = [hop for hop in mine if hop.sender not in reached]
        for hop in begins:
            found += _onward((hop,), mine)
    return [chain for chain in found if len(chain) > 1][:CHAINS_MAX]


def _onward(chain: tuple[Hop, ...], hops: Sequence[Hop]) -> list[tuple[Hop, ...]]:
    points = {hop.sender for hop in chain}
    onward = [hop for hop in hops if hop.sender == chain[-1].receiver and hop.receiver not in points]
    if not onward:
        return [chain]
    return [longer for hop in onward for longer in _onward((*chain, hop), hops)][:CHAINS_MAX]


def predicted(chain: Sequence[Hop], totals: Iterable[Figures]) -> float | None:
    """The product of the hops' own figures; None where one of them has none."""
    modes = []
    for hop in chain:
        counts = [cell.delivery for cell in totals if (cell.pipeline, cell.hop) == (hop.pipeline, hop.hop)]
        sent, unique = sum(count.sent for count in counts), sum(count.unique for count in counts)
        received = sum(count.received for count in counts)
        reliability = Counts(sent, unique, received).reliability
        if reliability is None:
            return None
        modes.append(DeliveryMode(reliability, unique / received if received else 1.0))
    return reduce(mul, modes).reliability


def measure(
    rows: DataFrame, chains: Sequence[Sequence[Hop]], totals: Sequence[Figures], *, now: int, deadline_us: int
) -> list[Chain]:
    """From one row per message and hop. Messages whose time at the first hop is not over yet do not count, unless they
    have come through already."""
    found = []
    for first in range(0, len(chains), _BITS):
        some = chains[first : first + _BITS]
        counts = _counts(rows, some, now - deadline_us)
        for at, chain in enumerate(some):
            sent = sum(n for begun, done, n in counts if begun >> at & 1)
            arrived = sum(n for begun, done, n in counts if begun & done & 1 << at)
            measured = arrived / sent if sent else None
            names = tuple(hop.hop for hop in chain)
            found.append(Chain(chain[0].pipeline, names, sent, arrived, predicted(chain, totals), measured))
    return found


def _counts(rows: DataFrame, chains: Sequence[Sequence[Hop]], until: int) -> list[tuple[int, int, int]]:
    """A bit for each chain: it was sent at its beginning, it was taken at its end. Few combinations occur."""
    settled = F.col("first_sent") <= F.lit(until)
    begun = [_mask(chains, 0, F.col("sends") > 0), _mask(chains, 0, (F.col("sends") > 0) & settled)]
    done = _mask(chains, -1, F.col("held"))
    ends = {chain[end].code for chain in chains for end in (0, -1)}
    each = (
        rows.where(F.col("code").isin(*ends))
        .groupBy("session", "key")
        .agg(F.bit_or(begun[0]).alias("sent"), F.bit_or(begun[1]).alias("settled"), F.bit_or(done).alias("done"))
    )
    counted = F.col("settled").bitwiseOR(F.col("sent").bitwiseAND(F.col("done"))).alias("begun")
    found = each.select(counted, "done").groupBy("begun", "done").agg(F.count("*").alias("n")).collect()
    return [(row["begun"], row["done"], row["n"]) for row in found]


def _mask(chains: Sequence[Sequence[Hop]], end: int, holds: Column) -> Column:
    masks: dict[int, int] = {}
    for at, chain in enumerate(chains):
        masks[chain[end].code] = masks.get(chain[end].code, 0) | 1 << at
    column: Column = F.lit(0).cast("long")
    for code, mask in masks.items():
        column = F.when(holds & (F.col("code") == code), F.lit(mask).cast("long")).otherwise(column)
    return column


# -- any two points


@dataclass(frozen=True, slots=True)
class Point:
    """Where messages are seen: at the sending or the receiving end of a hop, or in a stream."""

    name: str
    side: str

    @classmethod
    def parse(cls, text: str, side: str) -> Point:
        """`sent:a>b`, `accepted:a>b`, `stream:name`; a hop alone is meant at `side`, a name alone is a stream."""
        given, colon, name = text.partition(":")
        if colon and given in ("sent", "accepted", "stream"):
            return cls(name, given)
        return cls(text, side if ">" in text else "stream")

    def __str__(self) -> str:
        return f"{self.side}:{self.name}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """What was at the one point and what of it was at the other. `missing` and `surplus` are ids, the first of them."""

    sender: Point
    receiver: Point
    counts: Counts
    surplus_count: int
    missing: tuple[str, ...] = ()
    surplus: tuple[str, ...] = ()


def seen_at(point: Point, events: DataFrame, records: DataFrame, ways: Sequence[Way]) -> DataFrame:
    """The ids of the messages that were seen there, with the number of copies."""
    if point.side == "stream":
        rows = records.where(F.col("stream") == point.name)
        return rows.groupBy("session", "message").agg(F.count("*").alias("copies"))
    here = [way for way in ways if way.hop.hop == point.name]
    if not here:
        known = ", ".join(sorted({way.hop.hop for way in ways})) or "none"
        raise InputError(f"there is no hop {point.name!r} in these sources", fix=f"the hops are: {known}")
    if point.side == "sent" and any(way.implied for way in here):
        return seen_at(Point(here[0].hop.sender, "stream"), events, records, ways)
    kinds = [Kind.SENT, Kind.RESENT] if point.side == "sent" else [Kind.ACCEPTED]
    if point.side == "accepted" and any(way.taken for way in here):
        kinds += [Kind.HANDLED, Kind.FORWARDED, Kind.MIRRORED]
    rows = events.where((F.col("hop") == point.name) & F.col("kind").isin(*map(int, kinds)))
    return rows.groupBy("session", "message").agg(F.count("*").alias("copies"))


def compare(sent: DataFrame, arrived: DataFrame, sender: Point, receiver: Point, each: int) -> Comparison:
    """Two points by the ids seen there."""
    of = sent.select("session", "message", F.lit(1).alias("sent"))
    to = arrived.select("session", "message", "copies")
    both = of.join(to, ["session", "message"], "full")
    both = both.withColumn("sent", F.coalesce("sent", F.lit(0))).withColumn("copies", F.coalesce("copies", F.lit(0)))
    was_sent, came = F.col("sent") == 1, F.col("copies") > 0
    copies = F.when(was_sent, F.col("copies")).otherwise(0)
    row = both.agg(
        F.count_if(was_sent).alias("sent"),
        F.count_if(was_sent & came).alias("unique"),
        F.coalesce(F.sum(copies), F.lit(0)).alias("received"),
        F.coalesce(F.sum(copies * copies), F.lit(0)).alias("squares"),
        F.count_if(~was_sent).alias("surplus"),
    ).first()
    assert row is not None
    counts = Counts(row["sent"], row["unique"], row["received"], row["squares"])
    missing = _ids(both.where(was_sent & ~came), each) if row["unique"] < row["sent"] else ()
    surplus = _ids(both.where(~was_sent), each) if row["surplus"] else ()
    return Comparison(sender, receiver, counts, row["surplus"], missing, surplus)


def _ids(rows: DataFrame, each: int) -> tuple[str, ...]:
    found = rows.select("message").orderBy("message").limit(each).collect()
    return tuple(row["message"] for row in found)
