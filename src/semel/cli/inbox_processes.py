"""The processes of `semel inbox run --processes N`: one that dies is started again, and a signal ends them all."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from semel.errors import EXIT_USAGE, ConfigError

LOOK_S = 0.2
WAIT_S_MIN = 0.5
WAIT_S_MAX = 30.0
SETTLED_S = 60.0
"""Who has run for as long as this was well: what it dies of is nothing that keeps it from starting."""


def restart_wait(lived_s: float, last_s: float) -> float:
    """How long to wait before a process is started again: longer each time, while it dies soon after its start."""
    if lived_s >= SETTLED_S:
        return 0.0
    return min(WAIT_S_MAX, max(WAIT_S_MIN, last_s * 2))


def said_of(returncode: int) -> str:
    """How a process ended, in words."""
    if returncode >= 0:
        return f"ended with code {returncode}"
    try:
        return f"was killed by {signal.Signals(-returncode).name}"
    except ValueError:
        return f"was killed by signal {-returncode}"


@dataclass(slots=True)
class _Place:
    """One of the processes, and the one that takes its place when it dies."""

    command: Sequence[str]
    say: Callable[[str], None]
    process: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0
    start_at: float = 0.0
    wait_s: float = 0.0

    def look(self, now: float) -> None:
        if self.process is None:
            if now >= self.start_at:
                self.process, self.started_at = subprocess.Popen(self.command), now
            return
        returncode = self.process.poll()
        if returncode is None:
            return
        if returncode == EXIT_USAGE:
            raise ConfigError("a process could not start", fix="see what it printed")
        self.wait_s = restart_wait(now - self.started_at, self.wait_s)
        after = f"in {self.wait_s:g} s" if self.wait_s else "now"
        self.say(f"process {self.process.pid} {said_of(returncode)}: another starts {after}")
        self.process, self.start_at = None, now + self.wait_s

    def end(self) -> None:
        if self.process is not None:
            self.process.terminate()

    def wait(self) -> None:
        if self.process is not None:
            self.process.wait()


def run_processes(command: Sequence[str], count: int, say: Callable[[str], None]) -> None:
    signals: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: signals.append(number))
    places = [_Place(command, say) for _ in range(count)]
    try:
        while not signals:
            for place in places:
                place.look(time.monotonic())
            time.sleep(LOOK_S)
    finally:
        for place in places:
            place.end()
        for place in places:
            place.wait()
