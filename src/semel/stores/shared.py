"""Small decisions that every store makes alike."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from semel.errors import InputError, LocalProtocolError, StaleFence, StoreRefused
from semel.kernel.envelope import Envelope
from semel.kernel.ledger import Mark
from semel.kernel.ops import Append, Claim, Enqueue, Op, Outcome, Refused, Result, Trim, Unit, WorkRow, WorkState
from semel.kernel.position import EPOCH_GAP
from semel.kernel.store import State

ASIDE = frozenset({WorkState.DEFERRED, WorkState.PARKED, WorkState.DEAD})


def is_found_aside(claim: Claim, state: WorkState) -> bool:
    """Whether a claim by its identity takes up a row that no other claim sees."""
    return state is WorkState.DEFERRED or (state is WorkState.PARKED and claim.parked)


"""The states of the few rows that wait for somebody, often for long."""


def check_bound(ops: Sequence[Op]) -> Unit:
    """Refuse what would hold the head of a stream for as long as a user's transaction lasts."""
    for op in ops:
        if isinstance(op, Append | Trim) or (isinstance(op, Enqueue) and op.log is not None):
            raise LocalProtocolError(
                f"{type(op).__name__} is not possible in a transaction that Semel did not open",
                fix="Enqueue to an outbox; a relay appends it to the stream",
            )
    return Unit(tuple(ops))


def unwrap_bound(outcome: Outcome) -> tuple[Result, ...]:
    if isinstance(outcome, Refused):
        raise stale_bound()
    return outcome.results


def stale_bound() -> StaleFence:
    return StaleFence("another owner has taken over, or the state has moved on", fix="roll back and claim again")


def exported_mark(state: State | None) -> Mark | None:
    """How far an export has come: "xid.seq" under the keys export/ledger and export/index. None: nobody exports."""
    if state is None:
        return None
    xid, seq = state.value.split(b" ")[0].split(b".")
    return Mark(int(xid), int(seq))


def ledger_end(now: int, keep_s: float | None) -> int:
    """The time before which ledger entries are old; None keeps them all."""
    return now - int(keep_s * 1_000_000) if keep_s is not None else 0


def counts_of(rows: Iterable[tuple[str, int, int]]) -> dict[str, dict[WorkState, int]]:
    """From rows of queue, state and count."""
    counts: dict[str, dict[WorkState, int]] = {}
    for queue, state, count in rows:
        counts.setdefault(queue, {})[WorkState(state)] = count
    return counts


def named_counts(counts: dict[str, dict[WorkState, int]]) -> dict[str, dict[str, int]]:
    """The same under the names of the states, for people."""
    return {queue: {state.name.lower(): count for state, count in found.items()} for queue, found in counts.items()}


def blob_refused(name: str, size: int, stored: int | None) -> StoreRefused:
    if stored is None:
        return StoreRefused(f"the envelope names blob {name!r}, which is not stored", fix="put its chunks first")
    return StoreRefused(
        f"the envelope says that blob {name!r} has {size:,} bytes, stored are {stored:,}", fix="put all chunks first"
    )


def scope_refused(queue: str, identity: str) -> StoreRefused:
    """A queue names its rows by their identity alone, so it holds one row of each."""
    return StoreRefused(f"{queue} has a row {identity!r} of another scope", fix="use one scope for all rows of a queue")


def bare_row(queue: str, identity: str, seq: int) -> WorkRow:
    """What is left of a work row that is done, once a sweep has come by."""
    return WorkRow(queue, identity, None, seq, WorkState.DONE, 0, 0, 0, "", Envelope(id=identity))


def blob_missing(name: str) -> InputError:
    return InputError(f"there is no body {name!r}", fix="its envelope may have been trimmed or never stored")


def prefix_bounds(prefix: str) -> tuple[str, str | None]:
    """The lowest text that begins with the prefix, and the lowest after all of those: None if there is none."""
    kept = prefix.rstrip("\U0010ffff")
    if not kept:
        return prefix, None
    following = ord(kept[-1]) + 1
    return prefix, kept[:-1] + chr(0xE000 if following == 0xD800 else following)


def start_of_epoch(epoch: int) -> int:
    """The offset before the first one of a stream that begins in this epoch."""
    return (epoch - 1) * EPOCH_GAP


def without_body(envelope: Envelope) -> Envelope:
    return msgspec.structs.replace(envelope, data=b"", headers={}, blob=None)


def claimed_row(row: WorkRow, fence: int, owner: str, due: int) -> WorkRow:
    return WorkRow(
        row.queue, row.identity, row.key, row.seq, WorkState.CLAIMED, due, row.attempts + 1, fence, owner, row.envelope,
        row.cause, row.state is WorkState.CLAIMED,
    )  # fmt: skip
