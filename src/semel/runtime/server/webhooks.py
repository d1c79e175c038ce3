"""Calls the event handlers of one hub over HTTP.

A handler is asked first whether it wants events of this server (`pubsub.events.abuse`); those who come meanwhile wait
for the answer. A call never raises: what goes wrong is a `Reply` as well. Only what the configuration names is called,
and nothing that a response says leads elsewhere: no redirect, no proxy of the environment. Cookies are kept for each
connection on its own (`Cookies`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any

import httpx

from semel import __version__
from semel.auth.keys import AccessKeys
from semel.errors import SemelError
from semel.http import HttpResponse, OutgoingRequest
from semel.pubsub.events.abuse import (
    GET,
    OPTIONS,
    TIMEOUT_S,
    UNKNOWN,
    HandlerConsent,
    UrlVerdict,
    judge,
    validation_request,
)
from semel.pubsub.events.cloudevents import (
    FOLLOW_REDIRECTS,
    RESPONSE_BYTES_MAX,
    SHARE_COOKIES,
    TRUST_ENVIRONMENT,
    Family,
    HandlerUnreachable,
    NotAllowed,
    PendingEvent,
    Reply,
    next_try,
    request_for,
)
from semel.pubsub.events.handler_calls import CallHandler, CancelCall, Fetch, Fetched, Replied
from semel.pubsub.events.handlers import EventHandler, SystemEvent

CONNECTIONS_MAX = 10_000
COOKIES_MAX = 20
CHARS_MAX = 4096


class Cookies:
    """What event handlers have set as cookies, for each connection on its own: by a cookie a load balancer in front of
    several handlers keeps all events of one client with one of them. They live in memory: after a restart, or on
    another node, a client begins without."""

    def __init__(self, connections_max: int = CONNECTIONS_MAX) -> None:
        self._jars: OrderedDict[str, httpx.Cookies] = OrderedDict()
        self._connections_max = connections_max

    def __len__(self) -> int:
        return len(self._jars)

    def add_to(self, request: httpx.Request, connection: str) -> None:
        """Those that are for the address of the request."""
        jar = self._jars.get(connection)
        if jar is not None:
            self._jars.move_to_end(connection)
            jar.set_cookie_header(request)

    def keep(self, response: httpx.Response, connection: str) -> None:
        """Those of a response that took the event. Who sets too much has none."""
        cookies = response.headers.get_list("set-cookie")
        if not cookies or not response.is_success:
            return
        jar = self._jars.setdefault(connection, httpx.Cookies())
        if sum(map(len, cookies)) <= CHARS_MAX:
            jar.extract_cookies(response)
        if not 0 < len(jar) <= COOKIES_MAX:
            del self._jars[connection]
        elif len(self._jars) > self._connections_max:
            self._jars.popitem(last=False)

    def forget(self, connection: str) -> None:
        self._jars.pop(connection, None)


class Room:
    """At most `calls` to one event handler at a time, and `per_connection` for each connection: who asks much waits
    behind itself and takes no place from others meanwhile. Who waits is let in in the order of coming."""

    def __init__(self, calls: int, per_connection: int) -> None:
        self._all = asyncio.Semaphore(calls)
        self._per_connection = per_connection
        self._own: dict[str, asyncio.Semaphore] = {}
        self._users: Counter[str] = Counter()

    @asynccontextmanager
    async def place(self, connection: str) -> AsyncIterator[None]:
        own = self._own.setdefault(connection, asyncio.Semaphore(self._per_connection))
        self._users[connection] += 1
        try:
            async with own, self._all:
                yield
        finally:
            self._users[connection] -= 1
            if not self._users[connection]:
                del self._users[connection], self._own[connection]


log = logging.getLogger(__name__)

CALLS_MAX = 100
CALLS_PER_CONNECTION = 10
"""How many calls to one handler may be under way, and how many of them for one connection. More wait, and their time
runs."""
CONNECT_S = 10.0
KEEP_ALIVE_S = 30.0

ReadBody = Callable[[str], Awaitable[bytes]]


class Webhooks:
    """`origin` is the host by which handlers know this server. `read_body` reads a large event out of the store."""

    def __init__(
        self,
        hub: str,
        keys: AccessKeys,
        origin: str,
        read_body: ReadBody,
        *,
        clock: Callable[[], float] = time.time,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.hub = hub
        self.requests = self.failures = self.questions = 0
        """Requests that were sent with events, those of them that were not answered with 2xx, and questions whether
        events are wanted."""
        self._keys, self._origin, self._read_body, self._clock = keys, origin, read_body, clock
        self._http = httpx.AsyncClient(
            follow_redirects=FOLLOW_REDIRECTS,
            trust_env=TRUST_ENVIRONMENT,
            cookies=None if SHARE_COOKIES else CookieJar(DefaultCookiePolicy(allowed_domains=())),
            headers={"user-agent": f"semel/{__version__}"},
            timeout=httpx.Timeout(None, connect=CONNECT_S),
            limits=httpx.Limits(max_connections=None, keepalive_expiry=KEEP_ALIVE_S),
            transport=transport,
        )
        self._cookies = Cookies()
        self._rooms: dict[str, Room] = {}
        self._consents: dict[str, tuple[HandlerConsent, UrlVerdict | None]] = {}
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._is_closed = False

    async def close(self) -> None:
        """Cancels the calls that are under way. Their events are sent again after the next start."""
        self._is_closed = True
        tasks = [*self._tasks.values(), *self._asking.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._http.aclose()

    # -- what a hub asks

    def receive(self, message: CallHandler | CancelCall | Fetch, send: Callable[[Replied | Fetched], None]) -> None:
        if self._is_closed:
            return
        match message:
            case CallHandler(token=token, event=event, handler=handler, within_s=within_s):
                self._begin(token, self._reply(token, event, handler, within_s, send))
            case Fetch(token=token, blob=blob):
                self._begin(token, self._fetch(token, blob, send))
            case CancelCall(token=token):
                task = self._tasks.pop(token, None)
                if task is not None:
                    task.cancel()

    def _begin(self, token: str, work: Coroutine[Any, Any, None]) -> None:
        task = self._tasks[token] = asyncio.create_task(work)

        def ended(task: asyncio.Task[None]) -> None:
            if self._tasks.get(token) is task:
                del self._tasks[token]

        task.add_done_callback(ended)

    async def _reply(
        self, token: str, event: PendingEvent, handler: EventHandler, within_s: float, send: Callable[[Replied], None]
    ) -> None:
        try:
            reply = await self.call(event, handler, within_s)
        except Exception as error:
            # the hub waits for an answer, whatever it is
            log.exception("%s: an event handler could not be called", self.hub)
            reply = HandlerUnreachable(f"the call failed: {type(error).__name__}")
        send(Replied(token, reply))

    async def _fetch(self, token: str, blob: str, send: Callable[[Fetched], None]) -> None:
        try:
            stored: bytes | None = await self._read_body(blob)
        except SemelError:
            # whoever read it has said why
            stored = None
        send(Fetched(token, stored))

    # -- calls

    async def ask(self, event: PendingEvent, handler: EventHandler, within_s: float) -> Reply:
        """Call, and again where that may help, as long as there is time."""
        began = self._clock()
        attempt = 1
        while True:
            reply = await self.call(event, handler, began + within_s - self._clock())
            again_at = next_try(attempt, reply, began, self._clock())
            if again_at is None or again_at >= began + within_s:
                return reply
            await asyncio.sleep(again_at - self._clock())
            attempt += 1

    async def call(self, event: PendingEvent, handler: EventHandler, within_s: float) -> Reply:
        room = self._rooms.setdefault(handler.url, Room(CALLS_MAX, CALLS_PER_CONNECTION))
        try:
            async with asyncio.timeout(within_s), room.place(event.client.connection):
                refusal = await self._refusal(handler)
                if refusal is not None:
                    return refusal
                self.requests += 1
                request = request_for(event, handler, self._keys, self._origin, self._clock())
                reply = await self._exchange(request, event.client.connection)
        except TimeoutError:
            reply = HandlerUnreachable("it did not answer in time", is_late=True)
        if isinstance(reply, HandlerUnreachable) or not 200 <= reply.status < 300:
            self.failures += 1
        elif event.name == SystemEvent.DISCONNECTED and event.family is Family.SYSTEM:
            self._cookies.forget(event.client.connection)
        return reply

    async def _exchange(
        self, request: OutgoingRequest, connection: str | None = None
    ) -> HttpResponse | HandlerUnreachable:
        """With the cookies of the connection, if it is about one."""
        try:
            asked = self._http.build_request(
                request.method, request.url, headers=list(request.headers), content=request.body
            )
            if connection is not None:
                self._cookies.add_to(asked, connection)
            response = await self._http.send(asked, stream=True)
            try:
                body = await _bounded(response)
            finally:
                await response.aclose()
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            return HandlerUnreachable(f"{type(error).__name__}: {error}")
        if connection is not None:
            self._cookies.keep(response, connection)
        return HttpResponse(response.status_code, tuple(response.headers.multi_items()), body)

    # -- whether it wants events at all

    async def _refusal(self, handler: EventHandler) -> NotAllowed | HandlerUnreachable | None:
        url, now = handler.url, self._clock()
        consent, _ = self._consents.get(url, (UNKNOWN, None))
        if consent.is_due(now) and url not in self._asking:
            self._asking[url] = asyncio.create_task(self._question(handler))
        if consent.is_allowed(now):
            return None
        if url in self._asking:
            await asyncio.shield(self._asking[url])
        consent, verdict = self._consents.get(url, (UNKNOWN, None))
        if consent.is_allowed(self._clock()):
            return None
        if verdict is UrlVerdict.NO:
            return NotAllowed()
        return HandlerUnreachable("it does not answer whether it wants events")

    async def _question(self, handler: EventHandler) -> None:
        try:
            verdict = await self._verdict(handler, OPTIONS)
            if verdict is UrlVerdict.ASK_WITH_GET:
                verdict = await self._verdict(handler, GET)
            consent, _ = self._consents.get(handler.url, (UNKNOWN, None))
            self._consents[handler.url] = consent.after(verdict, self._clock()), verdict
        finally:
            del self._asking[handler.url]
        if verdict is not UrlVerdict.YES:
            log.warning("%s: may events be sent to %r? The answer is %s", self.hub, handler, verdict.value)

    async def _verdict(self, handler: EventHandler, method: str) -> UrlVerdict:
        self.questions += 1
        try:
            async with asyncio.timeout(TIMEOUT_S):
                reply = await self._exchange(validation_request(handler, self.hub, self._origin, method))
        except TimeoutError:
            reply = HandlerUnreachable("it did not answer in time", is_late=True)
        return judge(reply, self._origin, method)


async def _bounded(response: httpx.Response) -> bytes:
    """One byte more than allowed tells that it is too large; the rest is not read."""
    body = bytearray()
    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) > RESPONSE_BYTES_MAX:
            break
    return bytes(body[: RESPONSE_BYTES_MAX + 1])
