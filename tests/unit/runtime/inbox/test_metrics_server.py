"""Figures on a port of their own."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import httpx
import pytest

from semel.errors import ConfigError, InputError
from semel.runtime.inbox import metrics_server
from semel.runtime.inbox.metrics_server import MetricsServer, parse_address
from semel.testing.limits import scaled


@pytest.fixture
def server() -> Iterator[MetricsServer]:
    server = MetricsServer(lambda: b"figures 1\n", "127.0.0.1", [0])
    server.start()
    yield server
    server.close()


def test_it_serves_the_figures_and_nothing_else(server: MetricsServer) -> None:
    url = f"http://127.0.0.1:{server.port}"
    found = httpx.get(f"{url}/metrics")
    assert found.text == "figures 1\n"
    assert found.headers["content-type"].startswith("text/plain")
    assert httpx.head(f"{url}/metrics").text == ""
    assert httpx.get(f"{url}/").status_code == 404
    assert httpx.post(f"{url}/metrics", content=b"x").status_code == 405


def test_who_asks_slowly_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_server._Handler, "timeout", 0.1)
    server = MetricsServer(lambda: b"figures 1\n", "127.0.0.1", [0])
    server.start()
    with socket.create_connection(("127.0.0.1", server.port), timeout=scaled(10)) as slow:
        slow.sendall(b"GET /metrics HT")
        assert httpx.get(f"http://127.0.0.1:{server.port}/metrics", timeout=scaled(10)).status_code == 200
    server.close()


def test_processes_of_a_group_take_the_next_free_port(server: MetricsServer) -> None:
    second = MetricsServer(lambda: b"", "127.0.0.1", [server.port, 0])
    second.start()
    assert second.port != server.port
    second.close()
    with pytest.raises(ConfigError, match="cannot be served at 127"):
        MetricsServer(lambda: b"", "127.0.0.1", [server.port])


@pytest.mark.parametrize(
    ("text", "found"),
    [("9464", ("127.0.0.1", 9464)), ("localhost:1", ("localhost", 1)), ("[::1]:9464", ("::1", 9464))],
)
def test_an_address_is_of_this_machine_unless_said(text: str, found: tuple[str, int]) -> None:
    assert parse_address(text, open_to_all=False) == found


@pytest.mark.parametrize("text", ["0.0.0.0:9464", "[::]:9464", "192.0.2.1:9464", "example.com:9464"])
def test_other_machines_are_let_in_on_request_only(text: str) -> None:
    with pytest.raises(ConfigError, match="not this machine alone") as raised:
        parse_address(text, open_to_all=False)
    assert "--open-metrics" in raised.value.fix
    assert parse_address(text, open_to_all=True)[1] == 9464


@pytest.mark.parametrize("text", ["", "x", "127.0.0.1:", ":9464", "127.0.0.1:99999", "127.0.0.1:-1"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="is not an address"):
        parse_address(text, open_to_all=True)
