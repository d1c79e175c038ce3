"""Microsoft's own Python SDKs, as they come from the registry, against `semel serve`."""

from __future__ import annotations

import itertools
import queue
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError, ResourceNotFoundError
from azure.messaging.webpubsubclient import WebPubSubClient
from azure.messaging.webpubsubclient.models import CallbackType, SendMessageError
from tests.interop.served import HUB, Served, is_answer
from websocket import WebSocketException

from semel.errors import PeerUnavailable
from semel.testing.limits import scaled

pytestmark = [
    pytest.mark.interop,
    pytest.mark.connected,
    pytest.mark.timeout(120),
    # the SDK's own thread that acknowledges does not expect its socket to be gone, and it leaves broken sockets open
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

WAIT_S = 30.0
Connect = Callable[..., "Subscriber"]


class Subscriber:
    """A client whose messages can be waited for. The SDK calls back in threads of their own, so they are sorted."""

    def __init__(self, url: str) -> None:
        self.messages: queue.Queue[Any] = queue.Queue()
        connected: queue.Queue[Any] = queue.Queue()
        # what the SDK retries by itself it sends under new ackIds, and so twice: see the how-to
        self.client = WebPubSubClient(url, message_retry_total=0, ack_timeout=scaled(5), start_timeout=scaled(5))
        for kind in (CallbackType.GROUP_MESSAGE, CallbackType.SERVER_MESSAGE):
            self.client.subscribe(kind, self.messages.put)
        self.client.subscribe(CallbackType.CONNECTED, connected.put)
        self._ack_ids = itertools.count(1)
        self.client.open()
        connected.get(timeout=scaled(WAIT_S))

    def join(self, group: str) -> None:
        self._ask(self.client.join_group, group)

    def leave(self, group: str) -> None:
        self._ask(self.client.leave_group, group)

    def send(self, group: str, data: Any, data_type: str = "text", **more: Any) -> None:
        self._ask(self.client.send_to_group, group, data, data_type, **more)

    def _ask(self, call: Callable[..., None], *arguments: Any, ack_id: int | None = None, **more: Any) -> None:
        """As the how-to says: the same ackId again until the server has answered. The SDK may miss an answer, and then
        says that none came; without a connection it says no at once. A Duplicate is an answer, and it returns."""
        number, until = ack_id or next(self._ack_ids), time.monotonic() + scaled(WAIT_S)
        while True:
            try:
                return call(*arguments, ack_id=number, **more)
            except (SendMessageError, WebSocketException) as error:
                if isinstance(error, SendMessageError) and is_answer(error):
                    raise
                assert time.monotonic() < until, f"{arguments} was never answered"
                time.sleep(0.05)

    def take(self, count: int) -> list[Any]:
        found = [self.messages.get(timeout=scaled(WAIT_S)) for _ in range(count)]
        return sorted(found, key=lambda message: message.sequence_id)

    def is_quiet(self) -> bool:
        """Nothing more has come by the time that an ack went there and back."""
        self.join("quiet")
        return self.messages.empty()

    def cut(self) -> None:
        """The connection breaks; no close frame is sent."""
        ws = self.client._ws
        assert ws is not None
        ws.sock.sock.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def connect(served: Served) -> Iterator[Connect]:
    opened: list[Subscriber] = []

    def make(user: str | None = None, roles: list[str] | None = None) -> Subscriber:
        opened.append(Subscriber(served.url(user, roles)))
        return opened[-1]

    yield make
    for each in opened:
        each.client.close()


def test_a_group_message_of_each_type_reaches_everybody(connect: Connect) -> None:
    alice, bob = connect("alice"), connect("bob")
    for each in (alice, bob):
        each.join("types")
    alice.send("types", "text")
    alice.send("types", {"a": [1, "ü"]}, "json")
    alice.send("types", memoryview(b"\x00\xff"), "binary")
    for each in (alice, bob):
        found = each.take(3)
        assert [bytes(m.data) if m.data_type == "binary" else m.data for m in found] == [
            "text", {"a": [1, "ü"]}, b"\x00\xff",
        ]  # fmt: skip
        assert {m.from_user_id for m in found} == {"alice"}


def test_no_echo_and_leaving(connect: Connect) -> None:
    alice, bob = connect("alice"), connect("bob")
    for each in (alice, bob):
        each.join("echo")
    alice.send("echo", "one", no_echo=True)
    assert [m.data for m in bob.take(1)] == ["one"]
    assert alice.is_quiet()
    bob.leave("echo")
    alice.send("echo", "two")
    alice.take(1)
    assert bob.is_quiet()


def test_the_same_ack_id_is_taken_once(connect: Connect) -> None:
    alice = connect("alice")
    alice.join("twice")
    for _ in range(2):
        alice.send("twice", "once", ack_id=555)
    assert [m.data for m in alice.take(1)] == ["once"]
    assert alice.is_quiet()


def test_what_is_not_allowed_is_forbidden(connect: Connect) -> None:
    alice = connect("alice", roles=["webpubsub.sendToGroup.mine"])
    alice.send("mine", "x")
    with pytest.raises(SendMessageError) as refused:
        alice.send("other", "x")
    assert refused.value.error_detail is not None
    assert refused.value.error_detail.name == "Forbidden"


def test_a_wrong_token_is_refused_with_401(served: Served) -> None:
    url = f"ws://127.0.0.1:{served.port}/client/hubs/{HUB}?access_token=nonsense"
    with pytest.raises(Exception, match="401"):
        WebPubSubClient(url, reconnect_retry_total=0, start_timeout=scaled(10)).open()


def test_the_service_sends_and_asks(served: Served, connect: Connect) -> None:
    service = served.service
    alice = connect("alice-of-the-service")
    alice.join("served")
    connection = alice.client._connection_id
    service.send_to_all("all", content_type="text/plain")
    service.send_to_group("served", {"to": "group"})
    service.send_to_user("alice-of-the-service", b"\x01", content_type="application/octet-stream")
    service.send_to_connection(connection, "one", content_type="text/plain")
    found = alice.take(4)
    assert [bytes(m.data) if m.data_type == "binary" else m.data for m in found] == [
        "all", {"to": "group"}, b"\x01", "one",
    ]  # fmt: skip
    assert service.connection_exists(connection)
    assert service.group_exists("served")
    assert service.user_exists("alice-of-the-service")
    assert not service.group_exists("nobody-is-here")
    assert [m.connection_id for m in service.list_connections(group="served")] == [connection]
    with pytest.raises(ResourceNotFoundError):
        service.add_connection_to_group("served", "no-such-connection")
    with pytest.raises(HttpResponseError, match="Syntax error at position 14"):
        service.send_to_all("x", content_type="text/plain", filter="invalid filter")


def test_the_service_grants_revokes_and_closes(served: Served, connect: Connect) -> None:
    service = served.service
    alice = connect("closed-one", roles=[])
    connection = alice.client._connection_id
    service.grant_permission("sendToGroup", connection, target_name="g")
    assert service.has_permission("sendToGroup", connection, target_name="g")
    alice.send("g", "x")
    service.revoke_permission("sendToGroup", connection, target_name="g")
    assert not service.has_permission("sendToGroup", connection, target_name="g")
    gone: queue.Queue[Any] = queue.Queue()
    alice.client.subscribe(CallbackType.DISCONNECTED, gone.put)
    service.close_connection(connection, reason="enough")
    gone.get(timeout=scaled(WAIT_S))
    assert not service.connection_exists(connection)


def test_a_cut_connection_comes_back_to_its_session(served: Served, connect: Connect) -> None:
    alice, service = connect("cut"), served.service
    alice.join("cuts")
    connection = alice.client._connection_id
    for number in range(3):
        alice.cut()
        service.send_to_group("cuts", f"m{number}", content_type="text/plain")
        assert [m.data for m in alice.take(1)] == [f"m{number}"]
    assert alice.client._connection_id == connection


def test_kill_9_during_traffic_loses_nothing_and_doubles_nothing(tmp_path: Path) -> None:
    server = Served(tmp_path)
    alice, bob = (Subscriber(server.url(user)) for user in ("alice", "bob"))
    try:
        for each in (alice, bob):
            each.join("g")
        connections = {each.client._connection_id for each in (alice, bob)}
        received: list[object] = []
        for number in range(1, 31):
            if number % 10 == 0:
                # its library gives a connection up after 30 s: let it be back from the last kill before the next one
                received += [m.data for m in bob.take(max(0, number - 10) - len(received))]
                server.kill()
                server.start()
            alice.send("g", f"m{number}")
        received += [m.data for m in bob.take(30 - len(received))]
        assert received == [f"m{number}" for number in range(1, 31)]
        assert {each.client._connection_id for each in (alice, bob)} == connections
        assert bob.is_quiet()
    finally:
        for each in (alice, bob):
            each.client.close()
        server.stop()


@pytest.mark.one_node
def test_a_second_server_on_the_same_file_is_refused(served: Served) -> None:
    with pytest.raises(PeerUnavailable, match="another server uses"):
        Served(served.folder)
