"""What only Microsoft's JavaScript client can do: streams, invocations, and the protocol of group state.

The client that the lock names has methods for streams and invocations. For group state its protocol can write and read
every message, but there is no method that sends them: here they go over a bare WebSocket.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.interop.broken_link import BrokenLink
from tests.interop.javascript import WAIT_S, JavaScriptError, Node
from tests.interop.javascript_clients import Connect, Service, Wire
from tests.interop.served import HUB, ROLES, Served, configured

from semel.testing.byte_faults import ByteFault
from semel.testing.limits import scaled

pytestmark = [pytest.mark.interop, pytest.mark.connected, pytest.mark.timeout(120)]

CONFIG = """
[[pubsub.hub]]
name = "{hub}"
[[pubsub.hub.handler]]
url = "http://127.0.0.1:{port}/{{event}}"
user_events = "*"
"""
END = {"end": True}


class Handler(BaseHTTPRequestHandler):
    """Answers `echo` with what it was sent, refuses `fail`, and waits at `hang` until whoever asked is gone."""

    protocol_version = "HTTP/1.1"

    def do_OPTIONS(self) -> None:
        self._answer(200, {"WebHook-Allowed-Origin": "127.0.0.1"})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        event = self.headers["ce-eventName"]
        self.told.put((event, body))
        if event == "hang":
            self.told.put(("left alone", self.rfile.read(1)))
            self.close_connection = True
        elif event == "fail":
            self._answer(400, {})
        elif event == "echo":
            self._answer(200, {"Content-Type": self.headers["content-type"]}, body)
        else:
            self._answer(204, {})

    @property
    def told(self) -> queue.Queue[tuple[str, bytes]]:
        return self.server.told  # type: ignore[attr-defined, no-any-return]

    def _answer(self, status: int, headers: dict[str, str], body: bytes = b"") -> None:
        self.send_response(status)
        for name, value in {**headers, **({"Content-Length": str(len(body))} if status != 204 else {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


@pytest.fixture(scope="module")
def handler() -> Iterator[ThreadingHTTPServer]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.told = queue.Queue()  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def told(handler: ThreadingHTTPServer) -> queue.Queue[tuple[str, bytes]]:
    """What the event handler has heard."""
    handler.told = queue.Queue()  # type: ignore[attr-defined]
    return handler.told  # type: ignore[attr-defined, no-any-return]


@pytest.fixture(scope="module")
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, handler: ThreadingHTTPServer
) -> Iterator[Served]:
    with configured(
        request, tmp_path_factory.mktemp("served"), CONFIG.format(hub=HUB, port=handler.server_port)
    ) as server:
        yield server


# -- streams


def data_of(parts: list[Any]) -> list[Any]:
    return [part["data"] for part in parts]


def test_a_stream_comes_part_by_part_to_everybody_in_the_group(connect: Connect) -> None:
    alice, bob = connect("alice", groups=["streamed"]), connect("bob", groups=["streamed"])
    writer = alice.stream("streamed", streamId="s1")
    given = [("one", "text"), ({"two": [2]}, "json"), (b"\x03\xff", "binary"), (b"\x0a\x01x", "protobuf")]
    for content, kind in given:
        writer.do("write", content, kind)
    writer.do("end")
    for each in (alice, bob):
        assert each.heard("stream") == {"groupName": "streamed", "streamId": "s1"}
        *parts, last = each.read("s1", 5)
        assert [(part["data"], part["dataType"]) for part in parts] == given
        assert [part["stream"]["streamSequenceId"] for part in parts] == [1, 2, 3, 4]
        assert {part["fromUserId"] for part in parts} == {"alice"}
        assert last == END
    with pytest.raises(JavaScriptError, match="completed"):
        writer.do("write", "late", "text")


def test_a_stream_without_echo_and_one_that_its_sender_gives_up(connect: Connect) -> None:
    alice, bob = connect("alice", groups=["given-up"]), connect("bob", groups=["given-up"])
    writer = alice.stream("given-up", streamId="s2", noEcho=True)
    writer.do("write", "half", "text")
    writer.do("abort", {"message": "no more", "userErrorCode": "E7"})
    [part, last] = bob.read("s2", 2)
    assert part["data"] == "half"
    assert (last["error"]["name"], last["error"]["message"]) == ("UserError", "no more")
    assert last["error"]["userErrorCode"] == "E7"
    alice.do("sendToGroup", "given-up", "after", "text")
    assert data_of(alice.messages(1)) == ["after"]
    assert alice.has_no_stream()


def test_a_stream_that_is_not_allowed_does_not_begin(connect: Connect) -> None:
    alice = connect("alice", roles=["webpubsub.sendToGroup.mine"])
    alice.stream("mine").do("end")
    with pytest.raises(JavaScriptError, match="group"):
        alice.stream("other")


def test_a_stream_of_which_nothing_is_heard_is_ended_on_both_sides(connect: Connect) -> None:
    alice, bob = connect("alice"), connect("bob", groups=["idle"])
    writer = alice.stream("idle", streamId="s3", idleTimeoutInMs=int(scaled(300)))
    writer.do("write", "one", "text")
    assert writer.error()["name"] == "IdleTimeout"
    [part, last] = bob.read("s3", 2)
    assert (part["data"], last["error"]["name"]) == ("one", "IdleTimeout")


def test_a_stream_goes_on_over_broken_connections(served: Served, connect: Connect) -> None:
    with BrokenLink(served.port) as link:
        bob = connect("bob", groups=["cut"])
        alice = connect("alice", port=link.port)
        writer = alice.stream("cut", streamId="s4")
        for number in range(12):
            if number in (4, 8):
                link.strike(ByteFault.TORN, "down" if number == 4 else "up")
            writer.do("write", f"part {number}", "text")
        writer.do("end")
        *parts, last = bob.read("s4", 13)
        assert data_of(parts) == [f"part {number}" for number in range(12)]
        assert last == END
        alice.do("stop")


@pytest.mark.one_node
def test_a_stream_goes_on_after_kill_9(tmp_path: Path, connect: Connect) -> None:
    server = Served(tmp_path)
    try:
        alice, bob = connect("alice", port=server.port), connect("bob", port=server.port, groups=["killed"])
        writer = alice.stream("killed", streamId="s5")
        for number in range(10):
            if number == 5:
                server.kill()
                server.start()
            writer.do("write", f"part {number}", "text")
        writer.do("end")
        *parts, last = bob.read("s5", 11)
        assert data_of(parts) == [f"part {number}" for number in range(10)]
        assert last == END
    finally:
        server.stop()


# -- events and invocations


def test_an_event_is_answered_before_its_ack(connect: Connect, told: queue.Queue[tuple[str, bytes]]) -> None:
    alice = connect()
    first, second = (alice.do("sendEvent", "echo", {"n": 1}, "json", {"ackId": 900}) for _ in range(2))
    assert (first["isDuplicated"], second["isDuplicated"]) == (False, True)
    assert data_of(alice.messages(1, "server-message")) == [{"n": 1}]
    with pytest.raises(JavaScriptError) as failed:
        alice.do("sendEvent", "fail", "x", "text")
    assert failed.value.detail["name"] == "InternalServerError"
    assert [told.get(timeout=scaled(WAIT_S))[0] for _ in range(2)] == ["echo", "fail"]
    assert alice.is_quiet()


def test_an_invocation_is_answered_by_the_handler(connect: Connect) -> None:
    alice = connect()
    for content, kind in (({"n": [1, "ü"]}, "json"), ("text", "text"), (b"\x00\xff", "binary")):
        answer = alice.do("invokeEvent", "echo", content, kind)
        assert (answer["data"], answer["dataType"]) == (content, kind)
    nothing = alice.do("invokeEvent", "other", "x", "text", {"invocationId": "mine"})
    assert (nothing["invocationId"], nothing.get("data")) == ("mine", None)
    with pytest.raises(JavaScriptError, match="InvocationError") as failed:
        alice.do("invokeEvent", "fail", "x", "text")
    assert failed.value.detail["name"] == "InternalServerError"
    assert alice.is_quiet()


def test_an_invocation_that_is_cancelled_leaves_the_handler_alone(
    node: Node, connect: Connect, told: queue.Queue[tuple[str, bytes]]
) -> None:
    alice = connect()
    options = {"invocationId": "gone", "abortSignal": {"$signal": "given-up"}}
    hanging = node.begin(of=alice.name, do="invokeEvent", args=["hang", "x", "text", options])
    assert told.get(timeout=scaled(WAIT_S)) == ("hang", b"x")
    node.ask(of="given-up", do="abort")
    with pytest.raises(JavaScriptError, match="cancelled by abortSignal"):
        hanging.result(scaled(WAIT_S))
    assert told.get(timeout=scaled(WAIT_S)) == ("left alone", b"")
    assert alice.do("invokeEvent", "echo", "y", "text", {"invocationId": "gone"})["data"] == "y"


# -- group state


def test_group_state_as_the_clients_protocol_writes_and_reads_it(node: Node, service: Service) -> None:
    alice, bob = (Wire(node, service.url(user, ROLES, ["seen"])) for user in ("alice", "bob"))
    assert alice.asked("setGroupState", 1, group="seen", state={"mood": "good"})["success"]
    assert bob.asked("subscribeGroupState", 1, group="seen")["success"]
    snapshot = bob.heard("groupStateSnapshot")
    [item] = snapshot["items"]
    assert (snapshot["group"], item["connectionId"], item["userId"]) == ("seen", alice.id, "alice")
    assert item["state"] == {"mood": "good"}
    assert alice.asked("setGroupState", 2, group="seen", state={"mood": "better"})["success"]
    [changed] = bob.heard("groupStateUpdate")["items"]
    assert (changed["connectionId"], changed["state"]) == (alice.id, {"mood": "better"})
    assert changed["updatedAt"] > item["updatedAt"]
    assert alice.asked("setGroupState", 3, group="seen")["success"]
    [cleared] = bob.heard("groupStateUpdate")["items"]
    assert (cleared["connectionId"], "state" in cleared) == (alice.id, False)
    assert bob.asked("unsubscribeGroupState", 2, group="seen")["success"]
    assert alice.asked("setGroupState", 4, group="seen", state={"mood": "unseen"})["success"]
    assert bob.asked("subscribeGroupState", 3, group="seen")["success"]
    assert bob.heard("groupStateSnapshot")["items"][0]["state"] == {"mood": "unseen"}
    for each in (alice, bob):
        each.stop()
