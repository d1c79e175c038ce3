"""What clients and server say to each other, whatever the encoding.

`frames_json` and `frames_protobuf` turn these into frames and back. `ack_id` None asks for no answer, and then no error
is ever reported either.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

import msgspec


class DataType(StrEnum):
    JSON = "json"
    TEXT = "text"
    BINARY = "binary"
    PROTOBUF = "protobuf"


CONTENT_TYPES = {
    DataType.JSON: "application/json",
    DataType.TEXT: "text/plain",
    DataType.BINARY: "application/octet-stream",
    DataType.PROTOBUF: "application/x-protobuf",
}


class Data(msgspec.Struct, frozen=True, gc=False):
    """What is sent, as bytes: the JSON text itself, text in UTF-8, the bytes, or a serialized `Any`."""

    type: DataType
    body: bytes


Metadata = dict[str, str]


class ErrorName(StrEnum):
    """The names of errors in acks, invocations and streams."""

    FORBIDDEN = "Forbidden"
    INTERNAL = "InternalServerError"
    DUPLICATE = "Duplicate"
    CONFLICT = "Conflict"
    BAD_REQUEST = "BadRequest"
    NOT_FOUND = "NotFound"
    TIMEOUT = "Timeout"
    INVALID_SEQUENCE = "InvalidSequenceId"
    TRANSIENT = "TransientError"
    STREAM_NOT_FOUND = "StreamNotFound"
    IDLE_TIMEOUT = "IdleTimeout"
    USER = "UserError"


class Fault(msgspec.Struct, frozen=True, gc=False):
    """An error as a client sees it. `user_code` is a sender's own, in streams."""

    name: str
    message: str = ""
    user_code: str | None = None


# -- from clients


class JoinGroup(msgspec.Struct, frozen=True, gc=False):
    group: str
    ack_id: int | None = None


class LeaveGroup(msgspec.Struct, frozen=True, gc=False):
    group: str
    ack_id: int | None = None


class SendToGroup(msgspec.Struct, frozen=True, gc=False):
    """`ttl_s` None or 0: it does not expire."""

    group: str
    data: Data
    ack_id: int | None = None
    no_echo: bool = False
    ttl_s: int | None = None
    metadata: Metadata | None = None


class SendEvent(msgspec.Struct, frozen=True, gc=False):
    event: str
    data: Data
    ack_id: int | None = None
    metadata: Metadata | None = None


class SequenceAck(msgspec.Struct, frozen=True, gc=False):
    """Everything up to `sequence_id` has been received."""

    sequence_id: int


class Ping(msgspec.Struct, frozen=True, gc=False):
    pass


class Invoke(msgspec.Struct, frozen=True, gc=False):
    invocation_id: str
    event: str
    data: Data | None = None


class CancelInvocation(msgspec.Struct, frozen=True, gc=False):
    invocation_id: str


class StartStream(msgspec.Struct, frozen=True, gc=False):
    group: str
    stream_id: str
    idle_timeout_ms: int | None = None
    no_echo: bool = False
    ttl_s: int | None = None
    metadata: Metadata | None = None


class StreamData(msgspec.Struct, frozen=True, gc=False):
    """Without `data` it only keeps the stream alive."""

    stream_id: str
    sequence_id: int | None = None
    data: Data | None = None


class StreamEnd(msgspec.Struct, frozen=True, gc=False):
    stream_id: str
    error: Fault | None = None


class SetGroupState(msgspec.Struct, frozen=True, gc=False):
    """`state` None takes it away."""

    group: str
    ack_id: int | None = None
    state: dict[str, str] | None = None


class SubscribeGroupState(msgspec.Struct, frozen=True, gc=False):
    group: str
    ack_id: int | None = None


class UnsubscribeGroupState(msgspec.Struct, frozen=True, gc=False):
    group: str
    ack_id: int | None = None


Request = (
    JoinGroup
    | LeaveGroup
    | SendToGroup
    | SendEvent
    | SequenceAck
    | Ping
    | Invoke
    | CancelInvocation
    | StartStream
    | StreamData
    | StreamEnd
    | SetGroupState
    | SubscribeGroupState
    | UnsubscribeGroupState
)


def weigh(requests: Iterable[Request]) -> int:
    """How many bytes are in what they bring, near enough to bound what may wait."""
    return sum(map(_weight, requests))


def _weight(request: Request) -> int:
    data: Data | None = getattr(request, "data", None)
    if data is not None:
        return len(data.body)
    if isinstance(request, SetGroupState) and request.state is not None:
        return sum(len(key) + len(value) for key, value in request.state.items())
    return len(request.error.message) if isinstance(request, StreamEnd) and request.error is not None else 0


# -- from the server


class Connected(msgspec.Struct, frozen=True, gc=False):
    """`reconnection_token` only where sessions can be recovered."""

    connection_id: str
    user_id: str | None = None
    reconnection_token: str | None = None


class Disconnected(msgspec.Struct, frozen=True, gc=False):
    reason: str


class Ack(msgspec.Struct, frozen=True, gc=False):
    ack_id: int
    error: Fault | None = None


class StreamPart(msgspec.Struct, frozen=True, gc=False):
    """Which part of which stream a group message is."""

    stream_id: str
    sequence_id: int
    is_end: bool = False
    error: Fault | None = None


class GroupMessage(msgspec.Struct, frozen=True, gc=False):
    """`sequence_id` only for clients that acknowledge. The end of a stream has no `data`."""

    group: str
    data: Data | None
    from_user: str | None = None
    sequence_id: int | None = None
    metadata: Metadata | None = None
    stream: StreamPart | None = None


class ServerMessage(msgspec.Struct, frozen=True, gc=False):
    data: Data
    sequence_id: int | None = None
    metadata: Metadata | None = None


class Pong(msgspec.Struct, frozen=True, gc=False):
    pass


class InvokeResponse(msgspec.Struct, frozen=True, gc=False):
    invocation_id: str
    data: Data | None = None
    error: Fault | None = None


class StreamAck(msgspec.Struct, frozen=True, gc=False):
    stream_id: str
    expected: int


class StreamNack(msgspec.Struct, frozen=True, gc=False):
    stream_id: str
    expected: int
    name: str
    message: str | None = None


class StreamClosed(msgspec.Struct, frozen=True, gc=False):
    stream_id: str
    error: Fault | None = None


class GroupStateItem(msgspec.Struct, frozen=True, gc=False):
    """What one connection has said of itself in a group. `state` None: nothing any more. `updated_at` in ms."""

    connection_id: str
    updated_at: int
    user_id: str | None = None
    state: dict[str, str] | None = None


class GroupStateSnapshot(msgspec.Struct, frozen=True, gc=False):
    group: str
    items: tuple[GroupStateItem, ...]


class GroupStateUpdate(msgspec.Struct, frozen=True, gc=False):
    group: str
    items: tuple[GroupStateItem, ...]


Response = (
    Connected
    | Disconnected
    | Ack
    | GroupMessage
    | ServerMessage
    | Pong
    | InvokeResponse
    | StreamAck
    | StreamNack
    | StreamClosed
    | GroupStateSnapshot
    | GroupStateUpdate
)
