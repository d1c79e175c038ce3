"""The client for programs without asyncio: `with SyncWebPubSubClient(url) as client:`

The same names and the same promises as `WebPubSubClient`, which runs on a loop in a thread of its own. Any thread may
call. Handlers run on one more thread, one message after the other, and may call the client; so may those of streams,
each stream on a thread of its own.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeVar

from semel.errors import LocalProtocolError
from semel.kernel.store import Store
from semel.pubsub.client.data import GroupStateChange, Message
from semel.pubsub.client.events import ClientOptions, State
from semel.pubsub.protocol.messages import GroupStateItem, Metadata
from semel.runtime.client.client import WebPubSubClient
from semel.runtime.client.inbox import IncomingStream
from semel.runtime.client.socket import Url
from semel.runtime.client.sync_streams import SyncIncomingStream, SyncOutgoingStream, SyncStreamHandler

T = TypeVar("T")
_M = TypeVar("_M", bound=Callable[[Message], None])
_S = TypeVar("_S", bound=Callable[[State], None])
_I = TypeVar("_I", bound=SyncStreamHandler)
_G = TypeVar("_G", bound=Callable[[GroupStateChange], None])

END_S = 5.0


class SyncWebPubSubClient:
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
        self._client = WebPubSubClient(url, options=options, outbox=outbox, outbox_name=outbox_name, tls=tls)
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
            self._call(self._client.open())
        except BaseException:
            self._end()
            raise
        return self

    def close(self, drain_s: float = 10.0) -> None:
        """Any thread may call it, also a handler."""
        if not self._is_open:
            return
        try:
            self._call(self._client.end(drain_s, handles=threading.get_ident() not in self._handler_threads))
        finally:
            self._end()

    def wait_closed(self) -> None:
        """Returns at once when it is closed already: a handler may have been quicker."""
        try:
            self._call(self._client.wait_closed())
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
        self._client.raise_error()

    def _end(self) -> None:
        """Whoever still waits for anything hears that it is over."""
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
        return self._client.connection_id

    @property
    def user_id(self) -> str | None:
        return self._client.user_id

    @property
    def is_connected(self) -> bool:
        return self._client.is_connected

    @property
    def groups(self) -> frozenset[str]:
        return self._client.groups

    # -- what it asks

    def join_group(self, group: str, *, timeout_s: float | None = None) -> None:
        self._call(self._client.join_group(group, timeout_s=timeout_s))

    def leave_group(self, group: str, *, timeout_s: float | None = None) -> None:
        self._call(self._client.leave_group(group, timeout_s=timeout_s))

    def send_to_group(
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
        return self._call(
            self._client.send_to_group(
                group, data, type=type, id=id, no_echo=no_echo, ttl_s=ttl_s, metadata=metadata,
                at_least_once=at_least_once, until_kept=until_kept, timeout_s=timeout_s,
            )
        )  # fmt: skip

    def send_event(
        self,
        event: str,
        data: Any,
        *,
        type: str | None = None,
        metadata: Metadata | None = None,
        at_least_once: bool = False,
        timeout_s: float | None = None,
    ) -> bool:
        return self._call(
            self._client.send_event(
                event, data, type=type, metadata=metadata, at_least_once=at_least_once, timeout_s=timeout_s
            )
        )

    def invoke(self, event: str, data: Any = None, *, type: str | None = None, timeout_s: float | None = None) -> Any:
        return self._call(self._client.invoke(event, data, type=type, timeout_s=timeout_s))

    def stream_to_group(
        self,
        group: str,
        *,
        id: str | None = None,
        idle_timeout_s: float | None = None,
        no_echo: bool = False,
        ttl_s: int | None = None,
        metadata: Metadata | None = None,
    ) -> SyncOutgoingStream:
        made = self._client.stream_to_group(
            group, id=id, idle_timeout_s=idle_timeout_s, no_echo=no_echo, ttl_s=ttl_s, metadata=metadata
        )
        return SyncOutgoingStream(made, self._call)

    # -- group states

    def set_group_state(self, group: str, state: Mapping[str, str], *, timeout_s: float | None = None) -> None:
        self._call(self._client.set_group_state(group, state, timeout_s=timeout_s))

    def update_group_state(
        self, group: str, changes: Mapping[str, str | None], *, timeout_s: float | None = None
    ) -> None:
        self._call(self._client.update_group_state(group, changes, timeout_s=timeout_s))

    def clear_group_state(self, group: str, *, timeout_s: float | None = None) -> None:
        self._call(self._client.clear_group_state(group, timeout_s=timeout_s))

    def group_state(self, group: str) -> dict[str, str]:
        async def look() -> dict[str, str]:
            return self._client.group_state(group)

        return self._call(look())

    def watch_group_state(self, group: str, *, timeout_s: float | None = None) -> dict[str, GroupStateItem]:
        return self._call(self._client.watch_group_state(group, timeout_s=timeout_s))

    def unwatch_group_state(self, group: str, *, timeout_s: float | None = None) -> None:
        self._call(self._client.unwatch_group_state(group, timeout_s=timeout_s))

    def group_states(self, group: str) -> dict[str, GroupStateItem]:
        async def look() -> dict[str, GroupStateItem]:
            return self._client.group_states(group)

        return self._call(look())

    # -- what it hears

    def on_message(self, handler: _M) -> _M:
        async def handle(message: Message) -> None:
            await asyncio.get_running_loop().run_in_executor(self._handlers, self._call_handler, handler, message)

        async def begin() -> None:
            self._client.on_message(handle)

        if self._is_open:
            self._call(begin())
        else:
            self._client.on_message(handle)
        return handler

    def _call_handler(self, handler: Callable[[T], None], told: T) -> None:
        self._handler_threads.add(threading.get_ident())
        handler(told)

    def on_stream(self, handler: _I) -> _I:
        async def handle(stream: IncomingStream) -> None:
            await self._on_thread(handler, SyncIncomingStream(stream, self._call))

        self._client.on_stream(handle)
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

        async def handle(change: GroupStateChange) -> None:
            await asyncio.get_running_loop().run_in_executor(self._handlers, self._call_handler, handler, change)

        self._client.on_group_state(handle)
        return handler

    def on_state(self, handler: _S) -> _S:
        """It runs on the client's own thread, so it must not call the client."""
        self._client.on_state(handler)
        return handler

    def __iter__(self) -> Iterator[Message]:
        while self._is_open:
            try:
                yield self._call(anext(self._client))
            except StopAsyncIteration:
                return


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
