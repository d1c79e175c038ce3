"""The client for programs without asyncio: `with SyncWebPubSubClient(url) as client:`

The same names and the same promises as `WebPubSubClient`, which runs on a loop in a thread of its own. Any thread may
call. Handlers run on one more thread, one message after the other, and may call the client; so may those of streams,
each stream on a thread of its own.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import suppress
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar

from semel.errors import LocalProtocolError, SemelError
from semel.kernel.store import Store
from semel.pubsub.client.data import GroupStateChange, Message
from semel.pubsub.client.events import ClientOptions, State
from semel.pubsub.protocol.messages import Metadata
from semel.runtime.client.client import WebPubSubClient
from semel.runtime.client.inbox import IncomingStream
from semel.runtime.client.socket import Url
from semel.runtime.client.streams import OutgoingStream

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")


class Call(Protocol):
    """Has something done on the loop, and waits for it."""

    def __call__(self, asked: Coroutine[Any, Any, R]) -> R: ...


class Waiting(Generic[A]):
    """Stands for something asynchronous, and has a way to wait for what that does. A method is taken over with its
    parameters, their types and its documentation, which stand in one place:

    class SyncClient(Waiting[Client]):
        join_group = waiting(Client.join_group)
    """

    _async: A
    _call: Call


def waiting(
    method: Callable[Concatenate[A, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Waiting[A], P], R]:
    """The method of the asynchronous one, for the one that waits."""

    @wraps(method)
    def wait(self: Waiting[A], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._call(method(self._async, *args, **kwargs))

    return wait


def looking(method: Callable[Concatenate[A, P], R]) -> Callable[Concatenate[Waiting[A], P], R]:
    """One that does not wait, but reads what only the loop's own thread may read."""

    @wraps(method)
    async def look(of: A, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return method(of, *args, **kwargs)

    return waiting(look)


class SyncOutgoingStream(Waiting[OutgoingStream]):
    def __init__(self, stream: OutgoingStream, call: Call) -> None:
        self._async, self._call = stream, call

    @property
    def id(self) -> str:
        return self._async.id

    @property
    def group(self) -> str:
        return self._async.group

    @property
    def error(self) -> SemelError | None:
        return self._async.error

    def open(self, *, timeout_s: float | None = None) -> Self:
        self._call(self._async.open(timeout_s=timeout_s))
        return self

    write = waiting(OutgoingStream.write)
    flush = waiting(OutgoingStream.flush)
    keep_alive = waiting(OutgoingStream.keep_alive)
    end = waiting(OutgoingStream.end)
    abort = waiting(OutgoingStream.abort)

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._call(self._async.__aexit__(kind, error, trace))


class SyncIncomingStream(Waiting[IncomingStream]):
    """`for part in stream`, on a thread of its own."""

    def __init__(self, stream: IncomingStream, call: Call) -> None:
        self._async, self._call = stream, call
        self.group, self.id, self.from_user = stream.group, stream.id, stream.from_user
        self.metadata: Metadata | None = stream.metadata
        self.is_whole = stream.is_whole

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        try:
            return self._call(anext(self._async))
        except StopAsyncIteration:
            raise StopIteration from None


SyncStreamHandler = Callable[[SyncIncomingStream], None]


T = TypeVar("T")
_M = TypeVar("_M", bound=Callable[[Message], None])
_S = TypeVar("_S", bound=Callable[[State], None])
_I = TypeVar("_I", bound=SyncStreamHandler)
_G = TypeVar("_G", bound=Callable[[GroupStateChange], None])

END_S = 5.0


def _streaming(
    method: Callable[Concatenate[WebPubSubClient, P], OutgoingStream],
) -> Callable[Concatenate[Waiting[WebPubSubClient], P], SyncOutgoingStream]:
    @wraps(method)
    def begin(self: Waiting[WebPubSubClient], /, *args: P.args, **kwargs: P.kwargs) -> SyncOutgoingStream:
        return SyncOutgoingStream(method(self._async, *args, **kwargs), self._call)

    return begin


class SyncWebPubSubClient(Waiting[WebPubSubClient]):
    """Takes what `WebPubSubClient` takes."""

    def __init__(
        self,
        url: Url,
        *,
        options: ClientOptions | None = None,
        outbox: str | Store | None = None,
        outbox_name: str = "client",
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._async = WebPubSubClient(url, options=options, outbox=outbox, outbox_name=outbox_name, tls=tls)
        self._handlers = ThreadPoolExecutor(1, thread_name_prefix="semel-client-handler")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._handler_threads: set[int] = set()
        self._is_open = False
        self._ending = threading.Lock()

    # -- life

    def open(self) -> Self:
        if self._thread is not None:
            raise LocalProtocolError("a client is opened once", fix="make a new one")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="semel-client", daemon=True)
        self._thread.start()
        self._is_open = True
        try:
            self._call(self._async.open())
        except BaseException:
            self._end()
            raise
        return self

    def close(self, drain_s: float = 10.0) -> None:
        """Any thread may call it, also a handler."""
        if not self._is_open:
            return
        try:
            self._call(self._async.end(drain_s, handles=threading.get_ident() not in self._handler_threads))
        finally:
            self._end()

    def wait_closed(self) -> None:
        """Returns at once when it is closed already: a handler may have been quicker."""
        try:
            self._call(self._async.wait_closed())
        except LocalProtocolError:
            if self._thread is None or self._is_open:
                raise

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.close(0)
            return
        self.close()
        self._async.raise_error()

    def _end(self) -> None:
        """Whoever still waits for anything learns that it is over."""
        assert self._loop is not None
        assert self._thread is not None
        with self._ending:
            if not self._is_open:
                return
            self._is_open = False
        self._handlers.shutdown(wait=False)
        asyncio.run_coroutine_threadsafe(_cancel_others(), self._loop).result(END_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(END_S)
        if not self._thread.is_alive():
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()

    def _call(self, asked: Coroutine[Any, Any, T]) -> T:
        if not self._is_open or self._loop is None:
            asked.close()
            raise LocalProtocolError("the client is not open", fix="use it inside `with`, or call open() first")
        if threading.current_thread() is self._thread:
            asked.close()
            raise LocalProtocolError("this would block the thread that it waits for", fix="call it from another one")
        future = asyncio.run_coroutine_threadsafe(asked, self._loop)
        try:
            return future.result()
        except CancelledError:
            raise LocalProtocolError("the client was closed", fix="make a new one") from None
        except BaseException:
            future.cancel()
            raise

    # -- who and where

    @property
    def connection_id(self) -> str | None:
        return self._async.connection_id

    @property
    def user_id(self) -> str | None:
        return self._async.user_id

    @property
    def is_connected(self) -> bool:
        return self._async.is_connected

    @property
    def groups(self) -> frozenset[str]:
        return self._async.groups

    # -- what it asks

    join_group = waiting(WebPubSubClient.join_group)
    leave_group = waiting(WebPubSubClient.leave_group)
    send_to_group = waiting(WebPubSubClient.send_to_group)
    send_event = waiting(WebPubSubClient.send_event)
    invoke = waiting(WebPubSubClient.invoke)
    stream_to_group = _streaming(WebPubSubClient.stream_to_group)

    # -- group states

    set_group_state = waiting(WebPubSubClient.set_group_state)
    update_group_state = waiting(WebPubSubClient.update_group_state)
    clear_group_state = waiting(WebPubSubClient.clear_group_state)
    group_state = looking(WebPubSubClient.group_state)
    watch_group_state = waiting(WebPubSubClient.watch_group_state)
    unwatch_group_state = waiting(WebPubSubClient.unwatch_group_state)
    group_states = looking(WebPubSubClient.group_states)

    # -- what it receives

    def on_message(self, handler: _M) -> _M:
        handle = self._on_handler_thread(handler)

        async def begin() -> None:
            self._async.on_message(handle)

        if self._is_open:
            self._call(begin())
        else:
            self._async.on_message(handle)
        return handler

    def _on_handler_thread(self, handler: Callable[[T], None]) -> Callable[[T], Coroutine[Any, Any, None]]:
        def call(item: T) -> None:
            self._handler_threads.add(threading.get_ident())
            handler(item)

        async def handle(item: T) -> None:
            await asyncio.get_running_loop().run_in_executor(self._handlers, call, item)

        return handle

    def on_stream(self, handler: _I) -> _I:
        async def handle(stream: IncomingStream) -> None:
            await self._on_thread(handler, SyncIncomingStream(stream, self._call))

        self._async.on_stream(handle)
        return handler

    async def _on_thread(self, handler: SyncStreamHandler, stream: SyncIncomingStream) -> None:
        """Each stream has a thread, however many there are: with fewer, one that waits for its next part could keep the
        threads from those whose parts stand before it."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()

        def settle(error: BaseException | None) -> None:
            if not done.done():
                done.set_result(None) if error is None else done.set_exception(error)

        def run() -> None:
            self._handler_threads.add(threading.get_ident())
            error: BaseException | None = None
            try:
                handler(stream)
            except BaseException as raised:
                error = raised
            finally:
                self._handler_threads.discard(threading.get_ident())
            with suppress(RuntimeError):  # the loop is closed, and nobody waits any more
                loop.call_soon_threadsafe(settle, error)

        threading.Thread(target=run, name=f"semel-client-stream-{stream.id[:16]}", daemon=True).start()
        await done

    def on_group_state(self, handler: _G) -> _G:
        """It runs on the thread of the message handler."""
        self._async.on_group_state(self._on_handler_thread(handler))
        return handler

    def on_state(self, handler: _S) -> _S:
        """It runs on the client's own thread, so it must not call the client."""
        self._async.on_state(handler)
        return handler

    def __iter__(self) -> Iterator[Message]:
        while self._is_open:
            try:
                yield self._call(anext(self._async))
            except StopAsyncIteration:
                return


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
