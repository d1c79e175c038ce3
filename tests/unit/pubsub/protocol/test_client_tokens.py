"""Who a client is by its token, and what no token may say."""

from __future__ import annotations

import pytest

from semel.auth.keys import DEV_KEY, AccessKeys
from semel.auth.tokens import sign_token
from semel.errors import AuthError, InputError
from semel.pubsub.protocol.client_tokens import (
    GROUP_CLAIM,
    MQTT_PATH,
    ClientClaims,
    client_audiences,
    client_token,
    read_client_token,
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
