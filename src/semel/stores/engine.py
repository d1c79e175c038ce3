"""What an engine must be able to do inside one open transaction.

`apply` decides and an engine obeys. The decisions (verdicts, refusals, chains, ranges) are made once for all stores,
so an engine is only statements. Every method takes many rows at a time: one round trip for a whole group of commits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from semel.kernel.envelope import Envelope
from semel.kernel.ledger import Event
from semel.kernel.ops import Claim, WorkRow, WorkState
from semel.kernel.position import Position
from semel.kernel.store import StreamInfo


@dataclass(slots=True)
class WorkHead:
    """What is needed of a work row to decide whether a write to it may land. `is_bare`: only its identity was left, so
    that it has no key to keep."""

    seq: int
    key: str | None
    state: WorkState
    fence: int
    attempts: int = 0
    is_bare: bool = False


@dataclass(slots=True)
class CursorHead:
    """A cursor as locked: where it stands, and the head of its stream."""

    position: Position
    pins: bool


@dataclass(frozen=True, slots=True)
class Move:
    """A work row's new place. `key` and `fence` are those that it has from now on; `due` None leaves it as it is. What
    was remembered with it is forgotten.

    `holds` says whether the row keeps its key from later rows. `attempts` None leaves the count.
    """

    queue: str
    identity: str
    key: str | None
    state: WorkState
    fence: int
    holds: bool
    due: int | None = None
    keep_until: int | None = None
    cause: str | None = None
    drop_body: bool = False
    envelope: Envelope | None = None
    attempts: int | None = None


@dataclass(frozen=True, slots=True)
class NewWork:
    """A work row to be. One that is to be remembered is DONE already, with `keep_until` and a `result`."""

    queue: str
    scope: str
    identity: str
    key: str | None
    state: WorkState
    due: int
    holds: bool
    envelope: Envelope
    keep_until: int | None = None
    result: bytes | None = None

    @property
    def pair(self) -> tuple[str, str]:
        return (self.scope, self.identity)


@dataclass(frozen=True, slots=True)
class Known:
    """What stands under a scope and an identity once a row has been added, and whether it is the one that was."""

    seq: int
    is_new: bool
    queue: str
    state: WorkState
    result: bytes | None = None


class NewRecord(msgspec.Struct, frozen=True, gc=False):
    stream: str
    offset: int
    identity: str | None
    kind: int
    target: str
    envelope: Envelope
    digest: bytes | None = None


class Engine(Protocol):
    """The statements of one transaction. `now` is the store's clock in microseconds, read once per transaction."""

    @property
    def now(self) -> int: ...

    @property
    def epoch(self) -> int: ...

    def lock_work(self, keys: Sequence[tuple[str, str]]) -> dict[tuple[str, str], WorkHead]:
        """Work rows by (queue, identity), locked in sorted order, also those of which only the identity is left.
        Missing ones are left out."""
        ...

    def lock_states(self, keys: Sequence[str]) -> dict[str, int]:
        """Versions by key, locked in sorted order. Missing ones are left out; a deleted key's version is negative."""
        ...

    def lock_cursors(self, names: Sequence[str]) -> dict[str, CursorHead]: ...

    def lock_streams(self, names: Sequence[str]) -> dict[str, StreamInfo]:
        """Stream heads, created when missing and locked in sorted order. The last locks of a transaction."""
        ...

    def heads(self, names: Sequence[str]) -> dict[str, int]:
        """Heads without a lock, for streams that exist."""
        ...

    def next_fence(self) -> int:
        """The next number of the one counter that is never reset."""
        ...

    def move_work(self, moves: Sequence[Move]) -> None:
        """Apply in order, and bring the keys of the rows up to date. What was only an identity becomes a row again."""
        ...

    def put_states(self, rows: Sequence[tuple[str, bytes | None, int]]) -> None:
        """(key, value, version), in order. A value of None deletes: the key reads as missing, and its version, which
        is negative, stays."""
        ...

    def put_cursors(self, rows: Sequence[tuple[str, Position, bool]]) -> None: ...

    def put_chunks(self, rows: Sequence[tuple[str, int, bytes]]) -> None:
        """(blob, part, data). Writing a part again changes nothing; a blob that is named takes no more parts."""
        ...

    def name_blobs(self, names: Sequence[tuple[str, int]]) -> None:
        """(blob, size): one more row refers to it. Raises StoreRefused when it is missing or has another size."""
        ...

    def add_work(self, rows: Sequence[NewWork]) -> dict[tuple[str, str], Known]:
        """Insert by (scope, identity), unless the pair is known, be it as a row or as an identity that is left of one.
        Answers for each pair."""
        ...

    def claim(self, claim: Claim, fence: int) -> list[WorkRow]: ...

    def known(self, stream: str, identities: Sequence[str]) -> dict[str, tuple[Position, bytes | None]]:
        """Which identities the stream has, where, and with which digest. Called with the stream locked."""
        ...

    def add_records(self, rows: Sequence[NewRecord]) -> None: ...

    def set_heads(self, heads: dict[str, int]) -> None: ...

    def trim(self, stream: str, before: int) -> int:
        """Raise the trim mark as far as pins and the export allow. Answers the first offset left."""
        ...

    def add_ledger(self, events: Sequence[Event]) -> None: ...
