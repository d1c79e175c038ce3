"""Runs a coroutine on the fastest event loop at hand: uvloop, or asyncio's own where there is none (Windows)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

try:
    import uvloop
except ModuleNotFoundError:
    uvloop = None  # type: ignore[assignment]

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    """Like `asyncio.run`."""
    factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    if uvloop is not None:
        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(main)
