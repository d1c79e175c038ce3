"""What a client refuses before it is sent: a server that finds it would close the connection over it."""

from __future__ import annotations

import msgspec

from semel.errors import InputError, LimitExceeded
from semel.kernel.text import check_id
from semel.pubsub.client_events import Acked
from semel.pubsub.frames import FRAME_BYTES_MAX, UINT64_MAX, Codec, FrameError, json_body
from semel.pubsub.messages import Data, DataType, Invoke, JoinGroup, LeaveGroup, SendEvent, SendToGroup
from semel.pubsub.names import check_event, check_group, check_metadata, check_ttl
from semel.pubsub.records import MESSAGE_ID


def with_id(request: Acked | Invoke, id: str | None) -> Acked | Invoke:
    """The request with the application's id in its metadata."""
    if id is None:
        return request
    if not isinstance(request, SendToGroup):
        raise InputError("only messages to groups have an id", fix="leave the id out")
    metadata = {**(request.metadata or {}), MESSAGE_ID: check_id("the id", id)}
    return msgspec.structs.replace(request, metadata=metadata)


def check_request(request: Acked | Invoke, codec: Codec) -> int:
    """Returns how large the frame may become."""
    if isinstance(request, JoinGroup | LeaveGroup | SendToGroup):
        check_group(request.group)
    else:
        check_event(request.event)
    if isinstance(request, SendToGroup) and request.ttl_s is not None:
        check_ttl(request.ttl_s)
    if isinstance(request, SendToGroup | SendEvent) and request.metadata is not None:
        check_metadata(request.metadata)
    if not isinstance(request, JoinGroup | LeaveGroup) and request.data is not None:
        _check_data(request.data)
    return _check_size(request, codec)


def _check_data(data: Data) -> None:
    if data.type not in (DataType.JSON, DataType.TEXT):
        return
    try:
        text = data.body.decode()
        if data.type is DataType.JSON:
            json_body(text)
    except UnicodeDecodeError as error:
        raise InputError(f"the data is not UTF-8: {error.reason}", fix="send it as binary") from None
    except FrameError as error:
        raise InputError(error.message, fix=error.fix) from None


def _check_size(request: Acked | Invoke, codec: Codec) -> int:
    """With the longest number that it could get."""
    if isinstance(request, Invoke):
        numbered: Acked | Invoke = msgspec.structs.replace(request, invocation_id=str(UINT64_MAX))
    else:
        numbered = msgspec.structs.replace(request, ack_id=UINT64_MAX)
    frame = codec.encode_request(numbered)
    size = len(frame) if isinstance(frame, bytes) or frame.isascii() else len(frame.encode())
    if size > FRAME_BYTES_MAX:
        raise LimitExceeded(f"the frame would have {size:,} bytes", fix=f"send up to {FRAME_BYTES_MAX:,} bytes")
    return size
