"""Frames of the two protobuf subprotocols, `protobuf.webpubsub.azure.v1` and its reliable sister.

Protobuf has no fields for invocations, for the data, end and acks of streams, and for the state of groups: writing one
of them is a `LocalProtocolError`. It can begin a stream, but not go on with it, and it cannot say which part of a
stream a message is. Who sent a group message has no field either and is left out, as every server does; nor has a
fault's `user_code`, which is refused. Empty metadata is no metadata, and an empty user id is no user id.

The schema is `webpubsub.proto`, made here from a table. Code from `protoc` would run only with the major version of
protobuf that it was made for and the next one, and would check that at import; descriptors built from plain data work
with every version, and nobody needs `protoc` to change them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from google.protobuf import any_pb2, descriptor_pb2, descriptor_pool, message, message_factory  # type: ignore[import-untyped]

from semel.errors import InputError, LocalProtocolError
from semel.kernel.text import check_id
from semel.pubsub.frames import Frame, FrameError, json_body, wrong_frame_type
from semel.pubsub.messages import (
    Ack,
    Connected,
    Data,
    DataType,
    Disconnected,
    Fault,
    GroupMessage,
    JoinGroup,
    LeaveGroup,
    Metadata,
    Ping,
    Pong,
    Request,
    Response,
    SendEvent,
    SendToGroup,
    SequenceAck,
    ServerMessage,
    StartStream,
)
from semel.pubsub.names import check_event, check_group, check_metadata, check_ttl

PACKAGE = "semel.webpubsub"
_FILE = "semel/pubsub/webpubsub.proto"
_ANY = "google.protobuf.Any"

# message: field number label type; a label is "", "optional", "map" (of string to string) or the name of a oneof
SCHEMA: Mapping[str, tuple[tuple[str, int, str, str], ...]] = {
    "UpstreamMessage": (
        ("send_to_group_message", 1, "message", "SendToGroupMessage"),
        ("event_message", 5, "message", "EventMessage"),
        ("join_group_message", 6, "message", "JoinGroupMessage"),
        ("leave_group_message", 7, "message", "LeaveGroupMessage"),
        ("sequence_ack_message", 8, "message", "SequenceAckMessage"),
        ("ping_message", 9, "message", "PingMessage"),
    ),
    "SendToGroupMessage": (
        ("group", 1, "", "string"),
        ("ack_id", 2, "optional", "uint64"),
        ("data", 3, "", "MessageData"),
        ("no_echo", 4, "optional", "bool"),
        ("ttl_seconds", 5, "optional", "uint32"),
        ("metadata", 6, "map", "string"),
        ("stream", 7, "", "StreamStartInfo"),
    ),
    "EventMessage": (
        ("event", 1, "", "string"),
        ("data", 2, "", "MessageData"),
        ("ack_id", 3, "optional", "uint64"),
        ("metadata", 4, "map", "string"),
        ("stream", 5, "", "StreamStartInfo"),
    ),
    "JoinGroupMessage": (("group", 1, "", "string"), ("ack_id", 2, "optional", "uint64")),
    "LeaveGroupMessage": (("group", 1, "", "string"), ("ack_id", 2, "optional", "uint64")),
    "SequenceAckMessage": (("sequence_id", 1, "", "uint64"),),
    "PingMessage": (),
    "StreamStartInfo": (("stream_id", 1, "", "string"), ("idle_timeout_ms", 2, "optional", "uint32")),
    "MessageData": (
        ("text_data", 1, "data", "string"),
        ("binary_data", 2, "data", "bytes"),
        ("protobuf_data", 3, "data", _ANY),
        ("json_data", 4, "data", "string"),
    ),
    "DownstreamMessage": (
        ("ack_message", 1, "message", "AckMessage"),
        ("data_message", 2, "message", "DataMessage"),
        ("system_message", 3, "message", "SystemMessage"),
        ("pong_message", 4, "message", "PongMessage"),
    ),
    "AckMessage": (
        ("ack_id", 1, "", "uint64"),
        ("success", 2, "", "bool"),
        ("error", 3, "optional", "ErrorMessage"),
    ),
    "ErrorMessage": (("name", 1, "", "string"), ("message", 2, "", "string")),
    "DataMessage": (
        ("from", 1, "", "string"),
        ("group", 2, "optional", "string"),
        ("data", 3, "", "MessageData"),
        ("sequence_id", 4, "optional", "uint64"),
        ("metadata", 5, "map", "string"),
    ),
    "SystemMessage": (
        ("connected_message", 1, "message", "ConnectedMessage"),
        ("disconnected_message", 2, "message", "DisconnectedMessage"),
    ),
    "ConnectedMessage": (
        ("connection_id", 1, "", "string"),
        ("user_id", 2, "", "string"),
        ("reconnection_token", 3, "optional", "string"),
    ),
    "DisconnectedMessage": (("reason", 2, "", "string"),),
    "PongMessage": (),
}

_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "string": _Field.TYPE_STRING,
    "bytes": _Field.TYPE_BYTES,
    "bool": _Field.TYPE_BOOL,
    "uint32": _Field.TYPE_UINT32,
    "uint64": _Field.TYPE_UINT64,
}


def _describe(name: str, fields: tuple[tuple[str, int, str, str], ...]) -> descriptor_pb2.DescriptorProto:
    described = descriptor_pb2.DescriptorProto(name=name)
    oneofs = list(dict.fromkeys(label for _, _, label, _ in fields if label not in ("", "optional", "map")))
    # an optional field is the only one of a oneof of its own; those stand after the real ones
    oneofs += [f"_{field}" for field, _, label, _ in fields if label == "optional"]
    for oneof in oneofs:
        described.oneof_decl.add(name=oneof)
    for field, number, label, type in fields:
        if label == "map":
            _add_map(described, field, number)
            continue
        added = _add_field(described, field, number, type)
        if label:
            added.oneof_index = oneofs.index(f"_{field}" if label == "optional" else label)
            added.proto3_optional = label == "optional"
    return described


def _add_field(described: descriptor_pb2.DescriptorProto, field: str, number: int, type: str) -> Any:
    added = described.field.add(name=field, number=number, label=_Field.LABEL_OPTIONAL)
    if type in _SCALARS:
        added.type = _SCALARS[type]
    else:
        added.type = _Field.TYPE_MESSAGE
        added.type_name = f".{type}" if "." in type else f".{PACKAGE}.{type}"
    return added


def _add_map(described: descriptor_pb2.DescriptorProto, field: str, number: int) -> None:
    entry = described.nested_type.add(name=f"{field.capitalize()}Entry")
    entry.options.map_entry = True
    _add_field(entry, "key", 1, "string")
    _add_field(entry, "value", 2, "string")
    added = _add_field(described, field, number, f"{PACKAGE}.{described.name}.{entry.name}")
    added.label = _Field.LABEL_REPEATED


def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(
        name=_FILE, package=PACKAGE, syntax="proto3", dependency=[any_pb2.DESCRIPTOR.name]
    )
    file.message_type.extend(_describe(name, fields) for name, fields in SCHEMA.items())
    pool = descriptor_pool.Default()
    pool.AddSerializedFile(file.SerializeToString())
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}")) for name in SCHEMA}


_CLASSES = _classes()
_Upstream, _Downstream = _CLASSES["UpstreamMessage"], _CLASSES["DownstreamMessage"]


class ProtobufCodec:
    def decode(self, frame: Frame) -> Request:
        field, wire = _parse(_Upstream, frame)
        try:
            return _REQUEST_READERS[field](wire)
        except InputError as error:
            raise FrameError(error.message, fix=error.fix) from None

    def encode(self, response: Response) -> bytes:
        return _write(_Downstream, _RESPONSE_WRITERS, response)

    def encode_request(self, request: Request) -> bytes:
        return _write(_Upstream, _REQUEST_WRITERS, request)

    def decode_response(self, frame: Frame) -> Response:
        field, wire = _parse(_Downstream, frame)
        return _RESPONSE_READERS[field](wire)


# -- reading

# the second from protobuf in pure Python, which is what there is where no wheel fits
_UNREADABLE = (message.DecodeError, UnicodeDecodeError)


def _parse(type: Any, frame: Frame) -> tuple[str, Any]:
    """The one message in the frame, and the name of its field."""
    if not isinstance(frame, bytes):
        raise wrong_frame_type("binary")
    try:
        wire = type.FromString(frame)
    except _UNREADABLE as error:
        raise FrameError(f"not a frame of this subprotocol: {error}", fix="see webpubsub.proto") from None
    field = wire.WhichOneof("message")
    if field is None:
        raise FrameError("a frame without a known message", fix="see webpubsub.proto")
    return field, getattr(wire, field)


def check_any(body: bytes) -> bytes:
    """Return `body` when it is a serialized `Any`."""
    try:
        any_pb2.Any.FromString(body)
    except _UNREADABLE:
        raise FrameError("the data is not a serialized Any", fix="pack the message into google.protobuf.Any") from None
    return body


def _data(wire: Any) -> Data:
    field = wire.WhichOneof("data")
    if field == "json_data":
        return Data(DataType.JSON, json_body(wire.json_data))
    if field == "text_data":
        return Data(DataType.TEXT, wire.text_data.encode())
    if field == "binary_data":
        return Data(DataType.BINARY, wire.binary_data)
    if field == "protobuf_data":
        return Data(DataType.PROTOBUF, wire.protobuf_data.SerializeToString(deterministic=True))
    raise FrameError("the data is missing", fix="send one of text_data, binary_data, protobuf_data and json_data")


def _optional(wire: Any, field: str) -> Any:
    return getattr(wire, field) if wire.HasField(field) else None


def _metadata(wire: Any) -> Metadata | None:
    return dict(wire.metadata) or None


def _read_send_to_group(wire: Any) -> SendToGroup | StartStream:
    group, metadata = check_group(wire.group), check_metadata(dict(wire.metadata)) or None
    ttl_s = check_ttl(wire.ttl_seconds) if wire.HasField("ttl_seconds") else None
    if not wire.HasField("stream"):
        return SendToGroup(group, _data(wire.data), _optional(wire, "ack_id"), wire.no_echo, ttl_s, metadata)
    if wire.HasField("data") or wire.HasField("ack_id"):
        raise FrameError("a stream begins without data and ack_id", fix="leave them out")
    idle_timeout_ms = _optional(wire.stream, "idle_timeout_ms")
    if idle_timeout_ms == 0:
        raise FrameError("idle_timeout_ms is 0", fix="leave it out, or send how long the stream may be idle")
    stream_id = check_id("stream_id", wire.stream.stream_id)
    return StartStream(group, stream_id, idle_timeout_ms, wire.no_echo, ttl_s, metadata)


def _read_event(wire: Any) -> SendEvent:
    if wire.HasField("stream"):
        raise FrameError("an event cannot begin a stream", fix="send the stream to a group")
    metadata = check_metadata(dict(wire.metadata)) or None
    return SendEvent(check_event(wire.event), _data(wire.data), _optional(wire, "ack_id"), metadata)


_REQUEST_READERS: Mapping[str, Callable[[Any], Request]] = {
    "send_to_group_message": _read_send_to_group,
    "event_message": _read_event,
    "join_group_message": lambda wire: JoinGroup(check_group(wire.group), _optional(wire, "ack_id")),
    "leave_group_message": lambda wire: LeaveGroup(check_group(wire.group), _optional(wire, "ack_id")),
    "sequence_ack_message": lambda wire: SequenceAck(wire.sequence_id),
    "ping_message": lambda _: Ping(),
}


def _read_ack(wire: Any) -> Ack:
    if wire.success == wire.HasField("error"):
        raise FrameError("an ack has an error when it is no success, and only then", fix="send one of the two")
    return Ack(wire.ack_id, Fault(wire.error.name, wire.error.message) if wire.HasField("error") else None)


def _read_message(wire: Any) -> GroupMessage | ServerMessage:
    origin, sequence_id, metadata = getattr(wire, "from"), _optional(wire, "sequence_id"), _metadata(wire)
    if origin == "group" and wire.HasField("group"):
        return GroupMessage(wire.group, _data(wire.data), None, sequence_id, metadata)
    if origin == "server":
        return ServerMessage(_data(wire.data), sequence_id, metadata)
    raise FrameError("a message from nowhere", fix="send it from group, with a group, or from server")


def _read_system(wire: Any) -> Connected | Disconnected:
    field = wire.WhichOneof("message")
    if field == "connected_message":
        connected = wire.connected_message
        return Connected(connected.connection_id, connected.user_id or None, _optional(connected, "reconnection_token"))
    if field == "disconnected_message":
        return Disconnected(wire.disconnected_message.reason)
    raise FrameError("an unknown system event", fix="see webpubsub.proto")


_RESPONSE_READERS: Mapping[str, Callable[[Any], Response]] = {
    "ack_message": _read_ack,
    "data_message": _read_message,
    "system_message": _read_system,
    "pong_message": lambda _: Pong(),
}


# -- writing


def _write(type_: Any, writers: Mapping[type, Callable[[Any], dict[str, Any]]], value: Request | Response) -> bytes:
    writer = writers.get(type(value))
    if writer is None:
        raise _inexpressible(type(value).__name__)
    try:
        # deterministic, because otherwise the same metadata would make other bytes in every run
        return type_(**writer(value)).SerializeToString(deterministic=True)  # type: ignore[no-any-return]
    except (ValueError, message.DecodeError) as error:
        raise LocalProtocolError(f"protobuf cannot carry this: {error}", fix="send Unicode and uint64 only") from None


def _inexpressible(what: str) -> LocalProtocolError:
    return LocalProtocolError(f"protobuf has no field for {what}", fix="use a JSON subprotocol for it")


def _write_data(data: Data | None) -> dict[str, Any]:
    if data is None:
        raise _inexpressible("the end of a stream")
    if data.type is DataType.JSON:
        return {"json_data": data.body.decode()}
    if data.type is DataType.TEXT:
        return {"text_data": data.body.decode()}
    if data.type is DataType.BINARY:
        return {"binary_data": data.body}
    return {"protobuf_data": any_pb2.Any.FromString(data.body)}


def _write_send_to_group(request: SendToGroup) -> dict[str, Any]:
    fields: dict[str, Any] = {"group": request.group, "data": _write_data(request.data), "metadata": request.metadata}
    fields |= {"ack_id": request.ack_id, "no_echo": request.no_echo or None, "ttl_seconds": request.ttl_s}
    return {"send_to_group_message": fields}


def _write_start_stream(request: StartStream) -> dict[str, Any]:
    stream = {"stream_id": request.stream_id, "idle_timeout_ms": request.idle_timeout_ms}
    fields = {"group": request.group, "stream": stream, "metadata": request.metadata}
    return {"send_to_group_message": fields | {"no_echo": request.no_echo or None, "ttl_seconds": request.ttl_s}}


def _write_event(request: SendEvent) -> dict[str, Any]:
    fields = {"event": request.event, "data": _write_data(request.data), "ack_id": request.ack_id}
    return {"event_message": fields | {"metadata": request.metadata}}


_REQUEST_WRITERS: Mapping[type, Callable[[Any], dict[str, Any]]] = {
    SendToGroup: _write_send_to_group,
    StartStream: _write_start_stream,
    SendEvent: _write_event,
    JoinGroup: lambda request: {"join_group_message": {"group": request.group, "ack_id": request.ack_id}},
    LeaveGroup: lambda request: {"leave_group_message": {"group": request.group, "ack_id": request.ack_id}},
    SequenceAck: lambda request: {"sequence_ack_message": {"sequence_id": request.sequence_id}},
    Ping: lambda _: {"ping_message": {}},
}


def _write_ack(ack: Ack) -> dict[str, Any]:
    fields: dict[str, Any] = {"ack_id": ack.ack_id, "success": ack.error is None}
    if ack.error is not None:
        if ack.error.user_code is not None:
            raise _inexpressible("a user_code")
        fields["error"] = {"name": ack.error.name, "message": ack.error.message}
    return {"ack_message": fields}


def _write_message(origin: str, response: GroupMessage | ServerMessage) -> dict[str, Any]:
    fields: dict[str, Any] = {"from": origin, "data": _write_data(response.data), "metadata": response.metadata}
    fields["sequence_id"] = response.sequence_id
    return fields


def _write_group_message(response: GroupMessage) -> dict[str, Any]:
    if response.stream is not None:
        raise _inexpressible("a part of a stream")
    return {"data_message": _write_message("group", response) | {"group": response.group}}


def _write_connected(response: Connected) -> dict[str, Any]:
    fields = {"connection_id": response.connection_id, "user_id": response.user_id}
    return {"system_message": {"connected_message": fields | {"reconnection_token": response.reconnection_token}}}


_RESPONSE_WRITERS: Mapping[type, Callable[[Any], dict[str, Any]]] = {
    Connected: _write_connected,
    Disconnected: lambda response: {"system_message": {"disconnected_message": {"reason": response.reason}}},
    Ack: _write_ack,
    GroupMessage: _write_group_message,
    ServerMessage: lambda response: {"data_message": _write_message("server", response)},
    Pong: lambda _: {"pong_message": {}},
}
