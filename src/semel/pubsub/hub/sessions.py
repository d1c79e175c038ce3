"""How sessions begin on a node: new ones open, known ones are loaded or come from other nodes, and clients resume."""

from __future__ import annotations

import msgspec

from semel.kernel.ledger import Kind
from semel.kernel.ops import Append, Fresh, Result
from semel.pubsub.events.queue import Events
from semel.pubsub.hub.catchup import CatchUp
from semel.pubsub.hub.clients import Clients
from semel.pubsub.hub.closing import Closing
from semel.pubsub.hub.commits import Failure
from semel.pubsub.hub.context import HubContext, SessionCommits
from semel.pubsub.hub.delivery import Delivery
from semel.pubsub.hub.group_state import GroupStates
from semel.pubsub.hub.node_lease import NodeLease
from semel.pubsub.hub.outgoing import Outgoing
from semel.pubsub.hub.records import opened
from semel.pubsub.hub.roster import Arrivals, Elsewhere, Here, Roster
from semel.pubsub.hub.session import Session
from semel.pubsub.hub.session_phase import SessionChange
from semel.pubsub.hub.session_rows import AcksRow, SessionRow
from semel.pubsub.hub.sockets import NewSession, ResumeSession
from semel.pubsub.hub.streams import Streams
from semel.pubsub.hub.tail import Tail
from semel.pubsub.protocol.messages import Connected
from semel.websocket import CloseCode


class Sessions:
    def __init__(
        self,
        context: HubContext,
        lease: NodeLease,
        outgoing: Outgoing,
        tail: Tail,
        roster: Here,
        elsewhere: Roster[Elsewhere],
        arrivals: Arrivals,
        commits: SessionCommits,
        clients: Clients,
        delivery: Delivery,
        catch_up: CatchUp,
        closing: Closing,
        streams: Streams,
        group_states: GroupStates,
        events: Events,
    ) -> None:
        self._context, self._lease, self._outgoing, self._tail = context, lease, outgoing, tail
        self._roster, self._elsewhere, self._arrivals, self._commits = roster, elsewhere, arrivals, commits
        self._clients, self._delivery, self._catch_up, self._closing = clients, delivery, catch_up, closing
        self._streams, self._group_states, self._events = streams, group_states, events

    def restore(self, session: Session, now: float) -> None:
        """One that this node had before it was started. If the store was restored from a backup since, its offsets mean
        nothing any more. A plain client cannot resume."""
        # how far was sent is not known any more; it cannot have been beyond the end of the stream
        session.backlog.sent = max(session.backlog.sent, self._context.head)
        self._roster.add(session)
        if session.epoch != self._context.epoch:
            self._closing.close(session, Kind.CANCELLED, "the store was restored from a backup", now)
        elif not session.is_reliable:
            self._closing.close(session, Kind.CANCELLED, "the server was restarted", now)
        else:
            self._fall_behind(session, now)

    def open(self, peer: str, asked: NewSession, now: float) -> None:
        """A new session begins where the stream stands now: what comes in before it is durable is for it as well."""
        context = self._context
        start = max(self._tail.offset, context.head)
        groups = dict.fromkeys(asked.groups, start)
        row = SessionRow(
            asked.user, asked.subprotocol, context.node, start, asked.permissions, groups, state=asked.state,
            epoch=context.epoch,
        )  # fmt: skip
        session = Session(asked.connection, row, AcksRow(start, ()), 0, 0)
        session.change(SessionChange.OPEN)
        session.attach(peer, in_order=asked.in_order)
        self._outgoing.sockets[peer] = session
        self._roster.add(session)
        self._arrivals.begin(session)
        put = msgspec.structs.replace(session.put_row(context.hub, row), guard=self._lease.guard)
        puts = (put, session.put_acks(context.hub))

        def done(results: tuple[Result, ...], now: float) -> None:
            record = results[0]
            assert isinstance(record, Fresh)
            session.present_at = record.position.offset
            session.versions.row, session.versions.acks = session.versions.row_stored, session.versions.acks_stored
            self._outgoing.welcome(session, Connected(session.id, session.user, asked.token))
            session.change(SessionChange.OPENED)
            self._delivery.catch_up(session, now)
            early, session.early = session.early, []
            self._clients.handle(session, early, now)
            self._events.claim_next(session.id)
            self._arrivals.decided(session, now)

        def failed(failure: Failure) -> None:
            self._roster.remove(session)
            session.change(SessionChange.NOT_OPENED)
            self._outgoing.close_socket(session, CloseCode.INTERNAL, "the store cannot take the session now")
            self._arrivals.decided(session, now)

        more = self._events.on_open(session, now)
        self._commits.commit(session, (self.open_record(session, now),), puts, done, failed, more)

    def open_record(self, session: Session, now: float) -> Append:
        """Tells all nodes that the session is on this one from here on."""
        return opened(self._context.stream, session, self._context.node, round(now * 1e6), self._context.mint(now))

    def resume(self, session: Session, peer: str, asked: ResumeSession, now: float) -> None:
        """The client is back, on this socket. It gets `connected` again: Microsoft's clients wait for it before they
        continue their streams."""
        if session.peer is not None:
            self._outgoing.close_socket(session, CloseCode.GOING_AWAY, "another socket has taken over")
        session.attach(peer, in_order=asked.in_order)
        self._outgoing.sockets[peer] = session
        session.backlog.written = session.backlog.acked
        self._outgoing.send(session, Connected(session.id, session.user, asked.token))
        self._delivery.catch_up(session, now)
        self._streams.resumed(session, now)
        self._group_states.resumed(session, now)
        self._events.claim_next(session.id)

    def take_in(self, session: Session, now: float) -> None:
        """It comes from another node."""
        other = self._elsewhere.get(session.id)
        if other is not None:
            self._elsewhere.remove(other)
            session.present_at = min(session.opened, self._tail.offset)
        self._roster.add(session)
        self._fall_behind(session, now)

    def _fall_behind(self, session: Session, now: float) -> None:
        """It is here from now on, and has to be given what it has missed. The time in which its client may come back
        begins now."""
        self._closing.drop(session, now)
        self._catch_up.add(session, max(self._tail.offset, session.opened), now)
