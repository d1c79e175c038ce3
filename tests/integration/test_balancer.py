from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import httpx
import pytest
from tests.tools.balancer import Balancer, once

NAMES = "abc"


async def served(name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Says its name to each request; a connection that is upgraded hears what it says."""
    while head := await reader.readuntil(b"\r\n\r\n"):
        if b"Upgrade" in head:
            writer.write(head)
            while data := await reader.read(100):
                writer.write(name.encode() + data)
            break
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nConnection: close\r\n\r\n" + name.encode())
        if b"Connection: close" in head:
            break
    await writer.drain()
    writer.close()


@pytest.fixture
async def port() -> AsyncIterator[int]:
    async with AsyncExitStack() as stack:
        ports = []
        for name in NAMES:
            server = await asyncio.start_server(lambda *ends, name=name: served(name, *ends), "127.0.0.1")
            stack.push_async_callback(server.wait_closed)
            stack.callback(server.close)
            ports.append(server.sockets[0].getsockname()[1])
        balancer = Balancer([("127.0.0.1", port) for port in ports])
        found = await balancer.start()
        stack.push_async_callback(balancer.close)
        yield found


async def test_each_request_of_a_client_that_keeps_its_connection_goes_to_the_next_server(port: int) -> None:
    async with httpx.AsyncClient(trust_env=False) as client:
        said = [(await client.get(f"http://127.0.0.1:{port}/")).text for _ in range(7)]
    assert said == list("abcabca")


async def test_a_connection_that_is_upgraded_stays_where_it_is(port: int) -> None:
    ends = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
    asked = b"GET / HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    for (reader, writer), name in zip(ends, "ab", strict=True):
        writer.write(asked)
        assert await reader.readexactly(len(asked)) == asked
        for text in (b"one", b"two"):
            writer.write(text)
            assert await reader.readexactly(4) == name.encode() + text
    for _, writer in ends:
        writer.close()


def test_what_a_request_said_of_its_connection_is_replaced() -> None:
    asked = b"GET / HTTP/1.1\r\nconnection: keep-alive\r\nHost: h\r\n\r\n"
    assert once(asked) == b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
