"""A handler hears of an event in the same words each time, and whatever it answers has a meaning."""

from __future__ import annotations

import hashlib
import hmac
import json
from urllib.parse import unquote

import httptools
import jwt
import msgspec
import pytest
from google.protobuf.any_pb2 import Any
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.pubsub.protocol.frame_values import data, events, groups, metadata, texts

from semel.auth.keys import DEV_KEY, AccessKeys
from semel.auth.tokens import read_service_token, service_audiences
from semel.cloudevents import attribute_of
from semel.errors import AuthError, StoreError
from semel.http import ClientCertificate, HttpResponse, OutgoingRequest
from semel.pubsub.events.cloudevents import (
    CONNECT_ID,
    NO_HANDLER,
    NOT_TAKEN,
    REFUSAL_CHARS_MAX,
    RESPONSE_BYTES_MAX,
    STATE_CHARS_MAX,
    TOTAL_S,
    Allowed,
    EventClient,
    HandlerAnswered,
    HandlerFailed,
    HandlerRefused,
    HandlerUnreachable,
    NotAllowed,
    PendingEvent,
    Reply,
    connect_event,
    connected_event,
    decode_event,
    disconnected_event,
    encode_event,
    event_id,
    failure_answer,
    joined_event,
    left_event,
    next_try,
    read_connect,
    read_notification,
    read_user_event,
    request_for,
    user_event,
)
from semel.pubsub.events.handlers import Handlers, event_handler
from semel.pubsub.protocol.client_tokens import ClientClaims, client_audiences, read_client_token
from semel.pubsub.protocol.messages import Data, DataType, ErrorName, Fault
from semel.pubsub.protocol.names import METADATA_VALUE_BYTES_MAX
from semel.websocket import CloseCode

NOW = 1_800_000_000.0
AT = 1_800_000_000_900_000
ORIGIN = "pubsub.example:8080"
OTHER_KEY = "b" * 40
KEYS = AccessKeys(DEV_KEY, OTHER_KEY)
HANDLER = event_handler("https://app.example/{hub}/{event}", ["connect", "connected", "disconnected"], "*")
JSON_RELIABLE = "json.reliable.webpubsub.azure.v1"
CLIENT = EventClient("chat", "c1", "ann", JSON_RELIABLE, "eyJrIjoxfQ==")
TEXT = Data(DataType.TEXT, "grüß".encode())


def sent(event: PendingEvent, auth: str = "none") -> OutgoingRequest:
    handler = event_handler(HANDLER.url, HANDLER.system_events, "*", auth)
    return request_for(event, handler, KEYS, ORIGIN, NOW)


def headers_of(event: PendingEvent) -> dict[str, str]:
    return dict(sent(event).headers)


# -- requests


def test_a_user_event_has_every_header_that_the_protocol_names() -> None:
    def sign(key: str) -> str:
        return "sha256=" + hmac.new(key.encode(), b"c1", hashlib.sha256).hexdigest()

    event = user_event(CLIENT, event_id("3", 7), AT, "my-event", TEXT, {"Trace": "a b"}, 7)
    assert sent(event) == OutgoingRequest(
        "POST",
        "https://app.example/chat/my-event",
        (
            ("Content-Type", "text/plain; charset=utf-8"),
            ("Accept-Encoding", "identity"),
            ("WebHook-Request-Origin", ORIGIN),
            ("ce-specversion", "1.0"),
            ("ce-awpsversion", "1.0"),
            ("ce-type", "azure.webpubsub.user.my-event"),
            ("ce-source", "/hubs/chat/client/c1"),
            ("ce-id", "ack-7"),
            ("ce-time", "2027-01-15T08:00:00Z"),
            ("ce-signature", f"{sign(DEV_KEY)},{sign(OTHER_KEY)}"),
            ("ce-hub", "chat"),
            ("ce-connectionId", "c1"),
            ("ce-eventName", "my-event"),
            ("ce-userId", "ann"),
            ("ce-subprotocol", JSON_RELIABLE),
            ("ce-connectionState", "eyJrIjoxfQ=="),
            ("x-webpubsub-metadata-trace", "a b"),
        ),
        "grüß".encode(),
    )


def test_what_is_not_there_has_no_header() -> None:
    absent = {"ce-userId", "ce-subprotocol", "ce-connectionState", "Authorization"}
    found = headers_of(user_event(EventClient("chat", "c1"), "1", AT, "message", TEXT))
    assert not absent & set(found)
    assert absent - set(headers_of(user_event(CLIENT, "1", AT, "message", TEXT))) == {"Authorization"}


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        (DataType.TEXT, "text/plain; charset=utf-8"),
        (DataType.JSON, "application/json"),
        (DataType.BINARY, "application/octet-stream"),
        (DataType.PROTOBUF, "application/x-protobuf"),
    ],
)
def test_data_keeps_its_bytes_and_names_its_type(kind: DataType, content: str) -> None:
    request = sent(user_event(CLIENT, "1", AT, "message", Data(kind, b"\x00\xff")))
    assert (dict(request.headers)["Content-Type"], request.body) == (content, b"\x00\xff")


@pytest.mark.parametrize(
    ("event", "type", "body"),
    [
        (connected_event(CLIENT, AT), "azure.webpubsub.sys.connected", {}),
        (disconnected_event(CLIENT, "9", AT, "bye"), "azure.webpubsub.sys.disconnected", {"reason": "bye"}),
        (joined_event(CLIENT, "2", AT, "a/ü"), "azure.webpubsub.gp.joined", {"group": "a/ü"}),
        (left_event(CLIENT, "3", AT, "a/ü"), "azure.webpubsub.gp.left", {"group": "a/ü"}),
    ],
)
def test_system_events_say_what_happened(event: PendingEvent, type: str, body: object) -> None:
    request, name = sent(event), type.rpartition(".")[2]
    headers = dict(request.headers)
    assert (headers["ce-type"], headers["ce-eventName"], headers["ce-id"]) == (type, name, event.id)
    assert headers["Content-Type"] == "application/json; charset=utf-8"
    assert json.loads(request.body) == body
    assert request.url == f"https://app.example/chat/{name}"


def test_connect_shows_the_request_without_its_secrets() -> None:
    event = connect_event(
        EventClient("chat", "c1", "ann"),
        AT,
        claims={"role": ("a", "b")},
        query=[("tag", "1"), ("tag", "2"), ("Access_Token", "secret"), ("awps_reconnection_token", "secret")],
        headers=[("X-One", "1"), ("AUTHORIZATION", "secret"), ("Proxy-Authorization", "secret"), ("Cookie", "\udcff")],
        subprotocols=[JSON_RELIABLE],
        certificate=ClientCertificate(b"shown"),
    )
    request = sent(event)
    assert json.loads(request.body) == {
        "claims": {"role": ["a", "b"]},
        "query": {"tag": ["1", "2"]},
        "headers": {"X-One": ["1"], "Cookie": ["?"]},
        "subprotocols": [JSON_RELIABLE],
        "clientCertificates": [
            {
                "thumbprint": hashlib.sha1(b"shown").hexdigest().upper(),
                "content": "-----BEGIN CERTIFICATE-----\nc2hvd24=\n-----END CERTIFICATE-----\n",
            }
        ],
    }
    headers = dict(request.headers)
    assert (headers["ce-id"], headers["ce-type"]) == (CONNECT_ID, "azure.webpubsub.sys.connect")
    assert "ce-subprotocol" not in headers


UNTIMED: jwt.types.Options = {"verify_exp": False, "verify_iat": False}


def test_a_handler_can_be_shown_a_token_that_opens_nothing_here() -> None:
    request = sent(connected_event(CLIENT, AT), auth="key")
    token = dict(request.headers)["Authorization"].removeprefix("Bearer ")
    said = jwt.decode(token, DEV_KEY, ["HS256"], audience="https://app.example", options=UNTIMED)
    assert (said["iat"], said["exp"]) == (NOW, NOW + 60)
    for audiences in (
        service_audiences("https://app.example/api/hubs/chat/:send"),
        service_audiences("https://app.example/chat/connected"),
    ):
        with pytest.raises(AuthError):
            read_service_token(token, KEYS, audiences, NOW)
    with pytest.raises(AuthError):
        read_client_token(token, KEYS, client_audiences("chat", ["https://app.example"]), NOW)


def test_a_repeated_ack_id_repeats_the_id_and_no_other_id_can_be_one() -> None:
    assert event_id("5", 7) == event_id("6", 7) == "ack-7"
    assert event_id("7") == "7" != CONNECT_ID


@pytest.mark.parametrize(
    ("user", "header"),
    [
        ("ann lee", "ann lee"),
        ('"a",b=[1]', "%22a%22,b=[1]"),
        ("a\r\nce-hub: x", "a%0D%0Ace-hub: x"),
        ("用", "%E7%94%A8"),
        ("%E7%94%A8", "%25E7%2594%25A8"),
        ("  a\t ", "%20%20a%09%20"),
        (" ", "%20"),
    ],
)
def test_users_that_differ_are_written_differently(user: str, header: str) -> None:
    event = user_event(msgspec.structs.replace(CLIENT, user=user), "1", AT, "message", TEXT)
    assert headers_of(event)["ce-userId"] == header
    assert unquote(header) == user


@pytest.mark.parametrize(("own", "header"), [("order-7", "order-7"), ("%C3%A9 1", "%25C3%25A9 1"), ('"q"', "%22q%22")])
def test_the_application_s_own_id_is_told_as_an_attribute_that_no_other_id_is_written_as(own: str, header: str) -> None:
    told = headers_of(user_event(CLIENT, "1", AT, "message", TEXT, {"semel-id": own}))
    assert told["ce-semelid"] == header
    assert attribute_of("ce-semelid", header) == own
    assert "ce-semelid" not in headers_of(user_event(CLIENT, "1", AT, "message", TEXT, {"other": own}))


def test_metadata_is_told_as_it_is_but_for_what_http_cannot_say() -> None:
    said = {"Plain": "50% a%20b, c", "Lines": "a\r\nX-Evil: 1", "Space": " a ", "lines": "last", "Empty": ""}
    headers = headers_of(user_event(CLIENT, "1", AT, "message", TEXT, said))
    assert {name: value for name, value in headers.items() if name.startswith("x-")} == {
        "x-webpubsub-metadata-plain": "50% a%20b, c",
        "x-webpubsub-metadata-lines": "last",
        "x-webpubsub-metadata-space": "%20a%20",
        "x-webpubsub-metadata-empty": "",
    }
    one_more = headers_of(user_event(CLIENT, "1", AT, "message", TEXT, {"Lines": "a\r\nX-Evil: 1"}))
    assert one_more["x-webpubsub-metadata-lines"] == "a%0D%0AX-Evil: 1"


states = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=20)
clients = st.builds(
    EventClient,
    st.from_regex(r"[a-z][a-z0-9_`,.\[\]]{0,20}", fullmatch=True),
    st.text(min_size=1, max_size=20),
    st.none() | texts,
    st.sampled_from(["", JSON_RELIABLE]) | texts,
    states,
)
times = st.integers(0, 4_000_000_000_000_000)
numbers = st.integers(0, 2**63).map(str)
pairs = st.lists(st.tuples(st.text(), st.text()), max_size=4)
all_events = st.one_of(
    st.builds(user_event, clients, numbers, times, events, data, metadata, st.none() | st.integers(0, 2**64 - 1)),
    st.builds(connected_event, clients, times),
    st.builds(disconnected_event, clients, numbers, times, texts),
    st.builds(joined_event, clients, numbers, times, groups),
    st.builds(left_event, clients, numbers, times, groups),
    st.builds(
        connect_event,
        clients,
        times,
        claims=st.dictionaries(texts, st.lists(texts)),
        query=pairs,
        headers=pairs,
        subprotocols=st.lists(texts),
    ),
)


class Heard:
    """What a server makes of the bytes."""

    def __init__(self, request: OutgoingRequest) -> None:
        self.url, self.body, self.headers, self.count = b"", b"", [], 0
        fields = [*request.headers, ("Content-Length", str(len(request.body)))]
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields)
        parser = httptools.HttpRequestParser(self)
        parser.feed_data(f"{request.method} {request.url} HTTP/1.1\r\n{lines}\r\n".encode() + request.body)

    headers: list[tuple[str, str]]

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.decode(), value.decode()))

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.count += 1


@given(all_events, st.sampled_from(["none", "key"]))
def test_every_event_is_one_request_that_is_heard_as_it_was_meant(event: PendingEvent, auth: str) -> None:
    request = sent(event, auth)
    heard = Heard(request)
    assert heard.count == 1
    assert heard.url.decode() == request.url
    assert heard.headers[:-1] == list(request.headers)
    assert heard.body == request.body
    assert all(value.isascii() and (value.isprintable() or not value) for _, value in heard.headers)
    assert unquote(dict(heard.headers).get("ce-userId", "")) == (event.client.user or "")


@given(all_events)
def test_a_stored_event_is_the_same_request(event: PendingEvent) -> None:
    assert sent(decode_event(encode_event(event))) == sent(event)
    assert decode_event(encode_event(event)) == event


@given(st.binary(max_size=64))
def test_what_is_no_stored_event_is_refused(stored: bytes) -> None:
    with pytest.raises(StoreError, match="cannot be read"):
        decode_event(stored)


def test_an_event_is_claimed_by_its_connection_and_ack_id() -> None:
    assert user_event(CLIENT, event_id("1", 7), AT, "a", TEXT, ack_id=7).identity == "c1#7"
    assert user_event(CLIENT, event_id("1", 0), AT, "a", TEXT, ack_id=0).identity == "c1#0"
    assert connected_event(CLIENT, AT).identity == "c1#event-1"
    assert disconnected_event(CLIENT, "7", AT, "bye").identity == "c1#event-7"


def test_an_event_finds_its_handler_by_what_it_is() -> None:
    system = event_handler("https://app.example/sys", ["joined", "connected"])
    user = event_handler("https://app.example/user", user_events="connected")
    handlers = Handlers("chat", (system, user))
    assert connected_event(CLIENT, AT).handler(handlers) is system
    assert joined_event(CLIENT, "1", AT, "g").handler(handlers) is system
    assert user_event(CLIENT, "1", AT, "Connected", TEXT).handler(handlers) is user
    assert user_event(CLIENT, "1", AT, "joined", TEXT).handler(handlers) is None
    assert left_event(CLIENT, "1", AT, "g").handler(handlers) is None


# -- responses to connect


def answer(status: int = 200, body: bytes | str = b"", *headers: tuple[str, str]) -> HttpResponse:
    return HttpResponse(status, headers, body.encode() if isinstance(body, str) else body)


CLAIMS = ClientClaims("ann", ("r1",), ("g1",), {"sub": ("ann",)})


@pytest.mark.parametrize(
    ("body", "allowed", "settled"),
    [
        ("", Allowed(), CLAIMS),
        (" \n", Allowed(), CLAIMS),
        ("null", Allowed(), CLAIMS),
        ("{}", Allowed(), CLAIMS),
        ('{"userId":null,"roles":null,"groups":null,"subprotocol":null,"more":[1]}', Allowed(), CLAIMS),
        ('{"userId":"bob"}', Allowed("bob"), ClientClaims("bob", ("r1",), ("g1",), CLAIMS.claims)),
        ('{"userId":"","roles":[]}', Allowed("", ()), ClientClaims(None, (), ("g1",), CLAIMS.claims)),
        ('{"groups":[]}', Allowed(groups=()), CLAIMS),
        (
            '\ufeff{"groups":["g2"],"roles":["r2"]}',
            Allowed(None, ("r2",), ("g2",)),
            ClientClaims("ann", ("r2",), ("g2",), CLAIMS.claims),
        ),
        ('{"subprotocol":"b"}', Allowed(subprotocol="b"), CLAIMS),
        ('{"subprotocol":""}', Allowed(), CLAIMS),
    ],
)
def test_a_handler_lets_a_client_in(body: str, allowed: Allowed, settled: ClientClaims) -> None:
    found = read_connect(answer(200, body, ("Content-Type", "text/plain")), ["a", "b"])
    assert found == allowed
    assert allowed.over(CLAIMS) == settled


def test_a_handler_gives_a_client_its_first_state() -> None:
    assert read_connect(answer(204, b"", ("CE-ConnectionState", " abc= ")), []) == Allowed(state="abc=")


@pytest.mark.parametrize("status", [400, 401, 403, 404, 408, 429, 499])
def test_a_client_hears_the_refusal_of_a_handler(status: int) -> None:
    assert read_connect(answer(status, "not yet, Ann"), []) == HandlerRefused(status, "not yet, Ann")


def test_a_refusal_is_short_text_whatever_it_was() -> None:
    refused = read_connect(answer(401, b"\xff\x00" + "ü".encode() * RESPONSE_BYTES_MAX), [])
    assert isinstance(refused, HandlerRefused)
    assert refused.message.startswith("\ufffd\ufffdü")
    assert len(refused.message) == REFUSAL_CHARS_MAX


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (answer(200, "not-json"), "not what it should be"),
        (answer(200, b"\xff"), "not what it should be"),
        (answer(200, "[]"), "not what it should be"),
        (answer(200, '{"userId":1}'), "not what it should be"),
        (answer(200, '{"roles":[null]}'), "not what it should be"),
        (answer(200, '{"roles":"r"}'), "not what it should be"),
        (answer(200, '{"x":' + "[" * 5000 + "]" * 5000 + "}"), "nested"),
        (answer(200, '{"groups":[" "]}'), "blank"),
        (answer(200, '{"groups":[""]}'), "empty"),
        (answer(200, '{"userId":"a\\u0000"}'), "NUL"),
        (answer(200, json.dumps({"userId": "a" * 1025})), "1025 characters"),
        (answer(200, json.dumps({"roles": ["a"] * 4001})), "roles or groups"),
        (answer(200, '{"subprotocol":"c"}'), "not offered"),
        (answer(200, b"{}".ljust(RESPONSE_BYTES_MAX + 1)), "bytes"),
        (answer(200, b"", *[("X", "y")] * 101), "too many headers"),
        (answer(200, b"", ("X", "y" * 70_000)), "too many headers"),
        (answer(200, b"", ("ce-connectionState", "a"), ("ce-connectionState", "b")), "ce-connectionState"),
        (answer(200, b"", ("ce-connectionState", "a\r\nb")), "ce-connectionState"),
        (answer(200, b"", ("ce-connectionState", "ü")), "ce-connectionState"),
        (answer(200, b"", ("ce-connectionState", "a" * (STATE_CHARS_MAX + 1))), "ce-connectionState"),
        (answer(302, b"", ("Location", "http://169.254.169.254/")), "not followed"),
        (answer(100), "status 100"),
        (answer(500), "status 500"),
        (HandlerUnreachable("refused\x00"), "cannot be reached: refused\ufffd"),
    ],
)
def test_an_answer_that_makes_no_sense_lets_nobody_in(reply: HttpResponse | HandlerUnreachable, why: str) -> None:
    found = read_connect(reply, ["a", "b"])
    assert isinstance(found, HandlerFailed)
    assert why in found.cause


# -- responses to other events

ANY = Any(type_url="t", value=b"v").SerializeToString()
META = ("X-WebPubSub-Metadata-Trace", " a, b ")


@pytest.mark.parametrize(
    ("reply", "answered"),
    [
        (answer(204), HandlerAnswered()),
        (answer(200, b"", ("Content-Type", "image/png")), HandlerAnswered()),
        (answer(200, "grüß", ("content-type", "text/plain; charset=UTF-8")), HandlerAnswered(TEXT)),
        (answer(200, b"gr\xfc\xdf", ("Content-Type", "Text/Plain;charset=latin1")), HandlerAnswered(TEXT)),
        (
            answer(202, ' {"a": 1} ', ("Content-Type", "application/json")),
            HandlerAnswered(Data(DataType.JSON, b'{"a": 1}')),
        ),
        (
            answer(200, b"\xff", ("Content-Type", "application/octet-stream")),
            HandlerAnswered(Data(DataType.BINARY, b"\xff")),
        ),
        (answer(200, b"\xff\x00"), HandlerAnswered(Data(DataType.BINARY, b"\xff\x00"))),
        (answer(200, ANY, ("Content-Type", "application/x-protobuf")), HandlerAnswered(Data(DataType.PROTOBUF, ANY))),
        (answer(200, b"", META), HandlerAnswered(Data(DataType.TEXT, b""), {"trace": "a, b"})),
        (answer(200, " null ", ("Content-Type", "application/json; charset=utf-8")), HandlerAnswered()),
        (
            answer(200, "null", ("Content-Type", "application/json"), META),
            HandlerAnswered(Data(DataType.TEXT, b""), {"trace": "a, b"}),
        ),
        (answer(200, "null", ("Content-Type", "text/plain")), HandlerAnswered(Data(DataType.TEXT, b"null"))),
        (answer(200, b"", ("x-webpubsub-metadata-", "x")), HandlerAnswered()),
        (
            answer(200, "a", ("Content-Type", "text/plain"), META, ("x-webpubsub-metadata-TRACE", "last")),
            HandlerAnswered(Data(DataType.TEXT, b"a"), {"trace": "last"}),
        ),
        (answer(204, b"", ("ce-connectionState", "new=")), HandlerAnswered(state="new=")),
        (answer(204, b"", ("ce-connectionState", "")), HandlerAnswered(state="")),
    ],
)
def test_what_a_handler_answers_reaches_the_client(reply: HttpResponse, answered: HandlerAnswered) -> None:
    assert read_user_event(reply) == answered
    assert read_notification(reply) == HandlerAnswered()


@pytest.mark.parametrize(
    "reply",
    [
        answer(400, "private", ("Content-Type", "text/plain"), ("ce-connectionState", "no")),
        answer(301),
        answer(503),
        answer(200, "a", ("Content-Type", "image/png")),
        answer(200, "a", ("Content-Type", "text/plain; charset=klingon")),
        answer(200, b"\xff", ("Content-Type", "text/plain")),
        answer(200, "{", ("Content-Type", "application/json")),
        answer(200, "nul", ("Content-Type", "application/json")),
        answer(200, "[" * 5000 + "]" * 5000, ("Content-Type", "application/json")),
        answer(200, b"\xff", ("Content-Type", "application/x-protobuf")),
        answer(200, b"a", ("Content-Encoding", "gzip")),
        answer(200, b"a" * (RESPONSE_BYTES_MAX + 1)),
        answer(200, b"", ("x-webpubsub-metadata-a b", "x")),
        answer(200, b"", ("x-webpubsub-metadata-a", "ü")),
        answer(200, b"", ("x-webpubsub-metadata-a", "a" * (METADATA_VALUE_BYTES_MAX + 1))),
        answer(200, b"", ("ce-connectionState", "ü")),
        HandlerUnreachable("late", is_late=True),
    ],
)
def test_what_cannot_be_told_is_a_failure(reply: HttpResponse | HandlerUnreachable) -> None:
    found = read_user_event(reply)
    assert isinstance(found, HandlerFailed)
    assert "private" not in found.cause


def test_the_largest_answer_is_taken() -> None:
    body = b"a" * RESPONSE_BYTES_MAX
    assert read_user_event(answer(200, body)) == HandlerAnswered(Data(DataType.BINARY, body))


@pytest.mark.parametrize("reply", [answer(199), answer(300), answer(404), answer(500), HandlerUnreachable("x")])
def test_a_handler_that_was_only_told_may_fail_as_well(reply: HttpResponse | HandlerUnreachable) -> None:
    assert isinstance(read_notification(reply), HandlerFailed)


def test_a_client_hears_of_a_failure_as_far_as_it_wants_to() -> None:
    acked = user_event(CLIENT, "1", AT, "a", TEXT, ack_id=0)
    assert failure_answer(acked) == Fault(ErrorName.INTERNAL, NOT_TAKEN)
    assert failure_answer(acked, NO_HANDLER) == Fault(ErrorName.INTERNAL, NO_HANDLER)
    assert failure_answer(user_event(CLIENT, "1", AT, "a", TEXT)) is None
    for simple in ("", "my.own.protocol"):
        client = msgspec.structs.replace(CLIENT, subprotocol=simple)
        assert failure_answer(user_event(client, "1", AT, "message", TEXT)) is CloseCode.INTERNAL


names = st.sampled_from(
    ["Content-Type", "content-encoding", "ce-connectionState", "X-WebPubSub-Metadata-a", "Location"]
) | st.text(max_size=10)
values = st.sampled_from(
    ["application/json", "text/plain; charset=utf-16", "application/x-protobuf", "gzip", ";", "charset="]
) | st.text(max_size=20)
bodies = st.one_of(
    st.binary(max_size=60),
    st.text(max_size=60).map(lambda text: text.encode(errors="surrogatepass")),
    st.dictionaries(
        st.sampled_from(["userId", "roles", "groups", "subprotocol", "x"]),
        st.none() | st.text(max_size=5) | st.integers() | st.lists(st.none() | st.text(max_size=5), max_size=3),
    ).map(lambda value: json.dumps(value).encode()),
)
replies = st.one_of(
    st.builds(
        HttpResponse,
        st.sampled_from([200, 204, 301, 401, 408, 500, 503]) | st.integers(),
        st.lists(st.tuples(names, values), max_size=5).map(tuple),
        bodies,
    ),
    st.builds(HandlerUnreachable, st.text(), st.booleans()),
    st.just(NotAllowed()),
)


@given(replies)
def test_every_reply_has_a_meaning(reply: Reply) -> None:
    connect, user, notification = read_connect(reply, ["a"]), read_user_event(reply), read_notification(reply)
    is_yes = isinstance(reply, HttpResponse) and 200 <= reply.status < 300
    assert isinstance(notification, HandlerAnswered) == is_yes
    assert is_yes or not isinstance(connect, Allowed)
    assert is_yes or isinstance(user, HandlerFailed)
    for found in (connect, user):
        if isinstance(found, Allowed | HandlerAnswered):
            client = msgspec.structs.replace(CLIENT, state=found.state or "")
            assert dict(sent(connected_event(client, AT)).headers).get("ce-connectionState", "") == client.state
            assert Heard(sent(connected_event(client, AT))).count == 1


# -- trying again


@pytest.mark.parametrize("reply", [answer(408), answer(500), answer(503), answer(599), HandlerUnreachable("refused")])
def test_what_may_pass_is_tried_again_three_times(reply: HttpResponse | HandlerUnreachable) -> None:
    assert [next_try(attempt, reply, NOW, NOW + 1) for attempt in (1, 2, 3, 4)] == [NOW + 2, NOW + 4, NOW + 6, None]


@pytest.mark.parametrize(
    "reply",
    [*map(answer, (200, 204, 302, 400, 401, 404, 429, 600)), HandlerUnreachable("late", is_late=True), NotAllowed()],
)
def test_a_last_word_is_not_tried_again(reply: Reply) -> None:
    assert next_try(1, reply, NOW, NOW) is None


def test_nothing_is_tried_after_its_time() -> None:
    assert next_try(1, answer(503), NOW, NOW + TOTAL_S - 1.1) == NOW + TOTAL_S - 0.1
    assert next_try(1, answer(503), NOW, NOW + TOTAL_S - 1) is None
    assert next_try(3, answer(503), NOW, NOW + TOTAL_S - 4) is None
