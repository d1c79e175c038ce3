"""Between frames on a WebSocket and the values in `messages`: what the encodings share.

A frame's Python type is its type on the wire: `str` is a text frame, `bytes` a binary one, in both directions. JSON
goes in text frames, protobuf in binary ones, and a simple client's data in either. That a frame is no larger than
`FRAME_BYTES_MAX` is for the transport to watch, which must not even gather a larger one.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from functools import lru_cache
from itertools import accumulate, count, repeat
from typing import Protocol

import msgspec

from semel.errors import FrameError as FrameError
from semel.pubsub.protocol.messages import Ack, Data, DataType, GroupMessage, Request, Response
from semel.websocket import CloseCode, frame

Frame = str | bytes

FRAME_BYTES_MAX = 1024 * 1024
# .NET clients refuse to read what is nested deeper, so one such message would break every one of them in the group
DEPTH_MAX = 64
DIGITS_MAX = 4_300
"""Python reads no number in JSON with more digits."""
UINT32_MAX = 2**32 - 1
UINT64_MAX = 2**64 - 1
EMPTY = Data(DataType.TEXT, b"")
"""What is sent by who sends metadata alone, and at the end of a stream."""


class Subprotocol(StrEnum):
    JSON = "json.webpubsub.azure.v1"
    JSON_RELIABLE = "json.reliable.webpubsub.azure.v1"
    PROTOBUF = "protobuf.webpubsub.azure.v1"
    PROTOBUF_RELIABLE = "protobuf.reliable.webpubsub.azure.v1"


RELIABLE = frozenset({Subprotocol.JSON_RELIABLE, Subprotocol.PROTOBUF_RELIABLE})


Plain = tuple[str | None, DataType, bytes]
"""A message with nothing but data: its user, and the kind and bytes of its data."""


class OneByOne:
    """How many are written as frames where nothing is gained by looking at them together."""

    def encode(self, response: Response) -> Frame | None:
        raise NotImplementedError

    def ack_frames(self, ack_ids: Sequence[int]) -> bytes:
        return self._frames([Ack(ack_id) for ack_id in ack_ids])

    def group_frames(self, group: str, messages: Sequence[Plain], first: int | None) -> bytes:
        numbers = repeat(None) if first is None else count(first)
        return self._frames(
            [
                GroupMessage(group, Data(kind, body), user, number)
                for (user, kind, body), number in zip(messages, numbers, strict=False)
            ]
        )

    def _frames(self, responses: Sequence[Response]) -> bytes:
        made = map(self.encode, responses)
        return b"".join([frame(encoded) for encoded in made if encoded is not None])


class Codec(Protocol):
    """An encoding, for both ends. A reliable protocol and its plain one share it.

    `decode` and `decode_response` raise `FrameError` and nothing else; `encode` and `encode_request` raise
    `LocalProtocolError` for what the encoding cannot express.
    """

    def decode(self, frame: Frame) -> Request: ...

    def encode(self, response: Response) -> Frame:
        """A message for many subscribers is encoded once for all who share the codec and its `sequence_id`.

        For the plain protocols `sequence_id` is None; nothing else in the frame depends on who gets it.
        """
        ...

    def ack_frames(self, ack_ids: Sequence[int]) -> bytes:
        """That these were taken."""
        ...

    def group_frames(self, group: str, messages: Sequence[Plain], first: int | None) -> bytes:
        """`first` is the `sequence_id` of the first, if there is one."""
        ...

    def encode_request(self, request: Request) -> Frame: ...

    def decode_response(self, frame: Frame) -> Response: ...


# a few more than there are: clients choose the names, and so they must not choose how many are kept
NAMES_KEPT = 64


@lru_cache(NAMES_KEPT)
def subprotocol_of(name: str | None) -> Subprotocol | None:
    """The subprotocol of this name, in any case. None: whoever speaks it is a simple client."""
    try:
        return None if name is None else Subprotocol(name.lower())
    except ValueError:
        return None


def wrong_frame_type(wanted: str) -> FrameError:
    return FrameError(
        f"this subprotocol goes in {wanted} frames",
        close_code=CloseCode.WRONG_FRAME_TYPE,
        fix=f"send {wanted} frames, or connect with another subprotocol",
    )


def check_uint(what: str, value: int) -> int:
    if not 0 <= value <= UINT64_MAX:
        raise FrameError(f"{what} is out of range", fix=f"send a whole number from 0 to {UINT64_MAX}")
    return value


_JSON = msgspec.json.Decoder(msgspec.Raw)


def json_body(text: str) -> bytes:
    """JSON that came on its own, as the body of a message: just as it was written, without space around it.

    It may be one less deep than a frame, so that there is a frame for it.
    """
    check_depth(text, DEPTH_MAX - 1)
    try:
        body = bytes(_JSON.decode(text))
    except (msgspec.DecodeError, UnicodeError) as error:
        raise FrameError(f"the data is not JSON: {error}", fix="send valid JSON, or send it as text") from None
    return check_not_null(body)


def check_not_null(body: bytes) -> bytes:
    if body == b"null":
        raise FrameError("the data is null", fix="send any other JSON value")
    return body


_DIGITS_ONLY = bytes(ord("0") if chr(code) in "0123456789" else ord(" ") for code in range(256))
_TOO_LONG = b"0" * (DIGITS_MAX + 1)


def check_digits(body: bytes) -> None:
    """Refuse JSON from a sender with a number that readers in Python, our own client among them, cannot read: they
    could neither handle the message nor pass it over. In strings there may be as many digits as one likes."""
    if len(body) <= DIGITS_MAX or _TOO_LONG not in body.translate(_DIGITS_ONLY):
        return
    outside_strings = b'"'.join(body.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2])
    if _TOO_LONG in outside_strings.translate(_DIGITS_ONLY):
        raise FrameError(f"a number has more than {DIGITS_MAX:,} digits", fix="send it as a string")


_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_IN_AND_OUT = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")


def check_depth(text: str, limit: int = DEPTH_MAX) -> None:
    """Refuse JSON that is nested too deep, before anything recurses into it.

    Every array has its bracket, and every object around something has a colon: where there are few of both, in strings
    or not, nothing can be deep. Otherwise it is looked at closely.
    """
    if text.count(":") + text.count("[") >= limit and _depth(text) > limit:
        raise FrameError(f"the JSON is nested more than {limit} deep", fix="send it flatter, or as text")


def _depth(text: str) -> int:
    """How deep a reader would go, as far as the text is JSON. Fast, because no loop here is over characters."""
    if "\\" in text:
        text = text.replace("\\\\", "").replace('\\"', "")
    outside_strings = "".join(text.split('"')[::2]).encode(errors="replace")
    steps = memoryview(outside_strings.translate(_IN_AND_OUT, _NO_BRACKETS)).cast("b")
    return max(accumulate(steps), default=0)
