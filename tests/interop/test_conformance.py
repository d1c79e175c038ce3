"""The protocols as raw frames and raw HTTP against `semel serve`: what clients other than Microsoft's rely on."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any, Protocol
from urllib.parse import quote

import httpx
import jwt
import pytest
from tests.interop.served import HUB, KEY, ROLES, Pair, Served
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol as Offered

from semel.pubsub.protocol.codecs import codec_for
from semel.pubsub.protocol.frames import Frame, Subprotocol
from semel.pubsub.protocol.frames_protobuf import ProtobufCodec
from semel.pubsub.protocol.messages import Data, DataType, GroupMessage, SendToGroup, ServerMessage
from semel.testing.limits import scaled, wait_until

pytestmark = [pytest.mark.interop, pytest.mark.connected, pytest.mark.timeout(60)]

WAIT_S = 30.0
API = f"/api/hubs/{HUB}"
JSON, RELIABLE = Subprotocol.JSON.value, Subprotocol.JSON_RELIABLE.value
TEXT = {"content-type": "text/plain"}
PROTOBUF = ProtobufCodec()


class Socket:
    """A WebSocket that says what comes in, frame by frame."""

    def __init__(self, wire: ClientConnection) -> None:
        self.wire = wire
        self.connected: dict[str, Any] = {}

    def greeted(self) -> Socket:
        if self.wire.subprotocol in (JSON, RELIABLE):
            self.connected = json.loads(self.take())
        return self

    def take(self) -> Frame:
        return self.wire.recv(timeout=scaled(WAIT_S))

    def say(self, **members: Any) -> None:
        self.wire.send(json.dumps(members))

    def ask(self, **members: Any) -> Frame:
        self.say(**members)
        return self.take()

    def is_quiet(self) -> bool:
        """Nothing has come by the time that a ping went there and back."""
        return self.ask(type="ping") == '{"type":"pong"}'

    def end(self) -> int:
        """The code with which the server closes it."""
        with suppress(ConnectionClosed):
            while True:
                self.take()
        assert self.wire.close_code is not None
        return self.wire.close_code

    def cut(self) -> None:
        self.wire.socket.close()


class Enter(Protocol):
    def __call__(
        self, protocol: str | None = RELIABLE, query: str = "", path: str = f"/client/hubs/{HUB}", **claims: Any
    ) -> Socket: ...


@pytest.fixture
def enter(served: Served) -> Iterator[Enter]:
    with ExitStack() as opened:

        def make(
            protocol: str | None = RELIABLE, query: str = "", path: str = f"/client/hubs/{HUB}", **claims: Any
        ) -> Socket:
            said = {"sub": "ann", "role": ROLES, "exp": time.time() + 60, "aud": f"{served.endpoint}/client/hubs/{HUB}"}
            token = jwt.encode({**said, **claims}, KEY, "HS256")
            address = f"{served.endpoint.replace('http', 'ws')}{path}?access_token={token}{query}"
            offered = None if protocol is None else [Offered(name) for name in protocol.split(",")]
            socket = Socket(opened.enter_context(connect(address, subprotocols=offered, proxy=None)))
            with suppress(ConnectionClosed):  # who is turned away is let in first
                socket.greeted()
            return socket

        yield make


def call(
    served: Served,
    method: str,
    path: str,
    *,
    query: str = "api-version=2024-12-01",
    headers: dict[str, str] | None = None,
    body: bytes | str = b"",
) -> httpx.Response:
    address = f"{served.endpoint}{path}" + (f"?{query}" if query else "")
    token = jwt.encode({"aud": address, "exp": time.time() + 60}, KEY, "HS256")
    return httpx.request(
        method, address, headers={"authorization": f"Bearer {token}", **(headers or {})}, content=body, trust_env=False
    )


def publish(served: Served, group: str, text: str) -> None:
    assert call(served, "POST", f"{API}/groups/{group}/:send", headers=TEXT, body=text).status_code == 202


# -- what is written, to the letter


def test_what_the_server_writes_to_the_letter(enter: Enter) -> None:
    ann, nobody = enter(), enter(JSON, sub=None)
    assert list(ann.connected) == ["type", "event", "userId", "connectionId", "reconnectionToken"]
    assert nobody.connected == {
        "type": "system", "event": "connected", "userId": None, "connectionId": nobody.connected["connectionId"],
    }  # fmt: skip
    assert ann.ask(type="ping") == '{"type":"pong"}'
    assert ann.ask(type="JOINGROUP", group="g", ackId=0) == '{"type":"ack","ackId":0,"success":true}'
    assert ann.ask(type="joinGroup", group="g", ackId=0) == (
        '{"type":"ack","ackId":0,"success":false,'
        '"error":{"name":"Duplicate","message":"Message with ack-id: 0 has been processed"}}'
    )
    assert ann.ask(type="leaveGroup", group="h", ackId=2**64 - 1) == (
        '{"type":"ack","ackId":18446744073709551615,"success":true}'
    )
    nobody.say(type="sendToGroup", group="g", dataType="Text", data="ü</>", metadata={"k": "v"})
    frame = str(ann.take())
    head, _, number = frame.rpartition(",")
    assert head == (
        '{"type":"message","from":"group","group":"g","fromUserId":null,"dataType":"text","data":"ü</>",'
        '"metadata":{"k":"v"}'
    )
    assert number.startswith('"sequenceId":')


@pytest.mark.parametrize(("type", "verb"), [("joinGroup", "join"), ("leaveGroup", "leave"), ("sendToGroup", "send to")])
def test_what_is_forbidden_is_said_in_the_words_of_the_service_and_may_be_tried_again(
    enter: Enter, type: str, verb: str
) -> None:
    ann = enter(JSON, role=[])
    for _ in range(2):
        assert ann.ask(type=type, group="g", ackId=1, data=1) == (
            '{"type":"ack","ackId":1,"success":false,"error":{"name":"Forbidden",'
            f'"message":"The client does not have permission to {verb} group \'g\'."}}}}'
        )


def test_an_event_that_nobody_handles_fails_and_the_connection_stays(enter: Enter) -> None:
    ann = enter()
    ann.say(type="event", event="e", data=1)
    answer = json.loads(ann.ask(type="event", event="e", data=1, ackId=1))
    assert (answer["success"], answer["error"]["name"]) == (False, "InternalServerError")
    assert ann.is_quiet()
    raw = enter(None)
    raw.wire.send("hello")
    assert raw.end() == 1011


# -- violations


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (b"{}", 1003),
        ("{", 1007),
        ("[]", 1007),
        ('{"type":"unheardOf"}', 1007),
        ('{"type":"joinGroup","group":" "}', 1007),
        ('{"type":"joinGroup","group":"g","ackId":18446744073709551616}', 1007),
        ('{"type":"sendToGroup","group":"g"}', 1007),
        ('{"type":"sendToGroup","group":"g","data":null}', 1007),
        ('{"type":"sendToGroup","group":"g","data":1,"ttlSeconds":301}', 1007),
        ('{"type":"event","event":"1","data":1}', 1007),
        ("x" * (1024 * 1024 + 1), 1009),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_violation_closes_the_socket_and_not_the_session(enter: Enter, frame: Frame, code: int) -> None:
    ann = enter()
    ann.wire.send(frame)
    assert ann.end() == code
    assert back(enter, ann).is_quiet()


def test_a_sequence_ack_of_what_was_never_sent_closes_the_socket_and_not_the_session(
    served: Served, enter: Enter
) -> None:
    ann = enter()
    ann.say(type="sequenceAck", sequenceId=2**53 - 1)
    # one of several nodes cannot know what another has sent, so it does not blame the client
    assert ann.end() == (1011 if isinstance(served, Pair) else 1008)
    assert back(enter, ann).is_quiet()


def test_a_sequence_ack_of_what_was_never_sent_means_nothing_on_a_plain_connection(enter: Enter) -> None:
    ann = enter(JSON)
    ann.say(type="sequenceAck", sequenceId=2**63)
    assert ann.is_quiet()


# -- every type of data, from everybody to everybody

ANY = b"\x0a\x03abc\x12\x01x"
FORMS = [
    (Data(DataType.TEXT, "tü".encode()), '"dataType":"text","data":"tü"', "tü"),
    (Data(DataType.JSON, b'{"a": 1.0}'), '"dataType":"json","data":{"a": 1.0}', '{"a": 1.0}'),
    (Data(DataType.JSON, b'"s"'), '"dataType":"json","data":"s"', '"s"'),
    (Data(DataType.BINARY, b"\x00\xff"), '"dataType":"binary","data":"AP8="', b"\x00\xff"),
    (Data(DataType.PROTOBUF, ANY), '"dataType":"protobuf","data":"CgNhYmMSAXg="', ANY),
]


@pytest.mark.parametrize("sender", [Subprotocol.JSON, Subprotocol.PROTOBUF_RELIABLE])
def test_data_of_every_type_between_all_protocols(enter: Enter, sender: Subprotocol) -> None:
    group = {"webpubsub.group": "all"}
    ann, raw, bob = enter(JSON, **group), enter(None, **group), enter(Subprotocol.PROTOBUF, **group)
    bob.take()
    other = enter(sender)
    for data, as_json, as_raw in FORMS:
        other.wire.send(codec_for(sender).encode_request(SendToGroup("all", data)))  # type: ignore[union-attr]
        head = '{"type":"message","from":"group","group":"all","fromUserId":"ann",'
        assert ann.take() == f"{head}{as_json}}}"
        assert raw.take() == as_raw
        assert PROTOBUF.decode_response(bob.take()) == GroupMessage("all", data)


def test_a_call_reaches_every_protocol(served: Served, enter: Enter) -> None:
    ann, raw, bob = enter(JSON), enter(None), enter(Subprotocol.PROTOBUF)
    bob.take()
    sent = call(served, "POST", f"{API}/:send", headers={"content-type": "application/json"}, body=' "hi" ')
    assert (sent.status_code, sent.text) == (202, "")
    assert ann.take() == '{"type":"message","from":"server","dataType":"json","data":"hi"}'
    assert raw.take() == '"hi"'
    assert PROTOBUF.decode_response(bob.take()) == ServerMessage(Data(DataType.JSON, b'"hi"'))


def test_metadata_may_stand_for_data(enter: Enter) -> None:
    ann, bob = enter(JSON, **{"webpubsub.group": "m"}), enter(Subprotocol.PROTOBUF)
    bob.take()
    wanted = (
        '{"type":"message","from":"group","group":"m","fromUserId":"ann","dataType":"text","data":"",'
        '"metadata":{"k":"v"}}'
    )
    assert ann.ask(type="sendToGroup", group="m", metadata={"k": "v"}) == wanted
    # the group, no data, and one entry of metadata
    bob.wire.send(b"\x0a\x0b\x0a\x01m" + b"\x32\x06\x0a\x01k\x12\x01v")
    assert ann.take() == wanted


# -- coming in


def test_a_subprotocol_is_echoed_as_it_was_offered(enter: Enter) -> None:
    odd = "JSON.Reliable.WebPubSub.Azure.v1"
    ann = enter(odd)
    assert ann.wire.subprotocol == odd
    assert json.loads(ann.take())["reconnectionToken"]
    assert enter(f"mine,{JSON},{RELIABLE}").wire.subprotocol == JSON
    # browsers and most libraries do not go on when what they offered is not answered
    assert enter("mine,yours").wire.subprotocol == "mine"


@pytest.mark.parametrize(
    ("claims", "status"),
    [
        ({"exp": 0}, 401),
        ({"nbf": time.time() + 3600}, 401),
        ({"aud": "http://127.0.0.1/client/hubs/other"}, 401),
        ({"webpubsub.group": [" "]}, 400),
        ({"path": "/client/hubs/1"}, 400),
        ({"path": "/client/"}, 400),
        ({"query": "&webpubsub_mode=odd", "protocol": None}, 400),
        ({"query": "&webpubsub_mode=sendToGroup&group=%20", "protocol": None}, 400),
    ],
)
def test_who_is_not_let_in_hears_why(enter: Enter, claims: dict[str, Any], status: int) -> None:
    with pytest.raises(InvalidStatus) as refused:
        enter(**claims)
    assert refused.value.response.status_code == status


@pytest.mark.parametrize("path", [f"/client/hubs/{HUB}", f"/client/?hub={HUB}", "/client/hubs/1"])
def test_a_plain_request_to_the_door_of_clients_is_a_bad_one(served: Served, path: str) -> None:
    assert httpx.get(f"{served.endpoint}{path}", trust_env=False).status_code == 400


def test_a_token_whose_maker_has_a_fast_clock_is_good(enter: Enter) -> None:
    assert enter(iat=time.time() + 3600).is_quiet()


def test_a_simple_client_that_may_not_send_to_its_group_is_closed(enter: Enter) -> None:
    ann = enter(None, "&webpubsub_mode=sendToGroup&group=g", role=[])
    ann.wire.send("x")
    assert ann.end() == 1008


def test_a_simple_client_does_not_hear_itself_if_it_says_so(enter: Enter) -> None:
    group = {"webpubsub.group": "n"}
    bob = enter(JSON, **group)
    ann = enter(None, "&webpubsub_mode=SendToGroup&group=n&noEcho=true", **group)
    ann.wire.send("one")
    assert json.loads(bob.take())["data"] == "one"
    bob.say(type="sendToGroup", group="n", dataType="text", data="two")
    assert ann.take() == "two"


# -- coming back


def back(enter: Enter, was: Socket, protocol: str = RELIABLE, hub: str = HUB, token: str | None = None) -> Socket:
    """With the token of the session; the access token beside it is long stale."""
    shown = was.connected["reconnectionToken"] if token is None else token
    query = f"&awps_connection_id={was.connected['connectionId']}&awps_reconnection_token={quote(shown)}"
    return enter(protocol, query, f"/client/hubs/{hub}", exp=0)


def numbers(socket: Socket, count: int) -> list[int]:
    return [json.loads(socket.take())["sequenceId"] for _ in range(count)]


def test_what_is_not_acknowledged_comes_again_in_order(served: Served, enter: Enter) -> None:
    ann = enter(**{"webpubsub.group": "again"})
    for text in "abc":
        publish(served, "again", text)
    first, second, third = numbers(ann, 3)
    again = back(enter, ann, hub=HUB.upper())
    assert ann.end() in ((1001, 1011) if isinstance(served, Pair) else (1001,))  # taken over, perhaps by the other node
    assert again.connected["connectionId"] == ann.connected["connectionId"]
    assert numbers(again, 3) == [first, second, third]
    again.say(type="sequenceAck", sequenceId=second)
    again.say(type="sequenceAck", sequenceId=0)
    again.say(type="sequenceAck", sequenceId=first)
    assert again.is_quiet()
    again.cut()
    once_more = back(enter, ann)
    if isinstance(served, Pair):  # what was acknowledged on the other node within the last second may come again
        came = numbers(once_more, 1)
        while came[-1] != third:
            came += numbers(once_more, 1)
        assert came == [first, second, third][-len(came) :]
        return
    assert numbers(once_more, 1) == [third]
    once_more.say(type="Ack", sequenceId=third)  # as the protocol was in 2021
    assert once_more.is_quiet()
    once_more.wire.close(1001)
    assert back(enter, ann).is_quiet()


def test_who_says_good_bye_does_not_come_back(served: Served, enter: Enter) -> None:
    ann = enter()
    ann.wire.close(1000)
    there = f"{API}/connections/{ann.connected['connectionId']}"
    wait_until(lambda: call(served, "HEAD", there).status_code == 404, "the end of the session")
    assert back(enter, ann).end() == 1008


@pytest.mark.parametrize(
    "how",
    [
        {"protocol": JSON},
        {"protocol": Subprotocol.PROTOBUF_RELIABLE.value},
        {"hub": "other"},
        {"token": ""},
        {"token": "AAAA"},
    ],
)
def test_who_may_not_come_back_is_let_in_and_closed(enter: Enter, how: dict[str, str]) -> None:
    ann = enter()
    refused = back(enter, ann, **how)
    assert refused.wire.subprotocol == how.get("protocol", RELIABLE)
    assert refused.end() == 1008
    assert ann.is_quiet()


# -- the REST API


def test_calls_about_what_is_there(served: Served, enter: Enter) -> None:
    ann = enter(**{"webpubsub.group": "here"})
    me = ann.connected["connectionId"]
    body = '{"groups":["more"],"filter":"userId eq \'ann\'"}'
    for method, path, status in [
        ("HEAD", f"/connections/{me}", 200),
        ("HEAD", "/groups/here", 200),
        ("HEAD", "/users/ann", 200),
        ("PUT", f"/groups/g/connections/{me}", 200),
        ("DELETE", f"/groups/g/connections/{me}", 204),
        ("PUT", "/users/ann/groups/g", 200),
        ("DELETE", "/users/ann/groups/g", 204),
        ("POST", "/:addToGroups", 200),
        ("HEAD", "/groups/more", 200),
        ("POST", "/:removeFromGroups", 200),
        ("HEAD", "/groups/more", 404),
        ("DELETE", f"/connections/{me}/groups", 204),
        ("HEAD", "/groups/here", 404),
        ("DELETE", f"/permissions/sendToGroup/connections/{me}", 204),
        ("HEAD", f"/permissions/sendToGroup/connections/{me}", 404),
        ("PUT", f"/permissions/sendToGroup/connections/{me}", 200),
        ("HEAD", f"/permissions/sendToGroup/connections/{me}", 200),
    ]:
        response = call(served, method, f"{API}{path}", headers={"content-type": "application/json"}, body=body)
        assert response.status_code == status, (method, path, response.text)
        assert response.content == b""
    assert call(served, "DELETE", f"{API}/connections/{me}", query="api-version=2021-10-01&reason=bye").content == b""
    assert ann.take() == '{"type":"system","event":"disconnected","message":"bye"}'
    assert ann.end() == 1008


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/groups/no/:send", 202),
        ("POST", "/users/no/:send", 202),
        ("POST", "/connections/no/:send", 202),
        ("POST", "/groups/no/:closeConnections", 204),
        ("POST", "/users/no/:closeConnections", 204),
        ("DELETE", "/connections/no", 204),
        ("HEAD", "/connections/no", 404),
        ("HEAD", "/groups/no", 404),
        ("HEAD", "/users/no", 404),
        ("PUT", "/groups/no/connections/no", 404),
        ("DELETE", "/groups/no/connections/no", 204),
        ("DELETE", "/connections/no/groups", 204),
        ("PUT", "/users/no/groups/g", 404),
        ("DELETE", "/users/no/groups/g", 204),
        ("DELETE", "/users/no/groups", 204),
        ("PUT", "/permissions/joinLeaveGroup/connections/no", 404),
        ("DELETE", "/permissions/joinLeaveGroup/connections/no", 204),
        ("HEAD", "/permissions/joinLeaveGroup/connections/no", 404),
    ],
)
def test_calls_about_what_is_not_there(served: Served, method: str, path: str, status: int) -> None:
    response = call(served, method, f"{API}{path}", headers=TEXT)
    assert response.status_code == status
    if status == 404:
        assert response.headers["x-ms-error-code"].endswith(".NotExisted")
        assert (response.content == b"") == (method == "HEAD")


@pytest.mark.parametrize(
    ("query", "status"), [("", 202), ("api-version=2021-10-01", 202), ("api-version=2000-01-01", 400)]
)
def test_the_version_of_the_api_may_be_left_out_but_not_made_up(served: Served, query: str, status: int) -> None:
    assert call(served, "POST", f"{API}/:send", query=query, headers=TEXT).status_code == status


def test_a_body_of_no_said_type_is_bytes(served: Served, enter: Enter) -> None:
    ann = enter(JSON, **{"webpubsub.group": "bytes"})
    assert call(served, "POST", f"{API}/groups/bytes/:send", body=b"\x00").status_code == 202
    assert json.loads(ann.take())["data"] == "AA=="
    assert call(served, "POST", f"{API}/:send", headers={"content-type": "text/html"}).status_code == 415


def test_health_needs_no_token(served: Served) -> None:
    assert httpx.head(f"{served.endpoint}/api/health", trust_env=False).status_code == 200
