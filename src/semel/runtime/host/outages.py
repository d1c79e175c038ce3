"""What a process knows of trouble with its store: one line in the log when it begins, with its cause, and one when it
is over. Whoever meets the store's errors tells them here and writes no line of its own.

An outage is over when that works again which did not: trouble that was met reading ends with a read that succeeds, and
trouble met committing with a commit. One connection to a database may work while another does not, and every commit
would end what every read begins. A process that can use its store no longer (`StoreBroken`) has no outage that ends.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Flag, auto

from semel.errors import (
    CommitInDoubt,
    EpochChanged,
    SemelError,
    StaleFence,
    StoreBroken,
    StoreBusy,
    StoreError,
    StoreFull,
    StoreGone,
    StoreInRecovery,
    StoreReadOnly,
    StoreRefused,
    StoreUnavailable,
)

log = logging.getLogger(__name__)


class Use(Flag):
    """What the store was asked for."""

    READING = auto()
    COMMITTING = auto()
    BOTH = READING | COMMITTING


@dataclass(frozen=True, slots=True)
class Outage:
    """`cause` is what was heard last: a database that was down may be in recovery by now. `since` is a moment of the
    clock that only goes forward."""

    cause: SemelError
    since: float

    @property
    def needs_restart(self) -> bool:
        return isinstance(self.cause, StoreBroken)

    @property
    def is_ended_by_restart(self) -> bool:
        """Not where the files are gone: what this process still has open may be the only copy, and the next one could
        not begin without them."""
        return self.needs_restart and not isinstance(self.cause, StoreGone)


_NOT_ASKED = "the store is in trouble"


def not_asked() -> StoreUnavailable:
    """For who does not ask a store that is known to be in trouble: it says nothing new of it."""
    return StoreUnavailable(_NOT_ASKED, fix="see what the log says of it")


class Outages:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.current: Outage | None = None
        self.count = 0
        """How many there were so far."""
        self._causes: dict[Use, SemelError] = {}
        """What was heard last, of each use that is in trouble."""

    def record(self, error: SemelError, doing: str = "", use: Use = Use.COMMITTING) -> None:
        """Somebody asked the store for something and heard this. What is no outage is written down with `doing`, if
        nobody else does that."""
        if error.message == _NOT_ASKED:
            return
        if not is_outage(error):
            if doing:
                log.warning("%s: %s", doing, in_one_line(error))
            return
        if isinstance(error, CommitInDoubt) and isinstance(error.__cause__, StoreBroken):
            error = error.__cause__  # what was in doubt is told by those who asked for it
        self._causes |= dict.fromkeys(use, error)
        if self.current is None:
            self.count += 1
            self.current = Outage(error, self._clock())
            log.warning("the store is in trouble: %s", in_one_line(error))
        elif not self.current.needs_restart:
            self.current = Outage(error, self.current.since)
            if self.current.needs_restart:
                log.error("the store cannot be used any more: %s", in_one_line(error))

    @property
    def is_unreadable(self) -> bool:
        """Whether reading was in trouble and has not worked since."""
        return Use.READING in self._causes

    def committed(self) -> None:
        """The store has taken something."""
        self._works(Use.COMMITTING)

    def was_read(self) -> None:
        """The store has answered."""
        self._works(Use.READING)

    def _works(self, use: Use) -> None:
        if self.current is None or self.current.needs_restart or self._causes.pop(use, None) is None:
            return
        if self._causes:
            [other] = self._causes.values()
            self.current = Outage(other, self.current.since)
            return
        lasted_s = self._clock() - self.current.since
        self.current = None
        log.warning("the store is well again, after %.1f s", lasted_s)


def is_outage(error: SemelError) -> bool:
    """Whether it is about the store as a whole, and not about what was asked of it."""
    return isinstance(error, StoreError) and not isinstance(error, StoreRefused | EpochChanged | StaleFence)


def is_readable(error: SemelError) -> bool:
    """Whether the store can still be read: a full disk or somebody's lock is in the way of writing only."""
    return isinstance(error, StoreFull | StoreBusy | StoreReadOnly)


def in_one_line(error: SemelError) -> str:
    text = f"{error.message}; {error.fix}" if error.fix else error.message
    return " ".join(text.split())


_WORDS: tuple[tuple[type[SemelError], str], ...] = (
    (StoreGone, "the store's files were removed or replaced: put them back first, then restart this server"),
    (StoreBroken, "the store failed with an I/O error: check its disk, then restart this server"),
    (StoreFull, "the store has no space left: free some; then it goes on by itself"),
    (StoreBusy, "another program holds the lock of the store: end it; then it goes on by itself"),
    (
        StoreInRecovery,
        "the database is in recovery, or a standby: wait until that is over, or promote it; then it goes on by itself",
    ),
    (StoreReadOnly, "the store may not be written: give its rights back; then it goes on by itself"),
    (CommitInDoubt, "the store has not said what became of a commit: look after it; then it goes on by itself"),
    (SemelError, "the store does not answer: look after it; then it goes on by itself"),
)


def public_message(error: SemelError) -> str:
    """What is wrong and what to do, for everybody: without names of files, hosts or databases."""
    return next(words for kind, words in _WORDS if isinstance(error, kind))
