"""A small life in a store, told line by line, that may end by kill -9 at a named point.

Run as `python -m tests.campaigns.crash_child URL POINT COUNT` with the messages that are still unconfirmed on standard
input. A line is written only after the commit that it tells of has returned, as a server would only then confirm.
A life that was cut short is lived again from the start: whatever had already happened must not happen twice.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field

from semel.kernel.envelope import Envelope
from semel.kernel.ledger import Event, Kind
from semel.kernel.ops import (
    Append,
    Applied,
    Claim,
    Claimed,
    Duplicate,
    Enqueue,
    Finish,
    Fresh,
    Log,
    Op,
    Result,
    Trim,
    Unit,
    WorkRow,
    WorkState,
)
from semel.kernel.store import BLOB_CHUNK_BYTES, Store
from semel.stores.bodies import put_body
from semel.stores.open import open_store
from semel.stores.points import on_reach

STREAM, BODIES, EFFECTS, QUEUE = "hub/life", "hub/bodies", "hub/effects", "inbox/life"
HOP = "client>inbox/life"
BATCH = 4
LEASE_S = 0.1
BODY = bytes(range(256)) * 1024 * 2 + b"the end"

Say = Callable[..., None]


@dataclass
class Todo:
    """What is still unconfirmed: `messages` of `total`, and `bodies`."""

    total: int = 0
    messages: list[str] = field(default_factory=list)
    bodies: list[str] = field(default_factory=list)

    def as_json(self) -> str:
        return json.dumps(asdict(self))


def live(store: Store, todo: Todo, say: Say) -> None:
    """Produce, store large bodies, handle, trim and sweep, begin a new epoch: every part may be repeated."""
    for start in range(0, len(todo.messages), BATCH):
        _produce(store, todo.messages[start : start + BATCH], say)
    for id in todo.bodies:
        _store_body(store, id, say)
    while _open(store):
        _work(store, say)
    _commit(store, Trim(STREAM, todo.total // 2 + 1))
    while store.sweep(time.time_ns() // 1000, limit=3).more:
        say("swept")
    if store.epoch == 1:
        say("epoch", store.raise_epoch("a new life"))
    say("done")


def _commit(store: Store, *ops: Op) -> tuple[Result, ...]:
    outcome = store.commit([Unit(ops)])[0]
    return outcome.results if isinstance(outcome, Applied) else ()


def _produce(store: Store, ids: Iterable[str], say: Say) -> None:
    ids = list(ids)
    outcomes = store.commit([Unit((append_once(id), _enqueue(id))) for id in ids])
    for id, outcome in zip(ids, outcomes, strict=True):
        verdict = outcome.results[0]
        assert isinstance(verdict, Fresh | Duplicate)
        say("acked", id, verdict.position.offset)


def append_once(id: str) -> Append:
    return Append(STREAM, Envelope(id=id, data=id.encode()), identity=id)


def _enqueue(id: str) -> Enqueue:
    accepted, duplicate = Event(Kind.ACCEPTED, HOP, message=id), Event(Kind.DUPLICATE, HOP, message=id)
    return Enqueue(QUEUE, id, Envelope(id=id), key=f"k{len(id) % 3}", on_fresh=accepted, on_duplicate=duplicate)


def _store_body(store: Store, id: str, say: Say) -> None:
    """Under a fresh name each time: what an earlier life left unnamed is swept one day."""
    blob = put_body(store, f"{id}-{uuid.uuid4()}", [BODY])
    _commit(store, Append(BODIES, Envelope(id=id, blob=blob), identity=id))
    say("body", id)


def _open(store: Store) -> int:
    """Rows that wait, or that a process which died has claimed: those come back when its lease is over."""
    return sum(count for state, count in store.status().work.get(QUEUE, {}).items() if state != "done")


def _work(store: Store, say: Say) -> None:
    """The effect has no identity of its own: only the fence keeps it from happening twice."""
    [claimed] = _commit(store, Claim(QUEUE, f"worker {os.getpid()}", limit=3, lease_s=LEASE_S))
    assert isinstance(claimed, Claimed)
    for row in claimed.rows:
        say("claimed", row.identity, row.fence)
    for row in claimed.rows:
        if _commit(store, *_handled(row)):
            say("handled", row.identity)


def _handled(row: WorkRow) -> tuple[Op, ...]:
    return (
        Finish(QUEUE, row.identity, WorkState.DONE, fence=row.fence),
        Append(EFFECTS, Envelope(id=row.identity)),
        Log(Event(Kind.HANDLED, HOP, message=row.identity)),
    )


def die_at(point: str, count: int, die: Callable[[], None]) -> None:
    """Die when the point is reached for the `count`-th time."""
    left = count

    def reached(name: str) -> None:
        nonlocal left
        left -= name == point
        if name == point and left == 0:
            die()

    on_reach(reached)


def _kill_myself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _say(*words: object) -> None:
    print(*words, flush=True)


def main() -> None:
    url, point, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    todo = Todo(**json.load(sys.stdin))
    assert len(BODY) > 2 * BLOB_CHUNK_BYTES, "a body of several chunks"
    die_at(point, count, _kill_myself)
    store = open_store(url)
    live(store, todo, _say)
    store.close()


if __name__ == "__main__":
    main()
