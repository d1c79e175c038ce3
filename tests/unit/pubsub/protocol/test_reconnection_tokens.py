"""Tokens with which a client comes back to its session: which are taken, and which are refused."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.auth.test_tokens import AUDIENCE, KEYS, NOW, ONE, OTHER, TWO

from semel.auth.keys import AccessKeys, new_key
from semel.errors import AuthError, InputError
from semel.pubsub.protocol.client_tokens import (
    NONCE_BYTES,
    RECONNECTION_LIFETIME_S,
    check_reconnection_token,
    client_token,
    reconnection_token,
)

NONCE = bytes(range(NONCE_BYTES))
TOKEN = reconnection_token(KEYS, "chat", "c1", "p", nonce=NONCE, now=NOW)


def comes_back(
    token: str = TOKEN,
    keys: AccessKeys = KEYS,
    hub: str = "chat",
    id: str = "c1",
    at: float = NOW,
    subprotocol: str = "p",
) -> bool:
    try:
        check_reconnection_token(token, keys, hub, id, subprotocol, at)
    except AuthError:
        return False
    return True


def test_a_reconnection_token_is_for_one_connection_of_one_hub() -> None:
    assert comes_back()
    assert comes_back(hub="CHAT")
    assert not comes_back(hub="chat2")
    assert not comes_back(id="c2")
    assert not comes_back(hub="chatc", id="1")
    assert not comes_back(subprotocol="q")
    assert not comes_back(id="")


def test_a_refused_reconnection_token_is_not_shown() -> None:
    with pytest.raises(AuthError) as caught:
        check_reconnection_token(TOKEN, KEYS, "chat", "c2", "p", NOW)
    assert TOKEN not in str(caught.value)
    assert caught.value.fix


def test_a_reconnection_token_lives_for_a_week() -> None:
    assert comes_back(at=NOW + RECONNECTION_LIFETIME_S - 1)
    assert not comes_back(at=NOW + RECONNECTION_LIFETIME_S)


def test_a_reconnection_token_outlives_the_replacing_of_either_key() -> None:
    for keys in (
        replace(KEYS, primary=new_key(bytes(32))),
        replace(KEYS, secondary=new_key(bytes(32))),
        AccessKeys(TWO, new_key(bytes(32))),
        AccessKeys(ONE),
        AccessKeys(TWO),
        AccessKeys(TWO, ONE),
    ):
        assert comes_back(keys=keys)
    assert not comes_back(keys=AccessKeys(new_key(bytes(32)), new_key(bytes(range(32)))))
    assert not comes_back(keys=AccessKeys(OTHER))


def test_a_reconnection_token_under_one_key() -> None:
    token = reconnection_token(AccessKeys(ONE), "chat", "c1", "p", nonce=NONCE, now=NOW)
    assert comes_back(token, AccessKeys(ONE))
    assert comes_back(token, AccessKeys(TWO, ONE))
    assert not comes_back(token, AccessKeys(TWO))


def test_reconnection_tokens_fit_into_an_address_and_differ_by_their_nonce() -> None:
    assert all(character.isalnum() or character in "-_" for character in TOKEN)
    assert reconnection_token(KEYS, "chat", "c1", "p", nonce=NONCE, now=NOW) == TOKEN
    assert reconnection_token(KEYS, "chat", "c1", "p", nonce=bytes(NONCE_BYTES), now=NOW) != TOKEN
    with pytest.raises(InputError, match="16 bytes, not 3"):
        reconnection_token(KEYS, "chat", "c1", "p", nonce=b"abc", now=NOW)


def test_a_proof_made_for_something_else_is_none() -> None:
    signature = KEYS.signature("c1").split(",")[0].removeprefix("sha256=")
    head = base64.urlsafe_b64decode(TOKEN + "=")[:25]
    forged = base64.urlsafe_b64encode(head + bytes.fromhex(signature)).decode().rstrip("=")
    assert len(bytes.fromhex(signature)) == hashlib.sha256().digest_size
    assert not comes_back(forged)
    assert not comes_back(client_token(KEYS, AUDIENCE, now=NOW))


@given(st.integers(0, 88), st.integers(1, 255))
def test_a_changed_reconnection_token_is_refused(at: int, change: int) -> None:
    raw = bytearray(base64.urlsafe_b64decode(TOKEN + "="))
    assert len(raw) == 89
    raw[at] ^= change
    changed = base64.urlsafe_b64encode(raw).decode().rstrip("=")
    # one of the two proofs is enough, so what was proved must be whole, and one of them
    assert comes_back(changed) == (at >= 25)
    assert not comes_back(changed, AccessKeys(ONE if at < 57 else TWO))


@given(st.text(), st.text(), st.text())
def test_no_text_comes_back(token: str, hub: str, connection_id: str) -> None:
    assert not comes_back(token)
    assert comes_back(TOKEN, hub=hub, id=connection_id) == ((hub.lower(), connection_id) == ("chat", "c1"))
    for cut in range(0, len(TOKEN), 7):
        assert not comes_back(TOKEN[:cut])
