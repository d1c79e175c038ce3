"""Serves the metrics of an application on a port of its own, for `semel inbox run --metrics`.

One request at a time, on one thread: whoever asks slowly is cut off, and costs no more than that. Nothing else is
served here, and nothing is changed by it.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable
from ipaddress import ip_address
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CONTENT_TYPE_LATEST

from semel.errors import ConfigError, InputError

REQUEST_S = 5.0
LOOPBACK = "127.0.0.1"
PORT_MAX = 65_535


class _Handler(WSGIRequestHandler):
    timeout = REQUEST_S

    def log_message(self, format: str, *args: Any) -> None:
        return


class _Server(WSGIServer):
    allow_reuse_address = True


class _ServerV6(_Server):
    address_family = socket.AF_INET6


class MetricsServer:
    """`text` makes what is served. Takes the first free one of `ports`: processes of a group share a range."""

    def __init__(self, text: Callable[[], bytes], host: str, ports: Iterable[int]) -> None:
        self._text = text
        self._server = _bind(self._answer, host, ports)
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, name="semel-metrics", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()

    def _answer(self, environ: dict[str, Any], start_response: Any) -> list[bytes]:
        if environ["PATH_INFO"] != "/metrics":
            start_response("404 Not Found", [("Content-Type", "text/plain"), ("Content-Length", "0")])
            return [b""]
        if environ["REQUEST_METHOD"] not in ("GET", "HEAD"):
            start_response("405 Method Not Allowed", [("Allow", "GET, HEAD"), ("Content-Length", "0")])
            return [b""]
        body = self._text()
        headers = [("Content-Type", CONTENT_TYPE_LATEST), ("Content-Length", str(len(body)))]
        start_response("200 OK", [*headers, ("Cache-Control", "no-store")])
        return [body if environ["REQUEST_METHOD"] == "GET" else b""]


def _bind(answer: Any, host: str, ports: Iterable[int]) -> WSGIServer:
    server, tried, last = (_ServerV6 if ":" in host else _Server), list(ports), ""
    for port in tried:
        try:
            return make_server(host, port, answer, server, _Handler)
        except OSError as error:
            last = error.strerror or str(error)
    shown = f"{host}:{tried[0]}" + (f" to {tried[-1]}" if len(tried) > 1 else "")
    raise ConfigError(f"metrics cannot be served at {shown}: {last}", fix="choose a port that is free: --metrics")


def parse_address(text: str, *, open_to_all: bool) -> tuple[str, int]:
    """`9464`, `127.0.0.1:9464` or `[::1]:9464`. Figures have no key: only this machine may read them, unless said."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") if colon else LOOPBACK
    if not port.isdecimal() or int(port) > PORT_MAX or not host:
        raise InputError(f"{text!r} is not an address", fix="write it as 127.0.0.1:9464, or the port alone")
    if not open_to_all and not _is_loopback(host):
        raise ConfigError(
            f"{host} is not this machine alone, and metrics have no key",
            fix="leave the host out, or say that everybody may read them: --open-metrics",
        )
    return host, int(port)


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False
