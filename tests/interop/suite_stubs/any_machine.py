"""A plugin for pytest: Microsoft's tests go the same way on every machine.

- They sleep for so long as a machine at rest needs, or Azure: 1 ms until the client has been told its connection id. A
  slow or busy one is given longer.
- Their client waits for what it may have been told already, and then for as long as it waits at most: 30 s. Here it
  remembers, and comes to the same end sooner.
- They let a connection break by closing the socket that another thread reads. That one sleeps until there is something
  to read, and of a socket that is closed in the same moment there is nothing, ever: whether it is woken before is a
  matter of luck. Here it looks again.
"""

from __future__ import annotations

import asyncio
import select
import threading
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from azure.messaging.webpubsubclient import _client
from azure.messaging.webpubsubclient.models import _models
from websocket import _dispatcher

from semel.testing.limits import scaled

LEAST_S = 0.5
LOOK_S = 0.1


class Changed:
    """A module in which one thing is another."""

    def __init__(self, module: ModuleType, **others: object) -> None:
        self._module = module
        vars(self).update(others)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


# -- sleeping


def _longer(seconds: float) -> float:
    return scaled(max(seconds, LEAST_S))


SLEEPING = {
    time: Changed(time, sleep=lambda seconds: time.sleep(_longer(seconds))),
    asyncio: Changed(asyncio, sleep=lambda seconds: asyncio.sleep(_longer(seconds))),
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for module in {item.getparent(pytest.Module).obj for item in items}:
        for original, changed in SLEEPING.items():
            if getattr(module, original.__name__, None) is original:
                setattr(module, original.__name__, changed)


# -- waiting to be told


class Remembering(threading.Condition):
    _is_told = False

    def notify(self, n: int = 1) -> None:
        self._is_told = True
        super().notify(n)

    def wait(self, timeout: float | None = None) -> bool:
        return self._is_told or super().wait(timeout)


for module in (_client, _models):
    module.threading = Changed(threading, Condition=Remembering)


# -- waiting for something to read


def read(dispatcher: Any, socket: Any, on_readable: Callable[[], bool], check: Callable[[], bool]) -> None:
    while dispatcher.app.keep_running:
        if _is_readable(socket) and not on_readable():
            break
        check()


def _is_readable(socket: Any) -> bool:
    """A closed one has something to read as well: that it is closed."""
    try:
        return bool(select.select([socket], [], [], LOOK_S)[0])
    except (OSError, ValueError):
        return True


_dispatcher.Dispatcher.read = read
