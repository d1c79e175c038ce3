"""Ends the processes that tests have started and not ended: after each test those of the test, and after the run all.

Every process inherits the environment of the one that starts it, so a word in there says which run and which test it
belongs to, whatever became of the processes between them. A guard, which is a process of its own, waits for the end of
the run and then ends what is left, also when the run was killed. Where there is no /proc, nothing of this is done.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

RUN = "PYTEST_STARTED_BY"
TEST = "PYTEST_CURRENT_TEST"
"""pytest itself sets it: the test and, in brackets, its phase."""
SHARED = "PYTEST_SHARED"
"""The fixture that a process belongs to, when several tests share it."""

Meant = Callable[[Mapping[str, str]], bool]
"""Whether a process is meant, by its environment."""

PROC = Path("/proc")
END_S = 30.0
POLL_S = 0.01


class Leftovers:
    """The processes of one run: of pytest, or of one worker of it."""

    def __init__(self) -> None:
        self.run = f"{os.getpid()}-{os.urandom(8).hex()}"
        self._guard: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """From now on what is started is known by its environment, and guarded."""
        if not (PROC / "self" / "environ").exists():
            return
        without = {name: value for name, value in os.environ.items() if name != RUN}
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, self.run], stdin=subprocess.PIPE, env=without, start_new_session=True
        )
        os.environ[RUN] = self.run

    def close(self) -> None:
        """End everything that is left."""
        if self._guard is not None:
            os.environ.pop(RUN, None)
            self._guard.communicate()
            self._guard = None

    def end_test(self, test: str) -> list[int]:
        """End what this test has started, unless others share it. Says which processes there were."""
        return self._end(lambda found: found.get(TEST, "").rpartition(" ")[0] == test and SHARED not in found)

    def end_shared(self, fixture: str) -> list[int]:
        return self._end(lambda found: found.get(SHARED) == fixture)

    def _end(self, is_meant: Meant) -> list[int]:
        return end(lambda found: found.get(RUN) == self.run and is_meant(found))


@contextmanager
def shared(fixture: str) -> Iterator[None]:
    """What is started in here outlives the test."""
    before = os.environ.get(SHARED)
    os.environ[SHARED] = fixture
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(SHARED, None)
        else:
            os.environ[SHARED] = before


def end(is_meant: Meant) -> list[int]:
    """Kill these processes, and those that they start meanwhile, until there are none."""
    ended: set[int] = set()
    until = time.monotonic() + END_S
    while found := [pid for pid, environment in _processes() if is_meant(environment)]:
        for pid in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        ended.update(found)
        if time.monotonic() > until:
            break
        time.sleep(POLL_S)
    return sorted(ended)


def _processes() -> Iterator[tuple[int, Mapping[str, str]]]:
    """Those that can be looked into, but this one. Who has ended and was not waited for has no environment any more."""
    for folder in PROC.iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        with suppress(OSError):
            words = (folder / "environ").read_bytes().decode(errors="replace").split("\0")
            yield int(folder.name), dict(word.partition("=")[::2] for word in words)


def _guard(run: str) -> None:
    sys.stdin.buffer.read()
    end(lambda found: found.get(RUN) == run)


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    _guard(sys.argv[1])
