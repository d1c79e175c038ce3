"""The byte proxy of `semel.testing` beside tests that know no event loop."""

from __future__ import annotations

import asyncio
import threading
from types import TracebackType

from semel.testing.byte_faults import ByteProxy, Fault, Way
from semel.testing.limits import scaled

WAIT_S = 30.0


class BrokenLink:
    """Dial `port` to get to the server at `target`. `strike` breaks a connection of those that are open."""

    def __init__(self, target: int) -> None:
        self._proxy = ByteProxy(("127.0.0.1", target))
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)

    def __enter__(self) -> BrokenLink:
        self._thread.start()
        self.port = asyncio.run_coroutine_threadsafe(self._proxy.start(), self._loop).result(scaled(WAIT_S))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        asyncio.run_coroutine_threadsafe(self._proxy.close(), self._loop).result(scaled(WAIT_S))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(scaled(WAIT_S))
        self._loop.close()

    def strike(self, fault: Fault, way: Way | None = None) -> None:
        """As soon as there is a connection: the client may still be on its way back from the last one."""

        async def strike() -> None:
            async with asyncio.timeout(scaled(WAIT_S)):
                while not self._proxy.strike(fault, way=way):
                    self._proxy.linked.clear()
                    await self._proxy.linked.wait()

        asyncio.run_coroutine_threadsafe(strike(), self._loop).result()
