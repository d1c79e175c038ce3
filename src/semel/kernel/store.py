"""What a store promises. Three stores keep these promises (memory, SQLite, PostgreSQL); one contract suite checks them.

1.  *Durable.* When `commit` returns, its units survive kill -9 and power loss. When it raises anything but
    `CommitInDoubt`, none of them has happened. After `CommitInDoubt`, `resolve` answers which of the two it was, and
    the answer does not change.
2.  *Whole.* A unit is applied completely or not at all, its ledger events included.
3.  *Once.* Of all appends to a stream with one identity, in all processes and for ever until `identity_keep_s` has
    passed, exactly one is `Fresh`. The others are `Duplicate` with the first one's position. The same holds for work
    rows and remembered identities within their scope, whatever state the first row is in and whether or not a sweep has
    reduced it to its identity; the answer says that state.
4.  *In order.* Offsets of a stream are dense within an epoch and become visible in order: a reader that has seen n has
    been able to see every record before n. Units of one chain are applied in the order given.
5.  *No silent skip.* A read below the trim mark answers `Trimmed`, a position of another epoch raises `EpochChanged`.
6.  *One owner.* At any time at most one fence can finish a work row. Fences grow and are never used again, not even
    after a restart or a restore. Expiry is judged by the store's clock.
7.  *Ordered claims.* Rows of a key are claimed in the order of their turn; none is claimed while an earlier one of the
    key is open, unless that one was put aside without holding the key.
8.  *Nothing open is deleted.* `sweep` removes what is trimmed, finished and past its time, or never became visible,
    and what is left of a state that was deleted `state_keep_s` ago. Of a row that is done it leaves only the identity,
    until that is past its time. It works in short transactions and reports whether more is waiting.
9.  *Readers do not wait.* Reads never block a commit and are never blocked by one.
10. *Work has an order within a commit.* However the ops are ordered, `Finish` and `Renew` come before `Enqueue`, and
    `Enqueue` before `Claim`. So a claim sees the rows that are new in its commit, but nothing else does: to finish or
    renew such a row, or to use it as a guard, is `Stale(0)` until the commit has returned. A row that is finished and
    set again in one commit is open afterwards.
11. *An old version never fits.* All versions that a state key is given are different, in all its lives and after a
    restore, so whoever acts on an old one meets `Conflict`. Only a key that has been gone for `state_keep_s` begins
    again: no process may go on after a longer pause with what it remembers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from semel.kernel.envelope import Envelope
from semel.kernel.ledger import Entry, Mark
from semel.kernel.ops import MESSAGE, Op, Outcome, Result, Unit, WorkRow, WorkState
from semel.kernel.position import Position

BLOB_CHUNK_BYTES = 256 * 1024
IDENTITY_KEEP_S = 7 * 24 * 3600.0
ORPHAN_KEEP_S = 3600.0
STATE_KEEP_S = 24 * 3600.0
"""How long a deleted state key keeps its count of versions; longer than any process is ever paused."""
LEDGER_HELD_S = 60.0


class Record(msgspec.Struct, frozen=True, gc=False):
    """One record of a stream, as read back. `at` is the store's time of the commit in microseconds.

    A read gives positions in the store's current epoch, whenever the record was written; the index, which is evidence
    of what happened, keeps the epoch of the writing. `body` is a body in chunks put together, for readers that ask.
    """

    position: Position
    envelope: Envelope
    at: int
    kind: int = MESSAGE
    target: str = ""
    identity: str | None = None
    body: bytes | None = None


@dataclass(frozen=True, slots=True)
class Records:
    """What a read found, in offset order. Empty means that nothing is there yet."""

    records: tuple[Record, ...]


@dataclass(frozen=True, slots=True)
class Trimmed:
    """The read began below the trim mark: the first record that is still there is at `first`."""

    first: Position


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """`head` is the last offset given out, `first` the lowest one that may be read."""

    name: str
    epoch: int
    head: int
    first: int


@dataclass(frozen=True, slots=True)
class CursorInfo:
    name: str
    position: Position
    pins: bool


@dataclass(frozen=True, slots=True)
class State:
    value: bytes
    version: int


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """A stream record without its body, in the order in which the store's history grew."""

    mark: Mark
    record: Record
    size: int


@dataclass(frozen=True, slots=True)
class Swept:
    """What one sweep removed, and of how many work rows it left only the identity: `moved`. `more` says that another
    call would find work."""

    records: int = 0
    identities: int = 0
    work: int = 0
    blobs: int = 0
    ledger: int = 0
    states: int = 0
    more: bool = False
    moved: int = 0

    @property
    def total(self) -> int:
        return self.records + self.identities + self.work + self.blobs + self.ledger + self.states


@dataclass(frozen=True, slots=True)
class LedgerHorizon:
    """How far the ledger can be read behind what was committed. On PostgreSQL an open transaction of anybody holds it
    back: `events` entries are there already and not shown yet, the oldest for `held_s` seconds, because of `holder`.
    They are counted up to 100,000."""

    held_s: float = 0.0
    events: int = 0
    holder: str = ""

    @property
    def is_long(self) -> bool:
        """Worth a word: most transactions last a moment."""
        return self.held_s >= LEDGER_HELD_S

    def __str__(self) -> str:
        who = f" by {self.holder}" if self.holder else ""
        return f"{self.events:,} entries held back for {self.held_s:.0f} s{who}"


@dataclass(frozen=True, slots=True)
class Status:
    """What `semel store status` shows. `work` counts the rows that are not done, by queue and state; `remembered` are
    the identities of those that are."""

    url: str
    engine: str
    store_id: str
    epoch: int
    schema: int
    streams: tuple[StreamInfo, ...] = ()
    cursors: tuple[CursorInfo, ...] = ()
    work: dict[str, dict[str, int]] = field(default_factory=dict)
    remembered: int = 0
    ledger_entries: int = 0
    sweepable: int = 0
    bytes: int = 0
    details: dict[str, str] = field(default_factory=dict)
    horizon: LedgerHorizon = field(default_factory=LedgerHorizon)


class Tx(Protocol):
    """The same operations inside a transaction that the user opened. It never commits and never rolls back.

    `Append` and `Trim` are refused: they would hold the head of a stream for as long as the user's transaction lasts.
    Enqueue to an outbox instead; a relay moves it to the stream.
    """

    def apply(self, ops: Sequence[Op], *, wait: bool = True) -> tuple[Result, ...]:
        """Apply the ops; raises `StaleFence` when a guard or a fence is stale, and the user rolls back.

        With `wait` False it does not wait for another open transaction that has one of the identities and was not to
        wait either, but raises `StoreBusy` at once. Where there is one writer at a time everybody waits as always.
        """
        ...

    def keep_result(self, scope: str, identity: str, result: bytes) -> bool:
        """Set the result of an identity that this transaction has remembered, which may be known only at its end.
        False when it has none: its transaction was rolled back."""
        ...


class AsyncTx(Protocol):
    """A `Tx` on a connection whose calls are awaited."""

    async def apply(self, ops: Sequence[Op], *, wait: bool = True) -> tuple[Result, ...]: ...

    async def keep_result(self, scope: str, identity: str, result: bytes) -> bool: ...


class Store(Protocol):
    """One history of streams, work, state and ledger. Methods block and may be called from any thread."""

    url: str
    store_id: str
    node: str

    @property
    def epoch(self) -> int: ...

    def commit(self, units: Sequence[Unit]) -> list[Outcome]:
        """The only write: all units in one transaction, one outcome each.

        Raises `StoreRefused` when the engine will not take the data of some unit: nothing has happened and the caller
        may find the guilty one by halving. Raises `CommitInDoubt` when only `resolve` can tell.
        """
        ...

    def resolve(self, marker: str) -> list[Outcome] | None:
        """After `CommitInDoubt`: the outcomes if the transaction happened, None if it did not and never will."""
        ...

    def read(self, stream: str, after: Position | None = None, limit: int = 1000) -> Records | Trimmed:
        """Records after a position, in order. None means from offset 1: on a trimmed stream that is `Trimmed`."""
        ...

    def tail(
        self, stream: str, after: Position | None = None, limit: int = 1000, timeout_s: float = 30.0
    ) -> Records | Trimmed:
        """Like `read`, but waits until there is something or the time is up."""
        ...

    def listen(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` from some thread after each commit by any process. Returns a function that stops it."""
        ...

    def wake(self) -> None:
        """Tell all who listen, in every process, that something was committed: after a user's own transaction, of
        which the store does not see. Who cannot be notified looks by himself a little later."""
        ...

    def head(self, stream: str) -> Position:
        """The last offset given out, whether or not the record is still there."""
        ...

    def cursor(self, name: str) -> Position | None: ...

    def known(self, stream: str, identities: Sequence[str]) -> dict[str, Position]:
        """Which of the identities the stream remembers, and where the first append of each stands. One that is missing
        may be there a moment later: only a commit decides."""
        ...

    def state(self, key: str) -> State | None: ...

    def states(self, prefix: str, after: str = "", limit: int = 1000) -> list[tuple[str, State]]:
        """The keys that begin with `prefix` and come after the key `after`, in the order of their bytes."""
        ...

    def work(self, queue: str, identity: str) -> WorkRow | None:
        """The work row as it stands, or None. For operators and checks; workers claim. Of one that is done and swept
        only its place and its identity are left."""
        ...

    def work_rows(self, queue: str, states: Collection[WorkState], after: int = 0, limit: int = 100) -> list[WorkRow]:
        """The rows of a queue in these states, with a `seq` above `after`, in the order of `seq`. One that is done is
        among them until a sweep has come by."""
        ...

    def work_counts(self, queue_prefix: str = "") -> dict[str, dict[WorkState, int]]:
        """How many rows are in which state, by queue. Those that are done are not counted: they may be millions."""
        ...

    def due(self, queue: str) -> bool:
        """Whether a claim on the queue may find something: a small read that takes no locks. It is never False for long
        while there is work, and True may turn out to be nothing."""
        ...

    def ledger(self, after: Mark, limit: int = 1000) -> list[Entry]:
        """Ledger entries after a mark. An entry that appears later never sorts before one already returned."""
        ...

    def history(self, message: str, limit: int = 1000) -> list[Entry]:
        """The first ledger entries about one message, in order. What the ledger tells of a range of a stream is not
        among them."""
        ...

    def index(self, after: Mark, limit: int = 1000) -> list[IndexEntry]:
        """Records of all streams after a mark, without bodies, under the same promise as `ledger`."""
        ...

    def body(self, name: str) -> Iterator[bytes]:
        """The chunks of a large body. Nothing is yielded before the blob has been named by a stored envelope."""
        ...

    def sweep(self, now: int, limit: int = 1000) -> Swept:
        """Remove up to `limit` rows of each sort that nobody needs any more, in short transactions."""
        ...

    def migrate(self) -> tuple[int, int]:
        """Bring the schema up to this version of Semel. Returns the versions before and after."""
        ...

    def raise_epoch(self, reason: str) -> int:
        """Begin a new epoch: after a restore that Semel could not see by itself. Returns the new epoch."""
        ...

    def bind(self, connection: Any) -> Tx:
        """`connection` is the user's own, to the database of this store, with a transaction open or about to open.

        Refused, here or by the first `apply`: a connection in autocommit with no transaction, one to another store, and
        one whose commits may be lost after they were answered.
        """
        ...

    def check(self) -> None:
        """Raise what keeps the store from taking commits, as far as that shows within about a second and without
        writing: its files are gone, somebody holds its lock, it is in recovery."""
        ...

    def horizon(self) -> LedgerHorizon:
        """How far export and audit are behind, and who holds them back. A small read."""
        ...

    def status(self) -> Status: ...

    def close(self) -> None: ...
