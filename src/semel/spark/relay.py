"""From a pipeline's own stream into a live one, a thousand records at a time.

A batch of Spark may be large, and whoever appends to a stream holds its head until the commit. So a batch lands in
spark/<pipeline>, where nobody else writes, and from there goes on in short transactions, each with its place in a
cursor. A relay that dies goes on where its last transaction ended.
"""

from __future__ import annotations

from semel.errors import StaleFence, StoreBusy, StoreError
from semel.kernel.lease import Guard
from semel.kernel.ledger import Event, Kind, range_event
from semel.kernel.ops import MESSAGE, Advance, Append, Log, Op, Refused, Stale
from semel.kernel.position import Position
from semel.kernel.store import Record, Store, Trimmed
from semel.pubsub.hub.records import id_identity
from semel.runtime.host.lease_holder import commit_unit
from semel.spark.landing import output_stream

ROWS_MAX = 1000
TRIES_MAX = 20


def relay_hop(pipeline: str, to: str) -> str:
    """What the ledger calls the way, and the name of the cursor on it."""
    return f"{output_stream(pipeline)}>{to}"


def is_hub(stream: str) -> bool:
    """Whether clients of the pub/sub server get what is written there."""
    return stream.startswith("hub/")


def pin(store: Store, pipeline: str, to: str) -> list[Op]:
    """What keeps records from being trimmed before they are relayed: needed once, before the first of them."""
    if store.cursor(relay_hop(pipeline, to)) is not None:
        return []
    return [Advance(relay_hop(pipeline, to), Position(output_stream(pipeline), store.epoch, 0))]


def relay(
    store: Store, pipeline: str, to: str, guard: Guard | None = None, rows_max: int = ROWS_MAX, target: str = ""
) -> int:
    """Pass on all that is waiting. Returns how many records that was. What goes to a hub and does not say for whom it
    is, is for `target`."""
    done, refused = 0, 0
    while True:
        at = store.cursor(relay_hop(pipeline, to))
        records = _waiting(store, pipeline, at, rows_max)
        if not records:
            return done
        outcome = commit_unit(store, tuple(_ops(pipeline, to, at, records, guard, target)))
        if not isinstance(outcome, Refused):
            done += len(records)
            continue
        if any(isinstance(result, Stale) for result in outcome.results):
            raise StaleFence(
                f"another driver has taken over pipeline {pipeline!r}", fix="nothing is lost: it goes on; end this one"
            )
        refused += 1
        if refused > TRIES_MAX:
            raise StoreBusy(f"others relay {pipeline!r} to {to} at the same time", fix="let one of them do it")


def _waiting(store: Store, pipeline: str, at: Position | None, rows_max: int) -> tuple[Record, ...]:
    found = store.read(output_stream(pipeline), at, rows_max)
    if isinstance(found, Trimmed):
        raise StoreError(
            f"records of {output_stream(pipeline)} before {found.first} were trimmed before they were relayed",
            fix="restore them from a backup, or give the pipeline another name and run it from the start",
        )
    return found.records


def _ops(
    pipeline: str, to: str, at: Position | None, records: tuple[Record, ...], guard: Guard | None, target: str
) -> list[Op]:
    """All that one transaction does: what was sent, what was accepted, and how far it went."""
    hop = relay_hop(pipeline, to)
    messages = [record for record in records if record.kind == MESSAGE]
    accepted, duplicate = Event(Kind.ACCEPTED, hop, pipeline), Event(Kind.DUPLICATE, hop, pipeline)
    offset = at.offset if at is not None else 0
    ops: list[Op] = [Advance(hop, records[-1].position, expected=offset, guard=guard)]
    if messages:
        ids = [record.envelope.id for record in messages]
        ops.append(Log(range_event(Event(Kind.SENT, hop, pipeline), messages[0].position, messages[-1].position, ids)))
    for record in messages:
        identity, receiver = record.envelope.id, ""
        if is_hub(to):
            identity, receiver = id_identity(identity), record.target or target
        ops.append(Append(to, record.envelope, identity, target=receiver, on_fresh=accepted, on_duplicate=duplicate))
    return ops
