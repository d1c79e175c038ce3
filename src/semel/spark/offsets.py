"""Where a Spark query stands in a store: offsets, ranges of rows, and how a range is cut into partitions.

A range is `after < row <= to`. It always holds the same rows: offsets of a stream appear in order, and marks of the
ledger and the index are only ever taken below the oldest running transaction. So a batch that is read again, by
another task or after a restart, is the same batch, until its rows are trimmed.

Offsets of a stream and marks of a dataset are one thing here: offset 7 is `Mark(0, 7)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from semel.errors import ConfigError, EpochChanged, StoreError
from semel.kernel.ledger import Mark
from semel.kernel.position import EPOCH_GAP
from semel.runtime.export.exporter import mark_text, parse_mark

PARTITION_ROWS_MIN = 16_384
"""A range with fewer rows is not worth a second task."""

EARLIEST, LATEST, AVAILABLE = "earliest", "latest", "available"


@dataclass(frozen=True, slots=True)
class Subject:
    """What is read: a stream, or `ledger` or `index` of a whole store."""

    stream: str | None = None
    dataset: str | None = None

    def __str__(self) -> str:
        return f"stream {self.stream!r}" if self.dataset is None else f"the {self.dataset}"


@dataclass(frozen=True, slots=True)
class OffsetSpan:
    """The rows after `after`, up to and with `to`."""

    after: Mark
    to: Mark

    def __bool__(self) -> bool:
        return self.after < self.to

    @property
    def is_dense(self) -> bool:
        """Whether each number in it is a row, so that counting needs no look at the rows: numbers of one writer have
        no holes, but for the jump that offsets make when an epoch begins."""
        return self.after.xid == self.to.xid == 0 and self.to.seq - self.after.seq < EPOCH_GAP


@dataclass(frozen=True, slots=True)
class HistorySpan:
    """A span of a subject in one history of one store."""

    store: str
    epoch: int
    subject: Subject
    span: OffsetSpan

    def moved(self, after: Mark, to: Mark) -> HistorySpan:
        return HistorySpan(self.store, self.epoch, self.subject, OffsetSpan(after, to))


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a store has of a subject at one moment: rows up to `gone` may have been removed, `head` is the last row that
    may be read, and no mark beyond `ceiling` has ever been given out. `origin` is the place before the first row that
    ever was."""

    store: str
    epoch: int
    origin: Mark
    gone: Mark
    head: Mark
    ceiling: Mark


# -- as Spark keeps it


def offset_of(place: HistorySpan) -> dict[str, Any]:
    """The JSON that Spark writes into its checkpoint. It tells the whole batch, for whoever reads only this."""
    if place.subject.dataset is None:
        what = {"stream": place.subject.stream}
        numbers: dict[str, Any] = {"after": place.span.after.seq, "offset": place.span.to.seq}
    else:
        what = {"dataset": place.subject.dataset}
        numbers = {"after": mark_text(place.span.after), "mark": mark_text(place.span.to)}
    return {"store": place.store, **what, "epoch": place.epoch, **numbers}


def place_of(offset: dict[str, Any], subject: Subject) -> HistorySpan:
    """Undo `offset_of`. An offset of another source, from a checkpoint that was used for something else, is refused."""
    found = Subject(offset.get("stream"), offset.get("dataset"))
    if found != subject:
        raise ConfigError(
            f"the checkpoint was made by a query over {found}, this query reads {subject}",
            fix="give each query a checkpointLocation of its own",
        )
    try:
        if subject.dataset is None:
            span = OffsetSpan(Mark(0, int(offset["after"])), Mark(0, int(offset["offset"])))
        else:
            span = OffsetSpan(parse_mark(offset["after"]), parse_mark(offset["mark"]))
        return HistorySpan(str(offset["store"]), int(offset["epoch"]), subject, span)
    except (AttributeError, KeyError, TypeError, ValueError):
        raise ConfigError(
            f"the checkpoint has an offset that Semel did not write: {offset}", fix="use a new checkpointLocation"
        ) from None


# -- where to begin and end


def check_position(option: str, text: str, words: Sequence[str]) -> str | Mark:
    """The value of `startingPosition` or `endingPosition`: one of the words, or a number (`812.4711` is a mark)."""
    if text in words:
        return text
    try:
        return parse_mark(text)
    except ValueError:
        known = ", ".join(words)
        raise ConfigError(f"{option} is {text!r}", fix=f"write one of: {known}, or a number") from None


def start_of(position: str | Mark, bounds: Bounds, subject: Subject) -> Mark:
    """The mark before the first row that is read. A number is the number of that row."""
    if position == EARLIEST:
        return bounds.origin
    if position == LATEST:
        return bounds.head
    if position == AVAILABLE:
        return max(bounds.origin, bounds.gone)
    assert isinstance(position, Mark)
    before = Mark(position.xid, max(0, position.seq - 1))
    if before > bounds.ceiling:
        raise ConfigError(
            f"startingPosition is {position}, {subject} ends at {bounds.head}", fix="begin at a number that is there"
        )
    return max(before, bounds.origin)


def end_of(position: str | Mark, bounds: Bounds) -> Mark:
    """The last row that is read: of a number, the row with that number."""
    return min(position, bounds.head) if isinstance(position, Mark) else bounds.head


# -- is the store still the one, and are the rows still there?


def check_place(place: HistorySpan, bounds: Bounds) -> None:
    """To be asked in the snapshot in which the rows are read."""
    if place.store != bounds.store:
        raise EpochChanged(
            f"the query reads store {place.store}, at this URL is store {bounds.store}",
            current=bounds.epoch,
            fix="correct the option `store`; for the new store begin a new query with a new checkpointLocation",
        )
    if place.epoch != bounds.epoch:
        raise EpochChanged(
            f"the query has read {place.subject} up to {place.span.after} in epoch {place.epoch}, the store is in "
            f"epoch {bounds.epoch}: it was restored or failed over, and rows may have been lost or replaced",
            current=bounds.epoch,
            fix="begin a new query (a new checkpointLocation) at a startingPosition that you trust; a sink that goes "
            "by message ids passes over what it has already",
        )
    if place.span.to > bounds.ceiling:
        raise StoreError(
            f"the query knows {place.subject} up to {place.span.to}, the store only up to {bounds.head}",
            fix="it was put back to an older state: open it once with `semel store status`, which begins a new epoch; "
            "or it is a standby that lags behind: connect to the primary",
        )
    check_kept(place.subject, place.span, bounds)


def check_kept(subject: Subject, span: OffsetSpan, bounds: Bounds) -> None:
    """Rows that were trimmed before they were read are never passed over in silence."""
    after = max(span.after, bounds.origin)
    if span and after < bounds.gone:
        raise StoreError(
            f"{subject} is wanted from after {after}, but up to {bounds.gone} it has been trimmed",
            fix='to begin with what is left, use startingPosition "available" (and a new checkpointLocation); to keep '
            "rows until they are read, hold them with a pinning cursor, or read what was exported",
        )


# -- partitions


def parts_of(rows: int, partitions: int) -> int:
    """How many tasks a range is worth."""
    return max(1, min(partitions, rows // PARTITION_ROWS_MIN))


def cut_evenly(span: OffsetSpan, parts: int) -> list[OffsetSpan]:
    """A dense span in parts of nearly the same size."""
    size = span.to.seq - span.after.seq
    cuts = [Mark(0, span.after.seq + size * part // parts) for part in range(1, parts)]
    return cut_at(span, cuts)


def cut_at(span: OffsetSpan, cuts: Sequence[Mark]) -> list[OffsetSpan]:
    edges = [span.after, *cuts, span.to]
    pieces = [OffsetSpan(after, to) for after, to in pairwise(edges)]
    return [piece for piece in pieces if piece]
