"""What a broker delivers, read as an envelope, and an envelope as the headers of a message for a broker.

Both are CloudEvents in binary mode: attributes stand in headers `ce-id`, `ce-source` and so on, percent-encoded where
they are not plain; the body is the body. One in structured mode is read, too. A message without an id is refused: who
reads it keeps it as a dead letter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any
from urllib.parse import quote, unquote

import msgspec

from semel.errors import LimitExceeded, MessageRefused
from semel.inbox.identity import OWN_SOURCE
from semel.inbox.outbox import DESTINATION_HEADER
from semel.inbox.reservation import RESERVED_HEADER
from semel.inbox.sources import AUTO, BrokerSource, Rule
from semel.kernel.envelope import DATA_INLINE_BYTES_MAX, Envelope, from_json, parse_rfc3339, rfc3339

STRUCTURED = "application/cloudevents+json"
_CE_PREFIXES = ("ce-", "ce_", "cloudevents:", "cloudevents_")
_CE_ATTRIBUTES = frozenset(
    {"id", "source", "type", "subject", "time", "specversion", "datacontenttype", "partitionkey", "sequence"}
)
_OWN_HEADERS = frozenset({DESTINATION_HEADER, RESERVED_HEADER})
"""They mean something to Semel's own rows: a stranger does not set them."""
_LOWER = ("traceparent", "tracestate")
_TOKEN = "!#$&'*+-.^_`|~"
_PLAIN = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')


@dataclass(frozen=True, slots=True)
class ForeignMessage:
    """What a broker has delivered. `id` and `type` are its own fields for them: Nats-Msg-Id, message-id, type.
    `time` is in microseconds."""

    data: bytes
    subject: str = ""
    id: str | None = None
    type: str | None = None
    content_type: str | None = None
    time: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def header(self, name: str) -> str | None:
        """Whatever its case: clients of one broker write it in several ways."""
        found = self.headers.get(name)
        if found is not None:
            return found
        lower = name.lower()
        return next((value for each, value in self.headers.items() if each.lower() == lower), None)


def read_message(message: ForeignMessage, source: BrokerSource) -> Envelope:
    """The envelope of what was delivered. Raises InputError for what is no message."""
    if len(message.data) > DATA_INLINE_BYTES_MAX:
        raise LimitExceeded(
            f"it has {len(message.data):,} bytes, an endpoint takes at most {DATA_INLINE_BYTES_MAX:,}",
            fix="let the sender put the body elsewhere, and send where it is",
        )
    if (message.content_type or "").partition(";")[0].strip().lower() == STRUCTURED:
        return _structured(message, source)
    event, headers = _attributes(message)
    id = _said(source.id, message) if source.id != AUTO else event.get("id") or message.id
    if not id:
        raise MessageRefused("it has no id", fix=_id_fix(source))
    kind = event.get("type") or message.type or message.subject or None
    if source.type != AUTO:
        kind = _said(source.type, message)
    if not kind:
        raise MessageRefused(f"message {id!r} has no type", fix="let its sender say it, or set type=text:<type>")
    return Envelope(
        id,
        # an id that the endpoint names is the same whatever its source: only a CloudEvent's own is one per source
        source=event.get("source") or OWN_SOURCE if source.id == AUTO else OWN_SOURCE,
        type=kind,
        data=message.data,
        session=event.get("partitionkey") or None,
        index=_index(event.get("sequence")),
        time=parse_rfc3339(event["time"]) if event.get("time") else message.time,
        subject=event.get("subject") or (message.subject or None),
        datacontenttype=event.get("datacontenttype") or message.content_type or None,
        headers=headers,
    )


def _structured(message: ForeignMessage, source: BrokerSource) -> Envelope:
    event = from_json(message.data)
    if event.blob is not None:
        raise MessageRefused("it names a body in our store", fix="send the body itself")
    changes: dict[str, Any] = {"headers": _kept({**_attributes(message)[1], **event.headers})}
    if source.id != AUTO:
        id = _said(source.id, message)
        if not id:
            raise MessageRefused("it has no id", fix=_id_fix(source))
        changes |= {"id": id, "source": OWN_SOURCE}
    if source.type != AUTO:
        changes["type"] = _said(source.type, message) or ""
    return msgspec.structs.replace(event, **changes)


def _id_fix(source: BrokerSource) -> str:
    if callable(source.id):
        return "let the function for the id give one"
    names = {"nats": "Nats-Msg-Id", "amqp": "message-id"}
    where = f"{names.get(source.kind, 'its id')} or ce-id" if source.id == AUTO else source.id
    return f"let the sender give each message an id ({where}), or name where it stands: id=header:<name>"


def _said(rule: Rule, message: ForeignMessage) -> str | None:
    """What a rule finds."""
    if callable(rule):
        try:
            found = rule(message)
        except Exception as error:
            raise MessageRefused(
                f"the function for its id or type failed: {type(error).__name__}: {error}",
                fix="correct the function, then replay the dead letter",
            ) from error
        if found is not None and not isinstance(found, str):
            raise MessageRefused(f"the function for its id or type gave {found!r}", fix="let it return text, or None")
        return found
    kind, _, name = rule.partition(":")
    if kind == "header":
        return message.header(name)
    if kind == "json":
        return _field(message.data, name)
    return name if kind == "text" else message.subject


def _field(data: bytes, path: str) -> str | None:
    try:
        value: Any = msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    for part in path.split("."):
        if not isinstance(value, dict):
            return None
        value = value.get(part)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return value if isinstance(value, str) else None


def _attributes(message: ForeignMessage) -> tuple[dict[str, str], dict[str, str]]:
    """The attributes of a CloudEvent in binary mode, and the other headers."""
    event: dict[str, str] = {}
    rest: dict[str, str] = {}
    for name, value in message.headers.items():
        lower = name.lower()
        prefix = next((each for each in _CE_PREFIXES if lower.startswith(each)), None)
        if prefix is None:
            rest[name] = value
        elif lower[len(prefix) :] in _CE_ATTRIBUTES:
            event[lower[len(prefix) :]] = unquoted(value)
        else:
            rest[lower[len(prefix) :]] = unquoted(value)
    return event, _kept(rest)


def _kept(headers: Mapping[str, str]) -> dict[str, str]:
    """Those that go with the message. Semel's own and the trace's are looked up by their lower-case names."""
    found = {}
    for name, value in headers.items():
        lower = name.lower()
        if lower in _OWN_HEADERS or lower.startswith("nats-") or lower == "content-type":
            continue
        found[lower if lower in _LOWER or lower.startswith("semel-") else name] = value
    return found


def _index(text: str | None) -> int | None:
    """A sequence that is no number is the sender's own business."""
    return int(text) if text and text.isascii() and text.isdecimal() and len(text) <= 15 else None


def excerpt(data: bytes) -> bytes:
    """What is kept of a body that is too large. The digest at its end keeps two such bodies apart."""
    if len(data) <= DATA_INLINE_BYTES_MAX:
        return data
    tail = f"\n... {len(data)} bytes, sha256 {sha256(data).hexdigest()}".encode()
    return data[: DATA_INLINE_BYTES_MAX - len(tail)] + tail


# -- what goes out


def event_headers(envelope: Envelope) -> dict[str, str]:
    """A CloudEvent in binary mode: its attributes, and the headers that do not mean something to a broker. The content
    type is for the caller, whose broker has a field of its own for it or not."""
    attributes = {
        "specversion": "1.0", "id": envelope.id, "source": envelope.source, "type": envelope.type,
        "subject": envelope.subject, "partitionkey": envelope.session,
        "time": rfc3339(envelope.time) if envelope.time is not None else None,
        "sequence": str(envelope.index) if envelope.index is not None else None,
    }  # fmt: skip
    headers = {quote(name, safe=_TOKEN): _plain(value) for name, value in _kept(envelope.headers).items()}
    own = {name: value for name, value in headers.items() if not name.lower().startswith(_CE_PREFIXES)}
    return own | {f"ce-{name}": quoted(value) for name, value in attributes.items() if value}


def _plain(value: str) -> str:
    """As it is, unless it would end its line or lose its ends."""
    return value if value == value.strip() and value.isprintable() else quoted(value)


def quoted(text: str) -> str:
    return quote(text, safe=_PLAIN)


def unquoted(text: str) -> str:
    """Undo `quoted`. What is not so encoded stays as it is."""
    try:
        return unquote(text, errors="strict") if "%" in text else text
    except UnicodeDecodeError:
        return text
