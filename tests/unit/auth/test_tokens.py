"""Tokens of clients, servers and sessions: what is read, and what is refused."""

from __future__ import annotations

import base64
import hmac
import json
import math
import time
from dataclasses import replace
from typing import Any

import jwt
import pytest
from azure.core.pipeline.transport import HttpRequest, HttpTransport
from azure.messaging.webpubsubservice import WebPubSubServiceClient
from hypothesis import given
from hypothesis import strategies as st

from semel.auth.keys import DEV_KEY, AccessKeys, new_key
from semel.auth.tokens import (
    ITEMS_MAX,
    NAME_CLAIM,
    ROLE_CHARS_MAX,
    SKEW_S,
    TOKEN_CHARS_MAX,
    USER_CHARS_MAX,
    ServiceClaims,
    read_service_token,
    service_audiences,
    service_token,
)
from semel.errors import AuthError, InputError
from semel.pubsub.protocol.client_tokens import (
    CLIENT_LIFETIME_S,
    GROUP_CLAIM,
    MQTT_PATH,
    ClientClaims,
    client_audiences,
    client_token,
    read_client_token,
)

ONE, TWO, OTHER = (digit * 44 for digit in "123")
KEYS = AccessKeys(ONE, TWO)
NOW = 1_800_000_000.5
ENDPOINT = "http://127.0.0.1:8080"
AUDIENCE = f"{ENDPOINT}/client/hubs/chat"
AUDIENCES = client_audiences("chat", [ENDPOINT])


def signed(payload: dict[str, Any], key: str = ONE, **headers: Any) -> str:
    return jwt.encode(payload, key, algorithm="HS256", headers=headers or None)


def signed_text(payload: str, header: str = '{"alg":"HS256","typ":"JWT"}', key: str = ONE) -> str:
    """Signed by hand, for what the library would not write."""
    parts = [base64.urlsafe_b64encode(part.encode()).rstrip(b"=") for part in (header, payload)]
    proof = hmac.digest(key.encode(), b".".join(parts), "sha256")
    return b".".join([*parts, base64.urlsafe_b64encode(proof).rstrip(b"=")]).decode()


def payload(**more: Any) -> dict[str, Any]:
    return {"aud": AUDIENCE, "exp": int(NOW) + 60, **more}


def read(token: str, now: float = NOW, keys: AccessKeys = KEYS) -> ClientClaims:
    return read_client_token(token, keys, AUDIENCES, now)


# -- clients


def test_a_token_says_what_it_was_made_with() -> None:
    token = client_token(
        KEYS,
        AUDIENCE,
        now=NOW,
        user_id="ann",
        roles=["webpubsub.sendToGroup", "other"],
        groups=["room", "Hall 2"],
        claims={"tenant": "blue", "colours": ["red", "green"]},
    )
    expires = math.ceil(NOW + CLIENT_LIFETIME_S)
    assert read(token) == ClientClaims(
        "ann",
        ("webpubsub.sendToGroup", "other"),
        ("room", "Hall 2"),
        {
            "aud": (AUDIENCE,),
            "iat": (str(int(NOW)),),
            "exp": (str(expires),),
            "sub": ("ann",),
            "role": ("webpubsub.sendToGroup", "other"),
            GROUP_CLAIM: ("room", "Hall 2"),
            "tenant": ("blue",),
            "colours": ("red", "green"),
        },
    )


def test_a_token_with_nothing_in_it() -> None:
    token = client_token(KEYS, AUDIENCE, now=NOW)
    said = jwt.decode(token, options={"verify_signature": False})
    assert set(said) == {"aud", "iat", "exp"}
    assert jwt.get_unverified_header(token)["alg"] == "HS256"
    claims = read(token)
    assert (claims.user_id, claims.roles, claims.groups) == (None, (), ())


@pytest.mark.parametrize("key", [ONE, TWO])
def test_either_key_opens(key: str) -> None:
    assert read(signed(payload(sub="ann"), key, kid="0")).user_id == "ann"


def test_another_key_does_not_open() -> None:
    with pytest.raises(AuthError, match="another key"):
        read(signed(payload(), OTHER))
    with pytest.raises(AuthError, match="another key"):
        read(signed(payload(), TWO), keys=AccessKeys(ONE))


def test_a_key_that_was_replaced_opens_no_longer() -> None:
    token = client_token(KEYS, AUDIENCE, now=NOW)
    assert read(token, keys=replace(KEYS, secondary=new_key(bytes(32)))) == read(token)
    with pytest.raises(AuthError, match="another key"):
        read(token, keys=replace(KEYS, primary=new_key(bytes(32))))


@pytest.mark.parametrize(
    ("claim", "expected"), [("one", ("one",)), (["one", "two"], ("one", "two")), ([], ()), (None, ())]
)
def test_one_role_or_group_may_stand_without_a_list(claim: object, expected: tuple[str, ...]) -> None:
    claims = read(signed(payload(**{"role": claim, GROUP_CLAIM: claim})))
    assert claims.roles == expected
    assert claims.groups == expected


def test_other_claims_become_text() -> None:
    claims = read(signed(payload(n=1, yes=True, none=None, deep={"a": [1]}, mixed=["x", 2], empty=""))).claims
    assert claims["n"] == ("1",)
    assert claims["yes"] == ("true",)
    assert claims["none"] == ("null",)
    assert claims["deep"] == ('{"a":[1]}',)
    assert claims["mixed"] == ("x", "2")
    assert claims["empty"] == ("",)


@pytest.mark.parametrize("sub", [None, ""])
def test_an_empty_user_is_none(sub: str | None) -> None:
    assert read(signed_text(json.dumps(payload(sub=sub)))).user_id is None


# -- what is refused


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"sub": 1}, "claim sub"),
        ({"sub": ["ann"]}, "claim sub"),
        ({"sub": "a" * (USER_CHARS_MAX + 1)}, "unusable"),
        ({"sub": "a\0"}, "NUL"),
        ({"sub": "\ud800"}, "surrogate"),
        ({"role": 1}, "claim role"),
        ({"role": {"a": 1}}, "claim role"),
        ({"role": ["a", 1]}, "claim role"),
        ({"role": [["a"]]}, "claim role"),
        ({"role": ["r" * (ROLE_CHARS_MAX + 1)]}, "unusable"),
        ({"role": [""] * (ITEMS_MAX + 1)}, "4,001 values"),
        ({GROUP_CLAIM: True}, "claim webpubsub.group"),
        ({GROUP_CLAIM: ["a", None]}, "claim webpubsub.group"),
        ({"tenant": "\ud800"}, "surrogate"),
        ({"\ud800": 1}, "surrogate"),
    ],
)
def test_claims_of_another_type_are_refused(claims: dict[str, Any], reason: str) -> None:
    with pytest.raises(AuthError, match=reason):
        read(signed_text(json.dumps(payload(**claims))))


@pytest.mark.parametrize("group", ["", " ", "g" * 1025])
def test_a_group_that_cannot_be_is_no_fault_of_the_token(group: str) -> None:
    with pytest.raises(InputError):
        read(signed_text(json.dumps(payload(**{GROUP_CLAIM: ["a", group]}))))


@pytest.mark.parametrize("algorithm", ["HS384", "HS512", "none"])
def test_only_one_algorithm_is_read(algorithm: str) -> None:
    # 64 bytes, so that the library finds the key long enough for the others
    keys = AccessKeys("k" * 64)
    key = None if algorithm == "none" else keys.primary
    with pytest.raises(AuthError, match="HS256"):
        read(jwt.encode(payload(), key, algorithm=algorithm), keys=keys)


@pytest.mark.parametrize("algorithm", ["none", "None", "RS256", "hs256", "", None, 1, ["HS256"], {}])
def test_the_name_of_the_algorithm_is_not_enough(algorithm: object) -> None:
    header = json.dumps({"alg": algorithm, "typ": "JWT"})
    with pytest.raises(AuthError):
        read(signed_text(json.dumps(payload()), header))


def test_a_token_without_its_signature_is_refused() -> None:
    head, body, _ = signed(payload()).split(".")
    for token in (f"{head}.{body}.", f"{head}.{body}", f"{head}..", "..", "."):
        with pytest.raises(AuthError):
            read(token)


@given(st.data())
def test_a_changed_token_is_refused(data: st.DataObject) -> None:
    token = signed(payload(sub="ann"))
    at = data.draw(st.integers(0, len(token) - 1))
    # the last character of each part may carry bits that belong to no byte
    changed = data.draw(st.characters(codec="ascii").filter(lambda character: character != token[at]))
    other = token[:at] + changed + token[at + 1 :]
    try:
        claims = read(other)
    except AuthError:
        return
    assert claims == read(token)


@pytest.mark.parametrize(
    "token",
    [
        "", "x", "a.b.c", "é.é.é", "\ud800", "a" * (TOKEN_CHARS_MAX + 1), "." * 1000, "....",
        signed_text("[" * 12_000), signed_text("[]"), signed_text("null"), signed_text("1" * 5000), signed_text("{"),
        signed_text("{}", header="[" * 12_000), signed_text("{}", header="[]"), signed_text("{}", header="{}"),
        signed_text("{}", header='{"alg":"HS256","b64":false,"crit":["b64"]}'),
        signed_text("{}", header='{"alg":"HS256","crit":["x"],"x":1}'),
        signed_text("{}", header='{"alg":"HS256","kid":1}'),
    ],
    ids=range(19),
)  # fmt: skip
def test_what_is_no_token_is_refused(token: str) -> None:
    with pytest.raises(AuthError) as caught:
        read(token)
    assert caught.value.fix


@pytest.mark.parametrize("depth", [100, 500, 900, 990, 2000])
def test_a_deep_claim_is_told_or_refused(depth: int) -> None:
    token = signed_text(json.dumps(payload())[:-1] + ',"deep":' + "[" * depth + "]" * depth + "}")
    try:
        assert read(token).claims["deep"][0].startswith("[")
    except AuthError:
        assert depth > 500


@given(st.text())
def test_no_text_raises_anything_else(token: str) -> None:
    with pytest.raises(AuthError):
        read(token)
    with pytest.raises(AuthError):
        read_service_token(token, KEYS, AUDIENCES, NOW)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda values: st.lists(values, max_size=3) | st.dictionaries(st.text(), values, max_size=3),
    max_leaves=5,
)


@given(
    st.dictionaries(
        st.sampled_from(["aud", "exp", "nbf", "iat", "sub", "role", GROUP_CLAIM, NAME_CLAIM, "x"]), JSON_VALUES
    )
)
def test_no_signed_claims_raise_anything_else(claims: dict[str, Any]) -> None:
    token = signed_text(json.dumps({**payload(), **claims}))
    for result in (read_client_token, read_service_token):
        try:
            result(token, KEYS, AUDIENCES, NOW)
        except (AuthError, InputError):  # the latter for groups that have no such name
            continue


def test_nothing_secret_is_shown() -> None:
    tokens = [
        signed(payload(sub="s3cret"), OTHER),
        signed(payload(sub="s3cret", exp=1)),
        signed(payload(sub="s3cret", aud="x")),
        signed(payload(sub="s3cret", role=1)),
        signed(payload()) + "x",
    ]
    for token in tokens:
        with pytest.raises(AuthError) as caught:
            read(token)
        shown = f"{caught.value} {caught.value.__cause__} {caught.value.as_dict()}"
        assert not any(part in shown for part in [*token.split("."), ONE, TWO, "s3cret"])


# -- times


@pytest.mark.parametrize(
    ("times", "valid"),
    [
        ({"exp": NOW + 1}, True),
        ({"exp": NOW - SKEW_S + 1}, True),
        ({"exp": NOW - SKEW_S}, False),
        ({"exp": int(NOW) + 0.75}, True),
        ({"exp": 0}, False),
        ({"exp": -1}, False),
        ({"exp": None}, False),
        ({"exp": str(int(NOW) + 60)}, False),
        ({"exp": True}, False),
        ({"exp": [NOW]}, False),
        ({"exp": math.nan}, False),
        ({"exp": math.inf}, False),
        ({"exp": 1e300}, False),
        ({"nbf": NOW + SKEW_S}, True),
        ({"nbf": NOW + SKEW_S + 1}, False),
        ({"nbf": "soon"}, False),
        ({"nbf": math.nan}, False),
        ({"iat": NOW + SKEW_S + 1}, True),
        ({"nbf": False}, False),
        ({"iat": 0, "nbf": 0}, True),
    ],
)
def test_the_time_is_the_callers(times: dict[str, Any], valid: bool) -> None:
    token = signed_text(json.dumps(payload(**times)))
    if valid:
        assert read(token) == read(token)
    else:
        with pytest.raises(AuthError):
            read(token)


def test_a_token_must_expire() -> None:
    with pytest.raises(AuthError, match="never expires"):
        read(signed({"aud": AUDIENCE}))


def test_a_token_lives_as_long_as_it_was_made_to() -> None:
    token = client_token(KEYS, AUDIENCE, now=NOW, lifetime_s=60)
    assert read(token, NOW + 60 + SKEW_S - 1).user_id is None
    with pytest.raises(AuthError, match="expired"):
        read(token, NOW + 61 + SKEW_S)


# -- audiences


@pytest.mark.parametrize(
    "audience",
    [
        "http://127.0.0.1:8080/client/hubs/chat",
        "https://127.0.0.1:8080/client/hubs/chat",
        "ws://127.0.0.1:8080/client/hubs/chat",
        "wss://127.0.0.1:8080/client/hubs/chat",
        "HTTP://127.0.0.1:8080/Client/Hubs/CHAT",
        "http://127.0.0.1:8080/client/hubs/chat/",
        "http://127.0.0.1:8080/client/hubs/chat?access_token=1",
        "http://127.0.0.1:8080/client/hubs/ch%61t",
        "http://127.0.0.1:8080/client/hubs/chat#x",
        ["https://elsewhere", "http://127.0.0.1:8080/client/hubs/chat"],
    ],
)
def test_audiences_that_mean_this_hub(audience: object) -> None:
    assert read(signed(payload(aud=audience, sub="ann"))).user_id == "ann"


@pytest.mark.parametrize(
    "audience",
    [
        "http://127.0.0.1:8080/client/hubs/chat2",
        "http://127.0.0.1:8080/client/hubs/",
        "http://127.0.0.1:8080/client/hubs/chat/more",
        "http://127.0.0.1/client/hubs/chat",
        "http://127.0.0.1:80800/client/hubs/chat",
        "http://localhost:8080/client/hubs/chat",
        "http://127.0.0.1:8080@evil/client/hubs/chat",
        "ftp://127.0.0.1:8080/client/hubs/chat",
        "127.0.0.1:8080/client/hubs/chat",
        "//127.0.0.1:8080/client/hubs/chat",
        "/client/hubs/chat",
        "http://[::1/client/hubs/chat",
        "",
        [],
        ["http://elsewhere/client/hubs/chat"],
        None,
        1,
        {"http://127.0.0.1:8080/client/hubs/chat": 1},
        ["http://127.0.0.1:8080/client/hubs/chat", 1],
    ],
)
def test_audiences_that_mean_another(audience: object) -> None:
    with pytest.raises(AuthError):
        read(signed_text(json.dumps(payload(aud=audience))))


def test_without_any_audience_no_token_is_for_us() -> None:
    with pytest.raises(AuthError, match="another address"):
        read_client_token(signed(payload()), KEYS, [], NOW)


def test_the_wrong_address_is_shown_beside_the_right_one() -> None:
    token = signed(payload(aud="http://localhost:8080/client/hubs/chat\n"))
    with pytest.raises(AuthError) as caught:
        read_client_token(token, KEYS, client_audiences("chess", ["http://127.0.0.1:8080"]), NOW)
    assert caught.value.message == (
        "the token is for another address: for 'http://localhost:8080/client/hubs/chat\\n', "
        "not for 'http://127.0.0.1:8080/client/hubs/chess'"
    )


def test_the_usual_port_may_be_left_out() -> None:
    for mine, theirs in (("https://x:443", "https://x"), ("http://x", "http://x:80"), ("https://x", "wss://x:443")):
        token = signed(payload(aud=f"{theirs}/client/hubs/chat", sub="ann"))
        assert read_client_token(token, KEYS, client_audiences("chat", [mine]), NOW).user_id == "ann"
    odd = signed(payload(aud="https://x:80/client/hubs/chat"))
    with pytest.raises(AuthError, match="another address"):
        read_client_token(odd, KEYS, client_audiences("chat", ["https://x"]), NOW)


def test_behind_a_proxy_the_address_that_others_know_counts_too() -> None:
    audiences = client_audiences("chat", ["http://10.0.0.7:8080", "https://push.example.com/base/"])
    assert audiences == (
        "http://10.0.0.7:8080/client/hubs/chat",
        "https://push.example.com/base/client/hubs/chat",
    )
    token = signed(payload(aud="https://push.example.com/base/client/hubs/chat", sub="ann"))
    assert read_client_token(token, KEYS, audiences, NOW).user_id == "ann"
    assert client_audiences("chat", ["http://x"], MQTT_PATH) == ("http://x/clients/mqtt/hubs/chat",)


# -- servers and operators


def test_a_service_token_says_who_and_what() -> None:
    url = "http://x:8080/api/hubs/chat/:send?api-version=2024-12-01"
    token = service_token(KEYS, url, now=NOW, user="ops", roles=["semel.read", "semel.send:orders/*"])
    claims = read_service_token(token, KEYS, service_audiences(url), NOW)
    assert claims == ServiceClaims("ops", ("semel.read", "semel.send:orders/*"))
    bare = service_token(KEYS, url, now=NOW)
    assert read_service_token(bare, KEYS, service_audiences(url), NOW) == ServiceClaims()


@pytest.mark.parametrize("said", [None, "", []])
def test_a_claim_of_roles_that_is_there_counts_also_when_it_is_empty(said: object) -> None:
    """Who may do everything names no roles at all."""
    claims = read_service_token(signed(payload(role=said)), KEYS, AUDIENCES, NOW)
    assert claims.roles is not None
    assert not any(claims.roles)


GROUP_URL = "http://x:8080/api/hubs/chat/groups/a%20b/:send?api-version=2024-12-01&filter=userId%20eq%20'a'"


@pytest.mark.parametrize(
    "audience",
    [
        GROUP_URL,
        "http://x:8080/api/hubs/chat/groups/a%20b/:send",
        "http://x:8080/api/hubs/chat/groups/a%20b/:send/",
        "http://x:8080/api/hubs/chat/groups/a b/:send",
        "HTTPS://X:8080/API/hubs/CHAT/groups/A%20B/%3Asend",
        "https://known.example.com/api/hubs/chat/groups/a b/:send?x=1",
    ],
)
def test_the_address_of_a_request_has_many_forms(audience: str) -> None:
    audiences = service_audiences(GROUP_URL, ["https://known.example.com/"])
    assert read_service_token(signed(payload(aud=audience)), KEYS, audiences, NOW) == ServiceClaims()


@pytest.mark.parametrize(
    "audience",
    [
        "http://x:8080/api/hubs/chat/groups/b/:send",
        "http://x:8080/api/hubs/chat/:send",
        "http://x:8080/client/hubs/chat",
        "http://x:8080",
        "https://known.example.com",
        "https://other.example.com/api/hubs/chat/groups/a%20b/:send",
        "http://x:8080/api/hubs/chat/groups/a%2520b/:send2",
    ],
)
def test_a_token_for_another_request_is_refused(audience: str) -> None:
    audiences = service_audiences(GROUP_URL, ["https://known.example.com/"])
    with pytest.raises(AuthError, match="another address"):
        read_service_token(signed(payload(aud=audience)), KEYS, audiences, NOW)


def test_a_question_mark_in_a_name_begins_no_query() -> None:
    audiences = service_audiences("http://x/api/hubs/chat/groups/a%3Fb/:send")
    assert read_service_token(signed(payload(aud=audiences[0])), KEYS, audiences, NOW) == ServiceClaims()
    with pytest.raises(AuthError, match="another address"):
        read_service_token(signed(payload(aud="http://x/api/hubs/chat/groups/a")), KEYS, audiences, NOW)


def test_an_audience_that_is_no_address_is_compared_as_it_is() -> None:
    token = signed(payload(aud="My-Service"))
    assert read_service_token(token, KEYS, ["my-service"], NOW) == ServiceClaims()


def test_the_token_of_a_client_is_none_for_a_server() -> None:
    token = client_token(KEYS, AUDIENCE, now=NOW)
    with pytest.raises(AuthError, match="another address"):
        read_service_token(token, KEYS, service_audiences(f"{ENDPOINT}/api/hubs/chat/:send", [ENDPOINT]), NOW)


@given(st.text(), st.text())
def test_no_address_raises_anything_else(url: str, endpoint: str) -> None:
    token = signed(payload())
    for audiences in (service_audiences(url, [endpoint]), service_audiences(f"http://{url}", [endpoint])):
        with pytest.raises(AuthError):
            read_service_token(token, KEYS, audiences, NOW)


# -- making


def test_a_token_that_could_not_be_read_is_not_made() -> None:
    for wrong in (
        {"lifetime_s": 0},
        {"lifetime_s": -1},
        {"lifetime_s": math.inf},
        {"lifetime_s": math.nan},
        {"user_id": "a" * (USER_CHARS_MAX + 1)},
        {"user_id": "\ud800"},
        {"roles": [""]},
        {"roles": ["r" * (ROLE_CHARS_MAX + 1)]},
        {"roles": ["role"] * 10_000},
        {"groups": ["g" * 1025]},
        {"groups": [" "]},
        {"claims": {"exp": "1"}},
        {"claims": {GROUP_CLAIM: "x"}},
    ):
        with pytest.raises(InputError):
            client_token(KEYS, AUDIENCE, now=NOW, **wrong)  # type: ignore[arg-type]


@given(
    st.one_of(st.none(), st.text(max_size=20)),
    st.lists(st.text(min_size=1, max_size=20), max_size=5),
    st.lists(st.text(max_size=20), max_size=5),
)
def test_every_token_that_is_made_can_be_read(user: str | None, roles: list[str], groups: list[str]) -> None:
    try:
        token = client_token(KEYS, AUDIENCE, now=NOW, user_id=user, roles=roles, groups=groups)
    except InputError:
        return
    claims = read(token)
    assert (claims.user_id, claims.roles, claims.groups) == (user or None, tuple(roles), tuple(groups))


# -- Microsoft's library


class Caught(Exception):
    """Ends a request that is to be looked at."""

    def __init__(self, request: HttpRequest) -> None:
        self.request = request


class CatchingTransport(HttpTransport[HttpRequest, Any]):
    def send(self, request: HttpRequest, **options: Any) -> Any:
        raise Caught(request)

    def open(self) -> None: ...

    def close(self) -> None: ...

    def __enter__(self) -> CatchingTransport:
        return self

    def __exit__(self, *arguments: object) -> None: ...


def microsoft(endpoint: str, **options: Any) -> WebPubSubServiceClient:
    text = f"Endpoint={endpoint};AccessKey={DEV_KEY};Version=1.0;"
    return WebPubSubServiceClient.from_connection_string(text, hub="Chat", transport=CatchingTransport(), **options)


@pytest.mark.parametrize("endpoint", ["http://localhost:8080", "https://Push.Example.com/"])
def test_client_tokens_of_microsofts_library_are_read(endpoint: str) -> None:
    made = microsoft(endpoint).get_client_access_token(
        user_id="ann", roles=["webpubsub.joinLeaveGroup"], groups=["room"], jwt_headers={"kid": "1"}
    )
    keys = AccessKeys(OTHER, DEV_KEY)
    claims = read_client_token(made["token"], keys, client_audiences("chat", [endpoint]), time.time())
    assert (claims.user_id, claims.roles, claims.groups) == ("ann", ("webpubsub.joinLeaveGroup",), ("room",))
    bare = microsoft(endpoint).get_client_access_token()["token"]
    assert read_client_token(bare, keys, client_audiences("chat", [endpoint]), time.time()).roles == ()


@pytest.mark.parametrize("endpoint", ["http://localhost:8080", "https://Push.Example.com"])
def test_rest_tokens_of_microsofts_library_are_read(endpoint: str) -> None:
    client = microsoft(endpoint, user="ops")
    with pytest.raises(Caught) as caught:
        client.send_to_group("room 1/ä", "hello", content_type="text/plain", filter="userId eq 'ann'")
    request = caught.value.request
    token = request.headers["Authorization"].removeprefix("Bearer ")
    assert "filter=" in request.url
    keys = AccessKeys(OTHER, DEV_KEY)
    assert read_service_token(token, keys, service_audiences(request.url), time.time()) == ServiceClaims("ops")
    with pytest.raises(AuthError, match="another address"):
        read_service_token(token, keys, service_audiences(f"{endpoint}/api/hubs/Chat/:send"), time.time())
    with pytest.raises(AuthError, match="expired"):
        read_service_token(token, keys, service_audiences(request.url), time.time() + 60 + SKEW_S + 1)
