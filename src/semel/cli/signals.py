"""How a command that goes on and on is ended: by Ctrl-C or a polite kill."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress


@contextmanager
def ended_by(handler: Callable[..., object]) -> Iterator[None]:
    """Both signals call `handler`. A shell that starts a command in the background makes it deaf to Ctrl-C; what runs
    until it is asked to end listens all the same, as `semel serve` does."""
    before = {number: signal.signal(number, handler) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)


@contextmanager
def until_signalled() -> Iterator[Callable[[], bool]]:
    """They ask for an end. A second one does not wait for it."""
    signalled = threading.Event()

    def handle(number: int, frame: object) -> None:
        if signalled.is_set():
            raise KeyboardInterrupt
        signalled.set()

    with ended_by(handle):
        yield signalled.is_set


@contextmanager
def until_interrupted() -> Iterator[None]:
    """They end it at once, and as it should end."""
    with suppress(KeyboardInterrupt), ended_by(signal.default_int_handler):
        yield
