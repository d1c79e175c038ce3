"""Who is let in by WebSocket, to which hub, and as what."""

from __future__ import annotations

from http import HTTPStatus
from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.auth.keys import AccessKeys
from semel.http import HttpRequest
from semel.pubsub.events.cloudevents import Allowed
from semel.pubsub.protocol.client_tokens import client_token
from semel.pubsub.protocol.frames import Subprotocol
from semel.pubsub.protocol.handshake import (
    Admission,
    Handshake,
    HandshakeRefused,
    NewClient,
    ResumeRefused,
    ReturningClient,
    SimpleMode,
)
from semel.pubsub.protocol.messages import Data, DataType, SendEvent, SendToGroup
from semel.pubsub.protocol.permissions import Permission

NOW = 1_800_000_000.0
KEYS = AccessKeys("p" * 32, "s" * 32)
HERE = "http://localhost:8080"
RELIABLE = (Subprotocol.JSON_RELIABLE.value,)


def token(audience: str = f"{HERE}/client/hubs/chat", keys: AccessKeys = KEYS, **more: object) -> str:
    return client_token(keys, audience, now=NOW, lifetime_s=3600, **more)  # type: ignore[arg-type]


def ask(
    path: str = "/client/hubs/chat",
    offered: tuple[str, ...] = RELIABLE,
    headers: dict[str, str] | None = None,
    host: str = "localhost:8080",
    now: float = NOW,
    endpoints: tuple[str, ...] = (),
    **query: str,
) -> Admission:
    request = HttpRequest("GET", path, urlencode(query), headers or {}, host=host)
    return Handshake(KEYS, lambda count: b"\x07" * count, endpoints).admit(request, offered, now)


def refused(admission: Admission) -> int:
    assert isinstance(admission, HandshakeRefused)
    return admission.status


def test_a_token_says_who_it_is_and_what_it_may_do() -> None:
    found = ask(access_token=token(user_id="u", roles=["webpubsub.sendToGroup"], groups=["g"]))
    assert isinstance(found, NewClient)
    assert (found.hub, found.subprotocol, found.mode) == ("chat", Subprotocol.JSON_RELIABLE, None)
    session = found.session
    assert (session.user, session.groups, session.connection) == ("u", ("g",), "07" * 16)
    assert session.permissions.may(Permission.SEND_TO_GROUP, "any")
    assert not session.permissions.may(Permission.JOIN_LEAVE_GROUP, "any")
    assert session.token is not None


@pytest.mark.parametrize("path", ["/client/hubs/Chat", "/client", "/client/"])
def test_the_hub_is_in_the_path_or_in_the_query(path: str) -> None:
    found = ask(path, access_token=token(), **({} if "hubs" in path else {"hub": "CHAT"}))
    assert isinstance(found, NewClient)
    assert found.hub == "chat"


def test_the_token_may_be_in_a_header_and_signed_with_either_key() -> None:
    headers = {"authorization": f"Bearer {token(keys=AccessKeys('s' * 32))}"}
    assert isinstance(ask(headers=headers), NewClient)


def test_the_first_subprotocol_that_is_known_is_chosen() -> None:
    found = ask(offered=("mqtt", Subprotocol.PROTOBUF, Subprotocol.JSON), access_token=token())
    assert isinstance(found, NewClient)
    assert found.subprotocol == Subprotocol.PROTOBUF
    assert found.session.token is None


def test_a_subprotocol_is_echoed_as_it_was_offered() -> None:
    found = ask(offered=("JSON.Reliable.webpubsub.azure.v1",), access_token=token())
    assert isinstance(found, NewClient)
    assert (found.subprotocol, found.session.subprotocol) == ("JSON.Reliable.webpubsub.azure.v1", RELIABLE[0])
    assert found.session.token is not None


def test_a_subprotocol_of_an_application_is_echoed_too_if_it_is_a_name() -> None:
    for offered, echoed in ((("no name", "mine", "yours"), "mine"), (("x" * 129, "é"), None)):
        found = ask(offered=offered, access_token=token())
        assert isinstance(found, NewClient)
        assert (found.subprotocol, found.mode) == (echoed, SimpleMode())


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"access_token": "nonsense"},
        {"access_token": token(keys=AccessKeys("x" * 32))},
        {"access_token": token(f"{HERE}/client/hubs/other")},
        {"access_token": token(), "now": NOW + 7200},
        {"access_token": token(), "host": "elsewhere"},
    ],
)
def test_without_a_good_token_it_is_401(more: dict[str, str]) -> None:
    assert refused(ask(**more)) == HTTPStatus.UNAUTHORIZED  # type: ignore[arg-type]


def test_a_host_that_is_none_is_400() -> None:
    made = token("http://h/client/hubs/chat")
    assert refused(ask(access_token=made, host="h/client/hubs/chat?x=")) == HTTPStatus.BAD_REQUEST


def test_another_address_of_the_server_is_one_for_tokens_too() -> None:
    outside = "https://events.example.com"
    made = token(f"{outside}/client/hubs/chat")
    assert isinstance(ask(access_token=made, endpoints=(outside,)), NewClient)


@pytest.mark.parametrize(
    ("path", "query", "status"),
    [
        ("/client/hubs/1chat", {}, HTTPStatus.BAD_REQUEST),
        ("/client/", {}, HTTPStatus.BAD_REQUEST),
        ("/client/hubs/chat/more", {}, HTTPStatus.NOT_FOUND),
        ("/client/hubs/..", {}, HTTPStatus.BAD_REQUEST),
    ],
)
def test_an_address_without_a_hub_is_an_error(path: str, query: dict[str, str], status: HTTPStatus) -> None:
    assert refused(ask(path, access_token=token(), **query)) == status


def test_who_comes_back_shows_its_token_and_no_other_is_looked_at() -> None:
    came = ask(access_token=token())
    assert isinstance(came, NewClient)
    assert came.session.token is not None
    back = {"awps_connection_id": came.session.connection, "awps_reconnection_token": came.session.token}
    returning = ask(access_token="stale", **back)
    assert isinstance(returning, ReturningClient)
    assert (returning.hub, returning.subprotocol) == ("chat", Subprotocol.JSON_RELIABLE)
    assert returning.connection == came.session.connection
    again = ask(awps_connection_id=came.session.connection, awps_reconnection_token=returning.token)
    assert isinstance(again, ReturningClient)


def test_who_comes_back_speaks_as_before() -> None:
    both = (Subprotocol.PROTOBUF_RELIABLE.value, Subprotocol.JSON_RELIABLE.value)
    for chosen in both:
        came = admit_allowed(Allowed(subprotocol=chosen), both)
        assert isinstance(came, NewClient)
        assert came.session.token is not None
        back = {"awps_connection_id": came.session.connection, "awps_reconnection_token": came.session.token}
        returning = ask(offered=both, **back)
        assert isinstance(returning, ReturningClient)
        assert (returning.subprotocol, returning.connection) == (chosen, came.session.connection)
        [other] = {*both} - {chosen}
        assert isinstance(ask(offered=(other,), **back), ResumeRefused)


@pytest.mark.parametrize("protocol", [Subprotocol.JSON_RELIABLE, Subprotocol.PROTOBUF_RELIABLE])
def test_who_offers_no_subprotocol_comes_back_in_that_of_its_session(protocol: Subprotocol) -> None:
    came = ask(offered=(protocol.value,), access_token=token())
    assert isinstance(came, NewClient)
    assert came.session.token is not None
    back = {"awps_connection_id": came.session.connection, "awps_reconnection_token": came.session.token}
    returning = ask(offered=(), **back)
    assert isinstance(returning, ReturningClient)
    assert (returning.subprotocol, returning.known, returning.connection) == (None, protocol, came.session.connection)
    assert isinstance(ask(offered=("custom",), **back), ResumeRefused)


def test_who_says_so_sends_again_in_order() -> None:
    for said, expected in (("true", True), ("TRUE", True), ("false", False), ("", False)):
        found = ask(access_token=token(), semel_in_order=said)
        assert isinstance(found, NewClient)
        assert found.session.in_order is expected
        shown = str(found.session.token)
        back = ask(awps_connection_id="07" * 16, awps_reconnection_token=shown, semel_in_order=said)
        assert isinstance(back, ReturningClient)
        assert back.in_order is expected


def test_names_in_the_query_may_be_written_in_any_case() -> None:
    assert isinstance(ask(ACCESS_TOKEN=token()), NewClient)
    plain = ask(offered=(), access_token=token(), WebPubSub_Mode="sendToGroup", GROUP="g", noecho="true")
    assert isinstance(plain, NewClient)
    assert plain.mode == SimpleMode("g", no_echo=True)


@pytest.mark.parametrize("change", ["connection", "token", "hub", "protocol", "time", "none"])
def test_who_may_not_come_back_is_let_in_and_turned_away(change: str) -> None:
    came = ask(access_token=token())
    assert isinstance(came, NewClient)
    assert came.session.token is not None
    back = {"awps_connection_id": came.session.connection, "awps_reconnection_token": came.session.token}
    if change == "connection":
        back["awps_connection_id"] = "another"
    elif change == "token":
        back["awps_reconnection_token"] = came.session.token[::-1]
    elif change == "none":
        del back["awps_reconnection_token"]
    path = "/client/hubs/other" if change == "hub" else "/client/hubs/chat"
    offered = (Subprotocol.JSON.value,) if change == "protocol" else RELIABLE
    now = NOW + 8 * 86_400 if change == "time" else NOW
    found = ask(path, offered, now=now, **back)
    assert isinstance(found, ResumeRefused)
    assert found.subprotocol == offered[0]


def test_a_client_without_a_subprotocol_sends_events_or_messages() -> None:
    plain = ask(offered=(), access_token=token())
    assert isinstance(plain, NewClient)
    assert plain.mode is not None
    assert plain.mode.read("hi") == SendEvent("message", Data(DataType.TEXT, b"hi"))
    grouped = ask(offered=("odd",), access_token=token(), webpubsub_mode="sendToGroup", group="g", noEcho="true")
    assert isinstance(grouped, NewClient)
    assert grouped.mode == SimpleMode("g", no_echo=True)
    assert grouped.mode.read(b"\x00") == SendToGroup("g", Data(DataType.BINARY, b"\x00"), no_echo=True)


@pytest.mark.parametrize("query", [{"webpubsub_mode": "other"}, {"webpubsub_mode": "sendToGroup"}])
def test_a_mode_that_says_nothing_is_an_error(query: dict[str, str]) -> None:
    assert refused(ask(offered=(), access_token=token(), **query)) == HTTPStatus.BAD_REQUEST


@given(st.text(), st.text(), st.lists(st.text(), max_size=3), st.text())
def test_whatever_is_asked_there_is_an_answer(path: str, query: str, offered: list[str], host: str) -> None:
    request = HttpRequest("GET", path, query, {}, host=host)
    found = Handshake(KEYS, lambda count: b"\x07" * count).admit(request, offered, NOW)
    assert isinstance(found, HandshakeRefused | ResumeRefused)


# -- what an event handler says of it


def admit_allowed(allowed: Allowed, offered: tuple[str, ...] = RELIABLE, **query: str) -> NewClient | HandshakeRefused:
    given = token(user_id="u", roles=["webpubsub.sendToGroup"], groups=["g"])
    request = HttpRequest(
        "GET", "/client/hubs/chat", urlencode({"access_token": given, **query}), host="localhost:8080"
    )
    handshake = Handshake(KEYS, lambda count: b"\x07" * count)
    client = handshake.admit(request, offered, NOW)
    assert isinstance(client, NewClient)
    found = handshake.admit_allowed(client, allowed, request, NOW)
    if isinstance(found, NewClient):
        assert found.session.connection == client.session.connection
    return found


def test_a_handler_may_change_who_comes_in_and_what_he_may() -> None:
    found = admit_allowed(Allowed("other", ("webpubsub.joinLeaveGroup",), ("h",), state="s"))
    assert isinstance(found, NewClient)
    session = found.session
    assert (session.user, session.groups, session.state) == ("other", ("h",), "s")
    assert session.permissions.may(Permission.JOIN_LEAVE_GROUP, "any")
    assert not session.permissions.may(Permission.SEND_TO_GROUP, "any")
    assert session.token is not None


def test_a_handler_that_says_nothing_changes_nothing() -> None:
    found = admit_allowed(Allowed())
    assert isinstance(found, NewClient)
    assert (found.session.user, found.session.groups, found.subprotocol) == ("u", ("g",), RELIABLE[0])
    assert found.session.permissions.may(Permission.SEND_TO_GROUP, "any")


def test_a_handler_may_choose_another_subprotocol() -> None:
    offered = (*RELIABLE, Subprotocol.PROTOBUF.value, "my.own")
    plain = admit_allowed(Allowed(subprotocol=Subprotocol.PROTOBUF.value), offered)
    assert isinstance(plain, NewClient)
    assert (plain.subprotocol, plain.session.token, plain.mode) == (Subprotocol.PROTOBUF, None, None)
    simple = admit_allowed(Allowed(subprotocol="my.own"), offered)
    assert isinstance(simple, NewClient)
    assert (simple.subprotocol, simple.session.subprotocol, simple.mode) == ("my.own", "my.own", SimpleMode())
    assert (
        refused(admit_allowed(Allowed(subprotocol="my.own"), offered, webpubsub_mode="odd")) == HTTPStatus.BAD_REQUEST
    )
