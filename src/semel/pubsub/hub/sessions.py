"""The life of the sessions that a node has: they open, lose their socket and get another one, come from other nodes and
go there, and end."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

import msgspec

from semel.errors import StoreError
from semel.kernel.ledger import Kind
from semel.kernel.ops import Append, Fresh, Log, Put, Result
from semel.pubsub.hub.commits import Failure, is_conflict
from semel.pubsub.hub.endings import Then
from semel.pubsub.hub.in_order import InOrder
from semel.pubsub.hub.left_out import UNREADABLE
from semel.pubsub.hub.records import closed, opened
from semel.pubsub.hub.roster import SOMEWHERE, Elsewhere
from semel.pubsub.hub.session import AcksRow, Session, SessionRow, acks_key, session_key
from semel.pubsub.hub.sockets import Open, Resume
from semel.pubsub.hub.spill_rows import deletions
from semel.pubsub.protocol.messages import CloseCode, Connected, Disconnected

if TYPE_CHECKING:
    from semel.pubsub.hub.machine import Hub

BEHIND_S = 1.0
"""A session that is still catching up when its time is over gets this much more."""


class Sessions:
    """`_expiries`: when the time is over in which a client may come back. `_missed`: we were refused to write for them,
    and the stream has not said who has them."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._expiries: list[tuple[float, str]] = []
        self._missed: set[str] = set()

    def next_deadline(self) -> float | None:
        return self._expiries[0][0] if self._expiries else None

    def on_timer(self, now: float) -> None:
        while self._expiries and self._expiries[0][0] <= now:
            self._expire(heappop(self._expiries)[1], now)

    def begin(self, session: Session, now: float) -> None:
        """Of another time, in which the store was another one, nothing can be gone on with. A plain client has nothing
        to come back with."""
        self._hub.roster.add(session)
        if session.epoch != self._hub.epoch:
            self.close(session, Kind.CANCELLED, "the store was restored from a backup", now)
        elif not session.is_reliable:
            self.close(session, Kind.CANCELLED, "the server began anew", now)
        else:
            self.fall_behind(session, now)

    def open(self, peer: str, asked: Open, now: float) -> None:
        """It begins where the stream stands now: what comes in before it is durable is for it as well."""
        hub = self._hub
        start = max(hub.tail.offset, hub.head)
        groups = dict.fromkeys(asked.groups, start)
        row = SessionRow(
            asked.user, asked.subprotocol, hub.node, start, asked.permissions, groups, state=asked.state,
            epoch=hub.epoch,
        )  # fmt: skip
        session = Session(asked.connection, row, AcksRow(start, ()), 0, 0)
        session.peer, session.early, session.is_stalled = peer, [], True
        session.in_order = InOrder() if asked.in_order else None
        hub.sockets[peer] = session
        hub.roster.add(session)
        hub.arrivals.begin(session)
        put = msgspec.structs.replace(session.put_row(hub.hub, row), guard=hub.guard)
        puts = (put, session.put_acks(hub.hub))

        def done(results: tuple[Result, ...], now: float) -> None:
            came = results[0]
            assert isinstance(came, Fresh)
            session.came = came.position.offset
            session.row_version, session.acks_version = session.row_stored, session.acks_stored
            hub.tell(session, Connected(session.id, session.user, asked.token))
            session.is_stalled = False
            hub.delivery.catch_up(session, now)
            early, session.early = session.early or (), None
            hub.clients.hear(session, early, now)
            hub.events.look(session.id)
            hub.arrivals.decided(session, now)

        def failed(failure: Failure) -> None:
            hub.roster.remove(session)
            hub.shut(session, CloseCode.INTERNAL, "the store cannot take the session now")
            hub.arrivals.decided(session, now)

        more = hub.events.on_open(session, now)
        hub.commit_for(session, (self.opened(session, now),), puts, done, failed, more)

    def opened(self, session: Session, now: float) -> Append:
        return opened(self._hub.stream, session, self._hub.node, round(now * 1e6), self._hub.mint(now))

    def resume(self, peer: str, asked: Resume, now: float) -> None:
        """One that is about to end is not taken up again: it would be here twice. It may come again, in case another
        node has it; a node that is alone knows that nobody has. One that is left out may come again as well: it is
        there, for a Semel that can read it."""
        session = self._hub.roster.get(asked.connection)
        if session is not None and session.is_reliable:
            self.attach(session, peer, asked, now)
        elif self._hub.options.is_shared and self._hub.endings.is_under_way(asked.connection):
            self._hub.shut_peer(peer, CloseCode.INTERNAL, "the session is about to end")
        elif session is None and self._hub.options.is_shared:
            self._hub.take_over.resume(asked, peer)
        elif asked.connection in self._hub.left_out:
            self._hub.shut_peer(peer, CloseCode.INTERNAL, UNREADABLE)
        else:
            self._hub.shut_peer(peer, CloseCode.POLICY, "there is no such session any more")

    def attach(self, session: Session, peer: str, asked: Resume, now: float) -> None:
        """The client is back, on this socket. It hears `connected` again: Microsoft's go on with their streams then."""
        hub = self._hub
        if session.peer is not None:
            hub.shut(session, CloseCode.GOING_AWAY, "another socket has taken over")
        session.peer, session.dropped_at, session.is_stalled = peer, None, False
        session.in_order = InOrder() if asked.in_order else None
        hub.sockets[peer] = session
        session.written = session.acked
        hub.tell(session, Connected(session.id, session.user, asked.token))
        hub.delivery.catch_up(session, now)
        hub.streams.resumed(session, now)
        hub.group_states.resumed(session, now)
        hub.events.look(session.id)

    def fall_behind(self, session: Session, now: float) -> None:
        """It is here from now on, and has to be given what it has missed. Its client may take its time for coming back
        from now."""
        self.drop(session, now)
        self._hub.catch_up.add(session, max(self._hub.tail.offset, session.opened), now)

    def welcome(self, session: Session, now: float) -> None:
        """It comes from another node."""
        other = self._hub.elsewhere.get(session.id)
        if other is not None:
            self._hub.elsewhere.remove(other)
            session.came = min(session.opened, self._hub.tail.offset)
        self._hub.roster.add(session)
        self.fall_behind(session, now)

    def leave_out(self, session: Session, error: StoreError) -> None:
        """Nobody can go on with it but a newer Semel, which finds everything as it is."""
        self._hub.left_out.add(session.id, session.floor(self._hub.tail.offset), error)
        self.lose(session, UNREADABLE)

    def lose(self, session: Session, reason: str = "the session is not here any more") -> None:
        """Another node has it, and its client will be there."""
        self._hub.shut(session, CloseCode.INTERNAL, reason)
        self._hub.roster.remove(session)
        self._hub.delivery.forget(session)
        self._hub.events.lost(session.id)

    def drop(self, session: Session, now: float) -> None:
        session.dropped_at = now
        heappush(self._expiries, (now + self._hub.options.recovery_s, session.id))

    def _expire(self, connection: str, now: float) -> None:
        session = self._hub.roster.get(connection)
        if session is None or session.dropped_at is None:
            return
        if session.is_behind:
            heappush(self._expiries, (now + BEHIND_S, connection))
        elif session.dropped_at + self._hub.options.recovery_s <= now:
            self.close(session, Kind.EXPIRED, "the client did not come back in time", now)

    def discard(self, session: Session, reason: str, now: float) -> None:
        """It ends with what it is owed, and its client hears why."""
        self._hub.tell(session, Disconnected(reason))
        self._hub.shut(session, CloseCode.POLICY, reason)
        self.close(session, Kind.DISCARDED, reason, now)

    def close(self, session: Session, kind: Kind, reason: str, now: float, then: Then | None = None) -> None:
        """The session ends, and what it has not acknowledged with it: the ledger says so. `then` hears whether that is
        in the store. If another node has it by now, it is not ours to end. What comes in from now on is not due to it,
        however long its end takes; what it has missed before was, so that is read first."""
        hub = self._hub
        hub.roster.remove(session)
        hub.delivery.forget(session)
        hub.endings.begin(session, kind, reason, then)
        if session.end is None:
            session.end = max(hub.tail.offset, session.opened)
        if session.early is not None:
            hub.arrivals.when_decided((session,), lambda now: self._end_session(session, kind, reason, now))
        elif session.is_behind:
            hub.catch_up.when_caught_up(session, lambda now: self._end_session(session, kind, reason, now))
        else:
            self._end_session(session, kind, reason, now)

    def _end_session(self, session: Session, kind: Kind, reason: str, now: float) -> None:
        hub = self._hub
        if not session.row_stored:
            hub.endings.ended(session, now)
            return
        assert session.end is not None
        went = closed(hub.stream, session.id, session.user, session.end, round(now * 1e6), hub.mint(now))
        rows = (
            Put(session_key(hub.hub, session.id), None, session.row_version),
            Put(acks_key(hub.hub, session.id), None, session.acks_version),
            *deletions(hub.hub, session.id, session.spill.rows),
        )
        log = []
        if session.confirmed is not None:
            log.append(Log(hub.delivery.said(session, session.confirmed)))
        if (left := session.left_behind()) is not None:
            log.append(Log(hub.delivery.said(session, left, kind, reason)))
        appends = (*hub.streams.cancel(session, now), went)

        def done(results: tuple[Result, ...], now: float) -> None:
            hub.counts.discarded += session.queue_count
            hub.take_own(appends, results, now)
            hub.events.look(session.id)
            hub.endings.ended(session, now)

        def failed(failure: Failure, now: float) -> None:
            if not is_conflict(failure):
                hub.report("session-close", failure, f"{session.id} is not closed in the store")
            hub.endings.ended(session, now, failure)

        hub.commit((*appends, *rows, *log, *hub.events.on_close(session, reason, now)), done, failed, session.id)

    def refused(self, session: Session, now: float) -> None:
        """The rows are not those that we know."""
        is_here = self._hub.roster.get(session.id) is session
        if self._hub.options.is_shared:
            self.lose(session)
        if is_here:
            self.miss(session, now)

    def miss(self, session: Session, now: float) -> None:
        """Another node has it, and the end of the stream says which. A node that is alone has nobody to lose a session
        to: then it was a hub before this one, whose commits came so late."""
        if self._hub.options.is_shared:
            groups = dict(session.groups)
            self._hub.elsewhere.add(Elsewhere(session.id, session.user, SOMEWHERE, groups, session.here_since))
            self._missed.add(session.id)
            self._hub.current.when(lambda now: self._look_for(session.id), lambda why: None, now)
        else:
            self._hub.begin_anew("the store holds something else")

    def try_again(self) -> None:
        """If the stream or the rows could not be read."""
        for connection in sorted(self._missed):
            self._look_for(connection)

    def _look_for(self, connection: str) -> None:
        """It may be that nobody else has it: what was refused built on commits of ours that had failed, and of which we
        had not heard. Then the rows say that it is here, and it comes back from them."""
        other = self._hub.elsewhere.get(connection)
        if other is None or other.node != SOMEWHERE:
            self._missed.discard(connection)
        else:
            self._hub.take_over.take_from(self._hub.node, connection, lambda is_decided: None)
