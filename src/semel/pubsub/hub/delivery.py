"""What sessions are given and what they acknowledge: the way from the stream to the sockets, and the word of it in the
ledger."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from semel.kernel.ledger import Event as LedgerEvent
from semel.kernel.ledger import Kind
from semel.kernel.ops import Log, Op, Result
from semel.pubsub.hub.commits import Failure, nothing_more
from semel.pubsub.hub.records import NO_TERMS
from semel.pubsub.hub.roster import Here
from semel.pubsub.hub.runs import Run
from semel.pubsub.hub.session import Confirmed, Session
from semel.pubsub.hub.spill_rows import deletions
from semel.pubsub.protocol.filters import parse
from semel.pubsub.protocol.messages import CloseCode

if TYPE_CHECKING:
    from semel.pubsub.hub.machine import Hub

FLUSH_S = 1.0


class Delivery:
    """`_dirty` are the sessions of which something is to be written down."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._dirty: dict[str, Session] = {}
        self._flush_at: float | None = None

    def __len__(self) -> int:
        """Of how many sessions something is to be written down."""
        return len(self._dirty)

    # -- what they are given

    def fan_out(self, run: Run, now: float) -> None:
        """To all to whom it is due. This is for thousands of them: what can be done once is done once."""
        first, count_max, bytes_max = run.first, self._hub.options.backlog_count, self._hub.options.backlog_bytes
        peers: dict[str, list[str]] = {}
        full: list[Session] = []
        for session in self.due(self._hub.roster, run, now):
            if session.acked >= first or session.opened >= first:
                self._push_rest(session, run)
            else:
                self._hub.counts.deliveries += run.count
                if session.push(run):
                    peers.setdefault(session.subprotocol, []).append(session.peer)  # type: ignore[arg-type]
            if session.queue_count > count_max or session.queue_bytes > bytes_max:
                full.append(session)
        for subprotocol, attached in peers.items():
            self._hub.outgoing.say_all(attached, run.frames(subprotocol), run.count)
        for session in full:
            self.check_backlog(session, now, run.last)

    def _push_rest(self, session: Session, run: Run) -> None:
        """To one that has some of it already."""
        known = max(session.acked, session.opened)
        if known >= run.last:
            return
        rest = run.after(known)
        self._hub.counts.deliveries += rest.count
        if session.push(rest) and session.peer is not None:
            self._hub.outgoing.say(session.peer, rest.frames(session.subprotocol), rest.count)

    def due(self, roster: Here, run: Run, now: float) -> Iterable[Session]:
        """Those of its receivers to whom the terms of a message let it go."""
        receivers, terms = roster.receivers(run.target, run.first), run.terms
        if terms is NO_TERMS:
            return receivers
        if run.is_expired(now):
            return ()
        left_out = {*terms.excluded, *([run.source] if terms.no_echo else [])}
        chosen = [session for session in receivers if session.id not in left_out]
        if terms.filter is None:
            return chosen
        asked = parse(terms.filter)
        return [session for session in chosen if asked.matches(roster.seen(session, run.first))]

    def catch_up(self, session: Session, now: float) -> None:
        """What waits for its socket goes to it, but for what has expired meanwhile."""
        late = session.take_expired(now)
        if late:
            told = self.said(session, Confirmed.of(late), Kind.EXPIRED, "its time to live was over")
            self._hub.commit((Log(told),), nothing_more, self._not_expired)
        for run in session.catch_up():
            assert session.peer is not None
            self._hub.outgoing.say(session.peer, run.frames(session.subprotocol), run.count)

    def _not_expired(self, failure: Failure, now: float) -> None:
        self._hub.report("hub-expire", failure)

    def check_backlog(self, session: Session, now: float, last: int | None = None) -> None:
        """`last` is the last record that it was given, if those after it in one row with it are not told yet."""
        options = self._hub.options
        if session.queue_count <= options.backlog_count and session.queue_bytes <= options.backlog_bytes:
            return
        reason = f"{session.queue_count:,} messages are not acknowledged"
        if last is not None:
            session.end = max(last, session.opened)
        self._hub.notify("backlog", f"{session.id} is closed, {reason}")
        self._hub.sessions.discard(session, reason, now)

    # -- what they acknowledge

    def acknowledge(self, session: Session, offset: int, now: float) -> None:
        """Of what was never sent, nothing can have been received: who says so is not believed. But another node may
        have had the session, and sent it: the record that says so may stand after all that has been read here. Then it
        may come back when that is clear."""
        if not session.is_reliable or offset <= session.acked:
            return
        if offset > session.sent:
            reason = f"{offset} is acknowledged, but {session.sent} is the last one sent"
            self._hub.shut(session, CloseCode.INTERNAL if self._hub.options.is_shared else CloseCode.POLICY, reason)
            self._hub.sessions.drop(session, now)
        elif session.is_behind:
            session.early_ack = max(session.early_ack, offset)
        else:
            session.acknowledge(offset)
            self.write_down(session)

    def write_down(self, session: Session) -> None:
        """How far its client has acknowledged, within a second."""
        self._dirty[session.id] = session

    def forget(self, session: Session) -> None:
        """It is lost, or ends: what is to be told of it is told there."""
        self._dirty.pop(session.id, None)

    def plan_flush(self, now: float) -> None:
        if self._dirty and self._flush_at is None:
            self._flush_at = now + FLUSH_S

    def next_deadline(self) -> float | None:
        return self._flush_at

    def on_timer(self, now: float) -> None:
        if self._flush_at is not None and self._flush_at <= now:
            self._flush()

    def _flush(self) -> None:
        """How far clients have acknowledged. What is lost of it in a crash is sent again and dropped by the client."""
        self._flush_at = None
        dirty, self._dirty = self._dirty, {}
        for session in dirty.values():
            self.flush(session)

    def flush(
        self, session: Session, more: Sequence[Op] = (), then: Callable[[bool], None] = lambda done: None
    ) -> None:
        """How far one client has acknowledged, with `more` in the same commit. `then` hears whether it is done."""
        self._dirty.pop(session.id, None)
        told, confirmed = session.told, session.take_confirmed()
        acked, gone = session.told, session.spill.take_acknowledged(session.told)
        spilled = session.spill.rows
        log = [Log(self.said(session, confirmed))] if confirmed is not None else []

        def done(results: tuple[Result, ...], now: float) -> None:
            session.settle(acked)
            session.spill.stored = spilled
            self._hub.counts.acknowledged += confirmed.n if confirmed is not None else 0
            then(True)

        def failed(failure: Failure) -> None:
            """One that ends meanwhile tells it when it is tried again."""
            session.put_back(confirmed, told)
            if self._hub.roster.get(session.id) is session:
                self._dirty[session.id] = session
                self._hub.complain("hub-flush", failure)
            then(False)

        put, deleted = session.put_acks(self._hub.hub), deletions(self._hub.hub, session.id, gone)
        self._hub.commit_for(session, (), (put,), done, failed, [*log, *deleted, *more])

    def said(
        self, session: Session, range: Confirmed, kind: Kind = Kind.CONFIRMED, cause: str | None = None
    ) -> LedgerEvent:
        stream = self._hub.stream
        return LedgerEvent(
            kind, f"{stream}>sub", peer=session.id, stream=stream, epoch=self._hub.epoch, first=range.first,
            last=range.last, n=range.n, fold=range.fold, cause=cause,
        )  # fmt: skip
