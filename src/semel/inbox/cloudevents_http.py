"""CloudEvents that come by HTTP, as messages for an endpoint, and what is answered.

    application/cloudevents+json          one event as JSON
    application/cloudevents-batch+json    a list of them
    any other type, with ce- headers      one event, whose data is the body

Attributes that Semel does not know are headers of the message, `partitionkey` is its session.

Who an event is: source and id, as CloudEvents say. The events of a hub are named otherwise, because their source is the
connection, and a client that lost its session sends the same event again over another one: hub and the application's
own id, where there is one. That is `semelid`, which a client gives as `semel-id` in the metadata of its frame, or a
field of the body that the endpoint names.

What is no event is refused with 400 and what to correct: whoever sent it is still there to be told. Answers have no
body, whatever their status, because the caller may be a hub, which would hand it to its client.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from semel.cloudevents import (
    ALLOWED_ORIGIN,
    ALLOWED_RATE,
    BATCH,
    HEADER_PREFIX,
    HUB_TYPES,
    MESSAGE_ID,
    MESSAGE_ID_ATTRIBUTE,
    METADATA_PREFIX,
    REQUEST_ORIGIN,
    REQUEST_RATE,
    STRUCTURED,
    attribute_of,
)
from semel.errors import InputError
from semel.http import HttpError, HttpResponse, bad_request, content_type_of, empty_error, text_of, unsupported
from semel.inbox.messages import JSON
from semel.kernel.envelope import DATA_INLINE_BYTES_MAX, Envelope, parse_rfc3339
from semel.kernel.position import OFFSET_MAX

EVENTS_MAX = 1_000
BODY_BYTES_MAX = 2 * 1024 * 1024
ERROR_HEADER = "semel-error"
ERROR_CHARS_MAX = 512
METHODS = "OPTIONS, POST"
CE_ID, CE_SOURCE = "ceid", "cesource"
"""Headers with what CloudEvents call id and source, where the message goes by others."""

_REQUIRED = ("specversion", "id", "source", "type")
_TAKEN = frozenset({*_REQUIRED, "subject", "time", "datacontenttype", "data", "data_base64", "partitionkey", "headers"})
_DIGITS = re.compile(r"[0-9]{1,16}\Z")
_NAME = re.compile(r"[a-z0-9]+\Z")
_ORIGIN = re.compile(r"[!-~]{1,255}\Z")
_NOT_VISIBLE = re.compile(r"[^ -~]+")

_Attributes = dict[str, str]


@dataclass(frozen=True, slots=True)
class EventLimits:
    """What one request may bring: events in a batch, and bytes of the body."""

    events: int = EVENTS_MAX
    body_bytes: int = BODY_BYTES_MAX


@dataclass(frozen=True, slots=True)
class EventRequest:
    """The events of one request, in their order. All of them are taken, or none."""

    envelopes: tuple[Envelope, ...]
    is_batch: bool = False

    @property
    def is_from_hub(self) -> bool:
        return any(each.type.startswith(HUB_TYPES) for each in self.envelopes)


NO_LIMITS_SAID = EventLimits()


def read_events(
    headers: Mapping[str, str], body: bytes, *, id_field: str | None = None, limits: EventLimits = NO_LIMITS_SAID
) -> EventRequest:
    """The names of `headers` are in small letters. `id_field` is where the body of an event has the application's own
    id, such as `order.id`. Raises `HttpError`."""
    if len(body) > limits.body_bytes:
        raise too_large(f"the body has {len(body):,} bytes", f"send up to {limits.body_bytes:,} in one request")
    if _media(headers.get("content-type", "")).startswith("application/cloudevents"):
        return _read_json(headers, body, id_field, limits)
    try:
        return EventRequest((_read_binary(headers, body, id_field),))
    except InputError as error:
        raise bad_request(error.message, fix=error.fix) from None


def too_large(message: str, fix: str) -> HttpError:
    return HttpError(413, "Error.PayloadTooLarge", message, fix=fix)


# -- structured, one or many

_decode_one = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_many = msgspec.json.Decoder(list[dict[str, msgspec.Raw]]).decode


def _read_json(headers: Mapping[str, str], body: bytes, id_field: str | None, limits: EventLimits) -> EventRequest:
    media, codec = content_type_of(headers)
    if media not in (STRUCTURED, BATCH):
        raise unsupported(f"events as {media[:64]} are not known here", f"send {STRUCTURED} or {BATCH}")
    text = text_of(body, codec)
    try:
        if media == STRUCTURED:
            return EventRequest((_read_one(_decode_one(text), id_field),))
        events = _decode_many(text)
    except (msgspec.MsgspecError, RecursionError) as error:
        shape = "one JSON object" if media == STRUCTURED else "a list of JSON objects"
        raise bad_request(f"the body is no CloudEvent: {error}", fix=f"send {shape}") from None
    except InputError as error:
        raise bad_request(error.message, fix=error.fix) from None
    if len(events) > limits.events:
        raise too_large(f"the batch has {len(events):,} events", f"send up to {limits.events:,} in one request")
    return EventRequest(tuple(_read_numbered(number, event, id_field) for number, event in enumerate(events, 1)), True)


def _read_numbered(number: int, event: dict[str, msgspec.Raw], id_field: str | None) -> Envelope:
    try:
        return _read_one(event, id_field)
    except InputError as error:
        raise bad_request(f"event {number} of the batch: {error.message}", fix=error.fix) from None
    except HttpError as error:
        error.message = f"event {number} of the batch: {error.message}"
        raise


def _read_one(event: dict[str, msgspec.Raw], id_field: str | None) -> Envelope:
    if "blob" in event:
        # the name of a body that is in this store already: it would hand somebody else's to the handler
        raise InputError("an event cannot name a body that is elsewhere", fix="send the data with the event")
    said = {name: value for name, raw in event.items() if name != "data" and (value := _value(name, raw)) is not None}
    content = said.get("datacontenttype")
    if content is not None and not isinstance(content, str):
        raise InputError("the attribute 'datacontenttype' is not text", fix="send it as text")
    if content is None and "data" in event:
        content = JSON  # as CloudEvents say
    headers, base64_text = said.pop("headers", {}), said.pop("data_base64", None)
    attributes = {name: _text(name, value) for name, value in said.items()}
    more = _header_object(headers)
    return _envelope(attributes, more, _json_data(event.get("data"), base64_text, content), content, id_field)


def _value(name: str, raw: msgspec.Raw) -> Any:
    try:
        return msgspec.json.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"the attribute {name[:64]!r} cannot be read: {error}", fix="send text") from None


def _text(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int):
        return str(value)
    raise InputError(f"the attribute {name[:64]!r} is no plain value", fix="send text, a whole number or a boolean")


def _header_object(headers: Any) -> _Attributes:
    """Semel's own senders write the headers of a message so."""
    if not isinstance(headers, dict):
        raise InputError("headers is no object", fix="send an object of texts")
    return {name: _text(name, value) for name, value in headers.items()}


def _json_data(data: msgspec.Raw | None, base64_text: Any, content: str | None) -> bytes:
    if base64_text is not None:
        if data is not None:
            raise InputError("the event has data and data_base64", fix="leave out one of the two")
        try:
            return base64.b64decode(base64_text, validate=True)
        except (TypeError, ValueError, binascii.Error) as error:
            raise InputError(f"data_base64 is no base64: {error}", fix="encode the data as base64") from None
    if data is None:
        return b""
    # as it was written: a number that went through a parser may be another one
    if not _media(content or "").endswith("json") and isinstance(value := _value("data", data), str):
        return value.encode(errors="replace")
    return bytes(data)


# -- binary


def _read_binary(headers: Mapping[str, str], body: bytes, id_field: str | None) -> Envelope:
    attributes: _Attributes = {}
    for header, value in headers.items():
        name = header.removeprefix(HEADER_PREFIX)
        # the type of the data is the header Content-Type, and nothing else
        if name != header and name != "datacontenttype":
            if not _NAME.match(name):
                raise InputError(f"{header[:64]!r} is no attribute", fix="use small letters and digits after ce-")
            attributes[name] = attribute_of(header, value)
    if not attributes:
        raise InputError(
            "the request is no CloudEvent",
            fix=f"send the headers ce-specversion, ce-id, ce-source and ce-type, or Content-Type: {STRUCTURED}",
        )
    if (encoding := headers.get("content-encoding", "identity").strip().lower()) not in ("identity", ""):
        raise unsupported(f"the body is compressed by {encoding[:32]}", "send it without Content-Encoding")
    metadata = {name: attribute_of(name, value) for name, value in headers.items() if name.startswith(METADATA_PREFIX)}
    if MESSAGE_ID_ATTRIBUTE not in attributes and (own := metadata.get(METADATA_PREFIX + MESSAGE_ID)):
        attributes[MESSAGE_ID_ATTRIBUTE] = own
    return _envelope(attributes, metadata, body, headers.get("content-type") or None, id_field)


# -- what both have in common


def _envelope(
    attributes: _Attributes, headers: _Attributes, data: bytes, content: str | None, id_field: str | None
) -> Envelope:
    for name in _REQUIRED:
        if not attributes.get(name):
            raise InputError(f"the attribute {name!r} is missing", fix=f"send {name}, or ce-{name} as a header")
    if attributes["specversion"] != "1.0":
        raise InputError(f"specversion is {attributes['specversion'][:16]!r}", fix="send CloudEvents 1.0")
    if len(data) > DATA_INLINE_BYTES_MAX:
        raise too_large(f"the data has {len(data):,} bytes", f"send up to {DATA_INLINE_BYTES_MAX:,}, or a link to it")
    id, source = attributes["id"], attributes["source"]
    own = attributes.get(MESSAGE_ID_ATTRIBUTE) or field_id(data, content, id_field)
    extensions = {name: value for name, value in attributes.items() if name not in _TAKEN}
    if own is not None:
        extensions |= {CE_ID: id, CE_SOURCE: source}
        id, source = own, _hub_source(attributes) or source
    index = _index(extensions)
    return Envelope(
        id,
        source,
        attributes["type"],
        data,
        session=attributes.get("partitionkey"),
        index=index,
        time=parse_rfc3339(attributes["time"].upper()) if "time" in attributes else None,
        subject=attributes.get("subject"),
        datacontenttype=content,
        headers={**headers, **extensions},
    )


def _index(extensions: _Attributes) -> int | None:
    """CloudEvents allow any text as `sequence`; what is no number of ours stays a header."""
    text = extensions.get("sequence", "")
    if not _DIGITS.match(text) or int(text) > OFFSET_MAX:
        return None
    return int(extensions.pop("sequence"))


def _hub_source(attributes: _Attributes) -> str | None:
    """The hub without the connection, if a hub sent it."""
    hub = attributes.get("hub")
    return f"/hubs/{hub}" if hub and attributes["type"].startswith(HUB_TYPES) else None


def field_id(data: bytes, content: str | None, field: str | None) -> str | None:
    """The application's id out of the body: text or a whole number at `field`, whose parts have dots between. None: the
    event has no such field, as what a hub tells of a connection has not."""
    if field is None or not _media(content or "").endswith("json"):
        return None
    try:
        found = msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    for part in field.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    if isinstance(found, bool) or not isinstance(found, str | int):
        return None
    return str(found) or None


def _media(content: str) -> str:
    return content.partition(";")[0].strip().lower()


# -- answers


def accepted(events: EventRequest, *, is_handled: bool) -> HttpResponse:
    """Stored, or handled already. A hub takes 204 for a yes that has nothing to tell its client."""
    return HttpResponse(204 if is_handled or events.is_from_hub else 202)


def error_response(error: HttpError) -> HttpResponse:
    """Without a body, with the cause in a header."""
    said = _NOT_VISIBLE.sub("?", error.text())[:ERROR_CHARS_MAX]
    answer = empty_error(error)
    return HttpResponse(answer.status, (*answer.headers, (ERROR_HEADER, said)))


def no_such_method() -> HttpError:
    return HttpError(
        405,
        "Error.MethodNotAllowed",
        "an endpoint takes POST",
        fix="send the event by POST",
        headers=(("allow", METHODS),),
    )


def consent(headers: Mapping[str, str], origins: tuple[str, ...]) -> HttpResponse:
    """The answer to OPTIONS, by which a sender asks whether it may send here at all. It has not shown who it is, so
    every endpoint says the same, whether or not it exists. The address in WebHook-Request-Callback is not called: a
    stranger has named it."""
    answer = [("allow", METHODS)]
    origin = headers.get(REQUEST_ORIGIN.lower(), "").strip()
    if not origin or not _ORIGIN.match(origin):
        return HttpResponse(200, tuple(answer))
    if "*" not in origins and origin.lower() not in {each.lower() for each in origins}:
        raise HttpError(403, "Error.Forbidden", "events from this origin are not wanted", fix="add it to origins")
    answer.append((ALLOWED_ORIGIN, origin))
    if REQUEST_RATE.lower() in headers:
        answer.append((ALLOWED_RATE, "*"))
    return HttpResponse(200, tuple(answer))
