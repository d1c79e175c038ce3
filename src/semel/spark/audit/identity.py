"""Which rows are about the same message.

A message is known by its id. Where the sender and the receiver both know a session of it, that session and the id are
one message, since ids may be numbers that begin again in every session. All that is left of an id is about one message:

    sent in A, accepted in A and in B          accepted twice
    sent without a session, accepted in A      one message, which has arrived
    sent in A, accepted in Z                   one message, which has arrived
    sent in A and in B, accepted in A          two messages, of which one is lost

The figures are counted by session, in one exchange. So it is said here which rows move to another session, their
`home`, before they are counted; mostly none do. Where an event names no session, the message stands in its place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql import Window
from pyspark.sql import functions as F

from semel.spark.audit.figures import HopReading

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

PROBES = ("nameless", "unsent")
"""Sums that tell where rows could have to move: those without a session, and those in a session in which nothing was
sent."""

_MOVES_FEW = 1_000_000


def is_named(*, exact: bool = False) -> Column:
    """Whether the session is known. `key` is the id (`exact`), or its hash."""
    return (F.col("session") if exact else F.xxhash64("session")) != F.col("key")


def probes() -> Mapping[str, Column]:
    """Conditions on judged messages, by the names in `PROBES`."""
    return {"nameless": ~is_named(), "unsent": (F.col("sends") == 0) & is_named()}


def suspects(sums: Iterable[Mapping[str, Any]], ways: Sequence[HopReading]) -> list[HopReading]:
    """The ways on which rows could have to move, by sums of their windows. With no session known, or with every session
    known on both sides, none has to."""
    scopes = scopes_of(ways)
    counts: dict[int, dict[str, int]] = {}
    for row in sums:
        if row["code"] in scopes:
            of = counts.setdefault(scopes[row["code"]], dict.fromkeys((*PROBES, "messages"), 0))
            for name in of:
                of[name] += row[name]
    found = {
        scope for scope, of in counts.items() if of["nameless"] < of["messages"] and (of["nameless"] or of["unsent"])
    }
    return [way for way in ways if scopes.get(way.hop.code) in found]


def scopes_of(ways: Sequence[HopReading]) -> dict[int, int]:
    """By the code of a hop, within what the messages of one id are compared: the hop, or all hops of its receiver. Hops
    with many receivers have none: what arrives there is one thing for each of them."""
    receivers = {(way.hop.pipeline, way.hop.receiver): way.hop.code for way in reversed(ways) if way.shared}
    return {
        way.hop.code: receivers[way.hop.pipeline, way.hop.receiver] if way.shared else way.hop.code
        for way in ways
        if not way.hop.is_fanned
    }


def moves(rows: DataFrame, ways: Sequence[HopReading], *, exact: bool = False) -> DataFrame:
    """From one row per message and hop: those that belong to another session, as `code`, `session`, `key`, `home`."""
    scopes = scopes_of(ways)
    scope = F.create_map(*(F.lit(value) for pair in scopes.items() for value in pair))[F.col("code")]
    here = rows.where(F.col("code").isin(*scopes)).select(
        scope.alias("scope"), "code", "session", "key",
        (F.col("sends") > 0).alias("sent"),
        (F.col("accepted") + F.col("duplicates") + F.col("rejected") > 0).alias("arrived"),
        is_named(exact=exact).alias("named"),
    )  # fmt: skip
    return with_homes(here).where(F.col("home") != F.col("session")).select("code", "session", "key", "home")


def with_homes(rows: DataFrame) -> DataFrame:
    """Rows with `scope`, `key`, `session`, whether it was `sent` and `arrived` there and the session is `named`; with
    their `home`."""
    of_session = Window.partitionBy("scope", "key", "session")
    of_id = Window.partitionBy("scope", "key")
    session, named = F.col("session"), F.col("named")
    sent, arrived = F.col("_sent"), F.col("_arrived")
    is_pair = named & sent & arrived
    stands = named & sent & ~arrived
    drifts = ~is_pair & ~stands

    def first(of: Column) -> Column:
        return F.min(F.when(of, session)).over(of_id)

    drifting, standing, paired = F.max(drifts).over(of_id), first(stands), first(is_pair)
    # the receiver's session before the sender's: order is the receiver's to keep
    meeting = F.coalesce(first(drifts & named & arrived), standing, first(drifts & named), session)
    home = F.when(is_pair | ~drifting, session).when(standing.isNotNull() | paired.isNull(), meeting).otherwise(paired)
    found = rows.withColumns({"_sent": F.max("sent").over(of_session), "_arrived": F.max("arrived").over(of_session)})
    return found.withColumn("home", home).drop("_sent", "_arrived")


def moved(rows: DataFrame, found: DataFrame, *, exact: bool, exact_moves: bool = False) -> DataFrame:
    """Events, or one row per message and hop, where they belong. `exact_moves` name ids and not their hashes. A number
    within another session says nothing about the order there."""
    key = F.xxhash64("key") if exact and not exact_moves else F.col("key")
    to = found.withColumnsRenamed({"code": "_code", "session": "_session", "key": "_key"})
    is_same = (F.col("code") == F.col("_code")) & (F.col("session") == F.col("_session")) & (key == F.col("_key"))
    is_renamed = F.col("home").isNotNull() & is_named(exact=exact)
    changed = {"idx": F.when(~is_renamed, F.col("idx")), "session": F.coalesce("home", "session")}
    return rows.join(to, is_same, "left").withColumns(changed).select(*rows.columns)


def collect_if_small(found: DataFrame) -> DataFrame | None:
    """The moves, worked out once; None where there are none. Few of them go to where the events are."""
    kept = found.localCheckpoint()
    count = kept.count()
    return None if not count else F.broadcast(kept) if count <= _MOVES_FEW else kept


def united(rows: DataFrame, ways: Sequence[HopReading]) -> DataFrame:
    """One row per message and hop (`figures.MESSAGE`, by names) with the sessions where they belong, to be merged."""
    return moved(rows, moves(rows, ways, exact=True), exact=True, exact_moves=True) if scopes_of(ways) else rows
