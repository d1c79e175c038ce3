"""Whose turn it is to take the write lock of a SQLite file.

SQLite has no queue for its lock: who asks at the right moment gets it, and a process that begins its next transaction
at once is nearly always the one. So whoever has waited for a moment draws a ticket, written into a small file beside
the database, and nobody begins before those who drew theirs earlier. The lock itself is still SQLite's: this file
decides only who asks for it. Whatever is wrong with it, or lost with it, costs order and a short wait, never a commit;
that is why nothing here is locked, and why a file that cannot be used is done without.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, Self

from semel.stores.private_files import open_private
from semel.stores.sqlite_session import SqliteSession

STEP_S = 0.0005
"""Between two attempts of the first in the queue; those behind look that much more rarely."""
STEPS_MAX = 10
PATIENCE_S = 0.02
"""Who waits for as long as this draws a ticket. Short transactions overtake each other until then: to hand the lock
from one process to the next takes longer than they do."""
BEAT_S = 0.05
SILENT_S = 0.25
"""Who has given no sign of life for as long as this is dead or stopped, and is passed over."""
AWAKE_S = 0.025
LOOK_S = 0.002
"""Who saw nobody wait need not look again before this. Less than the patience of those who wait."""
IN_PLACE_S = 1.0

PLACES = 63
TICKET_MAX = 2**64 - 1
_PLACE = struct.Struct("<QQQ8x")
_HEADER = b"semel-turns-1\n".ljust(_PLACE.size, b"\0")
_NOBODY = bytes(PLACES * _PLACE.size)
_FREE = bytes(_PLACE.size)


class Place(NamedTuple):
    """Somebody in the queue. `owner` is drawn by chance for each wait; `beat` counts on as long as it waits."""

    ticket: int
    owner: int
    beat: int


class BeatWatch:
    """Tells the waiting from the dead and the stopped: the beat of these does not change any more."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[Place, float]] = {}
        self._awake_s = 0.0
        self._last: float | None = None

    def silent(self, places: Mapping[int, Place], now: float) -> list[int]:
        """Where somebody has been silent for too long, as seen from here: clocks of several machines in one are not
        compared, and time in which the watcher itself did not run does not count."""
        self._awake_s += min(now - self._last, AWAKE_S) if self._last is not None else 0.0
        self._last = now
        new = (None, self._awake_s)
        before = {number: self._seen.get(number, new) for number in places}
        self._seen = {
            number: (place, before[number][1] if before[number][0] == place else self._awake_s)
            for number, place in places.items()
        }
        return [number for number, (_, since) in self._seen.items() if self._awake_s - since >= SILENT_S]


class Turn:
    """One writer on its way to the lock: `is_ours` before each attempt, a pause of `step_s` after one in vain."""

    def __init__(self, turns: Turns, draws: bool = True) -> None:
        self.step_s = STEP_S
        self._turns = turns
        self._draws = draws
        self._since: float | None = None
        self._ticket = self._owner = self._beat = 0
        self._number: int | None = None
        self._beat_at = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._number is not None:
            self._turns.free(self._number, self._owner)

    def is_ours(self, now: float) -> bool:
        """Whether nobody is before us."""
        if self._since is None:
            self._since = now
            return self._turns.nobody_waits(now)
        places = self._living(now)
        if not self._ticket and self._draws and now - self._since >= PATIENCE_S:
            self._draw(places)
        if self._ticket:
            self._hold(places, now)
        ahead = sum(1 for place in places.values() if not self._ticket or place[:2] < (self._ticket, self._owner))
        self.step_s = STEP_S * min(1 + ahead, STEPS_MAX)
        return not ahead

    @cached_property
    def _watch(self) -> BeatWatch:
        """Made only when there is somebody to watch."""
        return BeatWatch()

    def _living(self, now: float) -> dict[int, Place]:
        """Everybody who waits. Who is silent loses the place, and comes back to it with the same ticket."""
        places = self._turns.read(now)
        for number in self._watch.silent(places, now):
            if places[number].owner != self._owner:
                self._turns.free(number, places.pop(number).owner)
        return places

    def _draw(self, places: Mapping[int, Place]) -> None:
        """Two that draw at the same moment may draw the same. Then chance decides between them."""
        self._ticket = min(1 + max((place.ticket for place in places.values()), default=0), TICKET_MAX)
        self._owner = int.from_bytes(os.urandom(8)) or 1

    def _hold(self, places: Mapping[int, Place], now: float) -> None:
        """Our place may be somebody else's: both found it free at once, or we were silent, or the file is new."""
        lost = self._number is None or self._number not in places or places[self._number].owner != self._owner
        if lost:
            self._number = next((n for n in self._numbers() if n not in places), None)
        if self._number is not None and (lost or now >= self._beat_at):
            self._beat += 1
            self._beat_at = now + BEAT_S
            self._turns.write(self._number, Place(self._ticket, self._owner, self._beat))

    def _numbers(self) -> Iterator[int]:
        """Each begins to look somewhere else, so that two hardly meet."""
        return ((self._owner + n) % PLACES for n in range(PLACES))


class Turns:
    """The queue of one database file. Threads and processes share it; nothing in it outlives those who wait."""

    def __init__(self, path: Path | None) -> None:
        """Without a path nobody is ever seen to wait."""
        self._path = path
        self._file: _File | None = None
        self._open_at = self._look_at = float("-inf")

    def waiting(self, *, draws: bool = True) -> Turn:
        """`with turns.waiting() as turn`. Who draws no ticket lets those go first who did."""
        return Turn(self, draws)

    def nobody_waits(self, now: float) -> bool:
        """Before every transaction: nothing here that could be spared."""
        if now < self._look_at:
            return True
        if self.read(now):
            return False
        self._look_at = now + LOOK_S
        return True

    def read(self, now: float) -> dict[int, Place]:
        data = _content(self._opened(now))
        if data == _NOBODY:
            return {}
        return {number: Place(*place) for number, place in enumerate(_PLACE.iter_unpack(data)) if place[0]}

    def write(self, number: int, place: Place) -> None:
        self._look_at = float("-inf")
        self._put(number, _PLACE.pack(*place))

    def free(self, number: int, owner: int) -> None:
        """Unless the place is somebody else's by now."""
        at = number * _PLACE.size
        place = _PLACE.unpack(_content(self._file)[at : at + _PLACE.size])
        if place[1] == owner:
            self._put(number, _FREE)

    def close(self) -> None:
        self._file = None

    def _put(self, number: int, data: bytes) -> None:
        file = self._file
        if file is not None:
            with suppress(OSError):
                os.pwrite(file.fd, data, len(_HEADER) + number * _PLACE.size)

    def _opened(self, now: float) -> _File | None:
        """Others look for us under the file's name: one that is gone or replaced is given up for the new one."""
        if now >= self._open_at and self._path is not None:
            self._open_at = now + IN_PLACE_S
            if self._file is None or not self._file.is_at(self._path):
                self._file = _open(self._path)
        return self._file


class _File:
    """Closed when nobody has it any more. Another thread may be about to write to it, and the number of a closed file
    is soon another file's."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._identity = os.fstat(fd)

    def is_at(self, path: Path) -> bool:
        try:
            return os.path.samestat(os.stat(path), self._identity)
        except OSError:
            return False

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        close(self.fd)


def _open(path: Path) -> _File | None:
    try:
        file = _File(open_private(path, os.O_RDWR))
        found = os.pread(file.fd, len(_HEADER) + len(_NOBODY), 0)
        is_new = not found.strip(b"\0")
        if is_new:
            # all of it at once: later, when the disk may be full, nothing has to be added
            os.pwrite(file.fd, _HEADER + _NOBODY, 0)
    except OSError:
        return None
    return file if is_new or found.startswith(_HEADER) else None


def _content(file: _File | None) -> bytes:
    """Without the header. What is missing or cannot be read is nobody."""
    data = b""
    if file is not None:
        with suppress(OSError):
            data = os.pread(file.fd, len(_NOBODY), len(_HEADER))
    return data if len(data) == len(_NOBODY) else data.ljust(len(_NOBODY), b"\0")


@contextmanager
def at_once(session: SqliteSession) -> Iterator[float]:
    """SQLite does not wait in this connection. A user's may be set to, in steps of up to 100 ms and without a beat;
    gives the seconds for which it would."""
    [(timeout,)] = session.execute("PRAGMA busy_timeout").fetchall()
    session.execute("PRAGMA busy_timeout = 0").fetchall()
    try:
        yield timeout / 1000
    finally:
        session.execute(f"PRAGMA busy_timeout = {timeout}").fetchall()
