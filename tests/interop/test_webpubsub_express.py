"""Event handlers that are made with Microsoft's middleware for Express, as it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.interop.javascript import WAIT_S, JavaScriptError, Node
from tests.interop.javascript_clients import Connect, Service
from tests.interop.served import HUB, ROLES, Served, configured

from semel.testing.limits import scaled

pytestmark = [pytest.mark.interop, pytest.mark.connected, pytest.mark.timeout(120)]

HANDLER = "handler"
# one that asks to be validated by name, with ports as Microsoft's connection strings have them
ALLOWED = {"path": "/events", "allowedEndpoints": ["https://other.example", "http://127.0.0.1:8080"]}
CONFIG = """
[[pubsub.hub]]
name = "{hub}"
[[pubsub.hub.handler]]
url = "http://127.0.0.1:{port}/events/{{event}}"
system_events = ["connect", "connected", "disconnected", "joined", "left"]
user_events = "*"
"""


@pytest.fixture(scope="module")
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, node: Node) -> Iterator[Served]:
    node.ask(make="handler", name=HANDLER, args=[HUB, ALLOWED])
    port = node.ask(of=HANDLER, do="port")
    node.lasting["make handler"] = {"make": "handler", "name": HANDLER, "args": [HUB, ALLOWED, port]}
    with configured(request, tmp_path_factory.mktemp("served"), CONFIG.format(hub=HUB, port=port)) as server:
        yield server
    del node.lasting["make handler"]
    node.begin(of=HANDLER, do="stop").result(scaled(WAIT_S))


def heard(node: Node, event: str) -> Any:
    return node.heard(HANDLER, event).get(timeout=scaled(WAIT_S))


def test_a_handler_hears_of_a_client_from_its_coming_to_its_going(
    node: Node, connect: Connect, service: Service
) -> None:
    node.forget(HANDLER)  # of the clients of other tests
    alice = connect("alice", roles=[], groups=["token"])
    came = heard(node, "connect")
    assert (came["claims"]["sub"], came["context"]["states"]) == (["alice"], {})
    assert came["subprotocols"] == ["json.reliable.webpubsub.azure.v1"]
    connected = heard(node, "connected")["context"]
    assert (connected["userId"], connected["states"]) == ("alice!", {"came": "alice"})
    assert connected["connectionId"] == came["context"]["connectionId"]
    assert connected["signature"] == came["context"]["signature"]

    alice.do("joinGroup", "more")
    assert heard(node, "joined")["group"] == "more"
    alice.do("leaveGroup", "chosen")
    assert heard(node, "left")["group"] == "chosen"
    service("closeConnection", connected["connectionId"], {"reason": "enough"})
    while (gone := heard(node, "disconnected"))["context"]["connectionId"] != connected["connectionId"]:
        """A client of another test."""
    assert (gone["reason"], gone["context"]["states"]) == ("enough", {"came": "alice"})


@pytest.mark.parametrize(
    ("data", "kind"), [("grüß", "text"), ({"a": [1, None]}, "json"), (b"\x00\xff", "binary")], ids=str
)
def test_an_event_is_answered_and_the_state_goes_along(node: Node, connect: Connect, data: Any, kind: str) -> None:
    alice = connect("alice")
    for states in ({"came": "alice"}, {"came": "alice", "last": "echo"}):
        alice.do("sendEvent", "echo", data, kind)
        told = heard(node, "user")
        assert (told["dataType"], told["context"]["states"]) == (kind, states)
        message = alice.heard("server-message")["message"]
        assert (message["dataType"], message["data"]) == (kind, data)


def test_who_says_nothing_and_who_fails(node: Node, connect: Connect) -> None:
    alice = connect("alice")
    alice.do("sendEvent", "quiet", "x", "text")
    with pytest.raises(JavaScriptError) as caught:
        alice.do("sendEvent", "fail", "x", "text")
    assert caught.value.detail["name"] == "InternalServerError"
    assert "private" not in str(caught.value)
    assert [heard(node, "user")["context"]["eventName"] for _ in range(2)] == ["quiet", "fail"]


def test_who_is_not_let_in_hears_what_the_handler_says(node: Node, service: Service) -> None:
    url = service.url("mallory", ROLES, [])
    node.ask(make="client", name="mallory", args=[f"{url}&deny=1", {"autoReconnect": False}])
    with pytest.raises(JavaScriptError, match="403"):
        node.ask(of="mallory", do="start")
