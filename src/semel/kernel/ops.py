"""The eleven writes that a store performs, and what it answers.

Ops of one unit are applied together or not at all. A duplicate is an answer, not a failure: the unit goes on. `Stale`
and `Conflict` are refusals: nothing of the unit is applied, and nothing of any later unit of the same chain.

These values are made by the million, cannot change and hold no cycles, so the garbage collector need not look at them.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import msgspec

from semel.kernel.envelope import Envelope
from semel.kernel.lease import Guard
from semel.kernel.ledger import Event
from semel.kernel.position import Position

MESSAGE = 0
"""The kind of a record that is a message. The kernel knows no other: what the rest mean is up to the protocol that
writes them, and stores keep the number as it is."""


class WorkState(IntEnum):
    """Where a work row stands. Numbers are stored: they never change meaning."""

    READY = 0
    SCHEDULED = 1
    CLAIMED = 2
    DEFERRED = 3
    PARKED = 4
    DONE = 5
    DEAD = 6


OPEN_STATES = frozenset({
    WorkState.READY, WorkState.SCHEDULED, WorkState.CLAIMED, WorkState.DEFERRED, WorkState.PARKED,
})  # fmt: skip

KEEP_S = 7 * 24 * 3600.0
"""How long the identity of a finished work row is remembered unless the caller says otherwise."""

RESULT_BYTES_MAX = 4096


class Attempts(IntEnum):
    """What a `Finish` does to the count of claims: nothing, start from zero (a replay), or take the claim's own count
    back (it was given back unused)."""

    KEEP = 0
    RESET = 1
    RELEASE = 2


class Append(msgspec.Struct, frozen=True, gc=False):
    """Add a record to a stream. With an `identity` the first append wins and later ones answer `Duplicate`. A `digest`
    of what it says is kept as long as the identity: a later one with another digest is not the same message.

    `on_fresh` and `on_duplicate` are ledger events written in the same transaction, whichever verdict it is. A
    template (see `ledger.Event`) is filled in with the position, and templates alike within one transaction become one
    row. `on_fresh` may be several: a message that is accepted and passed on in one step has two things to tell.
    """

    stream: str
    envelope: Envelope
    identity: str | None = None
    kind: int = MESSAGE
    target: str = ""
    on_fresh: Event | tuple[Event, ...] | None = None
    on_duplicate: Event | None = None
    guard: Guard | None = None
    digest: bytes | None = None


class Advance(msgspec.Struct, frozen=True, gc=False):
    """Move a cursor forward. Moving it back is no error and changes nothing: the answer says where it stands.

    A cursor that `pins` keeps records after it from being trimmed. `expected` makes it a compare-and-set on the offset.
    """

    cursor: str
    to: Position
    pins: bool = True
    expected: int | None = None
    guard: Guard | None = None


class Put(msgspec.Struct, frozen=True, gc=False):
    """Set the state of a machine. `expected` is the version that the caller has read: 0 means "does not exist yet",
    None means "whatever it is". `value` None deletes.

    A version does not come back while somebody may remember it: a key that is deleted and set again goes on counting.
    Its count is a small row, which a sweep removes once the key has been gone for the store's `state_keep_s`; then the
    key is new. Whoever creates a key learns its version from the answer."""

    key: str
    value: bytes | None
    expected: int | None = None
    guard: Guard | None = None


class Enqueue(msgspec.Struct, frozen=True, gc=False):
    """Add a work row. `identity` is unique within `scope`, which is the queue itself unless given.

    Rows with the same `key` are claimed one after the other, in the order in which they were enqueued. `due` in the
    future schedules the row: it takes its turn when it falls due. `replace` moves the row of the same identity to the
    new `due` and body, which is how a durable timer is set again, whatever has become of it: a claimed row is taken
    back under a new fence, so that its holder can no longer finish it, and one that was finished or put aside is
    opened again. A new turn that it takes among its key comes after those of the rows that are new in its commit.

    A row keeps its key when it is set again. Of one that is done a sweep leaves only the identity: that one takes the
    key that is given. `on_fresh` may be several events, as an `Append`'s.

    With `log` a row that is new is also a record of that stream, in the same commit; one that is no longer new is not.
    """

    queue: str
    identity: str
    envelope: Envelope
    key: str | None = None
    due: int | None = None
    scope: str | None = None
    replace: bool = False
    on_fresh: Event | tuple[Event, ...] | None = None
    on_duplicate: Event | None = None
    guard: Guard | None = None
    log: str | None = None


class Remember(msgspec.Struct, frozen=True, gc=False):
    """Remember an identity as handled: a work row that is DONE from the start and has no body.

    It answers like an `Enqueue`, and an `Enqueue` of the same identity is its duplicate. `result` is kept with it, for
    duplicates: at most 4 KiB. The event of a verdict that is a template becomes one about a message whose id is the
    identity. `on_fresh` may be several: what is accepted and handled in one step has two things to tell.
    """

    queue: str
    identity: str
    scope: str | None = None
    keep_s: float = KEEP_S
    result: bytes = b""
    on_fresh: Event | tuple[Event, ...] | None = None
    on_duplicate: Event | None = None
    guard: Guard | None = None


class Claim(msgspec.Struct, frozen=True, gc=False):
    """Take up to `limit` rows that are due, for `lease_s`. Expired leases are taken over by the same statement.

    Of one key only the first `per_key` rows are taken, in order, and none while another claim on the key lives.
    `identity` or `key` ask for one row or one key; a deferred or parked row is only ever claimed by its identity. With
    `parked` False a parked one is not claimed at all: for callers who must not take what waits for a person.
    """

    queue: str
    owner: str
    limit: int = 1
    lease_s: float = 30.0
    per_key: int = 1
    identity: str | None = None
    key: str | None = None
    parked: bool = True


class Renew(msgspec.Struct, frozen=True, gc=False):
    """Let a claim end `lease_s` from now, by the store's clock. A `cause` is written into the row with it."""

    queue: str
    identity: str
    fence: int
    lease_s: float = 30.0
    cause: str | None = None


class Finish(msgspec.Struct, frozen=True, gc=False):
    """Move a work row to another state: from a claim with its fence, or with `fence` None from a state in which nobody
    has it. One that is DONE is not ended again: that is refused as stale. So is one that is no longer in the state
    `was`, for callers who have read it and decide by what they saw.

    DONE and DEAD keep the identity for `keep_s`; DEAD with `keep_s` None keeps the row until somebody finishes it
    otherwise. DONE drops the body at once, and a sweep leaves only its identity. SCHEDULED is a retry at `due`, or
    `delay_s` from now by the store's clock, for callers whose own clock may differ; `delay_s` wins if both are given.
    `holds` lets a parked or dead row keep blocking its key, so that nothing overtakes it. A retry blocks its key unless
    it `passes`: then it takes a new turn, behind the others, when it falls due. `attempts` says what becomes of the
    count of claims.
    """

    queue: str
    identity: str
    to: WorkState
    fence: int | None = None
    due: int | None = None
    holds: bool = False
    keep_s: float | None = KEEP_S
    cause: str | None = None
    delay_s: float | None = None
    passes: bool = False
    attempts: Attempts = Attempts.KEEP
    was: WorkState | None = None


class Log(msgspec.Struct, frozen=True, gc=False):
    """Write a ledger event. `guard` refuses the whole unit when its owner has been replaced."""

    event: Event
    guard: Guard | None = None


class PutBlob(msgspec.Struct, frozen=True, gc=False):
    """Write one chunk of a large body. Chunks are invisible until an envelope that names the blob is stored."""

    name: str
    part: int
    data: bytes


class Trim(msgspec.Struct, frozen=True, gc=False):
    """Give up the records of a stream before `before`. The answer says how far it went: never past a pinning cursor
    and never past what has been exported. The rows themselves go later, by `sweep`."""

    stream: str
    before: int


Op = Append | Advance | Put | Enqueue | Remember | Claim | Renew | Finish | Log | PutBlob | Trim


class Fresh(msgspec.Struct, frozen=True, gc=False):
    """It is new, and this is where it stands."""

    position: Position


class Duplicate(msgspec.Struct, frozen=True, gc=False, repr_omit_defaults=True):
    """It was there already, and this is where the first one stands. `differs`: under this identity something else is
    there, as the digests of both tell; the ledger has no event of it.

    Of a work row `state` says what had become of the first one when this one came, and `result` is what was remembered
    with it, if it was remembered."""

    position: Position
    differs: bool = False
    state: WorkState | None = None
    result: bytes | None = None


class Advanced(msgspec.Struct, frozen=True, gc=False):
    """Done. `position` answers Advance and Trim, `version` answers Put."""

    position: Position | None = None
    version: int | None = None


@dataclass(frozen=True, slots=True)
class WorkRow:
    """A work row as its claimer sees it. `attempts` counts claims, this one included. `taken_over`: another claim on it
    had expired, so its worker may have died or may still be at it. Only a `Claimed` says so."""

    queue: str
    identity: str
    key: str | None
    seq: int
    state: WorkState
    due: int
    attempts: int
    fence: int
    owner: str
    envelope: Envelope
    cause: str | None = None
    taken_over: bool = False


class Claimed(msgspec.Struct, frozen=True, gc=False):
    rows: tuple[WorkRow, ...]


class Stale(msgspec.Struct, frozen=True, gc=False):
    """Refused: the row is now under `fence` (0 when it is not claimed, or gone)."""

    fence: int


class Conflict(msgspec.Struct, frozen=True, gc=False):
    """Refused: the state is at `version`, or the cursor at this offset."""

    version: int


class Skipped(msgspec.Struct, frozen=True, gc=False):
    """Not applied, because another op of the unit, or an earlier unit of the chain, was refused."""


Result = Fresh | Duplicate | Advanced | Claimed | Stale | Conflict | Skipped


class Unit(msgspec.Struct, frozen=True, gc=False):
    """Ops that succeed or fail together. Units of one `chain` succeed in order: after a refusal the later ones are
    refused too. A unit without a chain stands for itself."""

    ops: tuple[Op, ...]
    chain: str | None = None


class Applied(msgspec.Struct, frozen=True, gc=False):
    results: tuple[Result, ...]


class Refused(msgspec.Struct, frozen=True, gc=False):
    """Nothing of the unit was applied. `results` shows which op was `Stale` or in `Conflict`."""

    results: tuple[Result, ...]


Outcome = Applied | Refused
