"""What the fault proxies have in common: they stand between two processes on this machine, one link per connection."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

from semel.errors import ConfigError
from semel.runtime.transports.tcp import is_loopback

READ_BYTES = 64 * 1024
Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Proxy(ABC):
    """`target` may be changed while it runs: a process that was killed comes back on another port."""

    def __init__(self, target: tuple[str, int]) -> None:
        self.target = target
        self._server: asyncio.Server | None = None
        self._links: set[asyncio.Task[None]] = set()

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> int:
        """Begin to listen; returns the port."""
        for name in (host, self.target[0]):
            if not is_loopback(name):
                raise ConfigError(f"{name} is not this machine", fix="a fault proxy only serves 127.0.0.1 and ::1")
        self._server = await asyncio.start_server(self._accept, host, port)
        return self.port

    @property
    def port(self) -> int:
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        links = list(self._links)
        for link in links:
            link.cancel()
        await asyncio.gather(*links, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = asyncio.get_running_loop().create_task(self._link((reader, writer)))
        self._links.add(link)
        link.add_done_callback(self._links.discard)

    async def _link(self, near: Ends) -> None:
        with _closing(near[1]):
            try:
                far = await asyncio.open_connection(*self.target)
            except OSError:
                return
            with _closing(far[1]):
                await self._carry(near, far)

    @abstractmethod
    async def _carry(self, near: Ends, far: Ends) -> None:
        """Both directions of one connection, until it ends. `near` is who dialled, `far` the target."""


async def until_one_ends(*ways: asyncio.Future[None]) -> None:
    """Directions that end together, whichever ends first."""
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)


@contextmanager
def _closing(writer: asyncio.StreamWriter) -> Iterator[None]:
    try:
        yield
    finally:
        writer.close()
