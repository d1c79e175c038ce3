"""Calling event handlers: only those who want it, only where the configuration says, and never for ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import httpx
import msgspec
import pytest

from semel.auth.keys import DEV_KEY, AccessKeys
from semel.errors import StoreUnavailable
from semel.http import HttpResponse
from semel.pubsub.events.abuse import VALID_S, WAIT_S
from semel.pubsub.events.cloudevents import (
    RESPONSE_BYTES_MAX,
    TOTAL_S,
    EventClient,
    HandlerUnreachable,
    NotAllowed,
    disconnected_event,
    user_event,
)
from semel.pubsub.events.handler_calls import INVOCATIONS_MAX, CallHandler, CancelCall, Fetch, Fetched, Replied
from semel.pubsub.events.handlers import event_handler
from semel.pubsub.protocol.messages import Data, DataType
from semel.runtime.server import webhooks as webhooks_module
from semel.runtime.server.webhooks import CHARS_MAX, COOKIES_MAX, Cookies, Room, Webhooks
from semel.testing.limits import scaled

KEYS = AccessKeys(DEV_KEY)
WAIT_FOR_S = 30.0
HANDLER = event_handler("https://app.example/{event}?code=1", user_events="*")
EVENT = user_event(
    EventClient("chat", "c1", "u", "json.webpubsub.azure.v1", "s"), "1", 0, "ask", Data(DataType.TEXT, b"hi")
)  # fmt: skip
WELCOME = {"WebHook-Allowed-Origin": "events.example"}


class _Stream(httpx.AsyncByteStream):
    def __init__(self, content: bytes | AsyncIterator[bytes]) -> None:
        self._content = content

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if isinstance(self._content, bytes):
            yield self._content
        else:
            async for chunk in self._content:
                yield chunk


def response(
    status: int, headers: dict[str, str] | None = None, content: bytes | AsyncIterator[bytes] = b""
) -> httpx.Response:
    return httpx.Response(status, headers=headers, stream=_Stream(content))


Answer = Callable[[httpx.Request], Awaitable[httpx.Response]]


class App:
    """A handler, as far as the HTTP client can tell."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.requests: list[httpx.Request] = []
        self.welcome: Answer = _welcome
        self.answer: Answer = _taken
        self.bodies: dict[str, bytes] = {}
        transport = httpx.MockTransport(self._take)
        self.webhooks = Webhooks(
            "chat", KEYS, "events.example", self._read, clock=lambda: self.now, transport=transport
        )

    async def _take(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        return await (self.answer if request.method == "POST" else self.welcome)(request)

    async def _read(self, name: str) -> bytes:
        if name not in self.bodies:
            raise StoreUnavailable("away")
        return self.bodies[name]

    async def call(self, within_s: float = 5.0) -> object:
        return await self.webhooks.call(EVENT, HANDLER, within_s)

    @property
    def methods(self) -> list[str]:
        return [request.method for request in self.requests]


async def _welcome(request: httpx.Request) -> httpx.Response:
    return response(200, headers=WELCOME)


async def _taken(request: httpx.Request) -> httpx.Response:
    return response(204)


@pytest.fixture
async def app() -> AsyncIterator[App]:
    app = App()
    yield app
    await app.webhooks.close()


async def test_who_wants_events_is_asked_once_and_told(app: App) -> None:
    assert await app.call() == HttpResponse(204)
    await app.call()
    assert app.methods == ["OPTIONS", "POST", "POST"]
    asked, told, _ = app.requests
    assert str(asked.url) == "https://app.example/validate?code=1"
    assert asked.headers["webhook-request-origin"] == "events.example"
    assert "ce-signature" not in asked.headers
    assert (str(told.url), told.content) == ("https://app.example/ask?code=1", b"hi")
    assert told.headers["ce-signature"] == KEYS.signature("c1")
    assert told.headers["ce-id"] == "1"
    assert told.headers["accept-encoding"] == "identity"
    webhooks = app.webhooks
    assert (webhooks.requests, webhooks.failures, webhooks.questions) == (2, 0, 1)


async def test_the_question_is_asked_again_while_events_go_on(app: App) -> None:
    await app.call()
    app.now += VALID_S + 1
    app.requests.clear()
    await app.call()
    await app.webhooks._asking[HANDLER.url]
    assert sorted(app.methods) == ["OPTIONS", "POST"]


async def test_who_does_not_want_events_gets_none_and_is_asked_again_later(app: App) -> None:
    async def no(request: httpx.Request) -> httpx.Response:
        return response(200, headers={"WebHook-Allowed-Origin": "other.example"})

    app.welcome = no
    assert [await app.call(), await app.call()] == [NotAllowed(), NotAllowed()]
    assert app.methods == ["OPTIONS"]
    app.now += scaled(WAIT_S)
    app.welcome = _welcome
    assert await app.call() == HttpResponse(204)


async def test_who_cannot_be_asked_has_not_said_no(app: App) -> None:
    async def away(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    app.welcome = away
    reply = await app.call()
    assert isinstance(reply, HandlerUnreachable)
    assert not reply.is_late


async def test_who_knows_no_options_is_asked_with_get(app: App) -> None:
    async def only_get(request: httpx.Request) -> httpx.Response:
        return response(404) if request.method == "OPTIONS" else await _welcome(request)

    app.welcome = only_get
    await app.call()
    assert app.methods == ["OPTIONS", "GET", "POST"]


async def test_events_wait_together_for_one_answer(app: App) -> None:
    asked, go_on = asyncio.Event(), asyncio.Event()

    async def slowly(request: httpx.Request) -> httpx.Response:
        asked.set()
        await go_on.wait()
        return await _welcome(request)

    app.welcome = slowly
    calls = [asyncio.create_task(app.call()) for _ in range(3)]
    await asked.wait()
    go_on.set()
    assert await asyncio.gather(*calls) == [HttpResponse(204)] * 3
    assert app.methods == ["OPTIONS", "POST", "POST", "POST"]


async def test_redirects_and_cookies_lead_nowhere(app: App) -> None:
    async def elsewhere(request: httpx.Request) -> httpx.Response:
        return response(307, headers={"Location": "http://127.0.0.1/secret", "Set-Cookie": "a=b; Path=/"})

    app.answer = elsewhere
    replies = [await app.call(), await app.call()]
    assert [reply.status for reply in replies if isinstance(reply, HttpResponse)] == [307, 307]
    assert {request.url.host for request in app.requests} == {"app.example"}
    assert all("cookie" not in request.headers for request in app.requests)
    assert app.webhooks.failures == 2


@pytest.mark.parametrize("host", ["app.example", "127.0.0.1:3000", "localhost:3000"])
async def test_cookies_are_sent_with_the_later_events_of_the_same_connection(app: App, host: str) -> None:
    async def sticky(request: httpx.Request) -> httpx.Response:
        return response(204, headers={"Set-Cookie": f"affinity={request.headers['ce-connectionId']}; Path=/"})

    handler = event_handler(f"http://{host}/{{event}}", system_events=("disconnected",), user_events="*")
    app.answer = sticky
    other = msgspec.structs.replace(EVENT, client=EventClient("chat", "c2"))
    end = disconnected_event(EVENT.client, "9", 0, "bye")
    for event in (EVENT, other, EVENT, other, end, EVENT):
        await app.webhooks.call(event, handler, 5.0)
    told = [request.headers.get("cookie") for request in app.requests if request.method == "POST"]
    assert told == [None, None, "affinity=c1", "affinity=c2", "affinity=c1", None]
    assert [request.headers.get("cookie") for request in app.requests if request.method == "OPTIONS"] == [None]


def test_there_is_a_limit_to_cookies() -> None:
    cookies = Cookies(connections_max=2)
    asked = httpx.Request("POST", "http://app.example/")

    def kept(connection: str, *said: str) -> str | None:
        answer = httpx.Response(200, headers=[("Set-Cookie", each) for each in said], request=asked)
        cookies.keep(answer, connection)
        again = httpx.Request("POST", "http://app.example/")
        cookies.add_to(again, connection)
        return again.headers.get("cookie")

    assert kept("c1", "a=b") == "a=b"
    assert kept("c2", *(f"c{number}=d" for number in range(COOKIES_MAX + 1))) is None
    assert kept("c2", "a=" + "b" * CHARS_MAX) is None
    assert kept("c2", "a=b; Domain=other.example") is None
    assert (kept("c2", "a=c"), kept("c1"), kept("c3", "a=d"), kept("c2")) == ("a=c", "a=b", "a=d", None)
    assert len(cookies) == 2


async def test_no_more_of_a_body_is_read_than_may_be_taken(app: App) -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while True:
            sent += 65_536
            yield bytes(65_536)

    async def much(request: httpx.Request) -> httpx.Response:
        return response(200, content=endless())

    app.answer = much
    reply = await app.call()
    assert isinstance(reply, HttpResponse)
    assert len(reply.body) == RESPONSE_BYTES_MAX + 1
    assert sent <= RESPONSE_BYTES_MAX + 2 * 65_536


async def test_who_does_not_answer_in_time_is_late(app: App) -> None:
    async def never(request: httpx.Request) -> httpx.Response:
        await asyncio.Event().wait()
        raise AssertionError

    await app.call()
    app.answer = never
    assert await app.call(0.02) == HandlerUnreachable("it did not answer in time", is_late=True)


async def test_a_handler_is_not_called_by_all_at_once(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks_module, "CALLS_MAX", 2)
    under_way = most = 0

    async def count(request: httpx.Request) -> httpx.Response:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1
        return response(204)

    app.answer = count
    await asyncio.gather(*(app.call() for _ in range(10)))
    assert most == 2


async def test_one_connection_cannot_take_all_calls_to_a_handler(app: App) -> None:
    """It has as many invocations under way as a session may, and none is answered; another is called all the same."""
    begun, slow = asyncio.Event(), asyncio.Event()

    async def answer(request: httpx.Request) -> httpx.Response:
        if request.headers["ce-connectionid"] == "c1":
            begun.set()
            await slow.wait()
        return response(204)

    await app.call()
    app.answer = answer
    asked = [asyncio.create_task(app.call(scaled(WAIT_FOR_S))) for _ in range(INVOCATIONS_MAX)]
    await begun.wait()
    other = user_event(EventClient("chat", "c2"), "2", 0, "ask", Data(DataType.TEXT, b"hi"))
    for _ in asked:
        await asyncio.sleep(0)  # all of them are on their way
    assert await app.webhooks.call(other, HANDLER, scaled(WAIT_FOR_S)) == HttpResponse(204)
    slow.set()
    assert await asyncio.gather(*asked) == [HttpResponse(204)] * INVOCATIONS_MAX
    assert app.webhooks._rooms[HANDLER.url]._own == {}


async def test_a_question_of_a_client_is_asked_again_as_long_as_there_is_time(
    app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(request: httpx.Request) -> httpx.Response:
        return response(503)

    async def pass_time(seconds: float) -> None:
        app.now += seconds

    app.answer = broken
    monkeypatch.setattr(webhooks_module.asyncio, "sleep", pass_time)
    assert await app.webhooks.ask(EVENT, HANDLER, 3.0) == HttpResponse(503)
    assert app.methods.count("POST") == 2
    app.requests.clear()
    await app.webhooks.ask(EVENT, HANDLER, TOTAL_S)
    assert app.methods.count("POST") == 4


async def test_a_hub_hears_the_reply_unless_it_has_cancelled(app: App) -> None:
    told: asyncio.Queue[Replied | Fetched] = asyncio.Queue()
    app.webhooks.receive(CallHandler("t1", EVENT, HANDLER, 5.0), told.put_nowait)
    assert await told.get() == Replied("t1", HttpResponse(204))
    app.webhooks.receive(CallHandler("t2", EVENT, HANDLER, 5.0), told.put_nowait)
    app.webhooks.receive(CancelCall("t2"), told.put_nowait)
    app.webhooks.receive(CancelCall("unknown"), told.put_nowait)
    app.bodies["blob"] = b"stored"
    app.webhooks.receive(Fetch("t3", "blob"), told.put_nowait)
    app.webhooks.receive(Fetch("t4", "gone"), told.put_nowait)
    assert [await told.get(), await told.get()] == [Fetched("t3", b"stored"), Fetched("t4", None)]
    assert told.empty()


async def test_a_hub_hears_a_reply_also_if_calling_itself_fails(app: App, caplog: pytest.LogCaptureFixture) -> None:
    async def broken(request: httpx.Request) -> httpx.Response:
        raise RuntimeError("a mistake of ours")

    app.answer = broken
    told: asyncio.Queue[Replied | Fetched] = asyncio.Queue()
    app.webhooks.receive(CallHandler("t1", EVENT, HANDLER, 5.0), told.put_nowait)
    assert await told.get() == Replied("t1", HandlerUnreachable("the call failed: RuntimeError"))
    assert "could not be called" in caplog.text


# -- how many calls may be under way


class Calls:
    def __init__(self, calls: int, per_connection: int) -> None:
        self.room = Room(calls, per_connection)
        self.inside: list[str] = []
        self._goes: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def begin(self, *names: str) -> None:
        """A name is a connection and a letter for the call."""
        for name in names:
            self._goes[name] = asyncio.Event()
            self._tasks[name] = asyncio.create_task(self._call(name))
        await asyncio.sleep(0)

    async def end(self, name: str) -> None:
        self._goes[name].set()
        await self._tasks[name]
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def _call(self, name: str) -> None:
        async with self.room.place(name[0]):
            self.inside.append(name)
            await self._goes[name].wait()
            self.inside.remove(name)


async def test_so_many_at_a_time_and_the_next_in_the_order_of_coming() -> None:
    calls = Calls(calls=2, per_connection=2)
    await calls.begin("1a", "2a", "3a", "4a")
    assert calls.inside == ["1a", "2a"]
    await calls.end("1a")
    assert calls.inside == ["2a", "3a"]
    for name in ("2a", "3a", "4a"):
        await calls.end(name)


async def test_one_connection_does_not_take_the_places_of_others() -> None:
    calls = Calls(calls=3, per_connection=1)
    await calls.begin("1a", "1b", "1c", "2a")
    assert calls.inside == ["1a", "2a"]
    for name in ("1a", "1b", "1c", "2a"):
        await calls.end(name)


async def test_a_connection_without_calls_is_forgotten() -> None:
    calls = Calls(calls=1, per_connection=1)
    await calls.begin("1a", "1b")
    calls._tasks["1b"].cancel()
    await calls.end("1a")
    assert (calls.room._own, calls.room._users) == ({}, {})
