"""`semel token`: what it makes opens the door that was named, and no other."""

from __future__ import annotations

import time
from urllib.parse import parse_qs, urlsplit

import pytest
from tests.unit.cli.conftest import Semel

from semel.auth.keys import AccessKeys
from semel.auth.tokens import read_service_token
from semel.errors import AuthError
from semel.pubsub.protocol.client_tokens import read_client_token

KEY = "k" * 32
SERVER = ("--connection-string", f"Endpoint=https://s.example;AccessKey={KEY};")


@pytest.fixture(autouse=True)
def _nothing_given(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SEMEL_ACCESS_KEY", "SEMEL_ACCESS_KEY_SECONDARY", "SEMEL_CONNECTION_STRING"):
        monkeypatch.delenv(name, raising=False)


def test_an_address_for_a_client(semel: Semel) -> None:
    ran = semel(
        "token", "--hub", "Chat", "--user", "ann", "--role", "sendToGroup.orders", "--role", "webpubsub.joinLeaveGroup",
        "--role", "sendToGroups.a.*", "--group", "news", "--group", "sport", *SERVER,
    )  # fmt: skip
    assert (ran.exit_code, ran.err) == (0, "")
    url = urlsplit(ran.out.strip())
    assert (url.scheme, url.netloc, url.path) == ("wss", "s.example", "/client/hubs/chat")
    [token] = parse_qs(url.query)["access_token"]
    claims = read_client_token(token, AccessKeys(KEY), ["https://s.example/client/hubs/chat"], time.time())
    assert (claims.user_id, claims.groups) == ("ann", ("news", "sport"))
    assert claims.roles == ("webpubsub.sendToGroup.orders", "webpubsub.joinLeaveGroup", "webpubsub.sendToGroups.a.*")
    with pytest.raises(AuthError, match="expired"):
        read_client_token(token, AccessKeys(KEY), ["https://s.example/client/hubs/chat"], time.time() + 2 * 3600)


def test_a_token_for_a_service(semel: Semel) -> None:
    ran = semel("token", "--service", "/metrics", "--role", "read", "--minutes", "600", "--json", *SERVER)
    result = ran.result
    assert result["url"] == "https://s.example/metrics"
    assert 590 * 60 < result["expires"] - time.time() <= 600 * 60
    claims = read_service_token(result["token"], AccessKeys(KEY), [result["url"]], time.time() + 590 * 60)
    assert claims.roles == ("semel.read",)
    assert semel("token", "--service", "/metrics", *SERVER).out.count(".") == 2


@pytest.mark.parametrize("role", ["own", "joinGroup", "read"])
def test_a_role_that_allows_a_client_nothing_goes_into_the_token_and_is_told(role: str, semel: Semel) -> None:
    ran = semel("token", "--hub", "chat", "--role", role, *SERVER)
    assert f"'{role}' is no role that allows a client something here: joinLeaveGroup, " in ran.err
    [token] = parse_qs(urlsplit(ran.out.strip()).query)["access_token"]
    claims = read_client_token(token, AccessKeys(KEY), ["https://s.example/client/hubs/chat"], time.time())
    assert claims.roles == (role,)


@pytest.mark.parametrize("role", ["semel.read", "semel.operate", "operate"])
def test_roles_of_services(role: str, semel: Semel) -> None:
    made = semel("token", "--service", "/metrics", "--role", role, "--json", *SERVER).result
    claims = read_service_token(made["token"], AccessKeys(KEY), [made["url"]], time.time())
    assert claims.roles == (f"semel.{role.removeprefix('semel.')}",)


def test_developers_need_say_nothing_more(semel: Semel) -> None:
    assert semel("token", "--hub", "chat", "--dev").out.startswith("ws://127.0.0.1:8080/client/hubs/chat?access_token=")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), "either for a client or for a service"),
        (("--hub", "chat", "--service", "/x"), "either for a client or for a service"),
        (("--hub", "1"), "is not a name of a hub"),
        (("--hub", "chat", "--group", " "), "blank"),
        (("--service", "metrics"), "is no path"),
        (("--service", "/metrics", "--group", "g"), "in no group"),
        (("--service", "/metrics", "--role", "red"), "'red' is no role of a service"),
        (("--service", "/metrics", "--role", "joinLeaveGroup"), "is no role of a service"),
        (("--hub", "chat", "--role", "x" * 40_000), "a role"),
        (("--hub", "chat", "--minutes", "0"), "--minutes"),
    ],
)
def test_what_cannot_be_meant(args: tuple[str, ...], message: str, semel: Semel) -> None:
    ran = semel("token", *args, *SERVER)
    assert (ran.exit_code, ran.out) == (2, "")
    assert message in ran.err
    assert "fix:" in ran.err
    assert KEY not in ran.err
