"""What sessions have missed: read from the stream, in one pass for all that are behind.

A session is behind after a restart, and when it comes here from another node. What comes in from then on waits in its
queue until what was before is there. Who falls behind while a pass is under way waits for the next one.

What was spilled (`spills.py`) is not in the stream any more: who has something of it waits for a pass until it is read.
Who cannot have all of it does not go on with the rest as if nothing was missing: if it is gone, the session ends; if
only a newer Semel can read it, the session waits for that one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from semel.kernel.effects import ReadFailed, ReadTrimmed
from semel.kernel.store import Record
from semel.pubsub.hub.record_kinds import RecordKind
from semel.pubsub.hub.records import of_record
from semel.pubsub.hub.roster import Past
from semel.pubsub.hub.runs import Run
from semel.pubsub.hub.session import Session
from semel.pubsub.hub.spill_rows import Spilled
from semel.pubsub.hub.tail import Found

if TYPE_CHECKING:
    from semel.pubsub.hub.machine import Hub


LOST = "messages that were kept for the session are lost"


class _Behind(NamedTuple):
    """A session has missed what comes after what it acknowledged, up to `until`. `spilled` is what of it was in rows of
    its own."""

    session: Session
    until: int
    spilled: Sequence[Run] = ()


class CatchUp:
    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._waiting: list[_Behind] = []
        self._ending: dict[Session, Callable[[float], None]] = {}
        self._pass: _Pass | None = None
        self._has_failed = False

    def add(self, session: Session, until: int, now: float) -> None:
        """It has missed what comes after what it acknowledged, up to here."""
        session.is_behind = True
        if session.spill.rows:
            self._hub.spills.load(session, now, lambda spilled, now: self._go_on_with(session, until, spilled, now))
        else:
            self._waiting.append(_Behind(session, until))

    def _go_on_with(self, session: Session, until: int, spilled: Spilled, now: float) -> None:
        """One that is over ends in any case, and tells of what nobody could have."""
        is_ending = session in self._ending
        if spilled.error is not None and not is_ending:
            self._hub.sessions.leave_out(session, spilled.error)
            return
        session.spill.lost = (*spilled.missing, *spilled.unreadable)
        self._waiting.append(_Behind(session, until, spilled.runs))
        if spilled.missing:
            ranges = ", ".join(f"{row.first} to {row.last}" for row in spilled.missing)
            self._hub.notify("hub-body", f"messages {ranges} of {session.id} are lost: they are gone from the store")
        if spilled.missing and not is_ending:
            self._hub.sessions.discard(session, LOST, now)

    def when_caught_up(self, session: Session, call: Callable[[float], None]) -> None:
        """It is over, but for what it has missed."""
        self._ending[session] = call

    def try_again(self) -> None:
        """If a read has failed."""
        self._has_failed = False
        self.go_on()

    def go_on(self) -> None:
        """Begin a pass if somebody waits for one."""
        if self._has_failed:
            return
        if self._pass is None and (waiting := self._take_waiting()):
            self._pass = _Pass(waiting)
        if self._pass is not None and not self._pass.is_reading:
            self._pass.is_reading = True
            self._hub.tail.read_after(self._pass.at, self._read)

    def _take_waiting(self) -> list[_Behind]:
        """Without those that are lost by now. One that was lost and came back is here under the same id."""
        waiting, self._waiting = self._waiting, []
        return [
            behind
            for behind in waiting
            if behind.session in self._ending or self._hub.roster.get(behind.session.id) is behind.session
        ]

    def _read(self, found: Found, now: float) -> None:
        reading = self._pass
        assert reading is not None
        reading.is_reading = False
        if isinstance(found, ReadFailed):
            self._has_failed = True
            return
        if isinstance(found, ReadTrimmed):
            # only what nobody needed is trimmed
            reading.at = max(reading.at, found.first.offset - 1)
        else:
            self._take(reading, found, now)
            if len(found) < self._hub.tail.rows or reading.at >= reading.until:
                self._pass = None
                self._finish(reading, now)
        self.go_on()

    def _take(self, reading: _Pass, records: Iterable[Record], now: float) -> None:
        for record in records:
            reading.at = record.position.offset
            if record.kind != RecordKind.MESSAGE:
                continue
            if record.envelope.blob is not None and record.body is None:
                self._hub.notify("hub-body", f"the body of {record.envelope.id} is gone")
                continue
            run = Run(record.position.offset, (of_record(record),), record.body)
            for session in self._hub.delivery.due(reading.past, run, now):
                reading.offer(session, run)

    def _finish(self, reading: _Pass, now: float) -> None:
        for session, missed in reading.missed_by(now):
            session.caught_up(missed)
            if (end := self._ending.pop(session, None)) is not None:
                end(now)
                continue
            self._hub.delivery.catch_up(session, now)
            if self._hub.roster.get(session.id) is session:
                if session.confirmed is not None:
                    self._hub.delivery.write_down(session)
                self._hub.delivery.check_backlog(session, now)


class _Pass:
    """`at` is how far it has come, `until` where it ends."""

    def __init__(self, behind: list[_Behind]) -> None:
        self.past = Past()
        self._missed: dict[Session, list[Run]] = {}
        self._behind = {each.session: each for each in behind}
        for session in self._behind:
            self.past.add(session)
            self._missed[session] = []
        self.at = min(session.missing_after for session in self._behind)
        self.until = max(each.until for each in behind)
        self.is_reading = False

    def offer(self, session: Session, run: Run) -> None:
        if session.is_reliable and session.missing_after < run.first <= self._behind[session].until:
            self._missed[session].append(run)

    def missed_by(self, now: float) -> Iterator[tuple[Session, list[Run]]]:
        """What each has missed, in order: what was spilled comes before what was read."""
        for session, read in self._missed.items():
            spilled = (run for run in self._behind[session].spilled if run.first > session.acked)
            yield session, [*(run for run in spilled if not run.is_expired(now)), *read]
