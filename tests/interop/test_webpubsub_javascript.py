"""Microsoft's own JavaScript SDKs, as they come from the registry, against `semel serve`."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.interop.broken_link import BrokenLink
from tests.interop.javascript import JavaScriptError, Node
from tests.interop.javascript_clients import ONCE, Connect, Service
from tests.interop.served import Served

from semel.testing.byte_faults import ByteFault

pytestmark = [pytest.mark.interop, pytest.mark.connected, pytest.mark.timeout(120)]


def test_a_group_message_of_each_type_reaches_everybody(connect: Connect) -> None:
    alice, bob = connect("alice"), connect("bob", groups=["types"])
    alice.do("joinGroup", "types")
    alice.do("sendToGroup", "types", "text", "text")
    alice.do("sendToGroup", "types", {"a": [1, "ü", None]}, "json")
    alice.do("sendToGroup", "types", b"\x00\xff", "binary")
    alice.do("sendToGroup", "types", b"\x0a\x01x", "protobuf")
    for each in (alice, bob):
        found = each.messages(4)
        assert [message["data"] for message in found] == ["text", {"a": [1, "ü", None]}, b"\x00\xff", b"\x0a\x01x"]
        assert [message["dataType"] for message in found] == ["text", "json", "binary", "protobuf"]
        assert {message["fromUserId"] for message in found} == {"alice"}
        assert {message["group"] for message in found} == {"types"}


def test_no_echo_and_leaving(connect: Connect) -> None:
    alice, bob = connect("alice"), connect("bob")
    for each in (alice, bob):
        each.do("joinGroup", "echo")
    alice.do("sendToGroup", "echo", "one", "text", {"noEcho": True})
    assert [message["data"] for message in bob.messages(1)] == ["one"]
    assert alice.is_quiet()
    bob.do("leaveGroup", "echo")
    alice.do("sendToGroup", "echo", "two", "text")
    alice.messages(1)
    assert bob.is_quiet()


def test_the_same_ack_id_is_taken_once(connect: Connect) -> None:
    alice = connect()
    alice.do("joinGroup", "twice")
    first, second = (alice.do("sendToGroup", "twice", "once", "text", {"ackId": 555}) for _ in range(2))
    assert (first["isDuplicated"], second["isDuplicated"]) == (False, True)
    assert [message["data"] for message in alice.messages(1)] == ["once"]
    assert alice.is_quiet()


def test_what_is_not_allowed_is_forbidden(connect: Connect) -> None:
    alice = connect(roles=["webpubsub.sendToGroup.mine"])
    alice.do("sendToGroup", "mine", "x", "text")
    with pytest.raises(JavaScriptError) as refused:
        alice.do("sendToGroup", "other", "x", "text")
    assert refused.value.detail["name"] == "Forbidden"
    with pytest.raises(JavaScriptError) as refused:
        alice.do("joinGroup", "mine")
    assert refused.value.detail["name"] == "Forbidden"


def test_the_service_sends(service: Service, connect: Connect) -> None:
    alice, bob = connect("js-alice", groups=["sent"]), connect("js-bob")
    service("sendToAll", "all", {"contentType": "text/plain", "filter": "userId eq 'js-alice'"})
    service("sendToAll", {"to": "group"}, group="sent")
    service("sendToUser", "js-alice", b"\x01")
    service("sendToConnection", alice.id, "one", {"contentType": "text/plain"})
    service("sendToAll", "rest", {"contentType": "text/plain", "excludedConnections": [bob.id]})
    assert [m["data"] for m in alice.messages(4, "server-message")] == ["all", b"\x01", "one", "rest"]
    assert [m["data"] for m in alice.messages(1)] == [{"to": "group"}]
    assert bob.is_quiet()


def test_the_service_asks_and_changes_groups(service: Service, connect: Connect) -> None:
    alice = connect("js-asked")
    service("addConnection", alice.id, group="added")
    assert service("connectionExists", alice.id)
    assert service("groupExists", "added")
    assert service("userExists", "js-asked")
    service("removeConnection", alice.id, group="added")
    assert not service("groupExists", "added")
    assert not service("connectionExists", "nobody")
    assert not service("userExists", "nobody")
    service("addUser", "js-asked", group="added")
    service("addConnectionsToGroups", ["more", "and-more"], "userId eq 'js-asked'")
    assert service("groupExists", "added")
    assert service("groupExists", "and-more")
    service("removeConnectionsFromGroups", ["more"], "userId eq 'js-asked'")
    assert not service("groupExists", "more")
    service("removeUser", "js-asked", group="added")
    assert not service("groupExists", "added")
    service("removeConnectionFromAllGroups", alice.id)
    assert not service("groupExists", "and-more")
    with pytest.raises(JavaScriptError) as missing:
        service("addConnection", "nobody", group="added")
    assert missing.value.status == 404
    with pytest.raises(JavaScriptError, match="Syntax error at position 14") as wrong:
        service("sendToAll", "x", {"contentType": "text/plain", "filter": "invalid filter"})
    assert wrong.value.status == 400


def test_the_service_lists_connections_page_by_page(service: Service, connect: Connect) -> None:
    ids = {connect(f"user-{number}", groups=["listed"]).id for number in range(6)}
    pages = service.pages("listed", maxPageSize=2, top=5)
    assert [len(page) for page in pages] == [2, 2, 1]
    assert len({each["connectionId"] for page in pages for each in page} & ids) == 5
    everyone = [each for page in service.pages("listed", maxPageSize=4) for each in page]
    assert {each["connectionId"] for each in everyone} == ids
    assert {each["userId"] for each in everyone} == {f"user-{number}" for number in range(6)}


def test_the_service_grants_and_revokes(service: Service, connect: Connect) -> None:
    alice = connect(roles=[])
    service("grantPermission", alice.id, "sendToGroup", {"targetName": "g"})
    assert service("hasPermission", alice.id, "sendToGroup", {"targetName": "g"})
    alice.do("sendToGroup", "g", "x", "text")
    service("revokePermission", alice.id, "sendToGroup", {"targetName": "g"})
    assert not service("hasPermission", alice.id, "sendToGroup", {"targetName": "g"})
    with pytest.raises(JavaScriptError) as refused:
        alice.do("sendToGroup", "g", "x", "text")
    assert refused.value.detail["name"] == "Forbidden"


def test_who_is_closed_connects_anew_and_joins_its_groups_again(service: Service, connect: Connect) -> None:
    alice = connect("js-closed", options={**ONCE, "reconnectRetryOptions": {"retryDelayInMs": 10}})
    alice.do("joinGroup", "rejoined")
    service("closeConnection", alice.id, {"reason": "enough"})
    gone = alice.heard("disconnected")
    assert (gone["connectionId"], gone["message"]["message"]) == (alice.id, "enough")
    assert alice.heard("connected")["connectionId"] != alice.id
    assert not service("connectionExists", alice.id)
    service("sendToAll", "back", {"contentType": "text/plain"}, group="rejoined")
    assert [message["data"] for message in alice.messages(1)] == ["back"]


def test_a_broken_connection_comes_back_to_its_session(served: Served, service: Service, connect: Connect) -> None:
    with BrokenLink(served.port) as link:
        alice = connect("js-cut", port=link.port)
        alice.do("joinGroup", "cuts")
        for number, fault in enumerate((ByteFault.END, ByteFault.RESET)):
            link.strike(fault)
            service("sendToAll", f"m{number}", {"contentType": "text/plain"}, group="cuts")
            assert [message["data"] for message in alice.messages(1)] == [f"m{number}"]
        assert service("connectionExists", alice.id)
        alice.do("stop")


@pytest.mark.parametrize(("given", "copies"), [({"ackId": 555}, 1), ({}, 2)], ids=["given", "by-default"])
def test_an_ack_that_is_lost_and_the_ack_id_that_it_takes(
    served: Served, connect: Connect, given: dict[str, int], copies: int
) -> None:
    """The SDK sends again by itself: under the ackId that it was given, and under a new one if it was given none."""
    retries = {"messageRetryOptions": {"maxRetries": 50, "retryDelayInMs": 50, "mode": "Fixed"}}
    with BrokenLink(served.port) as link:
        alice, bob = connect("js-lost", port=link.port, options=retries), connect("js-told")
        bob.do("joinGroup", f"lost-{copies}")
        link.strike(ByteFault.TORN, "down")
        result = alice.do("sendToGroup", f"lost-{copies}", "once", "text", given)
        assert result["isDuplicated"] is (copies == 1)
        assert [message["data"] for message in bob.messages(copies)] == ["once"] * copies
        assert bob.is_quiet()
        alice.do("stop")


@pytest.mark.one_node
def test_kill_9_during_traffic_loses_nothing_and_doubles_nothing(tmp_path: Path, node: Node, connect: Connect) -> None:
    server = Served(tmp_path)
    try:
        alice, bob = (connect(user, port=server.port) for user in ("alice", "bob"))
        for each in (alice, bob):
            each.do("joinGroup", "g")
        for number in range(1, 31):
            if number == 15:
                server.kill()
                server.start()
            alice.send_once("g", f"m{number}", "text", 1000 + number)
        assert [message["data"] for message in bob.messages(30)] == [f"m{number}" for number in range(1, 31)]
        assert bob.is_quiet()
        still = Service(node, server.port)
        assert still("connectionExists", alice.id)
        assert still("connectionExists", bob.id)
    finally:
        server.stop()
