"""Microsoft's own library for servers, without a socket between it and ours."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from azure.core.credentials import AccessToken
from azure.core.exceptions import (
    ClientAuthenticationError,
    HttpResponseError,
    ResourceExistsError,
    ResourceNotFoundError,
)
from azure.core.pipeline.transport import RequestsTransport
from azure.messaging.webpubsubservice import WebPubSubServiceClient
from requests import PreparedRequest, Response, Session
from requests.adapters import HTTPAdapter
from tests.unit.pubsub.rest.rest_values import KEYS, Client, FakeHub
from urllib3 import HTTPResponse as RawResponse

from semel.auth.keys import AccessKeys, ConnectionString
from semel.auth.tokens import service_token
from semel.http import HttpRequest
from semel.pubsub.hub.calls import Answer, Connection, Everybody, Group, Outcome, Publish, User
from semel.pubsub.protocol.client_tokens import read_client_token
from semel.pubsub.protocol.messages import Data, DataType
from semel.pubsub.rest.api import Asked, Rest, RestSettings

ENDPOINT = "http://localhost:8080"
SECURE = "https://localhost:8080"


class Wire(HTTPAdapter):
    """Where the library would open a connection."""

    def __init__(self, hub: FakeHub, now: float) -> None:
        super().__init__()
        self.hub = hub
        self.now = now
        self.rest = Rest(RestSettings(KEYS))
        self.headers: dict[str, str] = {}
        self.answers: Iterator[Answer] = iter(())
        self.seen: list[tuple[str, str, int]] = []

    def send(self, request: PreparedRequest, *arguments: Any, **more: Any) -> Response:
        url = urlsplit(str(request.url))
        body = request.body or b""
        read = getattr(body, "read", None)
        body = read() if read is not None else body
        begun = self.rest.begin(
            HttpRequest(
                str(request.method),
                url.path,
                url.query,
                {name.lower(): str(value) for name, value in request.headers.items()} | self.headers,
                body if isinstance(body, bytes) else body.encode(),
                url.scheme,
                url.netloc,
            ),
            self.now,
        )
        response = begun.respond(self._answer(begun)) if isinstance(begun, Asked) else begun
        self.seen.append((str(request.method), url.path, response.status))
        raw = RawResponse(io.BytesIO(response.body), response.headers, response.status, preload_content=False)
        return self.build_response(request, raw)

    def _answer(self, begun: Asked) -> Answer:
        assert begun.hub == "chat"
        return next(self.answers, None) or self.hub.answer(begun.call)


@pytest.fixture
def hub() -> FakeHub:
    return FakeHub(Client("c1", "ann"), Client("c2", "ann"), Client("c3", "b/ø+"), Client("c 4/x"))


@pytest.fixture
def wire(hub: FakeHub, now: float) -> Wire:
    return Wire(hub, now)


@pytest.fixture
def now() -> float:
    """The library reads the clock for its tokens."""
    return time.time()


def _client(wire: Wire, keys: AccessKeys = KEYS, **more: Any) -> WebPubSubServiceClient:
    session = Session()
    session.mount("http://", wire)
    return WebPubSubServiceClient.from_connection_string(
        ConnectionString(ENDPOINT, keys.primary).text(),
        hub="Chat",
        transport=RequestsTransport(session=session),
        retry_total=0,
        **more,
    )


@pytest.fixture
def service(wire: Wire) -> Iterator[WebPubSubServiceClient]:
    with _client(wire) as client:
        yield client


SENT = [
    ({"a": 1}, "application/json", Data(DataType.JSON, b'{"a": 1}')),
    ("text", "application/json", Data(DataType.JSON, b'"text"')),
    ("grüße", "text/plain", Data(DataType.TEXT, "grüße".encode())),
    (b"\x00\xff", "application/octet-stream", Data(DataType.BINARY, b"\x00\xff")),
    (io.BytesIO(b"file"), "application/octet-stream", Data(DataType.BINARY, b"file")),
]


@pytest.mark.parametrize(("message", "content_type", "data"), SENT)
def test_messages_of_every_kind_reach_everybody_a_group_a_user_and_a_connection(
    service: WebPubSubServiceClient, hub: FakeHub, message: Any, content_type: str, data: Data
) -> None:
    def again() -> Any:
        return io.BytesIO(data.body) if isinstance(message, io.BytesIO) else message

    service.send_to_all(again(), content_type=content_type, excluded=["c1", "c 2"], filter="userId eq 'ann'")
    service.send_to_group("a/b ø", again(), content_type=content_type, excluded=["c1"])
    service.send_to_user("b/ø+", again(), content_type=content_type, filter="true")
    service.send_to_connection("c 4/x", again(), content_type=content_type)
    assert hub.published == [
        Publish(Everybody(), data, excluded=("c1", "c 2"), filter="userId eq 'ann'"),
        Publish(Group("a/b ø"), data, excluded=("c1",)),
        Publish(User("b/ø+"), data, filter="true"),
        Publish(Connection("c 4/x"), data),
    ]


def test_a_time_to_live_and_headers_of_ours_can_be_given(service: WebPubSubServiceClient, hub: FakeHub) -> None:
    service.send_to_all(
        "x",
        content_type="text/plain",
        params={"messageTtlSeconds": "60"},
        headers={"Idempotency-Key": "k1", "X-WebPubSub-Metadata-Trace": "t"},
    )
    [sent] = hub.published
    assert (sent.ttl_s, sent.key, sent.metadata) == (60, "k1", {"trace": "t"})


def test_groups_are_joined_and_left(service: WebPubSubServiceClient, hub: FakeHub) -> None:
    service.add_connection_to_group("a/b", "c 4/x")
    assert hub.clients["c 4/x"].groups == {"a/b"}
    service.remove_connection_from_group("a/b", "c 4/x")
    assert hub.clients["c 4/x"].groups == set()
    service.add_user_to_group("g", "ann")
    service.add_user_to_group("h", "ann")
    assert hub.clients["c1"].groups == hub.clients["c2"].groups == {"g", "h"}
    service.remove_user_from_group("g", "ann")
    service.remove_connection_from_all_groups("c1")
    assert (hub.clients["c1"].groups, hub.clients["c2"].groups) == (set(), {"h"})
    service.remove_user_from_all_groups("ann")
    assert hub.clients["c2"].groups == set()


def test_removing_who_is_not_there_is_no_error_and_adding_is(service: WebPubSubServiceClient) -> None:
    service.remove_connection_from_group("g", "nobody")
    service.remove_connection_from_all_groups("nobody")
    service.remove_user_from_group("g", "nobody")
    service.remove_user_from_all_groups("nobody")
    service.close_connection("nobody")
    service.revoke_permission("sendToGroup", "nobody")
    service.send_to_connection("nobody", "x", content_type="text/plain")
    for add in (service.add_connection_to_group, service.add_user_to_group):
        with pytest.raises(ResourceNotFoundError):
            add("g", "nobody")
    with pytest.raises(ResourceNotFoundError):
        service.grant_permission("sendToGroup", "nobody", target_name="g")


def test_who_is_there_can_be_asked(service: WebPubSubServiceClient) -> None:
    service.add_connection_to_group("a/b", "c1")
    assert service.connection_exists("c 4/x")
    assert not service.connection_exists("c4")
    assert service.user_exists("b/ø+")
    assert not service.user_exists("Ann")
    assert service.group_exists("a/b")
    assert not service.group_exists("a")


def test_permissions_are_granted_and_revoked(service: WebPubSubServiceClient) -> None:
    for permission in ("sendToGroup", "joinLeaveGroup"):
        assert not service.has_permission(permission, "c1", target_name="a/b")
        service.grant_permission(permission, "c1", target_name="a/b")
        assert service.has_permission(permission, "c1", target_name="a/b")
        assert not service.has_permission(permission, "c1", target_name="a")
        assert not service.has_permission(permission, "c1")
        service.grant_permission(permission, "c1")
        assert service.has_permission(permission, "c1")
        service.revoke_permission(permission, "c1", target_name="a/b")
        assert not service.has_permission(permission, "c1", target_name="a/b")
    assert not service.has_permission("sendToGroup", "nobody")


def test_connections_are_closed(service: WebPubSubServiceClient, hub: FakeHub) -> None:
    service.add_connection_to_group("g", "c3")
    service.close_connection("c1", reason="so & so")
    service.close_group_connections("g", reason="ø")
    service.close_user_connections("ann", excluded=["c9"])
    service.close_all_connections(excluded=["c 4/x"], reason="night")
    assert hub.closed == [("c1", "so & so"), ("c3", "ø"), ("c2", "")]
    assert list(hub.clients) == ["c 4/x"]


@pytest.mark.parametrize(("top", "sizes"), [(5, [2, 2, 1]), (None, [2, 2, 2]), (1, [1])])
def test_members_are_listed_in_pages(hub: FakeHub, wire: Wire, top: int | None, sizes: list[int]) -> None:
    hub.clients = {f"m{number}": Client(f"m{number}", f"u{number}", {"a/b ø"}) for number in range(6)}
    with _client(wire) as service:
        pages = [list(page) for page in service.list_connections(group="a/b ø", top=top, maxpagesize=2).by_page()]
    assert [len(page) for page in pages] == sizes
    members = [(member.connection_id, member.user_id) for page in pages for member in page]
    assert members == [(f"m{number}", f"u{number}") for number in range(sum(sizes))]
    assert [status for _, _, status in wire.seen] == [200] * len(sizes)


def test_a_bad_filter_is_told_in_the_words_of_the_service(service: WebPubSubServiceClient) -> None:
    words = "Invalid syntax for 'invalid filter': Syntax error at position 14 in 'invalid filter'. (Parameter 'filter')"
    for send in (service.send_to_all, lambda *a, **k: service.send_to_group("g", *a, **k)):
        with pytest.raises(HttpResponseError) as caught:
            send("x", content_type="text/plain", filter="invalid filter")
        assert caught.value.status_code == 400
        assert caught.value.model is None
        assert caught.value.error.code == "Error.BadRequest"
        assert caught.value.error.message == words


def test_a_wrong_key_is_an_authentication_error(wire: Wire) -> None:
    with _client(wire, AccessKeys("k" * 40)) as service, pytest.raises(ClientAuthenticationError):
        service.send_to_all("x", content_type="text/plain")


def test_a_key_used_before_and_a_broken_store_are_told(service: WebPubSubServiceClient, wire: Wire) -> None:
    wire.answers = iter([Answer(Outcome.CONFLICT, "used before"), Answer(Outcome.FAILED, "full")])
    with pytest.raises(ResourceExistsError, match="used before"):
        service.send_to_all("x", content_type="text/plain")
    with pytest.raises(HttpResponseError, match="full") as caught:
        service.send_to_all("x", content_type="text/plain")
    assert caught.value.status_code == 503
    assert caught.value.response.headers["retry-after"] == "1"


class Credential:
    """With anything but a key the library asks the server for tokens."""

    def get_token(self, *scopes: str, **more: Any) -> AccessToken:
        now = time.time()
        return AccessToken(service_token(KEYS, f"{SECURE}/api/hubs/Chat/:generateToken", now=now), int(now) + 60)


def test_tokens_of_the_library_and_ours_say_the_same(service: WebPubSubServiceClient, wire: Wire, now: float) -> None:
    session = Session()
    session.mount("https://", wire)
    transport = RequestsTransport(session=session)
    wanted: Any = {"user_id": "ann", "roles": ["webpubsub.sendToGroup"], "groups": ["g", "h i"]}
    with WebPubSubServiceClient(SECURE, "Chat", Credential(), transport=transport, retry_total=0) as other:
        ours = other.get_client_access_token(minutes_to_expire=5, **wanted)["token"]
    assert wire.seen == [("POST", "/api/hubs/Chat/:generateToken", 200)]
    theirs = service.get_client_access_token(minutes_to_expire=5, **wanted)["token"]
    one, two = (read_client_token(token, KEYS, [f"{ENDPOINT}/client/hubs/chat"], now) for token in (theirs, ours))
    assert (one.user_id, one.roles, one.groups) == (two.user_id, two.roles, two.groups)
    assert two.groups == ("g", "h i")
    assert abs(int(one.claims["exp"][0]) - int(two.claims["exp"][0])) < 60
