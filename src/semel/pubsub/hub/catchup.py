"""What sessions have missed: read from the stream, in one pass for all that are behind.

A session is behind after a restart, and when it comes here from another node. What comes in from then on waits in its
queue until what was before is there. Who falls behind while a pass is under way waits for the next one.

What was spilled (`spills.py`) is not in the stream any more, and is read before a pass. A session of which some cannot
be read does not get the rest as if nothing was missing: if messages are gone, the session ends; if only a newer Semel
can read them, the session is left to that one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from semel.kernel.effects import ReadFailed, ReadTrimmed
from semel.kernel.store import Record
from semel.pubsub.hub.ack_flush import AckFlush
from semel.pubsub.hub.closing import Closing
from semel.pubsub.hub.context import HubContext
from semel.pubsub.hub.delivery import Delivery
from semel.pubsub.hub.endings import CatchingUp
from semel.pubsub.hub.records import RecordKind, of_record
from semel.pubsub.hub.roster import Here, Past
from semel.pubsub.hub.runs import Run
from semel.pubsub.hub.session import Session
from semel.pubsub.hub.session_phase import SessionChange
from semel.pubsub.hub.session_rows import Spilled
from semel.pubsub.hub.spills import Spills
from semel.pubsub.hub.tail import Found, Tail

LOST = "messages that were kept for the session are lost"


class _Missing(NamedTuple):
    """A session has missed what comes after what it acknowledged, up to `until`. `spilled` is what of it was in rows of
    its own."""

    session: Session
    until: int
    spilled: Sequence[Run] = ()


class CatchUp:
    def __init__(
        self,
        context: HubContext,
        tail: Tail,
        roster: Here,
        behind: CatchingUp,
        spills: Spills,
        acks: AckFlush,
        delivery: Delivery,
        closing: Closing,
    ) -> None:
        self._context, self._tail, self._roster, self._behind = context, tail, roster, behind
        self._spills, self._acks, self._delivery, self._closing = spills, acks, delivery, closing
        self._waiting: list[_Missing] = []
        self._pass: _Pass | None = None
        self._has_failed = False

    def add(self, session: Session, until: int, now: float) -> None:
        """It has missed what comes after what it acknowledged, up to here."""
        session.change(SessionChange.FALL_BEHIND)
        if session.spill.rows:
            self._spills.load(session, now, lambda spilled, now: self._add_spilled(session, until, spilled, now))
        else:
            self._waiting.append(_Missing(session, until))

    def _add_spilled(self, session: Session, until: int, spilled: Spilled, now: float) -> None:
        """One that is over ends in any case, and its end reports what nobody could have received."""
        is_ending = session in self._behind
        if not is_ending and self._roster.get(session.id) is not session:
            return  # another node has it by now
        if spilled.error is not None and not is_ending:
            self._closing.leave_out(session, spilled.error)
            return
        session.spill.lost = (*spilled.missing, *spilled.unreadable)
        self._waiting.append(_Missing(session, until, spilled.runs))
        if spilled.missing:
            ranges = ", ".join(f"{row.first} to {row.last}" for row in spilled.missing)
            self._context.notify(
                "hub-body", f"messages {ranges} of {session.id} are lost: they are gone from the store"
            )
        if spilled.missing and not is_ending:
            self._closing.discard(session, LOST, now)

    def try_again(self) -> None:
        """After a read has failed."""
        self._has_failed = False
        self.continue_reading()

    def continue_reading(self) -> None:
        """Begin a pass if somebody waits for one."""
        if self._has_failed:
            return
        if self._pass is None and (waiting := self._take_waiting()):
            self._pass = _Pass(waiting)
        if self._pass is not None and not self._pass.is_reading:
            self._pass.is_reading = True
            self._tail.read_after(self._pass.at, self._read)

    def _take_waiting(self) -> list[_Missing]:
        """Those that are still here: one that left may be back under the same id, as another object."""
        waiting, self._waiting = self._waiting, []
        return [
            each
            for each in waiting
            if each.session in self._behind or self._roster.get(each.session.id) is each.session
        ]

    def _read(self, found: Found, now: float) -> None:
        reading = self._pass
        assert reading is not None, "there is one pass at a time, and it ends with its last read"
        reading.is_reading = False
        if isinstance(found, ReadFailed):
            self._has_failed = True
            return
        if isinstance(found, ReadTrimmed):
            # only what nobody needed is trimmed
            reading.at = max(reading.at, found.first.offset - 1)
        else:
            self._take(reading, found, now)
            if len(found) < self._tail.rows or reading.at >= reading.until:
                self._pass = None
                self._finish(reading, now)
        self.continue_reading()

    def _take(self, reading: _Pass, records: Iterable[Record], now: float) -> None:
        for record in records:
            reading.at = record.position.offset
            if record.kind != RecordKind.MESSAGE:
                continue
            if record.envelope.blob is not None and record.body is None:
                self._context.notify("hub-body", f"the body of {record.envelope.id} is gone")
                continue
            run = Run(record.position.offset, (of_record(record),), record.body)
            for session in self._delivery.due(reading.past, run, now):
                reading.offer(session, run)

    def _finish(self, reading: _Pass, now: float) -> None:
        for session, missed in reading.missed_by(now):
            session.backlog.add_missed(missed)
            session.change(SessionChange.CAUGHT_UP)
            if (end := self._behind.take(session)) is not None:
                end(now)
                continue
            self._delivery.catch_up(session, now)
            if self._roster.get(session.id) is session:
                if session.backlog.confirmed is not None:
                    self._acks.add(session)
                self._delivery.check_backlog(session, now)


class _Pass:
    """`at` is how far it has come, `until` where it ends."""

    def __init__(self, missing: list[_Missing]) -> None:
        self.past = Past()
        self._missed: dict[Session, list[Run]] = {}
        self._missing = {each.session: each for each in missing}
        for session in self._missing:
            self.past.add(session)
            self._missed[session] = []
        self.at = min(session.missing_after for session in self._missing)
        self.until = max(each.until for each in missing)
        self.is_reading = False

    def offer(self, session: Session, run: Run) -> None:
        if session.is_reliable and session.missing_after < run.first <= self._missing[session].until:
            self._missed[session].append(run)

    def missed_by(self, now: float) -> Iterator[tuple[Session, list[Run]]]:
        """What each has missed, in order: what was spilled comes before what was read."""
        for session, read in self._missed.items():
            spilled = (run for run in self._missing[session].spilled if run.first > session.backlog.acked)
            yield session, [*(run for run in spilled if not run.is_expired(now)), *read]
