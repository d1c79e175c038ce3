"""The sockets of Microsoft's Python client, which it may leave open.

A connection that is closed while it is being made is forgotten by the library below it, socket and all. The client
waits a tenth of a second for its threads and then leaves them to themselves, and one that was about to come back to its
session does so though the client is closed. What is then collected in a later test is that test's failure. So every
socket is noted, and ends with the test.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

import websocket._core
from azure.messaging.webpubsubclient import WebPubSubClient
from azure.messaging.webpubsubclient.models import OpenClientError

from semel.testing.limits import scaled

WAIT_S = 30.0
POLL_S = 0.01
_connect_socket = websocket._core.connect
_connect_client = WebPubSubClient._connect


class Noted:
    def __init__(self) -> None:
        self.sockets: list[Any] = []
        self._clients: WeakSet[WebPubSubClient] = WeakSet()
        self._over: WeakSet[WebPubSubClient] = WeakSet()
        self._making = 0
        self._lock = threading.Lock()

    def install(self) -> None:
        """For good: threads of a client go on after its test."""

        def connect_client(client: WebPubSubClient, *arguments: Any, **more: Any) -> None:
            with self._making_one():
                if client in self._over:
                    raise OpenClientError("its test has ended")
                self._clients.add(client)
                _connect_client(client, *arguments, **more)

        def connect_socket(*arguments: Any) -> Any:
            with self._making_one():
                made = _connect_socket(*arguments)
                self.sockets.append(made[0])
                return made

        WebPubSubClient._connect = connect_client  # type: ignore[method-assign]
        websocket._core.connect = connect_socket

    @contextmanager
    def _making_one(self) -> Iterator[None]:
        with self._lock:
            self._making += 1
        try:
            yield
        finally:
            with self._lock:
                self._making -= 1

    def end(self) -> None:
        """Clients that have had their test make no new connection; those that they have or are making end."""
        for client in list(self._clients):
            self._over.add(client)
            self._clients.discard(client)
            client._is_stopping = True
        until = time.monotonic() + scaled(WAIT_S)
        self._close_sockets()
        while self._making:
            assert time.monotonic() < until, "a connection is still being made"
            time.sleep(POLL_S)
            self._close_sockets()

    def _close_sockets(self) -> None:
        while self.sockets:
            self.sockets.pop().close()


NOTED = Noted()
NOTED.install()


@contextmanager
def sockets_end() -> Iterator[None]:
    """With the test. What other clients have left to the garbage collector goes here as well."""
    try:
        yield
    finally:
        NOTED.end()
        gc.collect()
