"""Requests with a good token, and a hub that keeps what it is told in dictionaries."""

from __future__ import annotations

from typing import Any

import msgspec

from semel.auth.keys import DEV_KEY, AccessKeys
from semel.auth.tokens import service_token
from semel.http import HttpRequest, HttpResponse
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
    Member,
    Outcome,
    Publish,
    Receivers,
    RemoveMembers,
    Revoke,
    User,
)
from semel.pubsub.protocol.filters import parse
from semel.pubsub.protocol.permissions import Permissions
from semel.pubsub.rest.api import Asked, Rest, RestSettings

NOW = 1_800_000_000.0
KEYS = AccessKeys(DEV_KEY)
HOST = "localhost:8080"
HUB = "/api/hubs/chat"
VERSION = "api-version=2024-12-01"
REST = Rest(RestSettings(KEYS))


def request(
    method: str,
    path: str,
    query: str = "",
    body: bytes | str = b"",
    *,
    content_type: str | None = None,
    roles: tuple[str, ...] = (),
    version: str | None = VERSION,
    headers: dict[str, str] | None = None,
    **more: Any,
) -> HttpRequest:
    token = service_token(KEYS, f"http://{HOST}{path}", now=NOW, roles=roles)
    all_headers = {"authorization": f"Bearer {token}", **(headers or {})}
    if content_type is not None:
        all_headers["content-type"] = content_type
    return HttpRequest(
        method,
        path,
        "&".join(part for part in (version, query) if part),
        all_headers,
        body if isinstance(body, bytes) else body.encode(),
        **{"host": HOST, **more},
    )


def begin(*arguments: Any, rest: Rest = REST, **more: Any) -> HttpResponse | Asked:
    return rest.begin(request(*arguments, **more), NOW)


def asked(*arguments: Any, **more: Any) -> Asked:
    begun = begin(*arguments, **more)
    assert isinstance(begun, Asked), begun
    return begun


def answered(*arguments: Any, **more: Any) -> HttpResponse:
    begun = begin(*arguments, **more)
    assert isinstance(begun, HttpResponse), begun
    return begun


def header(response: HttpResponse, name: str) -> str | None:
    [value] = [value for known, value in response.headers if known == name] or [None]
    return value


def error(response: HttpResponse) -> dict[str, str]:
    body: dict[str, str] = msgspec.json.decode(response.body)
    assert set(body) == {"code", "message", "target"}
    assert header(response, "x-ms-error-code") == body["code"]
    assert header(response, "content-type") == "application/json"
    return body


class Client(msgspec.Struct):
    connection_id: str
    user_id: str | None = None
    groups: set[str] = msgspec.field(default_factory=set)
    permissions: Permissions = Permissions()


class FakeHub:
    def __init__(self, *clients: Client) -> None:
        self.clients = {client.connection_id: client for client in clients}
        self.published: list[Publish] = []
        self.closed: list[tuple[str, str]] = []

    def answer(self, call: Call) -> Answer:
        match call:
            case Publish():
                self.published.append(call)
                return Answer()
            case CloseConnections():
                for client in self._there(call.to):
                    if client.connection_id not in call.excluded:
                        self.closed.append((client.connection_id, call.reason))
                        del self.clients[client.connection_id]
                return Answer()
            case Find():
                return _found(self._there(call.who))
            case JoinMembers() | RemoveMembers():
                return self._change(call)
            case ListMembers():
                return self._list(call)
            case Grant() | Revoke() | Check():
                return self._permit(call)

    def _there(self, who: Receivers) -> list[Client]:
        match who:
            case Everybody():
                return list(self.clients.values())
            case Group(name=name):
                return [client for client in self.clients.values() if name in client.groups]
            case User(name=name):
                return [client for client in self.clients.values() if name == client.user_id]
            case Connection(name=name):
                return [self.clients[name]] if name in self.clients else []

    def _change(self, call: JoinMembers | RemoveMembers) -> Answer:
        there = self._there(call.who)
        chosen = [client for client in there if call.filter is None or parse(call.filter).matches(client)]
        for client in chosen:
            if isinstance(call, JoinMembers):
                client.groups |= set(call.groups)
            else:
                client.groups -= client.groups if call.groups is None else set(call.groups)
        return Answer() if isinstance(call.who, Everybody) else _found(there)

    def _list(self, call: ListMembers) -> Answer:
        members = sorted(client.connection_id for client in self._there(Group(call.group)))
        after = [id for id in members if id > call.after]
        page = tuple(Member(id, self.clients[id].user_id) for id in after[: call.limit])
        return Answer(members=page, more=len(after) > call.limit)

    def _permit(self, call: Grant | Revoke | Check) -> Answer:
        client = self.clients.get(call.connection)
        if client is None:
            return Answer(Outcome.NOT_FOUND)
        if isinstance(call, Check):
            has = client.permissions.has(call.permission, call.group)
            return Answer() if has else Answer(Outcome.NOT_FOUND)
        change = client.permissions.granted if isinstance(call, Grant) else client.permissions.revoked
        client.permissions = change(call.permission, call.group)
        return Answer()


def _found(clients: list[Client]) -> Answer:
    return Answer() if clients else Answer(Outcome.NOT_FOUND)
