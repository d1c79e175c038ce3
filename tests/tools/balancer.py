"""A load balancer that makes it as hard as it can be for nodes to agree: each request goes to the next of them.

A WebSocket stays where it came to. An HTTP connection is closed after its answer, so that whoever keeps connections for
several requests is balanced by the request too.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from itertools import cycle

from semel.testing.proxy import READ_BYTES, Ends, Proxy, until_one_ends

_CONNECTION = re.compile(rb"\r\nconnection:[^\r]*", re.IGNORECASE)
_UPGRADE = re.compile(rb"\r\nupgrade:", re.IGNORECASE)
_END = b"\r\n\r\n"


class Balancer(Proxy):
    """In front of the `targets`, which are addresses on this machine."""

    def __init__(self, targets: Sequence[tuple[str, int]]) -> None:
        super().__init__(targets[0])
        self._turns = cycle(targets)

    async def _link(self, near: Ends) -> None:
        self.target = next(self._turns)
        await super()._link(near)

    async def _carry(self, near: Ends, far: Ends) -> None:
        try:
            head = await near[0].readuntil(_END)
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
            return
        far[1].write(head if _UPGRADE.search(head) else once(head))
        ways = ((near[0], far[1]), (far[0], near[1]))
        await until_one_ends(*(asyncio.ensure_future(_copy(*way)) for way in ways))


def once(head: bytes) -> bytes:
    """The same request, after which the connection is to be closed."""
    return _CONNECTION.sub(b"", head.removesuffix(_END)) + b"\r\nConnection: close" + _END


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(READ_BYTES):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        return
