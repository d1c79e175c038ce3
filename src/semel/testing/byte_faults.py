"""A link that breaks: a TCP proxy that carries bytes, knows nothing of frames, and is told when to do harm.

    RESET      both ends see the connection reset; what was on its way is lost
    END        both ends see it end in order, in the middle of whatever was said
    TORN       of the next bytes some get through, then it ends: a frame is cut in two
    STALL      nothing gets through for a while, then everything
    HALF_OPEN  one direction is dead, and neither end notices: not when the other goes away either
    THROTTLE   for a while so many bytes a second and no more

Which connection is hit, and where the bytes are torn, comes from a seed. It speaks to this machine only.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections import Counter
from contextlib import suppress
from enum import Enum
from typing import Literal

from semel.testing.proxy import READ_BYTES, Ends, Proxy, until_one_ends

Way = Literal["up", "down"]
WAYS: tuple[Way, Way] = ("up", "down")
THROTTLED_BYTES_PER_S = 20_000
_RESET_AT_ONCE = struct.pack("ii", 1, 0)


class ByteFault(Enum):
    RESET = "reset"
    END = "end"
    TORN = "torn"
    STALL = "stall"
    HALF_OPEN = "half-open"
    THROTTLE = "throttle"


CUTS = frozenset({ByteFault.RESET, ByteFault.END, ByteFault.TORN, ByteFault.HALF_OPEN})
"""After these a connection is of no more use."""


class ByteProxy(Proxy):
    """`strike` does harm to one of the connections. `struck` counts what was done."""

    def __init__(self, target: tuple[str, int], *, seed: int = 0) -> None:
        super().__init__(target)
        self.chance = random.Random(seed)
        self.struck: Counter[ByteFault] = Counter()
        self.links: list[ProxiedLink] = []
        """Those which can still be hit, in the order in which they came."""
        self.linked = asyncio.Event()
        """Set when one comes. Whoever waits for the next one clears it."""

    def strike(self, fault: ByteFault, *, for_s: float = 1.0, way: Way | None = None) -> bool:
        """False if there is no connection to hit. `for_s` is how long a stall or a throttle lasts. `way` is the
        direction that is torn or dead, if it should not be any."""
        if not self.links:
            return False
        link = self.chance.choice(self.links)
        self.struck[fault] += 1
        if fault in CUTS:
            self.links.remove(link)
        link.suffer(fault, for_s, way)
        return True

    async def _carry(self, near: Ends, far: Ends) -> None:
        link = ProxiedLink(near, far, self.chance)
        self.links.append(link)
        self.linked.set()
        try:
            await link.run()
        finally:
            if link in self.links:
                self.links.remove(link)


class ProxiedLink:
    """One connection through the proxy: `up` from the client to the server, `down` back."""

    def __init__(self, near: Ends, far: Ends, chance: random.Random) -> None:
        self.near, self.far = near[1], far[1]
        self.up = _Way(near[0], far[1])
        self.down = _Way(far[0], near[1])
        self._chance = chance
        self._is_half_open = False

    async def run(self) -> None:
        await until_one_ends(asyncio.ensure_future(self.up.run()), asyncio.ensure_future(self.down.run()))
        if self._is_half_open:
            for way in (self.up, self.down):
                await way.swallow()

    def suffer(self, fault: ByteFault, for_s: float, hit: Way | None) -> None:
        ways = (self.up, self.down)
        way = ways[WAYS.index(hit or self._chance.choice(WAYS))]
        match fault:
            case ByteFault.RESET:
                self.reset()
            case ByteFault.END:
                for writer in (self.near, self.far):
                    writer.close()
            case ByteFault.TORN:
                way.tear_at = self._chance.random()
            case ByteFault.HALF_OPEN:
                self._is_half_open, way.is_dead = True, True
            case ByteFault.STALL:
                for each in ways:
                    each.stall(for_s)
            case ByteFault.THROTTLE:
                for each in ways:
                    each.throttle(for_s)

    def reset(self) -> None:
        for writer in (self.near, self.far):
            sock = writer.get_extra_info("socket")
            if sock is not None and sock.fileno() >= 0:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_ONCE)
            writer.transport.abort()


class _Way:
    """One direction. `tear_at` is the share of the next bytes that still gets through."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.tear_at: float | None = None
        self.is_dead = False
        self._throttled_until = 0.0
        self._is_open = asyncio.Event()
        self._is_open.set()

    def stall(self, for_s: float) -> None:
        self._is_open.clear()
        asyncio.get_running_loop().call_later(for_s, self._is_open.set)

    def throttle(self, for_s: float) -> None:
        self._throttled_until = asyncio.get_running_loop().time() + for_s

    async def run(self) -> None:
        while data := await self.reader.read(READ_BYTES):
            await self._is_open.wait()
            if self.tear_at is not None:
                self.writer.write(data[: max(1, int(len(data) * self.tear_at))])
                return
            if not self.is_dead:
                await self._slow_down(len(data))
                self.writer.write(data)
                await self.writer.drain()

    async def swallow(self) -> None:
        """Until this end lets go as well: nobody tells it that the other has."""
        with suppress(OSError):
            while await self.reader.read(READ_BYTES):
                pass

    async def _slow_down(self, size: int) -> None:
        if asyncio.get_running_loop().time() < self._throttled_until:
            await asyncio.sleep(size / THROTTLED_BYTES_PER_S)
