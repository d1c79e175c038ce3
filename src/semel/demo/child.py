"""How a child process of the demo speaks with its parent.

Its orders come as one line of JSON on standard input; what it has to say goes out as lines of JSON. When standard input
ends, it ends: by the parent's wish, or because the parent is gone.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from semel.errors import SemelError
from semel.kernel.retry import RetryPolicy
from semel.runtime.perform import Performer
from semel.runtime.transports.tcp import TcpLimits, TcpTransport

REPORT_S = 0.02
"""How often a child says how far it is."""


def say(**what: Any) -> None:
    os.write(1, json.dumps(what).encode() + b"\n")


def main(role: Callable[[dict[str, Any], asyncio.Event], Awaitable[None]]) -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    try:
        asyncio.run(_main(role))
    except SemelError as error:
        sys.exit(f"{error}")


async def _main(role: Callable[[dict[str, Any], asyncio.Event], Awaitable[None]]) -> None:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    config = json.loads(await reader.readline())
    ended = asyncio.Event()
    watch = asyncio.create_task(_watch(reader, ended))
    try:
        await role(config, ended)
    finally:
        watch.cancel()


async def _watch(reader: asyncio.StreamReader, ended: asyncio.Event) -> None:
    while await reader.read(1024):
        pass
    ended.set()


def join_network(name: str, secret: str, performer: Performer) -> TcpTransport:
    retry = RetryPolicy(interval_s=0.02, factor=2.0, interval_max_s=0.5, jitter=0.5)
    transport = TcpTransport(name, secret=bytes.fromhex(secret), limits=TcpLimits(handshake_s=2.0, retry=retry))
    performer.attach(transport)
    return transport


async def pause(ended: asyncio.Event, seconds: float) -> None:
    """Sleep, but not beyond the end."""
    try:
        async with asyncio.timeout(seconds):
            await ended.wait()
    except TimeoutError:
        pass
