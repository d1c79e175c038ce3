"""Events on their way to the handlers of a hub: delivered at least once, and as far as HTTP allows not twice.

    a row       an event is a row of the queue `hub/<hub>/events`, and durable before its handler is called: what
                clients send is a commit of its own, what happens to a connection is in the commit that makes it happen
    a claim     whoever has claimed the row calls the handler, with the rows of one connection one after the other, in
                the order in which they came about
    an end      the handler's message to the client, the new state of the connection, the ackId and the end of the row
                are one commit. The client gets the message, and then the ack of its event

A row whose claim has run out was left by a process that died. It is claimed by the node that has the session, or by any
if there is no session any more: then the handler is called all the same, and nobody gets its answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from semel.cloudevents import MESSAGE_ID
from semel.errors import InputError, StoreError
from semel.kernel.effects import CommitUnknown
from semel.kernel.envelope import DATA_INLINE_BYTES_MAX, Blob, Envelope
from semel.kernel.lease import renew_at
from semel.kernel.ledger import Event as LedgerEvent
from semel.kernel.ledger import Kind, message_event
from semel.kernel.ops import (
    Append,
    Claim,
    Claimed,
    Enqueue,
    Finish,
    Fresh,
    Log,
    Op,
    Put,
    Renew,
    Result,
    Stale,
    WorkRow,
    WorkState,
)
from semel.kernel.text import check_id
from semel.pubsub.events.cloudevents import (
    NO_HANDLER,
    NOT_TAKEN,
    Family,
    HandlerAnswered,
    HandlerFailed,
    PendingEvent,
    Reply,
    connected_event,
    decode_event,
    disconnected_event,
    encode_event,
    event_id,
    failure_answer,
    joined_event,
    left_event,
    read_notification,
    read_user_event,
    user_event,
)
from semel.pubsub.events.handler_calls import (
    HANDLERS,
    Fetch,
    Fetched,
    HandlerCalls,
    Invocations,
    Replied,
    Timers,
    client_of,
    micros,
)
from semel.pubsub.events.handlers import Handlers, SystemEvent
from semel.pubsub.hub.closing import Closing
from semel.pubsub.hub.commits import Failure, hint, nothing_more
from semel.pubsub.hub.context import HubContext, SessionCommits
from semel.pubsub.hub.outgoing import ClientAcks, Outgoing
from semel.pubsub.hub.records import NO_TERMS, DeliveryTerms, chunks_of, connection_target, message
from semel.pubsub.hub.roster import Elsewhere, Here, Roster
from semel.pubsub.hub.session import Session
from semel.pubsub.hub.tail import Tail
from semel.pubsub.protocol.messages import ErrorName, Fault, SendEvent
from semel.websocket import CloseCode

LEASE_S = 15.0
"""After this time others may claim what a dead process had claimed."""
SWEEP_S = 5.0
SWEEP_ROWS = 100
AGAIN_S = 1.0
DEAD_KEEP_S = 24 * 3600.0
FETCHES_MAX = 10
EVENTS_MAX = 1_000
EVENTS_BYTES_MAX = 16 * 1024 * 1024
"""How many may wait for one session, and how much they may bring. One is always taken."""

TOO_MANY = "too many events wait for their handlers"


@dataclass(slots=True, eq=False)
class _Held:
    """A row that is claimed here. The token is what its call goes by."""

    row: WorkRow
    token: str

    @property
    def connection(self) -> str:
        assert self.row.key is not None
        return self.row.key


class _Open(NamedTuple):
    """An event of a client that waits for its handler."""

    ack_id: int | None
    size: int


class _End(NamedTuple):
    """The end of a row. `again` is called if the store does not take it."""

    held: _Held
    again: Callable[[float], None]


class Events:
    """A part of a hub. Without handlers no events are kept, and what clients send is refused."""

    def __init__(
        self,
        context: HubContext,
        outgoing: Outgoing,
        tail: Tail,
        roster: Here,
        elsewhere: Roster[Elsewhere],
        commits: SessionCommits,
        acks: ClientAcks,
        closing: Closing,
        handlers: Handlers,
    ) -> None:
        self._context, self._tail, self._roster, self._elsewhere = context, tail, roster, elsewhere
        self._commits, self._acks, self._closing, self._handlers = commits, acks, closing, handlers
        self.queue = f"{context.stream}/events"
        self._timers = Timers()
        self._calls = HandlerCalls(context, self._timers)
        self.invocations = Invocations(context, outgoing, commits, self._calls, handlers)
        self._accepted = LedgerEvent(Kind.ACCEPTED, f"client>{self.queue}")
        self._repeated = LedgerEvent(Kind.DUPLICATE, f"client>{self.queue}")
        self._held: dict[str, _Held] = {}
        self._fetching: dict[str, _Held] = {}
        self._open: dict[str, dict[str, _Open]] = {}
        if handlers.handlers:
            self._timers.at(0.0, self._sweep)

    # -- time

    def next_deadline(self) -> float | None:
        return self._timers.next()

    def on_timer(self, now: float) -> None:
        self._timers.run(now)

    # -- what happens to a connection: to be committed with it, and looked after then

    def on_open(self, session: Session, now: float) -> list[Op]:
        if not self._wants(SystemEvent.CONNECTED):
            return []
        return [self._enqueue(connected_event(client_of(self._context.hub, session), micros(now)))]

    def on_close(self, session: Session, reason: str, now: float) -> list[Op]:
        """The session is over. Its events that are left go to their handlers, but nobody waits for the answers."""
        self.invocations.end(session.id)
        self._open.pop(session.id, None)
        if not self._wants(SystemEvent.DISCONNECTED):
            return []
        event = disconnected_event(client_of(self._context.hub, session), self._context.mint(now), micros(now), reason)
        return [self._enqueue(event)]

    def on_join(self, session: Session, group: str, now: float) -> list[Op]:
        if not self._wants(SystemEvent.JOINED):
            return []
        return [
            self._enqueue(
                joined_event(client_of(self._context.hub, session), self._context.mint(now), micros(now), group)
            )
        ]

    def on_leave(self, session: Session, group: str, now: float) -> list[Op]:
        if not self._wants(SystemEvent.LEFT):
            return []
        return [
            self._enqueue(
                left_event(client_of(self._context.hub, session), self._context.mint(now), micros(now), group)
            )
        ]

    def claim_next(self, connection: str) -> None:
        """There may be an event of this connection to hand to its handler."""
        if connection not in self._held and self._handlers.handlers:
            self._context.commit((self._claim(connection),), self._claimed, self._not_claimed)

    def release(self, connection: str) -> None:
        """Another node has the session, and finds the events that are left when our claim has run out."""
        self._open.pop(connection, None)
        held = self._held.pop(connection, None)
        if held is not None:
            self._calls.cancel(held.token)
        self.invocations.end(connection)

    def _wants(self, event: SystemEvent) -> bool:
        return self._handlers.for_system_event(event) is not None

    # -- what clients send

    def send(self, session: Session, request: SendEvent, now: float) -> None:
        """An ackId that came before must have been looked at."""
        ack_id = request.ack_id
        own_id = request.metadata.get(MESSAGE_ID) if request.metadata else None
        try:
            if own_id is not None:
                check_id(MESSAGE_ID, own_id)
        except InputError as error:
            self._acks.answer(session, ack_id, Fault(ErrorName.BAD_REQUEST, error.message))
            return
        client, id = client_of(self._context.hub, session), event_id(self._context.mint(now), ack_id)
        event = user_event(client, id, micros(now), request.event, request.data, request.metadata, ack_id)
        if self._handlers.for_user_event(request.event) is None:
            self._give_up(event, session, NO_HANDLER, now)
            return
        mine = self._open.setdefault(session.id, {})
        size = len(request.data.body)
        if len(mine) >= EVENTS_MAX or (mine and size + sum(each.size for each in mine.values()) > EVENTS_BYTES_MAX):
            self._give_up(event, session, TOO_MANY, now)
            return
        mine[event.identity] = _Open(ack_id, size)
        if ack_id is not None:
            session.acks.wait_for(ack_id)
        self._store(session, event, now)

    def _store(self, session: Session, event: PendingEvent, now: float) -> None:
        """The row of an event that failed before, or that was left by another process, is opened again. The acks are
        written only to be refused if another node has the session."""
        stored = encode_event(event)
        blob, chunks = None, []
        if len(stored) > DATA_INLINE_BYTES_MAX:
            blob = Blob(f"{self.queue}/{self._context.mint(now)}", len(stored))
            chunks = chunks_of(blob, stored)
        envelope = self._envelope(event, stored, blob)
        enqueue = Enqueue(
            self.queue, event.identity, envelope, session.id, replace=True,
            on_fresh=_arrival(self._accepted, envelope, event), on_duplicate=_arrival(self._repeated, envelope, event),
        )  # fmt: skip

        def failed(failure: Failure) -> None:
            self._ended(session.id, event.identity)
            self._context.report_once("hub-commit", failure)
            self._give_up(event, self._roster.get(session.id), hint(failure), now)

        puts = (session.put_acks(self._context.hub),)
        more: tuple[Op, ...] = (*chunks, enqueue, self._claim(session.id))
        self._commits.commit(session, (), puts, self._claimed, failed, more)

    def _envelope(self, event: PendingEvent, stored: bytes, blob: Blob | None = None) -> Envelope:
        """Its id is the application's, where there is one: so the ledger tells of it by one name over all hops."""
        data, id = stored if blob is None else b"", event.own_id or event.identity
        return Envelope(id, event.client.connection, event.type, data, time=event.at, blob=blob)

    def _enqueue(self, event: PendingEvent) -> Enqueue:
        envelope = self._envelope(event, encode_event(event))
        return Enqueue(self.queue, event.identity, envelope, event.client.connection, on_fresh=self._accepted)

    # -- claims

    def _claim(self, connection: str) -> Claim:
        return Claim(self.queue, self._context.node, lease_s=LEASE_S, key=connection)

    def _claimed(self, results: tuple[Result, ...], now: float) -> None:
        """The last op was a claim."""
        claimed = results[-1]
        assert isinstance(claimed, Claimed)
        for row in claimed.rows:
            self._take(row, now)

    def _not_claimed(self, failure: Failure, now: float) -> None:
        self._context.report("event-claim", failure)

    def _sweep(self, now: float) -> None:
        """What others have left behind."""

        def done(results: tuple[Result, ...], now: float) -> None:
            self._claimed(results, now)
            [claimed] = results
            is_all = isinstance(claimed, Claimed) and len(claimed.rows) < SWEEP_ROWS
            self._timers.at(now + (SWEEP_S if is_all else AGAIN_S), self._sweep)

        def failed(failure: Failure, now: float) -> None:
            self._not_claimed(failure, now)
            self._timers.at(now + SWEEP_S, self._sweep)

        self._context.commit((Claim(self.queue, self._context.node, SWEEP_ROWS, LEASE_S),), done, failed)

    def _take(self, row: WorkRow, now: float) -> None:
        held = self._held.get(row.key or "")
        if held is not None and held.row.identity == row.identity:
            # its claim ran out while the handler was called, or the client has sent it again: the same call will do
            held.row = row
            return
        held = _Held(row, f"{row.identity}/{row.fence}")
        if self._elsewhere.get(held.connection) is not None:
            self._let_go(held)
            return
        self._held[held.connection] = held
        self._renew_later(held, now)
        if row.envelope.blob is None:
            self._begin(held, row.envelope.data, now)
        else:
            self._fetching[held.token] = held
            self._context.send(HANDLERS, Fetch(held.token, row.envelope.blob.name))

    def _let_go(self, held: _Held) -> None:
        """The node that has the session will take it."""
        back = Finish(self.queue, held.row.identity, WorkState.READY, held.row.fence)
        self._context.commit((back,), nothing_more, self._not_claimed)

    def _renew_later(self, held: _Held, now: float) -> None:
        """A timer outlives most events, so it holds no more of them than their names."""
        connection, token = held.connection, held.token
        self._timers.at(renew_at(now, LEASE_S), lambda now: self._renew(connection, token, now))

    def _renew(self, connection: str, token: str, now: float) -> None:
        held = self._held.get(connection)
        if held is None or held.token != token:
            return
        self._renew_later(held, now)
        renew = Renew(self.queue, held.row.identity, held.row.fence, LEASE_S)
        self._context.commit((renew,), nothing_more, lambda failure, now: self._not_renewed(held, failure))

    def _not_renewed(self, held: _Held, failure: Failure) -> None:
        """Only `Stale` says that the row is not ours any more; the store may just be busy."""
        if _is_stale(failure):
            self._forget(held)

    def _forget(self, held: _Held) -> None:
        """Somebody else has the row. A client that sends the event again makes a new one."""
        if self._held.get(held.connection) is not held:
            return
        del self._held[held.connection]
        self._calls.cancel(held.token)
        session, ack_id = self._roster.get(held.connection), self._ended(held.connection, held.row.identity)
        if session is not None and ack_id is not None:
            session.acks.take_repeats(ack_id)

    # -- calling handlers

    def receive(self, message: Replied | Fetched, now: float) -> None:
        if isinstance(message, Replied):
            self._calls.receive_reply(message, now)
            return
        held = self._fetching.pop(message.token, None)
        if held is not None and self._held.get(held.connection) is held:
            self._fetched(held, message.stored, now)

    def _fetched(self, held: _Held, stored: bytes | None, now: float) -> None:
        if stored is not None:
            self._begin(held, stored, now)
        elif held.row.attempts < FETCHES_MAX:
            # the claim runs out by itself
            del self._held[held.connection]
        else:
            self._finish_unreadable(held, "its body cannot be read", now)

    def _begin(self, held: _Held, stored: bytes, now: float) -> None:
        """The state of the connection is what handlers have last set, also since the event was stored."""
        try:
            event = decode_event(stored)
        except StoreError as error:
            self._finish_unreadable(held, error.message, now)
            return
        session = self._roster.get(held.connection)
        if session is not None:
            event = msgspec.structs.replace(event, client=client_of(self._context.hub, session))
            if event.ack_id is not None:
                opened = _Open(event.ack_id, len(stored))
                self._open.setdefault(held.connection, {}).setdefault(event.identity, opened)
                session.acks.wait_for(event.ack_id)
        handler = event.handler(self._handlers)
        if handler is None:
            self._answer(held, event, HandlerFailed(NO_HANDLER), now)
            return
        read = read_user_event if event.family is Family.USER else read_notification

        def then(reply: Reply, now: float) -> None:
            self._answer(held, event, read(reply), now)

        self._calls.begin(held.token, event, handler, now, then)

    # -- what became of it

    def _answer(self, held: _Held, event: PendingEvent, answer: HandlerAnswered | HandlerFailed, now: float) -> None:
        """Tried again until it is in the store, or somebody else has the row."""
        if self._held.get(held.connection) is not held:
            return
        end = _End(held, lambda now: self._answer(held, event, answer, now))
        session = self._roster.get(held.connection)
        if isinstance(answer, HandlerFailed):
            self._finish_failed(end, event, answer, session, now)
        elif session is not None and event.family is Family.USER:
            self._finish_for(end, event, answer, session, now)
        else:
            self._finish(end, self._ops(held, WorkState.DONE, Kind.HANDLED), now)

    def _finish_for(
        self, end: _End, event: PendingEvent, answer: HandlerAnswered, session: Session, now: float
    ) -> None:
        appends, chunks = self._message(answer, session, now)
        puts: list[Put] = []
        before = session.state
        if answer.state is not None and answer.state != before:
            session.state = answer.state
            puts.append(session.put_row(self._context.hub, session.row()))
        if event.ack_id is not None:
            session.acks.claimed.add(event.ack_id)
            puts.append(session.put_acks(self._context.hub))

        def done(results: tuple[Result, ...], now: float) -> None:
            self._take_next(end.held, results, now)
            if event.ack_id is not None:
                ack_ids, first = [event.ack_id], results[0]
                offset = first.position.offset if isinstance(first, Fresh) else 0
                self._tail.when_applied(offset, lambda: self._acks.accept(session, ack_ids))

        def failed(failure: Failure) -> None:
            session.state = before
            self._not_finished(end, failure, now)

        more = (*chunks, *self._ops(end.held, WorkState.DONE, Kind.HANDLED), self._claim(session.id))
        self._commits.commit(session, appends, puts, done, failed, more)

    def _message(self, answer: HandlerAnswered, session: Session, now: float) -> tuple[list[Append], Sequence[Op]]:
        """The handler's message to the client, as a record for it alone."""
        if answer.data is None:
            return [], ()
        blob, chunks = self._tail.keep_body(answer.data.body, self._context.mint, now)
        append = message(
            self._context.stream, self._context.mint(now), connection_target(session.id), answer.data,
            at=micros(now), sender=HANDLERS, user=None, on_fresh=self._context.accepted, blob=blob,
            terms=DeliveryTerms(metadata=answer.metadata) if answer.metadata else NO_TERMS,
        )  # fmt: skip
        return [append], chunks

    def _finish_failed(
        self, end: _End, event: PendingEvent, answer: HandlerFailed, session: Session | None, now: float
    ) -> None:
        """A client that gets the error may try again. What nobody else knows of is kept for a while."""
        is_known = session is not None and event.ack_id is not None
        to, kind = (WorkState.DONE, Kind.DISCARDED) if is_known else (WorkState.DEAD, Kind.DEAD_LETTERED)

        def then(now: float) -> None:
            self._context.notify("event-failed", f"{event.name} of {end.held.connection} is given up: {answer.cause}")
            self._give_up(event, self._roster.get(end.held.connection), NOT_TAKEN, now)

        self._finish(end, self._ops(end.held, to, kind, answer.cause), now, then)

    def _finish_unreadable(self, held: _Held, cause: str, now: float) -> None:
        if self._held.get(held.connection) is not held:
            return
        self._context.notify("event-unreadable", f"{held.row.identity}: {cause}")
        end = _End(held, lambda now: self._finish_unreadable(held, cause, now))
        opened = self._open.get(held.connection, {}).get(held.row.identity)
        ack_id = opened.ack_id if opened is not None else None

        def then(now: float) -> None:
            session = self._roster.get(held.connection)
            if session is not None and ack_id is not None:
                self._acks.refuse(session, [ack_id], Fault(ErrorName.INTERNAL, NOT_TAKEN))

        self._finish(end, self._ops(held, WorkState.DEAD, Kind.DEAD_LETTERED, cause), now, then)

    def _finish(
        self, end: _End, ops: Sequence[Op], now: float, then: Callable[[float], None] = lambda now: None
    ) -> None:
        """Nothing changes for the session. If it is here, nothing may stay in doubt: its client may be waiting."""

        def done(results: tuple[Result, ...], now: float) -> None:
            self._take_next(end.held, results, now)
            then(now)

        def failed(failure: Failure) -> None:
            self._not_finished(end, failure, now)

        session = self._roster.get(end.held.connection)
        ops = (*ops, self._claim(end.held.connection))
        if session is not None:
            self._commits.commit(session, (), (), done, failed, ops)
        else:
            self._context.commit(ops, done, lambda failure, now: failed(failure))

    def _ops(self, held: _Held, to: WorkState, kind: Kind, cause: str | None = None) -> tuple[Finish, Log]:
        row = held.row
        keep_s = DEAD_KEEP_S if to is WorkState.DEAD else 0.0
        delivery = row.identity if row.identity != row.envelope.id else None
        event = message_event(
            kind, f"{self.queue}>handler", "", row.envelope, delivery=delivery, attempt=row.attempts, cause=cause
        )
        return Finish(self.queue, row.identity, to, row.fence, keep_s=keep_s, cause=cause), Log(event)

    def _take_next(self, held: _Held, results: tuple[Result, ...], now: float) -> None:
        """The commit that ended a row has claimed the next one of its connection."""
        if self._held.get(held.connection) is held:
            del self._held[held.connection]
        self._ended(held.connection, held.row.identity)
        self._claimed(results, now)

    def _not_finished(self, end: _End, failure: Failure, now: float) -> None:
        """In doubt a second try finds out: then the row is not ours any more."""
        if _is_stale(failure):
            self._forget(end.held)
        else:
            self._context.report("event-end", failure)
            self._timers.at(now + AGAIN_S, end.again)

    def _ended(self, connection: str, identity: str) -> int | None:
        """Returns its ackId, if it has one."""
        mine = self._open.get(connection, {})
        opened = mine.pop(identity, None)
        if not mine:
            self._open.pop(connection, None)
        return opened.ack_id if opened is not None else None

    def _give_up(self, event: PendingEvent, session: Session | None, why: str, now: float) -> None:
        """Say so to the client, as far as it listens."""
        if session is None or event.family is not Family.USER:
            return
        match failure_answer(event, why):
            case Fault() as fault:
                assert event.ack_id is not None
                self._acks.refuse(session, [event.ack_id], fault)
            case CloseCode() as code:
                self._closing.expel(session, code, why, now)


def _arrival(template: LedgerEvent, envelope: Envelope, event: PendingEvent) -> LedgerEvent:
    """With an id of the application's own the ledger says as well which of its deliveries this is."""
    if event.own_id is None:
        return template
    return message_event(template.kind, template.hop, "", envelope, delivery=event.identity)


def _is_stale(failure: Failure) -> bool:
    results = () if isinstance(failure, CommitUnknown) else failure.results
    return any(isinstance(result, Stale) for result in results)
