"""What the server tells a hub of its sockets, and what a hub tells the server to do with them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from semel.pubsub.protocol.messages import CloseCode, Request
from semel.pubsub.protocol.permissions import Permissions

# -- what the server tells a hub


class Open(msgspec.Struct, frozen=True):
    """A socket has shown who it is. `connection` is fresh; `token` is what it may come back with."""

    connection: str
    token: str | None
    subprotocol: str
    user: str | None
    permissions: Permissions
    groups: tuple[str, ...] = ()
    state: str = ""
    in_order: bool = False
    """Its client sends again in order what was not taken (`in_order.py`)."""


class Resume(msgspec.Struct, frozen=True):
    """A socket has shown the token of this connection. `token` is a fresh one."""

    connection: str
    token: str | None = None
    in_order: bool = False


class Frames(msgspec.Struct, frozen=True):
    requests: Sequence[Request]


class Stalled(msgspec.Struct, frozen=True):
    """The socket has enough to take for now."""


class Room(msgspec.Struct, frozen=True):
    """It takes more again."""


class Gone(msgspec.Struct, frozen=True):
    """The socket is closed: by the client with this code, or lost. `reason` is what was said of it, if anything."""

    code: int | None = None
    reason: str = ""


# -- what a hub tells the server


class Write(msgspec.Struct, frozen=True):
    """To `ALL`: what goes to which sockets, in order. All of it is whole WebSocket frames, `frames` of them."""

    writes: Sequence[tuple[Sequence[str], bytes]]
    frames: int


class Shut(msgspec.Struct, frozen=True):
    """Close the socket after what was written."""

    code: CloseCode
    reason: str = ""


ALL = "*"


class Anew(msgspec.Struct, frozen=True):
    """To `ALL`: the hub begins, from what the store holds. It knows nobody who was there before, and answers nothing
    that was asked before: they have to come again."""
