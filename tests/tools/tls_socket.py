"""A WebSocket over TLS for tests that block.

`websockets.sync` reads on one thread and writes on another, and before Python 3.13 `ssl` does not keep the two apart:
one handshake in about 300 lost its request, and the server cut the connection off after ten seconds. So here a loop on
a thread of its own has the connection, and nobody else touches it.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Coroutine
from typing import Any, Self, TypeVar

from websockets.asyncio.client import ClientConnection, connect
from websockets.typing import Subprotocol

T = TypeVar("T")


class TlsSocket:
    """Open it by `with`."""

    def __init__(self, url: str, subprotocol: str, tls: ssl.SSLContext, *, open_s: float, close_s: float) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._close_s = close_s
        try:
            self._socket: ClientConnection = self._wait(_opened(url, subprotocol, tls, open_s, close_s))
        except BaseException:
            self._end()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._wait(self._socket.close())
        self._end()

    def send(self, text: str) -> None:
        self._wait(self._socket.send(text))

    def recv(self, timeout: float) -> str | bytes:
        return self._wait(asyncio.wait_for(self._socket.recv(), timeout))

    def _wait(self, call: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()

    def _end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _opened(url: str, subprotocol: str, tls: ssl.SSLContext, open_s: float, close_s: float) -> ClientConnection:
    return await connect(
        url,
        subprotocols=[Subprotocol(subprotocol)],
        open_timeout=open_s,
        close_timeout=close_s,
        ssl=tls,
        proxy=None,
    )
