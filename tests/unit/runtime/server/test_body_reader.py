"""The body of a request, between the connection that feeds it and the service that reads it."""

from __future__ import annotations

import asyncio

import pytest

from semel.runtime.server.body_reader import BodyReader


class Body:
    def __init__(self) -> None:
        self.wanted, self.taken = 0, list[int]()
        self.reader = BodyReader(self._want, lambda _, size: self.taken.append(size))

    def _want(self, _: BodyReader) -> None:
        self.wanted += 1


async def test_chunks_come_out_in_order_and_what_is_held_is_counted() -> None:
    body = Body()
    body.reader.feed(b"one")
    body.reader.feed(b"more")
    assert (body.reader.held_bytes, body.wanted) == (7, 0)
    body.reader.end()
    assert [chunk async for chunk in body.reader] == [b"one", b"more"]
    assert (body.reader.held_bytes, body.wanted, body.taken) == (0, 1, [3, 4])


async def test_whoever_reads_waits_for_what_comes() -> None:
    body = Body()
    reading = asyncio.create_task(anext(body.reader))
    await asyncio.sleep(0)
    assert not reading.done()
    body.reader.feed(b"late")
    assert await reading == b"late"


async def test_an_error_comes_after_what_came_before_it_and_the_first_counts() -> None:
    body = Body()
    body.reader.feed(b"half")
    body.reader.fail(ConnectionResetError("gone"))
    body.reader.fail(ValueError("later"))
    assert await anext(body.reader) == b"half"
    with pytest.raises(ConnectionResetError):
        await anext(body.reader)


async def test_half_a_body_is_never_taken_for_a_whole_one() -> None:
    body = Body()
    reading = asyncio.create_task(anext(body.reader))
    await asyncio.sleep(0)
    body.reader.fail(ConnectionResetError("gone"))
    with pytest.raises(ConnectionResetError):
        await reading


async def test_what_nobody_read_is_thrown_away_and_counted() -> None:
    body = Body()
    body.reader.feed(b"unread")
    assert (body.reader.discard(), body.reader.held_bytes, body.taken) == (6, 0, [])
