"""What is decided about a row before its handler has it, and the writes that end a row.

too late                                  it expires
a worker had it and never said anything   `on_crash`, where its effect may have happened outside
only reserved, and its body at the broker given back: the broker's next delivery claims it, and decides
"""

from __future__ import annotations

from dataclasses import dataclass

from semel.inbox.endpoint import EndpointOptions, OnCrash, Style
from semel.kernel.envelope import Envelope
from semel.kernel.ledger import Kind, message_event
from semel.kernel.ops import Finish, Log, Op, WorkRow, WorkState

RESERVED_HEADER = "semel-reserved"
"""Stands on the row of a reservation whose body the broker has. No message comes in with it."""
AMBIGUOUS = "its worker died while it had this message: its effect may have happened"


@dataclass(frozen=True, slots=True)
class RowEnd:
    """What becomes of a row that its handler does not get."""

    to: WorkState
    kind: Kind
    cause: str


def row_end(options: EndpointOptions, style: Style | None, row: WorkRow, now: int) -> RowEnd | None:
    """None: the handler may have it. `style` is that of its handler, if there is one; `now` is in microseconds."""
    if is_expired(options, row, now):
        return RowEnd(WorkState.DONE, Kind.EXPIRED, "it came too late")
    if is_bare(row.envelope):
        if options.on_crash is OnCrash.DROP:
            return RowEnd(WorkState.DONE, Kind.DISCARDED, AMBIGUOUS)
        return RowEnd(WorkState.DEFERRED, Kind.FAILED, AMBIGUOUS)
    if style is Style.RESERVED and is_ambiguous(row) and options.on_crash is not OnCrash.RETRY:
        if options.on_crash is OnCrash.DROP:
            return RowEnd(WorkState.DONE, Kind.DISCARDED, AMBIGUOUS)
        return RowEnd(WorkState.PARKED, Kind.SUSPENDED, AMBIGUOUS)
    return None


def is_expired(options: EndpointOptions, row: WorkRow, now: int) -> bool:
    time = row.envelope.time
    return options.expire_s is not None and time is not None and now > time + options.expire_s * 1_000_000


def is_ambiguous(row: WorkRow) -> bool:
    """Whether whoever had it before never said what became of it. A reservation that was given back remembers it."""
    return row.taken_over or (is_bare(row.envelope) and row.cause == AMBIGUOUS)


def is_bare(envelope: Envelope) -> bool:
    """Whether its body is with the broker and not in the row."""
    return RESERVED_HEADER in envelope.headers


def end_row(
    options: EndpointOptions,
    row: WorkRow,
    envelope: Envelope,
    to: WorkState,
    kind: Kind,
    *,
    cause: str | None = None,
    holds: bool = False,
) -> tuple[Op, ...]:
    """The row's end under its fence, and the ledger's word of it. A dead letter stays until somebody ends it."""
    keep_s = None if to is WorkState.DEAD else options.keep_s
    finish = Finish(row.queue, row.identity, to, fence=row.fence, keep_s=keep_s, cause=cause, holds=holds)
    return finish, Log(message_event(kind, options.hop, "", envelope, attempt=row.attempts, cause=cause))


def done_row(options: EndpointOptions, row: WorkRow, envelope: Envelope) -> tuple[Op, ...]:
    """The mark of a handler that has done its work."""
    return end_row(options, row, envelope, WorkState.DONE, Kind.HANDLED)
