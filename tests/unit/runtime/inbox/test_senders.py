"""What comes with Semel for URLs and hubs: the request that is made, and what each answer means."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

import httpx
import pytest

from semel import App, Outbox
from semel.auth.keys import AccessKeys, parse_connection_string
from semel.auth.tokens import read_service_token, service_audiences
from semel.errors import ConfigError, InputError, PeerUnavailable, RemoteProtocolError
from semel.inbox.outbox import OutboxCalls, parse_destination
from semel.kernel.envelope import Envelope, from_json
from semel.kernel.ops import Unit, WorkState
from semel.runtime.inbox import service
from semel.runtime.inbox.senders import (
    AskedToWait,
    HttpSenders,
    PostAnswer,
    check_answer,
    header_key,
    hub_sender,
    retry_after,
    url_sender,
)
from semel.stores.memory import MemoryStore

KEY = "k" * 44
HUB = parse_connection_string(f"Endpoint=https://events.example.com;AccessKey={KEY};Version=1.0;")


@pytest.mark.parametrize(
    ("status", "error"),
    [(200, None), (204, None), (301, RemoteProtocolError), (400, RemoteProtocolError), (404, RemoteProtocolError),
     (409, RemoteProtocolError), (412, RemoteProtocolError), (422, RemoteProtocolError), (408, PeerUnavailable),
     (425, PeerUnavailable), (429, PeerUnavailable), (500, PeerUnavailable), (503, PeerUnavailable)],
)  # fmt: skip
def test_what_an_answer_means(status: int, error: type[Exception] | None) -> None:
    if error is None:
        check_answer("there", PostAnswer(status))
        return
    with pytest.raises(error, match=f"there answered {status}"):
        check_answer("there", PostAnswer(status))


async def test_a_url_that_is_still_at_the_first_request_is_asked_again() -> None:
    async def busy(*_: object) -> PostAnswer:
        return PostAnswer(409)

    with pytest.raises(PeerUnavailable, match="answered 409"):
        await url_sender(busy)(parse_destination("https://there.example/orders"), Envelope("a"))


def test_a_wait_that_is_asked_for_is_kept_within_bounds() -> None:
    with pytest.raises(AskedToWait) as asked:
        check_answer("there", PostAnswer(503, 12.0))
    assert asked.value.wait_s == 12.0
    with pytest.raises(AskedToWait) as asked:
        check_answer("there", PostAnswer(429, 1e9))
    assert asked.value.wait_s == 3600.0
    with pytest.raises(RemoteProtocolError):
        check_answer("there", PostAnswer(400, 12.0))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [(None, None), ("7", 7.0), ("Thu, 01 Jan 1970 00:01:40 GMT", 90.0), ("soon", None), ("-3", None)],
)
def test_the_header_that_asks_to_wait(text: str | None, wanted: float | None) -> None:
    assert retry_after(text, 10.0) == wanted


def test_an_id_that_cannot_stand_in_a_header_is_hashed() -> None:
    assert header_key("order-7") == "order-7"
    for odd in ("a b", "é", "a\r\nX-Evil: 1"):
        assert header_key(odd).startswith("sha256-")
        assert header_key(odd) == header_key(odd)


async def test_a_url_gets_a_cloudevent_and_the_id_as_its_key() -> None:
    posted: list[tuple[str, Envelope, Mapping[str, str]]] = []

    async def post(url: str, body: bytes, headers: Mapping[str, str]) -> PostAnswer:
        posted.append((url, from_json(body), headers))
        return PostAnswer(202)

    await url_sender(post)(parse_destination("https://a/b"), Envelope("m", type="note", data=b'"x"'))
    [(url, envelope, headers)] = posted
    assert (url, envelope.id, envelope.type) == ("https://a/b", "m", "note")
    assert headers == {"Content-Type": "application/cloudevents+json", "Idempotency-Key": "m"}


@pytest.mark.parametrize(
    ("to", "path"),
    [("hub:chat", "/api/hubs/chat/:send"), ("hub:chat/group/room 1", "/api/hubs/chat/groups/room%201/:send"),
     ("hub:chat/user/a/b", "/api/hubs/chat/users/a%2Fb/:send"),
     ("hub:chat/connection/c", "/api/hubs/chat/connections/c/:send")],
)  # fmt: skip
async def test_a_hub_gets_the_body_by_its_rest_api(to: str, path: str) -> None:
    posted: list[tuple[str, bytes, Mapping[str, str]]] = []

    async def post(url: str, body: bytes, headers: Mapping[str, str]) -> PostAnswer:
        posted.append((url, body, headers))
        return PostAnswer(202)

    send = hub_sender(post, HUB)
    await send(parse_destination(to), Envelope("m", data=b'{"a":1}', datacontenttype="application/json"))
    [(url, body, headers)] = posted
    assert (url, body) == (f"https://events.example.com{path}?api-version=2024-12-01", b'{"a":1}')
    assert (headers["Content-Type"], headers["X-Semel-Message-Id"]) == ("application/json", "m")
    token = headers["Authorization"].removeprefix("Bearer ")
    audiences = service_audiences(url.partition("?")[0])
    read_service_token(token, AccessKeys(KEY), audiences, now=time.time())


async def test_one_id_to_two_groups_has_two_keys() -> None:
    """A hub would take the second for a repetition of the first."""
    keys: list[str] = []

    async def post(url: str, body: bytes, headers: Mapping[str, str]) -> PostAnswer:
        keys.append(headers["Idempotency-Key"])
        return PostAnswer(202)

    for to in ("hub:chat/group/a", "hub:chat/group/b", "hub:chat/group/a"):
        await hub_sender(post, HUB)(parse_destination(to), Envelope("m"))
    assert keys[0] == keys[2] != keys[1]


async def test_a_redirect_leads_nowhere_and_nobody_there_is_tried_again() -> None:
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url))
        if request.url.host == "gone":
            raise httpx.ConnectError("refused")
        return httpx.Response(302, headers={"location": "https://elsewhere/"})

    senders = HttpSenders(None, transport=httpx.MockTransport(answer))
    assert "hub" not in senders.by_kind
    with pytest.raises(RemoteProtocolError, match="302"):
        await senders.by_kind["url"](parse_destination("https://a/b"), Envelope("m"))
    with pytest.raises(PeerUnavailable, match="refused"):
        await senders.by_kind["url"](parse_destination("https://gone/b?secret=1"), Envelope("m"))
    assert asked == ["https://a/b", "https://gone/b?secret=1"]
    await senders.close()


# -- in an application


@dataclass
class Order:
    id: str


def publishing(app: App, to: str) -> None:
    @app.endpoint("orders").on(Order)
    def handle(order: Order, outbox: Outbox) -> None:
        outbox.publish(order, to=to, id=order.id)

    app.send(Order("a"), to="orders", id="o-a")


def answering(monkeypatch: pytest.MonkeyPatch, *answers: httpx.Response) -> list[httpx.Request]:
    asked: list[httpx.Request] = []
    left = list(answers)

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return left.pop(0)

    make = HttpSenders
    monkeypatch.setattr(service, "HttpSenders", lambda hub: make(hub, transport=httpx.MockTransport(answer)))
    return asked


def test_a_url_needs_no_code(monkeypatch: pytest.MonkeyPatch) -> None:
    wait = httpx.Response(503, headers={"retry-after": "0"})
    asked = answering(monkeypatch, wait, httpx.Response(200))
    app = App(MemoryStore(), name="shop")
    publishing(app, "https://example.com/orders")
    app.drain()
    assert [request.headers["idempotency-key"] for request in asked] == ["a", "a"]
    row = app.store.work("outbox/shop", "https://example.com/orders a")
    assert row is not None
    assert row.state is WorkState.DONE


def test_what_a_receiver_refuses_is_a_dead_letter_of_the_outbox(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = answering(monkeypatch, httpx.Response(422), httpx.Response(201))
    app = App(MemoryStore(), name="shop")
    publishing(app, "https://example.com/orders")
    app.drain()
    [letter] = app.dead_letters("outbox/shop")
    assert (letter.message, "422" in letter.cause, len(asked)) == ("a", True, 1)
    app.replay("outbox/shop", letter.identity)
    app.drain()
    assert (len(asked), app.dead_letters("outbox/shop")) == (2, [])


def test_a_hub_needs_a_connection_string() -> None:
    with pytest.raises(ConfigError, match="AccessKey"):
        App(MemoryStore(), hub="Endpoint=https://events.example.com")
    assert KEY not in repr(App(MemoryStore(), hub=HUB.text()).hub)


def test_an_endpoint_that_is_not_there_is_refused_where_it_is_published() -> None:
    app = App(MemoryStore(), name="shop")
    app.endpoint("orders")
    with pytest.raises(InputError, match="no endpoint 'bils'"):
        app.context.outbox("", None).publish(Order("a"), to="endpoint:bils")


def test_an_endpoint_that_is_gone_is_a_dead_letter_and_not_sent_without_end() -> None:
    """Who publishes it knew of no endpoints, or it was taken away since."""
    app = App(MemoryStore(), name="shop")
    calls = OutboxCalls("shop")
    calls.publish(Order("a"), "endpoint:bills", id="a")
    app.store.commit([Unit(tuple(calls.enqueues))])
    app.drain()
    [letter] = app.dead_letters("outbox/shop")
    assert "bills" in letter.cause
    app.endpoint("bills").on(Order)(take)
    app.replay("outbox/shop", letter.identity)
    assert app.drain() == 1


def take(order: Order) -> None:
    """A handler that is content."""


PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.mark.parametrize(
    ("headers", "wanted"),
    [
        ({"traceparent": PARENT, "tracestate": "a=1"}, {"traceparent": PARENT, "tracestate": "a=1"}),
        ({"traceparent": PARENT, "tracestate": "a=1\r\nx-admin: 1"}, {"traceparent": PARENT}),
        ({"traceparent": PARENT, "tracestate": "é=1"}, {"traceparent": PARENT}),
        ({"traceparent": "x\r\nx-admin: 1", "tracestate": "a=1"}, {}),
        ({}, {}),
    ],
)
async def test_the_trace_of_a_message_is_in_the_request_and_nothing_that_breaks_it(
    headers: dict[str, str], wanted: dict[str, str]
) -> None:
    asked: list[Mapping[str, str]] = []

    async def post(url: str, body: bytes, headers: Mapping[str, str]) -> PostAnswer:
        asked.append(headers)
        return PostAnswer(200)

    envelope = Envelope("a", headers=headers)
    await url_sender(post)(parse_destination("https://there.example/orders"), envelope)
    await hub_sender(post, HUB)(parse_destination("hub:chat"), envelope)
    for sent in asked:
        assert {name: value for name, value in sent.items() if name.startswith("trace")} == wanted
        httpx.Request("POST", "https://there.example", headers=dict(sent))
