"""The envelope: one message with its CloudEvents 1.0 attributes.

`session` is the partition key and `index` the producer's dense number within it, from 1; both are optional. An index of
0, as other protocols begin with, is carried unchanged, but a hop that goes by the index rejects it: there, 0 is the
place before the first message. The id is the application's own, unchanged over every hop and every resend: uniqueness
is decided by it. An invalid envelope cannot be built, so nothing downstream checks again.
"""

from __future__ import annotations

import base64
import binascii
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from semel.errors import InputError, LimitExceeded
from semel.kernel.position import OFFSET_MAX
from semel.kernel.text import ID_CHARS_MAX, check_id, check_text

DATA_INLINE_BYTES_MAX = 256 * 1024
HEADERS_COUNT_MAX = 64
HEADERS_CHARS_MAX = 16 * 1024
ATTRIBUTE_CHARS_MAX = 1024
FRAME_BYTES_MAX = DATA_INLINE_BYTES_MAX + 64 * 1024

SEEN_VALUES_MAX = 1024
_seen_common: set[tuple[str, str, str | None, str | None]] = set()

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_TIME_MAX = (datetime(9999, 12, 31, tzinfo=UTC) - _EPOCH) // _MICROSECOND
_DIGITS = re.compile(r"[0-9]{1,19}\Z")
_TRACE = ("traceparent", "tracestate")
_CORE = ("id", "source", "type", "subject", "time", "datacontenttype", "data", "data_base64", "specversion")


class Blob(msgspec.Struct, frozen=True, gc=False):
    """A body too large for one row: where its chunks are and how many bytes they hold."""

    name: str
    size: int

    def __post_init__(self) -> None:
        check_id("blob name", self.name)
        if self.size < 0:
            raise InputError(f"blob size {self.size} is negative", fix="give the number of bytes in the body")


class Envelope(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One message. Times are microseconds since 1970 in UTC."""

    id: str
    source: str = "semel"
    type: str = "message"
    data: bytes = b""
    session: str | None = None
    index: int | None = None
    time: int | None = None
    subject: str | None = None
    datacontenttype: str | None = None
    headers: dict[str, str] = {}
    blob: Blob | None = None

    def __post_init__(self) -> None:
        # made for every message: what nearly all have in common is found good in as few steps as it takes
        id = self.id
        if type(id) is not str or not id or len(id) > ID_CHARS_MAX or not (id.isascii() and id.isprintable()):
            check_id("id", id)
        common = (self.source, self.type, self.subject, self.datacontenttype)
        if common not in _seen_common:
            self._check_common(common)
        if type(self.data) is not bytes:
            _check_bytes(self.data)
        if len(self.data) > DATA_INLINE_BYTES_MAX:
            raise LimitExceeded(
                f"data has {len(self.data):,} bytes, an envelope carries at most {DATA_INLINE_BYTES_MAX:,}",
                fix="store the body in chunks with put_body() and send the envelope that names it",
            )
        if self.session is not None:
            check_id("session", self.session)
        if self.index is not None and not _is_number(self.index, OFFSET_MAX):
            raise InputError(
                f"index {self.index} is outside 0..2^53-1", fix="number the messages of a session from 1 upwards"
            )
        if self.time is not None and not _is_number(self.time, _TIME_MAX):
            raise InputError(f"time {self.time} is outside 1970..9999", fix="give microseconds since 1970 in UTC")
        if self.headers:
            _check_headers(self.headers)
        if self.blob is not None and self.data:
            raise InputError("an envelope has either data or a blob, not both", fix="leave data empty")

    def _check_common(self, common: tuple[str, str, str | None, str | None]) -> None:
        """The attributes that have the same few values in most messages."""
        check_text("source", self.source, chars_max=ATTRIBUTE_CHARS_MAX)
        check_text("type", self.type, chars_max=ATTRIBUTE_CHARS_MAX)
        if self.subject is not None:
            check_text("subject", self.subject, chars_max=ATTRIBUTE_CHARS_MAX, empty=True)
        if self.datacontenttype is not None:
            check_text("datacontenttype", self.datacontenttype, chars_max=ATTRIBUTE_CHARS_MAX)
        if len(_seen_common) < SEEN_VALUES_MAX:
            _seen_common.add(common)

    @property
    def size(self) -> int:
        """Bytes in the body, wherever it is kept."""
        return self.blob.size if self.blob is not None else len(self.data)


def _check_bytes(data: object) -> None:
    if not isinstance(data, bytes):
        raise InputError(f"data must be bytes, not {type(data).__name__}", fix="encode it, for example as UTF-8")


def _is_number(value: object, top: int) -> bool:
    return isinstance(value, int) and 0 <= value <= top


def _check_headers(headers: dict[str, str]) -> None:
    if len(headers) > HEADERS_COUNT_MAX:
        raise LimitExceeded(f"{len(headers)} headers, the limit is {HEADERS_COUNT_MAX}", fix="send fewer headers")
    total = 0
    for name, value in headers.items():
        check_id("header name", name)
        check_text(f"header {name!r}", value, chars_max=HEADERS_CHARS_MAX, empty=True)
        total += len(name) + len(value)
    if total > HEADERS_CHARS_MAX:
        raise LimitExceeded(
            f"headers have {total:,} characters, the limit is {HEADERS_CHARS_MAX:,}",
            fix="move them into data",
        )


def mint_id(now: float, random: bytes) -> str:
    """A UUIDv7: ordered by time, so that indexes on it grow at one end. `random` is ten fresh bytes."""
    if len(random) != 10:
        raise InputError(f"a UUIDv7 takes 10 random bytes, not {len(random)}", fix="pass 10 bytes")
    number = int(now * 1000) << 80 | int.from_bytes(random)
    number = number & ~(0xF << 76) | 0x7 << 76
    number = number & ~(0x3 << 62) | 0x2 << 62
    text = f"{number:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


_packer = msgspec.msgpack.Encoder()
_unpacker = msgspec.msgpack.Decoder(Envelope)


def pack(envelope: Envelope) -> bytes:
    """The compact form used between Semel's own processes."""
    return _packer.encode(envelope)


def unpack(data: bytes) -> Envelope:
    """Undo `pack`. A frame from a stranger raises InputError and nothing else."""
    if len(data) > FRAME_BYTES_MAX:
        raise LimitExceeded(f"frame of {len(data):,} bytes, the limit is {FRAME_BYTES_MAX:,}", fix="send it in chunks")
    try:
        return _unpacker.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"not an envelope: {error}", fix="check that the peer speaks Semel's frames") from None


def to_json(envelope: Envelope) -> bytes:
    """CloudEvents 1.0 structured JSON. Text and JSON bodies stay readable, other bodies become base64."""
    event: dict[str, Any] = {
        "specversion": "1.0", "id": envelope.id, "source": envelope.source, "type": envelope.type,
    }  # fmt: skip
    for name in ("subject", "datacontenttype"):
        if getattr(envelope, name) is not None:
            event[name] = getattr(envelope, name)
    if envelope.time is not None:
        event["time"] = rfc3339(envelope.time)
    if envelope.session is not None:
        event["partitionkey"] = envelope.session
    if envelope.index is not None:
        event["sequence"] = str(envelope.index)
    if envelope.headers:
        event |= _headers_to_json(envelope.headers)
    if envelope.blob is not None:
        event["blob"] = {"name": envelope.blob.name, "size": envelope.blob.size}
    elif envelope.data:
        event |= _data_to_json(envelope)
    return msgspec.json.encode(event)


def _headers_to_json(headers: dict[str, str]) -> dict[str, Any]:
    """Trace context stands where CloudEvents' extension for it has it, and others look for it."""
    trace = {name: value for name, value in headers.items() if name in _TRACE}
    rest = {name: value for name, value in headers.items() if name not in _TRACE}
    return {**trace, "headers": rest} if rest else trace


def _data_to_json(envelope: Envelope) -> dict[str, Any]:
    kind = envelope.datacontenttype or ""
    try:
        if kind.endswith("json"):
            value = msgspec.json.decode(envelope.data)
            if msgspec.json.encode(value) == envelope.data:
                return {"data": value}
        elif kind.startswith("text/"):
            return {"data": envelope.data.decode()}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    return {"data_base64": base64.b64encode(envelope.data).decode()}


def from_json(text: bytes) -> Envelope:
    """Read CloudEvents 1.0 structured JSON. Attributes that Semel does not know become headers."""
    try:
        event = msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"not a CloudEvent: {error}", fix="send one JSON object") from None
    if event.get("specversion") != "1.0":
        raise InputError(f"specversion is {event.get('specversion')!r}, expected '1.0'", fix="send CloudEvents 1.0")
    for name in ("id", "source", "type"):
        if not isinstance(event.get(name), str):
            raise InputError(f"CloudEvents attribute {name!r} is missing or not text", fix=f"send {name} as text")
    blob = event.get("blob")
    return Envelope(
        id=event["id"],
        source=event["source"],
        type=event["type"],
        data=_data_from_json(event),
        session=_text_or_none(event, "partitionkey"),
        index=_sequence(event.get("sequence")),
        time=parse_rfc3339(event["time"]) if "time" in event else None,
        subject=_text_or_none(event, "subject"),
        datacontenttype=_text_or_none(event, "datacontenttype"),
        headers=_headers_from_json(event),
        blob=_blob_from_json(blob) if blob is not None else None,
    )


def _text_or_none(event: dict[str, Any], name: str) -> str | None:
    value = event.get(name)
    if value is not None and not isinstance(value, str):
        raise InputError(f"CloudEvents attribute {name!r} is not text", fix=f"send {name} as text")
    return value


def _headers_from_json(event: dict[str, Any]) -> dict[str, str]:
    headers = event.get("headers", {})
    known = {*_CORE, "partitionkey", "sequence", "headers", "blob"}
    extensions = {name: value for name, value in event.items() if name not in known}
    if not isinstance(headers, dict):
        raise InputError("headers is not an object", fix="send headers as an object of text values")
    merged = {**headers, **extensions}
    for name, value in merged.items():
        if isinstance(value, bool | int):
            merged[name] = str(value).lower()
        elif not isinstance(value, str):
            raise InputError(f"CloudEvents attribute {name!r} is not a scalar", fix="send text, a number or a boolean")
    return merged


def _blob_from_json(value: Any) -> Blob:
    try:
        return msgspec.convert(value, Blob)
    except msgspec.ValidationError as error:
        raise InputError(f"blob is malformed: {error}", fix='send {"name": text, "size": number}') from None


def _data_from_json(event: dict[str, Any]) -> bytes:
    if "data_base64" in event:
        try:
            return base64.b64decode(event["data_base64"], validate=True)
        except (TypeError, ValueError, binascii.Error) as error:
            raise InputError(f"data_base64 is not base64: {error}", fix="encode the body as base64") from None
    if "data" not in event:
        return b""
    data, kind = event["data"], event.get("datacontenttype") or ""
    if isinstance(data, str) and not str(kind).endswith("json"):
        return data.encode()
    return msgspec.json.encode(data)


def _sequence(value: Any) -> int | None:
    if value is None or type(value) is int:
        return value
    if not isinstance(value, str) or not _DIGITS.match(value):
        raise InputError(f"sequence {value!r} is not a whole number", fix="send decimal digits")
    return int(value)


def rfc3339(time: int) -> str:
    """Microseconds since 1970 as the text that CloudEvents asks for."""
    return (_EPOCH + time * _MICROSECOND).isoformat().replace("+00:00", "Z")


def parse_rfc3339(text: Any) -> int:
    """Undo `rfc3339`; any offset is understood, a missing one is refused."""
    try:
        moment = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        raise InputError(f"time {text!r} is not RFC 3339", fix="write 2026-01-31T12:00:00Z") from None
    if moment.tzinfo is None:
        raise InputError(f"time {text!r} has no offset", fix="end it with Z or +hh:mm")
    return (moment - _EPOCH) // _MICROSECOND
