"""Frames of the two JSON subprotocols, `json.webpubsub.azure.v1` and its reliable sister.

The structs below are the frames, member by member and in the order in which they are written; some clients compare the
text. Reading is strict where a mistake could mean two things: every member once, and of its type. It is lenient where
it cannot: `type` and `dataType` in any case, members that nobody knows are skipped, null is the same as absent, except
for `data`. Data stays as it was written, byte by byte, so that large numbers, the order of keys and even doubled keys
within it reach the subscribers as they are.
"""

from __future__ import annotations

import binascii
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, reduce
from operator import or_
from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType
from msgspec.structs import astuple

from semel.errors import InputError, LocalProtocolError
from semel.kernel.text import check_id
from semel.pubsub.protocol.frames import (
    DEPTH_MAX,
    DIGITS_MAX,
    EMPTY,
    UINT32_MAX,
    UINT64_MAX,
    Frame,
    FrameError,
    Plain,
    check_depth,
    check_digits,
    check_not_null,
    check_uint,
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
from semel.websocket import text_head


class _Members(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, rename="camel"):
    """A JSON object. A member that is None is not written, and one that is UNSET was not there."""


class _Frame(_Members, frozen=True, gc=False, tag_field="type", tag=False):
    pass


# -- from clients


class _JoinGroup(_Frame, frozen=True, gc=False, tag="joinGroup"):
    group: str
    ack_id: int | None = None


class _LeaveGroup(_Frame, frozen=True, gc=False, tag="leaveGroup"):
    group: str
    ack_id: int | None = None


class _NewStream(_Members, frozen=True, gc=False):
    stream_id: str
    idle_timeout_ms: int | None = None


class _SendToGroup(_Frame, frozen=True, gc=False, tag="sendToGroup"):
    group: str
    ack_id: int | None = None
    no_echo: bool | None = None
    ttl_seconds: int | None = None
    data_type: str | None = None
    data: Raw | UnsetType = UNSET
    metadata: Metadata | None = None
    stream: _NewStream | None = None


class _Event(_Frame, frozen=True, gc=False, tag="event"):
    event: str
    ack_id: int | None = None
    data_type: str | None = None
    data: Raw | UnsetType = UNSET
    metadata: Metadata | None = None


class _SequenceAck(_Frame, frozen=True, gc=False, tag="sequenceAck"):
    sequence_id: int


class _OldSequenceAck(_Frame, frozen=True, gc=False, tag="ack"):
    sequence_id: int


class _Ping(_Frame, frozen=True, gc=False, tag="ping"):
    pass


class _Invoke(_Frame, frozen=True, gc=False, tag="invoke"):
    invocation_id: str
    target: str | None = None
    event: str | None = None
    data_type: str | None = None
    data: Raw | UnsetType = UNSET


class _CancelInvocation(_Frame, frozen=True, gc=False, tag="cancelInvocation"):
    invocation_id: str


class _StreamData(_Frame, frozen=True, gc=False, tag="streamData"):
    stream_id: str
    stream_sequence_id: int | None = None
    data_type: str | None = None
    data: Raw | UnsetType = UNSET


class _SenderError(_Members, frozen=True, gc=False):
    message: str | None = None
    user_error_code: str | None = None


class _StreamEnd(_Frame, frozen=True, gc=False, tag="streamEnd"):
    stream_id: str
    error: _SenderError | None = None


class _SetGroupState(_Frame, frozen=True, gc=False, tag="setGroupState"):
    group: str
    ack_id: int | None = None
    state: dict[str, str] | None = None


class _SubscribeGroupState(_Frame, frozen=True, gc=False, tag="subscribeGroupState"):
    group: str
    ack_id: int | None = None


class _UnsubscribeGroupState(_Frame, frozen=True, gc=False, tag="unsubscribeGroupState"):
    group: str
    ack_id: int | None = None


# -- from the server


class _System(_Frame, frozen=True, gc=False, tag="system"):
    event: str
    user_id: str | UnsetType | None = UNSET
    connection_id: str | None = None
    reconnection_token: str | None = None
    message: str | None = None


class _Error(_Members, frozen=True, gc=False):
    name: str
    message: str | UnsetType | None = UNSET
    user_error_code: str | None = None


class _Ack(_Frame, frozen=True, gc=False, tag="ack"):
    ack_id: int
    success: bool
    error: _Error | None = None


class _Part(_Members, frozen=True, gc=False):
    stream_id: str
    stream_sequence_id: int
    end_of_stream: bool | None = None
    error: _Error | None = None


class _Message(_Frame, frozen=True, gc=False, tag="message"):
    origin: str = msgspec.field(name="from")
    group: str | None = None
    from_user_id: str | UnsetType | None = UNSET
    data_type: str | None = None
    data: Raw | UnsetType = UNSET
    metadata: Metadata | None = None
    sequence_id: int | None = None
    stream: _Part | None = None


class _Pong(_Frame, frozen=True, gc=False, tag="pong"):
    pass


class _InvokeResponse(_Frame, frozen=True, gc=False, tag="invokeResponse"):
    invocation_id: str
    success: bool
    data_type: str | None = None
    data: Raw | UnsetType = UNSET
    error: _Error | None = None


class _StreamAck(_Frame, frozen=True, gc=False, tag="streamAck"):
    stream_id: str
    expected_sequence_id: int


class _StreamNack(_Frame, frozen=True, gc=False, tag="streamNack"):
    stream_id: str
    expected_sequence_id: int
    name: str
    message: str | None = None


class _StreamClosed(_Frame, frozen=True, gc=False, tag="streamClosed"):
    stream_id: str
    error: _Error | None = None


class _Item(_Members, frozen=True, gc=False, kw_only=True):
    connection_id: str
    user_id: str | None = None
    state: dict[str, str] | None = None
    updated_at: int


class _GroupStateSnapshot(_Frame, frozen=True, gc=False, tag="groupStateSnapshot"):
    group: str
    items: tuple[_Item, ...]


class _GroupStateUpdate(_Frame, frozen=True, gc=False, tag="groupStateUpdate"):
    group: str
    items: tuple[_Item, ...]


_DATA_FRAMES = (_SendToGroup, _Event, _Invoke, _StreamData)

# looking up a member of an enum costs as much as making the message
_JSON, _TEXT, _PROTOBUF = DataType.JSON, DataType.TEXT, DataType.PROTOBUF

_encode = msgspec.json.Encoder().encode
_text = msgspec.json.Decoder(str)
_members = msgspec.json.Decoder(dict[str, Raw])


class JsonCodec:
    def decode(self, frame: Frame) -> Request:
        if not isinstance(frame, str):
            raise wrong_frame_type("text")
        if len(frame) > DIGITS_MAX:
            check_digits(frame.encode(errors="replace"))
        colons = frame.count(":")
        wire = _parse(_requests, frame, colons)
        if colons == _PLAIN_COLONS and type(wire) is _SendToGroup:
            plain = _read_plain(wire)
            if plain is not None:
                return plain
        if not _has_each_member_once(frame, wire, colons):
            _check_members(frame)
        try:
            return _REQUEST_READERS[type(wire)](wire)
        except InputError as error:
            raise FrameError(error.message, fix=error.fix) from None

    def encode(self, response: Response) -> str:
        return _write(_RESPONSE_WRITERS[type(response)](response))

    def ack_frames(self, ack_ids: Sequence[int]) -> bytes:
        return b"".join([_ack(b"%d" % ack_id) for ack_id in ack_ids])

    def group_frames(self, group: str, messages: Sequence[Plain], first: int | None) -> bytes:
        """All but the data and the number of a message is mostly as in the one before."""
        parts: list[bytes] = []
        before: tuple[str | None, DataType] | None = None
        head, end = b"", b"}"
        for number, (user, kind, body) in enumerate(messages, first or 0):
            if (user, kind) != before:
                before = user, kind
                head = _message_head(group, user, kind)
            if first is not None:
                end = b',"sequenceId":%d}' % number
            raw = _raw_bytes(kind, body)
            parts += (text_head(len(head) + len(raw) + len(end)), head, raw, end)
        return b"".join(parts)

    def encode_request(self, request: Request) -> str:
        return _write(_REQUEST_WRITERS[type(request)](request))

    def decode_response(self, frame: Frame) -> Response:
        """What the server says twice counts as it was said last: only requests are looked at that closely."""
        if not isinstance(frame, str):
            raise wrong_frame_type("text")
        wire = _parse(_responses, frame, frame.count(":"))
        return _RESPONSE_READERS[type(wire)](wire)


# -- reading


def _parse(decoder: msgspec.json.Decoder[Any], frame: str, colons: int) -> _Frame:
    # the quick half of check_depth, quicker: finding out that there is no bracket takes no time
    if colons + (frame.count("[") if "[" in frame else 0) >= DEPTH_MAX:
        check_depth(frame)
    try:
        try:
            return decoder.decode(frame)  # type: ignore[no-any-return]
        except msgspec.ValidationError as error:
            return decoder.decode(_respelled(frame, error))  # type: ignore[no-any-return]
    except (msgspec.DecodeError, UnicodeError) as error:
        raise FrameError(f"not a frame of this subprotocol: {error}", fix="see the subprotocol's messages") from None


def _respelled(frame: str, error: msgspec.ValidationError) -> bytes:
    """The frame with its type spelled as here. When that was not the mistake, the mistake stands."""
    members = _members.decode(frame)
    given = _text.decode(members.get("type", b"null"))
    type = _SPELLINGS.get(given.lower(), given)
    if type == given:
        raise error
    _check_members(frame)
    return _encode(members | {"type": type})


def _has_each_member_once(frame: str, wire: _Frame, colons: int) -> bool:
    """True only when it is so; False also when only a closer look can tell.

    Each member has a colon. So when there are no more colons than the members that were found, and than those in their
    values, no member can be there twice. In a text without backslashes they can be counted in the values as read.
    """
    values = astuple(wire)
    spare = colons - 1 - len(values) + values.count(None)
    if isinstance(wire, _DATA_FRAMES):
        if wire.data is UNSET:
            spare += 1
        elif spare:
            spare -= bytes(wire.data).count(b":")
    if spare and "\\" not in frame:
        spare -= sum([_colons_in(value) for value in values if value is not None])
    return spare == 0


def _colons_in(value: object) -> int:
    if isinstance(value, str):
        return value.count(":")
    if isinstance(value, dict):
        return len(value) + sum(map(_colons_in, value)) + sum(map(_colons_in, value.values()))
    if isinstance(value, _Members):
        values = astuple(value)
        return len(values) - values.count(None) + sum(map(_colons_in, values))
    return 0


class _Pairs(list[tuple[str, Any]]):
    """A JSON object with its members as they stand there."""


def _check_members(frame: str) -> None:
    """Refuse a frame that says something twice. Its `data` is the application's own and may."""
    # numbers stay text: none is needed, and one of them might be too long for an int
    _refuse_doubles(json.loads(frame, object_pairs_hook=_Pairs, parse_int=str, parse_float=str))


def _refuse_doubles(pairs: _Pairs) -> None:
    seen: set[str] = set()
    for name, value in pairs:
        if name in seen:
            raise FrameError(f"the member {name[:64]!r} is there twice", fix="send every member once")
        seen.add(name)
        if name != "data" and isinstance(value, _Pairs):
            _refuse_doubles(value)


_DATA_TYPES = {str(type): type for type in DataType}
_QUOTE = ord('"')


def _data(name: str | None, raw: Raw | UnsetType) -> Data:
    if raw is UNSET:
        raise FrameError("the data is missing", fix="send it in the member data")
    type = _JSON if name is None else _DATA_TYPES.get(name) or _DATA_TYPES.get(name.lower())
    body = bytes(raw)
    if type is _JSON:
        return Data(_JSON, body if body != b"null" else check_not_null(body))
    if type is None:
        raise FrameError("the dataType is unknown", fix=f"use one of {', '.join(_DATA_TYPES)}")
    if body[0] != _QUOTE:
        raise FrameError(f"data of the type {type} is a string", fix="send a string, or use the dataType json")
    body = body[1:-1] if b"\\" not in body else _text.decode(body).encode()
    return Data(_TEXT, body) if type is _TEXT else Data(type, _bytes(type, body))


def _data_or_metadata(wire: _SendToGroup | _Event) -> Data:
    """Whoever sends metadata may leave out the data."""
    if wire.data is UNSET and wire.metadata is not None:
        return EMPTY
    return _data(wire.data_type, wire.data)


def _bytes(type: DataType, base64: bytes) -> bytes:
    try:
        body = binascii.a2b_base64(base64, strict_mode=True)
    except binascii.Error as error:
        raise FrameError(f"the data is not base64: {error}", fix="encode the bytes in base64, with padding") from None
    if type is _PROTOBUF:
        from semel.pubsub.protocol.frames_protobuf import check_any  # only here: JSON alone can do without the package

        check_any(body)
    return body


def _ack_id(value: int | None) -> int | None:
    return value if value is None or 0 <= value <= UINT64_MAX else check_uint("ackId", value)


def _read_send_to_group(wire: _SendToGroup) -> SendToGroup | StartStream:
    group = check_group(wire.group)
    no_echo = wire.no_echo is True
    ttl_s = None if wire.ttl_seconds is None else check_ttl(wire.ttl_seconds)
    metadata = None if wire.metadata is None else check_metadata(wire.metadata)
    if wire.stream is None:
        data = _data_or_metadata(wire)
        return SendToGroup(group, data, _ack_id(wire.ack_id), no_echo, ttl_s, metadata)
    if wire.data is not UNSET or wire.data_type is not None or wire.ack_id is not None:
        raise FrameError("a stream begins without data, dataType and ackId", fix="send data with streamData")
    stream_id, idle_timeout_ms = check_id("streamId", wire.stream.stream_id), wire.stream.idle_timeout_ms
    if idle_timeout_ms is not None and not 0 < idle_timeout_ms <= UINT32_MAX:
        raise FrameError("idleTimeoutMs is out of range", fix=f"send a whole number from 1 to {UINT32_MAX}")
    return StartStream(group, stream_id, idle_timeout_ms, no_echo, ttl_s, metadata)


_PLAIN_COLONS = 5
"""In a publish as clients send it there is one for each of type, group, ackId, dataType and data."""


def _read_plain(wire: _SendToGroup) -> SendToGroup | None:
    """By far the most frequent request, in as few steps as it takes. All five members are there, so with five colons
    none of them is there twice. None if it is not as plain as that."""
    raw, ack_id, kind = wire.data, wire.ack_id, wire.data_type
    if raw is UNSET or ack_id is None or not 0 <= ack_id <= UINT64_MAX:
        return None
    body = bytes(raw)
    if kind == "text" and body[0] == _QUOTE and b"\\" not in body:
        data = Data(_TEXT, body[1:-1])
    elif kind == "json" and body != b"null":
        data = Data(_JSON, body)
    else:
        return None
    try:
        return SendToGroup(check_group(wire.group), data, ack_id)
    except InputError as error:
        raise FrameError(error.message, fix=error.fix) from None


def _read_event(wire: _Event) -> SendEvent:
    metadata = None if wire.metadata is None else check_metadata(wire.metadata)
    data = _data_or_metadata(wire)
    return SendEvent(check_event(wire.event), data, _ack_id(wire.ack_id), metadata)


def _read_sequence_ack(wire: _SequenceAck | _OldSequenceAck) -> SequenceAck:
    return SequenceAck(check_uint("sequenceId", wire.sequence_id))


def _read_invoke(wire: _Invoke) -> Invoke:
    if wire.target not in (None, "event") or wire.event is None:
        raise FrameError("only events can be invoked", fix='send "target":"event" and the name in event')
    data = None if wire.data is UNSET else _data(wire.data_type, wire.data)
    return Invoke(check_id("invocationId", wire.invocation_id), check_event(wire.event), data)


def _read_stream_data(wire: _StreamData) -> StreamData:
    stream_id, sequence_id = check_id("streamId", wire.stream_id), wire.stream_sequence_id
    if (sequence_id is None) != (wire.data is UNSET):
        raise FrameError("stream data needs a number and data", fix="send streamSequenceId with data, or neither")
    if sequence_id is None:
        return StreamData(stream_id)
    data = _data(wire.data_type, wire.data)
    return StreamData(stream_id, check_uint("streamSequenceId", sequence_id), data)


def _read_stream_end(wire: _StreamEnd) -> StreamEnd:
    error = None
    if wire.error is not None:
        error = Fault(ErrorName.USER, wire.error.message or "", wire.error.user_error_code)
    return StreamEnd(check_id("streamId", wire.stream_id), error)


_REQUEST_READERS: Mapping[type, Callable[[Any], Request]] = {
    _JoinGroup: lambda wire: JoinGroup(check_group(wire.group), _ack_id(wire.ack_id)),
    _LeaveGroup: lambda wire: LeaveGroup(check_group(wire.group), _ack_id(wire.ack_id)),
    _SendToGroup: _read_send_to_group,
    _Event: _read_event,
    _SequenceAck: _read_sequence_ack,
    _OldSequenceAck: _read_sequence_ack,
    _Ping: lambda _: Ping(),
    _Invoke: _read_invoke,
    _CancelInvocation: lambda wire: CancelInvocation(check_id("invocationId", wire.invocation_id)),
    _StreamData: _read_stream_data,
    _StreamEnd: _read_stream_end,
    _SetGroupState: lambda wire: SetGroupState(check_group(wire.group), _ack_id(wire.ack_id), wire.state),
    _SubscribeGroupState: lambda wire: SubscribeGroupState(check_group(wire.group), _ack_id(wire.ack_id)),
    _UnsubscribeGroupState: lambda wire: UnsubscribeGroupState(check_group(wire.group), _ack_id(wire.ack_id)),
}
_requests: msgspec.json.Decoder[Any] = msgspec.json.Decoder(reduce(or_, _REQUEST_READERS))


def _fault(error: _Error | None) -> Fault | None:
    return None if error is None else Fault(error.name, error.message or "", error.user_error_code)


def _read_system(wire: _System) -> Connected | Disconnected:
    if wire.event == "connected" and wire.connection_id is not None:
        return Connected(wire.connection_id, wire.user_id or None, wire.reconnection_token)
    if wire.event == "disconnected":
        return Disconnected(wire.message or "")
    raise FrameError("an unknown system event", fix="see the subprotocol's system messages")


def _read_ack(wire: _Ack) -> Ack:
    if wire.success == (wire.error is not None):
        raise FrameError("an ack has an error when it is no success, and only then", fix="send one of the two")
    return Ack(check_uint("ackId", wire.ack_id), _fault(wire.error))


def _read_message(wire: _Message) -> GroupMessage | ServerMessage:
    sequence_id = None if wire.sequence_id is None else check_uint("sequenceId", wire.sequence_id)
    if wire.origin == "server":
        return ServerMessage(_data(wire.data_type, wire.data), sequence_id, wire.metadata)
    if wire.origin != "group" or wire.group is None:
        raise FrameError("a message from nowhere", fix='send "from":"group" with a group, or "from":"server"')
    stream = None if wire.stream is None else _part(wire.stream)
    data = None if _ends(stream) and wire.data in (UNSET, _NO_TEXT) else _data(wire.data_type, wire.data)
    return GroupMessage(wire.group, data, wire.from_user_id or None, sequence_id, wire.metadata, stream)


def _part(wire: _Part) -> StreamPart:
    number = check_uint("streamSequenceId", wire.stream_sequence_id)
    return StreamPart(wire.stream_id, number, wire.end_of_stream is True, _fault(wire.error))


def _ends(stream: StreamPart | None) -> bool:
    return stream is not None and stream.is_end


def _read_invoke_response(wire: _InvokeResponse) -> InvokeResponse:
    if wire.success == (wire.error is not None):
        raise FrameError("a response has an error when it is no success, and only then", fix="send one of the two")
    data = None if wire.data is UNSET else _data(wire.data_type, wire.data)
    return InvokeResponse(wire.invocation_id, data, _fault(wire.error))


def _expected(wire: _StreamAck | _StreamNack) -> int:
    return check_uint("expectedSequenceId", wire.expected_sequence_id)


def _items(items: Iterable[_Item]) -> tuple[GroupStateItem, ...]:
    return tuple(
        GroupStateItem(item.connection_id, check_uint("updatedAt", item.updated_at), item.user_id, item.state)
        for item in items
    )


_RESPONSE_READERS: Mapping[type, Callable[[Any], Response]] = {
    _System: _read_system,
    _Ack: _read_ack,
    _Message: _read_message,
    _Pong: lambda _: Pong(),
    _InvokeResponse: _read_invoke_response,
    _StreamAck: lambda wire: StreamAck(wire.stream_id, _expected(wire)),
    _StreamNack: lambda wire: StreamNack(wire.stream_id, _expected(wire), wire.name, wire.message),
    _StreamClosed: lambda wire: StreamClosed(wire.stream_id, _fault(wire.error)),
    _GroupStateSnapshot: lambda wire: GroupStateSnapshot(wire.group, _items(wire.items)),
    _GroupStateUpdate: lambda wire: GroupStateUpdate(wire.group, _items(wire.items)),
}
_responses: msgspec.json.Decoder[Any] = msgspec.json.Decoder(reduce(or_, _RESPONSE_READERS))


def _spellings() -> dict[str, str]:
    frames: list[Any] = [*_REQUEST_READERS, *_RESPONSE_READERS]
    tags = [str(frame.__struct_config__.tag) for frame in frames]
    return {tag.lower(): tag for tag in tags}


_SPELLINGS = _spellings()


# -- writing


def _write(wire: _Frame) -> str:
    try:
        return _encode(wire).decode()
    except UnicodeError as error:
        raise LocalProtocolError(f"JSON cannot carry this: {error}", fix="use well-formed Unicode") from None


def _raw(data: Data) -> Raw:
    return Raw(_raw_bytes(data.type, data.body))


def _raw_bytes(kind: DataType, body: bytes) -> bytes:
    if kind is _JSON:
        return body
    if kind is _TEXT:
        try:
            return _encode(body.decode())
        except UnicodeDecodeError as error:
            raise LocalProtocolError(f"the text is not UTF-8: {error}", fix="send it as binary") from None
    return b'"%b"' % binascii.b2a_base64(body, newline=False)


def _write_data(data: Data | None) -> tuple[str | None, Raw | UnsetType]:
    return (None, UNSET) if data is None else (data.type, _raw(data))


def _write_send_to_group(request: SendToGroup) -> _SendToGroup:
    no_echo = True if request.no_echo else None
    kind, raw = _write_data(request.data)
    return _SendToGroup(request.group, request.ack_id, no_echo, request.ttl_s, kind, raw, request.metadata)


def _write_start_stream(request: StartStream) -> _SendToGroup:
    stream = _NewStream(request.stream_id, request.idle_timeout_ms)
    no_echo = True if request.no_echo else None
    return _SendToGroup(
        request.group, no_echo=no_echo, ttl_seconds=request.ttl_s, metadata=request.metadata, stream=stream
    )


def _write_stream_data(request: StreamData) -> _StreamData:
    if (request.sequence_id is None) != (request.data is None):
        raise LocalProtocolError("stream data needs a number and data", fix="give both, or neither to keep it alive")
    return _StreamData(request.stream_id, request.sequence_id, *_write_data(request.data))


def _write_stream_end(request: StreamEnd) -> _StreamEnd:
    if request.error is None:
        return _StreamEnd(request.stream_id)
    if request.error.name != ErrorName.USER:
        raise LocalProtocolError(
            f"a sender cannot end its stream with {request.error.name}", fix=f"use {ErrorName.USER} and a user_code"
        )
    return _StreamEnd(request.stream_id, _SenderError(request.error.message or None, request.error.user_code))


_REQUEST_WRITERS: Mapping[type, Callable[[Any], _Frame]] = {
    JoinGroup: lambda request: _JoinGroup(request.group, request.ack_id),
    LeaveGroup: lambda request: _LeaveGroup(request.group, request.ack_id),
    SendToGroup: _write_send_to_group,
    SendEvent: lambda r: _Event(r.event, r.ack_id, *_write_data(r.data), r.metadata),
    SequenceAck: lambda request: _SequenceAck(request.sequence_id),
    Ping: lambda _: _Ping(),
    Invoke: lambda r: _Invoke(r.invocation_id, "event", r.event, *_write_data(r.data)),
    CancelInvocation: lambda request: _CancelInvocation(request.invocation_id),
    StartStream: _write_start_stream,
    StreamData: _write_stream_data,
    StreamEnd: _write_stream_end,
    SetGroupState: lambda request: _SetGroupState(request.group, request.ack_id, request.state),
    SubscribeGroupState: lambda request: _SubscribeGroupState(request.group, request.ack_id),
    UnsubscribeGroupState: lambda request: _UnsubscribeGroupState(request.group, request.ack_id),
}


def _error(fault: Fault | None) -> _Error | None:
    return None if fault is None else _Error(fault.name, fault.message, fault.user_code)


# Microsoft's clients drop a message that has no data, or fail on it, and then never notice that the stream has ended
_NO_TEXT = Raw(b'""')


def _write_group_message(message: GroupMessage) -> _Message:
    data, user, number, metadata = message.data, message.from_user, message.sequence_id, message.metadata
    if message.stream is None and data is not None:
        return _Message("group", message.group, user, data.type, _raw(data), metadata, number)
    if data is None and not _ends(message.stream):
        raise LocalProtocolError("a message without data", fix="give it data: only the end of a stream has none")
    kind, raw = ("text", _NO_TEXT) if data is None else _write_data(data)
    return _Message("group", message.group, user, kind, raw, metadata, number, _write_part(message.stream))


_ACK_HEAD, _ACK_END = b'{"type":"ack","ackId":', b',"success":true}'


def _ack(number: bytes) -> bytes:
    return b"".join((text_head(len(_ACK_HEAD) + len(number) + len(_ACK_END)), _ACK_HEAD, number, _ACK_END))


@lru_cache(maxsize=1024)
def _message_head(group: str, user: str | None, kind: DataType) -> bytes:
    """Up to the data."""
    return _encode(_Message("group", group, user, kind, Raw(b"0"))).removesuffix(b"0}")


def _write_part(part: StreamPart | None) -> _Part | None:
    if part is None:
        return None
    return _Part(part.stream_id, part.sequence_id, True if part.is_end else None, _error(part.error))


def _write_invoke_response(response: InvokeResponse) -> _InvokeResponse:
    if response.data is not None and response.error is not None:
        raise LocalProtocolError("a response with data and an error", fix="give one of the two")
    success = response.error is None
    return _InvokeResponse(response.invocation_id, success, *_write_data(response.data), _error(response.error))


def _write_items(items: Iterable[GroupStateItem]) -> tuple[_Item, ...]:
    return tuple(
        _Item(connection_id=item.connection_id, user_id=item.user_id, state=item.state, updated_at=item.updated_at)
        for item in items
    )


_RESPONSE_WRITERS: Mapping[type, Callable[[Any], _Frame]] = {
    Connected: lambda r: _System("connected", r.user_id, r.connection_id, r.reconnection_token),
    Disconnected: lambda response: _System("disconnected", message=response.reason),
    Ack: lambda response: _Ack(response.ack_id, response.error is None, _error(response.error)),
    GroupMessage: _write_group_message,
    ServerMessage: lambda r: _Message("server", None, UNSET, r.data.type, _raw(r.data), r.metadata, r.sequence_id),
    Pong: lambda _: _Pong(),
    InvokeResponse: _write_invoke_response,
    StreamAck: lambda response: _StreamAck(response.stream_id, response.expected),
    StreamNack: lambda r: _StreamNack(r.stream_id, r.expected, r.name, r.message),
    StreamClosed: lambda response: _StreamClosed(response.stream_id, _error(response.error)),
    GroupStateSnapshot: lambda response: _GroupStateSnapshot(response.group, _write_items(response.items)),
    GroupStateUpdate: lambda response: _GroupStateUpdate(response.group, _write_items(response.items)),
}
