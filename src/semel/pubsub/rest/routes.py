"""The operations of the REST API: under which address, what they ask of a hub, and how its answer is written.

Below `/api/hubs/{hub}` words and names take turns, as in `/groups/{group}/connections/{connection}`.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import re
from collections.abc import Callable
from urllib.parse import urlencode

import msgspec

from semel.auth.authority import OPERATE, READ
from semel.auth.keys import AccessKeys
from semel.auth.tokens import USER_CHARS_MAX
from semel.cloudevents import METADATA_PREFIX
from semel.errors import InputError
from semel.http import INT_MAX, HttpError, HttpRequest, Query, Routes, bad_request, read_json
from semel.kernel.text import check_id, check_text
from semel.pubsub.hub.calls import (
    Answer,
    Call,
    Check,
    CloseConnections,
    Connection,
    Everybody,
    Find,
    Grant,
    Group,
    JoinMembers,
    ListMembers,
    Publish,
    Receivers,
    RemoveMembers,
    Revoke,
    User,
)
from semel.pubsub.protocol.client_tokens import CLIENT_PATH, client_token
from semel.pubsub.protocol.filters import parse
from semel.pubsub.protocol.frames import check_depth
from semel.pubsub.protocol.messages import Metadata
from semel.pubsub.protocol.names import TTL_S_MAX, check_group, check_metadata
from semel.pubsub.protocol.permissions import Permission
from semel.pubsub.rest.data import read_data

REASON_CHARS_MAX = 1024
KEY_HEADER = "idempotency-key"
ID_HEADER = "x-semel-message-id"

# what clients of the service look for; that some are called information or warning is its way, not ours
NO_CONNECTION = "Error.Connection.NotExisted"
NO_USER = "Warning.User.NotExisted"
NO_PERMISSION = "Info.Connection.NotExisted"
TOO_MANY = "Error.Connection.Conflict"

_KEY = re.compile(r"[!-~]{1,255}\Z")


class Parts(msgspec.Struct, frozen=True):
    """A request that may be made: `names` are those in its path after the hub, `endpoint` is where its maker knows us.

    The names have not been looked at yet.
    """

    hub: str
    names: list[str]
    query: Query
    request: HttpRequest
    version: str
    endpoint: str
    keys: AccessKeys
    now: float


class Operation(msgspec.Struct, frozen=True):
    """`call` None: no hub is asked. `missing` is the error for `NOT_FOUND`; without one that is as good as done.
    `role` is what the token of the request must allow. `conflict` is the error for `CONFLICT`."""

    call: Callable[[Parts], Call] | None
    done: int
    missing: str | None = None
    role: str = OPERATE
    body: Callable[[Parts, Answer], bytes] | None = None
    conflict: str = "Error.Conflict"


# -- whom it is about


def _everybody(parts: Parts) -> Everybody:
    return Everybody()


def _group(parts: Parts) -> Group:
    return Group(check_group(parts.names[0]))


def _user(parts: Parts) -> User:
    return User(check_text("the user", parts.names[0], chars_max=USER_CHARS_MAX))


def _connection(parts: Parts) -> Connection:
    return Connection(check_id("the connection", parts.names[0]))


def _second_group(parts: Parts) -> tuple[str, ...]:
    return (check_group(parts.names[1]),)


def _second_connection(parts: Parts) -> str:
    return check_id("the connection", parts.names[1])


def _excluded(parts: Parts) -> tuple[str, ...]:
    return tuple(check_id("an excluded connection", name) for name in parts.query.all("excluded"))


def _filter(text: str | None) -> str | None:
    """The message of a bad filter is the service's own, to the letter."""
    if not text:
        return None
    try:
        return parse(text).text
    except InputError as error:
        raise bad_request(error.message) from None


# -- sending


def _send(to: Callable[[Parts], Receivers]) -> Callable[[Parts], Call]:
    def publish(parts: Parts) -> Publish:
        return Publish(
            to=to(parts),
            excluded=_excluded(parts),
            filter=_filter(parts.query.one("filter")),
            ttl_s=parts.query.number("messageTtlSeconds", 0, TTL_S_MAX) or None,
            metadata=_metadata(parts.request),
            key=_key(parts.request),
            id=_id(parts.request),
            data=read_data(parts.request.headers, parts.request.body),
        )

    return publish


def _metadata(request: HttpRequest) -> Metadata | None:
    found = {
        name.removeprefix(METADATA_PREFIX): value.strip()
        for name, value in request.headers.items()
        if name.startswith(METADATA_PREFIX)
    }
    return check_metadata(found) if found else None


def _key(request: HttpRequest) -> str | None:
    key = request.headers.get(KEY_HEADER)
    if key is not None and not _KEY.match(key):
        raise bad_request(
            "the Idempotency-Key is malformed",
            fix="use 1 to 255 letters, digits and signs of ASCII",
            target="Idempotency-Key",
        )
    return key


def _id(request: HttpRequest) -> str | None:
    id = request.headers.get(ID_HEADER)
    return None if id is None else check_id("the X-Semel-Message-Id", id)


# -- closing and looking


def _close(to: Callable[[Parts], Receivers]) -> Callable[[Parts], Call]:
    def close(parts: Parts) -> CloseConnections:
        reason = parts.query.one("reason") or ""
        check_text("the reason", reason, chars_max=REASON_CHARS_MAX, empty=True)
        return CloseConnections(to(parts), _excluded(parts), reason)

    return close


def _find(who: Callable[[Parts], Group | User | Connection]) -> Callable[[Parts], Call]:
    return lambda parts: Find(who(parts))


def _page(parts: Parts, group: str) -> Page:
    return asked_page(parts.query, parts.keys, parts.hub, group)


def _list(parts: Parts) -> ListMembers:
    group = _group(parts).name
    page = _page(parts, group)
    return ListMembers(group, page.after, page.limit)


def _members(parts: Parts, answer: Answer) -> bytes:
    group = _group(parts).name
    address = f"{parts.endpoint}{parts.request.path}"
    return page_body(_page(parts, group), answer, address, parts.version, parts.keys, parts.hub, group)


# -- groups


def _join_connection(parts: Parts) -> JoinMembers:
    return JoinMembers(Connection(_second_connection(parts)), (_group(parts).name,))


def _remove_connection(parts: Parts) -> RemoveMembers:
    return RemoveMembers(Connection(_second_connection(parts)), (_group(parts).name,))


def _join_user(parts: Parts) -> JoinMembers:
    return JoinMembers(_user(parts), _second_group(parts))


def _remove_user(parts: Parts) -> RemoveMembers:
    return RemoveMembers(_user(parts), _second_group(parts))


def _remove_from_all(who: Callable[[Parts], Connection | User]) -> Callable[[Parts], Call]:
    return lambda parts: RemoveMembers(who(parts), None)


class _Groups(msgspec.Struct):
    groups: list[str]
    filter: str | None = None


def _groups(parts: Parts) -> tuple[tuple[str, ...], str | None]:
    text = read_json(parts.request)
    check_depth(text)
    try:
        body = msgspec.json.decode(text, type=_Groups)
    except msgspec.DecodeError as error:
        raise bad_request(f"the body is malformed: {error}", fix='send {"groups":[...],"filter":"..."}') from None
    if not body.groups:
        raise bad_request("the body names no group", fix='send {"groups":[...],"filter":"..."}')
    return tuple(dict.fromkeys(map(check_group, body.groups))), _filter(body.filter)


def _join_many(parts: Parts) -> JoinMembers:
    return JoinMembers(Everybody(), *_groups(parts))


def _remove_many(parts: Parts) -> RemoveMembers:
    return RemoveMembers(Everybody(), *_groups(parts))


# -- permissions

# .NET clients may write the number of their enumeration
_PERMISSIONS = {permission.lower(): permission for permission in Permission} | {
    "1": Permission.SEND_TO_GROUP,
    "2": Permission.JOIN_LEAVE_GROUP,
}


def _permit(kind: type[Grant | Revoke | Check]) -> Callable[[Parts], Call]:
    def permit(parts: Parts) -> Grant | Revoke | Check:
        permission = _PERMISSIONS.get(parts.names[0].lower())
        if permission is None:
            raise bad_request("there is no such permission", fix=f"use {' or '.join(Permission)}", target="permission")
        group = parts.query.one("targetName")
        return kind(_second_connection(parts), permission, None if group is None else check_group(group))

    return permit


# -- tokens for clients


def _token(parts: Parts, answer: Answer) -> bytes:
    _check_client_type(parts.query.one("clientType") or "Default")
    token = client_token(
        parts.keys,
        f"{parts.endpoint}{CLIENT_PATH}{parts.hub}",
        now=parts.now,
        lifetime_s=60 * (parts.query.number("minutesToExpire", 1, INT_MAX) or 60),
        user_id=parts.query.one("userId") or None,
        roles=parts.query.all("role"),
        groups=[check_group(group) for group in parts.query.all("group")],
    )
    return msgspec.json.encode({"token": token})


def _check_client_type(name: str) -> None:
    if name.lower() in ("mqtt", "socketio"):
        raise HttpError(
            501, "NotImplemented", f"this server speaks no {name}", fix="use clientType Default", target="clientType"
        )
    if name.lower() != "default":
        raise bad_request("there is no such clientType", fix="use Default, or leave it out", target="clientType")


# -- all of them

TABLE = (
    ("POST", "/:send", Operation(_send(_everybody), 202)),
    ("POST", "/groups/{group}/:send", Operation(_send(_group), 202)),
    ("POST", "/users/{user}/:send", Operation(_send(_user), 202)),
    ("POST", "/connections/{connection}/:send", Operation(_send(_connection), 202)),
    ("POST", "/:generateToken", Operation(None, 200, body=_token)),
    ("POST", "/:closeConnections", Operation(_close(_everybody), 204)),
    ("POST", "/groups/{group}/:closeConnections", Operation(_close(_group), 204)),
    ("POST", "/users/{user}/:closeConnections", Operation(_close(_user), 204)),
    ("DELETE", "/connections/{connection}", Operation(_close(_connection), 204)),
    ("HEAD", "/connections/{connection}", Operation(_find(_connection), 200, "Warning.Connection.NotExisted", READ)),
    ("HEAD", "/groups/{group}", Operation(_find(_group), 200, "Warning.Group.NotExisted", READ)),
    ("HEAD", "/users/{user}", Operation(_find(_user), 200, NO_USER, READ)),
    ("PUT", "/groups/{group}/connections/{connection}", Operation(_join_connection, 200, NO_CONNECTION)),
    ("DELETE", "/groups/{group}/connections/{connection}", Operation(_remove_connection, 204)),
    ("GET", "/groups/{group}/connections", Operation(_list, 200, role=READ, body=_members)),
    ("DELETE", "/connections/{connection}/groups", Operation(_remove_from_all(_connection), 204)),
    ("PUT", "/users/{user}/groups/{group}", Operation(_join_user, 200, NO_USER)),
    ("DELETE", "/users/{user}/groups/{group}", Operation(_remove_user, 204)),
    ("DELETE", "/users/{user}/groups", Operation(_remove_from_all(_user), 204)),
    (
        "PUT",
        "/permissions/{permission}/connections/{connection}",
        Operation(_permit(Grant), 200, NO_PERMISSION, conflict=TOO_MANY),
    ),
    (
        "DELETE",
        "/permissions/{permission}/connections/{connection}",
        Operation(_permit(Revoke), 204, conflict=TOO_MANY),
    ),
    ("HEAD", "/permissions/{permission}/connections/{connection}", Operation(_permit(Check), 200, NO_PERMISSION, READ)),
    ("POST", "/:addToGroups", Operation(_join_many, 200)),
    ("POST", "/:removeFromGroups", Operation(_remove_many, 200)),
)


HEALTH = Operation(None, 200)
"""Open to all: that there is an answer is all it says."""

OPERATIONS = Routes(
    [
        *((method, f"/api/hubs/{{hub}}{pattern}", operation) for method, pattern, operation in TABLE),
        *((method, "/api/health", HEALTH) for method in ("GET", "HEAD")),
    ]
)


# -- lists in pages

# A continuation token says after which connection the next page begins. It holds for the list it was made for and for
# no other, as long as one of the keys does; a connection that has gone meanwhile does no harm.

PAGE_MAX = 200

_PROOF_BYTES = 16


class Page(msgspec.Struct, frozen=True):
    """`top` is how many are wanted over all pages from this one on."""

    size: int = PAGE_MAX
    top: int | None = None
    after: str = ""

    @property
    def limit(self) -> int:
        return self.size if self.top is None else min(self.size, self.top)


def asked_page(query: Query, keys: AccessKeys, hub: str, group: str) -> Page:
    token = query.one("continuationToken")
    return Page(
        query.number("maxpagesize", 1, PAGE_MAX) or PAGE_MAX,
        query.number("top", 1, INT_MAX),
        "" if token is None else read_token(token, keys, hub, group),
    )


def page_body(page: Page, answer: Answer, address: str, version: str, keys: AccessKeys, hub: str, group: str) -> bytes:
    """`address` is the list's own, without a query."""
    value = [
        {"connectionId": member.connection} | ({} if member.user is None else {"userId": member.user})
        for member in answer.members
    ]
    body: dict[str, object] = {"value": value}
    left = None if page.top is None else page.top - len(value)
    if answer.more and value and left != 0:
        fields: dict[str, object] = {"api-version": version, "maxpagesize": page.size}
        if left is not None:
            fields["top"] = left
        fields["continuationToken"] = page_token(keys, hub, group, answer.members[-1].connection)
        body["nextLink"] = f"{address}?{urlencode(fields)}"
    return msgspec.json.encode(body)


def page_token(keys: AccessKeys, hub: str, group: str, after: str) -> str:
    whole = _proof(keys.primary, hub, group, after) + after.encode()
    return base64.urlsafe_b64encode(whole).decode().rstrip("=")


def read_token(token: str, keys: AccessKeys, hub: str, group: str) -> str:
    try:
        whole = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        after = whole[_PROOF_BYTES:].decode()
    except (binascii.Error, ValueError):
        raise _refused() from None
    proofs = [hmac.compare_digest(whole[:_PROOF_BYTES], _proof(key, hub, group, after)) for key in keys.all]
    if not any(proofs):
        raise _refused()
    return after


def _refused() -> HttpError:
    name = "continuationToken"
    return bad_request(f"the {name} is not one of this list", fix="follow nextLink, or begin without it", target=name)


def _proof(key: str, hub: str, group: str, after: str) -> bytes:
    """The first line keeps it apart from everything else that is signed with the same key."""
    names = json.dumps([hub, group, after]).encode()
    return hmac.digest(key.encode(), b"semel page\n" + names, hashlib.sha256)[:_PROOF_BYTES]
