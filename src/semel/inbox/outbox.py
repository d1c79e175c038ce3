"""What a handler or a caller sends, as rows of `outbox/<app>`: stored with its own writes, sent after the commit.

    hub:chat                      everybody at a hub
    hub:chat/group/room 1         a group of it; user and connection likewise
    stream:orders                 a stream of the same store
    endpoint:billing              an inbox endpoint of the same store
    https://example.com/orders    a POST to a URL
    nats:orders.new               a subject of a broker, by the sender that the application has for it

A row is known by its destination and the message's id: the same message to two destinations is two rows, and to the
same one twice is one. Rows of one key and destination are sent in order; one that is scheduled for later takes its turn
when it is due and keeps nobody waiting until then.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Unpack
from urllib.parse import urlsplit

from semel.errors import ConfigError, InputError
from semel.inbox.cron import Schedule, periodic_id
from semel.inbox.identity import Identity, derived_id, sourced_text
from semel.inbox.messages import Attributes, envelope_of
from semel.kernel.envelope import Envelope
from semel.kernel.ledger import Event, Kind, message_event
from semel.kernel.ops import Enqueue, Finish, WorkRow, WorkState
from semel.kernel.text import PART_CHARS_MAX, check_stream, check_text, stream_name
from semel.kernel.trace import has_room, with_trace

DESTINATION_HEADER = "semel-destination"
SINCE_HEADER = "semel-due-since"
"""Since when a row could be sent, in microseconds: how long ago its first attempt may have been."""
ROW_HEADERS = (DESTINATION_HEADER, SINCE_HEADER)
"""What a row of the outbox has and the message that is sent has not."""
DESTINATION_CHARS_MAX = 2048
PUBLIC_CHARS_MAX = 1024
HUB_KEEP_S = 24 * 3600.0
"""For how long a hub knows the key of a message again: a Semel server a day, as it forgets keys for good."""
CANCELLED = "cancelled"
BROKERS = ("amqp", "nats")
"""Known to be brokers also where nobody has said yet who sends to them."""
_RECEIVERS = ("group", "user", "connection")
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]{0,31}\Z")
_HUB = re.compile(r"[A-Za-z][A-Za-z0-9_`,.\[\]]{0,127}\Z")
_PRINTABLE = re.compile(r"[!-~]+\Z")


class DestinationKind(StrEnum):
    HUB = "hub"
    STREAM = "stream"
    ENDPOINT = "endpoint"
    URL = "url"
    BROKER = "broker"


@dataclass(frozen=True, slots=True)
class Destination:
    """Where a message goes. `name` is a hub, stream, endpoint, URL or broker; `receiver` and `to` say who at a hub, and
    `to` alone is the subject at a broker. Its text and `parse_destination` undo each other."""

    kind: DestinationKind
    name: str
    receiver: str = ""
    to: str = ""

    def __str__(self) -> str:
        match self.kind:
            case DestinationKind.URL:
                return self.name
            case DestinationKind.BROKER:
                return f"{self.name}:{self.to}"
            case DestinationKind.HUB if self.receiver:
                return f"hub:{self.name}/{self.receiver}/{self.to}"
        return f"{self.kind.value}:{self.name}"


def parse_destination(text: str) -> Destination:
    check_text("the destination", text, chars_max=DESTINATION_CHARS_MAX)
    scheme, colon, rest = text.partition(":")
    if not colon or not rest:
        raise _unknown(text)
    if scheme in ("http", "https"):
        return _url(text)
    match scheme:
        case "hub":
            return _hub(text, rest)
        case "stream":
            return Destination(DestinationKind.STREAM, check_stream(rest))
        case "endpoint":
            return Destination(DestinationKind.ENDPOINT, check_text("the endpoint", rest, chars_max=PART_CHARS_MAX))
    if not _SCHEME.match(scheme):
        raise _unknown(text)
    return Destination(DestinationKind.BROKER, scheme, to=_subject(text, rest))


def check_broker(name: object) -> str:
    """A name under which an application may have a sender of its own."""
    if not isinstance(name, str) or not _SCHEME.match(name) or name in ("stream", "endpoint"):
        raise ConfigError(
            f"{name!r} is nobody to send to",
            fix='use "url", "hub", or the part of a destination before the colon: app.sender("kafka", ...)',
        )
    return name


FIX_DESTINATION = (
    "use endpoint:<name>, stream:<name>, hub:<hub>, hub:<hub>/group/<group>, https://...,"
    " or nats:<subject> with app.sender('nats', ...)"
)


def _unknown(text: str) -> InputError:
    return InputError(f"{text!r} is not a destination", fix=FIX_DESTINATION)


def _hub(text: str, rest: str) -> Destination:
    name, *receiver = rest.split("/", 2)
    if not _HUB.match(name) or (receiver and (receiver[0] not in _RECEIVERS or not receiver[1:] or not receiver[1])):
        raise InputError(
            f"{text!r} names no hub, or nobody at it", fix="use hub:chat, or hub:chat/ and group/, user/ or connection/"
        )
    # two names of a hub that differ in case are the same hub
    return Destination(DestinationKind.HUB, name.lower(), *receiver)


def _url(text: str) -> Destination:
    try:
        parts = urlsplit(text)
        usable = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        raise _bad_url(text) from None
    if not usable or not _PRINTABLE.match(text) or parts.fragment:
        raise _bad_url(text)
    if parts.username is not None or parts.password is not None:
        raise _secret()
    return Destination(DestinationKind.URL, text)


def _secret() -> InputError:
    return InputError(
        "a destination with a user or password in its URL", fix="leave them out: destinations are stored and shown"
    )


def _bad_url(text: str) -> InputError:
    return InputError(f"{text!r} is not a URL to post to", fix="write it like https://example.com/orders")


def _subject(text: str, subject: str) -> str:
    if subject.startswith("//") and "@" in subject[2:].partition("/")[0]:
        raise _secret()
    if not _PRINTABLE.match(subject):
        raise InputError(f"{text!r} has a subject with spaces or signs", fix="use printable ASCII without spaces")
    return subject


def destination_of(envelope: Envelope) -> Destination:
    """Where a row of the outbox goes."""
    text = envelope.headers.get(DESTINATION_HEADER)
    if text is None:
        raise InputError(
            f"message {envelope.id!r} has no header {DESTINATION_HEADER}", fix="put rows into the outbox by publish()"
        )
    return parse_destination(text)


def is_in_doubt(row: WorkRow, now: int, keep_s: float) -> bool:
    """Whether somebody who remembers ids for `keep_s` may have had the message and forgotten it: it was tried before,
    and nobody knows how that ended. One that nobody has tried yet leaves no doubt, however long it has waited."""
    since = row.envelope.headers.get(SINCE_HEADER, "")
    return row.attempts > 1 and since.isdecimal() and now - int(since) > keep_s * 1_000_000


def outbox_queue(app: str) -> str:
    return stream_name("outbox", app)


def outbox_hop(app: str) -> str:
    return f"{outbox_queue(app)}>relay"


def public_text(destination: Destination) -> str:
    """For the ledger: without the query of a URL, which may be secret, and as long as an entry takes it."""
    text = str(destination).partition("?")[0] if destination.kind is DestinationKind.URL else str(destination)
    return text[:PUBLIC_CHARS_MAX]


def row_identity(destination: Destination, id: str) -> str:
    """Unique in the outbox: the message at its destination."""
    return sourced_text(str(destination), id)


@dataclass(slots=True)
class OutboxCalls:
    """The calls of one run of a handler, or of one transaction of a caller, in their order.

    `handled` is the message that the handler has: ids that are not given are derived from it, so a handler that runs
    again sends the same ones. `carried` is the trace context of whoever sends, and `now` its clock. `enqueues` go into
    the commit of the handler. A cancel is applied as a unit of its own: it may come too late, and that must not take
    the rest down with it.
    """

    app: str
    handler: str = ""
    handled: Identity | None = None
    carried: Callable[[], Mapping[str, str]] = dict
    now: Callable[[], int] | None = None
    enqueues: list[Enqueue] = field(default_factory=list)
    cancels: list[Finish] = field(default_factory=list)
    cancelled: list[Event] = field(default_factory=list)
    _ordinal: int = 0

    def publish(
        self,
        message: object,
        to: Destination | str,
        *,
        id: str | None = None,
        key: str | None = None,
        **attributes: Unpack[Attributes],
    ) -> str:
        """Send a message after the commit, in the order of its key. Returns its id."""
        return self._send(message, to, id, key, None, False, attributes)

    def schedule(
        self,
        message: object,
        to: Destination | str,
        *,
        due: int,
        id: str | None = None,
        key: str | None = None,
        replace: bool = False,
        **attributes: Unpack[Attributes],
    ) -> str:
        """Send a message at a time, in microseconds since 1970. Returns its id.

        `replace` replaces the time and the message: the row of that id is moved, there is never a second one.
        """
        if replace and id is None:
            raise InputError("a message without an id cannot be replaced", fix="give the id that it was sent with")
        return self._send(message, to, id, key, due, replace, attributes)

    def schedule_next(
        self,
        schedule: Schedule,
        message: object,
        to: Destination | str,
        *,
        after: int,
        **attributes: Unpack[Attributes],
    ) -> str:
        """Schedule the next message of a schedule after that time. Every process may call this: it is one message."""
        due = schedule.next_after(after)
        return self.schedule(message, to, due=due, id=periodic_id(schedule.name, due), **attributes)

    def cancel(self, id: str, to: Destination | str) -> None:
        """Take back a message that was not sent yet. It is remembered: sent again under its id, it is a duplicate.

        The op is refused for a row that is being sent or was sent before, and what `cancelled` has for the ledger with
        it.
        """
        identity = row_identity(_destination(to), id)
        self.enqueues = [op for op in self.enqueues if op.identity != identity]
        self.cancels.append(Finish(outbox_queue(self.app), identity, WorkState.DONE, cause=CANCELLED))
        self.cancelled.append(Event(Kind.CANCELLED, outbox_hop(self.app), message=id, peer=self.handler))

    def _send(
        self,
        message: object,
        to: Destination | str,
        id: str | None,
        key: str | None,
        due: int | None,
        replace: bool,
        attributes: Attributes,
    ) -> str:
        destination = _destination(to)
        id = id if id is not None else self._derived()
        headers = {**_headers(message, attributes), DESTINATION_HEADER: str(destination)}
        since = due if due is not None or self.now is None else self.now()
        if since is not None and has_room(headers, SINCE_HEADER, str(since)):
            headers[SINCE_HEADER] = str(since)
        attributes["headers"] = with_trace(headers, self.carried())
        envelope = envelope_of(message, id, **attributes)
        self.enqueues.append(self._row(envelope, destination, key, due, replace))
        return id

    def _derived(self) -> str:
        if self.handled is None:
            raise InputError("a message that is sent outside a handler has no id", fix="give it an id")
        self._ordinal += 1
        return derived_id(self.handler, self.handled, self._ordinal)

    def _row(
        self, envelope: Envelope, destination: Destination, key: str | None, due: int | None, replace: bool
    ) -> Enqueue:
        return Enqueue(
            outbox_queue(self.app),
            row_identity(destination, envelope.id),
            envelope,
            # a destination that is down keeps nobody waiting but its own
            key=sourced_text(str(destination), key) if key is not None else None,
            due=due,
            replace=replace,
            on_fresh=message_event(
                Kind.ACCEPTED, outbox_hop(self.app), "", envelope, delivery=public_text(destination), peer=self.handler
            ),
        )


def _headers(message: object, attributes: Attributes) -> dict[str, str]:
    own = message.headers if isinstance(message, Envelope) else {}
    return attributes.get("headers", own)


def _destination(to: Destination | str) -> Destination:
    return to if isinstance(to, Destination) else parse_destination(to)
