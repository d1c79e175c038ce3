"""What the server reports to a hub of its sockets, and what a hub asks the server to do with them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from semel.pubsub.protocol.messages import Request
from semel.pubsub.protocol.permissions import Permissions
from semel.websocket import CloseCode

# -- what the server reports


class NewSession(msgspec.Struct, frozen=True):
    """A client without a session has come. `connection` is a fresh id; with `token` the client may resume."""

    connection: str
    token: str | None
    subprotocol: str
    user: str | None
    permissions: Permissions
    groups: tuple[str, ...] = ()
    state: str = ""
    in_order: bool = False
    """Its client sends again in order what was not taken (`in_order.py`)."""


class ResumeSession(msgspec.Struct, frozen=True):
    """A client has come back with the token of this connection. `token` is a fresh one."""

    connection: str
    token: str | None = None
    in_order: bool = False


class Frames(msgspec.Struct, frozen=True):
    requests: Sequence[Request]


class SocketStalled(msgspec.Struct, frozen=True):
    """The socket has enough to take for now."""


class SocketDrained(msgspec.Struct, frozen=True):
    """The socket takes more again."""


class SocketClosed(msgspec.Struct, frozen=True):
    """By the client with this code, or lost (None). `reason` is what the client gave, if anything."""

    code: int | None = None
    reason: str = ""


# -- what a hub asks for


class Write(msgspec.Struct, frozen=True):
    """To `ALL`: what to write to which sockets, in order: whole WebSocket frames, `frames` of them."""

    writes: Sequence[tuple[Sequence[str], bytes]]
    frames: int


class WelcomePeer(msgspec.Struct, frozen=True):
    """The session of this socket is in the store. For clients whose subprotocol cannot say `connected`: all that they
    get of it is the answer to their handshake."""


class ClosePeer(msgspec.Struct, frozen=True):
    """Close the socket after what was written."""

    code: CloseCode
    reason: str = ""


ALL = "*"


class HubRestarted(msgspec.Struct, frozen=True):
    """To `ALL`: the hub was loaded from the store. It knows no socket from before, and answers no call from before:
    clients have to resume, and callers to ask again."""
