"""The byte proxy does to connections what it is told, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.tools.held_proxy import drop_all, hold_answers

from semel.errors import ConfigError
from semel.testing.byte_faults import ByteFault, ByteProxy
from semel.testing.limits import scaled

WAIT_S = 30.0
NOBODY = ("127.0.0.1", 1)
Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def linked(seed: int = 1) -> AsyncIterator[tuple[ByteProxy, Ends, Ends]]:
    """A proxy with one connection through it: both of its ends, the one that dialled first."""
    accepted: asyncio.Queue[Ends] = asyncio.Queue()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await accepted.put((reader, writer))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    proxy = ByteProxy(server.sockets[0].getsockname()[:2], seed=seed)
    near = await asyncio.open_connection("127.0.0.1", await proxy.start())
    far = await accepted.get()
    try:
        async with asyncio.timeout(scaled(WAIT_S)):
            yield proxy, near, far
    finally:
        for _, writer in (near, far):
            writer.close()
        await proxy.close()
        server.close()


def test_bytes_go_both_ways_untouched() -> None:
    async def check() -> None:
        async with linked() as (proxy, near, far):
            for (_, out), (into, _) in ((near, far), (far, near)):
                out.write(bytes(range(256)) * 1000)
                assert await into.readexactly(256_000) == bytes(range(256)) * 1000
            near[1].close()
            assert await far[0].read() == b""
            assert not proxy.struck

    asyncio.run(check())


def test_a_reset_is_seen_as_one_at_both_ends() -> None:
    async def check() -> None:
        async with linked() as (proxy, near, far):
            assert proxy.strike(ByteFault.RESET)
            for reader, _ in (near, far):
                with pytest.raises(ConnectionResetError):
                    await reader.read()
            assert not proxy.strike(ByteFault.RESET)
            assert proxy.struck == {ByteFault.RESET: 1}

    asyncio.run(check())


def test_an_end_is_seen_as_one_at_both_ends() -> None:
    async def check() -> None:
        async with linked() as (proxy, near, far):
            proxy.strike(ByteFault.END)
            assert [await reader.read() for reader, _ in (near, far)] == [b"", b""]

    asyncio.run(check())


@pytest.mark.parametrize("seed", range(4))
def test_what_is_torn_arrives_in_part(seed: int) -> None:
    async def check() -> None:
        async with linked(seed) as (proxy, near, far):
            proxy.strike(ByteFault.TORN)
            for _, writer in (near, far):
                writer.write(b"x" * 100)
            sizes = [len(await reader.read()) for reader, _ in (near, far)]
            assert 0 < max(sizes) <= 100
            assert min(sizes) < 100

    asyncio.run(check())


def test_the_direction_that_is_torn_may_be_chosen() -> None:
    async def check() -> None:
        async with linked() as (proxy, near, far):
            proxy.strike(ByteFault.TORN, way="down")
            near[1].write(b"up")
            assert await far[0].readexactly(2) == b"up"
            far[1].write(b"down")
            assert len(await near[0].read()) in range(1, 4)

    asyncio.run(check())


@pytest.mark.parametrize("seed", range(4))
def test_half_open_is_dead_in_one_direction_and_nobody_hears_of_the_other_end(seed: int) -> None:
    async def check() -> None:
        async with linked(seed) as (proxy, near, far):
            proxy.strike(ByteFault.HALF_OPEN)
            for _, writer in (near, far):
                writer.write(b"x")
            hearing = [asyncio.ensure_future(reader.read(1)) for reader, _ in (near, far)]
            heard, deaf = await asyncio.wait(hearing, return_when=asyncio.FIRST_COMPLETED)
            assert [each.result() for each in heard] == [b"x"]
            for each in deaf:
                each.cancel()
            near[1].close()
            proxy.target = NOBODY
            for _ in range(3):  # the proxy has sent away three newcomers since, and has told nobody
                reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
                assert await reader.read() == b""
                writer.close()
            assert not far[0].at_eof()
            far[1].write(b"nobody takes this")
            await far[1].drain()

    asyncio.run(check())


def test_a_stall_ends_and_everything_comes() -> None:
    async def check() -> None:
        async with linked() as (proxy, near, far):
            proxy.strike(ByteFault.STALL, for_s=0.2)
            begin = asyncio.get_running_loop().time()
            near[1].write(b"late")
            assert await far[0].readexactly(4) == b"late"
            assert asyncio.get_running_loop().time() - begin > 0.15

    asyncio.run(check())


def test_a_throttle_slows_down() -> None:
    async def check() -> None:
        async with linked() as (proxy, near, far):
            proxy.strike(ByteFault.THROTTLE, for_s=0.2)
            begin = asyncio.get_running_loop().time()
            near[1].write(b"x" * 4_000)
            await far[0].readexactly(4_000)
            assert asyncio.get_running_loop().time() - begin > 0.15

    asyncio.run(check())


def test_answers_that_are_held_are_lost_with_the_connection() -> None:
    async def check() -> None:
        async with linked() as (proxy, near, far):
            hold_answers(proxy, scaled(WAIT_S))
            near[1].write(b"ask")
            assert await far[0].readexactly(3) == b"ask"
            far[1].write(b"answer")
            drop_all(proxy)
            with pytest.raises(ConnectionResetError):
                await near[0].read()

    asyncio.run(check())


def test_nobody_is_there_and_nobody_waits() -> None:
    async def check() -> None:
        proxy = ByteProxy(NOBODY)
        reader, writer = await asyncio.open_connection("127.0.0.1", await proxy.start())
        assert await reader.read() == b""
        writer.close()
        await proxy.close()

    asyncio.run(check())


def test_it_serves_this_machine_only() -> None:
    with pytest.raises(ConfigError, match="not this machine"):
        asyncio.run(ByteProxy(("192.0.2.1", 80)).start())
