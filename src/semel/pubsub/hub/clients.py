"""What clients ask of a hub, and what they hear back.

A request with an ackId is answered once it is durable, and its ackId with it: who asks again hears `Duplicate`. Only
the ackId of a message with an id of its own is written down later, with the next commit of its session. A restart
before that forgets the ackId, but not the id: who sends that message again hears `Duplicate` all the same.

A request that failed is forgotten, so the same ackId may be tried again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, cast

from semel.errors import InputError
from semel.kernel.envelope import DATA_INLINE_BYTES_MAX
from semel.kernel.ledger import Kind
from semel.kernel.ops import Append, Duplicate, Put, Result
from semel.pubsub.hub.commits import Failure, hint
from semel.pubsub.hub.in_order import REFUSED
from semel.pubsub.hub.record_kinds import RecordKind
from semel.pubsub.hub.records import (
    MESSAGE_ID,
    NO_TERMS,
    Terms,
    digest_of,
    group_target,
    id_identity,
    message,
    plain_message,
)
from semel.pubsub.hub.session import TOO_MANY_GROUPS, Session
from semel.pubsub.protocol.frames import subprotocol_of
from semel.pubsub.protocol.messages import (
    Ack,
    CancelInvocation,
    CloseCode,
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

if TYPE_CHECKING:
    from semel.pubsub.hub.machine import Hub

PONG = Pong()
NOTHING: Mapping[int, str] = {}


class Clients:
    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    def hear(self, session: Session, requests: Sequence[Request], now: float) -> None:
        self._hub.touch(session)
        for kind, alike in groupby(requests, type):
            if kind is SendToGroup:
                self._publish_all(session, cast("Iterable[SendToGroup]", alike), now)
                continue
            for request in alike:
                if session.peer is not None:
                    self._handle(session, request, now)

    def _handle(self, session: Session, request: Request, now: float) -> None:
        match request:
            case SequenceAck(sequence_id=offset):
                self._hub.delivery.acknowledge(session, offset, now)
            case Ping():
                self._hub.tell(session, PONG)
            case StreamData():
                self._hub.streams.part(session, request, now)
            case StreamEnd():
                self._hub.streams.end(session, request, now)
            case _:
                # what was published before is committed before, with its ackIds
                if session.staged:
                    self.commit_staged(session)
                self._change(session, request, now)

    def _change(self, session: Session, request: Request, now: float) -> None:
        match request:
            case JoinGroup():
                self._change_group(session, request, RecordKind.JOIN, now)
            case LeaveGroup():
                self._change_group(session, request, RecordKind.LEAVE, now)
            case SendEvent():
                if not self.is_repeated(session, request.ack_id):
                    self._hub.events.send(session, request, now)
            case Invoke():
                self._hub.events.invocations.invoke(session, request, now)
            case CancelInvocation():
                self._hub.events.invocations.cancel(session, request)
            case StartStream():
                self._hub.streams.start(session, request, now)
            case SetGroupState():
                self._hub.group_states.set(session, request, now)
            case SubscribeGroupState():
                self._hub.group_states.watch(session, request)
            case UnsubscribeGroupState():
                self._hub.group_states.unwatch(session, request)

    # -- acks

    def ack(self, session: Session, ack_id: int | None, error: Fault | None = None) -> None:
        if ack_id is not None:
            self._hub.tell(session, Ack(ack_id, error))

    def is_repeated(self, session: Session, ack_id: int | None) -> bool:
        """One that is durable is answered at once; one on its way when it is decided."""
        if ack_id is None or (ack_id not in session.claimed and ack_id not in session.waiting):
            return False
        if ack_id in session.taken:
            self._hub.counts.duplicates += 1
            self.ack(session, ack_id, _duplicate(ack_id))
        else:
            session.waiting[ack_id] = session.waiting.get(ack_id, 0) + 1
        return True

    def taken(self, session: Session, ack_ids: Sequence[int], repeated: Mapping[int, str] = NOTHING) -> None:
        """`repeated` are those whose messages were there already, and the ids under which they were."""
        session.taken.add_all(ack_ids)
        if not repeated and not session.waiting:
            self._hub.tell_taken(session, ack_ids)
            return
        for ack_id in ack_ids:
            self.ack(session, ack_id, _known(repeated[ack_id]) if ack_id in repeated else None)
            if session.waiting:
                for _ in range(session.waiting.pop(ack_id, 0)):
                    self.ack(session, ack_id, _duplicate(ack_id))

    def not_taken(self, session: Session, ack_ids: Sequence[int], failure: Failure) -> None:
        """They hear no more than a hint, so whoever runs the server has to."""
        self._hub.complain("hub-commit", failure)
        self.refuse(session, ack_ids, Fault(ErrorName.INTERNAL, hint(failure)))

    def refuse(self, session: Session, ack_ids: Sequence[int], fault: Fault) -> None:
        """They are forgotten, and may be tried again."""
        for ack_id in ack_ids:
            for _ in range(1 + session.waiting.pop(ack_id, 0)):
                self.ack(session, ack_id, fault)

    def _commit(self, session: Session, puts: Sequence[Put], ack_ids: Sequence[int]) -> None:
        """What stands behind these ackIds, with them."""
        if ack_ids:
            session.claimed.add_all(ack_ids)
            puts = (*puts, session.put_acks(self._hub.hub))
        self._hub.commit_for(
            session,
            (),
            puts,
            lambda results, now: self.taken(session, ack_ids),
            lambda failure: self.not_taken(session, ack_ids, failure),
        )

    # -- messages

    def _publish_all(self, session: Session, requests: Iterable[SendToGroup], now: float) -> None:
        """Nearly all of them are plain, new and to the same group as the one before: those take few steps."""
        hub, id, user, at = self._hub, session.id, session.user, round(now * 1e6)
        group: str | None = None
        target, is_allowed = "", False
        in_order = session.in_order
        is_held = in_order is not None and in_order.is_held
        for request in requests:
            if request.group != group:
                group = request.group
                target, is_allowed = group_target(group), session.may(Permission.SEND_TO_GROUP, group)
            if is_allowed and not is_held and not session.waiting and _is_plain(request):
                ack_id, data = cast(int, request.ack_id), request.data
                name = f"{id}#{ack_id}"
                append = plain_message(hub.stream, name, target, data, at, id, user, hub.accepted, hub.repeated)
                if session.claimed.add(ack_id):
                    session.staged.append(append)
                    session.staged_ids.append(ack_id)
                    if in_order is not None:
                        in_order.last = ack_id
                    continue
            self._publish(session, request, now)

    def _publish(self, session: Session, request: SendToGroup, now: float) -> None:
        ack_id, group = request.ack_id, request.group
        in_order = session.in_order if ack_id is not None else None
        if in_order is not None and ack_id is not None:
            in_order.came(ack_id)
        if self.is_repeated(session, ack_id):
            return
        if not session.may(Permission.SEND_TO_GROUP, group):
            self._forbid(session, ack_id, group, now)
            return
        if in_order is not None and in_order.is_held:
            self.ack(session, ack_id, REFUSED)
            return
        try:
            append = self._message(session, request, now)
        except InputError as error:
            self.ack(session, ack_id, Fault(ErrorName.BAD_REQUEST, error.message))
            return
        session.staged.append(append)
        session.staged_ids.append(ack_id)
        if ack_id is None:
            return
        if append.identity is None:
            session.claimed.add(ack_id)
        else:
            # the acks may not say that it was taken before it is known whether another message has its id
            session.waiting[ack_id] = 0

    def _forbid(self, session: Session, ack_id: int | None, group: str, now: float) -> None:
        """A simple client cannot be told, and would go on talking to nobody."""
        fault = forbidden("send to", group)
        if subprotocol_of(session.subprotocol) is not None:
            self.ack(session, ack_id, fault)
        elif session.peer is not None:
            self._hub.shut(session, CloseCode.POLICY, fault.message)
            self._hub.sessions.close(session, Kind.CANCELLED, fault.message, now)

    def _message(self, session: Session, request: SendToGroup, now: float) -> Append:
        at = round(now * 1e6)
        terms = NO_TERMS
        if request.no_echo or request.ttl_s or request.metadata:
            expires = at + request.ttl_s * 1_000_000 if request.ttl_s else None
            terms = Terms(request.no_echo, expires=expires, metadata=request.metadata)
        own = request.metadata.get(MESSAGE_ID) if request.metadata else None
        target = group_target(request.group)
        identity = digest = None
        if own is not None:
            id, identity, digest = own, id_identity(own), digest_of(target, request.data, _compared(request))
        else:
            id = f"{session.id}#{request.ack_id}" if request.ack_id is not None else self._hub.mint(now)
        blob, chunks = self._hub.keep_body(request.data.body, now)
        append = message(
            self._hub.stream, id, target, request.data,
            at=at, sender=session.id, user=session.user, terms=terms, on_fresh=self._hub.accepted, blob=blob,
            identity=identity, on_duplicate=self._hub.repeated, digest=digest,
        )  # fmt: skip
        session.staged_chunks += chunks
        return append

    def commit_staged(self, session: Session) -> None:
        """All that a session has published in one go is one commit, with its ackIds and its streams in one row."""
        appends, session.staged = session.staged, []
        ids, session.staged_ids = session.staged_ids, []
        chunks, session.staged_chunks = session.staged_chunks, []
        streams, session.staged_streams = session.staged_streams, None
        ack_ids = [ack_id for ack_id in ids if ack_id is not None]

        def done(results: tuple[Result, ...], now: float) -> None:
            if Duplicate in map(type, results):
                self._tell_apart(session, ids, appends, results)
            else:
                self._hub.counts.accepted += len(ids)
                if session.waiting:
                    self._claim_late(session, ack_ids)
                self.taken(session, ack_ids)
            if streams is not None:
                self._hub.streams.taken(session, streams)

        def failed(failure: Failure) -> None:
            if session.in_order is not None and ack_ids:
                session.in_order.hold()
            self.not_taken(session, ack_ids, failure)
            if streams is not None:
                self._hub.streams.not_taken(session, streams, failure)

        puts = (session.put_acks(self._hub.hub),) if ack_ids or streams is not None else ()
        self._hub.commit_for(session, appends, puts, done, failed, more=chunks)

    @staticmethod
    def _claim_late(session: Session, ack_ids: Sequence[int]) -> None:
        """Those of messages with ids of their own were not claimed before. Who asked once is answered once."""
        session.claimed.add_all(ack_ids)
        for ack_id in ack_ids:
            if session.waiting.get(ack_id) == 0:
                del session.waiting[ack_id]

    def _tell_apart(
        self, session: Session, ids: Sequence[int | None], appends: Sequence[Append], results: Sequence[Result]
    ) -> None:
        """Some were there already, or another message has their id. The ackIds of these are forgotten: who did not hear
        the answer asks again, and hears the same."""
        taken: list[int] = []
        repeated: dict[int, str] = {}
        conflicts: dict[int, str] = {}
        counts = self._hub.counts
        for ack_id, append, result in zip(ids, appends, results, strict=False):
            is_new = not isinstance(result, Duplicate)
            differs = isinstance(result, Duplicate) and result.differs
            counts.accepted += is_new
            counts.duplicates += not is_new and not differs
            if ack_id is None:
                if differs:
                    fault = _taken_by_another(append.envelope.id)
                    self._hub.notify("id-conflict", f"a message of {session.id} is lost: {fault.message}")
                continue
            if differs:
                conflicts[ack_id] = append.envelope.id
                continue
            taken.append(ack_id)
            if not is_new:
                repeated[ack_id] = append.envelope.id
        session.claimed.add_all(taken)
        self.taken(session, taken, repeated)
        for ack_id, id in conflicts.items():
            self.refuse(session, [ack_id], _taken_by_another(id))

    # -- groups

    def _change_group(self, session: Session, request: JoinGroup | LeaveGroup, kind: RecordKind, now: float) -> None:
        ack_id, group = request.ack_id, request.group
        if self.is_repeated(session, ack_id):
            return
        if not session.may(Permission.JOIN_LEAVE_GROUP, group):
            self.ack(session, ack_id, forbidden("join" if kind == RecordKind.JOIN else "leave", group))
            return
        ack_ids = [ack_id] if ack_id is not None else []
        is_join = kind == RecordKind.JOIN
        if session.is_settled(group, is_join):
            puts = (session.put_row(self._hub.hub, session.row()),) if session.owes_row else ()
            if ack_ids or puts:
                self._commit(session, puts, ack_ids)
            return
        if is_join and not session.has_room_for((group,), self._hub.tail.offset):
            self.ack(session, ack_id, Fault(ErrorName.BAD_REQUEST, TOO_MANY_GROUPS))
            return
        if ack_id is not None:
            # the acks may not say so before it is durable from where on it holds
            session.waiting[ack_id] = 0
        self._hub.change_group(
            session,
            group,
            kind,
            now,
            lambda puts: self._commit(session, puts, ack_ids),
            lambda failure: self.not_taken(session, ack_ids, failure),
        )


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


def _duplicate(ack_id: int) -> Fault:
    return Fault(ErrorName.DUPLICATE, f"Message with ack-id: {ack_id} has been processed")


def _known(id: str) -> Fault:
    """Whoever brought it."""
    return Fault(ErrorName.DUPLICATE, f"Message with {MESSAGE_ID}: {id} has been processed")


def _taken_by_another(id: str) -> Fault:
    return Fault(ErrorName.CONFLICT, f"{MESSAGE_ID} {id} was used for another message; give each message its own")


def forbidden(verb: str, group: str) -> Fault:
    return Fault(ErrorName.FORBIDDEN, f"The client does not have permission to {verb} group '{group}'.")
