"""`semel serve`: what it refuses before it listens. That it serves is for the tests in tests/interop."""

from __future__ import annotations

import resource
import socket
import ssl
import sys
from pathlib import Path

import pytest
from tests.integration.test_listener import CERTIFICATE, PRIVATE_KEY
from tests.unit.cli.conftest import Semel

from semel.auth.keys import AccessKeys
from semel.cli.serve import _inbox, _is_loopback, _limits, _pubsub, _server, _tls
from semel.config import ServerSection, load_config
from semel.errors import ConfigError
from semel.pubsub.events.handlers import Handlers, event_handler
from semel.pubsub.hub.machine import HubOptions
from semel.runtime.server.limits import ListenerLimits
from semel.runtime.server.part import ServerSettings

KEYS = AccessKeys("k" * 32)


@pytest.fixture(autouse=True)
def _nothing_given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SEMEL_ACCESS_KEY", raising=False)
    monkeypatch.delenv("SEMEL_ACCESS_KEY_SECONDARY", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--dev", "--host", "0.0.0.0"], "everybody knows"),
        (["--dev", "--keys", "semel.keys"], "--dev has its own key"),
        (["--dev", "--host", "10.0.0.1"], "everybody knows"),
        (["--dev", "--host", "s.example"], "everybody knows"),
        (["--recovery", "soon"], "is not a duration"),
        (["--recovery", "0s"], "is not between 1s and 24h"),
        (["--recovery", "25h"], "is not between 1s and 24h"),
        (["--store", "sqlite:///nowhere/semel.db"], "there is no folder"),
        (["--tls-cert", "nowhere.pem"], "cannot be used"),
        (["--endpoint", "ftp://x"], "endpoint"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_a_fix(args: list[str], message: str, semel: Semel) -> None:
    ran = semel("serve", *args, "--port", "0")
    assert ran.exit_code == 2
    assert message in ran.err
    assert "fix:" in ran.err


def test_the_command_line_wins_over_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "semel.toml").write_text(
        """
        [store]
        node = "n1"
        [server]
        endpoints = ["https://a.example"]
        metrics = "open"
        connections = 5
        [pubsub]
        recovery_s = 7
        backlog_count = 8
        backlog_bytes = 9000
        backlog_age_s = 10
        [[pubsub.hub]]
        name = "Plain"
        [[pubsub.hub]]
        name = "chat"
        [[pubsub.hub.handler]]
        url = "http://127.0.0.1/{event}"
        user_events = "*"
        [[pubsub.hub.handler]]
        url = "http://127.0.0.1/"
        system_events = ["connected"]
        auth = "key"
        """
    )
    config = load_config()
    limits = _limits(config.server, pytest.fail)
    assert limits == ListenerLimits(connections=5)
    server = _server(config, KEYS, None, ("h", 1), None, limits)
    assert (server.node, server.endpoints, server.open_metrics) == ("n1", ("https://a.example",), True)
    assert (server.host, server.port, server.limits) == ("h", 1, limits)
    assert _server(config, KEYS, ["https://b.example"], ("h", 1), None, limits).endpoints == ("https://b.example",)
    settings = _pubsub(config, None)
    assert settings.hub == HubOptions(recovery_s=7, backlog_count=8, backlog_bytes=9000, backlog_age_s=10)
    assert settings.handlers == {
        "chat": Handlers(
            "chat",
            (
                event_handler("http://127.0.0.1/{event}", user_events="*"),
                event_handler("http://127.0.0.1/", ["connected"], auth="key"),
            ),
        )
    }
    assert _pubsub(config, "2m").hub.recovery_s == 120.0


def test_event_handlers_know_developers_servers_as_they_know_microsofts_emulator(tmp_path: Path) -> None:
    settings = _pubsub(load_config(), None, dev=True)
    assert settings.origin_at(ServerSettings(KEYS)) == "localhost"


def test_a_mistake_in_the_configuration_is_told_before_anything_is_made(semel: Semel, tmp_path: Path) -> None:
    (tmp_path / "semel.toml").write_text("[server]\n\nprot = 1\n")
    ran = semel("serve")
    assert (ran.exit_code, ran.out) == (2, "")
    assert "semel.toml, line 3: there is no key 'prot' in [server]" in ran.err
    assert [file.name for file in tmp_path.iterdir()] == ["semel.toml"]


@pytest.mark.parametrize(
    ("app", "message"),
    [
        ("nowhere:app", "there is no module"),
        ("shop:none", "has no application"),
        ("same:app", "server"),
        ("shop:wrong", "ask"),
    ],
)
def test_an_inbox_that_cannot_work_is_told_before_anything_is_made(
    semel: Semel, tmp_path: Path, app: str, message: str
) -> None:
    (tmp_path / "shop.py").write_text(
        "from semel import App\n"
        "wrong = App('sqlite:///shop.db')\n"
        "wrong.endpoint('orders').on('t')(lambda order, what: None)\n"
    )
    (tmp_path / "same.py").write_text("from semel import App\napp = App('sqlite:///semel.db')\n")
    (tmp_path / "semel.toml").write_text(f'[inbox]\napp = "{app}"\n')
    ran = semel("serve", "--dev", "--port", "0")
    for name in ("shop", "same"):
        sys.modules.pop(name, None)
    assert (ran.exit_code, message in ran.err) == (2, True), ran.err
    assert not (tmp_path / "semel.db").exists()


def test_a_server_without_the_code_of_the_application_has_its_endpoints(tmp_path: Path) -> None:
    notes: list[str] = []
    (tmp_path / "semel.toml").write_text(
        """
        [inbox]
        store = "postgresql://nobody@127.0.0.1:1/none"
        name = "shop"
        identity = "id+endpoint"
        [[inbox.endpoint]]
        name = "orders"
        id_field = "order.id"
        """
    )
    found = _inbox(load_config(), "sqlite:///semel.db", notes.append)
    assert found is not None
    assert (found.name, found.mode, found.endpoints["orders"].options.id_field) == ("shop", "id+endpoint", "order.id")
    assert notes, "its store is away, and may come back"
    found.close()
    (tmp_path / "semel.toml").write_text('[inbox]\nstore = "sqlite:///shop.db"\n')
    assert _inbox(load_config(), "sqlite:///semel.db", notes.append) is None


def test_developers_get_their_own_address_whatever_the_configuration_says(semel: Semel, tmp_path: Path) -> None:
    """Where it would listen is seen where nothing can."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        (tmp_path / "semel.toml").write_text(f'[server]\nhost = "127.0.0.9"\nport = {port}\n')
        ran = semel("serve", "--dev", "--port", port)
    assert f"cannot listen on 127.0.0.1:{port}: something else does" in ran.err
    assert "another port" in ran.err


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.0.0.9", "::1"])
def test_developers_may_choose_among_the_names_of_their_machine(host: str) -> None:
    assert _is_loopback(host)


def test_an_address_that_this_machine_has_not_is_no_matter_of_the_port(semel: Semel) -> None:
    ran = semel("serve", "--host", "192.0.2.1", "--port", "0")
    assert ran.exit_code == 2
    assert "192.0.2.1:0: this machine has no such address" in ran.err
    assert "--host" in ran.err


def test_a_certificate_goes_with_its_own_key(tmp_path: Path) -> None:
    both = ServerSection(tls_cert=tmp_path / "c.pem", tls_key=tmp_path / "k.pem")
    for server, cert, key in (
        (ServerSection(), None, tmp_path / "k.pem"),
        (ServerSection(tls_key=tmp_path / "k.pem"), None, None),
    ):
        with pytest.raises(ConfigError, match="no certificate"):
            _tls(server, cert, key, None)
    (tmp_path / "given.pem").write_text(CERTIFICATE + PRIVATE_KEY)
    assert _tls(both, tmp_path / "given.pem", None, None) is not None
    assert _tls(ServerSection(), None, None, None) is None
    with pytest.raises(ConfigError, match=r"c\.pem"):
        _tls(both, None, None, None)


def test_clients_show_certificates_over_tls_only(tmp_path: Path) -> None:
    (tmp_path / "given.pem").write_text(CERTIFICATE + PRIVATE_KEY)
    with pytest.raises(ConfigError, match="over TLS only"):
        _tls(ServerSection(), None, None, tmp_path / "given.pem")
    with pytest.raises(ConfigError, match=r"none\.pem"):
        _tls(ServerSection(), tmp_path / "given.pem", None, tmp_path / "none.pem")
    asked = _tls(ServerSection(tls_client_ca=tmp_path / "given.pem"), tmp_path / "given.pem", None, None)
    assert asked is not None
    assert asked.verify_mode is ssl.CERT_OPTIONAL


@pytest.mark.parametrize(
    ("files", "most", "raised", "room"),
    [
        (1024, 524_288, 100_256, 100_000),
        (1024, 20_000, 20_000, 19_744),
        (1024, resource.RLIM_INFINITY, 100_256, 100_000),
        (200_000, 200_000, 200_000, 100_000),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, resource.RLIM_INFINITY, 100_000),
        (100, 100, 100, 50),
    ],
)
def test_as_many_files_may_be_open_as_connections_need(
    files: int, most: int, raised: int, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = [files, most]
    monkeypatch.setattr(resource, "getrlimit", lambda which: tuple(limits))
    monkeypatch.setattr(resource, "setrlimit", lambda which, new: limits.__setitem__(slice(None), new))
    notes: list[str] = []
    assert _limits(ServerSection(), notes.append).connections == room
    assert (limits, notes) == ([raised, most], [])
    assert _limits(ServerSection(connections=100_000), notes.append).connections == room
    assert bool(notes) == (room < 100_000)


def test_a_system_with_a_limit_behind_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(which: int, new: tuple[int, int]) -> None:
        raise ValueError("current limit exceeds maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda which: (1024, resource.RLIM_INFINITY))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert _limits(ServerSection(), pytest.fail).connections == 1024 - 256
