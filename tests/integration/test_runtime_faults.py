"""The fault proxy does to frames what its weather says, and counts it."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import pytest

from semel.errors import ConfigError
from semel.runtime.transports.frames import FrameBuffer
from semel.testing.faults import FaultProxy, FrameFaults
from semel.testing.limits import scaled


def framed(number: int) -> bytes:
    payload = str(number).encode()
    return len(payload).to_bytes(4, "big") + payload


@dataclass
class Sink:
    """Accepts connections and keeps the numbers that arrive."""

    numbers: list[int] = field(default_factory=list)
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frames = FrameBuffer(1000)
        try:
            while data := await reader.read(65536):
                self.numbers += [int(payload) for payload in frames.feed(data)]
        except ConnectionResetError:
            pass
        finally:
            writer.close()
            self.ended.set()


@asynccontextmanager
async def behind(weather: FrameFaults, seed: int = 1) -> AsyncIterator[tuple[FaultProxy, Sink, int]]:
    sink = Sink()
    server = await asyncio.start_server(sink.serve, "127.0.0.1", 0)
    proxy = FaultProxy(("127.0.0.1", server.sockets[0].getsockname()[1]), weather, seed=seed)
    try:
        yield proxy, sink, await proxy.start()
    finally:
        await proxy.close()
        server.close()


async def send(port: int, count: int) -> None:
    """Send, then wait until everything has been taken and the other side hangs up."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for number in range(count):
            writer.write(framed(number))
            await writer.drain()
        writer.write_eof()
    finally:
        writer.close()


async def through(weather: FrameFaults, count: int, seed: int = 1) -> tuple[FaultProxy, list[int]]:
    async with behind(weather, seed) as (proxy, sink, port):
        await send(port, count)
        async with asyncio.timeout(scaled(30)):
            await sink.ended.wait()
        return proxy, sink.numbers


async def test_fair_weather_changes_nothing() -> None:
    proxy, numbers = await through(FrameFaults(), 500)

    assert numbers == list(range(500))
    assert (proxy.counts.passed, proxy.counts.lost, proxy.counts.doubled) == (500, 0, 0)


async def test_loss_and_doubling_are_as_frequent_as_asked_and_counted() -> None:
    proxy, numbers = await through(FrameFaults(loss=0.2, doubling=0.1), 5000)

    copies = Counter(numbers)
    assert len(numbers) == proxy.counts.passed
    assert 5000 - len(copies) == proxy.counts.lost
    assert sum(count - 1 for count in copies.values()) == proxy.counts.doubled
    assert 5000 * 0.17 < proxy.counts.lost < 5000 * 0.23
    assert 5000 * 0.8 * 0.08 < proxy.counts.doubled < 5000 * 0.8 * 0.12
    assert numbers == sorted(numbers), "nothing is reordered unless it is delayed"


async def test_delays_let_later_frames_overtake() -> None:
    async with behind(FrameFaults(delay=0.3, delay_s=0.005)) as (proxy, sink, port):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        for number in range(300):
            writer.write(framed(number))
        async with asyncio.timeout(scaled(30)):
            while len(sink.numbers) < 300:  # noqa: ASYNC110 - the frames come from timers
                await asyncio.sleep(0.005)
        writer.close()

    assert sorted(sink.numbers) == list(range(300))
    assert sink.numbers != sorted(sink.numbers)
    assert proxy.counts.delayed > 0


async def test_a_cut_ends_both_sides_and_the_next_connection_works() -> None:
    async with behind(FrameFaults(cuts=0.05)) as (proxy, sink, port):
        for _ in range(20):
            sink.ended.clear()
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            before = proxy.counts.cut
            for number in range(200):
                writer.write(framed(number))
            async with asyncio.timeout(scaled(30)):
                with suppress(ConnectionResetError):
                    assert await reader.read() == b""
                await sink.ended.wait()
            writer.close()
            assert proxy.counts.cut == before + 1

    assert proxy.counts.connections == 20


async def test_the_first_frames_are_spared() -> None:
    _, numbers = await through(FrameFaults(loss=0.9, spare=3), 100)

    assert numbers[:3] == [0, 1, 2]
    assert len(numbers) < 40


async def test_the_same_seed_gives_the_same_weather() -> None:
    weather = FrameFaults(loss=0.2, doubling=0.2)
    _, first = await through(weather, 200, seed=7)
    _, again = await through(weather, 200, seed=7)
    _, other = await through(weather, 200, seed=8)

    assert first == again
    assert first != other


async def test_nobody_behind_it_is_an_ordinary_hang_up() -> None:
    async with behind(FrameFaults()) as (proxy, _, port):
        proxy.target = ("127.0.0.1", 1)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.read() == b""
        writer.close()


async def test_a_frame_without_end_cuts_only_its_connection() -> None:
    async with behind(FrameFaults()) as (_, sink, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"\xff\xff\xff\xff")
        assert await reader.read() == b""
        writer.close()
        sink.ended.clear()
        await send(port, 5)
        async with asyncio.timeout(scaled(30)):
            await sink.ended.wait()
        assert sink.numbers == [0, 1, 2, 3, 4]


async def test_it_serves_this_machine_only() -> None:
    with pytest.raises(ConfigError, match="this machine"):
        await FaultProxy(("192.0.2.1", 80), FrameFaults()).start()
    with pytest.raises(ConfigError, match="this machine"):
        await FaultProxy(("127.0.0.1", 80), FrameFaults()).start("0.0.0.0")


@pytest.mark.parametrize("wrong", [{"loss": 1.0}, {"doubling": -0.1}, {"cuts": 2.0}, {"delay_s": -1.0}])
def test_weather_that_cannot_be_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        FrameFaults(**wrong)  # type: ignore[arg-type]


async def test_it_runs_as_a_program_of_its_own() -> None:
    sink = Sink()
    server = await asyncio.start_server(sink.serve, "127.0.0.1", 0)
    target = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    program = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "semel.testing.faults", "--to", target, "--loss", "0.5", "--seed", "3",
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert program.stdout is not None
    try:
        async with asyncio.timeout(scaled(30)):
            port = json.loads(await program.stdout.readline())["port"]
            await send(port, 100)
            await sink.ended.wait()
            program.send_signal(signal.SIGTERM)
            counts = json.loads(await program.stdout.readline())
            assert await program.wait() == 0
    finally:
        if program.returncode is None:
            program.kill()
            await program.wait()
        server.close()

    assert counts["passed"] == len(sink.numbers)
    assert counts["passed"] + counts["lost"] == 100


@pytest.mark.parametrize(
    "arguments", [["--to", "nowhere"], ["--to", "192.0.2.1:80"], ["--to", "127.0.0.1:1", "--loss", "2"]]
)
async def test_the_program_refuses_bad_arguments_with_usage(arguments: list[str]) -> None:
    program = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "semel.testing.faults", *arguments, stderr=asyncio.subprocess.PIPE
    )
    _, said = await program.communicate()

    assert program.returncode == 2
    assert b"fix:" in said
