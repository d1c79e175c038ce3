"""Who asks much waits behind itself and takes no place from others."""

from __future__ import annotations

import asyncio

from semel.runtime.server.webhooks import Room


class Calls:
    def __init__(self, calls: int, per_connection: int) -> None:
        self.room = Room(calls, per_connection)
        self.inside: list[str] = []
        self._goes: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def begin(self, *names: str) -> None:
        """A name is a connection and a letter for the call."""
        for name in names:
            self._goes[name] = asyncio.Event()
            self._tasks[name] = asyncio.create_task(self._call(name))
        await asyncio.sleep(0)

    async def end(self, name: str) -> None:
        self._goes[name].set()
        await self._tasks[name]
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def _call(self, name: str) -> None:
        async with self.room.place(name[0]):
            self.inside.append(name)
            await self._goes[name].wait()
            self.inside.remove(name)


async def test_so_many_at_a_time_and_the_next_in_the_order_of_coming() -> None:
    calls = Calls(calls=2, per_connection=2)
    await calls.begin("1a", "2a", "3a", "4a")
    assert calls.inside == ["1a", "2a"]
    await calls.end("1a")
    assert calls.inside == ["2a", "3a"]
    for name in ("2a", "3a", "4a"):
        await calls.end(name)


async def test_one_connection_does_not_take_the_places_of_others() -> None:
    calls = Calls(calls=3, per_connection=1)
    await calls.begin("1a", "1b", "1c", "2a")
    assert calls.inside == ["1a", "2a"]
    for name in ("1a", "1b", "1c", "2a"):
        await calls.end(name)


async def test_a_connection_without_calls_is_forgotten() -> None:
    calls = Calls(calls=1, per_connection=1)
    await calls.begin("1a", "1b")
    calls._tasks["1b"].cancel()
    await calls.end("1a")
    assert (calls.room._own, calls.room._users) == ({}, {})
