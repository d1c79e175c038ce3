"""What a client refuses before it is sent: a server that finds it would close the connection over it."""

from __future__ import annotations

import msgspec

from semel.errors import InputError, LimitExceeded
from semel.kernel.text import check_id, check_text
from semel.pubsub.client.events import Acked
from semel.pubsub.hub.records import MESSAGE_ID
from semel.pubsub.protocol.frames import (
    FRAME_BYTES_MAX,
    UINT32_MAX,
    UINT64_MAX,
    Codec,
    FrameError,
    check_digits,
    json_body,
)
from semel.pubsub.protocol.messages import (
    Data,
    DataType,
    Invoke,
    Request,
    SendEvent,
    SendToGroup,
    SetGroupState,
    StartStream,
    StreamData,
)
from semel.pubsub.protocol.names import check_event, check_group, check_metadata, check_ttl


def with_id(request: Acked | Invoke, id: str | None) -> Acked | Invoke:
    """The request with the application's id in its metadata."""
    if id is None:
        return request
    if not isinstance(request, SendToGroup | SendEvent):
        raise InputError("only messages to groups and events have an id", fix="leave the id out")
    metadata = {**(request.metadata or {}), MESSAGE_ID: check_id("the id", id)}
    return msgspec.structs.replace(request, metadata=metadata)


def check_request(request: Acked | Invoke, codec: Codec) -> int:
    """Returns how large the frame may become."""
    match request:
        case SendToGroup():
            check_group(request.group)
            _check_terms(request)
            _check_data(request.data)
        case SendEvent() | Invoke():
            check_event(request.event)
            if isinstance(request, SendEvent) and request.metadata is not None:
                check_metadata(request.metadata)
            if request.data is not None:
                _check_data(request.data)
        case _:
            check_group(request.group)
            if isinstance(request, SetGroupState) and request.state is not None:
                _check_state(request.state)
    return _check_size(_with_longest_number(request), codec)


def check_stream(request: StartStream, codec: Codec) -> None:
    check_group(request.group)
    check_id("the id of the stream", request.stream_id)
    _check_terms(request)
    idle_ms = request.idle_timeout_ms
    if idle_ms is not None and not 0 < idle_ms <= UINT32_MAX:
        raise InputError("the idle timeout is out of range", fix=f"use 0.001 to {UINT32_MAX // 1000} seconds")
    _check_size(request, codec)


def check_part(stream_id: str, data: Data, codec: Codec) -> int:
    """Returns how large the frame may become."""
    _check_data(data)
    return _check_size(StreamData(stream_id, UINT64_MAX, data), codec)


def _check_terms(request: SendToGroup | StartStream) -> None:
    if request.ttl_s is not None:
        check_ttl(request.ttl_s)
    if request.metadata is not None:
        check_metadata(request.metadata)


def _check_state(state: dict[str, str]) -> None:
    for key, value in state.items():
        check_text("a name in the state", key, chars_max=FRAME_BYTES_MAX, empty=True)
        check_text("a text in the state", value, chars_max=FRAME_BYTES_MAX, empty=True)


def _check_data(data: Data) -> None:
    if data.type not in (DataType.JSON, DataType.TEXT):
        return
    try:
        text = data.body.decode()
        if data.type is DataType.JSON:
            check_digits(json_body(text))
    except UnicodeDecodeError as error:
        raise InputError(f"the data is not UTF-8: {error.reason}", fix="send it as binary") from None
    except FrameError as error:
        raise InputError(error.message, fix=error.fix) from None


def _with_longest_number(request: Acked | Invoke) -> Acked | Invoke:
    if isinstance(request, Invoke):
        return msgspec.structs.replace(request, invocation_id=str(UINT64_MAX))
    return msgspec.structs.replace(request, ack_id=UINT64_MAX)


def _check_size(request: Request, codec: Codec) -> int:
    frame = codec.encode_request(request)
    size = len(frame) if isinstance(frame, bytes) or frame.isascii() else len(frame.encode())
    if size > FRAME_BYTES_MAX:
        raise LimitExceeded(f"the frame would have {size:,} bytes", fix=f"send up to {FRAME_BYTES_MAX:,} bytes")
    return size
