"""A client of a hub: `async with WebPubSubClient(url) as client:`

It does not leave exactly-once to chance. A request goes out again under the same ackId until it is answered, on a live
connection and on the next one; a connection that breaks is mended under the same session for as long as a minute;
messages are handed on once, one after the other, and acknowledged when they have been handled; a message with an id of
its own is taken once even if the session is lost, and one in an outbox even if this process dies.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Any, NoReturn, Self, TypeVar
from uuid import uuid4

from semel.errors import HandlerError, InputError, LocalProtocolError, SemelError
from semel.kernel.store import Store
from semel.pubsub import client_events
from semel.pubsub.client_data import Message, data_of, message_of, value_of
from semel.pubsub.client_events import (
    Abort,
    Acked,
    Answered,
    ClientOptions,
    Delivered,
    Failed,
    InOutbox,
    Online,
    Outbox,
    OutboxEntry,
    Recovered,
    Result,
    State,
    Stop,
    Taken,
)
from semel.pubsub.messages import Invoke, JoinGroup, LeaveGroup, Metadata, SendEvent, SendToGroup
from semel.runtime.client_driver import Driver
from semel.runtime.client_outbox import open_outbox
from semel.runtime.client_socket import Dialer, Url

log = logging.getLogger("semel.client")

MessageHandler = Callable[[Message], Awaitable[None] | None]
StateHandler = Callable[[State], None]
_M = TypeVar("_M", bound=MessageHandler)
_S = TypeVar("_S", bound=StateHandler)


class WebPubSubClient:
    """`url` is the address of a hub with its access token, or a function (or coroutine function) that gives a fresh one
    whenever a new session begins: tokens expire.

    `outbox` is a store or the URL of one. What is sent to groups is then kept there until the hub has it. Several
    clients on one store have each their `outbox_name`.

    `tls` replaces the context that verifies certificates of `wss://`.
    """

    def __init__(
        self,
        url: Url,
        *,
        options: ClientOptions | None = None,
        outbox: str | Store | None = None,
        outbox_name: str = "client",
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.options = options or ClientOptions()
        self._dialer = Dialer(url, self.options.subprotocol, tls)
        self._outbox, self._outbox_name = outbox, outbox_name
        self._driver: Driver | None = None
        self._inbox: deque[tuple[int, client_events.Message]] = deque()
        self._news = asyncio.Event()
        self._handed = 0  # the number of the message that the iteration has given out last
        self._on_message: MessageHandler | None = None
        self._on_state: StateHandler | None = None
        self._delivering: asyncio.Task[None] | None = None
        self._online: Online | None = None
        self._is_connected = False
        self._closing: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<WebPubSubClient {self.connection_id or 'not connected'}>"

    # -- life

    async def open(self) -> Self:
        """Returns when there is a session. Raises what made that impossible: `AuthError`, `PeerUnavailable`, ..."""
        if self._driver is not None:
            raise LocalProtocolError("a client is opened once", fix="make a new one")
        self._driver = driver = await self._make_driver()
        driver.start()
        self._hand_on()
        try:
            while self._online is None and not driver.ended.done():
                await self._wait_for_news()
        except asyncio.CancelledError:
            await self.close(0)
            raise
        if self._online is None:
            await self.close(0)
            self._raise_end()
        return self

    async def _make_driver(self) -> Driver:
        outbox: Outbox | None = None
        kept: Sequence[OutboxEntry] = ()
        if self._outbox is not None:
            outbox, kept = await asyncio.to_thread(open_outbox, self._outbox, self._outbox_name)
        return Driver(self._dialer, self.options, outbox, kept, self._deliver, self._notify)

    async def close(self, drain_s: float = 10.0) -> None:
        """Ends the session when all that was asked is answered and all that came is handled, or after `drain_s`. A
        handler may call it too; then nothing more is handled."""
        await self.end(drain_s, handles=self._delivering is not asyncio.current_task())

    async def end(self, drain_s: float, *, handles: bool) -> None:
        """`close` for those who know better whether it is a handler that calls: then there is none to wait for."""
        if self._driver is None:
            return
        if self._closing is None:
            handles = handles and self._delivering is not None
            self._closing = asyncio.get_running_loop().create_task(self._close(drain_s, handles))
        await asyncio.shield(self._closing)

    async def _close(self, drain_s: float, handles: bool) -> None:
        driver = self._running
        if not driver.ended.done():
            self._done_with_last()
            driver.tell(Stop(drain_s, delivers=handles))
        await asyncio.shield(driver.ended)
        if self._delivering is not None and handles:
            self._delivering.cancel()
            await asyncio.gather(self._delivering, return_exceptions=True)
        await driver.close()

    async def wait_closed(self) -> None:
        """Returns when the client has ended as asked, and raises the error that ended it otherwise."""
        await asyncio.shield(self._running.ended)
        self.raise_error()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self.close()
            self.raise_error()
        else:
            await self.close(0)

    @property
    def _running(self) -> Driver:
        if self._driver is None:
            raise LocalProtocolError("the client is not open", fix="use it inside `async with`, or await open() first")
        return self._driver

    def raise_error(self) -> None:
        """Raise the error that has ended the client, if one has."""
        ended = self._running.ended
        if ended.done() and (error := ended.result()) is not None:
            raise error

    def _raise_end(self) -> NoReturn:
        self.raise_error()
        raise LocalProtocolError("the client is closed", fix="make a new one")

    # -- who and where

    @property
    def connection_id(self) -> str | None:
        """Of the session, which may be without a connection for a moment."""
        return self._online.connection_id if self._online is not None else None

    @property
    def user_id(self) -> str | None:
        return self._online.user_id if self._online is not None else None

    @property
    def is_connected(self) -> bool:
        return self._is_connected

    @property
    def groups(self) -> frozenset[str]:
        """Those that it has joined, and joins again in every new session."""
        return frozenset(self._driver.machine.groups if self._driver is not None else ())

    # -- what it asks

    async def join_group(self, group: str, *, timeout_s: float | None = None) -> None:
        await self._ask(JoinGroup(group), timeout_s=timeout_s)

    async def leave_group(self, group: str, *, timeout_s: float | None = None) -> None:
        await self._ask(LeaveGroup(group), timeout_s=timeout_s)

    async def send_to_group(
        self,
        group: str,
        data: Any,
        *,
        type: str | None = None,
        id: str | None = None,
        no_echo: bool = False,
        ttl_s: int | None = None,
        metadata: Metadata | None = None,
        at_least_once: bool = False,
        until_kept: bool = False,
        timeout_s: float | None = None,
    ) -> bool:
        """Returns when the hub has it, durably: True if it is new, False if the hub had it already under this id.

        bytes are binary, a str is text, and all else is JSON, unless `type` says otherwise. `id` is your own name for
        the message: a hub of Semel takes it once, whichever session or process brings it. Without an id a message that
        was under way when its session was lost fails with `RequestInDoubt`, unless `at_least_once` allows a second.

        With an outbox each message has an id, and `until_kept` returns as soon as it is in the outbox.
        """
        if self._outbox is not None and id is None:
            id = uuid4().hex
        if self._outbox is None and until_kept:
            raise InputError("there is no outbox to keep it in", fix="give the client an outbox, or wait for the hub")
        request = SendToGroup(group, data_of(data, type), None, no_echo, ttl_s, metadata)
        return await self._ask(
            request, id=id, at_least_once=at_least_once, until_kept=until_kept, timeout_s=timeout_s
        )  # fmt: skip

    async def send_event(
        self,
        event: str,
        data: Any,
        *,
        type: str | None = None,
        metadata: Metadata | None = None,
        at_least_once: bool = False,
        timeout_s: float | None = None,
    ) -> bool:
        """Returns when the server's event handler has taken it. What a handler that failed has done, it may have done:
        `PeerUnavailable` leaves it to you whether to send it again."""
        request = SendEvent(event, data_of(data, type), None, metadata)
        return await self._ask(request, at_least_once=at_least_once, timeout_s=timeout_s)

    async def invoke(
        self, event: str, data: Any = None, *, type: str | None = None, timeout_s: float | None = None
    ) -> Any:
        """The answer of the server's event handler. It is asked once; after a loss nobody knows whether it was done."""
        content = data_of(data, type) if data is not None else None
        answer = await self._result(Invoke("", event, content), timeout_s=timeout_s)
        assert isinstance(answer, Answered)
        return value_of(answer.data) if answer.data is not None else None

    async def _ask(self, request: Acked, **how: Any) -> bool:
        result = await self._result(request, **how)
        return isinstance(result, InOutbox) or (isinstance(result, Taken) and not result.is_duplicate)

    async def _result(self, request: Acked | Invoke, **how: Any) -> Result:
        driver = self._running
        if driver.ended.done():
            self._raise_end()
        result = await driver.ask(request, **how)
        if isinstance(result, Failed):
            raise result.error
        return result

    # -- what it hears

    def on_message(self, handler: _M) -> _M:
        """Have messages handled by a function or a coroutine function: one after the other, in order, each
        acknowledged when it has returned. One that raises ends the client with `HandlerError`: that message and those
        after it count as not handled. Messages that come before there is a handler wait for it."""
        if self._on_message is not None or self._handed:
            raise LocalProtocolError("messages are taken already", fix="set one handler, or iterate, but not both")
        self._on_message = handler
        if self._driver is not None:
            self._hand_on()
        return handler

    def on_state(self, handler: _S) -> _S:
        """Hear at once what happens to the client: `Online`, `Interrupted`, `Recovered`, `SessionLost`, ... of
        `semel.pubsub.client_events`."""
        self._on_state = handler
        return handler

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        """The next message. Whoever asks for it has handled the one before."""
        if self._on_message is not None:
            raise LocalProtocolError("a handler takes the messages", fix="set a handler, or iterate, but not both")
        driver = self._running
        self._done_with_last()
        while not self._inbox:
            if driver.ended.done():
                self.raise_error()
                raise StopAsyncIteration
            await self._wait_for_news()
        self._handed, told = self._inbox.popleft()
        return message_of(told)

    def _done_with_last(self) -> None:
        if self._handed:
            self._running.tell(Delivered(self._handed))

    def _deliver(self, number: int, message: client_events.Message) -> None:
        self._inbox.append((number, message))
        self._news.set()

    async def _wait_for_news(self) -> None:
        self._news.clear()
        await self._news.wait()

    def _hand_on(self) -> None:
        if self._on_message is not None:
            self._delivering = asyncio.get_running_loop().create_task(self._handle_all(self._on_message))

    async def _handle_all(self, handler: MessageHandler) -> None:
        while not self._running.ended.done():
            if not self._inbox:
                await self._wait_for_news()
                continue
            number, told = self._inbox.popleft()
            try:
                waiting = handler(message_of(told))
                if inspect.isawaitable(waiting):
                    await waiting
            except BaseException as error:
                if not self._running.ended.done():
                    self._running.tell(Abort(_handler_error(error)))
                if not isinstance(error, Exception):
                    raise
                return
            self._running.tell(Delivered(number))

    def _notify(self, state: State) -> None:
        if isinstance(state, Online):
            self._online = state
        self._is_connected = isinstance(state, Online | Recovered)
        self._news.set()
        if self._on_state is not None:
            try:
                self._on_state(state)
            except Exception:
                log.exception("the handler of states failed")


def _handler_error(error: BaseException) -> SemelError:
    made = HandlerError(
        f"the handler of messages failed with {type(error).__name__}: {error}",
        fix="let it deal with its own errors; the message is not acknowledged",
    )
    made.__cause__ = error
    return made
