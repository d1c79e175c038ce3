"""Tokens of clients: who one is, what it may do, and the groups in which it begins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from semel.auth.keys import AccessKeys
from semel.auth.tokens import (
    ROLE_CHARS_MAX,
    TOKEN_CHARS_MAX,
    check_subject,
    claim_items,
    claim_name,
    claim_text,
    claim_texts,
    read_token,
    sign_token,
)
from semel.errors import InputError
from semel.kernel.text import check_text
from semel.pubsub.protocol.names import GROUP_CHARS_MAX, check_group
from semel.pubsub.protocol.permissions import is_group

CLIENT_LIFETIME_S = 3600
CLIENT_PATH = "/client/hubs/"
MQTT_PATH = "/clients/mqtt/hubs/"
GROUP_CLAIM = "webpubsub.group"

_OWN_CLAIMS = frozenset({"aud", "exp", "iat", "nbf", "sub", "role", GROUP_CLAIM})


class ClientClaims(msgspec.Struct, frozen=True):
    """What a client's token says. `claims` are all of them, as an event handler is told: lists of text."""

    user_id: str | None = None
    roles: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    claims: dict[str, tuple[str, ...]] = {}


def client_token(
    keys: AccessKeys,
    audience: str,
    *,
    now: float,
    lifetime_s: float = CLIENT_LIFETIME_S,
    user_id: str | None = None,
    roles: Sequence[str] = (),
    groups: Sequence[str] = (),
    claims: Mapping[str, str | Sequence[str]] | None = None,
) -> str:
    """A token with which a client may connect to `audience`, such as `http://127.0.0.1:8080/client/hubs/chat`.

    `claims` are more of them, for the event handlers to see.
    """
    if taken := sorted(_OWN_CLAIMS & set(claims or ())):
        raise InputError(f"the claim {taken[0]} is made by the token itself", fix="use the argument of that meaning")
    check_subject(user_id, roles)
    if not all(is_group(check_text("a group", group, chars_max=GROUP_CHARS_MAX)) for group in groups):
        raise InputError("a group has no name but blanks", fix="name the group")
    said: dict[str, Any] = {**(claims or {}), "sub": user_id, "role": list(roles), GROUP_CLAIM: list(groups)}
    payload = {name: value for name, value in said.items() if value not in (None, "", [])}
    return sign_token(keys, audience, now, lifetime_s, payload)


def client_audiences(hub: str, endpoints: Iterable[str], path: str = CLIENT_PATH) -> tuple[str, ...]:
    """For whom the token of a client of this hub may be, when the server is known under these endpoints."""
    return tuple(f"{endpoint.rstrip('/')}{path}{hub}" for endpoint in endpoints)


def read_client_token(token: str, keys: AccessKeys, audiences: Iterable[str], now: float) -> ClientClaims:
    """What the token says, or an `AuthError`; an `InputError` if it is good but names a group that cannot be. The time
    counts when a client connects, and never again."""
    payload = read_token(token, keys, audiences, now)
    groups = tuple(map(check_group, claim_items(payload, GROUP_CLAIM, TOKEN_CHARS_MAX)))
    claims = {claim_text(name, "the name of a claim"): claim_texts(value) for name, value in payload.items()}
    return ClientClaims(claim_name(payload, "sub"), claim_items(payload, "role", ROLE_CHARS_MAX), groups, claims)
