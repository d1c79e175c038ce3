"""The API for operators: what is there and what goes on, over HTTP beside the REST API, and for reading only.

    GET /v1/pubsub/hubs
    GET /v1/pubsub/hubs/{hub}/connections    ?group= &user= &after= &limit=
    GET /v1/pubsub/hubs/{hub}/groups         ?after= &limit=
    GET /v1/pubsub/hubs/{hub}/messages       ?group= &after= &limit= &wait=

Tokens are those of the REST API; one with roles needs `semel.read` or `semel.operate`. A list goes on after `next`,
which is null at its end. Messages are read after a position, "<epoch>:<offset>"; without one, from now on, and after
"start" from the oldest that is stored. `wait` is how many seconds to wait for one.

    Admin.begin(request, now)    a response at once, or what the runtime has to find out, with `respond`
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from semel.auth.authority import READ, Authority
from semel.auth.tokens import USER_CHARS_MAX
from semel.errors import EpochChanged, InputError, SemelError
from semel.http import (
    JSON,
    Headers,
    HttpError,
    HttpRequest,
    HttpResponse,
    Query,
    Routes,
    bad_request,
    json_error,
    unavailable,
)
from semel.kernel.position import OFFSET_MAX, Position
from semel.kernel.store import Record
from semel.kernel.text import check_text
from semel.pubsub.hub.calls import Answer, Everybody, Group, HubInfo, ListConnections, ListGroups, Outcome, User
from semel.pubsub.hub.commits import public_message
from semel.pubsub.hub.records import data_of, group_target, stream_of, terms_of
from semel.pubsub.protocol.messages import Data, DataType, Metadata, StreamPart
from semel.pubsub.protocol.names import GROUP_CHARS_MAX, check_group, check_hub
from semel.pubsub.rest.api import Asked

PREFIX = "/v1/pubsub/"
PAGE_MAX = 1_000
PAGE = 200
WAIT_S_MAX = 30
START = "start"

_HEADERS: Headers = (("content-type", JSON), ("cache-control", "no-store"))
_POSITION = re.compile(r"([0-9]{1,10}):([0-9]{1,16})\Z")
_encode = msgspec.json.Encoder().encode


class HubRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """`here` None: nobody has asked this process for the hub yet."""

    name: str
    here: HubInfo | None = None


@dataclass(frozen=True, slots=True)
class HubsAsked:
    respond: Callable[[Sequence[HubRow]], HttpResponse]


class MessagePage(msgspec.Struct, frozen=True):
    """Messages that were found up to a position. `missed`: so many records were trimmed before they could be read."""

    records: Sequence[Record]
    after: Position
    missed: int = 0


@dataclass(frozen=True, slots=True)
class MessagesAsked:
    """`after` None: from now on. `target` None: those of the whole hub."""

    stream: str
    after: Position | None
    from_start: bool
    target: str | None
    limit: int
    wait_s: float
    respond: Callable[[MessagePage | SemelError], HttpResponse]


@dataclass(frozen=True, slots=True)
class Admin:
    authority: Authority

    def begin(self, request: HttpRequest, now: float) -> HttpResponse | HubsAsked | Asked | MessagesAsked:
        try:
            return self._begin(request, now)
        except HttpError as error:
            return json_error(error)
        except InputError as error:
            return json_error(bad_request(error.message, fix=error.fix))

    def _begin(self, request: HttpRequest, now: float) -> HubsAsked | Asked | MessagesAsked:
        ask, names = ROUTES.find(request.method, request.path)
        self.authority.check(request, READ, now)
        return HubsAsked(_hubs) if ask is None else ask(check_hub(names["hub"]), Query(request.query))


def _json(value: Any) -> HttpResponse:
    return HttpResponse(200, _HEADERS, _encode(value))


# -- what is there


def _hubs(rows: Sequence[HubRow]) -> HttpResponse:
    return _json({"hubs": rows})


def _connections(hub: str, query: Query) -> Asked:
    group, user = query.one("group"), query.one("user")
    if group is not None and user is not None:
        raise bad_request("the query has both group and user", fix="keep one of them")
    of: Everybody | Group | User = Everybody()
    if group is not None:
        of = Group(check_group(group))
    elif user is not None:
        of = User(check_text("the user", user, chars_max=USER_CHARS_MAX))
    return Asked(hub, ListConnections(of, _after(query), _limit(query)), partial(_rows, "connections"))


def _groups(hub: str, query: Query) -> Asked:
    return Asked(hub, ListGroups(_after(query), _limit(query)), partial(_rows, "groups"))


def _after(query: Query) -> str:
    return check_text("after", query.one("after") or "", chars_max=GROUP_CHARS_MAX, empty=True)


def _limit(query: Query) -> int:
    return query.number("limit", 1, PAGE_MAX) or PAGE


def _rows(name: str, answer: Answer) -> HttpResponse:
    if answer.outcome is not Outcome.DONE:
        return json_error(unavailable(answer.message or "the store could not do it"))
    last = answer.rows[-1] if answer.more else None
    following = getattr(last, "connection_id", None) or getattr(last, "name", None)
    return _json({name: answer.rows, "next": following})


# -- what goes on


def _messages(hub: str, query: Query) -> MessagesAsked:
    group, after = query.one("group"), query.one("after")
    stream = stream_of(hub)
    return MessagesAsked(
        stream,
        None if after in (None, START) else _position(stream, after or ""),
        after == START,
        None if group is None else group_target(check_group(group)),
        _limit(query),
        query.number("wait", 0, WAIT_S_MAX) or 0,
        _page,
    )


def _position(stream: str, text: str) -> Position:
    found = _POSITION.match(text)
    if found is None or int(found[2]) > OFFSET_MAX:
        raise bad_request("after is no position", fix=f"use what an answer says as after, or {START}", target="after")
    return Position(stream, int(found[1]), int(found[2]))


def _page(page: MessagePage | SemelError) -> HttpResponse:
    if isinstance(page, EpochChanged):
        gone = f"the store is in epoch {page.current} by now"
        fix = f"it was restored or has failed over: begin again with after={START}"
        return json_error(HttpError(410, "Error.EpochChanged", gone, fix=fix, target="after"))
    if isinstance(page, SemelError):
        return json_error(unavailable(public_message(page)))
    after = f"{page.after.epoch}:{page.after.offset}"
    return _json({"messages": [_message(each) for each in page.records], "after": after, "missed": page.missed})


class _Message(msgspec.Struct, frozen=True, omit_defaults=True, rename={"sender": "from", "data_type": "dataType"}):
    """`at` and `expires` in microseconds since 1970. `to` is empty where it is for everybody."""

    offset: int
    at: int
    id: str
    to: dict[str, str]
    sender: str
    data_type: str | None = None
    data: msgspec.Raw | str | None = None
    user: str | None = None
    metadata: Metadata | None = None
    expires: int | None = None
    stream: StreamPart | None = None


_SORTS = {"g": "group", "u": "user", "c": "connection"}


def _message(record: Record) -> _Message:
    envelope = record.envelope
    terms = terms_of(envelope)
    data = data_of(envelope, record.body if record.body is not None else envelope.data)
    kind, value = _shown(data) if data is not None else (None, None)
    sort, _, name = record.target.partition("/")
    return _Message(
        record.position.offset, record.at, envelope.id, {_SORTS[sort]: name} if sort in _SORTS else {}, envelope.source,
        kind, value, envelope.subject, terms.metadata, terms.expires, terms.stream,
    )  # fmt: skip


def _shown(data: Data) -> tuple[str, msgspec.Raw | str]:
    """Anybody may write into a stream: what is not what it says is shown as bytes."""
    try:
        if data.type is DataType.TEXT:
            return data.type, data.body.decode()
        if data.type is DataType.JSON:
            msgspec.json.decode(data.body)
            return data.type, msgspec.Raw(data.body)
    except (UnicodeDecodeError, msgspec.DecodeError, RecursionError):
        return DataType.BINARY, _base64(data.body)
    return data.type, _base64(data.body)


def _base64(body: bytes) -> str:
    return binascii.b2a_base64(body, newline=False).decode()


ROUTES: Routes[Callable[[str, Query], Asked | MessagesAsked] | None] = Routes(
    [
        ("GET", "/v1/pubsub/hubs", None),
        ("GET", "/v1/pubsub/hubs/{hub}/connections", _connections),
        ("GET", "/v1/pubsub/hubs/{hub}/groups", _groups),
        ("GET", "/v1/pubsub/hubs/{hub}/messages", _messages),
    ]
)
