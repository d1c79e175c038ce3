"""WebSockets as plain values, for every part that speaks over them: the codes of a close frame, and a frame as a server
sends it, which is RFC 6455 without a mask.

A message for a thousand subscribers is made into a frame once, so the header is made here and not by the socket.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct

_FINAL_TEXT, _FINAL_BINARY = 0x81, 0x82
_pack_medium = Struct(">BBH").pack
_SHORT_TEXT = [bytes((_FINAL_TEXT, size)) for size in range(126)]
_SHORT_BINARY = [bytes((_FINAL_BINARY, size)) for size in range(126)]


class CloseCode(IntEnum):
    """Why a server closes a WebSocket: the codes of RFC 6455 that are used here."""

    NORMAL = 1000
    GOING_AWAY = 1001
    PROTOCOL_ERROR = 1002
    WRONG_FRAME_TYPE = 1003
    BAD_FRAME = 1007
    POLICY = 1008
    TOO_BIG = 1009
    INTERNAL = 1011


def frame(payload: str | bytes) -> bytes:
    """The whole payload in one frame: text for `str`, binary for `bytes`."""
    if isinstance(payload, str):
        first, body = _FINAL_TEXT, payload.encode()
    else:
        first, body = _FINAL_BINARY, payload
    size = len(body)
    if size < 126:
        return (_SHORT_TEXT if first == _FINAL_TEXT else _SHORT_BINARY)[size] + body
    return _long_head(first, size) + body


def text_head(size: int) -> bytes:
    """What stands before a text of so many bytes."""
    return _SHORT_TEXT[size] if size < 126 else _long_head(_FINAL_TEXT, size)


def _long_head(first: int, size: int) -> bytes:
    if size < 65_536:
        return _pack_medium(first, 126, size)
    return bytes((first, 127)) + size.to_bytes(8)
