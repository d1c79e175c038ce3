"""What one process has answered for: the last commit that it acknowledged, and how far it has read.

After a switch to another server this decides whether history was cut short:

* A commit survived if its marker is there, and then so did everything committed before it.
* A record that was read survived if it can be found again.
* For anything else that was read we remember how far the server's log (LSN) had come when it was visible. The switch
  must not lie before that point.

The end of the log runs ahead of what a standby has confirmed, by the commits that are under way. Records are read all
the time, so if they were remembered by LSN, almost every switch would look like a loss. The newest records are
therefore remembered one by one, and by LSN only once they are older than a renewal of the lease.
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
    """The last commit that was acknowledged, and when, by the server's clock."""

    writer: str
    n: int
    at: int


class Witness:
    """Every answer passes through here before it is given: by `committed`, `read` or `saw`.

    `term` counts the switches that this process knows of. An answer that came over a connection of an earlier term is
    refused, because nobody has vouched for it. So is every answer while the lease has run out, because a switch is then
    decided without us.

    `timeline` is the last one that was settled, `newest` the last one that a connection led to, where the epoch may
    still be undecided."""

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
        """Something was read that was visible when the server's log ended at `lsn`."""
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
        """Call it before the lease is renewed. Records read before the last renewal count by LSN from now on."""
        with self._lock:
            self._check_term(term)
            if self._has_turned:
                self._lsn = max(self._lsn, self._turn_lsn)
                self._newer = {}
            self._newer |= self._newest
            self._newest, self._has_turned = {}, False
        return self._clock()

    def end_turn(self, term: int, begun: float, lease_s: float, lsn: int) -> None:
        """The lease was renewed, and the server's log ended at `lsn` then. Clocks may differ a little, so it ends
        earlier here than for others. A lease on a server that was replaced does not count."""
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
        """A connection leads to this timeline. If it is a new one, nothing more is answered over older connections:
        what we are about to vouch for must not grow afterwards."""
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
        """Settle on a timeline: all that was answered for is there, or the epoch was raised for it."""
        with self._lock:
            if timeline != self.timeline:
                self.timeline = timeline
                self._newest, self._newer, self._has_turned = {}, {}, False

    def on_epoch_raised(self, lsn: int) -> None:
        """The epoch was raised. What was answered before no longer counts, but the raise itself, which lies before
        `lsn`, must not be lost."""
        with self._lock:
            self._commit = None
            self._forget_reads()
            self._lsn = lsn

    def _forget_reads(self) -> None:
        self._lsn = self._turn_lsn = 0
        self._newest, self._newer, self._has_turned = {}, {}, False


def _text(lsn: int) -> str:
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"
