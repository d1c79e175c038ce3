"""What is decided about a row before its handler has it, and the writes that end a row.

too late                                  it expires
a worker had it and never said anything   `on_crash`, where its effect may have happened outside
only reserved, and its body at the broker given back: the broker's next delivery claims it, and decides
"""

from __future__ import annotations

from dataclasses import dataclass

from semel.errors import CommitInDoubt, StoreError
from semel.inbox.endpoint import EndpointOptions, FailedHead, OnCrash, Style
from semel.inbox.reservation import DIED, is_ambiguous, is_reservation
from semel.kernel.envelope import Envelope
from semel.kernel.ledger import Kind, message_event
from semel.kernel.ops import Attempts, Finish, Log, Op, WorkRow, WorkState

ENDED = frozenset({WorkState.DONE, WorkState.DEAD, WorkState.PARKED})
"""A message in one of these states needs no delivery any more: it is handled, or somebody will decide."""


@dataclass(frozen=True, slots=True)
class RowEnd:
    """What becomes of a row that its handler does not get."""

    to: WorkState
    kind: Kind
    cause: str
    holds: bool = False
    attempts: Attempts = Attempts.KEEP

    def ops(self, options: EndpointOptions, row: WorkRow) -> tuple[Op, ...]:
        return end_row(
            options, row, row.envelope, self.to, self.kind, cause=self.cause, holds=self.holds, attempts=self.attempts
        )


def row_end(options: EndpointOptions, style: Style | None, row: WorkRow, now: int) -> RowEnd | None:
    """None: the handler may have it. `style` is that of its handler, if there is one; `now` is in microseconds."""
    if options.is_expired(row.envelope.time, now):
        return RowEnd(WorkState.DONE, Kind.EXPIRED, "it came too late")
    if is_reservation(row.envelope):
        if options.on_crash is OnCrash.DROP:
            return RowEnd(WorkState.DONE, Kind.DISCARDED, DIED)
        cause = DIED if row.taken_over else row.cause or "it was given back"
        return RowEnd(WorkState.DEFERRED, Kind.FAILED, cause, attempts=Attempts.RELEASE)  # nobody has tried it
    if style is Style.RESERVED and is_ambiguous(row) and options.on_crash is not OnCrash.RETRY:
        if options.on_crash is OnCrash.DROP:
            return RowEnd(WorkState.DONE, Kind.DISCARDED, DIED)
        return RowEnd(WorkState.PARKED, Kind.SUSPENDED, DIED, holds=options.failed_head is FailedHead.BLOCKS)
    return None


def leaves_doubt(style: Style, error: StoreError) -> bool:
    """Whether nobody knows, after this error of the store, what a handler has done: its row is left to the lease, and
    `on_crash` decides. Else its transaction was rolled back, and it has failed like any other."""
    return style is Style.RESERVED or isinstance(error, CommitInDoubt)


def end_row(
    options: EndpointOptions,
    row: WorkRow,
    envelope: Envelope,
    to: WorkState,
    kind: Kind,
    *,
    cause: str | None = None,
    holds: bool = False,
    attempts: Attempts = Attempts.KEEP,
) -> tuple[Op, ...]:
    """The row's end under its fence, and the ledger's word of it. A dead letter stays until somebody ends it."""
    keep_s = None if to is WorkState.DEAD else options.keep_s
    finish = Finish(
        row.queue, row.identity, to, fence=row.fence, keep_s=keep_s, cause=cause, holds=holds, attempts=attempts
    )
    return finish, Log(message_event(kind, options.hop, "", envelope, attempt=row.attempts, cause=cause))


def done_row(options: EndpointOptions, row: WorkRow, envelope: Envelope) -> tuple[Op, ...]:
    """The mark of a handler that has done its work."""
    return end_row(options, row, envelope, WorkState.DONE, Kind.HANDLED)
