"""`semel pubsub`: what it asks, and how it shows the answers. Against a real server: in tests/integration."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.cli.conftest import Semel

from semel.cli import pubsub
from semel.cli.pubsub import plain

KEY = "k" * 32
SERVER = ("--connection-string", f"Endpoint=http://s.example;AccessKey={KEY};")
MESSAGE: dict[str, Any] = {
    "offset": 7, "at": 1_800_000_000_000_000, "id": "m", "to": {"group": "news"}, "from": "c1", "dataType": "text",
    "data": "hello",
}  # fmt: skip

Answering = Callable[..., list[httpx.Request]]


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> Answering:
    """The server says these one after the other; what it was asked is kept. An error is raised, a function called."""
    client = httpx.Client

    def arrange(*answers: Any) -> list[httpx.Request]:
        asked: list[httpx.Request] = []
        left: Iterator[Any] = iter(answers)

        def answer(request: httpx.Request) -> httpx.Response:
            asked.append(request)
            said = next(left)
            if isinstance(said, BaseException):
                raise said
            if callable(said):
                said()
            return said if isinstance(said, httpx.Response) else httpx.Response(200, json=said)

        transport = httpx.MockTransport(answer)
        monkeypatch.setattr(httpx, "Client", lambda **options: client(**{**options, "transport": transport}))
        return asked

    return arrange


# -- lists


def test_hubs(semel: Semel, answering: Answering) -> None:
    here = {"connected": 1200, "waiting": 2, "elsewhere": 0, "groups": 3}
    hubs = {"hubs": [{"name": "chat", "here": here}, {"name": "old"}]}
    answering(hubs, hubs, {"hubs": []})
    out = semel("pubsub", "hubs", *SERVER).out.splitlines()
    assert [line.split() for line in out[1:]] == [["chat", "1,200", "2", "0", "3"], ["old"]]
    assert semel("pubsub", "hubs", "--json", *SERVER).result == hubs
    assert semel("pubsub", "hubs", *SERVER).out == "no hub has been used yet\n"


def connection(id: str, **more: Any) -> dict[str, Any]:
    nothing = dict.fromkeys(("userId", "protocol", "begin", "acked", "backlog", "backlogBytes", "waitingSince"))
    return {"connectionId": id, "state": "connected", "node": "n1", "groups": [], **nothing, **more}


def test_connections(semel: Semel, answering: Answering) -> None:
    ann = connection("c1", userId="[red]ann", protocol="", groups=["a", "b"], backlog=0, backlogBytes=0)
    late = connection("c2", state="waiting", protocol="json.x", backlog=2, backlogBytes=2000, waitingSince=0.0)
    asked = answering({"connections": [ann, late, connection("c3", state="elsewhere")], "next": None})
    out = semel("pubsub", "connections", "chat", "--group", "a b", *SERVER).out
    [first, second, third] = [line.split() for line in out.splitlines()[1:]]
    assert first == ["c1", "[red]ann", "connected", "n1", "simple", "a,", "b"]
    assert second == ["c2", "waiting", "since", "00:00:00Z", "n1", "json.x", "2", "(2.0", "kB)"]
    assert third == ["c3", "elsewhere", "n1"]
    assert asked[0].url.raw_path == b"/v1/pubsub/hubs/chat/connections?group=a+b&limit=500"
    assert asked[0].headers["authorization"].startswith("Bearer ")


@pytest.mark.parametrize("sort", ["connections", "groups"])
def test_a_name_that_no_hub_has_is_told(sort: str, semel: Semel, answering: Answering) -> None:
    nobody, hubs = {sort: [], "next": None}, {"hubs": [{"name": "chat"}, {"name": "news"}]}
    answering(nobody, hubs)
    assert "caht is none of the hubs that are used, chat, news" in semel("pubsub", sort, "caht", *SERVER).out
    answering(nobody, hubs)
    assert "none of the hubs" not in semel("pubsub", sort, "Chat", *SERVER).out


@pytest.mark.parametrize("columns", ["40", "80", "200"])
def test_names_are_whole_however_narrow_the_terminal_is(
    columns: str, semel: Semel, answering: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are there to be copied."""
    monkeypatch.setenv("COLUMNS", columns)
    reliable = "json.reliable.webpubsub.azure.v1"
    ids, groups = ["0" * 32, "1" * 32], [f"group-{number}" for number in range(8)] + ["g" * 1000]
    answering({"connections": [connection(id, protocol=reliable, groups=groups) for id in ids], "next": None})
    lines = semel("pubsub", "connections", "chat", *SERVER).out.splitlines()
    assert [line.split()[0] for line in lines] == ["connection", *ids]
    assert "json.reliable  group-0, group-1, group-2, group-3, group-4 and 4 more" in lines[1]


def test_lists_are_read_page_by_page_up_to_the_limit(
    semel: Semel, answering: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pubsub, "PAGE", 2)
    groups = [{"name": name, "members": 1} for name in "abcde"]
    pages = ({"groups": groups[:2], "next": "b"}, {"groups": groups[2:4], "next": "d"})
    asked = answering(*pages, {"groups": groups[4:], "next": None})
    assert semel("pubsub", "groups", "chat", "--json", *SERVER).result == {"groups": groups, "more": False}
    assert [request.url.params.get("after") for request in asked] == [None, "b", "d"]
    asked = answering(pages[0], {"groups": groups[2:3], "next": "c"})
    ran = semel("pubsub", "groups", "chat", "--limit", "3", *SERVER)
    assert "there are more: raise --limit" in ran.out
    assert [request.url.params["limit"] for request in asked] == ["2", "1"]


# -- send and close


@pytest.mark.parametrize(
    ("to", "path"),
    [
        (("--group", "a/b"), b"/groups/a%2Fb/:send"),
        (("--user", "ann"), b"/users/ann/:send"),
        (("--connection", "c1"), b"/connections/c1/:send"),
        (("--everybody",), b"/:send"),
    ],
)
def test_a_message_is_sent_to_whom_it_is_for(
    to: tuple[str, ...], path: bytes, semel: Semel, answering: Answering
) -> None:
    asked = answering(httpx.Response(202))
    ran = semel(
        "pubsub", "send", "chat", "hällo", *to, "--key", "k1", "--ttl", "5", "--filter", "userId ne 'x'", *SERVER
    )
    assert (ran.exit_code, ran.err) == (0, "")
    [request] = asked
    assert (request.method, request.content.decode()) == ("POST", "hällo")
    assert request.url.raw_path.startswith(b"/api/hubs/chat" + path + b"?")
    assert (request.headers["idempotency-key"], request.headers["content-type"]) == ("k1", "text/plain")
    assert (request.url.params["messageTtlSeconds"], request.url.params["filter"]) == ("5", "userId ne 'x'")


def test_a_file_is_sent_as_it_is(semel: Semel, answering: Answering, tmp_path: Path) -> None:
    (tmp_path / "order").write_bytes(b"\xff\n")
    asked = answering(httpx.Response(202))
    ran = semel("pubsub", "send", "chat", "--file", "order", "--type", "binary", "--user", "ann", "--json", *SERVER)
    assert ran.result == {"hub": "chat", "user": "ann", "bytes": 2, "new": True}
    assert (asked[0].content, asked[0].headers["content-type"]) == (b"\xff\n", "application/octet-stream")
    assert "idempotency-key" not in asked[0].headers


@pytest.mark.parametrize(
    ("to", "method", "path"),
    [
        (("--group", "g"), "POST", b"/groups/g/:closeConnections"),
        (("--user", "u"), "POST", b"/users/u/:closeConnections"),
        (("--connection", "c"), "DELETE", b"/connections/c"),
        (("--everybody",), "POST", b"/:closeConnections"),
    ],
)
def test_connections_are_closed(
    to: tuple[str, ...], method: str, path: bytes, semel: Semel, answering: Answering
) -> None:
    everybody = {"connections": [connection("c1")], "next": "c1"}
    asked = answering(everybody if "--everybody" in to else httpx.Response(200), httpx.Response(204))
    ran = semel("pubsub", "close", "chat", *to, "--reason", "go", *SERVER)
    assert (ran.exit_code, ran.out.split()[0]) == (0, "closed")
    assert asked[1].method == method
    assert asked[1].url.raw_path == b"/api/hubs/chat" + path + b"?api-version=2024-12-01&reason=go"


def test_nobody_is_closed_where_nobody_was(semel: Semel, answering: Answering) -> None:
    for to, none in (
        (("--user", "ann"), httpx.Response(404)),
        (("--everybody",), {"connections": [], "next": None}),
    ):
        answering(none, httpx.Response(204), none, httpx.Response(204))
        assert "nobody was there" in semel("pubsub", "close", "chat", *to, *SERVER).out
        assert semel("pubsub", "close", "chat", *to, "--json", *SERVER).result["found"] is False
    answering(httpx.Response(401))
    assert semel("pubsub", "close", "chat", "--user", "ann", *SERVER).exit_code == 2


def test_what_was_sent_before_under_its_key_is_not_called_sent(semel: Semel, answering: Answering) -> None:
    again = httpx.Response(202, headers={"idempotent-replayed": "true"})
    answering(again, again)
    args = ("pubsub", "send", "chat", "hello", "--everybody", "--key", "k1", *SERVER)
    assert semel(*args).out == "sent before under this key: not sent again\n"
    assert semel(*args, "--json").result["new"] is False


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("send", "chat", "x"), "not clear to whom"),
        (("close", "chat"), "not clear to whom"),
        (("close", "chat", "--group", "g", "--everybody"), "not clear to whom"),
        (("send", "chat", "--everybody"), "one thing to send"),
        (("send", "chat", "x", "--file", "f", "--everybody"), "one thing to send"),
        (("send", "chat", "--file", "nowhere", "--everybody"), "nowhere cannot be read"),
        (("send", "chat", "x", "--type", "xml", "--everybody"), "none of text, json and binary"),
    ],
)
def test_what_cannot_be_meant_is_not_asked(
    args: tuple[str, ...], message: str, semel: Semel, answering: Answering
) -> None:
    asked = answering()
    ran = semel("pubsub", *args, *SERVER)
    assert (ran.exit_code, ran.out, asked) == (2, "", [])
    assert message in ran.err


# -- tail


def page(*messages: dict[str, Any], after: str = "1:7", missed: int = 0) -> dict[str, Any]:
    return {"messages": list(messages), "after": after, "missed": missed}


def test_messages_are_followed_from_where_one_was(semel: Semel, answering: Answering) -> None:
    asked = answering(page(after="1:5"), page(after="1:6"), page(MESSAGE, MESSAGE), page(MESSAGE))
    ran = semel("pubsub", "tail", "chat", "--count", "3", *SERVER)
    assert (ran.exit_code, ran.err) == (0, "")
    assert ran.out == "08:00:00Z  7  c1 to group news: hello\n" * 3
    assert [request.url.params.get("after") for request in asked] == [None, "1:5", "1:6", "1:7"]


def test_with_json_there_is_one_message_a_line(semel: Semel, answering: Answering) -> None:
    asked = answering(page({**MESSAGE, "data": {"a": "\n"}}, MESSAGE))
    ran = semel("pubsub", "tail", "chat", "--stored", "--group", "news", "--count", "2", "--json", *SERVER)
    assert [json.loads(line)["data"] for line in ran.out.splitlines()] == [{"a": "\n"}, "hello"]
    assert dict(asked[0].url.params) == {"group": "news", "after": "start"}


@pytest.mark.parametrize(
    ("more", "shown"),
    [
        ({"data": "\x1b[31m\x07red\n"}, r"c1 to group news: \x1b[31m\x07red\n"),
        ({"data": [1, "ü"], "dataType": "json"}, 'c1 to group news: [1, "ü"]'),
        ({"data": "/w==", "dataType": "binary"}, "c1 to group news: (binary) /w=="),
        ({"user": "a\x1bnn", "to": {}}, r"a\x1bnn to everybody: hello"),
        ({"to": {"connection": "c2"}}, "c1 to connection c2: hello"),
    ],
)
def test_what_strangers_say_cannot_move_the_cursor(
    more: dict[str, Any], shown: str, semel: Semel, answering: Answering
) -> None:
    answering(page({**MESSAGE, **more}))
    assert semel("pubsub", "tail", "chat", "--count", "1", *SERVER).out == f"08:00:00Z  7  {shown}\n"


@given(st.text())
def test_plain_text_has_nothing_in_it_that_a_terminal_obeys(text: str) -> None:
    assert plain(text).isprintable()


def test_a_server_that_goes_away_for_a_while_is_waited_for(
    semel: Semel, answering: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pubsub, "RETRY_S", 0.0)
    away = httpx.ConnectError("refused")
    asked = answering(page(after="1:5"), away, httpx.Response(503), page(MESSAGE))
    ran = semel("pubsub", "tail", "chat", "--count", "1", *SERVER)
    assert (ran.exit_code, ran.out.count("hello")) == (0, 1)
    assert "trying again" in ran.err
    assert [request.url.params.get("after") for request in asked] == [None, "1:5", "1:5", "1:5"]
    monkeypatch.setattr(pubsub, "GIVE_UP_S", -1.0)
    answering(page(after="1:5"), away)
    assert semel("pubsub", "tail", "chat", *SERVER).exit_code == 3
    answering(away)
    assert semel("pubsub", "tail", "chat", *SERVER).exit_code == 3


def test_what_was_lost_on_the_way_is_said(semel: Semel, answering: Answering) -> None:
    gone = httpx.Response(410, json={"message": "another history"})
    asked = answering(page(after="1:5", missed=1200), gone, page(MESSAGE, after="2:9"))
    ran = semel("pubsub", "tail", "chat", "--count", "1", *SERVER)
    assert "1,200 records before 1:5 were gone" in ran.err
    assert "another history: going on from now" in ran.err
    assert [request.url.params.get("after") for request in asked] == [None, "1:5", None]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_a_polite_kill_are_the_way_to_end_it(number: int, semel: Semel, answering: Answering) -> None:
    before = signal.getsignal(signal.SIGTERM)
    answering(page(MESSAGE), lambda: os.kill(os.getpid(), number))
    ran = semel("pubsub", "tail", "chat", *SERVER)
    assert (ran.exit_code, ran.err, ran.out.count("hello")) == (0, "", 1)
    assert signal.getsignal(signal.SIGTERM) is before


def test_it_hears_ctrl_c_where_a_shell_has_made_it_deaf_to_that(semel: Semel, answering: Answering) -> None:
    """As with `semel pubsub tail chat &` in a script."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        answering(page(MESSAGE), lambda: os.kill(os.getpid(), signal.SIGINT))
        assert semel("pubsub", "tail", "chat", *SERVER).exit_code == 0
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
