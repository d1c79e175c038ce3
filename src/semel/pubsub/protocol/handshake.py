"""Who comes in by WebSocket: a new client with its token, or one that comes back to its session.

    /client/hubs/{hub}      /client/?hub={hub}
    ?access_token=...       or Authorization: Bearer
    ?awps_connection_id=..&awps_reconnection_token=..      to come back; an access token beside it is not looked at

Who may not come back is let in and then closed with code 1008: an HTTP error would make clients try on and on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus

import msgspec

from semel.auth.keys import AccessKeys
from semel.errors import AuthError, InputError
from semel.http import HttpError, HttpRequest, Query, bearer_of, origin_of, split_path
from semel.pubsub.events.cloudevents import Allowed
from semel.pubsub.hub.sockets import NewSession
from semel.pubsub.protocol.client_tokens import (
    NONCE_BYTES,
    ClientClaims,
    check_reconnection_token,
    client_audiences,
    read_client_token,
    reconnection_token,
)
from semel.pubsub.protocol.frames import RELIABLE, Frame, subprotocol_of
from semel.pubsub.protocol.messages import Data, DataType, Request, SendEvent, SendToGroup
from semel.pubsub.protocol.names import check_group, check_hub, is_subprotocol
from semel.pubsub.protocol.permissions import Permissions

MESSAGE_EVENT = "message"
IN_ORDER = "semel_in_order"


class SimpleMode(msgspec.Struct, frozen=True):
    """What the frames of a client without a subprotocol mean: an event each, or a message to `group`."""

    group: str | None = None
    no_echo: bool = False

    def read(self, frame: Frame) -> Request:
        if isinstance(frame, str):
            data = Data(DataType.TEXT, frame.encode())
        else:
            data = Data(DataType.BINARY, frame)
        if self.group is None:
            return SendEvent(MESSAGE_EVENT, data)
        return SendToGroup(self.group, data, no_echo=self.no_echo)


@dataclass(frozen=True, slots=True)
class NewClient:
    """`subprotocol` is to be echoed as it was offered, if there is one. `mode` is for a client whose subprotocol is not
    one of ours."""

    hub: str
    subprotocol: str | None
    session: NewSession
    mode: SimpleMode | None
    claims: ClientClaims


@dataclass(frozen=True, slots=True)
class ReturningClient:
    """In the subprotocol `known`. `subprotocol` is to be echoed as it was offered, if it was."""

    hub: str
    subprotocol: str | None
    known: str
    connection: str
    token: str
    in_order: bool = False


@dataclass(frozen=True, slots=True)
class ResumeRefused:
    """To be let in, and closed with 1008."""

    subprotocol: str | None
    reason: str


@dataclass(frozen=True, slots=True)
class HandshakeRefused:
    """To be answered with an HTTP error."""

    status: int
    message: str


Admission = NewClient | ReturningClient | ResumeRefused | HandshakeRefused


@dataclass(frozen=True, slots=True)
class Handshake:
    """`endpoints` are other addresses under which clients know this server. `random` gives fresh bytes."""

    keys: AccessKeys
    random: Callable[[int], bytes]
    endpoints: tuple[str, ...] = ()

    def admit(self, request: HttpRequest, offered: Sequence[str], now: float) -> Admission:
        try:
            query = Query(request.query)
            hub = _hub(request, query)
            connection = query.one("awps_connection_id")
            if connection is not None:
                return self._returning(hub, query, connection, offered, now)
            return self._new_client(request, hub, query, offered, now)
        except AuthError as error:
            return HandshakeRefused(HTTPStatus.UNAUTHORIZED, error.message)
        except HttpError as error:
            return HandshakeRefused(error.status, error.message)
        except InputError as error:
            return HandshakeRefused(HTTPStatus.BAD_REQUEST, error.message)

    def _returning(self, hub: str, query: Query, connection: str, offered: Sequence[str], now: float) -> Admission:
        """In the subprotocol that its session has: its token is for no other. An event handler may have chosen one that
        is not the first. The address says enough for who offers none at all."""
        token = query.one("awps_reconnection_token") or ""
        reason = "only reliable subprotocols have sessions to come back to"
        ways: dict[str, str | None] = dict.fromkeys(RELIABLE)
        if offered:
            ways = {name.lower(): name for name in offered if subprotocol_of(name) in RELIABLE}
        for known, name in ways.items():
            try:
                check_reconnection_token(token, self.keys, hub, connection, known, now)
                fresh = reconnection_token(self.keys, hub, connection, known, nonce=self.random(NONCE_BYTES), now=now)
                return ReturningClient(hub, name, known, connection, fresh, _in_order(query))
            except AuthError as error:
                reason = error.message
        return ResumeRefused(_chosen(offered), reason)

    def _new_client(
        self, request: HttpRequest, hub: str, query: Query, offered: Sequence[str], now: float
    ) -> NewClient:
        claims = read_client_token(_token(request, query), self.keys, self._audiences(request, hub), now)
        return self._new_session(hub, query, self.random(16).hex(), claims, _chosen(offered), "", now)

    def admit_allowed(
        self, client: NewClient, allowed: Allowed, request: HttpRequest, now: float
    ) -> NewClient | HandshakeRefused:
        """As the event handler has it. Who it is and how it speaks may be other than what its token says."""
        subprotocol = allowed.subprotocol or client.subprotocol
        claims, connection = allowed.over(client.claims), client.session.connection
        try:
            return self._new_session(
                client.hub, Query(request.query), connection, claims, subprotocol, allowed.state, now
            )
        except (HttpError, InputError) as error:
            return HandshakeRefused(HTTPStatus.BAD_REQUEST, error.message)

    def _new_session(
        self,
        hub: str,
        query: Query,
        connection: str,
        claims: ClientClaims,
        subprotocol: str | None,
        state: str,
        now: float,
    ) -> NewClient:
        token, known = None, subprotocol_of(subprotocol)
        if known in RELIABLE:
            token = reconnection_token(self.keys, hub, connection, known, nonce=self.random(NONCE_BYTES), now=now)
        permissions = Permissions.of_roles(claims.roles)
        session = NewSession(
            connection, token, known or subprotocol or "", claims.user_id, permissions, claims.groups, state,
            _in_order(query),
        )  # fmt: skip
        return NewClient(hub, subprotocol, session, _mode(query) if known is None else None, claims)

    def _audiences(self, request: HttpRequest, hub: str) -> tuple[str, ...]:
        return client_audiences(hub, [origin_of(request), *self.endpoints])


def _hub(request: HttpRequest, query: Query) -> str:
    segments = split_path(request.path)
    if segments[:2] == ["client", "hubs"] and len(segments) == 3:
        return check_hub(segments[2])
    if segments in (["client"], ["client", ""]):
        hub = query.one("hub")
        if hub is None:
            raise InputError("the query does not say which hub", fix="add ?hub=name, or use /client/hubs/name")
        return check_hub(hub)
    raise HttpError(HTTPStatus.NOT_FOUND, "NotFound", "clients connect at /client/hubs/{hub}")


def _token(request: HttpRequest, query: Query) -> str:
    token = query.one("access_token") or bearer_of(request)
    if token is None:
        raise AuthError("there is no access token", fix="add ?access_token=..., or an Authorization header")
    return token


def _chosen(offered: Sequence[str]) -> str | None:
    """The first that is known here. Whoever offers none of them is a simple client; its first is answered all the same,
    because browsers and most libraries go on only if one is."""
    known = (name for name in offered if subprotocol_of(name) is not None)
    return next(known, None) or next(filter(is_subprotocol, offered), None)


def _in_order(query: Query) -> bool:
    """Whether the client says that it sends again in order what was not taken."""
    return (query.one(IN_ORDER) or "").lower() == "true"


def _mode(query: Query) -> SimpleMode:
    wanted = (query.one("webpubsub_mode") or "sendEvent").lower()
    if wanted == "sendevent":
        return SimpleMode()
    if wanted != "sendtogroup":
        raise InputError("webpubsub_mode is unknown", fix="use sendEvent or sendToGroup")
    group = query.one("group")
    if group is None:
        raise InputError("the query does not say which group", fix="add &group=name")
    return SimpleMode(check_group(group), (query.one("noEcho") or "false").lower() == "true")
