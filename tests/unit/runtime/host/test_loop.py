"""The loop that Semel's own programs run on."""

from __future__ import annotations

import asyncio

import pytest
import uvloop

from semel.runtime.host import loop


async def kind() -> type[asyncio.AbstractEventLoop]:
    return type(asyncio.get_running_loop())


def test_uvloop_is_used_where_it_is_installed():
    assert loop.run(kind()) is uvloop.Loop


def test_asyncio_does_without_it(monkeypatch):
    monkeypatch.setattr(loop, "uvloop", None)
    assert issubclass(loop.run(kind()), asyncio.BaseEventLoop)


def test_an_error_comes_out():
    async def fail() -> None:
        raise ValueError("out")

    with pytest.raises(ValueError, match="out"):
        loop.run(fail())
