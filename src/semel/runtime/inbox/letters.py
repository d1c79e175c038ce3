"""Messages that an endpoint keeps though it stores none on arrival: dead, parked, or scheduled for later.

Body and end are one transaction. In two, a process that died between them would leave a message that is neither handled
nor a dead letter, and whose next delivery would be taken for a duplicate.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import msgspec

from semel.errors import StaleFence
from semel.inbox.settle import Exit
from semel.kernel.envelope import Envelope
from semel.kernel.ledger import Kind, message_event
from semel.kernel.ops import Applied, Duplicate, Enqueue, Finish, Log, Op, Result, WorkRow, WorkState
from semel.kernel.store import Store
from semel.runtime.host.lease_holder import commit_unit
from semel.runtime.inbox.providers import Provider
from semel.runtime.transactions import bind
from semel.stores.points import reach

ENDED = frozenset({WorkState.DONE, WorkState.DEAD, WorkState.PARKED})
"""A message in one of these states needs no delivery any more: it is handled, or somebody will decide."""


@dataclass(frozen=True, slots=True)
class Keeping:
    """How a message is kept: in which state, for which exit, and what the ledger says."""

    exit: Exit
    to: WorkState
    kind: Kind
    cause: str
    delay_s: float | None = None
    holds: bool = False


class _Steps(Protocol):
    def __call__(self, *ops: Op) -> tuple[Result, ...]: ...


def keep(store: Store, provider: Provider | None, enqueue: Enqueue, keeping: Keeping, row: WorkRow | None) -> Exit:
    """Store a message with its body and end it. `row` is a reservation of ours, whose fence decides; without one the
    message may be known already, and the answer says what it is then: handled, or with somebody else."""
    with _steps(store, provider) as steps:
        if row is not None:
            steps(Finish(row.queue, row.identity, WorkState.DEFERRED, fence=row.fence))
            steps(msgspec.structs.replace(enqueue, replace=True, on_fresh=None, on_duplicate=None))
        else:
            [first] = steps(enqueue)
            if isinstance(first, Duplicate):
                return Exit.DUPLICATE_HANDLED if first.state in ENDED else Exit.DUPLICATE_OPEN
        reach("letter.stored")
        steps(*_end(enqueue, keeping, row))
        reach("letter.ended")
    return keeping.exit


def _end(enqueue: Enqueue, keeping: Keeping, row: WorkRow | None) -> tuple[Op, ...]:
    finish = Finish(
        enqueue.queue, enqueue.identity, keeping.to, keep_s=None, cause=keeping.cause, delay_s=keeping.delay_s,
        holds=keeping.holds,
    )  # fmt: skip
    hop = f"{enqueue.queue}>handler"
    attempt = row.attempts if row is not None else 1
    event = message_event(keeping.kind, hop, "", enqueue.envelope, attempt=attempt, cause=keeping.cause)
    return finish, Log(event)


@contextmanager
def _steps(store: Store, provider: Provider | None) -> Iterator[_Steps]:
    """Calls that are one transaction. A store in memory has none that can look at its own writes; it dies with us."""
    if provider is None:
        yield lambda *ops: _committed(store, ops)
        return
    with provider.begin() as connection:  # type: ignore[union-attr]
        tx: Any = bind(store, connection)
        yield lambda *ops: tx.apply(ops)


def _committed(store: Store, ops: tuple[Op, ...]) -> tuple[Result, ...]:
    outcome = commit_unit(store, ops)
    if not isinstance(outcome, Applied):
        raise StaleFence("another process has the message", fix="give the delivery back")
    return outcome.results


# -- reservations: rows without a body, claimed for the time of an effect

RESERVED_HEADER = "semel-reserved"
DIED = "its process died while it had this message: its effect may have happened"


def reservation_of(envelope: Envelope) -> Envelope:
    """What a reservation has of its message: the broker has the rest, and delivers it again if we die."""
    return Envelope(envelope.id, source=envelope.source, type=envelope.type, headers={RESERVED_HEADER: "1"})


def is_reservation(row: WorkRow) -> bool:
    return RESERVED_HEADER in row.envelope.headers


def is_ambiguous(row: WorkRow) -> bool:
    """Whether whoever had it before never said what became of it."""
    return row.taken_over or row.cause == DIED
