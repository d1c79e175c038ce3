"""A link that misbehaves: a TCP proxy that loses, doubles, delays and reorders frames, and cuts connections.

It knows where frames end (four bytes of length, big endian) and nothing of what is in them. Chance comes from a seed.

    python -m semel.testing.faults --to 127.0.0.1:7000 --loss 0.05 --doubling 0.05 --cuts 0.002 --seed 7

It prints its port, and its counts when it is ended. It speaks to this machine only.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
from dataclasses import asdict, dataclass, field

from semel.errors import ConfigError, LimitExceeded
from semel.runtime.transports.frames import HEADER_BYTES, FrameBuffer
from semel.testing.proxy import READ_BYTES, Ends, Proxy, until_one_ends

FRAME_BYTES_MAX = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class FrameFaults:
    """Chances per frame. A delayed frame waits up to `delay_s` while later ones pass it.

    The first `spare` frames of each direction go through untouched, so that a handshake can end; a connection that
    never comes to speak would show nothing about the machines.
    """

    loss: float = 0.0
    doubling: float = 0.0
    delay: float = 0.0
    delay_s: float = 0.02
    cuts: float = 0.0
    spare: int = 2

    def __post_init__(self) -> None:
        for name in ("loss", "doubling", "delay", "cuts"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}", fix="use a share from 0 to below 1")
        if self.delay_s < 0:
            raise ConfigError(f"delay_s is {self.delay_s}", fix="use 0 or more seconds")


@dataclass(slots=True)
class Counts:
    """What happened to frames. Each copy was passed or lost in the end: passed + lost = frames that came + doubled."""

    connections: int = 0
    passed: int = 0
    lost: int = 0
    doubled: int = 0
    delayed: int = 0
    cut: int = 0


class FaultProxy(Proxy):
    """Decides over each frame as its weather says."""

    def __init__(self, target: tuple[str, int], weather: FrameFaults, *, seed: int = 0) -> None:
        super().__init__(target)
        self.weather = weather
        self.counts = Counts()
        self._chance = random.Random(seed)

    async def _carry(self, near: Ends, far: Ends) -> None:
        self.counts.connections += 1
        await until_one_ends(
            asyncio.ensure_future(_Way(self, near[0], far[1]).run()),
            asyncio.ensure_future(_Way(self, far[0], near[1]).run()),
        )


@dataclass(slots=True)
class _Way:
    """One direction of one connection."""

    proxy: FaultProxy
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    seen: int = 0
    late: dict[int, asyncio.TimerHandle] = field(default_factory=dict)

    async def run(self) -> None:
        frames = FrameBuffer(FRAME_BYTES_MAX)
        try:
            while data := await self.reader.read(READ_BYTES):
                if not all(self._let(payload) for payload in frames.feed(data)):
                    return
                await self.writer.drain()
        except (OSError, LimitExceeded):
            return
        finally:
            self.proxy.counts.lost += len(self.late)
            for timer in self.late.values():
                timer.cancel()

    def _let(self, payload: bytes) -> bool:
        """Decide over one frame. False cuts the connection."""
        weather, counts, chance = self.proxy.weather, self.proxy.counts, self.proxy._chance
        self.seen += 1
        if self.seen <= weather.spare:
            self._pass(payload)
            return True
        if chance.random() < weather.cuts:
            self._cut()
            return False
        if chance.random() < weather.loss:
            counts.lost += 1
            return True
        if chance.random() < weather.doubling:
            counts.doubled += 1
            self._soon_or_late(payload)
        self._soon_or_late(payload)
        return True

    def _cut(self) -> None:
        """Half the cuts throw away what is still on its way; after the others it arrives."""
        self.proxy.counts.cut += 1
        self.proxy.counts.lost += 1
        if self.proxy._chance.random() < 0.5:
            self.writer.transport.abort()

    def _soon_or_late(self, payload: bytes) -> None:
        weather, chance = self.proxy.weather, self.proxy._chance
        if chance.random() >= weather.delay:
            self._pass(payload)
            return
        self.proxy.counts.delayed += 1
        number = self.proxy.counts.delayed
        wait_s = chance.uniform(0, weather.delay_s)
        self.late[number] = asyncio.get_running_loop().call_later(wait_s, self._pass_late, number, payload)

    def _pass_late(self, number: int, payload: bytes) -> None:
        del self.late[number]
        self._pass(payload)

    def _pass(self, payload: bytes) -> None:
        if self.writer.is_closing():
            self.proxy.counts.lost += 1
            return
        self.proxy.counts.passed += 1
        self.writer.write(len(payload).to_bytes(HEADER_BYTES, "big") + payload)


async def _serve(target: tuple[str, int], weather: FrameFaults, port: int, seed: int) -> None:
    proxy = FaultProxy(target, weather, seed=seed)
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    print(json.dumps({"port": await proxy.start(port=port)}), flush=True)
    await ended.wait()
    await proxy.close()
    print(json.dumps(asdict(proxy.counts)), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m semel.testing.faults", description="A link that misbehaves.")
    parser.add_argument("--to", required=True, metavar="HOST:PORT", help="where frames go, on this machine")
    parser.add_argument("--port", type=int, default=0, help="listen here (0: the system chooses)")
    for name in ("loss", "doubling", "delay", "cuts"):
        parser.add_argument(f"--{name}", type=float, default=0.0, help="chance per frame")
    parser.add_argument("--delay-s", type=float, default=0.02, help="longest delay in seconds")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    try:
        weather = FrameFaults(options.loss, options.doubling, options.delay, options.delay_s, options.cuts)
        asyncio.run(_serve(_parse_target(options.to), weather, options.port, options.seed))
    except ConfigError as error:
        parser.error(str(error))


def _parse_target(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal():
        raise ConfigError(f"{text!r} is not HOST:PORT", fix="write 127.0.0.1:7000")
    return host.strip("[]"), int(port)


if __name__ == "__main__":
    main()
