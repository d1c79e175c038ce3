"""From an event to the HTTP request that tells a handler of it, and from the response to what follows from it.

Events go as CloudEvents 1.0 in binary mode: the attributes are headers, the data is the body.

    connect                    asks whether a client may come in: `read_connect`
    a user event               asks what to answer to a client: `read_user_event`
    connected, disconnected,
    joined, left               only tell: `read_notification`

A `PendingEvent` is all that a request is made of, but for the keys and the configuration, which are those of the moment
in which it is sent. So an event that was stored before it was sent is delivered in the same words after a restart, with
the same `ce-id`: a handler that remembers (ce-source, ce-id) takes it once.

Whoever sends the requests follows no redirect, asks no proxy and no file for credentials, and keeps no cookies of one
connection for another (`FOLLOW_REDIRECTS`, `TRUST_ENVIRONMENT`, `SHARE_COOKIES`); reads no more than
`RESPONSE_BYTES_MAX` + 1 bytes of a body; and gives up at `TOTAL_S` after the first attempt began.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum

import msgspec

from semel.auth.keys import AccessKeys
from semel.auth.tokens import ITEMS_MAX, ROLE_CHARS_MAX, USER_CHARS_MAX, service_token
from semel.cloudevents import (
    HUB_TYPES,
    MESSAGE_ID,
    MESSAGE_ID_ATTRIBUTE,
    METADATA_PREFIX,
    REQUEST_ORIGIN,
    attribute_header,
    field_header,
)
from semel.errors import FrameError, InputError, LimitExceeded, StoreError
from semel.http import ClientCertificate, HttpError, HttpResponse, OutgoingRequest
from semel.kernel.text import check_text, clean_cause
from semel.pubsub.events.handlers import Auth, EventHandler, Handlers, SystemEvent
from semel.pubsub.protocol.client_tokens import ClientClaims
from semel.pubsub.protocol.frames import check_depth, subprotocol_of
from semel.pubsub.protocol.messages import CONTENT_TYPES, Data, DataType, ErrorName, Fault, Metadata
from semel.pubsub.protocol.names import check_group, check_metadata
from semel.pubsub.rest.data import read_data
from semel.websocket import CloseCode

FOLLOW_REDIRECTS = False
"""A handler may not send us elsewhere: only what the configuration names is called."""
TRUST_ENVIRONMENT = False
"""No proxy, certificate or password from environment variables and .netrc."""
SHARE_COOKIES = False
"""A jar that is shared would hand the cookies of one client's events to those of another."""
RESPONSE_BYTES_MAX = 1024 * 1024
RESPONSE_HEADERS_MAX = 100
RESPONSE_HEADERS_CHARS_MAX = 64 * 1024
STATE_CHARS_MAX = 8 * 1024
REFUSAL_CHARS_MAX = 1000

RETRIES_AFTER_S = (1.0, 3.0, 5.0)
TOTAL_S = 100.0

CONNECT_ID, CONNECTED_ID = "0", "1"
"""As the service counts: a connection has one of each."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_STATE = "ce-connectionstate"
_JSON = "application/json; charset=utf-8"
_CONTENT_TYPES = {**CONTENT_TYPES, DataType.TEXT: "text/plain; charset=utf-8"}
_HIDDEN_QUERY = frozenset({"access_token", "awps_reconnection_token"})
_HIDDEN_HEADERS = frozenset({"authorization", "proxy-authorization"})

_FIELD = re.compile(r"[ -~]*\Z")


class HandlerUnreachable(msgspec.Struct, frozen=True):
    """No response, or not all of it: no connection, a broken one, or the time was up (`is_late`)."""

    cause: str
    is_late: bool = False


class NotAllowed(msgspec.Struct, frozen=True):
    """It was not sent: the handler has not said that it wants events of this server."""


Reply = HttpResponse | HandlerUnreachable | NotAllowed


# -- events


class EventClient(msgspec.Struct, frozen=True, array_like=True):
    """Whose event it is. `subprotocol` is empty where there is none; `state` is what handlers have last said of it."""

    hub: str
    connection: str
    user: str | None = None
    subprotocol: str = ""
    state: str = ""


class Family(StrEnum):
    """The middle part of an event's type."""

    SYSTEM = "sys"
    GROUP = "gp"
    USER = "user"


class PendingEvent(msgspec.Struct, frozen=True, array_like=True):
    """An event on its way to its handler. `id` is unique among the events of the client, `at` in microseconds."""

    client: EventClient
    id: str
    at: int
    family: Family
    name: str
    data: Data
    metadata: Metadata | None = None
    ack_id: int | None = None

    @property
    def identity(self) -> str:
        """The identity of the work row: one for each connection and ackId."""
        return f"{self.client.connection}#{self.ack_id if self.ack_id is not None else f'event-{self.id}'}"

    @property
    def type(self) -> str:
        return f"{HUB_TYPES}{self.family}.{self.name}"

    @property
    def own_id(self) -> str | None:
        """What the client's application calls it, whichever connection brings it."""
        return self.metadata.get(MESSAGE_ID) if self.metadata else None

    def handler(self, handlers: Handlers) -> EventHandler | None:
        if self.family is Family.USER:
            return handlers.for_user_event(self.name)
        return handlers.for_system_event(SystemEvent(self.name))


def event_id(minted: str, ack_id: int | None = None) -> str:
    """With an ackId its own name, so that a client who tries a failed event again repeats its id as well. Without one
    what was `minted` for it, which must not be given twice in the life of a connection."""
    return f"ack-{ack_id}" if ack_id is not None else minted


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(PendingEvent).decode


def encode_event(event: PendingEvent) -> bytes:
    return _encode(event)


def decode_event(stored: bytes) -> PendingEvent:
    try:
        return _decode(stored)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise StoreError(f"an event cannot be read: {error}", fix="was it written by a newer Semel?") from None


def connect_event(
    client: EventClient,
    at: int,
    *,
    claims: Mapping[str, Sequence[str]],
    query: Iterable[tuple[str, str]],
    headers: Iterable[tuple[str, str]],
    subprotocols: Sequence[str],
    certificate: ClientCertificate | None = None,
) -> PendingEvent:
    """The request with which the client comes, without the secrets in it."""
    body = {
        "claims": claims,
        "query": _gathered(query, _HIDDEN_QUERY),
        "headers": _gathered(headers, _HIDDEN_HEADERS),
        "subprotocols": subprotocols,
        "clientCertificates": [] if certificate is None else [_shown(certificate)],
    }
    return _system_event(client, CONNECT_ID, at, SystemEvent.CONNECT, body)


def _shown(certificate: ClientCertificate) -> dict[str, str]:
    return {"thumbprint": certificate.thumbprint, "content": certificate.pem}


def connected_event(client: EventClient, at: int) -> PendingEvent:
    return _system_event(client, CONNECTED_ID, at, SystemEvent.CONNECTED, {})


def disconnected_event(client: EventClient, id: str, at: int, reason: str) -> PendingEvent:
    return _system_event(client, id, at, SystemEvent.DISCONNECTED, {"reason": reason})


def joined_event(client: EventClient, id: str, at: int, group: str) -> PendingEvent:
    return _system_event(client, id, at, SystemEvent.JOINED, {"group": group})


def left_event(client: EventClient, id: str, at: int, group: str) -> PendingEvent:
    return _system_event(client, id, at, SystemEvent.LEFT, {"group": group})


def user_event(
    client: EventClient,
    id: str,
    at: int,
    name: str,
    data: Data,
    metadata: Metadata | None = None,
    ack_id: int | None = None,
) -> PendingEvent:
    return PendingEvent(client, id, at, Family.USER, name, data, metadata, ack_id)


def _system_event(client: EventClient, id: str, at: int, event: SystemEvent, body: object) -> PendingEvent:
    family = Family.GROUP if event in (SystemEvent.JOINED, SystemEvent.LEFT) else Family.SYSTEM
    return PendingEvent(client, id, at, family, event.value, Data(DataType.JSON, msgspec.json.encode(body)))


def _gathered(pairs: Iterable[tuple[str, str]], hidden: frozenset[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, value in pairs:
        if name.lower() not in hidden:
            found.setdefault(_sayable(name), []).append(_sayable(value))
    return found


def _sayable(text: str) -> str:
    """Without lone surrogates, which stand for bytes that were no text and which JSON cannot say."""
    return text.encode(errors="replace").decode()


# -- the request


def request_for(
    event: PendingEvent, handler: EventHandler, keys: AccessKeys, origin: str, now: float
) -> OutgoingRequest:
    """`origin` is the host by which handlers know this server: the one that they were asked about before."""
    client = event.client
    headers = [
        ("Content-Type", _JSON if event.family is not Family.USER else _CONTENT_TYPES[event.data.type]),
        ("Accept-Encoding", "identity"),
        (REQUEST_ORIGIN, origin),
        ("ce-specversion", "1.0"),
        ("ce-awpsversion", "1.0"),
        ("ce-type", attribute_header(event.type)),
        ("ce-source", attribute_header(f"/hubs/{client.hub}/client/{client.connection}")),
        ("ce-id", attribute_header(event.id)),
        ("ce-time", (_EPOCH + timedelta(microseconds=event.at)).strftime("%Y-%m-%dT%H:%M:%SZ")),
        ("ce-signature", keys.signature(client.connection)),
        ("ce-hub", attribute_header(client.hub)),
        ("ce-connectionId", attribute_header(client.connection)),
        ("ce-eventName", attribute_header(event.name)),
    ]
    if client.user:
        headers.append(("ce-userId", attribute_header(client.user)))
    if client.subprotocol:
        headers.append(("ce-subprotocol", attribute_header(client.subprotocol)))
    if client.state:
        headers.append(("ce-connectionState", client.state))
    if event.own_id is not None:
        # in the metadata it cannot be told from one that is written with escapes
        headers.append((f"ce-{MESSAGE_ID_ATTRIBUTE}", attribute_header(event.own_id)))
    headers += _metadata_headers(event.metadata)
    if handler.auth is Auth.KEY:
        headers.append(("Authorization", f"Bearer {service_token(keys, handler.endpoint, now=now)}"))
    return OutgoingRequest("POST", handler.url_for(client.hub, event.name), tuple(headers), event.data.body)


def _metadata_headers(metadata: Metadata | None) -> list[tuple[str, str]]:
    """Names of headers know no case, so of two keys that differ in nothing else the last is sent."""
    by_name = {key.lower(): value for key, value in (metadata or {}).items()}
    return [(METADATA_PREFIX + key, field_header(value)) for key, value in by_name.items()]


# -- what became of it


class HandlerFailed(msgspec.Struct, frozen=True):
    """It counts as not done. `cause` is for the log, never for the client."""

    cause: str


class HandlerRefused(msgspec.Struct, frozen=True):
    """The client may not come in: `status` and `message` are the handler's words to it, to be sent as plain text."""

    status: int
    message: str = ""


class Allowed(msgspec.Struct, frozen=True):
    """The client may come in. None: as its token says. `subprotocol` is one that it has offered."""

    user: str | None = None
    roles: tuple[str, ...] | None = None
    groups: tuple[str, ...] | None = None
    subprotocol: str | None = None
    state: str = ""

    def over(self, claims: ClientClaims) -> ClientClaims:
        """Who the client is and what it may by the words of its token and the handler. An empty user is nobody, and no
        roles are none; but no groups are those of the token."""
        return ClientClaims(
            claims.user_id if self.user is None else self.user or None,
            claims.roles if self.roles is None else self.roles,
            self.groups or claims.groups,
            claims.claims,
        )


class HandlerAnswered(msgspec.Struct, frozen=True):
    """The handler has taken it. `data` None: nothing to tell the client. `state` None: as before."""

    data: Data | None = None
    metadata: Metadata | None = None
    state: str | None = None


NO_HANDLER = "no event handler takes the event"
NOT_TAKEN = "the event handler could not take the event"


def failure_answer(event: PendingEvent, why: str = NOT_TAKEN) -> Fault | CloseCode | None:
    """The answer to a client whose event has failed: an error for its ackId or, for a simple client without acks,
    the end of the connection. None, if it asked for no answer."""
    if event.ack_id is not None:
        return Fault(ErrorName.INTERNAL, why)
    return CloseCode.INTERNAL if subprotocol_of(event.client.subprotocol) is None else None


def read_connect(reply: Reply, offered: Sequence[str]) -> Allowed | HandlerRefused | HandlerFailed:
    """`offered` are the client's subprotocols. After `HandlerFailed` the client gets status 500."""
    if isinstance(reply, HttpResponse) and 400 <= reply.status < 500:
        text = reply.body[: 4 * REFUSAL_CHARS_MAX].decode(errors="replace")
        return HandlerRefused(reply.status, clean_cause(text[:REFUSAL_CHARS_MAX]))
    try:
        response = _taken(reply)
        return _allowed(_decoded_answer(response.body), offered, _state(response) or "")
    except (InputError, FrameError, HttpError) as error:
        return HandlerFailed(error.message)


def read_user_event(reply: Reply) -> HandlerAnswered | HandlerFailed:
    try:
        response = _taken(reply)
        metadata = _metadata(response)
        return HandlerAnswered(_data(response, metadata), metadata, _state(response))
    except (InputError, FrameError, HttpError) as error:
        return HandlerFailed(error.message)


def read_notification(reply: Reply) -> HandlerAnswered | HandlerFailed:
    """A handler that is only notified has nothing to answer."""
    try:
        _taken(reply)
        return HandlerAnswered()
    except InputError as error:
        return HandlerFailed(error.message)


def _taken(reply: Reply) -> HttpResponse:
    """The response, if it says yes and is no larger than allowed."""
    if isinstance(reply, HandlerUnreachable):
        raise InputError(f"the event handler cannot be reached: {clean_cause(reply.cause)}")
    if isinstance(reply, NotAllowed):
        raise InputError(
            "the event handler has not said that it wants events of this server",
            fix="let it answer OPTIONS with WebHook-Allowed-Origin",
        )
    if 300 <= reply.status < 400:
        raise InputError(f"the event handler redirects with status {reply.status}, which is not followed")
    if not 200 <= reply.status < 300:
        raise InputError(f"the event handler answered with status {reply.status}")
    if len(reply.body) > RESPONSE_BYTES_MAX:
        raise LimitExceeded(f"the response of the event handler has more than {RESPONSE_BYTES_MAX:,} bytes")
    chars = sum(len(name) + len(value) for name, value in reply.headers)
    if len(reply.headers) > RESPONSE_HEADERS_MAX or chars > RESPONSE_HEADERS_CHARS_MAX:
        raise LimitExceeded("the response of the event handler has too many headers")
    return reply


def _values(response: HttpResponse, name: str) -> list[str]:
    return [value.strip() for found, value in response.headers if found.lower() == name]


def _state(response: HttpResponse) -> str | None:
    """It goes back to the handler just as it came, so it has to be fit for that."""
    values = _values(response, _STATE)
    if not values:
        return None
    if len(values) > 1 or not _FIELD.match(values[0]) or len(values[0]) > STATE_CHARS_MAX:
        raise InputError(
            f"the response has not one ce-connectionState of up to {STATE_CHARS_MAX:,} characters of ASCII",
            fix="send it once, in base64, and keep little in it",
        )
    return values[0]


def _metadata(response: HttpResponse) -> Metadata | None:
    found = {
        name.lower().removeprefix(METADATA_PREFIX): value.strip()
        for name, value in response.headers
        if name.lower().startswith(METADATA_PREFIX) and len(name) > len(METADATA_PREFIX)
    }
    return check_metadata(found) if found else None


def _data(response: HttpResponse, metadata: Metadata | None) -> Data | None:
    """Without a type it is binary. An empty body is only passed on if metadata goes with it. So is null in JSON, which
    many web frameworks send for a handler that returns nothing: an error would make the client send its event again."""
    headers = {name: values[-1] for name in ("content-encoding", "content-type") if (values := _values(response, name))}
    content = headers.setdefault("content-type", CONTENT_TYPES[DataType.BINARY]).partition(";")[0].strip().lower()
    if not response.body or (content == CONTENT_TYPES[DataType.JSON] and response.body.strip() == b"null"):
        return Data(DataType.TEXT, b"") if metadata is not None else None
    if content == CONTENT_TYPES[DataType.PROTOBUF]:
        # protobuf takes its time to load, and few need it
        from semel.pubsub.protocol.frames_protobuf import check_any

        return Data(DataType.PROTOBUF, check_any(response.body))
    return read_data(headers, response.body)


class _Answer(msgspec.Struct, rename="camel"):
    user_id: str | None = None
    roles: list[str] | None = None
    groups: list[str] | None = None
    subprotocol: str | None = None


_decode_answer = msgspec.json.Decoder(_Answer | None).decode


def _decoded_answer(body: bytes) -> _Answer:
    """Whatever its content type. Nothing and null change nothing."""
    try:
        text = body.decode("utf-8-sig")
        check_depth(text)
        return (_decode_answer(text) if text.strip() else None) or _Answer()
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InputError(f"the answer to connect is not what it should be: {error}") from None


def _allowed(answer: _Answer, offered: Sequence[str], state: str) -> Allowed:
    if len(answer.roles or ()) > ITEMS_MAX or len(answer.groups or ()) > ITEMS_MAX:
        raise LimitExceeded(f"the answer to connect has more than {ITEMS_MAX:,} roles or groups")
    if answer.subprotocol and answer.subprotocol not in offered:
        raise InputError(
            f"the answer to connect chooses a subprotocol that was not offered: {answer.subprotocol[:64]!r}"
        )
    check_text("the user", answer.user_id or "", chars_max=USER_CHARS_MAX, empty=True)
    for role in answer.roles or ():
        check_text("a role", role, chars_max=ROLE_CHARS_MAX)
    for group in answer.groups or ():
        check_group(group)
    return Allowed(
        answer.user_id,
        tuple(answer.roles) if answer.roles is not None else None,
        tuple(answer.groups) if answer.groups is not None else None,
        answer.subprotocol or None,
        state,
    )


# -- trying again


def next_try(attempt: int, reply: Reply, began: float, now: float) -> float | None:
    """When to send the same request again, after attempt number `attempt` (the first is 1) had this outcome, or None:
    what it says is the last word. `began` is when the first of these attempts did.

    Only what may pass by itself is tried again: 408, 5xx and a connection that failed. What is late has used up its
    time, and so has what would be tried after `TOTAL_S`.
    """
    if not _may_pass(reply) or attempt > len(RETRIES_AFTER_S):
        return None
    at = now + RETRIES_AFTER_S[attempt - 1]
    return at if at < began + TOTAL_S else None


def _may_pass(reply: Reply) -> bool:
    if isinstance(reply, HandlerUnreachable):
        return not reply.is_late
    return isinstance(reply, HttpResponse) and _is_trouble(reply.status)


def _is_trouble(status: int) -> bool:
    return status == 408 or 500 <= status < 600
