"""A stream to a group: `async with client.stream_to_group("g") as stream: await stream.write(part)`"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from semel.errors import LocalProtocolError, SemelError
from semel.kernel.text import clean_cause
from semel.pubsub.client.data import data_of
from semel.pubsub.client.events import (
    BeginStream,
    EndStream,
    FlushStream,
    KeepStream,
    RequestFailed,
    StreamEvent,
    WritePart,
)
from semel.pubsub.protocol.messages import ErrorName, Fault, StartStream
from semel.runtime.client.driver import ClientDriver


class OutgoingStream:
    """Its parts are published once and in order, over broken connections too, as long as the session lives. When it is
    left by an error, those who receive it learn that it is not whole."""

    def __init__(self, driver: ClientDriver, request: StartStream) -> None:
        self._driver, self._request = driver, request
        self._is_begun = self._is_over = False
        self._error: SemelError | None = None

    def __repr__(self) -> str:
        return f"<OutgoingStream {self.id} to {self.group}>"

    @property
    def id(self) -> str:
        return self._request.stream_id

    @property
    def group(self) -> str:
        return self._request.group

    @property
    def error(self) -> SemelError | None:
        """Why it is over before its time, if it is."""
        return self._error

    async def open(self, *, timeout_s: float | None = None) -> Self:
        """Returns when the server has begun it. Raises `Forbidden`, `InputError`, ... if it does not."""
        if self._is_begun or self._is_over:
            raise LocalProtocolError("a stream is opened once", fix="make a new one")
        self._driver.on_stream_over(self.id, self._over)
        try:
            await self._ask(lambda token: BeginStream(token, self._request, timeout_s))
        except BaseException:
            self._is_over = True
            self._driver.off_stream_over(self.id, self._over)
            raise
        self._is_begun = True
        return self

    async def write(self, data: Any, *, type: str | None = None, timeout_s: float | None = None) -> None:
        """The next part. Returns as soon as there is room for it, which there is unless the server is slower than you;
        `flush` or the end say that it has arrived. bytes are binary, a str is text, and all else is JSON, unless `type`
        says otherwise. Raises `StreamBroken` if the stream is over."""
        self._check_open()
        content = data_of(data, type)
        await self._ask(lambda token: WritePart(token, self.id, content, timeout_s))

    async def flush(self, *, timeout_s: float | None = None) -> None:
        """Returns when the hub has all parts that were written, durably."""
        self._check_open()
        await self._ask(lambda token: FlushStream(token, self.id, timeout_s))

    async def keep_alive(self) -> None:
        """Say that it is not idle, though there is nothing to write."""
        self._check_open()
        self._driver.feed(KeepStream(self.id))

    async def end(self, *, timeout_s: float | None = None) -> None:
        """Returns when the hub has all of it, and its receivers know that it is whole."""
        self._check_open()
        await self._end(None, timeout_s)

    async def abort(self, message: str = "", *, code: str | None = None, timeout_s: float | None = None) -> None:
        """Its receivers get `StreamBroken` with this message and code. Parts that were not flushed may be dropped."""
        self._check_open()
        await self._end(_fault(message, code), timeout_s)

    async def _end(self, fault: Fault | None, timeout_s: float | None) -> None:
        await self._ask(lambda token: EndStream(token, self.id, fault, timeout_s))

    async def _ask(self, make: Callable[[int], StreamEvent]) -> None:
        result = await self._driver.ask_stream(make)
        if isinstance(result, RequestFailed):
            raise result.error

    def _check_open(self) -> None:
        if self._error is not None:
            raise self._error
        if not self._is_begun or self._is_over:
            raise LocalProtocolError("the stream is not open", fix="use it inside `async with`, and end it last")

    def _over(self, error: SemelError | None) -> None:
        self._is_over, self._error = True, error

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nobody waits for the end of one that failed: the client sees to it."""
        if error is not None:
            if not self._is_over:
                self._driver.feed(EndStream(None, self.id, _fault(type(error).__name__, None)))
        elif not self._is_over or self._error is not None:
            await self.end()


def _fault(message: str, code: str | None) -> Fault:
    return Fault(ErrorName.USER, clean_cause(message), None if code is None else clean_cause(code))
