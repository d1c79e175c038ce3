"""How every message leaves a handler: what becomes of the broker's delivery, and what of the row.

The table has an entry for each mode, style and exit, so that no way out can be forgotten. A delivery ends in an ack, a
nack or goes back to the broker; a row ends, waits for its time, or can be claimed by anybody. Memory never overrules
the row: what is remembered as handled is what a commit has made so.

A row that has its body, because it was stored, scheduled, parked or is dead, goes on like one of a durable endpoint,
whatever the mode was in which its message came. Every move of a row is made by its identity, by `Finish`: a message
that is tried again is not received again, where it would be a duplicate of itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from semel.inbox.endpoint import ALLOWED, EndpointMode, Style
from semel.kernel.retry import Again, Decision, Enough, PauseThen, Release, Requeue


class Exit(Enum):
    """The ways out."""

    STORED = "stored"
    """Only where a durable endpoint receives: it has its row."""
    OK = "ok"
    DUPLICATE_HANDLED = "duplicate of a handled one"
    DUPLICATE_OPEN = "duplicate of one that is open"
    """The first is stored, or somebody is handling it at this moment."""
    RETRY = "retry"
    REQUEUE = "requeue"
    SCHEDULE = "schedule"
    DISCARD = "discard"
    DEAD_LETTER = "dead letter"
    PARK = "park"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    SHUTDOWN = "shutdown"
    """The process ends before the handler began with it."""
    CUT_OFF = "cut off"
    """The process ends while the handler has it, and waits no longer."""
    STORE_DOWN = "store down"
    """Nothing was committed, and the handler's work is rolled back or did not begin."""
    MARK_FAILED = "mark failed"
    """The effect has happened outside, and the mark could not be written, or is in doubt: it is written later."""
    IN_DOUBT = "commit in doubt"
    """The commit of the handler's transaction, or of a claim, was not answered."""


class DeliveryEnd(Enum):
    """What is answered to the broker."""

    ACK = "ack"
    NACK = "nack"
    """Taken off the queue, as what the broker itself keeps as a dead letter."""
    GIVE_BACK = "give back"
    """Delivered again later."""
    NONE_YET = "none yet"
    """The delivery stays with us: its message is tried again here."""
    ACKED_BEFORE = "acked before"


class RowFate(Enum):
    """What becomes of the row."""

    NO_ROW = "no row"
    """There is none, and none is made."""
    READY = "ready"
    DONE = "done"
    """Its identity is kept, its body is not."""
    REMOVED = "removed"
    """Rolled back with the handler's transaction, or taken back: as if it had never come."""
    RELEASED = "released"
    """Anybody may claim it, and the attempt is not counted."""
    SCHEDULED = "scheduled"
    DEAD = "dead"
    PARKED = "parked"
    UNTOUCHED = "untouched"
    """It stays as the store has it. A claim that it is under runs out, and `on_crash` says what that means."""


@dataclass(frozen=True, slots=True)
class Settlement:
    """`again`: the message stays in this process, which tries it again."""

    delivery: DeliveryEnd
    row: RowFate
    again: bool = False


_D, _R, _S = DeliveryEnd, RowFate, Settlement

ARRIVAL_EXITS = frozenset({
    Exit.STORED, Exit.DUPLICATE_HANDLED, Exit.DUPLICATE_OPEN, Exit.DEAD_LETTER, Exit.EXPIRED, Exit.SHUTDOWN,
    Exit.STORE_DOWN, Exit.IN_DOUBT,
})  # fmt: skip
HANDLING_EXITS = frozenset(Exit) - {Exit.STORED}

ARRIVALS: dict[Exit, Settlement] = {
    Exit.STORED: _S(_D.ACK, _R.READY),
    Exit.DUPLICATE_HANDLED: _S(_D.ACK, _R.UNTOUCHED),
    Exit.DUPLICATE_OPEN: _S(_D.ACK, _R.UNTOUCHED),
    # no id, an unknown type, bytes that cannot be read: kept first, then acked
    Exit.DEAD_LETTER: _S(_D.ACK, _R.DEAD),
    Exit.EXPIRED: _S(_D.ACK, _R.DONE),
    Exit.SHUTDOWN: _S(_D.GIVE_BACK, _R.NO_ROW),
    Exit.STORE_DOWN: _S(_D.GIVE_BACK, _R.NO_ROW),
    # if it was stored after all, the next delivery is a duplicate
    Exit.IN_DOUBT: _S(_D.GIVE_BACK, _R.UNTOUCHED),
}
"""Where a durable endpoint receives, before any handler. Its delivery is settled here, once."""

_DURABLE: dict[Exit, Settlement] = {
    Exit.OK: _S(_D.ACKED_BEFORE, _R.DONE),
    # the fence was stale: another has the row, or has finished it
    Exit.DUPLICATE_HANDLED: _S(_D.ACKED_BEFORE, _R.UNTOUCHED),
    Exit.DUPLICATE_OPEN: _S(_D.ACKED_BEFORE, _R.UNTOUCHED),
    Exit.RETRY: _S(_D.ACKED_BEFORE, _R.SCHEDULED),
    Exit.REQUEUE: _S(_D.ACKED_BEFORE, _R.READY),
    Exit.SCHEDULE: _S(_D.ACKED_BEFORE, _R.SCHEDULED),
    Exit.DISCARD: _S(_D.ACKED_BEFORE, _R.DONE),
    Exit.DEAD_LETTER: _S(_D.ACKED_BEFORE, _R.DEAD),
    Exit.PARK: _S(_D.ACKED_BEFORE, _R.PARKED),
    Exit.EXPIRED: _S(_D.ACKED_BEFORE, _R.DONE),
    Exit.CANCELLED: _S(_D.ACKED_BEFORE, _R.DONE),
    Exit.SHUTDOWN: _S(_D.ACKED_BEFORE, _R.RELEASED),
    Exit.CUT_OFF: _S(_D.ACKED_BEFORE, _R.RELEASED),
    Exit.STORE_DOWN: _S(_D.ACKED_BEFORE, _R.UNTOUCHED),
    # the worker commits it again until the store takes it, or another has the row
    Exit.MARK_FAILED: _S(_D.ACKED_BEFORE, _R.UNTOUCHED),
    Exit.IN_DOUBT: _S(_D.ACKED_BEFORE, _R.UNTOUCHED),
}

_INLINE: dict[Exit, Settlement] = {
    Exit.OK: _S(_D.ACK, _R.DONE),
    Exit.DUPLICATE_HANDLED: _S(_D.ACK, _R.UNTOUCHED),
    # an ack would lose it, should the one who has it fail
    Exit.DUPLICATE_OPEN: _S(_D.GIVE_BACK, _R.UNTOUCHED),
    Exit.RETRY: _S(_D.NONE_YET, _R.REMOVED, again=True),
    Exit.REQUEUE: _S(_D.GIVE_BACK, _R.REMOVED),
    # from here on its row has its body: stored first, then acked
    Exit.SCHEDULE: _S(_D.ACK, _R.SCHEDULED),
    Exit.DISCARD: _S(_D.ACK, _R.DONE),
    Exit.DEAD_LETTER: _S(_D.ACK, _R.DEAD),
    Exit.PARK: _S(_D.ACK, _R.PARKED),
    Exit.EXPIRED: _S(_D.ACK, _R.DONE),
    Exit.CANCELLED: _S(_D.ACK, _R.DONE),
    Exit.SHUTDOWN: _S(_D.GIVE_BACK, _R.NO_ROW),
    Exit.CUT_OFF: _S(_D.GIVE_BACK, _R.REMOVED),
    Exit.STORE_DOWN: _S(_D.GIVE_BACK, _R.UNTOUCHED),
    Exit.MARK_FAILED: _S(_D.GIVE_BACK, _R.UNTOUCHED),
    # mark and effect are one commit: the next delivery finds both or neither
    Exit.IN_DOUBT: _S(_D.GIVE_BACK, _R.UNTOUCHED),
}

_BUFFERED: dict[Exit, Settlement] = {
    **{exit: _S(_D.ACKED_BEFORE, entry.row) for exit, entry in _INLINE.items()},
    # nobody delivers it again: what would go back to the broker stays in memory
    Exit.DUPLICATE_OPEN: _S(_D.ACKED_BEFORE, _R.UNTOUCHED, again=True),
    Exit.RETRY: _S(_D.ACKED_BEFORE, _R.REMOVED, again=True),
    Exit.REQUEUE: _S(_D.ACKED_BEFORE, _R.REMOVED, again=True),
    Exit.STORE_DOWN: _S(_D.ACKED_BEFORE, _R.UNTOUCHED, again=True),
    Exit.MARK_FAILED: _S(_D.ACKED_BEFORE, _R.UNTOUCHED, again=True),
    Exit.IN_DOUBT: _S(_D.ACKED_BEFORE, _R.UNTOUCHED, again=True),
    # a process that ends here loses it, which is what the mode promises: drain first
    Exit.SHUTDOWN: _S(_D.ACKED_BEFORE, _R.NO_ROW),
    Exit.CUT_OFF: _S(_D.ACKED_BEFORE, _R.REMOVED),
}

_RESERVED_INLINE: dict[Exit, Settlement] = {
    # the handler has said that it failed: the next delivery may take it up at once
    Exit.REQUEUE: _S(_D.GIVE_BACK, _R.RELEASED),
    # between attempts in this process the claim stays, and keeps others away
    Exit.RETRY: _S(_D.NONE_YET, _R.UNTOUCHED, again=True),
    # whether the effect has happened nobody knows: the claim runs out, and on_crash decides
    Exit.CUT_OFF: _S(_D.GIVE_BACK, _R.UNTOUCHED),
    # the effect has happened: the mark follows, and fails nothing
    Exit.MARK_FAILED: _S(_D.ACK, _R.UNTOUCHED),
}

_RESERVED_BUFFERED: dict[Exit, Settlement] = {
    Exit.REQUEUE: _S(_D.ACKED_BEFORE, _R.UNTOUCHED, again=True),
    Exit.RETRY: _S(_D.ACKED_BEFORE, _R.UNTOUCHED, again=True),
    Exit.CUT_OFF: _S(_D.ACKED_BEFORE, _R.UNTOUCHED),
    Exit.MARK_FAILED: _S(_D.ACKED_BEFORE, _R.UNTOUCHED),
}

_KEPT = (RowFate.SCHEDULED, RowFate.DEAD, RowFate.PARKED)


def _unmarked(table: dict[Exit, Settlement]) -> dict[Exit, Settlement]:
    """Without a mark there is no row, but for what has to be kept."""
    return {
        exit: entry if entry.row in _KEPT else _S(entry.delivery, _R.NO_ROW, entry.again)
        for exit, entry in table.items()
    }


TABLE: dict[tuple[EndpointMode, Style], dict[Exit, Settlement]] = {
    (EndpointMode.DURABLE, Style.OPTIMISTIC): _DURABLE,
    (EndpointMode.DURABLE, Style.RESERVED): {
        **_DURABLE,
        # whether the effect has happened nobody knows: the claim runs out, and on_crash decides
        Exit.CUT_OFF: _S(_D.ACKED_BEFORE, _R.UNTOUCHED),
    },
    (EndpointMode.INLINE, Style.EAGER): _INLINE,
    (EndpointMode.INLINE, Style.OPTIMISTIC): _INLINE,
    (EndpointMode.INLINE, Style.RESERVED): {**_INLINE, **_RESERVED_INLINE},
    (EndpointMode.INLINE, Style.NONE): _unmarked(_INLINE),
    (EndpointMode.BUFFERED, Style.EAGER): _BUFFERED,
    (EndpointMode.BUFFERED, Style.OPTIMISTIC): _BUFFERED,
    (EndpointMode.BUFFERED, Style.RESERVED): {**_BUFFERED, **_RESERVED_BUFFERED},
    (EndpointMode.BUFFERED, Style.NONE): _unmarked(_BUFFERED),
}
"""What each exit means at an endpoint, for a handler of that style. Combinations that are refused are not in it."""

assert TABLE.keys() == {combination for combination, kinds in ALLOWED.items() if kinds}


def settle(mode: EndpointMode, style: Style, exit: Exit, *, has_store: bool = True) -> Settlement:
    """What to do. Without a store nothing can be kept: then the broker is to keep what is dead or parked, and what is
    scheduled goes back to it."""
    assert has_store or style is Style.NONE, "an endpoint that needs a store is refused at start without one"
    entry = TABLE[mode, style][exit]
    if has_store or entry.row not in _KEPT:
        return entry
    if mode is EndpointMode.BUFFERED:
        return _S(entry.delivery, _R.NO_ROW, again=exit is Exit.SCHEDULE)
    return _S(_D.GIVE_BACK if exit is Exit.SCHEDULE else _D.NACK, _R.NO_ROW)


def exit_of(decision: Decision) -> Exit:
    """The way out that a failure policy has chosen."""
    match decision:
        case PauseThen(then=then):
            return exit_of(then)
        case Again(passes=passes):
            return Exit.SCHEDULE if passes else Exit.RETRY
        case Requeue() | Release():
            return Exit.REQUEUE
        case Enough(then="discard"):
            return Exit.DISCARD
        case Enough(then="dead_letter"):
            return Exit.DEAD_LETTER
        case Enough():
            return Exit.PARK
