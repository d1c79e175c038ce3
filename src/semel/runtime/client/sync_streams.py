"""Streams for programs without asyncio, with the same names and promises."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from semel.errors import SemelError
from semel.pubsub.client.data import Message
from semel.pubsub.protocol.messages import Metadata
from semel.runtime.client.inbox import IncomingStream
from semel.runtime.client.streams import OutgoingStream

T = TypeVar("T")


class Call(Protocol):
    """Has something done on the loop, and waits for it."""

    def __call__(self, asked: Coroutine[Any, Any, T]) -> T: ...


class SyncOutgoingStream:
    def __init__(self, stream: OutgoingStream, call: Call) -> None:
        self._stream, self._call = stream, call

    @property
    def id(self) -> str:
        return self._stream.id

    @property
    def group(self) -> str:
        return self._stream.group

    @property
    def error(self) -> SemelError | None:
        return self._stream.error

    def open(self, *, timeout_s: float | None = None) -> Self:
        self._call(self._stream.open(timeout_s=timeout_s))
        return self

    def write(self, data: Any, *, type: str | None = None, timeout_s: float | None = None) -> None:
        self._call(self._stream.write(data, type=type, timeout_s=timeout_s))

    def flush(self, *, timeout_s: float | None = None) -> None:
        self._call(self._stream.flush(timeout_s=timeout_s))

    def keep_alive(self) -> None:
        self._call(self._stream.keep_alive())

    def end(self, *, timeout_s: float | None = None) -> None:
        self._call(self._stream.end(timeout_s=timeout_s))

    def abort(self, message: str = "", *, code: str | None = None, timeout_s: float | None = None) -> None:
        self._call(self._stream.abort(message, code=code, timeout_s=timeout_s))

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._call(self._stream.__aexit__(kind, error, trace))


class SyncIncomingStream:
    """`for part in stream`, on a thread of its own."""

    def __init__(self, stream: IncomingStream, call: Call) -> None:
        self._stream, self._call = stream, call
        self.group, self.id, self.from_user = stream.group, stream.id, stream.from_user
        self.metadata: Metadata | None = stream.metadata
        self.is_whole = stream.is_whole

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        try:
            return self._call(anext(self._stream))
        except StopAsyncIteration:
            raise StopIteration from None


SyncStreamHandler = Callable[[SyncIncomingStream], None]
