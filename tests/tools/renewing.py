"""What several tests share, such as a server: whoever breaks it must not take the tests after it along.

A fixture that shares something says so with `sharing`. After a test that failed it is asked whether it is well, and
when it is not, it is renewed. A test that runs into its limit may be in the middle of something with it: then it is cut
off, so that nobody waits for it any more, and renewed in any case.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

from tests.tools.leftovers import shared

from semel.testing.limits import scaled

CHECK_S = 20.0


class Renewable(Protocol):
    def is_well(self) -> bool:
        """May raise or hang instead of saying no."""

    def cut_off(self) -> None:
        """Kill it, whatever it is doing. Called from a signal handler."""

    def renew(self) -> None:
        """Throw away what is broken. The next test finds a new one."""


_Thing = TypeVar("_Thing", bound=Renewable)
_shared: list[Renewable] = []


@contextmanager
def sharing(thing: _Thing) -> Iterator[_Thing]:
    _shared.append(thing)
    try:
        yield thing
    finally:
        _shared.remove(thing)


def cut_off() -> None:
    for thing in _shared:
        thing.cut_off()


def fix(*, ran_into_limit: bool) -> list[Renewable]:
    """After a test that failed. Says what was renewed."""
    broken = [thing for thing in _shared if ran_into_limit or not is_well(thing.is_well)]
    for thing in broken:
        with shared("renewed"):
            thing.renew()
    return broken


def is_well(check: Callable[[], bool], seconds: float = CHECK_S) -> bool:
    """In a thread, which is left behind when it hangs."""
    answers: list[bool] = []

    def ask() -> None:
        try:
            answers.append(check())
        except Exception:
            answers.append(False)

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(scaled(seconds))
    return answers == [True]
