"""A plugin for pytest: a run goes the same way on every machine, however it was started and whatever a test does.

- A shell that starts a run in the background makes it deaf to Ctrl-C, and every process of every test with it. Here
  that ends: children hear the signals that they hear in the foreground.
- Tests start many Pythons. Each would compile all that it imports where PYTHONDONTWRITEBYTECODE is set, as it is in
  most containers: that is as much work as the tests themselves. Here they keep what was compiled.
- Limits grow with a machine that is slow or busy (`limits`).
- What a test has started ends with it, and all the rest with the run (`leftovers`).
- What a test has broken for others is renewed (`renewing`).
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import sys
from collections.abc import Generator
from multiprocessing import resource_tracker
from types import FrameType
from typing import Any

import pytest
import pytest_timeout
from tests.tools import renewing
from tests.tools.leftovers import Leftovers, shared

from semel.testing import limits

AGAIN_S = 30.0
"""A test that is at its limit and does not end, because it hangs once more in its cleaning up, is told again."""
HUNG_S = 90.0
"""One that cannot be told, because it hangs in code that is not Python, has so long until its process ends."""

_LEFTOVERS = pytest.StashKey[Leftovers]()
_STDERR = pytest.StashKey[int]()
_FAILED = pytest.StashKey[bool]()
_LATE = pytest.StashKey[bool]()
_started: list[str] = []
"""Programs that were started since it was last cleared."""


def pytest_configure(config: pytest.Config) -> None:
    hear_signals()
    keep_bytecode()
    limits.measured()  # before the tests make the machine busy themselves
    config.stash[_STDERR] = os.dup(2)  # later on it is captured
    config.stash[_LEFTOVERS] = leftovers = Leftovers()
    leftovers.start()
    with shared("resource_tracker"):  # multiprocessing starts it once, in whichever test is first, for all of them
        resource_tracker.ensure_running()
    sys.addaudithook(_note_start)


def pytest_unconfigure(config: pytest.Config) -> None:
    config.stash[_LEFTOVERS].close()
    os.close(config.stash[_STDERR])


def hear_signals() -> None:
    """SIGHUP stays as it is: whoever said nohup wants the run to outlive the terminal."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT)
    for number in numbers:
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number is signal.SIGINT else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)


def keep_bytecode() -> None:
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def _note_start(event: str, details: tuple[Any, ...]) -> None:
    if event == "subprocess.Popen":
        _started.append(str(details[0]))


# -- limits


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> Any:
    """At the limit whoever waits for something shared is let go first: otherwise it would only wait again."""
    limit = limits.scaled(settings.timeout)
    done = pytest_timeout.pytest_timeout_set_timer(item, settings._replace(timeout=limit))
    timeout = signal.getsignal(signal.SIGALRM)
    if callable(timeout):

        def too_late(number: int, frame: FrameType | None) -> None:
            item.stash[_LATE] = True
            renewing.cut_off()
            timeout(number, frame)

        signal.signal(signal.SIGALRM, too_late)
        signal.setitimer(signal.ITIMER_REAL, limit, limits.scaled(AGAIN_S))
    faulthandler.dump_traceback_later(limit + limits.scaled(HUNG_S), exit=True, file=item.config.stash[_STDERR])
    return done


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_cancel_timer() -> None:
    faulthandler.cancel_dump_traceback_later()


# -- what a test leaves behind


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Generator[None, object, object]:
    if fixturedef.scope == "function":
        return (yield)
    with shared(fixturedef.argname):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        item.stash[_FAILED] = True
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)  # around that of the limits, which does not reach here
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    try:
        return (yield)
    finally:
        if _started or multiprocessing.active_children():
            _started.clear()
            item.config.stash[_LEFTOVERS].end_test(item.nodeid)
        if item.stash.get(_FAILED, False):
            renewing.fix(ran_into_limit=item.stash.get(_LATE, False))
