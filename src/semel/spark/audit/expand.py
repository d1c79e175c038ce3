"""One row per message and event: ranges of the ledger become messages again, by the index of stream records.

A range names the records `first..last` of a stream. Ranges are cut at the borders of blocks as long as they are
themselves, so that a record meets only ranges of its own block: as many as there are of them on its stream at that
place, however many there are in all. `n` and `fold` say whether the records found are the ones that were meant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

EVENT = (
    "store string, epoch int, at timestamp, node string, pipeline string, hop string, kind short, message string, "
    "session string, idx long, peer string, ord long, attempt int, cause string, stream string"
)
"""An event about one message. `ord` is where it stands among the events of its hop: its offset in `stream` where it
came out of a range, otherwise its number in the ledger. `epoch` is the epoch of the store that wrote it."""

EVENT_COLUMNS = tuple(column.split()[0] for column in EVENT.split(", "))

_SHIFT = 4
"""Blocks have 1, 16, 256 ... records. A range is cut into blocks no longer than itself, so into 17 pieces at most."""
_LEVELS_MAX = 15
_BROADCAST_PIECES = 1_000_000
_METERED = 0
"""The epoch of what was counted by a meter. Those of stores begin at 1."""


@dataclass(frozen=True, slots=True)
class Ranges:
    """What there is to expand: the lengths that occur, and how many pieces they make at most."""

    levels: tuple[int, ...] = ()
    ranges: int = 0

    @property
    def few(self) -> bool:
        return self.ranges * (2**_SHIFT + 1) <= _BROADCAST_PIECES


def singles(ledger: DataFrame) -> DataFrame:
    """The events that are about one message from the start."""
    rows = ledger.where(F.col("first").isNull() & F.col("message").isNotNull())
    own = {"ord": F.col("seq"), "epoch": F.col("history"), "session": F.coalesce("session", "message")}
    return rows.select(*(own.get(name, F.col(name)).alias(name) for name in EVENT_COLUMNS))


def ranges(ledger: DataFrame) -> DataFrame:
    """The events that are about a range of records, all of which were due to one receiver."""
    return ledger.where(F.col("first").isNotNull() & ~is_metered() & ~is_fanned())


def fanned_ranges(ledger: DataFrame) -> DataFrame:
    """Those of hubs, where a record is due to as many as are there. `receivers` expands them."""
    return ledger.where(F.col("first").isNotNull() & is_fanned())


def is_fanned() -> Column:
    """The hop from a hub to its subscribers."""
    return F.col("hop").startswith("hub/") & F.col("hop").endswith(">sub")


def is_metered() -> Column:
    """What a volatile worker counted: a range that names no records, because nobody kept them."""
    return F.col("first").isNotNull() & (F.col("epoch") == _METERED)


def expand(rows: DataFrame, index: DataFrame, about: Ranges) -> DataFrame:
    """The events of ranges, one row for each record that is found."""
    found = _found(rows, index, about)
    return found.select(
        "store",
        F.col("history").alias("epoch"),
        *("at", "node", "pipeline", "hop", "kind"),
        *(F.col(f"record.{name}") for name in ("message", "session", "idx")),
        "peer",
        F.col("record.offset").alias("ord"),
        *("attempt", "cause", "stream"),
    )


def gaps(rows: DataFrame, index: DataFrame, about: Ranges) -> DataFrame:
    """Ranges that do not fit the records that they name."""
    key = ["store", "history", "seq"]
    found = _found(rows, index, about)
    sums = found.groupBy(*key).agg(
        F.count("*").alias("found"), F.bit_xor(F.xxhash64("record.message")).alias("found_fold")
    )
    judged = rows.join(sums, key, "left").withColumn("found", F.coalesce("found", F.lit(0)))
    fold_fits = F.col("fold").isNull() | (F.coalesce("found_fold", F.lit(0)) == F.col("fold"))
    return judged.where((F.col("found") != F.col("n")) | ~fold_fits)


def with_trimmed(rows: DataFrame, firsts: Sequence[tuple[str, str, int]]) -> DataFrame:
    """With `trimmed`: all records of the range were removed from their stream. `firsts` are store, stream and the first
    offset that is left."""
    if not firsts:
        return rows.withColumn("trimmed", F.lit(False))
    marks = rows.sparkSession.createDataFrame(list(firsts), "store string, stream string, _first long")
    below = F.coalesce(F.col("last") < F.col("_first"), F.lit(False))
    return rows.join(F.broadcast(marks), ["store", "stream"], "left").withColumn("trimmed", below).drop("_first")


def level() -> Column:
    """The largest block that is no longer than the range, as a power of 16. Null where there is no range."""
    length = F.when(F.col("first").isNotNull(), F.col("last") - F.col("first") + 1)
    bits = F.floor(F.log2(F.greatest(length, F.lit(1)).cast("double"))).cast("int")
    return F.when(length.isNotNull(), F.least(F.floor(bits / _SHIFT), F.lit(_LEVELS_MAX)).cast("int"))


def _block(offset: Column, level: Column) -> Column:
    return F.floor(offset.cast("double") / F.pow(F.lit(float(2**_SHIFT)), level)).cast("long")


def _found(rows: DataFrame, index: DataFrame, about: Ranges) -> DataFrame:
    """Each range beside those of its records that were due to its peer."""
    found = matched(rows, index, about)
    target, peer = F.col("record.target"), F.col("peer")
    return found.where((peer == "") | (target == "") | (target == peer))


_OF_RECORD = ("epoch", "offset", "message", "session", "idx", "target")


def matched(
    rows: DataFrame,
    records: DataFrame,
    about: Ranges,
    keys: Sequence[str] = ("store", "stream"),
    columns: Sequence[str] = _OF_RECORD,
) -> DataFrame:
    """Each range beside each record within it that has the same `keys`; its `columns` are in the column `record`."""
    pieces = rows.withColumn("level", level())
    blocks = F.sequence(_block(F.col("first"), F.col("level")), _block(F.col("last"), F.col("level")))
    pieces = pieces.withColumn("block", F.explode(blocks)).alias("piece")
    blocked = _blocked(records, about.levels, keys, columns).alias("of")
    offset = F.col("of.record.offset")
    meets = (offset >= F.col("piece.first")) & (offset <= F.col("piece.last"))
    # a sender that read on after a restore names the epoch of its first record
    meets = meets & (F.col("of.record.epoch") >= F.col("piece.epoch"))
    for name in (*keys, "level", "block"):
        meets = meets & (F.col(f"piece.{name}") == F.col(f"of.{name}"))
    hinted = pieces.hint("broadcast" if about.few else "shuffle_hash")
    return blocked.join(hinted, meets).select("piece.*", "of.record")


def _blocked(records: DataFrame, levels: Sequence[int], keys: Sequence[str], columns: Sequence[str]) -> DataFrame:
    """The records, once for each length of block that occurs."""
    record = F.struct(*columns).alias("record")
    each = records.select(*keys, record, F.explode(F.array(*map(F.lit, levels or (0,)))).alias("level"))
    return each.withColumn("block", _block(F.col("record.offset"), F.col("level")))
