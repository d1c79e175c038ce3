"""Joining and leaving groups: what clients ask, and the change itself, which services may ask for too."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from semel.kernel.ops import Fresh, Put, Result
from semel.pubsub.events.queue import Events
from semel.pubsub.hub.commits import Failure
from semel.pubsub.hub.context import HubContext, SessionCommits
from semel.pubsub.hub.outgoing import ClientAcks, forbidden
from semel.pubsub.hub.records import RecordKind, membership
from semel.pubsub.hub.session import TOO_MANY_GROUPS, Session
from semel.pubsub.hub.tail import Tail
from semel.pubsub.protocol.messages import ErrorName, Fault, JoinGroup, LeaveGroup
from semel.pubsub.protocol.permissions import Permission


class Groups:
    def __init__(
        self, context: HubContext, tail: Tail, commits: SessionCommits, acks: ClientAcks, events: Events
    ) -> None:
        self._context, self._tail, self._commits, self._acks, self._events = context, tail, commits, acks, events

    def ask(self, session: Session, request: JoinGroup | LeaveGroup, kind: RecordKind, now: float) -> None:
        """A client asks to join or leave; it is answered when it is durable from where on that holds."""
        ack_id, group = request.ack_id, request.group
        if self._acks.is_repeated(session, ack_id):
            return
        if not session.may(Permission.JOIN_LEAVE_GROUP, group):
            self._acks.answer(session, ack_id, forbidden("join" if kind == RecordKind.JOIN else "leave", group))
            return
        ack_ids = [ack_id] if ack_id is not None else []
        is_join = kind == RecordKind.JOIN
        if session.memberships.is_settled(group, is_join):
            puts = (session.put_row(self._context.hub, session.row()),) if session.versions.owes_row else ()
            if ack_ids or puts:
                self._commit(session, puts, ack_ids)
            return
        if is_join and not session.has_room_for((group,), self._tail.offset):
            self._acks.answer(session, ack_id, Fault(ErrorName.BAD_REQUEST, TOO_MANY_GROUPS))
            return
        if ack_id is not None:
            # the acks may not say so before it is durable from where on it holds
            session.acks.wait_for(ack_id)
        self.change(
            session,
            group,
            kind,
            now,
            lambda puts: self._commit(session, puts, ack_ids),
            lambda failure: self._acks.fail(session, ack_ids, failure),
        )

    def _commit(self, session: Session, puts: Sequence[Put], ack_ids: Sequence[int]) -> None:
        """What stands behind these ackIds, with them."""
        if ack_ids:
            session.acks.claimed.add_all(ack_ids)
            puts = (*puts, session.put_acks(self._context.hub))
        self._commits.commit(
            session,
            (),
            puts,
            lambda results, now: self._acks.accept(session, ack_ids),
            lambda failure: self._acks.fail(session, ack_ids, failure),
        )

    def change(
        self,
        session: Session,
        group: str,
        kind: RecordKind,
        now: float,
        then: Callable[[Sequence[Put]], None],
        failed: Callable[[Failure], None],
    ) -> None:
        """A record in the stream says from where on the change holds. Its offset is known only when it is durable, so
        the session's row with that offset takes a second commit, which `then` has to make before it answers anybody.

        The row is also written with the record, unchanged, to be refused if another node has the session. The acks are
        not: they would say that the ackId was taken."""
        context = self._context
        record = membership(context.stream, kind, group, session.id, session.user, round(now * 1e6), context.mint(now))

        def done(results: tuple[Result, ...], now: float) -> None:
            changed = results[0]
            assert isinstance(changed, Fresh)
            session.decide_group(group, changed.position.offset, kind == RecordKind.JOIN, self._tail.offset)
            then((session.put_row(context.hub, session.row()),))
            self._events.claim_next(session.id)

        if kind == RecordKind.JOIN:
            session.memberships.wanted.add(group)
            more = self._events.on_join(session, group, now)
        else:
            session.memberships.wanted.discard(group)
            more = self._events.on_leave(session, group, now)
        self._commits.commit(session, (record,), (session.put_row(context.hub, session.row()),), done, failed, more)
