"""What each operation asks of a hub, and the exact status of its answer."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import jwt
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.pubsub.rest.rest_values import (
    HOST,
    HUB,
    KEYS,
    NOW,
    REST,
    Client,
    FakeHub,
    answered,
    asked,
    error,
    header,
)

from semel.auth.keys import AccessKeys
from semel.http import HttpError
from semel.pubsub.hub.calls import (
    Answer,
    Call,
    Check,
    CloseConnections,
    Connection,
    Everybody,
    Find,
    Grant,
    Group,
    JoinMembers,
    ListMembers,
    Outcome,
    Publish,
    RemoveMembers,
    Revoke,
    User,
)
from semel.pubsub.protocol.client_tokens import client_audiences, read_client_token
from semel.pubsub.protocol.messages import Data, DataType
from semel.pubsub.protocol.permissions import Permission
from semel.pubsub.rest.api import Rest, RestSettings
from semel.pubsub.rest.routes import TABLE, page_token, read_token

HELLO = Data(DataType.TEXT, b"hello")
SEND, JOIN = Permission.SEND_TO_GROUP, Permission.JOIN_LEAVE_GROUP
TEXT: dict[str, Any] = {"body": "hello", "content_type": "text/plain"}
GROUPS: dict[str, Any] = {"body": '{"groups":["g","h","g"],"filter":"true"}', "content_type": "application/json"}

# method, path, what more is sent, the call, the status when done, the status when there is nobody
OPERATION_CASES: list[tuple[str, str, dict[str, Any], Call, int, int]] = [
    ("POST", "/:send", TEXT, Publish(Everybody(), HELLO), 202, 202),
    ("POST", "/groups/g/:send", TEXT, Publish(Group("g"), HELLO), 202, 202),
    ("POST", "/users/u/:send", TEXT, Publish(User("u"), HELLO), 202, 202),
    ("POST", "/connections/c/:send", TEXT, Publish(Connection("c"), HELLO), 202, 202),
    ("POST", "/:closeConnections", {}, CloseConnections(Everybody()), 204, 204),
    ("POST", "/groups/g/:closeConnections", {}, CloseConnections(Group("g")), 204, 204),
    ("POST", "/users/u/:closeConnections", {}, CloseConnections(User("u")), 204, 204),
    ("DELETE", "/connections/c", {}, CloseConnections(Connection("c")), 204, 204),
    ("HEAD", "/connections/c", {}, Find(Connection("c")), 200, 404),
    ("HEAD", "/groups/g", {}, Find(Group("g")), 200, 404),
    ("HEAD", "/users/u", {}, Find(User("u")), 200, 404),
    ("PUT", "/groups/g/connections/c", {}, JoinMembers(Connection("c"), ("g",)), 200, 404),
    ("DELETE", "/groups/g/connections/c", {}, RemoveMembers(Connection("c"), ("g",)), 204, 204),
    ("GET", "/groups/g/connections", {}, ListMembers("g"), 200, 200),
    ("DELETE", "/connections/c/groups", {}, RemoveMembers(Connection("c"), None), 204, 204),
    ("PUT", "/users/u/groups/g", {}, JoinMembers(User("u"), ("g",)), 200, 404),
    ("DELETE", "/users/u/groups/g", {}, RemoveMembers(User("u"), ("g",)), 204, 204),
    ("DELETE", "/users/u/groups", {}, RemoveMembers(User("u"), None), 204, 204),
    ("PUT", "/permissions/sendToGroup/connections/c", {}, Grant("c", SEND), 200, 404),
    ("DELETE", "/permissions/sendToGroup/connections/c", {}, Revoke("c", SEND), 204, 204),
    ("HEAD", "/permissions/joinLeaveGroup/connections/c", {}, Check("c", JOIN), 200, 404),
    ("POST", "/:addToGroups", GROUPS, JoinMembers(Everybody(), ("g", "h"), "true"), 200, 200),
    ("POST", "/:removeFromGroups", GROUPS, RemoveMembers(Everybody(), ("g", "h"), "true"), 200, 200),
]


@pytest.mark.parametrize(("method", "path", "more", "call", "done", "missing"), OPERATION_CASES)
def test_every_operation_becomes_its_call(
    method: str, path: str, more: dict[str, Any], call: Call, done: int, missing: int
) -> None:
    begun = asked(method, HUB + path, **more)
    assert begun.call == call
    assert begun.respond(Answer()).status == done
    assert begun.respond(Answer(Outcome.NOT_FOUND)).status == missing


def test_no_operation_is_left_out() -> None:
    assert len(TABLE) == 24  # and /api/health
    assert len(TABLE) == len(OPERATION_CASES) + 1  # and :generateToken


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [
        ("HEAD", "/connections/c", "Warning.Connection.NotExisted"),
        ("HEAD", "/groups/g", "Warning.Group.NotExisted"),
        ("HEAD", "/users/u", "Warning.User.NotExisted"),
        ("PUT", "/groups/g/connections/c", "Error.Connection.NotExisted"),
        ("PUT", "/users/u/groups/g", "Warning.User.NotExisted"),
        ("PUT", "/permissions/sendToGroup/connections/c", "Info.Connection.NotExisted"),
        ("HEAD", "/permissions/sendToGroup/connections/c", "Info.Connection.NotExisted"),
    ],
)
def test_who_is_missing_is_told_as_the_service_does(method: str, path: str, code: str) -> None:
    response = asked(method, HUB + path).respond(Answer(Outcome.NOT_FOUND))
    assert (response.status, header(response, "x-ms-error-code")) == (404, code)


# -- names

_NAME = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\x00"), min_size=1, max_size=20).filter(
    lambda name: not name.isspace() and name not in (".", "..")
)


@given(_NAME, _NAME)
def test_a_name_arrives_as_it_was_whatever_is_in_it(group: str, connection: str) -> None:
    path = f"{HUB}/groups/{quote(group, safe='')}/connections/{quote(connection, safe='')}"
    assert asked("PUT", path).call == JoinMembers(Connection(connection), (group,))


@pytest.mark.parametrize(
    ("segment", "user"),
    [
        ("a%2Fb", "a/b"), ("a%2fb", "a/b"), ("a%252Fb", "a%2Fb"), ("a+b", "a+b"), ("a%20b", "a b"),
        ("%F0%9F%99%82", "🙂"), (":send", ":send"), ("groups", "groups"), ("..%2F..", "../.."), ("...", "..."),
        ("%2F", "/"), ("u" * 1024, "u" * 1024),
    ],
)  # fmt: skip
def test_only_what_is_written_with_percent_is_changed(segment: str, user: str) -> None:
    assert asked("HEAD", f"{HUB}/users/{segment}").call == Find(User(user))


@pytest.mark.parametrize("path", [f"/users/{'u' * 1025}", f"/connections/{'c' * 256}", f"/groups/{'g' * 1025}"])
def test_an_overlong_name_is_refused(path: str) -> None:
    assert answered("HEAD", HUB + path).status == 400


# -- sending


def _publish(query: str = "", **more: Any) -> Publish:
    call = asked("POST", f"{HUB}/:send", query, **{**TEXT, **more}).call
    assert isinstance(call, Publish)
    return call


def _refused(query: str = "", **more: Any) -> dict[str, str]:
    response = answered("POST", f"{HUB}/:send", query, **{**TEXT, **more})
    assert response.status == 400
    return error(response)


def test_everything_that_can_be_said_of_a_message() -> None:
    headers = {
        "idempotency-key": "order-7",
        "x-semel-message-id": "m 1",
        "x-webpubsub-metadata-trace": " a, b ",
        "x-webpubsub-metadata-b": "",
        "x-unknown": "x",
    }
    query = "excluded=c%201&excluded=c2&excluded=&filter=userId%20eq+%27a%27&messageTtlSeconds=300&unknown=1"
    assert _publish(query, headers=headers) == Publish(
        Everybody(),
        HELLO,
        excluded=("c 1", "c2"),
        filter="userId eq 'a'",
        ttl_s=300,
        metadata={"trace": "a, b", "b": ""},
        key="order-7",
        id="m 1",
    )


@pytest.mark.parametrize("query", ["messageTtlSeconds=0", "filter=", "excluded=", ""])
def test_nothing_said_is_nothing_meant(query: str) -> None:
    assert _publish(query) == Publish(Everybody(), HELLO)


@pytest.mark.parametrize("ttl", ["-1", "301", "1.5", "x", "", "%D9%A3", "1&messageTtlSeconds=2", "99999999999"])
def test_a_time_to_live_out_of_range_is_refused(ttl: str) -> None:
    assert _refused(f"messageTtlSeconds={ttl}")["target"] == "messageTtlSeconds"


def test_a_bad_filter_is_told_as_the_service_does() -> None:
    assert _refused("filter=invalid%20filter") == {
        "code": "Error.BadRequest",
        "message": "Invalid syntax for 'invalid filter': Syntax error at position 14 in 'invalid filter'. "
        "(Parameter 'filter')",
        "target": "Request",
    }


def test_the_filter_is_looked_at_before_the_body() -> None:
    assert "filter" in _refused("filter=%20", body="{", content_type="application/json")["message"]


@pytest.mark.parametrize("key", ["", " ", "a b", "k" * 256, "ä", "a\n"])
def test_a_key_that_is_none_is_refused(key: str) -> None:
    assert _refused(headers={"idempotency-key": key})["target"] == "Idempotency-Key"


@pytest.mark.parametrize("key", ["k", '"quoted"', "k" * 255])
def test_a_key_is_taken_as_it_is(key: str) -> None:
    assert _publish(headers={"idempotency-key": key}).key == key


@pytest.mark.parametrize(
    "headers",
    [
        {"x-semel-message-id": ""},
        {"x-semel-message-id": "m" * 256},
        {"x-semel-message-id": "\ud800"},
        {"x-webpubsub-metadata-": "x"},
        {"x-webpubsub-metadata-a b": "x"},
        {"x-webpubsub-metadata-a": "ä"},
        {"x-webpubsub-metadata-a": "x" * 1025},
    ],
)
def test_other_headers_are_checked(headers: dict[str, str]) -> None:
    assert _refused(headers=headers)


def test_headers_about_messages_mean_nothing_elsewhere() -> None:
    headers = {"idempotency-key": "", "x-semel-message-id": ""}
    assert asked("DELETE", f"{HUB}/connections/c", headers=headers).call == CloseConnections(Connection("c"))


def test_a_key_that_was_used_for_something_else_is_a_conflict() -> None:
    response = asked("POST", f"{HUB}/:send", **TEXT).respond(Answer(Outcome.CONFLICT, "used before"))
    assert (response.status, error(response)["message"]) == (409, "used before")


# -- bodies


@pytest.mark.parametrize(
    ("content_type", "body", "data"),
    [
        ("application/json", '{"a": 1}', Data(DataType.JSON, b'{"a": 1}')),
        ("application/json", ' "text" ', Data(DataType.JSON, b'"text"')),
        ("Application/JSON; Charset=UTF-8", "1", Data(DataType.JSON, b"1")),
        ("application/json;charset=utf-16le", "[1]".encode("utf-16-le"), Data(DataType.JSON, b"[1]")),
        ("text/plain", "grüße", Data(DataType.TEXT, "grüße".encode())),
        ('text/plain; charset="iso-8859-1"', "grüße".encode("latin-1"), Data(DataType.TEXT, "grüße".encode())),
        ("text/plain; format=flowed", "", Data(DataType.TEXT, b"")),
        ("application/octet-stream", b"\xff\x00", Data(DataType.BINARY, b"\xff\x00")),
        (" application/octet-stream ", b"", Data(DataType.BINARY, b"")),
    ],
)
def test_a_body_is_read_by_its_content_type(content_type: str, body: bytes | str, data: Data) -> None:
    assert _publish(content_type=content_type, body=body).data == data


@pytest.mark.parametrize(
    "content_type",
    [
        "application/xml", "text/html", "application/x-protobuf", "text/plain, application/json", "json",
        "text/plain; charset=unknown", 'text/plain; charset="', "text/plain; charset=", "text/plain; charset=zip",
    ],
)  # fmt: skip
def test_another_content_type_is_refused(content_type: str) -> None:
    response = answered("POST", f"{HUB}/:send", body="hello", content_type=content_type)
    assert response.status == 415
    assert error(response)["target"] == "Content-Type"


@pytest.mark.parametrize("content_type", [None, ""])
def test_a_body_without_a_content_type_is_bytes(content_type: str | None) -> None:
    call = asked("POST", f"{HUB}/:send", body="hello", content_type=content_type).call
    assert isinstance(call, Publish)
    assert call.data == Data(DataType.BINARY, b"hello")


def test_a_compressed_body_is_not_taken_for_text() -> None:
    response = answered("POST", f"{HUB}/:send", **TEXT, headers={"content-encoding": "gzip"})
    assert response.status == 415
    assert _publish(headers={"content-encoding": "identity"}).data == HELLO


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("application/json", ""),
        ("application/json", "{"),
        ("application/json", "null"),
        ("application/json", "[" * 64 + "]" * 64),
        ("application/json", b'"\xff"'),
        ("text/plain", b"\xff"),
        ("text/plain; charset=us-ascii", "ü"),
        ("text/plain; charset=utf-16le", b"\x00\xd8"),
    ],
)
def test_a_body_that_is_not_what_it_says_is_refused(content_type: str, body: bytes | str) -> None:
    assert _refused(content_type=content_type, body=body)["code"] == "Error.BadRequest"


# -- closing


def test_connections_are_closed_with_a_reason_but_for_some() -> None:
    call = asked("POST", f"{HUB}/groups/g/:closeConnections", "reason=good%20night&excluded=a&excluded=b").call
    assert call == CloseConnections(Group("g"), ("a", "b"), "good night")


@pytest.mark.parametrize("query", ["reason=%00", f"reason={'r' * 1025}", "reason=a&reason=b", f"excluded={'c' * 256}"])
def test_a_reason_is_short_text(query: str) -> None:
    assert answered("DELETE", f"{HUB}/connections/c", query).status == 400


# -- groups by filter


@pytest.mark.parametrize("rest", ["", ',"filter":null', ',"filter":""', ',"more":[1]'])
def test_without_a_filter_all_are_meant(rest: str) -> None:
    body = f'{{"groups":["g"]{rest}}}'
    call = asked("POST", f"{HUB}/:addToGroups", body=body, content_type="application/json").call
    assert call == JoinMembers(Everybody(), ("g",))


@pytest.mark.parametrize(
    "body",
    [
        "", "{", "null", "[]", "42", "{}", '{"groups":null}', '{"groups":[]}', '{"groups":"g"}',
        '{"groups":["g",null]}', '{"groups":["g",42]}', '{"groups":["g",""]}',
        '{"groups":["g"," \\t"]}', '{"groups":["\\u0000"]}',
        '{"groups":["\\ud800"]}', '{"groups":["g"],"filter":42}', '{"groups":["g"],"filter":" "}',
        '{"groups":["g"],"filter":"unknown eq 1"}', b'{"groups":["\xff"]}',
        '{"groups":["g"],"more":' + "[" * 80 + "]" * 80 + "}", '{"groups":["' + "g" * 1025 + '"]}',
    ],
)  # fmt: skip
@pytest.mark.parametrize("verb", [":addToGroups", ":removeFromGroups"])
def test_a_body_that_names_no_groups_is_refused(verb: str, body: bytes | str) -> None:
    response = answered("POST", f"{HUB}/{verb}", body=body, content_type="application/json")
    assert response.status == 400
    assert error(response)["code"] == "Error.BadRequest"


@pytest.mark.parametrize("content_type", [None, "text/plain", "application/octet-stream"])
def test_groups_come_as_json(content_type: str | None) -> None:
    assert answered("POST", f"{HUB}/:addToGroups", body='{"groups":["g"]}', content_type=content_type).status == 415


# -- permissions


@pytest.mark.parametrize(
    ("name", "permission"),
    [
        ("sendToGroup", SEND),
        ("SENDTOGROUP", SEND),
        ("1", SEND),
        ("joinLeaveGroup", JOIN),
        ("joinleavegroup", JOIN),
        ("2", JOIN),
    ],
)
def test_a_permission_has_several_names(name: str, permission: Permission) -> None:
    for method, call in (("PUT", Grant), ("DELETE", Revoke), ("HEAD", Check)):
        path = f"{HUB}/permissions/{name}/connections/c"
        assert asked(method, path).call == call("c", permission)
        assert asked(method, path, "targetName=a%2Fb%20%2A").call == call("c", permission, "a/b *")


@pytest.mark.parametrize("name", ["0", "3", "-1", "unknown", "sendToGroup,joinLeaveGroup", "%20"])
def test_there_is_no_other_permission(name: str) -> None:
    assert answered("HEAD", f"{HUB}/permissions/{name}/connections/c").status == 400


@pytest.mark.parametrize(
    "query", ["targetName=", "targetName=%20", f"targetName={'g' * 1025}", "targetName=a&targetName=b"]
)
def test_an_empty_target_is_not_every_target(query: str) -> None:
    assert answered("PUT", f"{HUB}/permissions/sendToGroup/connections/c", query).status == 400


# -- tokens for clients


def _token(query: str = "", **more: Any) -> str:
    response = answered("POST", "/api/hubs/CHAT/:generateToken", query, **more)
    assert response.status == 200
    assert header(response, "cache-control") == "no-store"
    token: str = msgspec.json.decode(response.body)["token"]
    return token


def _audience(token: str) -> str:
    audience: str = jwt.decode(token, options={"verify_signature": False})["aud"]
    return audience


def test_a_token_says_what_was_asked_for() -> None:
    query = (
        "userId=a%2Fb&role=webpubsub.sendToGroup&role=webpubsub.joinLeaveGroup.g&group=g&group=h%20i&clientType=default"
    )
    audiences = client_audiences("chat", [f"http://{HOST}"])
    claims = read_client_token(_token(query), KEYS, audiences, NOW)
    assert claims.user_id == "a/b"
    assert claims.roles == ("webpubsub.sendToGroup", "webpubsub.joinLeaveGroup.g")
    assert claims.groups == ("g", "h i")


def test_a_token_with_nothing_in_it_lives_an_hour() -> None:
    claims = read_client_token(_token("userId=&role="), KEYS, client_audiences("chat", [f"http://{HOST}"]), NOW)
    assert set(claims.claims) == {"aud", "iat", "exp"}
    assert claims.claims["exp"] == (str(int(NOW) + 3600),)


@pytest.mark.parametrize("minutes", [1, 7, 2**31 - 1])
def test_a_token_lives_as_long_as_asked(minutes: int) -> None:
    token = _token(f"minutesToExpire={minutes}")
    claims = read_client_token(token, KEYS, client_audiences("chat", [f"http://{HOST}"]), NOW)
    assert claims.claims["exp"] == (str(int(NOW) + 60 * minutes),)


def test_behind_a_proxy_a_token_is_for_its_address() -> None:
    rest = Rest(RestSettings(KEYS, endpoints=("https://events.example.com", f"https://{HOST}/direct")))
    assert _audience(_token(rest=rest)) == f"https://{HOST}/direct/client/hubs/chat"
    rest = Rest(RestSettings(KEYS, endpoints=("https://events.example.com/a/", "https://b.example.com")))
    assert _audience(_token(rest=rest)) == "https://events.example.com/a/client/hubs/chat"
    assert _audience(_token()) == f"http://{HOST}/client/hubs/chat"


@pytest.mark.parametrize(
    ("query", "status", "target"),
    [
        ("minutesToExpire=0", 400, "minutesToExpire"),
        ("minutesToExpire=-1", 400, "minutesToExpire"),
        ("minutesToExpire=2147483648", 400, "minutesToExpire"),
        ("minutesToExpire=", 400, "minutesToExpire"),
        ("clientType=other", 400, "clientType"),
        ("clientType=mqtt", 501, "clientType"),
        ("clientType=SocketIO", 501, "clientType"),
        ("userId=a&userId=b", 400, "userId"),
        ("userId=%00", 400, "Request"),
        ("group=a&group=%20", 400, "Request"),
        (f"role={'r' * 2049}", 400, "Request"),
        ("&".join(f"group={'g' * 1000}{number}" for number in range(40)), 400, "Request"),
    ],
)
def test_a_token_that_cannot_be_is_refused(query: str, status: int, target: str) -> None:
    response = answered("POST", f"{HUB}/:generateToken", query)
    assert (response.status, error(response)["target"]) == (status, target)


# -- pages


GROUP = f"{HUB}/groups/room%2F1/connections"


def _hub(count: int) -> FakeHub:
    names = [f"c{number:03}" for number in range(count)]
    return FakeHub(*(Client(name, None if number % 2 else "ann", {"room/1"}) for number, name in enumerate(names)))


def _page(hub: FakeHub, query: str, path: str = GROUP, rest: Rest = REST) -> dict[str, Any]:
    begun = asked("GET", path, query, version=None, rest=rest)
    page: dict[str, Any] = msgspec.json.decode(begun.respond(hub.answer(begun.call)).body)
    return page


def _pages(hub: FakeHub, query: str) -> list[list[str]]:
    pages, more = [], f"api-version=2024-01-01&{query}"
    while more:
        page = _page(hub, more)
        pages.append([member["connectionId"] for member in page["value"]])
        link = urlsplit(page.get("nextLink", ""))
        more = link.query
        if more:
            assert link[:3] == ("http", HOST, GROUP)
            assert parse_qs(more)["api-version"] == ["2024-01-01"]
        assert len(pages) < 300
    return pages


@pytest.mark.parametrize(
    ("query", "sizes"),
    [
        ("", [200, 1]),
        ("maxpagesize=100", [100, 100, 1]),
        ("top=1", [1]),
        ("top=200", [200]),
        ("top=201", [200, 1]),
        ("top=2147483647", [200, 1]),
        ("maxpagesize=2&top=5", [2, 2, 1]),
        ("maxpagesize=2&top=4", [2, 2]),
        ("maxpagesize=67", [67, 67, 67]),
    ],
)
def test_pages_are_full_and_end_where_they_should(query: str, sizes: list[int]) -> None:
    pages = _pages(_hub(201), query)
    assert [len(page) for page in pages] == sizes
    together = [name for page in pages for name in page]
    assert together == [f"c{number:03}" for number in range(sum(sizes))]


def test_a_page_is_as_the_service_writes_it() -> None:
    assert _page(_hub(2), "api-version=2024-12-01") == {
        "value": [{"connectionId": "c000", "userId": "ann"}, {"connectionId": "c001"}]
    }


def test_an_empty_group_is_an_empty_list() -> None:
    assert _page(FakeHub(), "api-version=2024-12-01") == {"value": []}


def test_who_goes_and_comes_between_pages_shifts_nobody() -> None:
    hub = _hub(6)
    first = _page(hub, "api-version=2024-12-01&maxpagesize=2")
    del hub.clients["c000"], hub.clients["c001"]
    hub.clients["b"] = Client("b", None, {"room/1"})
    second = _page(hub, urlsplit(first["nextLink"]).query)
    assert [member["connectionId"] for member in second["value"]] == ["c002", "c003"]


def test_the_link_is_for_the_address_that_the_caller_knows() -> None:
    rest = Rest(RestSettings(KEYS, endpoints=("https://events.example.com/hubs/",)))
    page = _page(_hub(2), "api-version=2024-12-01&maxpagesize=1", rest=rest)
    assert page["nextLink"].startswith(f"https://events.example.com/hubs{GROUP}?")


@pytest.mark.parametrize(
    "query",
    [
        "maxpagesize=0", "maxpagesize=-1", "maxpagesize=201", "maxpagesize=1.5", "maxpagesize=", "maxpagesize=x",
        "maxpagesize=1&maxpagesize=2", "top=0", "top=-1", "top=2147483648", "top=", "top=1&top=2",
        "continuationToken=", "continuationToken=c000", "continuationToken=e30", "continuationToken=%25%2F%2B",
        "continuationToken=a&continuationToken=b", f"continuationToken={'z' * 2049}",
    ],
)  # fmt: skip
def test_another_page_is_refused(query: str) -> None:
    response = answered("GET", GROUP, query)
    assert response.status == 400
    assert error(response)["target"] == query.partition("=")[0]


@given(st.text(st.characters(exclude_categories=("Cs",)), max_size=255))
def test_a_token_is_for_one_list_under_one_key(after: str) -> None:
    token = page_token(KEYS, "chat", "g", after)
    assert read_token(token, KEYS, "chat", "g") == after
    other = AccessKeys("y" * 40)
    for keys, hub, group in ((KEYS, "other", "g"), (KEYS, "chat", "G"), (other, "chat", "g")):
        with pytest.raises(HttpError):
            read_token(token, keys, hub, group)
    assert read_token(token, AccessKeys("y" * 40, KEYS.primary), "chat", "g") == after


@given(st.text(max_size=60) | st.from_regex(r"[A-Za-z0-9_-]{0,60}", fullmatch=True))
def test_no_token_is_made_up(token: str) -> None:
    with pytest.raises(HttpError):
        read_token(token, KEYS, "chat", "g")


def test_a_token_goes_on_after_its_connection() -> None:
    token = page_token(KEYS, "chat", "room/1", "c1")
    assert asked("GET", GROUP, f"continuationToken={token}&top=7").call == ListMembers("room/1", "c1", 7)
