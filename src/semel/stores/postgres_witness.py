"""What one process has answered for: the last commit that it acknowledged, and how far it has read.

After a switch to another server this is what tells whether history was cut short. A commit is there when its marker is,
and so is all that was committed before it. A record that was read is there when it is found again; of what else was
read the place in the server's log is known at which it was visible, and the switch must not lie before that place.

Places in the log run ahead of what a standby has confirmed, by what is just being committed. So of the records, which
are read all the time, the newest ones are remembered by themselves, and by a place in the log only after a while.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from semel.errors import StoreUnavailable
from semel.stores.postgres_connection import PostgresConnection, Statements, bigints, texts

MARKER_KEEP_US = 48 * 3600 * 1_000_000


def boot_clock() -> float:
    """Goes on while the machine sleeps, as the clocks of others do."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


@dataclass(frozen=True, slots=True)
class WitnessedCommit:
    """The last one that was acknowledged, and when by the server's clock."""

    writer: str
    n: int
    at: int


class Witness:
    """Every answer passes through here before it is given: by `committed`, `read` or `saw`.

    `term` counts the switches that this process knows of. What a connection of an earlier term says is not passed on:
    nobody has vouched for it. Nor is anything while the lease has run out, for then nobody waits for our word.

    `timeline` is the last one that we have settled on, and `newest` the last one that we have met, where it may still
    be undecided what becomes of the epoch."""

    def __init__(self, clock: Callable[[], float] = boot_clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self.term = 0
        self.timeline: int | None = None
        self.newest: int | None = None
        self.is_member = False
        self._lease_end = 0.0
        self._commit: WitnessedCommit | None = None
        self._lsn = self._turn_lsn = 0
        self._has_turned = False
        self._newest: dict[str, tuple[int, int]] = {}
        self._newer: dict[str, tuple[int, int]] = {}

    # -- answers

    def committed(self, term: int, commit: WitnessedCommit) -> None:
        with self._lock:
            self._check(term)
            self._commit = commit

    def read(self, term: int, stream: str, offset: int, at: int) -> None:
        """The last record of a read."""
        with self._lock:
            self._check(term)
            if self.is_member and offset > self._newest.get(stream, (0, 0))[0]:
                self._newest[stream] = (offset, at)

    def saw(self, term: int, lsn: int) -> None:
        """Something that was visible when the server's log ended there."""
        with self._lock:
            self._check(term)
            self._lsn = max(self._lsn, lsn)

    def _check(self, term: int) -> None:
        self._check_term(term)
        if self.is_member and self._clock() >= self._lease_end:
            raise StoreUnavailable(
                "this process could not renew its lease on the store",
                fix="check that PostgreSQL answers, then try again",
            )

    def _check_term(self, term: int) -> None:
        if term != self.term:
            raise StoreUnavailable("PostgreSQL was switched to another server meanwhile", fix="try again")

    # -- the lease

    def begin_turn(self, term: int) -> float:
        """Before the lease is renewed. Of what was read before the last turn only the place is kept from now on."""
        with self._lock:
            self._check_term(term)
            if self._has_turned:
                self._lsn = max(self._lsn, self._turn_lsn)
                self._newer = {}
            self._newer |= self._newest
            self._newest, self._has_turned = {}, False
        return self._clock()

    def end_turn(self, term: int, begun: float, lease_s: float, lsn: int) -> None:
        """It was renewed, and the server's log ended at `lsn` then. Clocks may differ a little, so it ends earlier here
        than for others. A lease on a server that was replaced is none."""
        with self._lock:
            self._check_term(term)
            self.is_member = True
            self._lease_end = begun + lease_s * 0.9
            self._turn_lsn, self._has_turned = lsn, True

    @property
    def has_lease(self) -> bool:
        return self.is_member and self._clock() < self._lease_end

    # -- after a switch

    def meet(self, timeline: int) -> None:
        """A connection leads there. If that is news, nothing more is answered over those of before: what we are about
        to testify must not grow afterwards."""
        with self._lock:
            self.term += self.newest not in (None, timeline)
            self.newest = timeline

    def find_loss(
        self, session: PostgresConnection, switch_lsn: int | None, now: int, *, is_pending: bool
    ) -> str | None:
        """What was answered and is not here, or cannot be shown to be; None when nothing is missing.

        `switch_lsn` is where our timeline ended, None while it goes on. `is_pending`: nobody has written since."""
        run = Statements(session)
        with self._lock:
            commit, lsn = self._commit, self._lsn
            reads = {**self._newer, **self._newest}
        if switch_lsn is not None and lsn > switch_lsn:
            return f"this process has read up to {_text(lsn)} and the log goes on from {_text(switch_lsn)}"
        if commit is not None and now - commit.at < MARKER_KEEP_US // 2:
            if not run.ask("has_marker", commit.writer, commit.n)[0][0]:
                return "a commit that was acknowledged is not there"
        elif commit is not None and switch_lsn is not None:
            return "the marker of the last acknowledged commit may have been swept"
        if reads:
            offsets, ats = zip(*reads.values(), strict=True)
            lost = run.ask("lost_records", texts(list(reads)), bigints(offsets), bigints(ats), is_pending)
            if lost:
                return f"record {lost[0][1]} of {lost[0][0]}, which was read, is not there"
        return None

    def move_on(self, timeline: int) -> None:
        """To a timeline on which all that was answered for is found again, or for which the epoch was raised."""
        with self._lock:
            if timeline != self.timeline:
                self.timeline = timeline
                self._newest, self._newer, self._has_turned = {}, {}, False

    def begin_anew(self, lsn: int) -> None:
        """The epoch was raised, at the latest where the log ends now: what was answered before does not count any more,
        but that must not be lost."""
        with self._lock:
            self._commit = None
            self._forget_reads()
            self._lsn = lsn

    def _forget_reads(self) -> None:
        self._lsn = self._turn_lsn = 0
        self._newest, self._newer, self._has_turned = {}, {}, False


def _text(lsn: int) -> str:
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"
