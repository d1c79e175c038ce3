"""The two machines of every reliable hop: `Sender` and `Receiver`.

The sender follows a stream with a cursor and keeps sending until each record is confirmed. The receiver commits what
arrives and confirms it only in answer to `Committed`. Between them may lie any link: one that loses, doubles, delays
and reorders. Both may be killed at any point; what they need afterwards is in the store.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

import msgspec

from semel.errors import EpochChanged, SemelError, StoreError, StoreRefused
from semel.kernel.dedup import Early, GapAsked, GapPolicy, MonotonicIndex, Overflow, Passed, Repeated, StrictIndex
from semel.kernel.effects import (
    Close,
    Commit,
    CommitFailed,
    Committed,
    CommitUnknown,
    Effect,
    Event,
    Load,
    Loaded,
    LoadFailed,
    Notify,
    PeerConnected,
    Read,
    ReadDone,
    ReadFailed,
    ReadTrimmed,
    Received,
    Resume,
    Send,
)
from semel.kernel.envelope import Envelope
from semel.kernel.ledger import Event as LedgerEvent
from semel.kernel.ledger import Kind, fold_ids, message_event
from semel.kernel.ops import Advance, Append, Conflict, Enqueue, Log, Op, Put
from semel.kernel.position import Position
from semel.kernel.resend import GaveUp, Resend, ResendPolicy, Transmit
from semel.kernel.store import Record
from semel.kernel.text import clean_cause

RESENT_LOGGED_MAX = 100
SESSIONS_MAX = 10_000
"""How many sessions a receiver keeps in memory. Those that rest are let go, and loaded again when they are needed."""
READ_AGAIN_S = 1.0


class HopMessage(msgspec.Struct, frozen=True, tag="message", omit_defaults=True):
    """A record on the wire. `delivery` names it on this hop and is the same on every attempt.

    `floor`: everything below this index is settled as far as the sender is concerned, confirmed or given up; 0 when the
    sender does not say. A receiver that goes by the index and has lost its memory goes on from there.
    """

    delivery: str
    envelope: Envelope
    index: int
    attempt: int = 1
    floor: int = 0


class Confirm(msgspec.Struct, frozen=True, tag="confirm"):
    """The receiver has these deliveries, durably."""

    deliveries: tuple[str, ...]


class AskForGap(msgspec.Struct, frozen=True, tag="ask"):
    """The receiver misses the indexes `first..last` of a session: send them now rather than at the next timeout.

    A receiver that goes by the hop's own index has no session to name: then `session` is empty.
    """

    session: str
    first: int
    last: int


Wire = HopMessage | Confirm | AskForGap


@dataclass(frozen=True, slots=True)
class SenderConfig:
    """`stream` is followed by `cursor`; `hop` and `pipeline` name the hop in the ledger."""

    name: str
    stream: str
    peer: str
    hop: str
    pipeline: str = ""
    policy: ResendPolicy = field(default_factory=ResendPolicy)
    seed: int = 0

    @property
    def cursor(self) -> str:
        return f"send/{self.name}"


class Sender:
    """Follows a stream and sends each record until it is confirmed. One cursor remembers how far all is confirmed."""

    def __init__(self, config: SenderConfig, cursor: Position | None) -> None:
        self.name = config.name
        self.config = config
        self._cursor = cursor
        self._read_to = cursor
        self._reading = False
        self._read_again_at: float | None = None
        self._stopped = False
        self._blocked: Record | None = None
        self._resend: Resend[Record] = Resend(config.policy, seed=config.seed)
        self._order: deque[Record] = deque()
        self._confirmed: set[int] = set()
        self._resent: list[LedgerEvent] = []
        self._token = 0
        self._committing: tuple[int, Position] | None = None

    @property
    def unconfirmed(self) -> int:
        return len(self._resend)

    @property
    def cursor(self) -> Position | None:
        """Everything up to here is confirmed, and the store knows it."""
        return self._cursor

    def awaits(self, after: Position | None) -> bool:
        """Whether it has asked for the records after that position and not yet got them."""
        return self._reading and after == self._read_to

    @property
    def suspended(self) -> GaveUp | None:
        if self._blocked is not None:
            return GaveUp(_delivery(self._blocked), 0)
        return self._resend.suspended

    def start(self, now: float) -> Sequence[Effect]:
        return self._read_more()

    def receive(self, event: Event, now: float) -> Sequence[Effect]:
        match event:
            case ReadDone(records=records):
                return self._take(records, now)
            case Received(peer=peer) | PeerConnected(peer=peer) if peer != self.config.peer:
                # nobody else can know what the peer has
                return ()
            case Received(message=Confirm(deliveries=deliveries)):
                return self._confirm(deliveries, now)
            case Received(message=AskForGap() as ask):
                return self._send_again(self._resend.resend_all(now)) if self._asked_for(ask) else ()
            case Committed(token=token):
                return self._advanced(token)
            case CommitFailed(results=results) if any(isinstance(result, Conflict) for result in results):
                return self._reload()
            case CommitFailed(token=token) | CommitUnknown(token=token):
                # the cursor only says how much need not be sent again: a later advance covers what this one lost
                if self._is_advance(token):
                    self._committing = None
                    self._read_again_at = now + READ_AGAIN_S
                return ()
            case PeerConnected():
                return self._send_again(self._resend.resend_all(now))
            case Resume():
                return self._resume(now)
            case ReadTrimmed(first=first):
                return self._stop("trimmed", f"records before {first} were trimmed before {self.name} had sent them")
            case ReadFailed(error=EpochChanged() as error):
                return self._stop("epoch-changed", str(error))
            case ReadFailed():
                self._reading = False
                self._read_again_at = now + READ_AGAIN_S
                return ()
        return ()

    def next_deadline(self) -> float | None:
        deadlines = [at for at in (self._resend.next_deadline(), self._read_again_at) if at is not None]
        return None if self._stopped else min(deadlines, default=None)

    def on_timer(self, now: float) -> Sequence[Effect]:
        effects: list[Effect] = []
        if self._read_again_at is not None and now >= self._read_again_at:
            self._read_again_at = None
            effects += self._read_more()
            effects += self._advance()
        for outcome in self._resend.on_timer(now):
            effects += self._suspend(outcome) if isinstance(outcome, GaveUp) else self._send_again([outcome])
        return effects

    def _read_more(self) -> list[Effect]:
        room = self.config.policy.window - len(self._order)
        if self._reading or self._stopped or room <= 0 or self.suspended is not None:
            return []
        self._reading = True
        return [Read(self.config.stream, self._read_to, room)]

    def _take(self, records: Sequence[Record], now: float) -> list[Effect]:
        self._reading = False
        effects: list[Effect] = []
        for record in records:
            if record.envelope.blob is not None:
                # the records behind it are dropped here and read again after the resume, from `_read_to`
                return effects + self._block(record)
            self._read_to = record.position
            self._order.append(record)
            effects += self._send(self._resend.offer(_delivery(record), record, now))
        return effects + self._read_more()

    def _block(self, record: Record) -> list[Effect]:
        """A body in chunks cannot cross a hop, and going on would leave it behind in silence: read no further.

        What was sent before goes on until it is confirmed.
        """
        self._blocked = record
        self._token += 1
        cause = "its body is kept in chunks, which cannot cross a hop"
        detail = (
            f"{self.name} stands before {record.position}: {cause}; publish it again with its body in the message, "
            f"advance the cursor {self.config.cursor} past it, and resume"
        )
        event = self._event(Kind.SUSPENDED, record, cause=cause)
        return [Commit((Log(event),), self._token, chain=None), Notify("suspended", detail, record.envelope.id)]

    def _send(self, transmits: Sequence[Transmit[Record]]) -> list[Effect]:
        return [Send(self.config.peer, self._message(transmit)) for transmit in transmits]

    def _message(self, transmit: Transmit[Record]) -> HopMessage:
        floor = (self._cursor.offset if self._cursor is not None else 0) + 1
        return HopMessage(transmit.id, transmit.item.envelope, transmit.item.position.offset, transmit.attempt, floor)

    def _send_again(self, transmits: Sequence[Transmit[Record]]) -> list[Effect]:
        for transmit in transmits:
            if len(self._resent) < RESENT_LOGGED_MAX:
                self._resent.append(self._event(Kind.RESENT, transmit.item, attempt=transmit.attempt))
        return self._send(transmits)

    def _confirm(self, deliveries: Sequence[str], now: float) -> list[Effect]:
        effects: list[Effect] = []
        for delivery in deliveries:
            first, transmits = self._resend.confirm(delivery, now)
            if first:
                self._confirmed.add(_offset(delivery))
                effects += self._send(transmits)
        return effects + self._advance()

    def _advance(self) -> list[Effect]:
        """Commit the cursor over the confirmed prefix: never over a gap, and one commit at a time."""
        if self._committing is not None:
            return []
        prefix: list[Record] = []
        for record in self._order:
            if record.position.offset not in self._confirmed:
                break
            prefix.append(record)
        if not prefix:
            return []
        assert self._cursor is None or prefix[0].position.offset > self._cursor.offset, "a cursor moves forward"
        self._token += 1
        position = prefix[-1].position
        self._committing = self._token, position
        # only from where this sender believes the cursor to be, so that each record is confirmed once in the ledger
        expected = self._cursor.offset if self._cursor is not None else 0
        advance = Advance(self.config.cursor, position, expected=expected)
        ops: list[Op] = [advance, Log(self._confirmed_range(prefix))]
        ops += [Log(event) for event in self._resent]
        self._resent = []
        return [Commit(tuple(ops), self._token)]

    def _is_advance(self, token: int) -> bool:
        """The cursor's own commit: those that only write to the ledger have tokens of their own."""
        return self._committing is not None and self._committing[0] == token

    def _advanced(self, token: int) -> list[Effect]:
        if self._committing is None or not self._is_advance(token):
            return []
        self._cursor, self._committing = self._committing[1], None
        while self._order and self._order[0].position.offset <= self._cursor.offset:
            self._confirmed.discard(self._order.popleft().position.offset)
        return self._advance() + self._read_more()

    def _confirmed_range(self, records: Sequence[Record]) -> LedgerEvent:
        first, last = records[0].position, records[-1].position
        return LedgerEvent(
            Kind.CONFIRMED,
            self.config.hop,
            self.config.pipeline,
            peer=self.config.peer,
            stream=first.stream,
            epoch=first.epoch,
            first=first.offset,
            last=last.offset,
            n=len(records),
            fold=fold_ids(record.envelope.id for record in records),
        )

    def _event(self, kind: Kind, record: Record, *, attempt: int = 1, cause: str | None = None) -> LedgerEvent:
        config, delivery = self.config, _delivery(record)
        return message_event(
            kind, config.hop, config.pipeline, record.envelope,
            delivery=delivery, peer=config.peer, attempt=attempt, cause=cause,
        )  # fmt: skip

    def _suspend(self, gave_up: GaveUp) -> list[Effect]:
        # still there: only a confirmed record leaves `_order`, and this one was given up without a confirm
        record = next(record for record in self._order if _delivery(record) == gave_up.id)
        self._token += 1
        cause = f"no confirm after {gave_up.attempts} attempts"
        event = self._event(Kind.SUSPENDED, record, attempt=gave_up.attempts, cause=cause)
        return [
            Commit((Log(event),), self._token),
            Notify("suspended", f"{self.name}: {cause}; resume it when {self.config.peer} is back", record.envelope.id),
        ]

    def _resume(self, now: float) -> list[Effect]:
        if self._blocked is not None:
            # only the store knows whether somebody has moved the cursor past it
            self._token += 1
            resumed = Log(self._event(Kind.RESUMED, self._blocked))
            return [Commit((resumed,), self._token, chain=None), *self._reload()]
        if self._resend.suspended is None:
            return []
        given_up = self._resend.suspended.id
        sends = [*self._send_again(self._resend.resume(now)), *self._read_more()]
        record = next((record for record in self._order if _delivery(record) == given_up), None)
        if record is None:
            # its confirm came late, and the cursor has moved past it: nothing is left to resume, only the rest
            return sends
        self._token += 1
        return [Commit((Log(self._event(Kind.RESUMED, record)),), self._token), *sends]

    def _reload(self) -> list[Effect]:
        """Another sender has moved the cursor, or the store is in a new epoch: begin again where the store says."""
        self._stopped = True
        return [Close("reload")]

    def _asked_for(self, ask: AskForGap) -> bool:
        return ask.session == "" or any(_session(record.envelope) == ask.session for record in self._order)

    def _stop(self, topic: str, detail: str) -> list[Effect]:
        """Going on would skip records in silence, so the sender stops and says so."""
        self._stopped = True
        return [Notify(topic, detail), Close(topic)]


class ReceiveOrder(Enum):
    """How a receiver tells new from old, and in which order it lets messages pass."""

    ID = "id"
    MONOTONIC = "monotonic"
    STRICT = "strict"


@dataclass(frozen=True, slots=True)
class ReceiverConfig:
    """Messages go to the stream, or to the work queue when `queue` is set (one key per session).

    ID dedups by the application's id in the store. MONOTONIC and STRICT dedup by index: by the producer's index within
    its session, or by the hop's own index when `hop_index` is set, which makes each peer one session. By the producer's
    index a message without a session has no place and is rejected.
    """

    name: str
    hop: str
    stream: str = ""
    queue: str = ""
    pipeline: str = ""
    order: ReceiveOrder = ReceiveOrder.ID
    hop_index: bool = False
    buffer_max: int = 1000
    gap: GapPolicy = field(default_factory=GapPolicy)


@dataclass(slots=True)
class _Session:
    """What the receiver knows of one session. `version` runs ahead of the store while commits are under way."""

    index: StrictIndex[tuple[str, HopMessage]] | MonotonicIndex
    version: int


class Receiver:
    """Commits what arrives, once, and confirms it when it is durable."""

    def __init__(self, config: ReceiverConfig) -> None:
        self.name = config.name
        self.config = config
        self._token = 0
        self._pending: dict[int, tuple[str | None, list[tuple[str, str]]]] = {}
        self._undecided: set[tuple[str, str]] = set()
        self._arrivals: dict[int, tuple[LedgerEvent, ...]] = {}
        self._sessions: dict[str, _Session] = {}
        self._loading: dict[str, list[tuple[str, HopMessage]]] = {}

    def start(self, now: float) -> Sequence[Effect]:
        return ()

    def receive(self, event: Event, now: float) -> Sequence[Effect]:
        match event:
            case Received(peer=peer, message=HopMessage() as message):
                return self._arrived(peer, message, now)
            case Committed(token=token):
                return self._committed(token)
            case CommitFailed(token=token, error=error):
                self._forget(token)
                return self._refused(self._arrivals.pop(token, ()), error)
            case CommitUnknown(token=token):
                self._forget(token)
                self._arrivals.pop(token, None)
            case Loaded(key=key, state=state):
                session = key.removeprefix(self._key(""))
                value = int(state.value) if state is not None else None
                return self._loaded(session, value, state.version if state else 0, now)
            case LoadFailed(key=key):
                self._loading.pop(key.removeprefix(self._key("")), None)
        return ()

    def next_deadline(self) -> float | None:
        deadlines = [
            deadline
            for session in self._sessions.values()
            if isinstance(session.index, StrictIndex) and (deadline := session.index.next_deadline()) is not None
        ]
        return min(deadlines, default=None)

    def on_timer(self, now: float) -> Sequence[Effect]:
        effects: list[Effect] = []
        for name, session in list(self._sessions.items()):
            if not isinstance(session.index, StrictIndex):
                continue
            waiting = session.index.first_waiting()
            outcome = session.index.on_timer(now)
            if isinstance(outcome, GapAsked) and waiting is not None:
                effects.append(
                    Send(waiting[0], AskForGap("" if self.config.hop_index else name, outcome.first, outcome.last))
                )
            elif outcome is not None and not isinstance(outcome, GapAsked):
                skipped = self._skipped(name, outcome.first, outcome.last)
                effects += self._pass(name, session, outcome.items, extra=(skipped,))
                effects.append(Notify("gap-skipped", f"{name}: {outcome.first}..{outcome.last} never came"))
        return effects

    def _arrived(self, peer: str, message: HopMessage, now: float) -> Sequence[Effect]:
        if self.config.order is ReceiveOrder.ID:
            return self._arrived_by_id(peer, message)
        session = peer if self.config.hop_index else message.envelope.session
        if session is None or self._index(message) < 1:
            return self._reject(message)
        if session in self._sessions:
            self._sessions[session] = self._sessions.pop(session)  # the newest is last
            return self._arrived_by_index(session, peer, message, now)
        waiting = self._loading.get(session)
        if waiting is None:
            self._loading[session] = [(peer, message)]
            return [Load(self._key(session))]
        if len(waiting) < self.config.buffer_max:
            waiting.append((peer, message))
        return ()

    def _arrived_by_id(self, peer: str, message: HopMessage) -> Sequence[Effect]:
        """A second copy of an undecided message is dropped: the first one's completion will confirm it."""
        if (peer, message.delivery) in self._undecided:
            return ()
        return self._commit((self._accept(message, identity=message.envelope.id),), [(peer, message.delivery)], None)

    def _index(self, message: HopMessage) -> int:
        return message.index if self.config.hop_index else message.envelope.index or 0

    def _reject(self, message: HopMessage) -> Sequence[Effect]:
        """Without a number it has no place: not confirmed, so that its sender keeps it and people are notified."""
        what = "session" if message.envelope.session is None and not self.config.hop_index else "index"
        cause = f"it has no {what}, and this hop goes by the index within a session"
        event = self._event(Kind.REJECTED, message, cause=cause)
        detail = f"{self.name} did not take {message.envelope.id}: {cause}; publish it with session and index from 1"
        return [*self._commit((Log(event),), [], None), Notify("rejected", detail, message.envelope.id)]

    def _refused(self, arrivals: Sequence[LedgerEvent], error: SemelError | None) -> Sequence[Effect]:
        """What the store will not hold is not confirmed, and would come again for ever without anybody noticing.

        Messages that passed together are refused together: which of them it was the store does not say.
        """
        if not arrivals or not _is_refusal(error):
            return ()
        cause = clean_cause(str(error))
        events = [msgspec.structs.replace(event, kind=Kind.REJECTED, cause=cause) for event in arrivals]
        notes = [
            Notify("rejected", f"{self.name} could not store {event.message}: {cause}", event.message)
            for event in events
        ]
        return [*self._commit(tuple(Log(event) for event in events), [], None), *notes]

    def _arrived_by_index(self, name: str, peer: str, message: HopMessage, now: float) -> Sequence[Effect]:
        session = self._sessions[name]
        index = self._index(message)
        if isinstance(session.index, MonotonicIndex):
            if session.index.is_new(index):
                return self._pass(name, session, ((index, (peer, message)),))
            return self._repeat(name, peer, message)
        match session.index.offer(index, (peer, message), now):
            case Passed(items=items):
                return self._pass(name, session, items)
            case Repeated(waiting=False):
                return self._repeat(name, peer, message)
            case Repeated() | Early() | Overflow():
                return self._look_again(name) if message.attempt > 1 else ()

    def _look_again(self, name: str) -> Sequence[Effect]:
        """A gap has outlived a resend: perhaps the missing ones passed through another node, and the store knows."""
        if name in self._loading:
            return ()
        self._loading[name] = []
        return [Load(self._key(name))]

    def _pass(
        self,
        name: str,
        session: _Session,
        items: Sequence[tuple[int, tuple[str, HopMessage]]],
        extra: tuple[Op, ...] = (),
    ) -> Sequence[Effect]:
        """One commit holds the messages and the session's new position, so neither can be without the other."""
        accepts = tuple(self._accept(message, identity=None) for _, (_, message) in items)
        confirms = [(peer, message.delivery) for _, (peer, message) in items]
        return self._commit((*accepts, self._put(name, session), *extra), confirms, name)

    def _put(self, name: str, session: _Session) -> Put:
        """The session's position, under the condition that the store is where this receiver believes it to be."""
        put = Put(self._key(name), str(session.index.snapshot()).encode(), expected=session.version)
        session.version += 1
        return put

    def _repeat(self, name: str, peer: str, message: HopMessage) -> Sequence[Effect]:
        """Confirm a duplicate, but never before its first copy is durable: an undecided one waits for that.

        The first copy may have come from another peer, so the duplicate is chained to its session and fails with it.
        And it is a duplicate only if the session still stands where we remember it: a store that was restored from a
        backup may never have seen the first copy.

        One whose place was given up is no duplicate: it is confirmed, because it can never pass, and recorded as
        dropped. After a restart, and when the session was let go from memory, the two cannot be told apart.
        """
        if (peer, message.delivery) in self._undecided:
            return ()
        session = self._sessions[name]
        event = self._event(Kind.DUPLICATE, message)
        if session.index.given_up.take(self._index(message)):
            event = self._event(Kind.DROPPED, message, cause="it came after its place was given up")
        return self._commit((Log(event), self._put(name, session)), [(peer, message.delivery)], name)

    def _commit(self, ops: tuple[Op, ...], confirms: list[tuple[str, str]], session: str | None) -> list[Effect]:
        self._token += 1
        self._pending[self._token] = (session, confirms)
        self._arrivals[self._token] = _arrivals(ops)
        self._undecided.update(confirms)
        return [Commit(ops, self._token, chain=session)]

    def _committed(self, token: int) -> list[Effect]:
        _, confirms = self._pending.pop(token)
        self._arrivals.pop(token, None)
        by_peer: dict[str, list[str]] = {}
        for peer, delivery in confirms:
            self._undecided.discard((peer, delivery))
            by_peer.setdefault(peer, []).append(delivery)
        return [Send(peer, Confirm(tuple(deliveries))) for peer, deliveries in by_peer.items()]

    def _forget(self, token: int) -> None:
        """No confirm, so the sender sends again. The sessions' memory ran ahead of the store: read it again."""
        session, confirms = self._pending.pop(token)
        self._undecided.difference_update(confirms)
        if session is not None:
            self._sessions.pop(session, None)

    def _loaded(self, name: str, value: int | None, version: int, now: float) -> Sequence[Effect]:
        arrived = self._loading.pop(name, [])
        if any(session == name for session, _ in self._pending.values()):
            # a failed commit of this session is still on its way back: what was read may be older than what follows
            return ()
        known = self._sessions.get(name)
        if known is not None and known.version >= version:
            return ()
        if known is not None and isinstance(known.index, StrictIndex):
            arrived = [*known.index.waiting(), *arrived]
        self._sessions.pop(name, None)
        self._sessions[name] = _Session(self._new_index(value), version)
        self._let_go()
        return [effect for peer, message in arrived for effect in self._arrived_by_index(name, peer, message, now)]

    def _let_go(self) -> None:
        """Sessions that rest, the longest unused first. Many at a time, so that looking for them costs little."""
        if len(self._sessions) <= SESSIONS_MAX:
            return
        busy = {session for session, _ in self._pending.values()}
        newest = next(reversed(self._sessions))
        resting = [
            name for name, session in self._sessions.items()
            if name not in busy and name != newest and (isinstance(session.index, MonotonicIndex) or not session.index)
        ]  # fmt: skip
        for name in resting[: max(1, SESSIONS_MAX // 10)]:
            del self._sessions[name]

    def _new_index(self, value: int | None) -> StrictIndex[tuple[str, HopMessage]] | MonotonicIndex:
        if self.config.order is ReceiveOrder.MONOTONIC:
            return MonotonicIndex(value or 0)
        return StrictIndex(next=value or 1, buffer_max=self.config.buffer_max, gap=self.config.gap)

    def _key(self, session: str) -> str:
        return f"receive/{self.name}/{session}"

    def _accept(self, message: HopMessage, identity: str | None) -> Append | Enqueue:
        envelope = message.envelope
        duplicate = self._event(Kind.DUPLICATE, message)
        if self.config.queue:
            accepted = self._event(Kind.ACCEPTED, message)
            return Enqueue(
                self.config.queue,
                envelope.id,
                envelope,
                key=envelope.session,
                on_fresh=accepted,
                on_duplicate=duplicate,
            )
        template = LedgerEvent(Kind.ACCEPTED, self.config.hop, self.config.pipeline)
        return Append(self.config.stream, envelope, identity=identity, on_fresh=template, on_duplicate=duplicate)

    def _event(self, kind: Kind, message: HopMessage, cause: str | None = None) -> LedgerEvent:
        return message_event(
            kind, self.config.hop, self.config.pipeline, message.envelope,
            delivery=message.delivery, attempt=message.attempt, cause=cause,
        )  # fmt: skip

    def _skipped(self, session: str, first: int, last: int) -> Log:
        """One event for the whole gap. Not of the kind SKIPPED, which ends a message that was accepted: these never
        came, and the sum of what was accepted and what has ended would no longer hold."""
        cause = f"indexes {first}..{last} never came"
        event = LedgerEvent(
            Kind.ACTION,
            self.config.hop,
            self.config.pipeline,
            session=session,
            message=f"gap {first}..{last}",
            cause=cause,
        )
        return Log(event)


def _arrivals(ops: Sequence[Op]) -> tuple[LedgerEvent, ...]:
    """The messages that these ops would store, each as an event about it."""
    return tuple(op.on_duplicate for op in ops if isinstance(op, Append | Enqueue) and op.on_duplicate is not None)


def _is_refusal(error: SemelError | None) -> bool:
    """Whether the data is at fault rather than the store: trying again gives the same answer."""
    return isinstance(error, StoreRefused) or (error is not None and not isinstance(error, StoreError))


def _session(envelope: Envelope) -> str:
    return envelope.session if envelope.session is not None else envelope.id


def _delivery(record: Record) -> str:
    position = record.position
    return f"{position.stream}/{position.epoch}/{position.offset}"


def _offset(delivery: str) -> int:
    return int(delivery.rsplit("/", 1)[1])
