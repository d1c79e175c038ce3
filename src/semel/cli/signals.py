"""How a command that goes on and on is ended."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def until_told() -> Iterator[Callable[[], bool]]:
    """Ctrl-C and a polite kill ask for an end. A second Ctrl-C does not wait for it."""
    told = threading.Event()

    def handle(number: int, frame: object) -> None:
        if told.is_set():
            raise KeyboardInterrupt
        told.set()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield told.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
