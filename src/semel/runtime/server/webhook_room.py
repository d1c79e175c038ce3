"""How many calls to one event handler are under way, and how many of them for one connection."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Room:
    """At most `calls` at a time, and `per_connection` for each connection: who asks much waits behind itself and takes
    no place from others meanwhile. Who waits is let in in the order of coming."""

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
