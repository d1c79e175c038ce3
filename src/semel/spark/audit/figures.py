"""The figures of every hop in one pass over the events.

    events --(exchange by session)--> one row per message and hop --> order within the session --> sums per window

All that has to meet has one session in common, so there is one exchange, and none at all where the events lie in
buckets of sessions already. A message's row is made of counts, minima and maxima only: rows of parts of the events can
be put together and summed up again (`merged`), which late data and streams build on.

Hops and messages are told apart by 64-bit hashes of their names. Lists of messages go by the names themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.sql import Window
from pyspark.sql import functions as F

from semel.kernel.ledger import ENDS, Kind
from semel.spark.audit import expand, sketch
from semel.spark.audit.expand import Ranges
from semel.spark.audit.result import CellFigures, Latency, WindowState

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row

RECORD = 0
"""The kind of a stream's own record, where compacted days keep the index among the events. Its hop is the stream."""

_SENT = (Kind.SENT, Kind.RESENT)
TAKEN = (Kind.HANDLED, Kind.FORWARDED, Kind.MIRRORED)
"""What a receiver that writes no `accepted` has written instead."""
_ENDED = frozenset(ENDS - {Kind.DROPPED})
_RANKS = (0.5, 0.9, 0.99, 0.999)
_NEVER = 2**63 - 1


class LedgerHop(msgspec.Struct, frozen=True):
    """A hop as the ledger knows it. `code` stands for it in the rows; `kinds` has a bit for each kind of event.
    `lanes` are the streams that its acceptances stand in, two of them at most, and "" for the ledger itself. Offsets of
    two streams have no order among each other."""

    pipeline: str
    hop: str
    code: int
    kinds: int
    events: int
    lanes: tuple[str, ...] = ()

    def has(self, *kinds: Kind) -> bool:
        return any(self.kinds >> kind & 1 for kind in kinds)

    @property
    def sender(self) -> str:
        return self.hop.partition(">")[0]

    @property
    def receiver(self) -> str:
        return self.hop.partition(">")[2]

    @property
    def is_fanned(self) -> bool:
        """From a hub to its subscribers: as `expand.is_fanned`."""
        return self.hop.startswith("hub/") and self.receiver == "sub"

    @property
    def is_inbox(self) -> bool:
        """From an endpoint to its handlers. The stream of its name is one way into it among others."""
        return self.hop.startswith("inbox/") and self.receiver == "handler"


@dataclass(frozen=True, slots=True)
class HopReading:
    """A hop as the audit reads it.

    `implied`: nobody writes down what is sent, and the sender is a stream, so its records are what is sent.
    `unseen`: nobody writes down what is sent, and nothing stands for it. What arrives there is no phantom.
    `taken`: the receiver writes down only what it has handled, so that is its acceptance.
    `shared`: other hops end at the same receiver, which may have a message from any of them.
    `waits_from`: the receiver has yet to take what was sent from this time on, so that is in flight.
    """

    hop: LedgerHop
    implied: bool = False
    unseen: bool = False
    taken: bool = False
    shared: bool = False
    waits_from: int | None = None


@dataclass(frozen=True, slots=True)
class Survey:
    """What there is, before anything is counted: hops, ranges to expand, and by pipeline, hop and kind what was
    metered, which is counted without ids."""

    hops: tuple[LedgerHop, ...] = ()
    ranges: Ranges = field(default_factory=Ranges)
    metered: tuple[tuple[str, str, Kind, int], ...] = ()


def survey(rows: DataFrame) -> Survey:
    """Look through rows of the ledger, or through events. Only columns with few values are read."""
    of_ledger = "first" in rows.columns
    level = expand.level() if of_ledger else F.lit(None).cast("int")
    metered = expand.is_metered() if of_ledger else F.lit(False)
    cells = (
        rows.where(F.col("kind") != RECORD)
        .groupBy(
            "pipeline",
            "hop",
            "kind",
            F.xxhash64("pipeline", "hop").alias("code"),
            metered.alias("metered"),
            level.alias("level"),
        )
        .agg(
            F.count("*").alias("rows"),
            (F.sum("n") if of_ledger else F.count("*")).alias("n"),
            F.min(F.coalesce("stream", F.lit(""))).alias("lane"),
            F.max(F.coalesce("stream", F.lit(""))).alias("last_lane"),
        )
        .collect()
    )
    known = [cell for cell in cells if not cell["metered"]]
    hops = [
        LedgerHop(cell["pipeline"], cell["hop"], cell["code"], 1 << cell["kind"], cell["n"], _lanes_of(cell))
        for cell in known
    ]
    in_ranges = [cell for cell in known if cell["level"] is not None]
    levels = sorted({cell["level"] for cell in in_ranges})
    counted: dict[tuple[str, str, Kind], int] = {}
    for cell in cells:
        if cell["metered"]:
            key = cell["pipeline"], cell["hop"], Kind(cell["kind"])
            counted[key] = counted.get(key, 0) + cell["n"]
    return Survey(
        tuple(together(hops)),
        Ranges(tuple(levels), sum(cell["rows"] for cell in in_ranges)),
        tuple((*key, n) for key, n in sorted(counted.items())),
    )


def _lanes_of(cell: Row) -> tuple[str, ...]:
    is_acceptance = cell["kind"] in (Kind.ACCEPTED, *TAKEN)
    return tuple(sorted({cell["lane"], cell["last_lane"]})) if is_acceptance else ()


def together(hops: Iterable[LedgerHop]) -> list[LedgerHop]:
    """Several surveys as one."""
    found: dict[int, LedgerHop] = {}
    for hop in hops:
        known = found.get(hop.code)
        kinds, events, lanes = (known.kinds, known.events, known.lanes) if known else (0, 0, ())
        both = tuple(sorted({*lanes, *hop.lanes})[:2])
        found[hop.code] = LedgerHop(hop.pipeline, hop.hop, hop.code, kinds | hop.kinds, events + hop.events, both)
    return sorted(found.values(), key=lambda hop: (hop.pipeline, hop.hop))


def ways(hops: Sequence[LedgerHop], streams: Iterable[str]) -> list[HopReading]:
    """How each hop is to be read. What has only operators' actions on it is none."""
    real = [hop for hop in hops if hop.kinds & ~(1 << Kind.ACTION)]
    known = set(streams)
    ends: dict[tuple[str, str], int] = {}
    for hop in real:
        ends[hop.pipeline, hop.receiver] = ends.get((hop.pipeline, hop.receiver), 0) + 1
    found = []
    for hop in real:
        if hop.is_fanned:
            # what a subscriber has acknowledged is read as handled
            found.append(HopReading(msgspec.structs.replace(hop, kinds=hop.kinds | 1 << Kind.HANDLED), taken=True))
            continue
        silent = not hop.has(*_SENT)
        found.append(
            HopReading(
                hop,
                implied=silent and hop.sender in known and not hop.is_inbox,
                unseen=silent and (hop.sender not in known or hop.is_inbox),
                taken=not hop.has(Kind.ACCEPTED) and hop.has(*TAKEN),
                shared=ends[hop.pipeline, hop.receiver] > 1,
            )
        )
    return found


# -- from events to one row per message


def facts(events: DataFrame, ways: Sequence[HopReading], *, exact: bool = False, stores: int = 1) -> DataFrame:
    """What the figures need of an event. Records among the events become what was sent on the hops that have nothing
    else to say so. Compacted events bring their hashes along.

    A stream with one such hop takes no second look at the events: a union would cost the order that they lie in."""
    first, *more = _layers(ways)
    rows = _facts(events, first, exact, stores)
    for layer in more:
        rows = rows.unionByName(_facts(events.where(F.col("kind") == RECORD), layer, exact, stores))
    return rows


def _layers(ways: Iterable[HopReading]) -> list[dict[str, int]]:
    """The silent hops by the stream that they begin at, as many times as a stream has several."""
    layers: list[dict[str, int]] = [{}]
    for way in ways:
        if way.implied:
            free = next((layer for layer in layers if way.hop.sender not in layer), None)
            if free is None:
                layers.append(free := {})
            free[way.hop.sender] = way.hop.code
    return layers


def _facts(events: DataFrame, silent: dict[str, int], exact: bool, stores: int) -> DataFrame:
    compacted = "code" in events.columns
    kind, hop = F.col("kind").cast("int"), F.col("hop")
    code = F.col("code") if compacted else F.xxhash64("pipeline", "hop")
    key = F.col("key") if compacted else F.xxhash64("message")
    wanted = ~kind.isin(RECORD, int(Kind.ACTION))
    for stream, implied in silent.items():
        record = (kind == RECORD) & (hop == stream)
        wanted, code = wanted | record, F.when(record, F.lit(implied)).otherwise(code)
    return events.where(wanted).select(
        code.alias("code"),
        "session",
        (F.col("message") if exact else key).alias("key"),
        (F.when(kind == RECORD, F.lit(int(Kind.SENT))).otherwise(kind) if silent else kind).alias("kind"),
        "idx",
        "ord",
        F.unix_micros("at").alias("at"),
        *([F.xxhash64("store", "stream").alias("store")] if stores > 1 else []),
    )


COUNTS = ("sends", "accepted", "duplicates", "rejected", "ended", "forwarded", "dropped", "replayed", "confirmed")
_FIRSTS = ("first_sent", "first_accepted", "first_at", "ord")
MESSAGE = ("code", "session", "key", *COUNTS, *_FIRSTS, "idx", "store")


def messages(rows: DataFrame, ways: Sequence[HopReading], stores: int = 1) -> DataFrame:
    """One row for each message on each hop. `store` is where it was accepted first."""
    kind = F.col("kind")
    accepted = kind == int(Kind.ACCEPTED)
    taken = [way.hop.code for way in ways if way.taken]
    if taken:
        accepted = accepted | (F.col("code").isin(*taken) & kind.isin(*map(int, TAKEN)))
    sent = kind.isin(*map(int, _SENT))
    place = F.when(accepted, F.col("ord"))
    kinds = {kind for kind in Kind for way in ways if way.hop.has(kind)}
    counts = {
        "sends": _count(sent),
        "accepted": _count(accepted),
        "duplicates": _count(kind == int(Kind.DUPLICATE)) if Kind.DUPLICATE in kinds else None,
        "rejected": _count(kind == int(Kind.REJECTED)) if Kind.REJECTED in kinds else None,
        "ended": _count(kind.isin(*map(int, sorted(_ENDED)))) if kinds & _ENDED else None,
        "forwarded": _count(kind == int(Kind.FORWARDED)) if Kind.FORWARDED in kinds else None,
        "dropped": _count(kind == int(Kind.DROPPED)) if Kind.DROPPED in kinds else None,
        "replayed": _count(kind == int(Kind.REPLAYED)) if Kind.REPLAYED in kinds else None,
        "confirmed": _count(kind == int(Kind.CONFIRMED)) if Kind.CONFIRMED in kinds else None,
    }
    found = rows.groupBy("code", "session", "key").agg(
        *(column.alias(name) for name, column in counts.items() if column is not None),
        F.min(F.when(sent, F.col("at"))).alias("first_sent"),
        F.min(F.when(accepted, F.col("at"))).alias("first_accepted"),
        F.min("at").alias("first_at"),
        F.min(place).alias("ord"),
        F.max("idx").alias("idx"),
        *([F.min_by("store", place).alias("store")] if stores > 1 else []),
    )
    # what occurs nowhere is a constant: Spark then carries it through neither the sort nor the sums
    constants = [name for name, column in counts.items() if column is None] + ([] if stores > 1 else ["store"])
    return found.select("*", *(F.lit(0).cast("long").alias(name) for name in constants)).select(*MESSAGE)


def merged(rows: DataFrame) -> DataFrame:
    """Rows of messages from several parts of the events, put together."""
    return rows.groupBy("code", "session", "key").agg(
        *(F.sum(name).alias(name) for name in COUNTS),
        *(F.min(name).alias(name) for name in _FIRSTS),
        F.max("idx").alias("idx"),
        F.min_by("store", "ord").alias("store"),
    )


def _count(condition: Column) -> Column:
    return F.count(F.when(condition, F.lit(1)))


# -- what became of each message


def judged(
    rows: DataFrame,
    ways: Sequence[HopReading],
    *,
    now: int,
    deadline_us: int,
    since: int | None = None,
    until: int | None = None,
    stores: int = 1,
    waiting: DataFrame | None = None,
) -> DataFrame:
    """Each message with its verdicts: the columns that the sums and the findings are made of. `since` and `until`
    choose among the messages by when they were sent; what became of them is looked for in all events. `waiting` are
    receivers that are there, as `Receivers.waiting` has them."""
    rows = _among_hops(rows, ways)
    rows = _in_order(rows, stores)
    sent, held = F.col("sends") > 0, F.col("held")
    when = F.coalesce("first_sent", "first_at")
    settled = when <= F.lit(now - deadline_us)
    for way in ways:
        if way.waits_from is not None:
            settled = settled & ((F.col("code") != way.hop.code) | (when < F.lit(way.waits_from)))
    if waiting is not None:
        rows = rows.join(F.broadcast(waiting), ["code", "session"], "left")
        settled = settled & F.coalesce(F.col("idx") <= F.col("told"), F.lit(True))
    ended = (F.col("ended") > 0) | (F.col("dropped") > 0)
    arrivals = F.col("accepted") + F.col("duplicates") + F.col("rejected")
    unseen = [way.hop.code for way in ways if way.unseen]
    owned = ~F.col("code").isin(*unseen) if unseen else F.lit(True)
    answered = ended | held | (F.col("rejected") > 0)
    rows = rows.select(
        "*",
        when.alias("when"),
        arrivals.alias("arrivals"),
        (sent & ~held & ~ended & settled).alias("lost"),
        (sent & ~held & ended).alias("given_up"),
        (sent & ~held & ~ended & ~settled).alias("in_flight"),
        (~sent & (arrivals > 0) & settled & owned).alias("phantom"),
        (
            ((F.col("accepted") > 0) & (F.col("ended") > F.col("accepted") + F.col("replayed")))
            | ((F.col("confirmed") > 0) & settled & ~answered)
        ).alias("unbalanced"),
    ).drop("told")
    return rows.where(sent_within(F.col("when"), since, until))


def sent_within(when: Column, since: int | None, until: int | None) -> Column:
    """`until` itself is the first moment that does not count, so that stretches of time can be put side by side."""
    within: Column = F.lit(True)
    if since is not None:
        within = within & (when >= F.lit(since))
    if until is not None:
        within = within & (when < F.lit(until))
    return within


def _among_hops(rows: DataFrame, ways: Sequence[HopReading]) -> DataFrame:
    """`held`: the receiver has it. `copies` are those it took beyond the first, over whichever of its hops that came.

    A duplicate proves nothing by itself. Where a receiver has several hops, it may have taken the message from another
    one; then this hop did its work as well.
    """
    accepted = F.col("accepted")
    own = rows.withColumn("held", accepted > 0).withColumn("copies", F.greatest(accepted - 1, F.lit(0)))
    shared = [way.hop for way in ways if way.shared]
    if not shared:
        return own
    receiver: Column = F.col("code")
    names = {(hop.pipeline, hop.receiver): hop.code for hop in reversed(shared)}
    for hop in shared:
        receiver = F.when(F.col("code") == hop.code, F.lit(names[hop.pipeline, hop.receiver])).otherwise(receiver)
    of = Window.partitionBy("key", "session", "_receiver")
    first = of.orderBy("_since", "code")
    return (
        rows.withColumn("_receiver", receiver)
        .withColumn("_since", F.coalesce("first_accepted", F.lit(_NEVER)))
        .withColumn("_rank", F.row_number().over(first))
        .withColumn("_anywhere", F.max("accepted").over(of))
        .withColumn("held", (accepted > 0) | ((F.col("duplicates") > 0) & (F.col("_anywhere") > 0)))
        .withColumn("copies", accepted - F.when((F.col("_rank") == 1) & (accepted > 0), 1).otherwise(0))
        .drop("_receiver", "_since", "_rank", "_anywhere")
    )


def _in_order(rows: DataFrame, stores: int) -> DataFrame:
    """`disorder`: it was accepted after a later message of its session. Copies do not count, only the first of each.

    The hash of hop and session comes first in the sort, because it tells most rows apart at once."""
    group = F.xxhash64("code", "session", "store") if stores > 1 else F.xxhash64("code", "session")
    before = Window.partitionBy("_group", "session").orderBy("ord").rowsBetween(Window.unboundedPreceding, -1)
    place = F.when(F.col("accepted") > 0, F.col("idx"))
    return (
        rows.withColumn("_group", group)
        .withColumn("highest", F.max(place).over(before))
        .withColumn("disorder", F.coalesce(place < F.col("highest"), F.lit(False)))
        .drop("_group")
    )


# -- sums

SUMS = (
    "sent", "attempts", "arrivals", "arrivals_unique", "arrivals_squares", "accepted", "accepted_unique",
    "accepted_squares", "duplicates", "rejected", "lost", "doubled", "disorder", "phantoms", "given_up", "in_flight",
    "ended", "replayed", "open", "unbalanced", "unsettled",
)  # fmt: skip


def windows(
    rows: DataFrame,
    *,
    window_us: int,
    deadline_us: int,
    now: int,
    session_class: str | None,
    more: Mapping[str, Column] | None = None,
) -> DataFrame:
    """Sums per hop, session class and window, of so many `messages`; `more` is what else to count. `sketch` counts the
    latencies by bin: see `semel.spark.audit.sketch`.

    First by bin of latency as well, so that all rows are summed up in compiled code; then the little that is left.
    """
    sent, held = F.col("sends") > 0, F.col("held")
    counted = sent & ~F.col("in_flight")
    took = F.greatest(F.col("accepted"), held.cast("long"))
    closed = F.col("accepted") > 0
    left = F.greatest(F.col("accepted") + F.col("replayed") - F.col("ended"), F.lit(0))
    latency = F.when(sent & closed, F.col("first_accepted") - F.col("first_sent"))
    forward = F.when(latency >= 0, latency)
    backward = F.when(latency < 0, -latency)
    sums = {
        "sent": sent, "attempts": F.when(sent, F.col("sends")),
        "arrivals": F.when(counted, F.col("arrivals")), "arrivals_unique": counted & (F.col("arrivals") > 0),
        "arrivals_squares": F.when(counted, F.col("arrivals") * F.col("arrivals")),
        "accepted": F.when(counted, took), "accepted_unique": counted & held,
        "accepted_squares": F.when(counted, took * took),
        "duplicates": F.when(counted, F.col("duplicates")), "rejected": F.when(counted, F.col("rejected")),
        "lost": F.col("lost"), "doubled": F.col("copies"), "disorder": F.col("disorder"),
        "phantoms": F.col("phantom"), "given_up": F.col("given_up"), "in_flight": F.col("in_flight"),
        "ended": F.when(closed, F.col("ended")), "replayed": F.when(closed, F.col("replayed")),
        "open": F.when(closed, left), "unbalanced": F.col("unbalanced"),
        "unsettled": sent & (F.col("first_sent") > F.lit(now - deadline_us)), **(more or {}),
    }  # fmt: skip
    of_class = F.regexp_extract("session", session_class, 1) if session_class else F.lit("")
    start = F.col("when") - F.pmod(F.col("when"), F.lit(window_us).cast("long"))
    binned = rows.groupBy(
        "code", of_class.alias("session_class"), start.alias("window"), _bin(forward).alias("bin")
    ).agg(
        *(F.coalesce(F.sum(column.cast("long")), F.lit(0)).alias(name) for name, column in sums.items()),
        F.count(F.lit(1)).alias("messages"),
        F.count(forward).alias("latencies"),
        F.max(forward).alias("latency_max"),
        F.count(backward).alias("skewed"),
        F.max(backward).alias("skew"),
    )
    entry = F.when(F.col("bin").isNotNull(), F.struct("bin", "latencies"))
    return binned.groupBy("code", "session_class", "window").agg(
        *(F.sum(name).alias(name) for name in (*sums, "messages", "latencies", "skewed")),
        F.max("latency_max").alias("latency_max"),
        F.max("skew").alias("skew"),
        F.map_from_entries(F.collect_list(entry)).alias("sketch"),
    )


def _bin(latency: Column) -> Column:
    """As `sketch.bin_of`."""
    above = F.floor(F.ln(latency.cast("double")) / F.lit(sketch.LOG_RATIO)) + 1
    return F.when(latency >= 1, above).when(latency == 0, F.lit(0)).cast("int")


def totals(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The windows of each hop and session class as one, with `window` None."""
    of: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for row in rows:
        of.setdefault((row["code"], row["session_class"]), []).append(row)
    return [
        {
            "code": code,
            "session_class": session_class,
            "window": None,
            **{name: sum(row[name] for row in found) for name in (*SUMS, "latencies", "skewed")},
            **{name: max((row[name] or 0 for row in found), default=0) for name in ("latency_max", "skew")},
            "sketch": sketch.merged(row["sketch"] for row in found),
        }
        for (code, session_class), found in of.items()
    ]


def with_ranks(rows: DataFrame) -> DataFrame:
    """The sketches as percentiles, for tables."""
    ranks = F.udf(lambda counts: sketch.percentiles(counts, _RANKS), "array<long>")
    return rows.withColumn("ranks", ranks("sketch"))


def figures(row: dict[str, Any], ways: dict[int, HopReading]) -> CellFigures:
    """One row of `windows` or `totals` as a value."""
    hop = ways[row["code"]].hop
    is_open = row["unsettled"] or row["in_flight"]
    state = WindowState.OPEN if is_open else WindowState.SETTLED if row["sent"] else WindowState.EMPTY
    counts = {name: row[name] for name in SUMS if name != "unsettled"}
    return CellFigures(
        hop.pipeline, hop.hop, row["session_class"], row["window"], state, **counts, latency=_latency(row)
    )


def _latency(row: dict[str, Any]) -> Latency:
    skew = {"skewed": row["skewed"], "skew_ms": (row["skew"] or 0) / 1000}
    if not row["latencies"]:
        return Latency(**skew)
    p50, p90, p99, p999 = (value / 1000 for value in sketch.percentiles(row["sketch"], _RANKS) or ())
    return Latency(row["latencies"], p50, p90, p99, p999, row["latency_max"] / 1000, **skew)
