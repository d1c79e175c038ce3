"""The two rows of the store that hold a session, so that it outlives its socket and its node.

    session   who it is, its permissions and groups, and since when it has no socket      changes seldom
    acks      which of its own messages were taken, how far its streams have come, and    changes with every publish
              how far it has acknowledged

What its client has not acknowledged for long is in further rows, which the acks name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import msgspec

from semel.errors import StoreError
from semel.kernel.envelope import Envelope
from semel.kernel.ops import Append, Put
from semel.pubsub.hub.runs import Run
from semel.pubsub.protocol.messages import Metadata
from semel.pubsub.protocol.permissions import Permissions


class OwnState(msgspec.Struct, frozen=True, array_like=True):
    """The state of a session in a group. `updated_at` in milliseconds."""

    state: dict[str, str]
    updated_at: int


class SessionRow(msgspec.Struct, frozen=True, array_like=True):
    """`groups` says since which offset; `left` are the stays in groups that ended after `acked`. `dropped_at` in
    seconds, None while a socket is attached. Offsets are those of `epoch`: in another one they mean nothing."""

    user: str | None
    subprotocol: str
    node: str
    start: int
    permissions: Permissions
    groups: dict[str, int] = {}
    left: tuple[tuple[str, int, int], ...] = ()
    dropped_at: float | None = None
    state: str = ""
    epoch: int = 0
    states: dict[str, OwnState] = {}
    watches: tuple[str, ...] = ()


class ClientStream(msgspec.Struct, frozen=True, array_like=True):
    """A stream that a client sends to a group, and the number of the part that comes next. One that `is_ended` is
    remembered for a client that did not get the answer."""

    id: str
    group: str
    expected: int
    idle_ms: int
    no_echo: bool = False
    ttl_s: int | None = None
    metadata: Metadata | None = None
    is_ended: bool = False


class SpillRow(msgspec.Struct, frozen=True, array_like=True):
    """The messages from `first` to `last` that were not acknowledged when it was written, in so many parts."""

    first: int
    last: int
    parts: int = 1


class SpilledAcks(msgspec.Struct, frozen=True, array_like=True):
    acked: int
    rows: tuple[SpillRow, ...]


class AcksRow(msgspec.Struct, frozen=True, array_like=True):
    """`acked` also names the rows of spilled messages, if there are some. It does so in this place because a Semel that
    knows nothing of them must not read on without them: to that one the row is unreadable."""

    acked: int | SpilledAcks
    taken: tuple[tuple[int, int], ...]
    streams: tuple[ClientStream, ...] = ()


def session_key(hub: str, connection: str) -> str:
    return f"hub/{hub}/session/{connection}"


def acks_key(hub: str, connection: str) -> str:
    return f"hub/{hub}/acks/{connection}"


encode_row = msgspec.msgpack.Encoder().encode
_decode_session = msgspec.msgpack.Decoder(SessionRow).decode
_decode_acks = msgspec.msgpack.Decoder(AcksRow).decode


def read_session(value: bytes) -> SessionRow:
    return _read(_decode_session, value)


def read_acks(value: bytes) -> AcksRow:
    return _read(_decode_acks, value)


T = TypeVar("T")


def _read(decode: Callable[[bytes], T], value: bytes) -> T:
    try:
        return decode(value)
    except msgspec.MsgspecError as error:
        raise StoreError(f"a session cannot be read: {error}", fix="was it written by a newer Semel?") from None


# -- what was spilled

# The acks row of a session names these rows, and is written in the same commit as they are. So whoever may write the
# acks row may write them, whoever reads it knows them all, and the end of a session, which deletes it, deletes them.

PART_BYTES = 1024 * 1024
"""What is larger is stored in several parts."""


class SpilledMessage(msgspec.Struct, frozen=True, array_like=True):
    """As it stood in the stream. `body` is a large one, which the envelope only names."""

    offset: int
    target: str
    envelope: Envelope
    body: bytes | None = None


class Spilled(NamedTuple):
    """What the rows of a session hold, in order, but for those that are `missing` and those that are `unreadable` for
    this Semel, as the `error` says."""

    runs: Sequence[Run] = ()
    missing: tuple[SpillRow, ...] = ()
    unreadable: tuple[SpillRow, ...] = ()
    error: StoreError | None = None


class Spill:
    """The rows of one session. `rows` counts what is on its way into the store, `stored` does not. `found` is what they
    hold, if that was read before the session came here. `lost` are those whose messages nobody can have any more."""

    __slots__ = ("found", "lost", "rows", "stored")

    def __init__(self, rows: tuple[SpillRow, ...] = ()) -> None:
        self.rows = self.stored = rows
        self.found: Spilled | None = None
        self.lost: tuple[SpillRow, ...] = ()

    @property
    def last(self) -> int:
        """What is not acknowledged up to here is in the rows, or on its way there."""
        return self.rows[-1].last if self.rows else 0

    @property
    def stored_last(self) -> int:
        """What is not acknowledged up to here is in the store, and the stream need not keep it."""
        return self.stored[-1].last if self.stored else 0

    def take_acknowledged(self, acked: int) -> list[SpillRow]:
        """The rows of which nothing is needed any more once the store knows of this acknowledgement."""
        gone = [row for row in self.rows if row.last <= acked]
        if gone:
            self.rows = self.rows[len(gone) :]
        return gone

    def fall_back(self) -> None:
        """Nothing that was on its way will be stored."""
        self.rows = self.stored


def spill_prefix(hub: str, connection: str) -> str:
    return f"hub/{hub}/spill/{connection}/"


def keys_of(hub: str, connection: str, row: SpillRow) -> list[str]:
    """In the order of the offsets and the parts."""
    return [f"{spill_prefix(hub, connection)}{row.first:016}/{part:04}" for part in range(row.parts)]


def deletions(hub: str, connection: str, rows: Iterable[SpillRow]) -> list[Put]:
    return [Put(key, None) for row in rows for key in keys_of(hub, connection, row)]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[SpilledMessage, ...]).decode


def write_row(
    hub: str, connection: str, first: int, messages: Sequence[SpilledMessage]
) -> tuple[SpillRow, tuple[Put, ...]]:
    """A row that is known by `first`, and what puts it into the store."""
    value = _encode(messages)
    parts = [value[at : at + PART_BYTES] for at in range(0, len(value), PART_BYTES)]
    row = SpillRow(first, messages[-1].offset, len(parts))
    keys = keys_of(hub, connection, row)
    return row, tuple(Put(key, part) for key, part in zip(keys, parts, strict=True))


def read_row(stream: str, parts: Iterable[bytes]) -> list[Run]:
    try:
        messages = _decode(b"".join(parts))
    except msgspec.MsgspecError as error:
        raise StoreError(f"spilled messages cannot be read: {error}", fix="was it written by a newer Semel?") from None
    return [Run(each.offset, (Append(stream, each.envelope, target=each.target),), each.body) for each in messages]


def messages_of(runs: Iterable[Run]) -> Iterator[SpilledMessage]:
    for run in runs:
        for offset, append, body in run.messages():
            yield SpilledMessage(offset, append.target, append.envelope, body)
