"""Frames of the two protobuf subprotocols, `protobuf.webpubsub.azure.v1` and its reliable sister.

Who sent a group message has no field and is left out, as every server does. A fault's `user_code` has one only in
streams; elsewhere it is refused with a `LocalProtocolError`. Where a field has no presence, nothing and an empty text
are the same: metadata, the user id of `connected`, the reason of a nack, the `user_code` in a part of a stream.

The schema is read from `webpubsub.proto`. Code from `protoc` would run only with the major version of protobuf that it
was made for and the next one, and would check that at import; descriptors built from plain data work with every
version, and nobody needs `protoc` to change them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import Any

from google.protobuf import any_pb2, descriptor_pb2, descriptor_pool, message, message_factory  # type: ignore[import-untyped]
from msgspec.structs import replace

from semel.errors import InputError, LocalProtocolError
from semel.kernel.text import check_id
from semel.pubsub.protocol.frames import (
    EMPTY,
    Frame,
    FrameError,
    OneByOne,
    check_digits,
    check_uint,
    json_body,
    wrong_frame_type,
)
from semel.pubsub.protocol.messages import (
    Ack,
    CancelInvocation,
    Connected,
    Data,
    DataType,
    Disconnected,
    ErrorName,
    Fault,
    GroupMessage,
    GroupStateItem,
    GroupStateSnapshot,
    GroupStateUpdate,
    Invoke,
    InvokeResponse,
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
    SetGroupState,
    StartStream,
    StreamAck,
    StreamClosed,
    StreamData,
    StreamEnd,
    StreamNack,
    StreamPart,
    SubscribeGroupState,
    UnsubscribeGroupState,
)
from semel.pubsub.protocol.names import check_event, check_group, check_metadata, check_ttl

PACKAGE = "semel.webpubsub"
_FILE = "semel/pubsub/protocol/webpubsub.proto"

Field = tuple[str, int, str, str]
"""Name, number, label and type. A label is "", "optional", "repeated", "map" (of string to string) or the name of a
oneof."""

_FIELD = r"^ +(?:(optional|repeated|map)[ <])?(?:string, )?([\w.]+)>? (\w+) = (\d+);"


def _read_schema(text: str) -> dict[str, tuple[Field, ...]]:
    """The fields of each message. It reads what `webpubsub.proto` uses of the language, and no more."""
    schema: dict[str, tuple[Field, ...]] = {}
    for name, body in re.findall(r"message (\w+) \{\n(.*?)^\}", text, re.DOTALL | re.MULTILINE):
        oneof = next(iter(re.findall(r"oneof (\w+)", body)), "")
        fields = re.findall(_FIELD, body, re.MULTILINE)
        schema[name] = tuple((field, int(number), oneof or label, type) for label, type, field, number in fields)
    return schema


SCHEMA: Mapping[str, tuple[Field, ...]] = _read_schema(files(__package__).joinpath("webpubsub.proto").read_text())

_Field = descriptor_pb2.FieldDescriptorProto
_SCALARS = {
    "string": _Field.TYPE_STRING,
    "bytes": _Field.TYPE_BYTES,
    "bool": _Field.TYPE_BOOL,
    "int64": _Field.TYPE_INT64,
    "uint32": _Field.TYPE_UINT32,
    "uint64": _Field.TYPE_UINT64,
}


_LABELS = ("", "optional", "repeated", "map")


def _describe(name: str, fields: tuple[Field, ...]) -> descriptor_pb2.DescriptorProto:
    described = descriptor_pb2.DescriptorProto(name=name)
    oneofs = list(dict.fromkeys(label for _, _, label, _ in fields if label not in _LABELS))
    # an optional field is the only one of a oneof of its own; those stand after the real ones
    oneofs += [f"_{field}" for field, _, label, _ in fields if label == "optional"]
    for oneof in oneofs:
        described.oneof_decl.add(name=oneof)
    for field, number, label, type in fields:
        if label == "map":
            _add_map(described, field, number)
            continue
        added = _add_field(described, field, number, type)
        if label == "repeated":
            added.label = _Field.LABEL_REPEATED
        elif label:
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


class ProtobufCodec(OneByOne):
    def decode(self, frame: Frame) -> Request:
        field, wire = _parse(_Upstream, frame)
        try:
            request = _REQUEST_READERS[field](wire)
        except InputError as error:
            raise FrameError(error.message, fix=error.fix) from None
        data = getattr(request, "data", None)
        if data is not None and data.type is DataType.JSON:
            check_digits(data.body)
        return request

    def encode(self, response: Response) -> bytes:
        return _write(_Downstream, _RESPONSE_WRITERS, response)

    def encode_request(self, request: Request) -> bytes:
        return _write(_Upstream, _REQUEST_WRITERS, request)

    def decode_response(self, frame: Frame) -> Response:
        field, wire = _parse(_Downstream, frame)
        return _RESPONSE_READERS[field](wire)


# -- reading

# the end of a stream has empty data, because Microsoft's clients fail on a message that has none
_NO_TEXT = _CLASSES["MessageData"](text_data="").SerializeToString()
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


def _data_or_metadata(wire: Any) -> Data:
    """Whoever sends metadata may leave out the data."""
    return EMPTY if wire.metadata and not wire.HasField("data") else _data(wire.data)


def _optional(wire: Any, field: str) -> Any:
    return getattr(wire, field) if wire.HasField(field) else None


def _metadata(wire: Any) -> Metadata | None:
    return dict(wire.metadata) or None


def _read_send_to_group(wire: Any) -> SendToGroup | StartStream:
    group, metadata = check_group(wire.group), check_metadata(dict(wire.metadata)) or None
    ttl_s = check_ttl(wire.ttl_seconds) if wire.HasField("ttl_seconds") else None
    if not wire.HasField("stream"):
        return SendToGroup(group, _data_or_metadata(wire), _optional(wire, "ack_id"), wire.no_echo, ttl_s, metadata)
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
    return SendEvent(check_event(wire.event), _data_or_metadata(wire), _optional(wire, "ack_id"), metadata)


def _read_invoke(wire: Any) -> Invoke:
    if wire.HasField("stream"):
        raise FrameError("an invocation cannot begin a stream", fix="send the stream to a group")
    data = _data(wire.data) if wire.HasField("data") else None
    return Invoke(check_id("invocation_id", wire.invocation_id), check_event(wire.event), data)


def _read_stream_data(wire: Any) -> StreamData:
    stream_id = check_id("stream_id", wire.stream_id)
    if wire.HasField("stream_sequence_id") != wire.HasField("data"):
        raise FrameError("stream data needs a number and data", fix="send stream_sequence_id with data, or neither")
    if not wire.HasField("data"):
        return StreamData(stream_id)
    return StreamData(stream_id, wire.stream_sequence_id, _data(wire.data))


def _read_stream_end(wire: Any) -> StreamEnd:
    error = None
    if wire.HasField("error"):
        error = Fault(ErrorName.USER, wire.error.message, _optional(wire.error, "user_error_code"))
    return StreamEnd(check_id("stream_id", wire.stream_id), error)


def _state(wire: Any) -> dict[str, str] | None:
    return dict(wire.state.entries) if wire.HasField("state") else None


_REQUEST_READERS: Mapping[str, Callable[[Any], Request]] = {
    "send_to_group_message": _read_send_to_group,
    "event_message": _read_event,
    "join_group_message": lambda wire: JoinGroup(check_group(wire.group), _optional(wire, "ack_id")),
    "leave_group_message": lambda wire: LeaveGroup(check_group(wire.group), _optional(wire, "ack_id")),
    "sequence_ack_message": lambda wire: SequenceAck(wire.sequence_id),
    "ping_message": lambda _: Ping(),
    "invoke_event_message": _read_invoke,
    "cancel_invocation_message": lambda wire: CancelInvocation(check_id("invocation_id", wire.invocation_id)),
    "stream_data_message": _read_stream_data,
    "stream_end_message": _read_stream_end,
    "set_group_state_message": lambda w: SetGroupState(check_group(w.group), _optional(w, "ack_id"), _state(w)),
    "subscribe_group_state_message": lambda w: SubscribeGroupState(check_group(w.group), _optional(w, "ack_id")),
    "unsubscribe_group_state_message": lambda w: UnsubscribeGroupState(check_group(w.group), _optional(w, "ack_id")),
}


def _read_ack(wire: Any) -> Ack:
    if wire.success == wire.HasField("error"):
        raise FrameError("an ack has an error when it is no success, and only then", fix="send one of the two")
    return Ack(wire.ack_id, _fault(wire))


def _fault(wire: Any) -> Fault | None:
    return Fault(wire.error.name, wire.error.message) if wire.HasField("error") else None


def _read_message(wire: Any) -> GroupMessage | ServerMessage:
    origin, sequence_id, metadata = getattr(wire, "from"), _optional(wire, "sequence_id"), _metadata(wire)
    if origin == "group" and wire.HasField("group"):
        part = _part(wire.stream) if wire.HasField("stream") else None
        is_bare = part is not None and part.is_end and wire.data.SerializeToString() in (b"", _NO_TEXT)
        return GroupMessage(wire.group, None if is_bare else _data(wire.data), None, sequence_id, metadata, part)
    if origin == "server":
        return ServerMessage(_data(wire.data), sequence_id, metadata)
    raise FrameError("a message from nowhere", fix="send it from group, with a group, or from server")


def _part(wire: Any) -> StreamPart:
    error = None
    if wire.HasField("error"):
        error = Fault(wire.error.name, wire.error.message, wire.error.user_error_code or None)
    return StreamPart(wire.stream_id, wire.stream_sequence_id, wire.end_of_stream, error)


def _read_invoke_response(wire: Any) -> InvokeResponse:
    if wire.success == wire.HasField("error"):
        raise FrameError("a response has an error when it is no success, and only then", fix="send one of the two")
    data = _data(wire.data) if wire.HasField("data") else None
    return InvokeResponse(wire.invocation_id, data, _fault(wire))


def _items(wire: Any) -> tuple[GroupStateItem, ...]:
    return tuple(
        GroupStateItem(
            item.connection_id, check_uint("updated_at", item.updated_at), _optional(item, "user_id"), _state(item)
        )
        for item in wire.items
    )


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
    "invoke_response_message": _read_invoke_response,
    "stream_ack_message": lambda wire: StreamAck(wire.stream_id, wire.expected_sequence_id),
    "stream_nack_message": lambda w: StreamNack(w.stream_id, w.expected_sequence_id, w.name, w.message or None),
    "stream_closed_message": lambda wire: StreamClosed(wire.stream_id, _fault(wire)),
    "group_state_update_message": lambda wire: GroupStateUpdate(wire.group, _items(wire)),
    "group_state_snapshot_message": lambda wire: GroupStateSnapshot(wire.group, _items(wire)),
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
        raise LocalProtocolError("a message without data", fix="give it data: only the end of a stream has none")
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


def _write_invoke(request: Invoke) -> dict[str, Any]:
    fields: dict[str, Any] = {"event": request.event, "invocation_id": request.invocation_id}
    if request.data is not None:
        fields["data"] = _write_data(request.data)
    return {"invoke_event_message": fields}


def _write_stream_data(request: StreamData) -> dict[str, Any]:
    fields: dict[str, Any] = {"stream_id": request.stream_id, "stream_sequence_id": request.sequence_id}
    if (request.sequence_id is None) != (request.data is None):
        raise LocalProtocolError("stream data needs a number and data", fix="give both, or neither to keep it alive")
    if request.data is not None:
        fields["data"] = _write_data(request.data)
    return {"stream_data_message": fields}


def _write_stream_end(request: StreamEnd) -> dict[str, Any]:
    fields: dict[str, Any] = {"stream_id": request.stream_id}
    if request.error is not None:
        fields["error"] = {"message": request.error.message or None, "user_error_code": request.error.user_code}
    return {"stream_end_message": fields}


def _write_state(state: dict[str, str] | None) -> dict[str, Any] | None:
    return {"entries": state} if state is not None else None


_REQUEST_WRITERS: Mapping[type, Callable[[Any], dict[str, Any]]] = {
    SendToGroup: _write_send_to_group,
    StartStream: _write_start_stream,
    SendEvent: _write_event,
    JoinGroup: lambda request: {"join_group_message": {"group": request.group, "ack_id": request.ack_id}},
    LeaveGroup: lambda request: {"leave_group_message": {"group": request.group, "ack_id": request.ack_id}},
    SequenceAck: lambda request: {"sequence_ack_message": {"sequence_id": request.sequence_id}},
    Ping: lambda _: {"ping_message": {}},
    Invoke: _write_invoke,
    CancelInvocation: lambda request: {"cancel_invocation_message": {"invocation_id": request.invocation_id}},
    StreamData: _write_stream_data,
    StreamEnd: _write_stream_end,
    SetGroupState: lambda request: {
        "set_group_state_message": {
            "group": request.group,
            "ack_id": request.ack_id,
            "state": _write_state(request.state),
        }
    },
    SubscribeGroupState: lambda request: {
        "subscribe_group_state_message": {"group": request.group, "ack_id": request.ack_id}
    },
    UnsubscribeGroupState: lambda request: {
        "unsubscribe_group_state_message": {"group": request.group, "ack_id": request.ack_id}
    },
}


def _write_ack(ack: Ack) -> dict[str, Any]:
    fields: dict[str, Any] = {"ack_id": ack.ack_id, "success": ack.error is None}
    return {"ack_message": fields | _write_fault(ack.error)}


def _write_fault(fault: Fault | None) -> dict[str, Any]:
    if fault is None:
        return {}
    if fault.user_code is not None:
        raise _inexpressible("a user_code")
    return {"error": {"name": fault.name, "message": fault.message}}


def _write_message(origin: str, response: GroupMessage | ServerMessage) -> dict[str, Any]:
    fields: dict[str, Any] = {"from": origin, "data": _write_data(response.data), "metadata": response.metadata}
    fields["sequence_id"] = response.sequence_id
    return fields


def _write_group_message(response: GroupMessage) -> dict[str, Any]:
    part = response.stream
    if part is None:
        return {"data_message": _write_message("group", response) | {"group": response.group}}
    if response.data is None and part.is_end:
        response = replace(response, data=EMPTY)
    fields = _write_message("group", response)
    return {"data_message": fields | {"group": response.group, "stream": _write_part(part)}}


def _write_part(part: StreamPart) -> dict[str, Any]:
    fields: dict[str, Any] = {"stream_id": part.stream_id, "stream_sequence_id": part.sequence_id}
    if part.is_end:
        fields["end_of_stream"] = True
    if part.error is not None:
        error = {"name": part.error.name, "message": part.error.message}
        fields["error"] = error | {"user_error_code": part.error.user_code or ""}
    return fields


def _write_invoke_response(response: InvokeResponse) -> dict[str, Any]:
    fields: dict[str, Any] = {"invocation_id": response.invocation_id, "success": response.error is None}
    if response.data is not None:
        if response.error is not None:
            raise LocalProtocolError("a response with data and an error", fix="give one of the two")
        fields["data"] = _write_data(response.data)
    return {"invoke_response_message": fields | _write_fault(response.error)}


def _write_nack(nack: StreamNack) -> dict[str, Any]:
    fields = {"stream_id": nack.stream_id, "name": nack.name, "message": nack.message or ""}
    return {"stream_nack_message": {**fields, "expected_sequence_id": nack.expected}}


def _write_states(response: GroupStateSnapshot | GroupStateUpdate) -> dict[str, Any]:
    items = [
        {
            "connection_id": item.connection_id,
            "user_id": item.user_id,
            "state": _write_state(item.state),
            "updated_at": item.updated_at,
        }
        for item in response.items
    ]
    return {"group": response.group, "items": items}


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
    InvokeResponse: _write_invoke_response,
    StreamAck: lambda r: {"stream_ack_message": {"stream_id": r.stream_id, "expected_sequence_id": r.expected}},
    StreamNack: _write_nack,
    StreamClosed: lambda r: {"stream_closed_message": {"stream_id": r.stream_id} | _write_fault(r.error)},
    GroupStateUpdate: lambda response: {"group_state_update_message": _write_states(response)},
    GroupStateSnapshot: lambda response: {"group_state_snapshot_message": _write_states(response)},
}
