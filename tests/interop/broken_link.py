"""Proxies of `semel.testing` beside tests that know no event loop."""

from __future__ import annotations

import asyncio
import threading
from types import TracebackType
from typing import Generic, Self, TypeVar

from semel.testing.byte_faults import ByteFault, ByteProxy, Way
from semel.testing.limits import scaled
from semel.testing.proxy import Proxy

WAIT_S = 30.0

P = TypeVar("P", bound=Proxy)


class Beside(Generic[P]):
    """Dial `port` to get through."""

    def __init__(self, proxy: P) -> None:
        self._proxy = proxy
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    def __enter__(self) -> Self:
        self._thread.start()
        self.port = asyncio.run_coroutine_threadsafe(self._proxy.start(), self._loop).result(scaled(WAIT_S))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        asyncio.run_coroutine_threadsafe(self._proxy.close(), self._loop).result(scaled(WAIT_S))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(scaled(WAIT_S))
        self._loop.close()


class BrokenLink(Beside[ByteProxy]):
    """To the server at `target`. `strike` breaks a connection of those that are open."""

    def __init__(self, target: int) -> None:
        super().__init__(ByteProxy(("127.0.0.1", target)))

    def strike(self, fault: ByteFault, way: Way | None = None) -> None:
        """As soon as there is a connection: the client may still be on its way back from the last one."""

        async def strike() -> None:
            async with asyncio.timeout(scaled(WAIT_S)):
                while not self._proxy.strike(fault, way=way):
                    self._proxy.linked.clear()
                    await self._proxy.linked.wait()

        asyncio.run_coroutine_threadsafe(strike(), self._loop).result()
