"""Tokens of clients. With one a client connects: who it is, what it may do, and the groups in which it begins. With
another it comes back to its session."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import math
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
from semel.errors import AuthError, InputError
from semel.kernel.text import check_text
from semel.pubsub.protocol.names import GROUP_CHARS_MAX, check_group
from semel.pubsub.protocol.permissions import is_group

CLIENT_LIFETIME_S = 3600
CLIENT_PATH = "/client/hubs/"
MQTT_PATH = "/clients/mqtt/hubs/"
GROUP_CLAIM = "webpubsub.group"

_OWN_CLAIMS = frozenset({"aud", "exp", "iat", "nbf", "sub", "role", GROUP_CLAIM})


class ClientClaims(msgspec.Struct, frozen=True):
    """What a client's token says. `claims` are all of them, as an event handler gets them: lists of text."""

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
    all_claims: dict[str, Any] = {**(claims or {}), "sub": user_id, "role": list(roles), GROUP_CLAIM: list(groups)}
    payload = {name: value for name, value in all_claims.items() if value not in (None, "", [])}
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


# -- coming back

# Such a token is opaque to clients. It has a proof under each key, so that sessions outlive the replacing of either.

RECONNECTION_LIFETIME_S = 7 * 24 * 3600
NONCE_BYTES = 16

_VERSION = b"\x01"
_EXPIRY_BYTES = 8
_PROOF_BYTES = hashlib.sha256().digest_size
_HEAD_BYTES = len(_VERSION) + _EXPIRY_BYTES + NONCE_BYTES


def reconnection_token(
    keys: AccessKeys, hub: str, connection_id: str, subprotocol: str, *, nonce: bytes, now: float
) -> str:
    """With this the client of that connection, and nobody else, can take its session up again for seven days, in the
    subprotocol that it has spoken."""
    if len(nonce) != NONCE_BYTES:
        raise InputError(f"a nonce has {NONCE_BYTES} bytes, not {len(nonce)}", fix="draw that many random bytes")
    head = _VERSION + int(now + RECONNECTION_LIFETIME_S).to_bytes(_EXPIRY_BYTES, "big") + nonce
    proofs = b"".join(_proof(key, head, hub, connection_id, subprotocol) for key in keys.all)
    return base64.urlsafe_b64encode(head + proofs).decode().rstrip("=")


def check_reconnection_token(
    token: str, keys: AccessKeys, hub: str, connection_id: str, subprotocol: str, now: float
) -> None:
    """Raises `AuthError` unless the token was made for this connection of this hub in this subprotocol, under a key
    that still holds."""
    refused = AuthError("the session cannot be taken up again with this token", fix="connect again, without it")
    head, proofs = _parts(token)
    if not proofs:
        raise refused
    # every proof is compared under every key, so that the time says nothing of which one was nearly right
    right = 0
    for key in keys.all:
        expected = _proof(key, head, hub, connection_id, subprotocol)
        for proof in proofs:
            right += hmac.compare_digest(proof, expected)
    if not right or now >= int.from_bytes(head[len(_VERSION) :][:_EXPIRY_BYTES], "big"):
        raise refused


def _parts(token: str) -> tuple[bytes, list[bytes]]:
    """What was proved, and the proofs: none when this is no such token."""
    whole_max = _HEAD_BYTES + 2 * _PROOF_BYTES
    if len(token) > math.ceil(whole_max * 4 / 3):
        return b"", []
    try:
        whole = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return b"", []
    head, rest = whole[:_HEAD_BYTES], whole[_HEAD_BYTES:]
    if not head.startswith(_VERSION) or len(rest) not in (_PROOF_BYTES, 2 * _PROOF_BYTES):
        return b"", []
    return head, [rest[at : at + _PROOF_BYTES] for at in range(0, len(rest), _PROOF_BYTES)]


def _proof(key: str, head: bytes, hub: str, connection_id: str, subprotocol: str) -> bytes:
    """The first line keeps it apart from everything else that is signed with the same key."""
    names = json.dumps([hub.lower(), connection_id, subprotocol]).encode()
    return hmac.digest(key.encode(), b"semel reconnection\n" + head + names, "sha256")
