"""Writes down how far clients have acknowledged: once a second for each session that has something new.

What a crash loses of it is delivered again, and the client drops it by its sequenceId.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from semel.kernel.ops import Log, Op, Result
from semel.pubsub.hub.commits import Failure
from semel.pubsub.hub.context import HubContext, SessionCommits
from semel.pubsub.hub.roster import Here
from semel.pubsub.hub.session import Session
from semel.pubsub.hub.session_rows import deletions

FLUSH_S = 1.0


class AckFlush:
    """`_dirty` are the sessions with acknowledgements that are not written down."""

    def __init__(self, context: HubContext, commits: SessionCommits, roster: Here) -> None:
        self._context, self._commits, self._roster = context, commits, roster
        self._dirty: dict[str, Session] = {}
        self._flush_at: float | None = None

    def __len__(self) -> int:
        return len(self._dirty)

    def add(self, session: Session) -> None:
        self._dirty[session.id] = session

    def forget(self, session: Session) -> None:
        """The session is not here any more. If it ends, the commit of its end says what it has acknowledged."""
        self._dirty.pop(session.id, None)

    def plan(self, now: float) -> None:
        if self._dirty and self._flush_at is None:
            self._flush_at = now + FLUSH_S

    def next_deadline(self) -> float | None:
        return self._flush_at

    def on_timer(self, now: float) -> None:
        if self._flush_at is not None and self._flush_at <= now:
            self._flush_at = None
            for session in list(self._dirty.values()):
                self.flush(session)

    def flush(
        self, session: Session, more: Sequence[Op] = (), then: Callable[[bool], None] = lambda is_done: None
    ) -> None:
        """Write down one session, with `more` in the same commit."""
        context = self._context
        self._dirty.pop(session.id, None)
        before, confirmed = session.backlog.flushing, session.backlog.take_confirmed()
        acked, gone = session.backlog.flushing, session.spill.take_acknowledged(session.backlog.flushing)
        spilled = session.spill.rows
        log = [Log(confirmed.ledger_event(context.stream, context.epoch, session.id))] if confirmed is not None else []

        def done(results: tuple[Result, ...], now: float) -> None:
            session.backlog.set_flushed(acked)
            session.spill.stored = spilled
            context.counts.acknowledged += confirmed.n if confirmed is not None else 0
            then(True)

        def failed(failure: Failure) -> None:
            session.backlog.put_back(confirmed, before)
            if self._roster.get(session.id) is session:  # one that ends meanwhile writes it down with its end
                self._dirty[session.id] = session
                context.report_once("hub-flush", failure)
            then(False)

        put, deleted = session.put_acks(context.hub), deletions(context.hub, session.id, gone)
        self._commits.commit(session, (), (put,), done, failed, [*log, *deleted, *more])
