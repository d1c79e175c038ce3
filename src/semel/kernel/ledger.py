"""The ledger: who saw what happen to which message on which hop.

A ledger event is written in the transaction of the change that it reports, so it can neither run ahead of it nor fall
behind. An event is either about one message (`message` is set, `n` is 1) or about a range of a stream (`first..last`):
then it stands for the `n` records in that range which were due to `peer`, and `fold` is the xor of their hashed ids, so
that a reader holding the records can check that it is talking about the same ones.

Loss is found by comparing two writers, the sender's `sent` with the receiver's `accepted`, never one writer with
itself. What one writer can be held to is conservation: everything it accepted has ended or is still open.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

import msgspec
from xxhash import xxh64_intdigest

from semel.errors import InputError
from semel.kernel.envelope import Envelope
from semel.kernel.position import Position
from semel.kernel.text import check_text
from semel.kernel.trace import trace_id


class Kind(IntEnum):
    """What happened. Numbers are stored: they never change meaning."""

    SENT = 1
    RESENT = 2
    ACCEPTED = 4
    DUPLICATE = 5
    REJECTED = 6
    CONFIRMED = 7
    FAILED = 8
    SUSPENDED = 9
    RESUMED = 10
    REPLAYED = 11
    ACTION = 12
    HANDLED = 20
    FORWARDED = 21
    MIRRORED = 22
    DISCARDED = 23
    DEAD_LETTERED = 24
    EXPIRED = 25
    CANCELLED = 26
    SKIPPED = 27
    DROPPED = 28


ENDS = frozenset(kind for kind in Kind if kind >= 20)
"""Kinds after which a message needs nothing more from this receiver. REPLAYED opens it again."""

ARRIVALS = frozenset({Kind.ACCEPTED, Kind.DUPLICATE, Kind.REJECTED})

HOP_CHARS_MAX = 512


class Event(msgspec.Struct, frozen=True, gc=False):
    """One ledger event as its writer knows it. The store adds `seq`, `at`, `node` and, on PostgreSQL, `xid`.

    An event with neither `message` nor `first` is a template: attached to an Append it becomes a range over the
    records of that commit, one row however many there are.
    """

    kind: Kind
    hop: str
    pipeline: str = ""
    message: str | None = None
    delivery: str | None = None
    session: str | None = None
    idx: int | None = None
    peer: str = ""
    stream: str | None = None
    epoch: int | None = None
    first: int | None = None
    last: int | None = None
    n: int = 1
    fold: int | None = None
    attempt: int = 1
    cause: str | None = None
    trace: str | None = None

    def __post_init__(self) -> None:
        check_text("hop", self.hop, chars_max=HOP_CHARS_MAX)
        if self.message is not None and (self.first is not None or self.n != 1):
            raise InputError("a ledger event is about one message or about a range, not both", fix="leave one out")
        if (self.first is None) != (self.last is None):
            raise InputError("a ledger range needs both first and last", fix="give both")

    @property
    def is_template(self) -> bool:
        return self.message is None and self.first is None


@dataclass(frozen=True, slots=True)
class Entry:
    """A ledger event as stored. `mark` orders entries: see `Mark`."""

    mark: Mark
    at: int
    node: str
    event: Event


@dataclass(frozen=True, slots=True, order=True)
class Mark:
    """Where an entry stands in the ledger.

    On stores with one writer `xid` is 0 and `seq` alone orders. On PostgreSQL a transaction with a lower `seq` may
    commit later, so a reader goes by transaction id first and only below the oldest running transaction.
    """

    xid: int
    seq: int

    def __str__(self) -> str:
        return f"{self.xid}.{self.seq}" if self.xid else str(self.seq)


START = Mark(0, 0)


def hash_id(message: str) -> int:
    """64 bits of the id as a signed integer: XXH64 with seed 42, which is also Spark SQL's own `xxhash64`."""
    return _signed(xxh64_intdigest(message.encode(), 42))


def _signed(number: int) -> int:
    return number - 2**64 if number >= 2**63 else number


def fold_ids(messages: Iterable[str]) -> int:
    """Order does not matter and a pair of equal ids cancels out: `n` tells the two apart."""
    fold = 0
    for message in messages:
        fold ^= xxh64_intdigest(message.encode(), 42)
    return _signed(fold)


def message_event(
    kind: Kind,
    hop: str,
    pipeline: str,
    envelope: Envelope,
    *,
    delivery: str | None = None,
    peer: str = "",
    attempt: int = 1,
    cause: str | None = None,
) -> Event:
    """What happened to one message."""
    headers = envelope.headers
    return Event(
        kind, hop, pipeline, envelope.id, delivery, envelope.session, envelope.index, peer, attempt=attempt,
        cause=cause, trace=trace_id(headers) if headers else None,
    )  # fmt: skip


def range_event(template: Event, first: Position, last: Position, messages: list[str]) -> Event:
    """The template filled in for the records `first..last`, whose ids are `messages`."""
    return msgspec.structs.replace(
        template,
        stream=first.stream,
        epoch=first.epoch,
        first=first.offset,
        last=last.offset,
        n=len(messages),
        fold=fold_ids(messages),
    )


@dataclass(frozen=True, slots=True)
class Balance:
    """What one receiver accepted, ended and still holds."""

    accepted: int
    replayed: int
    ended: int
    open: int

    @property
    def holds(self) -> bool:
        return self.accepted + self.replayed == self.ended + self.open


def balance(events: Iterable[Event], open_count: int) -> Balance:
    """Add up one receiver's events. `open_count` is what its store says is still open.

    What was dropped was refused on arrival and never accepted, so it ends nothing that was."""
    counts: Counter[Kind] = Counter()
    for event in events:
        counts[event.kind] += event.n
    ended = sum(counts[kind] for kind in ENDS if kind is not Kind.DROPPED)
    return Balance(counts[Kind.ACCEPTED], counts[Kind.REPLAYED], ended, open_count)
