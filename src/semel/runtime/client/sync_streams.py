"""Streams for programs without asyncio, with the same names and promises."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

from semel.errors import SemelError
from semel.pubsub.client.data import Message
from semel.pubsub.protocol.messages import Metadata
from semel.runtime.client.inbox import IncomingStream
from semel.runtime.client.streams import OutgoingStream
from semel.runtime.client.waiting import Call, Waiting, waiting


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
