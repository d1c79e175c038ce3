"""The API for operators: what may be asked by whom, and how the answer is told."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.pubsub.rest.rest_values import HOST, KEYS, NOW, request

from semel.auth.authority import Authority
from semel.auth.keys import AccessKeys
from semel.auth.tokens import service_token
from semel.errors import EpochChanged, StoreUnavailable
from semel.http import HttpRequest, HttpResponse
from semel.kernel.envelope import Envelope
from semel.kernel.position import Position
from semel.kernel.store import Record
from semel.pubsub.hub.calls import (
    Answer,
    Attendance,
    ConnectionInfo,
    Everybody,
    Group,
    GroupInfo,
    HubInfo,
    ListConnections,
    ListGroups,
    Outcome,
    User,
)
from semel.pubsub.hub.records import EVERYBODY, DeliveryTerms, accepted_event, message
from semel.pubsub.protocol.client_tokens import client_token
from semel.pubsub.protocol.messages import Data, DataType
from semel.pubsub.rest.admin import Admin, HubRow, HubsAsked, MessagePage, MessagesAsked
from semel.pubsub.rest.api import Asked

ADMIN = Admin(Authority(KEYS))
HUBS = "/v1/pubsub/hubs"
CHAT = f"{HUBS}/Chat"


def begin(path: str, query: str = "", method: str = "GET", **more: Any) -> Any:
    return ADMIN.begin(request(method, path, query, version=None, **more), NOW)


def asked(path: str, query: str = "") -> Asked:
    found = begin(path, query)
    assert isinstance(found, Asked), found
    return found


def refused(path: str, query: str = "", **more: Any) -> tuple[int, str]:
    found = begin(path, query, **more)
    assert isinstance(found, HttpResponse), found
    return found.status, msgspec.json.decode(found.body)["message"]


def body(response: HttpResponse) -> Any:
    assert response.status == 200
    assert dict(response.headers) == {"content-type": "application/json", "cache-control": "no-store"}
    return msgspec.json.decode(response.body)


# -- who may ask


@pytest.mark.parametrize("roles", [(), ("semel.read",), ("semel.operate",), ("semel.read", "something else")])
def test_who_may_look(roles: tuple[str, ...]) -> None:
    assert isinstance(begin(HUBS, roles=roles), HubsAsked)


def test_who_may_not() -> None:
    assert refused(HUBS, roles=("semel.send:x",)) == (
        403,
        "the token does not allow this; make one with the role semel.read",
    )
    assert refused(HUBS, headers={"authorization": ""})[0] == 401
    for token in (
        service_token(AccessKeys("o" * 32), f"http://{HOST}{HUBS}", now=NOW),
        service_token(KEYS, f"http://{HOST}{CHAT}/groups", now=NOW),
        client_token(KEYS, f"http://{HOST}/client/hubs/chat", now=NOW),
    ):
        assert refused(HUBS, headers={"authorization": f"Bearer {token}"})[0] == 401


def test_a_token_may_be_for_another_address_of_the_server() -> None:
    token = service_token(KEYS, f"https://events.example/{HUBS[1:]}", now=NOW)
    there = HttpRequest("GET", HUBS, headers={"authorization": f"Bearer {token}"}, host=HOST)
    assert isinstance(ADMIN.begin(there, NOW), HttpResponse)
    assert isinstance(Admin(Authority(KEYS, ("https://events.example",))).begin(there, NOW), HubsAsked)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1/", 404),
        ("/v1/pubsub", 404),
        (f"{HUBS}/chat", 404),
        (f"{HUBS}/chat/users", 404),
        (f"{HUBS}/chat/groups/x", 404),
        (f"{HUBS}/", 404),
        (f"{HUBS}/../groups", 400),
        (f"{HUBS}/%zz/groups", 400),
        (f"{HUBS}/no hub/groups", 400),
        (f"{HUBS}/1/groups", 400),
    ],
)
def test_addresses_that_lead_nowhere(path: str, status: int) -> None:
    assert refused(path)[0] == status


def test_nothing_is_changed_here() -> None:
    found = begin(HUBS, method="POST")
    assert (found.status, dict(found.headers)["allow"]) == (405, "GET")


@given(st.text(max_size=40), st.text(max_size=40), st.sampled_from([f"{CHAT}/messages", f"{CHAT}/connections"]))
def test_whatever_is_asked_there_is_an_answer(path: str, query: str, known: str) -> None:
    for each in (f"/v1/{path}", known):
        found = ADMIN.begin(request("GET", each, query, version=None), NOW)
        assert isinstance(found, HttpResponse | HubsAsked | Asked | MessagesAsked)


# -- lists


def test_hubs_are_told_with_what_is_known_of_them_here() -> None:
    rows = [HubRow("chat", HubInfo(1, 2, 0, 3)), HubRow("other")]
    assert body(begin(HUBS).respond(rows)) == {
        "hubs": [
            {"name": "chat", "here": {"connected": 1, "waiting": 2, "elsewhere": 0, "groups": 3}},
            {"name": "other"},
        ]
    }


def test_what_is_asked_of_a_hub() -> None:
    assert (asked(f"{CHAT}/groups").hub, asked(f"{CHAT}/groups").call) == ("chat", ListGroups())
    assert asked(f"{CHAT}/groups", "after=a%20b&limit=7").call == ListGroups("a b", 7)
    assert asked(f"{CHAT}/connections").call == ListConnections(Everybody())
    assert asked(f"{CHAT}/connections", "group=g&after=c").call == ListConnections(Group("g"), "c")
    assert asked(f"{CHAT}/connections", "user=u").call == ListConnections(User("u"))


@pytest.mark.parametrize(
    "query", ["limit=0", "limit=1001", "limit=x", "group=a&user=b", "group=%20", "after=a&after=b"]
)
def test_a_list_that_cannot_be_asked_for(query: str) -> None:
    assert refused(f"{CHAT}/connections", query)[0] == 400


def test_a_list_says_after_what_it_goes_on() -> None:
    rows = (GroupInfo("a", 1), GroupInfo("b", 2))
    groups = [{"name": "a", "members": 1}, {"name": "b", "members": 2}]
    assert body(asked(f"{CHAT}/groups").respond(Answer(rows=rows))) == {"groups": groups, "next": None}
    assert body(asked(f"{CHAT}/groups").respond(Answer(rows=rows, more=True))) == {"groups": groups, "next": "b"}
    one = ConnectionInfo("c1", Attendance.ELSEWHERE, "n2", ("g",), "ann")
    found = body(asked(f"{CHAT}/connections").respond(Answer(rows=(one,), more=True)))
    assert found["next"] == "c1"
    assert found["connections"] == [
        {
            "connectionId": "c1", "state": "elsewhere", "node": "n2", "groups": ["g"], "userId": "ann",
            "protocol": None, "begin": None, "acked": None, "backlog": None, "backlogBytes": None, "waitingSince": None,
        }
    ]  # fmt: skip


def test_a_hub_that_cannot_answer() -> None:
    response = asked(f"{CHAT}/groups").respond(Answer(Outcome.FAILED, "no disk"))
    assert (response.status, dict(response.headers)["retry-after"]) == (503, "1")
    assert b"no disk" in response.body


# -- messages


def messages(query: str = "") -> MessagesAsked:
    found = begin(f"{CHAT}/messages", query)
    assert isinstance(found, MessagesAsked), found
    return found


def test_from_where_messages_are_read() -> None:
    now = messages()
    assert (now.stream, now.after, now.from_start, now.target, now.wait_s) == ("hub/chat", None, False, None, 0)
    then = messages("after=3:17&wait=30&group=g&limit=2")
    assert (then.after, then.target, then.wait_s, then.limit) == (Position("hub/chat", 3, 17), "g/g", 30, 2)
    assert messages("after=start").from_start


@pytest.mark.parametrize("query", ["after=1", "after=-1:0", "after=1:9007199254740992", "after=a:b", "wait=31"])
def test_a_position_that_is_none(query: str) -> None:
    assert refused(f"{CHAT}/messages", query)[0] == 400


def record(data: Data | None, target: str = "g/news", terms: DeliveryTerms | None = None) -> Record:
    made = message(
        "hub/chat", "m1", target, data, at=5, sender="c1", user="ann", terms=terms or DeliveryTerms(),
        on_fresh=accepted_event("chat"),
    )  # fmt: skip
    return Record(Position("hub/chat", 2, 7), made.envelope, 1_000, made.kind, target)


def told(*records: Record, missed: int = 0) -> Any:
    return body(messages().respond(MessagePage(records, Position("hub/chat", 2, 9), missed)))


def test_a_message_is_told_with_all_that_decides_about_it() -> None:
    terms = DeliveryTerms(expires=9, metadata={"k": "v"})
    assert told(record(Data(DataType.JSON, b'{"a": 1}'), terms=terms), missed=3) == {
        "messages": [
            {
                "offset": 7, "at": 1_000, "id": "m1", "to": {"group": "news"}, "from": "c1", "user": "ann",
                "dataType": "json", "data": {"a": 1}, "metadata": {"k": "v"}, "expires": 9,
            }
        ],
        "after": "2:9",
        "missed": 3,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("target", "to"),
    [("u/ann", {"user": "ann"}), ("c/c2", {"connection": "c2"}), (EVERYBODY, {}), ("g/a/b", {"group": "a/b"})],
)
def test_to_whom_a_message_is(target: str, to: dict[str, str]) -> None:
    assert told(record(Data(DataType.TEXT, b"x"), target))["messages"][0]["to"] == to


@pytest.mark.parametrize(
    ("data", "kind", "shown"),
    [
        (Data(DataType.TEXT, "grüße\n".encode()), "text", "grüße\n"),
        (Data(DataType.BINARY, b"\xff\x00"), "binary", "/wA="),
        (Data(DataType.PROTOBUF, b"\x01"), "protobuf", "AQ=="),
        (Data(DataType.TEXT, b"\xff"), "binary", "/w=="),
        (Data(DataType.JSON, b"{"), "binary", "ew=="),
        (Data(DataType.JSON, b"[" * 100_000), "binary", base64.b64encode(b"[" * 100_000).decode()),
        (None, None, None),
    ],
)
def test_what_is_not_what_it_says_is_shown_as_bytes(data: Data | None, kind: str | None, shown: str | None) -> None:
    [found] = told(record(data))["messages"]
    assert (found.get("dataType"), found.get("data")) == (kind, shown)


def test_a_large_body_and_a_record_of_somebody_else() -> None:
    large = msgspec.structs.replace(record(Data(DataType.TEXT, b"")), body=b"large")
    assert told(large)["messages"][0]["data"] == "large"
    strange = Record(Position("hub/chat", 2, 1), Envelope("m", datacontenttype="text/csv", data=b"a,b"), 0)
    assert told(strange)["messages"][0]["dataType"] == "binary"


def test_a_store_that_cannot_be_read() -> None:
    gone = messages().respond(EpochChanged("another history", current=3, fix="begin again"))
    assert gone.status == 410
    assert messages().respond(StoreUnavailable("away")).status == 503
