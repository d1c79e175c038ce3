"""The body of a request while it comes: a connection feeds it, a service reads it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class BodyReader:
    """Chunks in the order in which they came. `wanted` is called when somebody reads for the first time, and `taken`
    with the size of each chunk that was read. What goes wrong on the wire is raised to the reader, after all that came
    before it."""

    def __init__(self, wanted: Callable[[BodyReader], None], taken: Callable[[BodyReader, int], None]) -> None:
        self.held_bytes = 0
        self.is_complete = False
        self._wanted: Callable[[BodyReader], None] | None = wanted
        self._taken = taken
        self._chunks: deque[bytes] = deque()
        self._error: Exception | None = None
        self._waiting: asyncio.Future[None] | None = None

    def __aiter__(self) -> BodyReader:
        return self

    async def __anext__(self) -> bytes:
        if self._wanted is not None:
            wanted, self._wanted = self._wanted, None
            wanted(self)
        while not self._chunks:
            if self._error is not None:
                raise self._error
            if self.is_complete:
                raise StopAsyncIteration
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        chunk = self._chunks.popleft()
        self.held_bytes -= len(chunk)
        self._taken(self, len(chunk))
        return chunk

    # -- by the connection

    def feed(self, chunk: bytes) -> None:
        self._chunks.append(chunk)
        self.held_bytes += len(chunk)
        self._wake()

    def end(self) -> None:
        self.is_complete = True
        self._wake()

    def fail(self, error: Exception) -> None:
        """No more will come."""
        self._error = self._error or error
        self._wake()

    def discard(self) -> int:
        """Whoever read it has finished. Returns how much is thrown away."""
        held, self.held_bytes = self.held_bytes, 0
        self._chunks.clear()
        return held

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)
