"""No socket of Microsoft's client outlives the test that opened it."""

from __future__ import annotations

import socket
import threading

import pytest
from azure.messaging.webpubsubclient import WebPubSubClient
from azure.messaging.webpubsubclient.models import OpenClientError
from tests.interop.microsoft import NOTED, sockets_end

from semel.testing.limits import scaled


def test_a_connection_that_was_never_made_ends_with_its_test() -> None:
    """Nobody answers. The client gives up and forgets what it has begun, and its thread waits on."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        with sockets_end():
            client = WebPubSubClient(f"ws://127.0.0.1:{silent.getsockname()[1]}/", start_timeout=0.2)
            with pytest.raises(OpenClientError):
                client.open()
            client.close()
            [left] = NOTED.sockets
            assert left.fileno() != -1
        assert left.fileno() == -1
        thread = client._thread
        assert isinstance(thread, threading.Thread)
    thread.join(scaled(30))
    assert not thread.is_alive()
    with pytest.raises(OpenClientError, match="its test has ended"):
        client._connect("ws://127.0.0.1:1/")
