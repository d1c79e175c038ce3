"""What a session was given and its client has not acknowledged: how far it was sent, acknowledged and written down.

sent         the highest offset that ever went to the client, on whichever socket
written      the highest that went to its present socket
acked        how far the client has acknowledged
flushing     how far acks rows on their way into the store say so
flushed      how far the store says so: a crash forgets the rest, and it is delivered again
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import takewhile

from semel.kernel.ledger import Event, Kind
from semel.pubsub.hub.runs import Run
from semel.pubsub.hub.session_rows import SpillRow


class Backlog:
    """`queue` is what is not acknowledged; of its first run, what comes after `acked`. `is_kept`: the client
    acknowledges; for a plain client nothing is kept. `is_open`: what comes in goes to the socket at once. `confirmed`
    is what was acknowledged and is not written down. `early_ack` is how far the client has acknowledged while what it
    had missed was still being read."""

    __slots__ = (
        "acked", "bytes", "confirmed", "count", "early_ack", "flushed", "flushing", "has_expiring", "is_kept",
        "is_open", "queue", "sent", "written",
    )  # fmt: skip

    def __init__(self, acked: int, is_kept: bool) -> None:
        self.acked = self.sent = self.written = self.flushing = self.flushed = acked
        self.queue: deque[Run] = deque()
        self.bytes = self.count = 0
        self.is_kept, self.is_open, self.has_expiring = is_kept, False, False
        self.early_ack = 0
        self.confirmed: AckRange | None = None

    # -- what it is given

    def push(self, run: Run) -> bool:
        """It is for this session. True if it goes to its socket now."""
        if self.is_kept:
            self.queue.append(run)
            self.bytes += run.size
            self.count += run.count
            if run.expires is not None:
                self.has_expiring = True
        if not self.is_open:
            return False
        self.sent = self.written = run.last
        return True

    def add_missed(self, missed: Sequence[Run]) -> None:
        """What it has missed comes before what came in meanwhile."""
        assert not self.is_open, "what came in meanwhile has waited"
        assert not missed or not self.queue or missed[-1].last < self.queue[0].first, "deliveries are in order"
        self.queue.extendleft(reversed(missed))
        self.bytes += sum(run.size for run in missed)
        self.count += sum(run.count for run in missed)
        self.has_expiring = self.has_expiring or any(run.expires is not None for run in missed)
        if self.early_ack > self.acked:
            self.acknowledge(self.early_ack)

    def take_expired(self, now: float) -> list[Run]:
        """What has expired of what has not gone to the present socket."""
        if not self.has_expiring:
            return []
        late = {run.first: run for run in self.queue if run.first > self.written and run.is_expired(now)}
        self.queue = deque(run for run in self.queue if run.first not in late)
        self.bytes -= sum(run.size for run in late.values())
        self.count -= sum(run.count for run in late.values())
        self.has_expiring = any(run.expires is not None for run in self.queue)
        return list(late.values())

    def take_unwritten(self) -> list[Run]:
        """What goes to its socket now: what came while that had no room, or before it was there."""
        if not self.is_open or not self.queue:
            return []
        written, self.written = self.written, max(self.written, self.queue[-1].last)
        self.sent = max(self.sent, self.written)
        waiting = takewhile(lambda run: run.last > written, reversed(self.queue))
        return [run.after(written) for run in reversed(list(waiting))]

    # -- what it acknowledges

    def acknowledge(self, offset: int) -> None:
        """The client has everything up to here. What is new in it is gathered for the ledger."""
        assert offset >= self.acked, "nobody takes an acknowledgement back"
        queue = self.queue
        while queue and queue[0].first <= offset:
            part = queue[0].between(self.acked, offset)
            self.bytes -= part.size
            self.count -= part.count
            if self.confirmed is None:
                self.confirmed = AckRange(part.first)
            self.confirmed.add(part)
            if queue[0].last > offset:
                break
            queue.popleft()
        self.acked = offset

    def unacknowledged(self) -> Iterable[Run]:
        """The first run without the part of it that is acknowledged."""
        return (run.after(self.acked) for run in self.queue)

    def after(self, offset: int) -> list[Run]:
        """What of it comes after this offset."""
        offset = max(offset, self.acked)
        found = list(takewhile(lambda run: run.last > offset, reversed(self.queue)))
        return [run.after(offset) for run in reversed(found)]

    def left_behind(self, lost: Iterable[SpillRow]) -> AckRange | None:
        """What is not acknowledged when the session ends. Messages that are lost count as nothing: nobody knows which
        of that range they were, so the range does not fit, and an audit finds it."""
        found = AckRange.of(self.unacknowledged()) if self.queue else None
        for row in lost:
            if row.last > self.acked:
                missing = AckRange(max(row.first, self.acked + 1), row.last)
                if found is not None:
                    missing.merge(found)
                found = missing
        return found

    # -- what is written down

    def take_confirmed(self) -> AckRange | None:
        """What is to be written down now: the ledger and the row say it in one commit."""
        confirmed, self.confirmed, self.flushing = self.confirmed, None, self.acked
        return confirmed

    def set_flushed(self, acked: int) -> None:
        self.flushed = max(self.flushed, acked)

    def put_back(self, confirmed: AckRange | None, flushing: int) -> None:
        """It was not written down, and perhaps what was taken before it was not either."""
        self.flushing = min(self.flushing, flushing)
        if confirmed is not None and self.confirmed is not None:
            confirmed.merge(self.confirmed)
        self.confirmed = confirmed or self.confirmed


class AckRange:
    """A range of deliveries as the ledger holds it: `n` of them, with the `fold` of their ids."""

    __slots__ = ("first", "fold", "last", "n")

    def __init__(self, first: int, last: int | None = None) -> None:
        self.first, self.last = first, first if last is None else last
        self.n = self.fold = 0

    @classmethod
    def of(cls, runs: Iterable[Run]) -> AckRange:
        """All of some runs, of which there is at least one."""
        first, *rest = runs
        found = cls(first.first)
        for run in (first, *rest):
            found.add(run)
        return found

    def add(self, run: Run) -> None:
        self.last = run.last
        self.n += run.count
        self.fold ^= run.fold

    def merge(self, other: AckRange) -> None:
        self.first = min(self.first, other.first)
        self.last = max(self.last, other.last)
        self.n += other.n
        self.fold ^= other.fold

    def ledger_event(
        self, stream: str, epoch: int, connection: str, kind: Kind = Kind.CONFIRMED, cause: str | None = None
    ) -> Event:
        return Event(
            kind, f"{stream}>sub", peer=connection, stream=stream, epoch=epoch, first=self.first, last=self.last,
            n=self.n, fold=self.fold, cause=cause,
        )  # fmt: skip
