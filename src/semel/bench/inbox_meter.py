"""How long messages take, by the clock and by the processor: of this process, and of the database server.

Every side of `semel bench inbox` runs in a process of its own and counts with this. Peers may have an interpreter of
their own, so nothing but the standard library is used here.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

TICKS = os.sysconf("SC_CLK_TCK")
PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Took:
    """Seconds for so many messages. `server_s` is the processor's time of the server, None where it cannot be read."""

    messages: int
    wall_s: float
    client_s: float
    server_s: float | None

    def and_then(self, other: Took) -> Took:
        """Both together, one after the other."""
        server = None if self.server_s is None or other.server_s is None else self.server_s + other.server_s
        return Took(self.messages, self.wall_s + other.wall_s, self.client_s + other.client_s, server)

    def of(self, messages: int) -> Took:
        """The same time for another number of them."""
        return Took(messages, self.wall_s, self.client_s, self.server_s)


class Meter:
    """Counts messages from any thread. The first ones are not measured: code and connections are warm then."""

    def __init__(self, messages: int, postmaster: int | None, *, warm: int | None = None) -> None:
        self.done = threading.Event()
        self._warm = max(1, messages // 10) if warm is None else warm
        self._last = messages
        self._postmaster = postmaster
        self._lock = threading.Lock()
        self._count = 0
        self._begin = self._now() if self._warm == 0 else None
        self._end: tuple[float, float, float | None] | None = None

    def hit(self, messages: int = 1) -> None:
        with self._lock:
            before, self._count = self._count, self._count + messages
            if before < self._warm <= self._count:
                self._begin, self._warm = self._now(), self._count
            if before < self._last <= self._count:
                self._end = self._now()
                self.done.set()

    def took(self) -> Took:
        assert self._begin is not None, "the first messages were counted"
        assert self._end is not None, "all messages were counted"
        wall, client, server = (
            None if end is None or begin is None else end - begin
            for begin, end in zip(self._begin, self._end, strict=True)
        )
        return Took(self._last - self._warm, wall or 0.0, client or 0.0, server)

    def _now(self) -> tuple[float, float, float | None]:
        return time.perf_counter(), time.process_time(), server_time_s(self._postmaster)


def server_time_s(postmaster: int | None) -> float | None:
    """What a PostgreSQL server on this machine has taken of the processors, with those of its processes that ended."""
    if postmaster is None:
        return None
    total = 0.0
    for folder in PROC.iterdir():
        if folder.name.isdigit() and (found := _stat(folder)) is not None:
            parent, own, ended = found
            if int(folder.name) == postmaster:
                total += own + ended
            elif parent == postmaster:
                total += own
    return total


def _stat(folder: Path) -> tuple[int, float, float] | None:
    """The parent, its own time and that of the children it has buried. None: it has just ended."""
    try:
        text = (folder / "stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    own, ended = sum(map(int, fields[11:13])), sum(map(int, fields[13:15]))
    return int(fields[1]), own / TICKS, ended / TICKS


def postmaster_of(backend: int) -> int | None:
    """The server's first process, by one of its backends; None if it does not run on this machine."""
    folder = PROC / str(backend)
    try:
        if not (folder / "comm").read_text().startswith("postgres"):
            return None
    except OSError:
        return None
    found = _stat(folder)
    return found[0] if found is not None else None


Side = Callable[[str, Mapping[str, Any]], Took]
"""Does one thing that a side can do: "store" or "handle", with what the parent says of it."""


def answer(side: Side) -> None:
    """Do what the parent asks for, one line of JSON after the other, until it closes the pipe. What libraries print
    goes to stderr."""
    answers, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            answer: dict[str, Any] = asdict(side(asked.pop("do"), asked))
        except Exception as error:
            import traceback

            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)
