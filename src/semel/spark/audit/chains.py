"""Hops in a row, from the first sender to the last receiver; and any two points beside each other.

The figures of the hops predict those of the whole: R is their product. What is measured end to end, by the ids of the
messages, may be less. The rest was lost inside the workers between the hops, where no hop sees it. What a worker
says to have forwarded, and nobody saw again, is known by id (`lost_inside`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import mul
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from semel.calculus.mode import DeliveryMode, MessageCounts
from semel.errors import InputError
from semel.kernel.ledger import Kind, hash_id
from semel.spark.audit import identity
from semel.spark.audit.figures import HopReading, LedgerHop, sent_within
from semel.spark.audit.result import CellFigures, Chain, LostInside

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

CHAINS_MAX = 64
"""A web of hops has more ways through it than anybody reads."""
BITS = 62


def chains_of(hops: Sequence[LedgerHop]) -> list[tuple[LedgerHop, ...]]:
    """All ways of two hops or more that cannot be made longer, within one pipeline. No hop comes twice in one."""
    found: list[tuple[LedgerHop, ...]] = []
    for pipeline in sorted({hop.pipeline for hop in hops}):
        mine = [hop for hop in hops if hop.pipeline == pipeline and hop.receiver]
        reached = {hop.receiver for hop in mine if hop.receiver != hop.sender}
        begins = [hop for hop in mine if hop.sender not in reached]
        for hop in begins:
            found += _onward((hop,), mine)
    return [chain for chain in found if len(chain) > 1][:CHAINS_MAX]


def _onward(chain: tuple[LedgerHop, ...], hops: Sequence[LedgerHop]) -> list[tuple[LedgerHop, ...]]:
    points = {hop.sender for hop in chain}
    onward = [hop for hop in hops if hop.sender == chain[-1].receiver and hop.receiver not in points]
    if not onward:
        return [chain]
    return [longer for hop in onward for longer in _onward((*chain, hop), hops)][:CHAINS_MAX]


def predicted(chain: Sequence[LedgerHop], totals: Iterable[CellFigures]) -> float | None:
    """The product of the hops' own figures; None where one of them has none."""
    modes = []
    for hop in chain:
        counts = [cell.delivery for cell in totals if (cell.pipeline, cell.hop) == (hop.pipeline, hop.hop)]
        sent, unique = sum(count.sent for count in counts), sum(count.unique for count in counts)
        received = sum(count.received for count in counts)
        reliability = MessageCounts(sent, unique, received).reliability
        if reliability is None:
            return None
        modes.append(DeliveryMode(reliability, unique / received if received else 1.0))
    return reduce(mul, modes).reliability


@dataclass(frozen=True, slots=True)
class ChainStay:
    """A worker between hops: what it took over `into` and says it has forwarded must be seen on one of `onward`, or
    have a receipt. A receipt says that the worker gave its outputs ids of their own."""

    into: LedgerHop
    onward: tuple[LedgerHop, ...]
    receipts: HopReading | None = None

    def inside(self, lost: int) -> LostInside:
        return LostInside(self.into.pipeline, self.into.hop, tuple(hop.hop for hop in self.onward), lost)


def receipts_of(point: str) -> str:
    """The stream in which a worker keeps the ids of inputs that left it under other ids."""
    return f"{point}/receipts"


def stays_of(
    chains: Sequence[Sequence[LedgerHop]], hops: Sequence[LedgerHop], streams: Collection[str]
) -> list[ChainStay]:
    """Where messages of these chains stay on their way: all hops that lead on count, not only those of one chain."""
    into = {hop.code: hop for chain in chains for hop in chain[:-1] if hop.has(Kind.FORWARDED)}
    found = []
    for hop in into.values():
        onward = tuple(next for next in hops if (next.pipeline, next.sender) == (hop.pipeline, hop.receiver))
        found.append(ChainStay(hop, onward, _receipts_way(hop) if receipts_of(hop.receiver) in streams else None))
    return found


def _receipts_way(hop: LedgerHop) -> HopReading:
    """Receipts are records of a stream, so they are read like what is sent on a hop that begins there."""
    stream = receipts_of(hop.receiver)
    return HopReading(
        LedgerHop(hop.pipeline, f"{stream}>", hash_id(f"{hop.pipeline}\n{hop.hop}\n{stream}"), 0, 0), implied=True
    )


@dataclass(frozen=True, slots=True)
class JudgedSpan:
    """When it is judged, and which messages count: by the time of their first send."""

    now: int
    deadline_us: int
    since: int | None = None
    until: int | None = None

    @property
    def settled_at(self) -> int:
        return self.now - self.deadline_us


@dataclass(frozen=True, slots=True)
class Paths:
    """Messages sent and arrived of each chain, and those lost in each stay, in the order that they were asked for."""

    arrived: tuple[tuple[int, int], ...] = ()
    lost: tuple[int, ...] = ()

    def __add__(self, other: Paths) -> Paths:
        """The sum of two counts of the same chains over different messages."""
        if not (self.arrived and other.arrived):
            return self if self.arrived else other
        arrived = tuple((a + c, b + d) for (a, b), (c, d) in zip(self.arrived, other.arrived, strict=True))
        return Paths(arrived, tuple(a + b for a, b in zip(self.lost, other.lost, strict=True)))

    def __neg__(self) -> Paths:
        return Paths(tuple((-sent, -arrived) for sent, arrived in self.arrived), tuple(-lost for lost in self.lost))


def measure(
    rows: DataFrame,
    chains: Sequence[Sequence[LedgerHop]],
    stays: Sequence[ChainStay],
    span: JudgedSpan,
    *,
    sent_on: Collection[int] | None = None,
) -> Paths:
    """From one row per message and hop, of all times. Messages whose time at the first hop is not over yet do not
    count, unless they have come through already. `sent_on` are the hops of which it is known what was sent; None says
    that no id is in two sessions."""
    arrived: list[tuple[int, int]] = []
    lost: list[int] = []
    for first in range(0, max(len(chains), len(stays)), BITS):
        some, of = chains[first : first + BITS], stays[first : first + BITS]
        counts = _counts(rows, some, of, span, sent_on)
        arrived += [
            (
                sum(n for begun, _, _, n in counts if begun >> at & 1),
                sum(n for begun, done, _, n in counts if begun & done & 1 << at),
            )
            for at in range(len(some))
        ]
        lost += [sum(n for _, _, gone, n in counts if gone >> at & 1) for at in range(len(of))]
    return Paths(tuple(arrived), tuple(lost))


def figures_of(
    chains: Sequence[Sequence[LedgerHop]], stays: Sequence[ChainStay], paths: Paths, totals: Sequence[CellFigures]
) -> list[Chain]:
    inside = {stay.into.code: lost for stay, lost in zip(stays, paths.lost, strict=True)}
    return [
        Chain(
            chain[0].pipeline,
            tuple(hop.hop for hop in chain),
            sent,
            arrived,
            predicted(chain, totals),
            arrived / sent if sent else None,
            sum(inside.get(hop.code, 0) for hop in chain[:-1]),
        )
        for chain, (sent, arrived) in zip(chains, paths.arrived, strict=True)
    ]


def _counts(
    rows: DataFrame,
    chains: Sequence[Sequence[LedgerHop]],
    stays: Sequence[ChainStay],
    span: JudgedSpan,
    sent_on: Collection[int] | None,
) -> list[tuple[int, int, int, int]]:
    """A bit for each chain: it was sent at its beginning, it was taken at its end; and for each stay: it was lost
    there. Few combinations occur."""
    sent = (F.col("sends") > 0) & sent_within(F.col("when"), span.since, span.until)
    first = [(chain[0].code, 1 << at) for at, chain in enumerate(chains)]
    last = [(chain[-1].code, 1 << at) for at, chain in enumerate(chains)]
    masks = {
        "sent": _mask(first, sent),
        "settled": _mask(first, sent & (F.col("first_sent") <= F.lit(span.settled_at))),
        "done": _mask(last, F.col("held")),
        **_stay_masks(stays, span),
    }
    ends = {code for code, _ in (*first, *last)} | _codes(stays)
    each = _by_message(rows, ends, masks)
    if sent_on is not None:
        each = _met_again(each, sum(1 << at for at, chain in enumerate(chains) if chain[0].code in sent_on))
    counted = F.col("settled").bitwiseOR(F.col("sent").bitwiseAND(F.col("done"))).alias("begun")
    n = F.lit(1) if sent_on is None else F.col("n")
    found = each.select(counted, "done", _gone().alias("gone"), n.alias("n"))
    counts = found.groupBy("begun", "done", "gone").agg(F.sum("n").alias("n")).collect()
    return [(row["begun"], row["done"], row["gone"], row["n"]) for row in counts]


_MASKS = ("sent", "settled", "done", "left", "passed", "seen")


def _met_again(each: DataFrame, begins: int) -> DataFrame:
    """A worker may give what it passes on another session. What was not seen again in its own is looked for by its id,
    among what came from nowhere in another. Only these are told apart; the others are counted (`n`). `begins` has a bit
    for each chain that has anything sent at its beginning."""
    arrived = _without(F.col("done"), F.col("sent")).bitwiseAND(F.lit(begins).cast("long"))
    seen = _without(F.col("seen"), F.col("passed"))
    missing = _without(F.col("sent"), F.col("done")).bitwiseOR(_gone())
    is_loose = missing.bitwiseOR(arrived).bitwiseOR(seen) != 0
    key = F.when(is_loose, F.col("key")).alias("_key")
    session = F.when(is_loose, F.col("session")).alias("_session")
    few = each.groupBy(key, session, *_MASKS).agg(F.count("*").alias("n"))
    of_id = Window.partitionBy("_key")
    return few.withColumns(
        {
            "done": F.col("done").bitwiseOR(F.col("sent").bitwiseAND(F.bit_or(arrived).over(of_id))),
            "seen": F.col("seen").bitwiseOR(F.col("left").bitwiseAND(F.bit_or(seen).over(of_id))),
        }
    )


def _without(bits: Column, others: Column) -> Column:
    return bits.bitwiseAND(F.bitwise_not(others))


def _by_message(rows: DataFrame, codes: Collection[int], masks: Mapping[str, Column]) -> DataFrame:
    here = rows.where(F.col("code").isin(*codes)).groupBy("session", "key")
    return here.agg(*(F.bit_or(mask).alias(name) for name, mask in masks.items()))


def _codes(stays: Sequence[ChainStay]) -> set[int]:
    hops = {hop.code for stay in stays for hop in (stay.into, *stay.onward)}
    return hops | {stay.receipts.hop.code for stay in stays if stay.receipts is not None}


def _stay_masks(stays: Sequence[ChainStay], span: JudgedSpan) -> dict[str, Column]:
    onward = [
        (hop.code, 1 << at)
        for at, stay in enumerate(stays)
        for hop in (*stay.onward, *([stay.receipts.hop] if stay.receipts is not None else []))
    ]
    into = [(stay.into.code, 1 << at) for at, stay in enumerate(stays)]
    return {
        "left": _mask(into, _left(span)),
        "passed": _mask(into, F.lit(True)),
        "seen": _mask(onward, F.lit(True)),
    }


def _left(span: JudgedSpan) -> Column:
    """The worker has let go of it as forwarded and in no other way, and it has had the time to be seen again."""
    only = (F.col("forwarded") > 0) & (F.col("ended") <= F.col("forwarded")) & (F.col("dropped") == 0)
    since = F.coalesce("first_accepted", "first_at")
    return only & (since <= F.lit(span.settled_at)) & sent_within(F.col("when"), span.since, span.until)


def _gone() -> Column:
    return _without(F.col("left"), F.col("seen"))


def lost_inside(rows: DataFrame, stays: Sequence[ChainStay], span: JudgedSpan) -> DataFrame:
    """The rows of the messages lost in these stays, at the hop that brought them. At most 62 stays."""
    each = _by_message(rows, _codes(stays), _stay_masks(stays, span))
    elsewhere = F.bit_or(_without(F.col("seen"), F.col("passed"))).over(Window.partitionBy("key"))
    gone = each.select("session", "key", _without(_gone(), elsewhere).alias("gone")).where(F.col("gone") != 0)
    into = rows.where(F.col("code").isin(*(stay.into.code for stay in stays)))
    own = _mask([(stay.into.code, 1 << at) for at, stay in enumerate(stays)], F.lit(True))
    return into.join(gone, ["session", "key"]).where(own.bitwiseAND(F.col("gone")) != 0)


def _mask(bits: Sequence[tuple[int, int]], holds: Column) -> Column:
    """The bits of a row's hop, where `holds`."""
    masks: dict[int, int] = {}
    for code, bit in bits:
        masks[code] = masks.get(code, 0) | bit
    column: Column = F.lit(0).cast("long")
    for code, mask in masks.items():
        column = F.when(holds & (F.col("code") == code), F.lit(mask).cast("long")).otherwise(column)
    return column


# -- any two points


@dataclass(frozen=True, slots=True)
class ChainPoint:
    """Where messages are seen: at the sending or the receiving end of a hop, or in a stream."""

    name: str
    side: str

    @classmethod
    def parse(cls, text: str, side: str) -> ChainPoint:
        """`sent:a>b`, `accepted:a>b`, `stream:name`; a hop alone is meant at `side`, a name alone is a stream."""
        given, colon, name = text.partition(":")
        if colon and given in ("sent", "accepted", "stream"):
            return cls(name, given)
        return cls(text, side if ">" in text else "stream")

    def __str__(self) -> str:
        return f"{self.side}:{self.name}"


@dataclass(frozen=True, slots=True)
class ChainComparison:
    """What was at the one point and what of it was at the other. `missing` and `surplus` are ids, the first of them."""

    sender: ChainPoint
    receiver: ChainPoint
    counts: MessageCounts
    surplus_count: int
    missing: tuple[str, ...] = ()
    surplus: tuple[str, ...] = ()


def seen_at(point: ChainPoint, events: DataFrame, records: DataFrame, ways: Sequence[HopReading]) -> DataFrame:
    """The ids of the messages that were seen there, with the number of copies."""
    if point.side == "stream":
        rows = records.where(F.col("stream") == point.name)
        return rows.groupBy("session", "message").agg(F.count("*").alias("copies"))
    here = [way for way in ways if way.hop.hop == point.name]
    if not here:
        known = ", ".join(sorted({way.hop.hop for way in ways})) or "none"
        raise InputError(f"there is no hop {point.name!r} in these sources", fix=f"the hops are: {known}")
    if point.side == "sent" and any(way.implied for way in here):
        return seen_at(ChainPoint(here[0].hop.sender, "stream"), events, records, ways)
    kinds = [Kind.SENT, Kind.RESENT] if point.side == "sent" else [Kind.ACCEPTED]
    if point.side == "accepted" and any(way.taken for way in here):
        kinds += [Kind.HANDLED, Kind.FORWARDED, Kind.MIRRORED]
    rows = events.where((F.col("hop") == point.name) & F.col("kind").isin(*map(int, kinds)))
    return rows.groupBy("session", "message").agg(F.count("*").alias("copies"))


def compare(
    sent: DataFrame, arrived: DataFrame, sender: ChainPoint, receiver: ChainPoint, each: int
) -> ChainComparison:
    """Two points by the ids seen there, and by sessions that are known at both."""
    of = sent.select("session", "message", F.lit(1).alias("sent"), F.lit(0).cast("long").alias("copies"))
    to = arrived.select("session", "message", F.lit(0).alias("sent"), "copies")
    seen = of.unionByName(to).select(
        F.lit(0).alias("scope"), F.col("message").alias("key"), "session", (F.col("sent") > 0).alias("sent"),
        (F.col("copies") > 0).alias("arrived"), (F.col("session") != F.col("message")).alias("named"), "copies",
    )  # fmt: skip
    of_message = identity.with_homes(seen).groupBy(F.col("key").alias("message"), "home")
    both = of_message.agg(F.max(F.col("sent").cast("int")).alias("sent"), F.sum("copies").alias("copies"))
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
    counts = MessageCounts(row["sent"], row["unique"], row["received"], row["squares"])
    missing = _ids(both.where(was_sent & ~came), each) if row["unique"] < row["sent"] else ()
    surplus = _ids(both.where(~was_sent), each) if row["surplus"] else ()
    return ChainComparison(sender, receiver, counts, row["surplus"], missing, surplus)


def _ids(rows: DataFrame, each: int) -> tuple[str, ...]:
    found = rows.select("message").orderBy("message").limit(each).collect()
    return tuple(row["message"] for row in found)
