"""What clients ask of a hub: each request goes to the part that handles it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import cast

from semel.kernel.ops import Put
from semel.pubsub.events.queue import Events
from semel.pubsub.hub.client_acks import ClientAcks, forbidden
from semel.pubsub.hub.context import HubContext
from semel.pubsub.hub.delivery import Delivery
from semel.pubsub.hub.group_state import GroupStates
from semel.pubsub.hub.groups import Groups
from semel.pubsub.hub.outgoing import Outgoing
from semel.pubsub.hub.publishing import Publishing
from semel.pubsub.hub.records import RecordKind
from semel.pubsub.hub.session import TOO_MANY_GROUPS, Session
from semel.pubsub.hub.session_commits import SessionCommits
from semel.pubsub.hub.streams import Streams
from semel.pubsub.hub.tail import Tail
from semel.pubsub.protocol.messages import (
    CancelInvocation,
    ErrorName,
    Fault,
    Invoke,
    JoinGroup,
    LeaveGroup,
    Ping,
    Pong,
    Request,
    SendEvent,
    SendToGroup,
    SequenceAck,
    SetGroupState,
    StartStream,
    StreamData,
    StreamEnd,
    SubscribeGroupState,
    UnsubscribeGroupState,
)
from semel.pubsub.protocol.permissions import Permission

PONG = Pong()


class Clients:
    def __init__(
        self,
        context: HubContext,
        outgoing: Outgoing,
        tail: Tail,
        commits: SessionCommits,
        acks: ClientAcks,
        publishing: Publishing,
        delivery: Delivery,
        groups: Groups,
        streams: Streams,
        group_states: GroupStates,
        events: Events,
    ) -> None:
        self._context, self._outgoing, self._tail, self._commits = context, outgoing, tail, commits
        self._acks, self._publishing, self._delivery, self._groups = acks, publishing, delivery, groups
        self._streams, self._group_states, self._events = streams, group_states, events

    def handle(self, session: Session, requests: Sequence[Request], now: float) -> None:
        for kind, alike in groupby(requests, type):
            if kind is SendToGroup:
                self._publishing.publish(session, cast("Iterable[SendToGroup]", alike), now)
                continue
            for request in alike:
                if session.peer is not None:
                    self._handle(session, request, now)
        if session.staged.appends:
            self._publishing.commit_staged(session)

    def _handle(self, session: Session, request: Request, now: float) -> None:
        match request:
            case SequenceAck(sequence_id=offset):
                self._delivery.acknowledge(session, offset, now)
            case Ping():
                self._outgoing.send(session, PONG)
            case StreamData():
                self._streams.part(session, request, now)
            case StreamEnd():
                self._streams.end(session, request, now)
            case _:
                # what was published before is committed before, with its ackIds
                if session.staged.appends:
                    self._publishing.commit_staged(session)
                self._handle_in_order(session, request, now)

    def _handle_in_order(self, session: Session, request: Request, now: float) -> None:
        match request:
            case JoinGroup():
                self._change_group(session, request, RecordKind.JOIN, now)
            case LeaveGroup():
                self._change_group(session, request, RecordKind.LEAVE, now)
            case SendEvent():
                if not self._acks.is_repeated(session, request.ack_id):
                    self._events.send(session, request, now)
            case Invoke():
                self._events.invocations.invoke(session, request, now)
            case CancelInvocation():
                self._events.invocations.cancel(session, request)
            case StartStream():
                self._streams.start(session, request, now)
            case SetGroupState():
                self._group_states.set(session, request, now)
            case SubscribeGroupState():
                self._group_states.watch(session, request)
            case UnsubscribeGroupState():
                self._group_states.unwatch(session, request)

    # -- groups

    def _change_group(self, session: Session, request: JoinGroup | LeaveGroup, kind: RecordKind, now: float) -> None:
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
        self._groups.change(
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
