"""A real `semel serve` with a configuration file and TLS, operated by the commands and looked at over HTTP."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.integration.test_listener import CERTIFICATE, PRIVATE_KEY
from tests.tools.renewing import sharing
from tests.tools.tls_socket import TlsSocket
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

from semel.cli.main import run
from semel.testing.limits import scaled

CONFIG = """
[store]
node = "n1"

[server]
port = 0
tls_cert = "both.pem"
frame_bytes = 2048

[auth]
keys = "the.keys"

[pubsub]
recovery_s = 30.0

[[pubsub.hub]]
name = "Told"

[[pubsub.hub.handler]]
url = "http://127.0.0.1:{port}/{{hub}}/{{event}}"
user_events = "*"
"""
RELIABLE = Subprotocol("json.reliable.webpubsub.azure.v1")
WAIT_S = 60.0


class Handler(BaseHTTPRequestHandler):
    """Takes events from anybody, and answers that it has them."""

    def do_OPTIONS(self) -> None:
        self._answer({"WebHook-Allowed-Origin": "*"})

    def do_POST(self) -> None:
        self.server.heard.append((self.path, self.rfile.read(int(self.headers["content-length"]))))  # type: ignore[attr-defined]
        self._answer({})

    def _answer(self, headers: dict[str, str]) -> None:
        self.send_response(204)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


@pytest.fixture(scope="module")
def handler() -> Iterator[ThreadingHTTPServer]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.heard = []  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


class Served:
    """For several tests. One that breaks it gets the others a new one."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.ca, self.log = folder, folder / "ca.pem", folder / "log"
        self.start()

    def start(self) -> None:
        self.process = _start(self.folder, "serve", "--json")
        assert self.process.stdout is not None
        told = json.loads(self.process.stdout.readline())
        self.connection_string = str(told["result"]["connection_string"])

    def stop(self) -> int:
        with self.process:
            self.process.send_signal(signal.SIGTERM)
            return self.process.wait(scaled(WAIT_S))

    @property
    def endpoint(self) -> str:
        return self.connection_string.split(";")[0].removeprefix("Endpoint=")

    def is_well(self) -> bool:
        return httpx.get(f"{self.endpoint}/healthz", trust_env=False, verify=False).status_code == 200

    def cut_off(self) -> None:
        self.process.kill()

    def renew(self) -> None:
        with self.process:
            self.process.kill()
        self.start()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory, handler: ThreadingHTTPServer) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    (folder / "semel.toml").write_text(CONFIG.format(port=handler.server_port))
    (folder / "both.pem").write_text(CERTIFICATE + PRIVATE_KEY)
    (folder / "ca.pem").write_text(CERTIFICATE)
    with sharing(Served(folder)) as served:
        assert (folder / "the.keys").exists()
        yield served
        assert served.stop() == 0


def _start(folder: Path, *args: str) -> subprocess.Popen[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SEMEL_")}
    with open(folder / "log", "a") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "semel", *args], stdout=subprocess.PIPE, stderr=log, text=True, cwd=folder,
            env=environ,
        )  # fmt: skip


@contextmanager
def _process(folder: Path, *args: str) -> Iterator[subprocess.Popen[str]]:
    with _start(folder, *args) as process:
        try:
            yield process
        finally:
            process.kill()


class Commands:
    def __init__(self, served: Served, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys, self._served = capsys, served
        self._trust = ("--ca", str(served.ca))
        self._tls = ssl.create_default_context(cafile=served.ca)

    def __call__(self, *args: str) -> Any:
        """What a command found out."""
        self._capsys.readouterr()
        trust = self._trust if args[0] == "pubsub" else ()
        assert run([*args, *trust, "--json"]) == 0
        return json.loads(self._capsys.readouterr().out)["result"]

    @contextmanager
    def client(self, hub: str, user: str, *options: str) -> Iterator[TlsSocket]:
        url = self("token", "--hub", hub, "--user", user, "--role", "sendToGroup", *options)["url"]
        with self._connect(url) as client:
            yield client

    def _connect(self, url: str) -> TlsSocket:
        """A handshake with TLS that is slow is no failure; the server's own words are worth a lot when it is one."""
        try:
            return TlsSocket(url, RELIABLE, self._tls, open_s=scaled(WAIT_S), close_s=scaled(5))
        except Exception as error:
            error.add_note(f"the server says: {self._served.log.read_text() or 'nothing'}")
            raise


@pytest.fixture
def semel(
    served: Served, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Commands:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("SEMEL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SEMEL_CONNECTION_STRING", served.connection_string)
    return Commands(served, capsys)


def said(client: ClientConnection | TlsSocket) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(client.recv(timeout=scaled(WAIT_S)))
    return answer


def test_who_is_there_and_what_they_are_sent(semel: Commands) -> None:
    with semel.client("who", "ann", "--group", "news", "--group", "sport") as ann, semel.client("who", "bob") as bob:
        ann_id, bob_id = said(ann)["connectionId"], said(bob)["connectionId"]
        found = semel("pubsub", "connections", "who")["connections"]
        assert {each["connectionId"]: (each["userId"], each["state"], each["groups"]) for each in found} == {
            ann_id: ("ann", "connected", ["news", "sport"]),
            bob_id: ("bob", "connected", []),
        }
        assert {each["node"] for each in found} == {"n1"}
        assert [
            each["connectionId"] for each in semel("pubsub", "connections", "who", "--user", "bob")["connections"]
        ] == [bob_id]
        assert semel("pubsub", "groups", "who")["groups"] == [
            {"name": "news", "members": 1},
            {"name": "sport", "members": 1},
        ]
        [hub] = [each for each in semel("pubsub", "hubs")["hubs"] if each["name"] == "who"]
        assert (hub["here"]["connected"], hub["here"]["groups"]) == (2, 2)

        sent = [
            semel("pubsub", "send", "who", '{"n": 1}', "--type", "json", "--group", "news", "--key", "once")
            for _ in range(2)
        ]
        assert [each["new"] for each in sent] == [True, False]
        semel("pubsub", "send", "who", "to you", "--connection", ann_id)
        assert [said(ann)["data"], said(ann)["data"]] == [{"n": 1}, "to you"]

        assert not semel("pubsub", "close", "who", "--user", "nobody")["found"]
        assert semel("pubsub", "close", "who", "--user", "ann", "--reason", "time to go")["found"]
        assert said(ann)["message"] == "time to go"
        with pytest.raises(ConnectionClosed):
            ann.recv(timeout=scaled(WAIT_S))
        assert [each["userId"] for each in semel("pubsub", "connections", "who")["connections"]] == ["bob"]


def test_messages_are_followed_while_they_come(semel: Commands, served: Served, tmp_path: Path) -> None:
    """A member that acknowledges nothing keeps them in the store."""
    with semel.client("live", "ann", "--group", "news") as ann:
        said(ann)
        semel("pubsub", "send", "live", "first", "--group", "news")
        where = ("--connection-string", served.connection_string, "--ca", str(served.ca))
        with _process(tmp_path, "pubsub", "tail", "live", "--stored", "--json", *where) as tail:
            assert tail.stdout is not None
            assert json.loads(tail.stdout.readline())["data"] == "first"
            semel("pubsub", "send", "live", "second", "--everybody")
            message = json.loads(tail.stdout.readline())
            assert (message["data"], message["to"], message["from"]) == ("second", {}, "rest")
            tail.send_signal(signal.SIGINT)
            assert tail.wait(scaled(WAIT_S)) == 0
            assert tail.stdout.read() == ""


def test_health_and_metrics(semel: Commands, served: Served) -> None:
    trust = ssl.create_default_context(cafile=served.ca)
    with (
        httpx.Client(base_url=served.endpoint, trust_env=False, verify=trust) as http,
        semel.client("seen", "ann") as ann,
    ):
        said(ann)
        assert (http.get("/healthz").text, http.get("/readyz").text) == ("ok\n", "ready\n")
        assert http.get("/metrics").status_code == 401
        token = semel("token", "--service", "/metrics", "--role", "read")["token"]
        found = http.get("/metrics", headers={"authorization": f"Bearer {token}"})
        assert found.headers["content-type"].startswith("text/plain; version=")
        assert 'semel_info{node="n1"' in found.text
        assert 'semel_hub_connections{hub="seen"} 1.0\n' in found.text
        assert 'semel_hub_frames_sent_total{hub="seen"} 1.0\n' in found.text
        [committed] = re.findall(r"^semel_transaction_seconds_count (.+)$", found.text, re.MULTILINE)
        assert float(committed) > 0


def test_the_event_handlers_of_the_configuration_are_told(semel: Commands, handler: ThreadingHTTPServer) -> None:
    with semel.client("told", "ann") as ann:
        said(ann)
        ann.send(json.dumps({"type": "event", "event": "greet", "ackId": 1, "dataType": "text", "data": "hello"}))
        assert said(ann) == {"type": "ack", "ackId": 1, "success": True}
        assert handler.heard == [("/told/greet", b"hello")]  # type: ignore[attr-defined]


def test_the_limits_of_the_configuration_hold(semel: Commands) -> None:
    with semel.client("limits", "ann") as ann:
        said(ann)
        ann.send(json.dumps({"type": "sendToGroup", "group": "g", "data": "x" * 3000}))
        with pytest.raises(ConnectionClosed) as caught:
            ann.recv(timeout=scaled(WAIT_S))
        assert caught.value.rcvd is not None
        assert caught.value.rcvd.code == 1009


def test_beside_a_server_commands_find_it_and_its_log_says_who_is_refused(tmp_path: Path) -> None:
    """It has its port and its key from the command line alone, and nobody says so to the commands."""
    with _process(tmp_path, "serve", "--dev", "--port", "0", "--debug") as server:
        assert server.stdout is not None
        assert "Semel serves http://127.0.0.1:" in server.stdout.readline()
        assert "AccessKey" in server.stdout.readline()
        with _process(tmp_path, "token", "--hub", "chat") as token:
            url = token.communicate(timeout=scaled(WAIT_S))[0].strip()
        with connect(url, subprotocols=[RELIABLE], open_timeout=scaled(WAIT_S)) as client:
            assert said(client)["event"] == "connected"
            with _process(tmp_path, "pubsub", "hubs", "--json") as hubs:
                [hub] = json.loads(hubs.communicate(timeout=scaled(WAIT_S))[0])["result"]["hubs"]
            assert (hub["name"], hub["here"]["connected"]) == ("chat", 1)
        with pytest.raises(InvalidStatus), connect(url.partition("?")[0], open_timeout=scaled(WAIT_S)):
            pass
        server.send_signal(signal.SIGTERM)
        assert server.wait(scaled(WAIT_S)) == 0
    time = r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"
    log = (tmp_path / "log").read_text()
    assert re.search(rf"{time} INFO a client is refused with 401: there is no access token$", log, re.MULTILINE)


def test_a_server_that_is_not_there_is_told_apart_from_a_mistake(
    semel: Commands, served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    key = f"AccessKey={'k' * 32};"
    assert run(["pubsub", "hubs", "--connection-string", f"Endpoint=http://127.0.0.1:{port};{key}"]) == 3
    assert run(["pubsub", "hubs"]) == 3
    assert "certificate" in capsys.readouterr().err
    wrong = ("--connection-string", f"Endpoint={served.endpoint};{key}", "--ca", str(served.ca))
    assert run(["pubsub", "hubs", *wrong]) == 2
    assert "refuses the key" in capsys.readouterr().err
