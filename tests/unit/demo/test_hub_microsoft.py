"""Microsoft's client in the demo gives up before its parent does, and says why."""

from __future__ import annotations

import socket
from types import SimpleNamespace

import pytest
from azure.messaging.webpubsubclient import _client
from azure.messaging.webpubsubclient.models import OpenClientError, SendMessageError
from tests.interop.microsoft import sockets_end

from semel.demo import children, hub_microsoft
from semel.errors import PeerUnavailable
from semel.testing import limits


def test_each_attempt_to_connect_and_all_of_them_are_shorter_than_its_parent_waits() -> None:
    """Its own `open` waits for 30 s unless it is told otherwise, also when it has missed that it is connected."""
    assert hub_microsoft.OPEN_S * 4 <= hub_microsoft.GIVE_UP_S
    assert hub_microsoft.GIVE_UP_S + hub_microsoft.OPEN_S + hub_microsoft.ACK_TIMEOUT_S < children.START_S


class Late:
    """A client that connects with the last attempt, and then gets no answer. Its clock is moved by what it does."""

    now = 0.0

    def __init__(self, url: str, **options: object) -> None: ...

    def subscribe(self, kind: object, call: object) -> None: ...

    def open(self) -> None:
        Late.now += hub_microsoft.OPEN_S
        if Late.now < hub_microsoft.GIVE_UP_S:
            raise OpenClientError("not yet")

    def join_group(self, group: str, ack_id: int) -> None:
        Late.now += hub_microsoft.ACK_TIMEOUT_S
        raise SendMessageError("no answer")


def test_connecting_and_joining_together_take_less_than_its_parent_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Late, "now", 0.0)
    monkeypatch.setattr(hub_microsoft, "scaled", float)
    monkeypatch.setattr(hub_microsoft, "WebPubSubClient", Late)
    sleep = lambda seconds: setattr(Late, "now", Late.now + seconds)  # noqa: E731
    monkeypatch.setattr(hub_microsoft, "time", SimpleNamespace(monotonic=lambda: Late.now, sleep=sleep))
    with pytest.raises(PeerUnavailable, match="never answered"):
        hub_microsoft.joined("ws://nowhere", lambda message: None)
    assert Late.now < children.START_S


def test_a_server_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_microsoft, "scaled", float)
    monkeypatch.setattr(hub_microsoft, "OPEN_S", 0.05)
    monkeypatch.setattr(hub_microsoft, "GIVE_UP_S", 0.1)
    with sockets_end(), socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"ws://127.0.0.1:{silent.getsockname()[1]}/"
        with pytest.raises(PeerUnavailable, match=r"Microsoft's client does not connect"):
            hub_microsoft.joined(url, lambda message: None)


def test_a_machine_that_is_slow_keeps_its_session_for_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_client, "_RECOVERY_TIMEOUT", 30.0)
    monkeypatch.setenv(limits.VARIABLE, "1")
    hub_microsoft.keep_sessions()
    assert _client._RECOVERY_TIMEOUT == 30.0
    monkeypatch.setenv(limits.VARIABLE, "8")
    hub_microsoft.keep_sessions()
    assert _client._RECOVERY_TIMEOUT == 80.0
