"""What has come for the application, and who takes it: a loop, a handler, or a handler for each stream.

Messages are handled one after the other. Streams are handled beside them and beside each other; what is acknowledged to
the server is only that before which nothing is left to do.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Self, TypeVar

from semel.errors import HandlerError, LocalProtocolError, SemelError, StreamBroken
from semel.pubsub.client import events as client_events
from semel.pubsub.client.data import GroupStateChange, Message, message_of
from semel.pubsub.client.events import Abort, MessageDelivered
from semel.pubsub.client.inbound import Ended, Handled, Inbound, PartReceived, StreamBegan
from semel.pubsub.client.states import Changes
from semel.pubsub.protocol.messages import GroupMessage, GroupStateItem, Metadata
from semel.runtime.client.driver import ClientDriver

log = logging.getLogger("semel.client")

MessageHandler = Callable[[Message], Awaitable[None] | None]
_T = TypeVar("_T")


class IncomingStream:
    """What another client sends to a group in parts: `async for part in stream`. `is_whole` False: it had begun before
    we were in the group, so its first parts are missing."""

    def __init__(self, began: StreamBegan, done: Callable[[int], None]) -> None:
        message = began.message
        assert message.stream is not None
        self.group, self.id, self.from_user = message.group, message.stream.stream_id, message.from_user
        self.metadata: Metadata | None = message.metadata
        self.is_whole = began.is_whole
        self._done = done
        self._parts: deque[tuple[int, GroupMessage]] = deque()
        self._news = asyncio.Event()
        self._taken: int | None = None
        self._end: int | None = None
        self._is_over = self._is_left = False
        self.error: SemelError | None = None

    def __repr__(self) -> str:
        return f"<IncomingStream {self.id} in {self.group}>"

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        """The next part; a `Message` like any other. Whoever asks for it has handled the one before. Raises
        `StreamBroken` at the end of a stream that is not whole."""
        if self._taken is not None:
            self._done(self._taken)
            self._taken = None
        while not self._parts:
            if self._is_over:
                if self.error is not None:
                    raise self.error
                raise StopAsyncIteration
            self._news.clear()
            await self._news.wait()
        self._taken, received = self._parts.popleft()
        return message_of(received)

    def put(self, number: int, received: GroupMessage) -> None:
        """The driver calls this while it performs effects, so a part that nobody wants is reported as handled in the
        next turn of the loop."""
        if self._is_left:
            asyncio.get_running_loop().call_soon(self._done, number)
            return
        self._parts.append((number, received))
        self._news.set()

    def finish(self, error: SemelError | None, number: int | None = None) -> None:
        """`number` is that of the message which says so. It is handled when the handler has returned."""
        self._is_over, self.error = True, error
        if number is not None and self._is_left:
            asyncio.get_running_loop().call_soon(self._done, number)
        self._end = number
        self._news.set()

    def leave(self) -> None:
        """Nobody takes it any more."""
        self._is_left = True
        for number in (self._taken, *(number for number, _ in self._parts), self._end):
            if number is not None:
                self._done(number)
        self._parts.clear()


StreamHandler = Callable[[IncomingStream], Awaitable[None] | None]


class ClientInbox:
    def __init__(self) -> None:
        self._driver: ClientDriver | None = None
        self._messages: deque[tuple[int, client_events.Message]] = deque()
        self._news = asyncio.Event()
        self._handed = 0  # the number of the message that the iteration has given out last
        self._on_message: MessageHandler | None = None
        self._on_stream: StreamHandler | None = None
        self._inbound, self._handled = Inbound(), Handled()
        self._streams: dict[int, IncomingStream] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, driver: ClientDriver) -> None:
        self._driver = driver
        self._begin_handling()

    @property
    def _running(self) -> ClientDriver:
        assert self._driver is not None
        return self._driver

    def wake(self) -> None:
        self._news.set()

    async def wait(self) -> None:
        """Until something has happened."""
        self._news.clear()
        await self._news.wait()

    def _done(self, number: int) -> None:
        upto = self._handled.add(number)
        if upto is not None and not self._running.ended.done():
            self._running.feed(MessageDelivered(upto))

    # -- who takes it

    def on_message(self, handler: MessageHandler) -> None:
        if self._on_message is not None or self._handed:
            raise LocalProtocolError("messages are taken already", fix="set one handler, or iterate, but not both")
        self._on_message = handler
        if self._driver is not None:
            self._begin_handling()

    def on_stream(self, handler: StreamHandler) -> None:
        if self._on_stream is not None:
            raise LocalProtocolError("streams are taken already", fix="set one handler for all of them")
        self._on_stream = handler

    def _begin_handling(self) -> None:
        if self._on_message is not None:
            self._begin(self._handle_all(self._on_message))

    def _begin(self, work: Awaitable[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def is_handler(self, task: asyncio.Task[object] | None) -> bool:
        return task in self._tasks

    @property
    def is_handled(self) -> bool:
        """Whether somebody takes all that came, without being asked."""
        return self._on_message is not None or (self._on_stream is not None and not self._messages)

    # -- messages

    def put(self, number: int, received: client_events.Message) -> None:
        if self._on_stream is not None and isinstance(received, GroupMessage) and received.stream is not None:
            self._put_part(number, received, self._on_stream)
        else:
            self._messages.append((number, received))
            self._news.set()

    async def take(self, ended: asyncio.Future[SemelError | None]) -> Message | None:
        """The next message for the iteration, None after the last. Whoever asks for it has handled the one before."""
        if self._on_message is not None:
            raise LocalProtocolError("a handler takes the messages", fix="set a handler, or iterate, but not both")
        self.done_with_last()
        while not self._messages:
            if ended.done():
                return None
            await self.wait()
        self._handed, received = self._messages.popleft()
        return message_of(received)

    def done_with_last(self) -> None:
        if self._handed:
            self._done(self._handed)

    async def _handle_all(self, handler: MessageHandler) -> None:
        while not self._running.ended.done():
            if not self._messages:
                await self.wait()
                continue
            number, received = self._messages.popleft()
            if not await self._has_handled(handler, message_of(received)):
                return
            self._done(number)

    async def _has_handled(self, handler: Callable[[_T], Awaitable[None] | None], received: _T) -> bool:
        """Whether it did not fail. If it did, the client ends."""
        try:
            waiting = handler(received)
            if inspect.isawaitable(waiting):
                await waiting
        except BaseException as error:
            if isinstance(received, IncomingStream) and isinstance(error, StreamBroken) and error is received.error:
                log.warning("%r: %s", received, error.message)
                return True
            if not self._running.ended.done():
                self._running.feed(Abort(_handler_error(received, error)))
            if not isinstance(error, Exception):
                raise
            return False
        return True

    # -- streams

    def _put_part(self, number: int, received: GroupMessage, handler: StreamHandler) -> None:
        steps = self._inbound.take(received)
        is_taken = False
        for step in steps:
            match step:
                case StreamBegan(number=stream):
                    self._streams[stream] = made = IncomingStream(step, self._done)
                    self._begin(self._handle_stream(handler, made))
                case PartReceived(number=stream):
                    self._streams[stream].put(number, received)
                    is_taken = True
                case Ended(number=stream):
                    is_end = step is steps[-1] and received.stream is not None and received.stream.is_end
                    self._streams.pop(stream).finish(step.error, number if is_end else None)
                    is_taken = is_taken or is_end
        if not is_taken:
            asyncio.get_running_loop().call_soon(self._done, number)

    def _end_streams(self, steps: Sequence[Ended]) -> None:
        for step in steps:
            self._streams.pop(step.number).finish(step.error)

    async def _handle_stream(self, handler: StreamHandler, stream: IncomingStream) -> None:
        if await self._has_handled(handler, stream):
            stream.leave()

    def on_session_lost(self, error: SemelError) -> None:
        self._end_streams(self._inbound.on_session_lost(error))

    def leave_group(self, group: str) -> None:
        self._end_streams(self._inbound.leave(group))

    # -- the end

    async def stop(self, caller: asyncio.Task[object] | None) -> None:
        """Nothing more is handled. A handler that is itself the caller goes on."""
        self._end_streams(self._inbound.stop())
        others = [task for task in self._tasks if task is not caller]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


def _handler_error(received: object, error: BaseException) -> SemelError:
    what = "streams" if isinstance(received, IncomingStream) else "messages"
    made = HandlerError(
        f"the handler of {what} failed with {type(error).__name__}: {error}",
        fix="let it deal with its own errors; the message is not acknowledged",
    )
    made.__cause__ = error
    return made


GroupStateHandler = Callable[[GroupStateChange], Awaitable[None] | None]


class StateReporter:
    """Tells an application what changes in the groups that it watches, one call after the other. `look` gives all
    states of a group. What changes during a call is reported together in the next."""

    def __init__(self, look: Callable[[str], Mapping[str, GroupStateItem]]) -> None:
        self._look = look
        self._changes = Changes()
        self._handler: GroupStateHandler | None = None
        self._task: asyncio.Task[None] | None = None

    def set(self, handler: GroupStateHandler) -> None:
        self._handler = handler

    def report(self, group: str, changed: tuple[GroupStateItem, ...]) -> None:
        if self._handler is None:
            return
        self._changes.add(group, changed)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._report_all(self._handler))

    async def _report_all(self, handler: GroupStateHandler) -> None:
        try:
            while (found := self._changes.take()) is not None:
                group, changed = found
                await self._report_one(handler, GroupStateChange(group, changed, dict(self._look(group))))
        finally:
            self._task = None

    async def _report_one(self, handler: GroupStateHandler, change: GroupStateChange) -> None:
        try:
            waiting = handler(change)
            if inspect.isawaitable(waiting):
                await waiting
        except Exception:
            log.exception("the handler of group states failed")

    async def stop(self, caller: asyncio.Task[object] | None) -> None:
        task = self._task
        if task is not None and task is not caller:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
