"""What clients ask of a hub: what they publish is staged and committed here, the rest goes to the part that does it.

All that a session publishes in one event is one commit, with its ackIds in one row. Only the ackId of a message with an
id of its own is written down later, with the next commit of its session: a restart before that forgets the ackId, but
not the id, so who sends that message again is answered `Duplicate` all the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import cast

from semel.errors import InputError
from semel.kernel.envelope import DATA_INLINE_BYTES_MAX
from semel.kernel.ops import Append, Duplicate, Result
from semel.pubsub.events.queue import Events
from semel.pubsub.hub.closing import Closing
from semel.pubsub.hub.commits import Failure
from semel.pubsub.hub.context import HubContext, SessionCommits
from semel.pubsub.hub.delivery import Delivery
from semel.pubsub.hub.group_state import GroupStates
from semel.pubsub.hub.groups import Groups
from semel.pubsub.hub.in_order import REFUSED
from semel.pubsub.hub.outgoing import ClientAcks, Outgoing, forbidden
from semel.pubsub.hub.records import (
    MESSAGE_ID,
    NO_TERMS,
    DeliveryTerms,
    RecordKind,
    digest_of,
    group_target,
    id_identity,
    message,
    plain_message,
)
from semel.pubsub.hub.session import Session, StagedPublishes
from semel.pubsub.hub.streams import Streams
from semel.pubsub.hub.tail import Tail
from semel.pubsub.protocol.frames import subprotocol_of
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
from semel.websocket import CloseCode

PONG = Pong()


class Clients:
    """Each request goes to the part that handles it. What was published before it is committed before it, unless it
    commits nothing by itself or is staged as well."""

    def __init__(
        self,
        outgoing: Outgoing,
        acks: ClientAcks,
        publishing: Publishing,
        delivery: Delivery,
        groups: Groups,
        streams: Streams,
        group_states: GroupStates,
        events: Events,
    ) -> None:
        self._outgoing, self._acks, self._publishing = outgoing, acks, publishing
        self._delivery, self._groups = delivery, groups
        self._streams, self._group_states, self._events = streams, group_states, events

    def handle(self, session: Session, requests: Sequence[Request], now: float) -> None:
        """Nearly all that comes: no step too many here."""
        for kind, alike in groupby(requests, type):
            if kind is SendToGroup:
                self._publishing.publish(session, cast("Iterable[SendToGroup]", alike), now)
                continue
            for request in alike:
                # a request before it may have ended the session
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
                self._groups.ask(session, request, RecordKind.JOIN, now)
            case LeaveGroup():
                self._groups.ask(session, request, RecordKind.LEAVE, now)
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


class Publishing:
    def __init__(
        self,
        context: HubContext,
        tail: Tail,
        commits: SessionCommits,
        acks: ClientAcks,
        streams: Streams,
        closing: Closing,
    ) -> None:
        self._context, self._tail, self._commits = context, tail, commits
        self._acks, self._streams, self._closing = acks, streams, closing

    def publish(self, session: Session, requests: Iterable[SendToGroup], now: float) -> None:
        """Nearly all of them are plain, new and to the same group as the one before: those take few steps."""
        context, id, user, at = self._context, session.id, session.user, round(now * 1e6)
        group: str | None = None
        target, is_allowed = "", False
        acks, staged, in_order = session.acks, session.staged, session.in_order
        is_held = in_order is not None and in_order.is_held
        for request in requests:
            if request.group != group:
                group = request.group
                target, is_allowed = group_target(group), session.may(Permission.SEND_TO_GROUP, group)
            if is_allowed and not is_held and not acks.waiting and _is_plain(request):
                ack_id, data = cast(int, request.ack_id), request.data
                name = f"{id}#{ack_id}"
                append = plain_message(
                    context.stream, name, target, data, at, id, user, context.accepted, context.repeated
                )
                # one that is known already is answered as a duplicate, on the long way
                if acks.claimed.add(ack_id):
                    staged.appends.append(append)
                    staged.ack_ids.append(ack_id)
                    if in_order is not None:
                        in_order.last = ack_id
                    continue
            self._publish_one(session, request, now)

    def _publish_one(self, session: Session, request: SendToGroup, now: float) -> None:
        ack_id, group = request.ack_id, request.group
        in_order = session.in_order if ack_id is not None else None
        if in_order is not None and ack_id is not None:
            in_order.receive(ack_id)
        if self._acks.is_repeated(session, ack_id):
            return
        if not session.may(Permission.SEND_TO_GROUP, group):
            self._forbid(session, ack_id, group, now)
            return
        if in_order is not None and in_order.is_held:
            self._acks.answer(session, ack_id, REFUSED)
            return
        try:
            append = self._message(session, request, now)
        except InputError as error:
            self._acks.answer(session, ack_id, Fault(ErrorName.BAD_REQUEST, error.message))
            return
        session.staged.add(append, ack_id)
        if ack_id is None:
            return
        if append.identity is None:
            session.acks.claimed.add(ack_id)
        else:
            # the acks may not say that it was taken before it is known whether another message has its id
            session.acks.wait_for(ack_id)

    def _forbid(self, session: Session, ack_id: int | None, group: str, now: float) -> None:
        """A simple client gets no acks, and would go on sending to nobody."""
        fault = forbidden("send to", group)
        if subprotocol_of(session.subprotocol) is not None:
            self._acks.answer(session, ack_id, fault)
        elif session.peer is not None:
            self._closing.expel(session, CloseCode.POLICY, fault.message, now)

    def _message(self, session: Session, request: SendToGroup, now: float) -> Append:
        context, at = self._context, round(now * 1e6)
        terms = NO_TERMS
        if request.no_echo or request.ttl_s or request.metadata:
            expires = at + request.ttl_s * 1_000_000 if request.ttl_s else None
            terms = DeliveryTerms(request.no_echo, expires=expires, metadata=request.metadata)
        own = request.metadata.get(MESSAGE_ID) if request.metadata else None
        target = group_target(request.group)
        identity = digest = None
        if own is not None:
            id, identity, digest = own, id_identity(own), digest_of(target, request.data, _compared(request))
        else:
            id = f"{session.id}#{request.ack_id}" if request.ack_id is not None else context.mint(now)
        blob, chunks = self._tail.keep_body(request.data.body, context.mint, now)
        append = message(
            context.stream, id, target, request.data,
            at=at, sender=session.id, user=session.user, terms=terms, on_fresh=context.accepted, blob=blob,
            identity=identity, on_duplicate=context.repeated, digest=digest,
        )  # fmt: skip
        session.staged.chunks += chunks
        return append

    def commit_staged(self, session: Session) -> None:
        """All that a session has staged is one commit, with its ackIds and its streams in one row."""
        staged, session.staged = session.staged, StagedPublishes()
        appends, ids, streams = staged.appends, staged.ack_ids, staged.streams
        ack_ids = [ack_id for ack_id in ids if ack_id is not None]

        def done(results: tuple[Result, ...], now: float) -> None:
            if Duplicate in map(type, results):
                self._accept_some(session, ids, appends, results)
            else:
                self._context.counts.accepted += len(ids)
                if session.acks.waiting:
                    # those of messages with ids of their own were not claimed before
                    session.acks.claim_waiting(ack_ids)
                self._acks.accept(session, ack_ids)
            if streams is not None:
                self._streams.accept(session, streams)

        def failed(failure: Failure) -> None:
            if session.in_order is not None and ack_ids:
                session.in_order.hold()
            self._acks.fail(session, ack_ids, failure)
            if streams is not None:
                self._streams.fail(session, streams, failure)

        puts = (session.put_acks(self._context.hub),) if ack_ids or streams is not None else ()
        self._commits.commit(session, appends, puts, done, failed, more=staged.chunks)

    def _accept_some(
        self, session: Session, ids: Sequence[int | None], appends: Sequence[Append], results: Sequence[Result]
    ) -> None:
        """Some were there before, or another message has their id. The ackIds of the latter are forgotten: who did not
        get the answer asks again, and gets the same."""
        taken: list[int] = []
        repeated: dict[int, str] = {}
        conflicts: dict[int, str] = {}
        counts = self._context.counts
        for ack_id, append, result in zip(ids, appends, results, strict=False):
            is_new = not isinstance(result, Duplicate)
            differs = isinstance(result, Duplicate) and result.differs
            counts.accepted += is_new
            counts.duplicates += not is_new and not differs
            if ack_id is None:
                if differs:
                    fault = _taken_by_another(append.envelope.id)
                    self._context.notify("id-conflict", f"a message of {session.id} is lost: {fault.message}")
                continue
            if differs:
                conflicts[ack_id] = append.envelope.id
                continue
            taken.append(ack_id)
            if not is_new:
                repeated[ack_id] = append.envelope.id
        session.acks.claimed.add_all(taken)
        self._acks.accept(session, taken, repeated)
        for ack_id, id in conflicts.items():
            self._acks.refuse(session, [ack_id], _taken_by_another(id))


def _compared(request: SendToGroup) -> tuple[object, ...]:
    """What of a message with an id of its own is compared, besides to whom and what. Who brings it is not."""
    return request.no_echo, request.ttl_s or 0, sorted((request.metadata or {}).items())


def _is_plain(request: SendToGroup) -> bool:
    return (
        request.ack_id is not None
        and request.metadata is None
        and not request.no_echo
        and not request.ttl_s
        and len(request.data.body) <= DATA_INLINE_BYTES_MAX
    )


def _taken_by_another(id: str) -> Fault:
    return Fault(ErrorName.CONFLICT, f"{MESSAGE_ID} {id} was used for another message; give each message its own")
