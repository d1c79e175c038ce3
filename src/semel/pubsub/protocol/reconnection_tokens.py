"""Tokens with which a client comes back to its session.

They are opaque to clients. One carries a proof under each key, so that sessions outlive the replacing of either.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import math

from semel.auth.keys import AccessKeys
from semel.errors import AuthError, InputError

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
