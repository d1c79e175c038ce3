"""Deliveries: from the stream to the sockets of sessions, and how far their clients have acknowledged."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from semel.kernel.ledger import Kind
from semel.kernel.ops import Append, Log
from semel.pubsub.hub.ack_flush import AckFlush
from semel.pubsub.hub.backlog import AckRange
from semel.pubsub.hub.closing import Closing
from semel.pubsub.hub.commits import Failure, nothing_more
from semel.pubsub.hub.context import HubContext
from semel.pubsub.hub.outgoing import Outgoing
from semel.pubsub.hub.records import NO_TERMS
from semel.pubsub.hub.roster import Here
from semel.pubsub.hub.runs import Run, runs_of
from semel.pubsub.hub.session import Session
from semel.pubsub.protocol.filters import parse
from semel.websocket import CloseCode


class Delivery:
    def __init__(self, context: HubContext, outgoing: Outgoing, roster: Here, acks: AckFlush, closing: Closing) -> None:
        self._context, self._outgoing, self._roster = context, outgoing, roster
        self._acks, self._closing = acks, closing

    # -- from the stream

    def on_messages(self, first: int, appends: Sequence[Append], now: float) -> None:
        """Messages come from the tail, never from a publish. Who gets one changes only with other records, so receivers
        are looked up once for all messages to the same target. The batch is divided where this node began: sessions
        that opened before it had read so far begin there."""
        before = max(0, self._context.head + 1 - first)
        for run in (*runs_of(first, appends[:before]), *runs_of(first + before, appends[before:])):
            self.fan_out(run, now)

    def fan_out(self, run: Run, now: float) -> None:
        """To all whom it is for. There may be thousands of them: what can be done once for all is done once."""
        first, options, counts = run.first, self._context.options, self._context.counts
        count_max, bytes_max = options.backlog_count, options.backlog_bytes
        peers: dict[str, list[str]] = {}
        full: list[Session] = []
        for session in self.due(self._roster, run, now):
            backlog = session.backlog
            if backlog.acked >= first or session.opened >= first:
                self._push_rest(session, run)
            else:
                counts.deliveries += run.count
                if backlog.push(run):
                    peers.setdefault(session.subprotocol, []).append(session.peer)  # type: ignore[arg-type]
            if backlog.count > count_max or backlog.bytes > bytes_max:
                full.append(session)
        for subprotocol, attached in peers.items():
            self._outgoing.write_all(attached, run.frames(subprotocol), run.count)
        for session in full:
            self.check_backlog(session, now, run.last)

    def _push_rest(self, session: Session, run: Run) -> None:
        """To one that has had the beginning of it already."""
        known = max(session.backlog.acked, session.opened)
        if known >= run.last:
            return
        rest = run.after(known)
        self._context.counts.deliveries += rest.count
        if session.backlog.push(rest) and session.peer is not None:
            self._outgoing.write(session.peer, rest.frames(session.subprotocol), rest.count)

    def due(self, roster: Here, run: Run, now: float) -> Iterable[Session]:
        """Its receivers, without those whom the terms of the message exclude."""
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
        """What waits for its socket goes to it, without what has expired meanwhile."""
        late = session.backlog.take_expired(now)
        if late:
            expired = AckRange.of(late).ledger_event(
                self._context.stream, self._context.epoch, session.id, Kind.EXPIRED, "its time to live was over"
            )
            self._context.commit((Log(expired),), nothing_more, self._not_logged)
        for run in session.backlog.take_unwritten():
            assert session.peer is not None
            self._outgoing.write(session.peer, run.frames(session.subprotocol), run.count)

    def _not_logged(self, failure: Failure, now: float) -> None:
        self._context.report("hub-expire", failure)

    def check_backlog(self, session: Session, now: float, last: int | None = None) -> None:
        """`last` is the last record that it was given, if the tail is ahead of it: records are applied in runs."""
        options, backlog = self._context.options, session.backlog
        if backlog.count <= options.backlog_count and backlog.bytes <= options.backlog_bytes:
            return
        reason = f"{backlog.count:,} messages are not acknowledged"
        if last is not None:
            session.end = max(last, session.opened)
        self._context.notify("backlog", f"{session.id} is closed, {reason}")
        self._closing.discard(session, reason, now)

    # -- what clients acknowledge

    def acknowledge(self, session: Session, offset: int, now: float) -> None:
        """A client cannot have received what was never sent to it. But with several nodes another one may have had the
        session and sent it, and the record that says so may not have been read here yet: then the client may come back,
        while on a single node it has broken the protocol."""
        backlog = session.backlog
        if not backlog.is_kept or offset <= backlog.acked:
            return
        if offset > backlog.sent:
            reason = f"{offset} is acknowledged, but {backlog.sent} is the last one sent"
            code = CloseCode.INTERNAL if self._context.options.is_shared else CloseCode.POLICY
            self._outgoing.close_socket(session, code, reason)
            self._closing.drop(session, now)
        elif session.is_behind:
            backlog.early_ack = max(backlog.early_ack, offset)
        else:
            backlog.acknowledge(offset)
            self._acks.add(session)
