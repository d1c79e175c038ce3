"""The two rows of the store that hold a session, so that it outlives its socket and its node.

    session   who it is, its permissions and groups, and since when it has no socket      changes seldom
    acks      which of its own messages were taken, how far its streams have come, and    changes with every publish
              how far it has acknowledged

What its client has not acknowledged for long is in further rows, which the acks name (`spill_rows.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

from semel.errors import StoreError
from semel.pubsub.hub.spill_rows import SpillRow
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
