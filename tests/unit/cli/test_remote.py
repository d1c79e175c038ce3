"""How commands find a server and its keys, and what they make of its answers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from semel.auth.keys import DEV_KEY, AccessKeys
from semel.cli import remote
from semel.cli.remote import DEV_ENDPOINT, RemoteServer, ServerAddress, find_keys, find_server
from semel.config import AuthSection
from semel.errors import (
    AuthError,
    ConfigError,
    EpochChanged,
    Forbidden,
    InputError,
    PeerUnavailable,
    RemoteProtocolError,
    SemelError,
)
from semel.runtime.server.server_lock import Running, server_lock

KEY, OTHER = "p" * 32, "s" * 32
STRING = f"Endpoint=https://s.example/;AccessKey={KEY};Version=1.0;"


@pytest.fixture(autouse=True)
def _nothing_given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in (*remote.KEY_VARIABLES, remote.CONNECTION_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


# -- keys


def test_keys_come_from_the_environment_a_file_the_configuration_or_the_first_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    nothing = AuthSection()
    assert find_keys(True, None, nothing).all == (DEV_KEY,)
    made = find_keys(False, None, nothing)
    assert (tmp_path / "semel.keys").exists()
    assert find_keys(False, None, nothing) == made
    assert find_keys(False, None, AuthSection(primary_key=KEY, secondary_key=OTHER)).all == (KEY, OTHER)
    elsewhere = find_keys(False, None, AuthSection(keys=Path("other.keys")))
    assert elsewhere != made
    assert find_keys(False, Path("other.keys"), AuthSection(primary_key=KEY)) == elsewhere
    monkeypatch.setenv("SEMEL_ACCESS_KEY_SECONDARY", OTHER)
    with pytest.raises(ConfigError, match="without SEMEL_ACCESS_KEY"):
        find_keys(False, None, nothing)
    monkeypatch.setenv("SEMEL_ACCESS_KEY", KEY)
    assert find_keys(False, None, AuthSection(keys=Path("other.keys"))).all == (KEY, OTHER)
    for given in ((True, None), (False, Path("semel.keys"))):
        with pytest.raises(ConfigError, match="given"):
            find_keys(*given, nothing)


def test_who_only_asks_makes_no_keys(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there are no access keys in") as caught:
        find_server(None)
    assert "SEMEL_CONNECTION_STRING" in caught.value.fix
    assert list(tmp_path.iterdir()) == []


# -- which server


def test_a_server_is_named_by_a_connection_string(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_server(STRING) == ServerAddress("https://s.example", AccessKeys(KEY))
    monkeypatch.setenv(remote.CONNECTION_VARIABLE, STRING)
    assert find_server(None).endpoint == "https://s.example"
    assert find_server(None, dev=True) == ServerAddress(DEV_ENDPOINT, AccessKeys(DEV_KEY))
    monkeypatch.setenv("SEMEL_ACCESS_KEY", OTHER)
    assert find_server(None, "http://t.example/") == ServerAddress("http://t.example", AccessKeys(OTHER))


def test_else_it_is_the_one_that_serve_would_be_here() -> None:
    keys = find_keys(False, None, AuthSection())
    assert find_server(None) == ServerAddress("http://127.0.0.1:8080", keys)
    for text, endpoint in (
        ('host = "0.0.0.0"\nport = 81', "http://127.0.0.1:81"),
        ('host = "::"', "http://[::1]:8080"),
        ('host = "s.example"\ntls_cert = "c.pem"', "https://s.example:8080"),
        ('endpoints = ["https://e.example/"]', "https://e.example"),
    ):
        Path("semel.toml").write_text(f"[server]\n{text}\n")
        assert find_server(None).endpoint == endpoint


def test_before_that_it_is_the_one_that_runs_on_the_store_of_this_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    own, other = find_keys(False, None, AuthSection()), find_keys(False, Path("other.keys"), AuthSection())
    with server_lock(Path("semel.db")) as tell:
        tell(Running("https://127.0.0.1:81"))
        assert find_server(None) == ServerAddress("https://127.0.0.1:81", own)
        assert find_server(None, keys=Path("other.keys")) == ServerAddress("https://127.0.0.1:81", other)
        assert find_server(None, "http://t.example").endpoint == "http://t.example"
        assert find_server(None, dev=True).endpoint == DEV_ENDPOINT
        assert find_server(STRING).endpoint == "https://s.example"
    with server_lock(Path("semel.db")) as tell:
        tell(Running("http://127.0.0.1:82", keys=str(Path("other.keys").absolute())))
        assert find_server(None) == ServerAddress("http://127.0.0.1:82", other)
    with server_lock(Path("semel.db")) as tell:
        tell(Running("http://127.0.0.1:83", is_dev=True))
        assert find_server(None) == ServerAddress("http://127.0.0.1:83", AccessKeys(DEV_KEY))
        monkeypatch.setenv("SEMEL_ACCESS_KEY", KEY)
        assert find_server(None) == ServerAddress("http://127.0.0.1:83", AccessKeys(KEY))
        monkeypatch.setenv("SEMEL_STORE__URL", "postgresql://db.example/semel")
        assert find_server(None).endpoint == "http://127.0.0.1:8080"


@pytest.mark.parametrize(
    ("given", "options"),
    [
        (STRING, {"dev": True}),
        (STRING, {"endpoint": "http://x"}),
        (STRING, {"keys": Path("k")}),
        (None, {"endpoint": "http://x", "dev": True}),
        (None, {"endpoint": "ftp://x"}),
        ("nonsense", {}),
    ],
)
def test_two_servers_at_once_and_none(
    given: str | None, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not options.get("dev"):
        monkeypatch.setenv("SEMEL_ACCESS_KEY", KEY)
    with pytest.raises(ConfigError):
        find_server(given, **options)


def test_a_certificate_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("nonsense")
    with pytest.raises(ConfigError, match=r"ca\.pem"):
        RemoteServer(ServerAddress("https://s.example", AccessKeys(KEY), tmp_path / "ca.pem"))


# -- what it answers


def answering(monkeypatch: pytest.MonkeyPatch, answer: Any) -> RemoteServer:
    client = httpx.Client

    def make(**options: Any) -> httpx.Client:
        assert (options["follow_redirects"], options["trust_env"]) == (False, False)
        return client(**{**options, "transport": httpx.MockTransport(answer)})

    monkeypatch.setattr(httpx, "Client", make)
    return RemoteServer(ServerAddress("http://s.example", AccessKeys(KEY)))


@pytest.mark.parametrize(
    ("status", "error", "exit_code"),
    [
        (302, RemoteProtocolError, 2),
        (400, InputError, 2),
        (401, AuthError, 2),
        (403, Forbidden, 2),
        (404, RemoteProtocolError, 2),
        (409, InputError, 2),
        (410, EpochChanged, 3),
        (500, RemoteProtocolError, 2),
        (503, PeerUnavailable, 3),
    ],
)
def test_a_refusal_is_an_error_with_the_words_of_the_server(
    status: int, error: type[SemelError], exit_code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(status, json={"message": "because"}, headers={"location": "http://evil.example"})

    with answering(monkeypatch, answer) as server, pytest.raises(error, match="because") as caught:
        server.get("/v1/pubsub/hubs", "hubs")
    assert (type(caught.value), caught.value.exit_code) == (error, exit_code)
    assert caught.value.fix


@pytest.mark.parametrize("status", [400, 401, 403, 409, 503])
def test_what_the_server_says_to_do_is_the_fix(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = httpx.Response(status, json={"message": "it is wrong; do this; or that"})
    with (
        answering(monkeypatch, lambda request: answer) as server,
        pytest.raises(SemelError, match=r"it is wrong\n") as caught,
    ):
        server.rest("POST", "/hubs/chat/:send")
    assert caught.value.fix == "do this; or that"


@pytest.mark.parametrize(
    ("endpoint", "error", "message", "fix"),
    [
        (
            "https://s.example",
            httpx.ConnectError(
                "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed certificate (_ssl.c:992)"
            ),
            "is not trusted: self-signed certificate$",
            "--ca",
        ),
        (
            "https://s.example",
            httpx.ConnectError("[SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:992)"),
            "does not answer",
            "http://",
        ),
        ("http://s.example", httpx.RemoteProtocolError("Server disconnected"), "does not answer", "https://"),
        ("https://s.example", httpx.RemoteProtocolError("Server disconnected"), "does not answer", "running"),
        ("http://s.example", httpx.ConnectError("refused"), "does not answer: refused", "running"),
    ],
)
def test_a_server_with_and_without_tls(endpoint: str, error: httpx.HTTPError, message: str, fix: str) -> None:
    told = remote._no_answer(endpoint, error)
    assert re.search(message, told.message)
    assert fix in told.fix


@pytest.mark.parametrize("body", [b"<html>", b"[1]", b"\xff", b"{}", b'{"hubs": 1}'])
@pytest.mark.parametrize(("status", "error"), [(502, PeerUnavailable), (200, RemoteProtocolError)])
def test_somebody_else_behind_the_address(
    body: bytes, status: int, error: type[SemelError], monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = httpx.Response(status, content=body)
    with (
        answering(monkeypatch, lambda request: answer) as server,
        pytest.raises(error, match=r"Bad Gateway|did not answer with hubs"),
    ):
        server.get("/v1/pubsub/hubs", "hubs")


def test_nobody_behind_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadTimeout("")

    with answering(monkeypatch, answer) as server, pytest.raises(PeerUnavailable, match="ReadTimeout"):
        server.get("/", "hubs")
