"""A client of a hub: `async with WebPubSubClient(url) as client:`

It does not leave exactly-once to chance. A request goes out again under the same ackId until it is answered, on a live
connection and on the next one; a connection that breaks is re-established under the same session for up to a minute;
messages are handed on once, one after the other, and acknowledged when they have been handled; a message with an id of
its own is accepted once even if the session is lost, and one in an outbox even if this process dies. Streams go on over
broken connections, and group states are sent again after them.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, NoReturn, Self, TypeVar
from uuid import uuid4

from semel.errors import InputError, LocalProtocolError
from semel.kernel.store import Store
from semel.pubsub.client.data import Message, data_of, value_of
from semel.pubsub.client.events import (
    Acked,
    ClientOptions,
    ClientOutbox,
    InOutbox,
    InvocationAnswered,
    Online,
    OutboxEntry,
    Recovered,
    RequestAccepted,
    RequestFailed,
    Result,
    SessionLost,
    State,
    Stop,
)
from semel.pubsub.protocol.messages import (
    GroupStateItem,
    Invoke,
    JoinGroup,
    LeaveGroup,
    Metadata,
    SendEvent,
    SendToGroup,
    SetGroupState,
    StartStream,
    SubscribeGroupState,
    UnsubscribeGroupState,
)
from semel.runtime.client.driver import ClientDriver
from semel.runtime.client.inbox import ClientInbox, GroupStateHandler, MessageHandler, StateReporter, StreamHandler
from semel.runtime.client.outbox import open_outbox
from semel.runtime.client.socket import Dialer, Url
from semel.runtime.client.streams import OutgoingStream

log = logging.getLogger("semel.client")

StateHandler = Callable[[State], None]
_M = TypeVar("_M", bound=MessageHandler)
_S = TypeVar("_S", bound=StateHandler)
_I = TypeVar("_I", bound=StreamHandler)
_G = TypeVar("_G", bound=GroupStateHandler)


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
        self._driver: ClientDriver | None = None
        self._inbox = ClientInbox()
        self._state_reporter = StateReporter(self._states_of)
        self._saying: dict[str, dict[str, str]] = {}
        self._on_state: StateHandler | None = None
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
        self._inbox.start(driver)
        try:
            while self._online is None and not driver.ended.done():
                await self._inbox.wait()
        except asyncio.CancelledError:
            await self.close(0)
            raise
        if self._online is None:
            await self.close(0)
            self._raise_end()
        return self

    async def _make_driver(self) -> ClientDriver:
        outbox: ClientOutbox | None = None
        kept: Sequence[OutboxEntry] = ()
        if self._outbox is not None:
            outbox, kept = await asyncio.to_thread(open_outbox, self._outbox, self._outbox_name)
        deliver, report_states = self._inbox.put, self._state_reporter.report
        return ClientDriver(self._dialer, self.options, outbox, kept, deliver, self._notify, report_states)

    async def close(self, drain_s: float = 10.0) -> None:
        """Ends the session when all that was asked is answered and all that came is handled, or after `drain_s`. A
        handler may call it too; then nothing more is handled."""
        caller = asyncio.current_task()
        await self.end(drain_s, handles=not self._inbox.is_handler(caller), caller=caller)

    async def end(self, drain_s: float, *, handles: bool, caller: asyncio.Task[Any] | None = None) -> None:
        """`close` for those who know better whether it is a handler that calls: then there is none to wait for."""
        if self._driver is None:
            return
        if self._closing is None:
            closing = self._close(drain_s, handles and self._inbox.is_handled, caller)
            self._closing = asyncio.get_running_loop().create_task(closing)
        await asyncio.shield(self._closing)

    async def _close(self, drain_s: float, handles: bool, caller: asyncio.Task[Any] | None) -> None:
        driver = self._running
        if not driver.ended.done():
            self._inbox.done_with_last()
            driver.feed(Stop(drain_s, delivers=handles))
        await asyncio.shield(driver.ended)
        await self._inbox.stop(caller)
        await self._state_reporter.stop(caller)
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
    def _running(self) -> ClientDriver:
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
        """The id of the session. It may be without a connection for a moment."""
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
        self._inbox.leave_group(group)

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
        id: str | None = None,
        metadata: Metadata | None = None,
        at_least_once: bool = False,
        timeout_s: float | None = None,
    ) -> bool:
        """Returns when the server's event handler has taken it. What a handler that failed has done, it may have done:
        `PeerUnavailable` leaves it to you whether to send it again.

        `id` is your own name for the event. It goes to the handler, and one that was under way when its session was
        lost is sent again under it: for handlers that take each id once, as an endpoint of an inbox does.
        """
        request = SendEvent(event, data_of(data, type), None, metadata)
        return await self._ask(request, id=id, at_least_once=at_least_once, timeout_s=timeout_s)

    async def invoke(
        self, event: str, data: Any = None, *, type: str | None = None, timeout_s: float | None = None
    ) -> Any:
        """The answer of the server's event handler. It is asked once; after a loss nobody knows whether it was done."""
        content = data_of(data, type) if data is not None else None
        answer = await self._result(Invoke("", event, content), timeout_s=timeout_s)
        assert isinstance(answer, InvocationAnswered)
        return value_of(answer.data) if answer.data is not None else None

    def stream_to_group(
        self,
        group: str,
        *,
        id: str | None = None,
        idle_timeout_s: float | None = None,
        no_echo: bool = False,
        ttl_s: int | None = None,
        metadata: Metadata | None = None,
    ) -> OutgoingStream:
        """A message in parts, for `async with`. The server ends it when nothing comes for `idle_timeout_s`, or
        for five minutes. `no_echo` and `metadata` hold for all parts, `ttl_s` for each."""
        idle_ms = None if idle_timeout_s is None else round(idle_timeout_s * 1000)
        request = StartStream(group, id if id is not None else uuid4().hex, idle_ms, no_echo, ttl_s, metadata)
        return OutgoingStream(self._running, request)

    # -- group states

    async def set_group_state(self, group: str, state: Mapping[str, str], *, timeout_s: float | None = None) -> None:
        """Say this of this connection to all who watch the group, instead of what was said before. It holds until it is
        cleared, the group is left or the client ends; a new session says it again."""
        await self._say(group, dict(state), timeout_s)

    async def update_group_state(
        self, group: str, changes: Mapping[str, str | None], *, timeout_s: float | None = None
    ) -> None:
        """Change some of what was said before. None takes a name away."""
        pending = self._saying.get(group)
        state = {**(self.group_state(group) if pending is None else pending), **changes}
        await self._say(group, {name: value for name, value in state.items() if value is not None}, timeout_s)

    async def clear_group_state(self, group: str, *, timeout_s: float | None = None) -> None:
        await self._say(group, {}, timeout_s, clears=True)

    async def _say(self, group: str, state: dict[str, str], timeout_s: float | None, *, clears: bool = False) -> None:
        """What is on its way counts as said for those who change some of it."""
        self._saying[group] = state
        try:
            await self._ask(SetGroupState(group, state=None if clears else state), timeout_s=timeout_s)
        finally:
            if self._saying.get(group) is state:
                del self._saying[group]

    def group_state(self, group: str) -> dict[str, str]:
        """What this client says of itself there, as far as the server has confirmed it."""
        return dict(self._running.machine.states.own.get(group, {}))

    async def watch_group_state(self, group: str, *, timeout_s: float | None = None) -> dict[str, GroupStateItem]:
        """Receive what connections say of themselves in a group, by `on_group_state`, in every new session too. Returns
        all there is, by connection id."""
        await self._ask(SubscribeGroupState(group), timeout_s=timeout_s)
        return self.group_states(group)

    async def unwatch_group_state(self, group: str, *, timeout_s: float | None = None) -> None:
        await self._ask(UnsubscribeGroupState(group), timeout_s=timeout_s)

    def group_states(self, group: str) -> dict[str, GroupStateItem]:
        """What is known of a group that is watched, by connection id. While there is no connection it may be old."""
        return dict(self._states_of(group))

    def _states_of(self, group: str) -> Mapping[str, GroupStateItem]:
        view = self._running.machine.states.views.get(group)
        return {} if view is None else view.items

    # -- how it asks

    async def _ask(self, request: Acked, **how: Any) -> bool:
        result = await self._result(request, **how)
        return isinstance(result, InOutbox) or (isinstance(result, RequestAccepted) and not result.is_duplicate)

    async def _result(self, request: Acked | Invoke, **how: Any) -> Result:
        driver = self._running
        if driver.ended.done():
            self._raise_end()
        result = await driver.ask(request, **how)
        if isinstance(result, RequestFailed):
            raise result.error
        return result

    # -- what it receives

    def on_message(self, handler: _M) -> _M:
        """Have messages handled by a function or a coroutine function: one after the other, in order, each
        acknowledged when it has returned. One that raises ends the client with `HandlerError`: that message and those
        after it count as not handled. Messages that come before there is a handler wait for it."""
        self._inbox.on_message(handler)
        return handler

    def on_stream(self, handler: _I) -> _I:
        """Have the streams that others send to groups handled by a coroutine function, called once for each with an
        `IncomingStream`; several run side by side. Their parts are then no messages for `on_message` or the iteration,
        which still have to take all others. Set it before the groups are joined."""
        self._inbox.on_stream(handler)
        return handler

    def on_group_state(self, handler: _G) -> _G:
        """Receive what changes in watched groups, in a `GroupStateChange`: by a function or a coroutine function, one
        call after the other. What changes meanwhile is reported together, for each connection only the last."""
        self._state_reporter.set(handler)
        return handler

    def on_state(self, handler: _S) -> _S:
        """Learn at once what happens to the client: `Online`, `Interrupted`, `Recovered`, `SessionLost`, ... of
        `semel.pubsub.client.events`."""
        self._on_state = handler
        return handler

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        """The next message. Whoever asks for it has handled the one before."""
        message = await self._inbox.take(self._running.ended)
        if message is None:
            self.raise_error()
            raise StopAsyncIteration
        return message

    def _notify(self, state: State) -> None:
        if isinstance(state, Online):
            self._online = state
        if isinstance(state, SessionLost):
            self._inbox.on_session_lost(state.error)
        self._is_connected = isinstance(state, Online | Recovered)
        self._inbox.wake()
        if self._on_state is not None:
            try:
                self._on_state(state)
            except Exception:
                log.exception("the handler of states failed")
