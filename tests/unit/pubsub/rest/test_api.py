"""Who may ask, for which version, in which size; how a hub's answer is told; and that nothing gets past all that."""

from __future__ import annotations

import string

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.unit.pubsub.rest.rest_values import (
    HOST,
    HUB,
    KEYS,
    NOW,
    REST,
    VERSION,
    answered,
    asked,
    begin,
    error,
    header,
    request,
)

from semel.auth.keys import DEV_KEY, AccessKeys
from semel.auth.tokens import service_token
from semel.errors import ConfigError
from semel.http import HttpRequest, HttpResponse
from semel.pubsub.hub.calls import Answer, Find, Group, ListMembers, Outcome
from semel.pubsub.protocol.client_tokens import CLIENT_PATH, client_token
from semel.pubsub.rest.api import VERSIONS, Asked, Rest, RestSettings

SEND = ("POST", f"{HUB}/:send", "", "hello")


# -- who asks


def test_a_good_token_opens() -> None:
    assert asked(*SEND, content_type="text/plain").hub == "chat"


@pytest.mark.parametrize(
    "value", ["", "Bearer", "Bearer ", "Basic YTpi", "Bearer a.b.c", "Bearer a b", "a.b.c", "\x00"]
)
def test_without_a_good_token_nobody_is_let_in(value: str) -> None:
    response = answered(*SEND, headers={"authorization": value})
    assert response.status == 401
    assert header(response, "www-authenticate") == "Bearer"
    assert error(response)["target"] == "Authorization"


def test_without_the_header_nobody_is_let_in() -> None:
    response = REST.begin(HttpRequest("HEAD", f"{HUB}/users/ann", VERSION, host=HOST), NOW)
    assert isinstance(response, HttpResponse)
    assert (response.status, response.body) == (401, b"")
    assert header(response, "www-authenticate") == "Bearer"


def test_the_word_bearer_may_be_written_in_any_case() -> None:
    token = service_token(KEYS, f"http://{HOST}{HUB}/users/ann", now=NOW)
    assert asked("HEAD", f"{HUB}/users/ann", headers={"authorization": f"bEARER {token}"}).hub == "chat"


@pytest.mark.parametrize(
    "audience",
    [
        f"http://{HOST}{HUB}/groups/a/:send",
        f"http://{HOST}/api/hubs/other/:send",
        f"http://other:8080{HUB}/:send",
        f"http://{HOST}{CLIENT_PATH}chat",
        f"http://{HOST}",
        "",
    ],
)
def test_a_token_for_another_address_is_refused(audience: str) -> None:
    token = service_token(KEYS, audience, now=NOW)
    response = answered(*SEND, headers={"authorization": f"Bearer {token}"})
    assert response.status == 401
    assert "another address" in error(response)["message"]


def test_a_token_under_another_key_is_refused() -> None:
    token = service_token(AccessKeys("x" * 40), f"http://{HOST}{HUB}/:send", now=NOW)
    assert answered(*SEND, headers={"authorization": f"Bearer {token}"}).status == 401


def test_an_expired_token_is_refused() -> None:
    late = REST.begin(request(*SEND, content_type="text/plain"), NOW + 3600)
    assert isinstance(late, HttpResponse)
    assert late.status == 401


@pytest.mark.parametrize(
    ("host", "scheme"),
    [
        (f"{HOST}{CLIENT_PATH}chat?", "http"),
        (f"{HOST}{CLIENT_PATH}chat#", "http"),
        (f"{HOST}{CLIENT_PATH}chat", "http"),
        (f"x@{HOST}", "http"),
        (f"{HOST}\n", "http"),
        (HOST, f"http://{HOST}{CLIENT_PATH}chat?"),
        (HOST, "ftp"),
        (HOST, ""),
        ("", "http"),
        ("a b", "http"),
        ("[::::1]", "http"),
        ("[zz]", "http"),
        ("[1.2.3.4]", "http"),
        ("ä", "http"),
    ],
)
def test_the_token_of_a_client_opens_nothing_whatever_the_host_says(host: str, scheme: str) -> None:
    token = client_token(KEYS, f"http://{HOST}{CLIENT_PATH}chat", now=NOW)
    response = answered(*SEND, headers={"authorization": f"Bearer {token}"}, host=host, scheme=scheme)
    assert response.status == 400
    assert error(response)["target"] == "Host"


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]:8080", "a_b.example", "Example.COM:443", "xn--bcher-kva.example"])
def test_every_usual_host_is_taken(host: str) -> None:
    token = service_token(KEYS, f"https://{host}{HUB}/users/ann", now=NOW)
    assert (
        asked("HEAD", f"{HUB}/users/ann", headers={"authorization": f"Bearer {token}"}, host=host, scheme="https").hub
        == "chat"
    )


def test_behind_a_proxy_the_token_is_for_its_address() -> None:
    rest = Rest(RestSettings(KEYS, endpoints=("https://events.example.com/hubs/",)))
    token = service_token(KEYS, f"https://events.example.com/hubs{HUB}/:send?{VERSION}", now=NOW)
    headers = {"authorization": f"Bearer {token}"}
    assert asked(*SEND, content_type="text/plain", headers=headers, rest=rest).hub == "chat"
    assert answered(*SEND, content_type="text/plain", headers=headers).status == 401


def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(ConfigError):
        RestSettings(KEYS, endpoints=("events.example.com",))


READING = [("HEAD", "/groups/g"), ("GET", "/groups/g/connections"), ("HEAD", "/permissions/sendToGroup/connections/c")]
CHANGING = [("POST", "/:generateToken"), ("DELETE", "/connections/c"), ("PUT", "/users/u/groups/g")]


@pytest.mark.parametrize(
    ("roles", "reads", "changes"),
    [
        ((), True, True),
        (("webpubsub.sendToGroup",), False, False),
        (("read",), False, False),
        (("semel.operate",), True, True),
        (("semel.read", "semel.operate"), True, True),
        (("semel.read",), True, False),
        (("SEMEL.READ",), False, False),
        (("semel.send:orders",), False, False),
        (("semel.",), False, False),
    ],
)
def test_roles_of_ours_say_what_a_token_may(roles: tuple[str, ...], reads: bool, changes: bool) -> None:
    for operations, may in ((READING, reads), (CHANGING, changes)):
        for method, path in operations:
            begun = begin(method, HUB + path, roles=roles)
            refused = isinstance(begun, HttpResponse) and begun.status == 403
            assert refused is not may, (method, path)


# -- which version


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_of_the_service_is_taken(version: str) -> None:
    assert asked("HEAD", f"{HUB}/users/ann", version=f"api-version={version}").hub == "chat"


def test_without_a_version_it_is_the_latest() -> None:
    assert asked("HEAD", f"{HUB}/users/ann", version=None).hub == "chat"


@pytest.mark.parametrize("query", ["api-version=", "api-version=2099-01-01", f"{VERSION}&{VERSION}"])
def test_another_version_is_refused(query: str) -> None:
    response = answered("DELETE", f"{HUB}/connections/c", version=query)
    assert response.status == 400
    assert error(response)["target"] == "api-version"
    assert header(response, "api-supported-versions") == ", ".join(VERSIONS)


# -- addresses


@pytest.mark.parametrize("method", ["HEAD", "GET"])
def test_health_needs_no_token_and_no_version(method: str) -> None:
    assert REST.begin(HttpRequest(method, "/api/health"), NOW) == HttpResponse(200, _PLAIN)


_PLAIN = (("server", "Semel"), ("cache-control", "no-store"), ("api-supported-versions", ", ".join(VERSIONS)))


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/api",
        "/api/hubs",
        HUB,
        f"{HUB}/",
        f"{HUB}/:Send",
        f"{HUB}/:send/",
        f"/{HUB}/:send",
        "/api//hubs/chat/:send",
        "/api/hubs//:send",
        f"{HUB}//:send",
        f"{HUB}/groups",
        f"{HUB}/groups//:send",
        f"{HUB}/groups/g/",
        f"{HUB}/groups/g/:send/x",
        f"{HUB}/groups%2Fg/:send",
        f"{HUB}%2Fgroups/g/:send",
        f"{HUB}/groups/g/connections/c/d",
        "/API/hubs/chat/:send",
    ],
)
def test_there_is_nothing_at_another_address(path: str) -> None:
    response = answered("POST", path, content_type="text/plain")
    assert response.status == 404
    assert error(response)["code"] == "Error.NotFound"


@pytest.mark.parametrize("path", ["/client", "/client/", "/client/hubs/chat"])
def test_where_clients_connect_there_is_nothing_to_call(path: str) -> None:
    response = answered("GET", path)
    assert (response.status, error(response)["code"]) == (400, "Error.BadRequest")


@pytest.mark.parametrize(
    ("path", "allow"),
    [
        ("/api/health", "GET, HEAD"),
        (f"{HUB}/:send", "POST"),
        (f"{HUB}/connections/c", "DELETE, HEAD"),
        (f"{HUB}/permissions/sendToGroup/connections/c", "DELETE, HEAD, PUT"),
    ],
)
@pytest.mark.parametrize("method", ["PATCH", "OPTIONS", "", "post"])
def test_another_method_is_told_which_there_are(path: str, allow: str, method: str) -> None:
    response = answered(method, path)
    assert (response.status, header(response, "allow")) == (405, allow)
    assert error(response)["code"] == "Error.MethodNotAllowed"


@pytest.mark.parametrize(
    "segment",
    [
        "..", ".", "%2e%2e", "%2E.", "%00", "a%00b", "%", "%4", "%zz", "a%2", "%ff", "%C3%28", "%ed%a0%80", "ü", "a b",
        "a\tb", "a\nb", "a?b", "a#b", "%20", "%20%09", "g" * 1025,
    ],
)  # fmt: skip
def test_a_crooked_name_is_refused_and_nobody_else_is_meant(segment: str) -> None:
    response = answered("POST", f"{HUB}/groups/{segment}/:send", "", "hello", content_type="text/plain")
    assert response.status == 400, response
    assert error(response)["code"] == "Error.BadRequest"


@pytest.mark.parametrize("hub", ["1a", "a-b", "a%2Fb", "a%00", "h" * 129, "%C3%A4", "a%20b"])
def test_what_is_no_hub_is_refused(hub: str) -> None:
    response = answered("POST", f"/api/hubs/{hub}/:send", "", "hello", content_type="text/plain")
    assert response.status == 400
    assert "hub" in error(response)["message"]


@pytest.mark.parametrize("hub", ["chat", "CHAT", "Chat", "%63hat"])
def test_a_hub_is_the_same_in_any_spelling(hub: str) -> None:
    assert asked("HEAD", f"/api/hubs/{hub}/users/ann").hub == "chat"


@pytest.mark.parametrize("query", ["a=%ff", "a=%ed%a0%80", "ü=1", "a=b c", "a=\n", "a#b", "&".join(["a=1"] * 5000)])
def test_a_crooked_query_is_refused(query: str) -> None:
    response = answered("HEAD", f"{HUB}/users/ann", query)
    assert (response.status, header(response, "x-ms-error-code"), response.body) == (400, "Error.BadRequest", b"")


# -- answers


@pytest.mark.parametrize(
    ("answer", "status", "code"),
    [
        (Answer(), 200, None),
        (Answer(Outcome.NOT_FOUND), 404, "Error.Connection.NotExisted"),
        (Answer(Outcome.CONFLICT, "no"), 409, "Error.Conflict"),
        (Answer(Outcome.REFUSED, "no"), 400, "Error.BadRequest"),
        (Answer(Outcome.FAILED, "no"), 503, "Error.ServiceUnavailable"),
        (Answer(Outcome.FAILED), 503, "Error.ServiceUnavailable"),
    ],
)
def test_every_outcome_has_its_status(answer: Answer, status: int, code: str | None) -> None:
    response = asked("PUT", f"{HUB}/groups/g/connections/c").respond(answer)
    assert response.status == status
    assert header(response, "retry-after") == ("1" if status == 503 else None)
    assert response.body == b"" if code is None else error(response)["code"] == code
    if answer.message:
        assert error(response)["message"].startswith("no")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("groups/g/connections/c", "Connection `c` is not found."),
        ("permissions/sendToGroup/connections/c", "Connection `c` is not found."),
        ("users/u/groups/g", "User `u` is not found."),
    ],
)
def test_an_error_names_what_is_missing(path: str, message: str) -> None:
    response = asked("PUT", f"{HUB}/{path}").respond(Answer(Outcome.NOT_FOUND))
    assert (response.status, error(response)["message"]) == (404, message)


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
def test_too_many_permissions_are_a_conflict_of_the_connection(method: str) -> None:
    address = f"{HUB}/permissions/sendToGroup/connections/c"
    response = asked(method, address, "targetName=g").respond(Answer(Outcome.CONFLICT, "no"))
    assert (response.status, error(response)["code"]) == (409, "Error.Connection.Conflict")


def test_names_in_the_query_may_be_written_in_any_case() -> None:
    call = asked("GET", f"{HUB}/groups/g/connections", "MaxPageSize=7&TOP=9").call
    assert call == ListMembers("g", "", 7)
    assert answered("GET", f"{HUB}/groups/g/connections", "top=1&Top=2").status == 400


def test_an_answer_to_head_has_no_body() -> None:
    find = asked("HEAD", f"{HUB}/groups/g")
    assert find.call == Find(Group("g"))
    for outcome in Outcome:
        response = find.respond(Answer(outcome, "why"))
        assert response.body == b""
        assert (response.status == 200) is (outcome is Outcome.DONE)
        assert header(response, "content-type") is None


def test_a_message_of_the_hub_cannot_spoil_the_response() -> None:
    response = asked(*SEND, content_type="text/plain").respond(Answer(Outcome.REFUSED, "a\x00\ud800" * 5000))
    assert 0 < len(error(response)["message"]) <= 1000


def test_the_server_says_its_name() -> None:
    assert header(answered("PATCH", "/api/health"), "server") == "Semel"


# -- anything at all

_TEXT = st.text(max_size=30) | st.text(string.printable, max_size=30)
_METHOD = st.sampled_from(["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH"]) | _TEXT
_WORD = st.sampled_from([
    "api", "hubs", "chat", "groups", "users", "connections", "permissions", ":send", ":closeConnections",
    ":generateToken", ":addToGroups", ":removeFromGroups", "sendToGroup", "1", "%2F", "..", "%00", "", "ü",
    "%C3%BC", "%ff",
])  # fmt: skip
_PATH = st.lists(_WORD, max_size=6).map(lambda words: "/api/hubs/chat/" + "/".join(words)) | _TEXT
_FIELD = st.tuples(
    st.sampled_from([
        "filter", "excluded", "messageTtlSeconds", "role", "group", "userId", "minutesToExpire", "clientType", "reason",
        "maxpagesize", "top", "continuationToken", "targetName", "api-version",
    ]),
    st.sampled_from(["", "0", "1", "200", "true", "userId+eq+'a'", "%00", "%ff", "g"]) | _TEXT,
)  # fmt: skip
_QUERY = st.lists(_FIELD, max_size=4).map(lambda fields: "&".join([VERSION, *map("=".join, fields)])) | _TEXT
_HEADERS = st.dictionaries(
    st.sampled_from(
        ["content-type", "content-encoding", "idempotency-key", "x-semel-message-id", "x-webpubsub-metadata-a"]
    )
    | _TEXT,
    st.sampled_from(["text/plain", "application/json", "application/octet-stream", "application/json; charset=utf-16"])
    | _TEXT,
    max_size=4,
)
_BODY = st.binary(max_size=60) | st.sampled_from(
    [b"null", b"[" * 500, b'{"groups":["a"],"filter":"x"}', b'{"groups":[]}']
)


@given(_METHOD, _PATH, _QUERY, _HEADERS, _BODY, st.booleans(), st.sampled_from(list(Outcome)))
@example(
    "POST", f"{HUB}/:addToGroups", VERSION, {"content-type": "application/json"}, b"[" * 100_000, True, Outcome.DONE
)
@example("POST", f"{HUB}/:send", VERSION, {"content-type": "application/json"}, b"[" * 100_000, True, Outcome.DONE)
def test_whatever_comes_there_is_a_response(
    method: str, path: str, query: str, headers: dict[str, str], body: bytes, signed: bool, outcome: Outcome
) -> None:
    if signed and path.isprintable():
        token = service_token(KEYS, f"http://{HOST}{path}", now=NOW)
        headers = {**headers, "authorization": f"Bearer {token}"}
    begun = REST.begin(HttpRequest(method, path, query, headers, body, host=HOST), NOW)
    response = begun.respond(Answer(outcome, "why")) if isinstance(begun, Asked) else begun
    assert 200 <= response.status < 600
    assert method != "HEAD" or response.body == b""
    for name, value in response.headers:
        assert (name + value).isascii()
        assert (name + value).isprintable()
    if response.status >= 400 and response.body:
        assert msgspec.json.decode(response.body)["code"] == header(response, "x-ms-error-code")
    if isinstance(begun, Asked):
        assert signed
        assert begun.hub == "chat"


@given(_TEXT, _TEXT)
def test_any_scheme_and_host_are_harmless(scheme: str, host: str) -> None:
    token = client_token(KEYS, f"http://{HOST}{CLIENT_PATH}chat", now=NOW)
    response = answered(*SEND, headers={"authorization": f"Bearer {token}"}, scheme=scheme, host=host)
    assert response.status in (400, 401)


def test_keys_and_tokens_are_never_shown() -> None:
    sent = request(*SEND, headers={"authorization": "Bearer secret.secret.secret"})
    response = REST.begin(sent, NOW)
    assert isinstance(response, HttpResponse)
    assert b"secret" not in response.body
    assert DEV_KEY not in repr(RestSettings(KEYS))
