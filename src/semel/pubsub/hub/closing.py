"""How sessions end here: their client leaves or does not come back, they are thrown out, or another node takes them.

drop        the socket is lost: the session waits for its client, and expires if it does not come back
close       the session ends, in memory at once and in the store as soon as that takes it
discard     the client gets the reason, and what it is owed ends with its session
release     another node has the session: nothing is written for it here any more
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import Protocol

from semel.errors import StoreError
from semel.kernel.ledger import Kind
from semel.kernel.ops import Log, Op, Put, Result
from semel.pubsub.hub.ack_flush import AckFlush
from semel.pubsub.hub.commits import Failure, is_conflict, is_gone
from semel.pubsub.hub.context import HubContext
from semel.pubsub.hub.endings import CatchingUp, Endings, Then
from semel.pubsub.hub.outgoing import Outgoing
from semel.pubsub.hub.records import closed
from semel.pubsub.hub.roster import UNREADABLE, Arrivals, Here, UnreadableSessions
from semel.pubsub.hub.session import Session
from semel.pubsub.hub.session_phase import SessionChange, SessionPhase
from semel.pubsub.hub.session_rows import acks_key, deletions, session_key
from semel.pubsub.hub.streams import Streams
from semel.pubsub.hub.tail import Tail
from semel.pubsub.protocol.messages import Disconnected
from semel.websocket import CloseCode

BEHIND_S = 1.0
"""A session that is still catching up when its time is over gets this much more."""


class SessionEvents(Protocol):
    """What is reported of sessions to event handlers."""

    def on_close(self, session: Session, reason: str, now: float) -> list[Op]: ...

    def claim_next(self, connection: str) -> None: ...

    def release(self, connection: str) -> None: ...


class Closing:
    """`events` and `on_missing` are set by the hub: whoever they lead to ends sessions as well. `on_missing` is called
    when the store has refused the end of a session that another node seems to have."""

    events: SessionEvents
    on_missing: Callable[[Session, float], None]

    def __init__(
        self,
        context: HubContext,
        outgoing: Outgoing,
        tail: Tail,
        roster: Here,
        arrivals: Arrivals,
        endings: Endings,
        left_out: UnreadableSessions,
        behind: CatchingUp,
        acks: AckFlush,
        streams: Streams,
    ) -> None:
        self._context, self._outgoing, self._tail, self._roster = context, outgoing, tail, roster
        self._arrivals, self._endings, self._left_out, self._behind = arrivals, endings, left_out, behind
        self._acks, self._streams = acks, streams
        self._expiries: list[tuple[float, str]] = []

    # -- the client is away

    def drop(self, session: Session, now: float) -> None:
        session.dropped_at = now
        # it stays when the client comes back: `_expire` looks whether it is still away, and for how long
        heappush(self._expiries, (now + self._context.options.recovery_s, session.id))

    def next_deadline(self) -> float | None:
        return self._expiries[0][0] if self._expiries else None

    def on_timer(self, now: float) -> None:
        while self._expiries and self._expiries[0][0] <= now:
            self._expire(heappop(self._expiries)[1], now)

    def _expire(self, connection: str, now: float) -> None:
        session = self._roster.get(connection)
        if session is None or session.dropped_at is None:
            return
        if session.is_behind:
            heappush(self._expiries, (now + BEHIND_S, connection))
        elif session.dropped_at + self._context.options.recovery_s <= now:
            self.close(session, Kind.EXPIRED, "the client did not come back in time", now)

    # -- it is not here any more

    def release(self, session: Session, reason: str = "the session is not here any more") -> None:
        """Another node has it, and its client will find it there."""
        session.change(SessionChange.RELEASE)
        self._outgoing.close_socket(session, CloseCode.INTERNAL, reason)
        self._roster.remove(session)
        self._acks.forget(session)
        self.events.release(session.id)

    def leave_out(self, session: Session, error: StoreError) -> None:
        """Only a newer Semel can continue with it, and finds everything as it is."""
        self._left_out.add(session.id, session.floor(self._tail.offset), error)
        self.release(session, UNREADABLE)

    # -- it ends

    def discard(self, session: Session, reason: str, now: float) -> None:
        """It ends with what it is owed, and its client gets the reason."""
        self._outgoing.send(session, Disconnected(reason))
        self.expel(session, CloseCode.POLICY, reason, now, Kind.DISCARDED)

    def expel(self, session: Session, code: CloseCode, reason: str, now: float, kind: Kind = Kind.CANCELLED) -> None:
        """Close the socket, and end the session."""
        self._outgoing.close_socket(session, code, reason)
        self.close(session, kind, reason, now)

    def close(self, session: Session, kind: Kind, reason: str, now: float, then: Then | None = None) -> None:
        """The session ends, and with it what it has not acknowledged: the ledger says so. `then` is called when that is
        in the store, or was refused. What comes in from now on is not owed to it, however long its end takes; what it
        has missed before is, so that is read first."""
        self._roster.remove(session)
        self._acks.forget(session)
        self._endings.begin(session, kind, reason, then)
        if session.end is None:
            session.end = max(self._tail.offset, session.opened)
        session.change(SessionChange.END)
        if session.phase is SessionPhase.ENDING_UNOPENED:
            self._arrivals.when_decided((session,), lambda now: self._commit_end(session, kind, reason, now))
        elif session.phase is SessionPhase.ENDING_BEHIND:
            self._behind.when_caught_up(session, lambda now: self._commit_end(session, kind, reason, now))
        else:
            self._commit_end(session, kind, reason, now)

    def _commit_end(self, session: Session, kind: Kind, reason: str, now: float) -> None:
        context = self._context
        if not session.versions.row_stored:
            # its first commit here has failed: there is nothing of ours to remove
            self._ended(session, now)
            return
        assert session.end is not None
        record = closed(context.stream, session.id, session.user, session.end, round(now * 1e6), context.mint(now))
        rows = (
            Put(session_key(context.hub, session.id), None, session.versions.row),
            Put(acks_key(context.hub, session.id), None, session.versions.acks),
            *deletions(context.hub, session.id, session.spill.rows),
        )
        appends = (*self._streams.cancel(session, now), record)

        def done(results: tuple[Result, ...], now: float) -> None:
            context.counts.discarded += session.backlog.count
            self._tail.take_own(appends, results, now)
            self.events.claim_next(session.id)
            self._ended(session, now)

        def failed(failure: Failure, now: float) -> None:
            if not is_conflict(failure):
                context.report("session-close", failure, f"{session.id} is not closed in the store")
            self._not_ended(session, failure, now)

        log = self._log_of(session, kind, reason)
        context.commit((*appends, *rows, *log, *self.events.on_close(session, reason, now)), done, failed, session.id)

    def _log_of(self, session: Session, kind: Kind, reason: str) -> list[Log]:
        """What it has acknowledged since that was last written down, and what it never will."""
        stream, epoch, log = self._context.stream, self._context.epoch, []
        if session.backlog.confirmed is not None:
            log.append(Log(session.backlog.confirmed.ledger_event(stream, epoch, session.id)))
        if (left := session.backlog.left_behind(session.spill.lost)) is not None:
            log.append(Log(left.ledger_event(stream, epoch, session.id, kind, reason)))
        return log

    def _ended(self, session: Session, now: float) -> None:
        session.change(SessionChange.ENDED)
        for then in self._endings.done(session).asked:
            then(None)

    def _not_ended(self, session: Session, failure: Failure, now: float) -> None:
        """If the rows are gone, somebody has ended it. If they have changed, another node has it, and it is not ours to
        end. Anything else is tried again."""
        if not is_conflict(failure):
            asked: Sequence[Then] = self._endings.failed(session)
        elif is_gone(failure):
            self._ended(session, now)
            return
        else:
            session.change(SessionChange.ENDED)
            end = self._endings.done(session)
            asked = end.asked
            if not end.is_taken and self._roster.get(session.id) is None:
                self.on_missing(session, now)
        for then in asked:
            then(failure)

    def when_ended(self, session: Session, now: float, then: Then) -> None:
        """For one that is about to end. An end that failed is tried again at once."""
        end = self._endings.find(session)
        if end.is_under_way:
            end.asked.append(then)
        else:
            self.close(session, end.kind, end.reason, now, then)

    def try_again(self, now: float) -> None:
        for session, end in self._endings.to_retry():
            self.close(session, end.kind, end.reason, now)
