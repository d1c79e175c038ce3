"""Who a client is by its token, and what no token may say."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.auth.test_tokens import KEYS as BOTH_KEYS
from tests.unit.auth.test_tokens import NOW as THEN
from tests.unit.auth.test_tokens import ONE, OTHER, TWO

from semel.auth.keys import DEV_KEY, AccessKeys, new_key
from semel.auth.tokens import sign_token
from semel.errors import AuthError, InputError
from semel.pubsub.protocol.client_tokens import (
    GROUP_CLAIM,
    MQTT_PATH,
    NONCE_BYTES,
    RECONNECTION_LIFETIME_S,
    ClientClaims,
    check_reconnection_token,
    client_audiences,
    client_token,
    read_client_token,
    reconnection_token,
)

KEYS, NOW = AccessKeys(DEV_KEY), 1_800_000_000.0
AUDIENCE = "http://127.0.0.1:8080/client/hubs/chat"


def read(token: str, now: float = NOW, audience: str = AUDIENCE) -> ClientClaims:
    return read_client_token(token, KEYS, [audience], now)


def test_a_token_says_who_one_is_what_one_may_and_where_one_begins() -> None:
    made = client_token(
        KEYS, AUDIENCE, now=NOW, user_id="ann", roles=["r1", "r2"], groups=["g1"], claims={"tenant": ["a", "b"]}
    )
    said = read(made)
    assert (said.user_id, said.roles, said.groups) == ("ann", ("r1", "r2"), ("g1",))
    assert said.claims["tenant"] == ("a", "b")
    assert said.claims["sub"] == ("ann",)


def test_a_token_without_anything_is_for_a_client_without_a_name() -> None:
    said = read(client_token(KEYS, AUDIENCE, now=NOW))
    assert (said.user_id, said.roles, said.groups) == (None, (), ())
    assert "sub" not in said.claims


@pytest.mark.parametrize("claim", ["sub", "role", GROUP_CLAIM, "aud", "exp"])
def test_claims_cannot_be_given_past_the_arguments_that_are_checked(claim: str) -> None:
    with pytest.raises(InputError, match=f"the claim {claim} is made"):
        client_token(KEYS, AUDIENCE, now=NOW, claims={claim: "x"})


@pytest.mark.parametrize("group", ["", " "])
def test_a_group_has_a_name(group: str) -> None:
    with pytest.raises(InputError):
        client_token(KEYS, AUDIENCE, now=NOW, groups=[group])
    with pytest.raises(InputError):
        read(sign_token(KEYS, AUDIENCE, NOW, 60, {GROUP_CLAIM: [group or "x" * 2000]}))


def test_it_counts_for_its_time_and_its_hub_alone() -> None:
    made = client_token(KEYS, AUDIENCE, now=NOW, lifetime_s=60)
    assert read(made, NOW + 59).roles == ()
    with pytest.raises(AuthError):
        read(made, NOW + 3600)
    with pytest.raises(AuthError):
        read(made, audience=AUDIENCE.replace("chat", "other"))


def test_the_audience_is_the_address_without_a_second_slash() -> None:
    assert client_audiences("chat", ["http://a/", "https://b"]) == (
        "http://a/client/hubs/chat",
        "https://b/client/hubs/chat",
    )
    assert client_audiences("chat", ["http://a"], MQTT_PATH) == ("http://a/clients/mqtt/hubs/chat",)


# -- tokens with which a client comes back to its session


NONCE = bytes(range(NONCE_BYTES))
TOKEN = reconnection_token(BOTH_KEYS, "chat", "c1", "p", nonce=NONCE, now=THEN)


def comes_back(
    token: str = TOKEN,
    keys: AccessKeys = BOTH_KEYS,
    hub: str = "chat",
    id: str = "c1",
    at: float = THEN,
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
        check_reconnection_token(TOKEN, BOTH_KEYS, "chat", "c2", "p", THEN)
    assert TOKEN not in str(caught.value)
    assert caught.value.fix


def test_a_reconnection_token_lives_for_a_week() -> None:
    assert comes_back(at=THEN + RECONNECTION_LIFETIME_S - 1)
    assert not comes_back(at=THEN + RECONNECTION_LIFETIME_S)


def test_a_reconnection_token_outlives_the_replacing_of_either_key() -> None:
    for keys in (
        replace(BOTH_KEYS, primary=new_key(bytes(32))),
        replace(BOTH_KEYS, secondary=new_key(bytes(32))),
        AccessKeys(TWO, new_key(bytes(32))),
        AccessKeys(ONE),
        AccessKeys(TWO),
        AccessKeys(TWO, ONE),
    ):
        assert comes_back(keys=keys)
    assert not comes_back(keys=AccessKeys(new_key(bytes(32)), new_key(bytes(range(32)))))
    assert not comes_back(keys=AccessKeys(OTHER))


def test_a_reconnection_token_under_one_key() -> None:
    token = reconnection_token(AccessKeys(ONE), "chat", "c1", "p", nonce=NONCE, now=THEN)
    assert comes_back(token, AccessKeys(ONE))
    assert comes_back(token, AccessKeys(TWO, ONE))
    assert not comes_back(token, AccessKeys(TWO))


def test_reconnection_tokens_fit_into_an_address_and_differ_by_their_nonce() -> None:
    assert all(character.isalnum() or character in "-_" for character in TOKEN)
    assert reconnection_token(BOTH_KEYS, "chat", "c1", "p", nonce=NONCE, now=THEN) == TOKEN
    assert reconnection_token(BOTH_KEYS, "chat", "c1", "p", nonce=bytes(NONCE_BYTES), now=THEN) != TOKEN
    with pytest.raises(InputError, match="16 bytes, not 3"):
        reconnection_token(BOTH_KEYS, "chat", "c1", "p", nonce=b"abc", now=THEN)


def test_a_proof_made_for_something_else_is_none() -> None:
    signature = BOTH_KEYS.signature("c1").split(",")[0].removeprefix("sha256=")
    head = base64.urlsafe_b64decode(TOKEN + "=")[:25]
    forged = base64.urlsafe_b64encode(head + bytes.fromhex(signature)).decode().rstrip("=")
    assert len(bytes.fromhex(signature)) == hashlib.sha256().digest_size
    assert not comes_back(forged)
    assert not comes_back(client_token(BOTH_KEYS, AUDIENCE, now=THEN))


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
