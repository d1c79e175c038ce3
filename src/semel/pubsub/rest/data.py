"""The body of a request, or of an event handler's answer, as the data of a message."""

from __future__ import annotations

from collections.abc import Mapping

from semel.http import content_type_of, text_of, unsupported
from semel.pubsub.protocol.frames import check_digits, json_body
from semel.pubsub.protocol.messages import CONTENT_TYPES, Data, DataType

_SENDABLE = {CONTENT_TYPES[kind]: kind for kind in (DataType.JSON, DataType.TEXT, DataType.BINARY)}


def read_data(headers: Mapping[str, str], body: bytes) -> Data:
    """What is sent. It may be empty, unless it is to be JSON. Without a type it is bytes."""
    media, codec = content_type_of(headers)
    kind = _SENDABLE.get(media) if media else DataType.BINARY
    if kind is None:
        raise unsupported(f"the content type is none of {', '.join(_SENDABLE)}", "send one of them as Content-Type")
    if kind is DataType.BINARY:
        return Data(kind, body)
    text = text_of(body, codec)
    if kind is DataType.TEXT:
        return Data(kind, text.encode())
    data = json_body(text)
    check_digits(data)
    return Data(kind, data)
