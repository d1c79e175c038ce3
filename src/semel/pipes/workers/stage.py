"""A worker on a path that keeps its state in memory: inlets, outlets, and a rule for when to confirm.

    inlet   →   held until it is safe to confirm   →   outlets, or the application's handler

With confirm on receipt a stage confirms what it takes over. With cascade it confirms upstream when its own outlet has
been confirmed, so the first sender of the chain keeps the message until the last worker has it. With confirm on
processing it confirms when the handler has returned and its writes are committed.

The resend pipe, the confirm pipe, the deduplicating and the ordering pipe are all this machine under different
configurations: see `blocks`.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

import msgspec

from semel.errors import InputError
from semel.kernel.dedup import Repeated
from semel.kernel.effects import (
    Commit,
    CommitFailed,
    Committed,
    CommitUnknown,
    Deliver,
    Delivered,
    DeliverFailed,
    Effect,
    Event,
    Notify,
    PeerConnected,
    Received,
    Resume,
    Send,
)
from semel.kernel.envelope import Envelope
from semel.kernel.hop import AskForGap, Confirm, HopMessage
from semel.kernel.ledger import Kind, message_event
from semel.kernel.ops import Op
from semel.kernel.position import Position
from semel.kernel.resend import GaveUp
from semel.kernel.retry import RetryPolicy
from semel.kernel.store import Record
from semel.kernel.text import clean_cause, stream_name
from semel.pipes.language.options import ConfirmOn, DedupBy
from semel.pipes.workers.inlet import Arrival, Inlet, InletConfig, session_of
from semel.pipes.workers.meter import HopMeter, Reports
from semel.pipes.workers.outlet import PACKED_BYTES_MAX, Outlet, OutletConfig, unpack
from semel.pipes.workers.route import Parcel

HELD_MAX = 100_000
COPIES_MAX = 16
"""So many deliveries of one held message are remembered, onward and to be confirmed: the newest."""


@dataclass(frozen=True, slots=True)
class StageConfig:
    """`handles`: messages go to the application's handler and end here. `report_s`: how often the meters are written
    to the ledger; None for a stage without one. `folds`: the meters keep the fold of the ids too. `handler_retry`: how
    a durable stage tries a failed handler again; a volatile one waits for its sender to send again."""

    name: str
    pipeline: str = ""
    inlets: tuple[InletConfig, ...] = ()
    outlets: tuple[OutletConfig, ...] = ()
    handles: bool = False
    report_s: float | None = None
    seed: int = 0
    handler_retry: RetryPolicy = field(default_factory=RetryPolicy)
    folds: bool = False

    @property
    def stream(self) -> str:
        return stream_name("pipe", self.pipeline or "path", self.name)


class _Held(msgspec.Struct, eq=False, gc=False):
    """Taken over and not yet confirmed upstream. `owed` are the peers and deliveries to confirm, each with the attempt
    that was passed on last. `busy` while an outlet or the handler has it in hand."""

    inlet: Inlet
    arrival: Arrival
    owed: dict[tuple[str, str], int]
    attempt: int = 0
    busy: bool = False
    in_line: bool = False
    deliveries: list[tuple[int, str]] = []


class Stage:
    """`run` names this life of the stage and is never used twice."""

    def __init__(self, config: StageConfig, run: str) -> None:
        self.name = config.name
        self.config = config
        self._stream = config.stream
        self.inlets = [Inlet(inlet, self._meter(inlet.hop)) for inlet in config.inlets]
        self.outlets = [
            Outlet(outlet, self._meter(outlet.hop, outlet.peer), run, stage=config.name, seed=config.seed)
            for outlet in config.outlets
        ]
        self.handled = self._meter(f"{config.name}>handler")
        self._by_peer: dict[str, Inlet] = {}
        self._confirms: dict[str, list[str]] = {}
        self._held: OrderedDict[Hashable, _Held] = OrderedDict()
        self._onward: dict[tuple[int, str], Hashable] = {}
        self._lines: dict[str, deque[_Held]] = {}
        self._handling: dict[int, _Held] = {}
        self._committing: dict[int, _Held] = {}
        self._token = 0
        self._reports = Reports(self._meters(), config.report_s)

    def _meter(self, hop: str, peer: str = "") -> HopMeter:
        return HopMeter(hop, self.config.pipeline, self._stream, peer, self.config.folds)

    def _meters(self) -> list[HopMeter]:
        return [*(inlet.meter for inlet in self.inlets), *(outlet.meter for outlet in self.outlets), self.handled]

    @property
    def is_full(self) -> bool:
        return any(outlet.is_full for outlet in self.outlets)

    @property
    def unconfirmed(self) -> int:
        return sum(outlet.unconfirmed for outlet in self.outlets)

    @property
    def busy(self) -> int:
        """Messages that are with the handler, in line for it, or whose writes are being committed."""
        in_line = sum(map(len, self._lines.values()))
        return in_line + sum(not held.in_line for at in (self._handling, self._committing) for held in at.values())

    @property
    def suspended(self) -> GaveUp | None:
        resends = (outlet.resend for outlet in self.outlets)
        return next((resend.suspended for resend in resends if resend is not None and resend.suspended), None)

    def start(self, now: float) -> Sequence[Effect]:
        return ()

    def receive(self, event: Event, now: float) -> Sequence[Effect]:
        match event:
            case Received(peer=peer, message=Parcel(bodies=bodies)):
                return self._settle([each for body in bodies for each in self._receive_body(peer, body, now)], now)
            case Received(peer=peer, message=body):
                return self._settle(self._receive_body(peer, body, now), now)
            case PeerConnected(peer=peer):
                return self._settle(self._send_all_again(peer, now), now)
            case Delivered(token=token, ops=ops):
                return self._settle(self._delivered(token, ops), now)
            case DeliverFailed(token=token, error=error):
                return self._settle(self._failed(self._handling.pop(token, None), error), now)
            case Committed(token=token):
                return self._settle(self._committed(token), now)
            case CommitFailed(token=token, error=failure):
                return self._not_committed(token, "its writes were refused" if failure is None else str(failure), now)
            case CommitUnknown(token=token):
                return self._not_committed(token, "whether its writes were committed is not known", now)
            case Resume():
                return self._settle(self._resume(now), now)
        return ()

    def next_deadline(self) -> float | None:
        deadlines = [inlet.next_deadline() for inlet in self.inlets]
        deadlines += [outlet.resend.next_deadline() for outlet in self.outlets if outlet.resend is not None]
        deadlines.append(self._reports.at)
        return min((at for at in deadlines if at is not None), default=None)

    def on_timer(self, now: float) -> Sequence[Effect]:
        effects: list[Effect] = []
        for inlet in self.inlets:
            effects += self._gaps(inlet, now)
        for number, outlet in enumerate(self.outlets):
            if outlet.resend is not None:
                outcomes = outlet.resend.on_timer(now)
                effects += self._sends(outlet, outlet.messages(outcomes))
                effects += [each for o in outcomes if isinstance(o, GaveUp) for each in self._gave_up(number, o)]
        effects += self._reports.on_timer(now)
        return self._settle(effects, now)

    # -- in

    def _receive_body(self, peer: str, body: object, now: float) -> list[Effect]:
        match body:
            case HopMessage():
                return self._taken(peer, body, now)
            case Confirm(deliveries=deliveries):
                return self._confirmed(peer, deliveries, now)
            case Envelope():
                return self._taken(peer, HopMessage(body.id, body, 0), now)
            case AskForGap():
                return self._send_all_again(peer, now)
        return []

    def _taken(self, peer: str, message: HopMessage, now: float) -> list[Effect]:
        """As it came, or as it was before it went into the middle of a pipe that ends here. A middle that waits for it
        gets a confirm, whatever it holds: the pipe's own sender answers for that from here on."""
        inlet = self._inlet(peer)
        if inlet is None:
            return []
        if not inlet.config.unpacks:
            return self._arrived(inlet, peer, message, now)
        if inlet.config.confirms_carrier and not self.is_full:
            self._confirm(peer, message.delivery)
        try:
            sender, unpacked = unpack(message.envelope)
        except InputError as error:
            return [Notify("rejected", f"{self.name}: {error.message}", message.envelope.id)]
        return self._arrived(inlet, sender, unpacked, now)

    def _inlet(self, peer: str) -> Inlet | None:
        """Names of peers come from whoever connects, so only those that somebody listens to are remembered."""
        inlet = self._by_peer.get(peer)
        if inlet is None:
            inlet = next((inlet for inlet in self.inlets if inlet.accepts_from(peer)), None)
            if inlet is not None and inlet.config.peers:
                self._by_peer[peer] = inlet
        return inlet

    def _arrived(self, inlet: Inlet, peer: str, message: HopMessage, now: float) -> list[Effect]:
        arrival = peer, message
        held = self._held.get(inlet.key(arrival)) if self._held else None
        if held is not None:
            inlet.meter.count(Kind.DUPLICATE, message.envelope.id, message.index)
            return self._again(held, arrival, now)
        if self.outlets or self._held:
            if not self._has_room():
                return []
            if not self._takes(message.envelope):
                return self._reject(inlet, message)
        admitted = inlet.admit(arrival, now)
        if isinstance(admitted, Repeated):
            kind = Kind.DROPPED if inlet.is_late(arrival) else Kind.DUPLICATE
            inlet.meter.count(kind, message.envelope.id, message.index)
            confirms = inlet.config.confirm is not None and not admitted.waiting
            if confirms:
                self._confirm(peer, message.delivery)
            return []
        if len(admitted) == 1:
            return self._accept(inlet, admitted[0], now)
        return [effect for each in admitted for effect in self._accept(inlet, each, now)]

    def _takes(self, envelope: Envelope) -> bool:
        return all(outlet.takes(envelope) for outlet in self.outlets)

    def _reject(self, inlet: Inlet, message: HopMessage) -> list[Effect]:
        """Not confirmed, so that its sender keeps it and people are notified."""
        inlet.meter.count(Kind.REJECTED, message.envelope.id, message.index)
        detail = (
            f"{self.name}: the body of {message.envelope.id} is too large to go through the middle of a pipe; send at "
            f"most {PACKED_BYTES_MAX:,} bytes, or take the promises out of the middle"
        )
        return [Notify("rejected", detail, message.envelope.id)]

    def _has_room(self) -> bool:
        """What is not taken is not confirmed: whoever resends, sends it again. A place held for a message whose sender
        has given it up is made free for a new one."""
        if self.is_full:
            return False
        if len(self._held) < HELD_MAX:
            return True
        key, oldest = next(iter(self._held.items()))
        if oldest.busy or not oldest.inlet.can_forget:
            return False
        oldest.inlet.forget(oldest.arrival)
        self._let_go(key, oldest)
        return True

    def _accept(self, inlet: Inlet, arrival: Arrival, now: float) -> list[Effect]:
        """On receipt, confirm what has been handed on: the other way round a crash between the two would lose it."""
        peer, message = arrival
        inlet.meter.count(Kind.ACCEPTED, message.envelope.id, message.index)
        confirm = inlet.config.confirm
        if confirm is ConfirmOn.CASCADE or confirm is ConfirmOn.PROCESSING:
            held = self._held[inlet.key(arrival)] = _Held(inlet, arrival, {(peer, message.delivery): message.attempt})
            return self._pass_on(held, now)
        if self.config.handles:
            effects = self._pass_on(_Held(inlet, arrival, {}), now)
        else:
            effects = self._hand_over(message.envelope, now)
        if confirm is not None:
            self._confirm(peer, message.delivery)
        return effects

    def _hand_over(self, envelope: Envelope, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for outlet in self.outlets:
            effects += self._sends(outlet, outlet.offer(envelope, now)[1])
        return effects

    def _again(self, held: _Held, arrival: Arrival, now: float) -> list[Effect]:
        """Another copy of what is not yet confirmed. Without a resend of our own, it is our resend; but where copies
        are told apart, the one that a link has made of an attempt is none. A lower attempt comes from a sender that has
        started again."""
        peer, message = arrival
        owed = peer, message.delivery
        remembers = held.inlet.config.dedup is not DedupBy.NONE
        is_copy = held.owed.setdefault(owed, 0) == message.attempt and remembers and not self.config.handles
        if len(held.owed) > COPIES_MAX:
            del held.owed[next(iter(held.owed))]
        if held.busy or is_copy:
            return []
        held.owed[owed] = message.attempt
        if held.in_line:
            self._leave_out(self._lines[session_of(held.arrival)], message.floor)
        return self._pass_on(held, now)

    def _gaps(self, inlet: Inlet, now: float) -> list[Effect]:
        passed, asks, gaps = inlet.on_timer(now)
        effects: list[Effect] = [Send(peer, AskForGap("", ask.first, ask.last)) for peer, ask in asks]
        effects += [Notify("gap-skipped", f"{self.name}: {gap}") for gap in gaps]
        for arrival in passed:
            effects += self._accept(inlet, arrival, now)
        return effects

    # -- out

    def _pass_on(self, held: _Held, now: float) -> list[Effect]:
        if self.config.handles:
            return self._take_turn(held)
        held.attempt += 1
        effects: list[Effect] = []
        envelope = held.arrival[1].envelope
        for number, outlet in enumerate(self.outlets):
            delivery, messages = outlet.offer(envelope, now)
            effects += self._sends(outlet, messages)
            self._await_confirm(held, number, outlet, delivery)
        return effects

    def _await_confirm(self, held: _Held, number: int, outlet: Outlet, delivery: str) -> None:
        key = held.inlet.key(held.arrival)
        held.busy = held.busy or outlet.resend is not None
        held.deliveries.append((number, delivery))
        self._onward[number, delivery] = key
        if len(held.deliveries) > max(COPIES_MAX, len(self.outlets)):
            self._onward.pop(held.deliveries.pop(0), None)

    def _sends(self, outlet: Outlet, messages: Sequence[HopMessage]) -> list[Effect]:
        return [Send(outlet.config.peer, outlet.wire(message)) for message in messages]

    def _confirmed(self, peer: str, deliveries: Sequence[str], now: float) -> list[Effect]:
        effects: list[Effect] = []
        for number, outlet in enumerate(self.outlets):
            if not self._answers(outlet, peer):
                continue
            effects += self._sends(outlet, outlet.confirm(deliveries, now))
            for delivery in deliveries if self._onward else ():
                key = self._onward.get((number, delivery))
                if key is not None:
                    self._done(key)
        return effects

    def _answers(self, outlet: Outlet, peer: str) -> bool:
        """A pipe's confirm comes from its receiving end, whatever lies between."""
        return outlet.config.packs or outlet.config.peer == peer

    def _done(self, key: Hashable) -> None:
        held = self._held.get(key)
        if held is not None:
            self._let_go(key, held)
            for peer, delivery in held.owed:
                self._confirm(peer, delivery)

    def _let_go(self, key: Hashable, held: _Held) -> None:
        del self._held[key]
        for delivery in held.deliveries:
            self._onward.pop(delivery, None)

    def _confirm(self, peer: str, delivery: str) -> None:
        """After everything else that this event brings: what is confirmed has been handed on."""
        owed = self._confirms.get(peer)
        if owed is None:
            self._confirms[peer] = [delivery]
        else:
            owed.append(delivery)

    def _settle(self, effects: list[Effect], now: float) -> list[Effect]:
        """The confirms that have come due, one for each peer, and a time for the next report."""
        if self._confirms:
            effects += [Send(peer, Confirm(tuple(owed))) for peer, owed in self._confirms.items()]
            self._confirms = {}
        self._reports.look(now)
        return effects

    def _send_all_again(self, peer: str, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for outlet in self.outlets:
            if outlet.resend is not None and self._answers(outlet, peer):
                effects += self._sends(outlet, outlet.messages(outlet.resend.resend_all(now)))
        return effects

    def _gave_up(self, number: int, gave_up: GaveUp) -> list[Effect]:
        """Discarded: upstream is owed a confirm that will not come; should it send again, so do we."""
        outlet = self.outlets[number]
        assert outlet.config.resend is not None
        words = f"{self.name}: no confirm from {outlet.config.peer} after {gave_up.attempts} attempts"
        if outlet.config.resend.retry.then != "discard":
            return [Notify("suspended", f"{words}; resume it when {outlet.config.peer} is back", gave_up.id)]
        outlet.gave_up(gave_up)
        key = self._onward.pop((number, gave_up.id), None)
        held = self._held.get(key) if key is not None else None
        if held is not None:
            held.busy = any(self._is_resending(at, delivery) for at, delivery in held.deliveries)
            return []
        return [Notify("given-up", f"{words}; it is discarded", gave_up.id)]

    def _is_resending(self, number: int, delivery: str) -> bool:
        resend = self.outlets[number].resend
        return resend is not None and (number, delivery) in self._onward

    def _resume(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for outlet in self.outlets:
            if outlet.resend is not None and outlet.resend.suspended is not None:
                effects += self._sends(outlet, outlet.messages(outlet.resend.resume(now)))
        return effects

    # -- the application

    def _take_turn(self, held: _Held) -> list[Effect]:
        """Behind a strict inlet the handler gets one after the other: what fails or lasts must not be overtaken."""
        if held.inlet.config.dedup is not DedupBy.STRICT:
            return [self._deliver(held)]
        line = self._lines.setdefault(session_of(held.arrival), deque())
        if not held.in_line:
            held.in_line = True
            line.append(held)
            self._leave_out(line, held.arrival[1].floor)
        return [self._deliver(line[0])] if not line[0].busy and (line[0] is held or not line[0].attempt) else []

    def _leave_out(self, line: deque[_Held], floor: int) -> None:
        """What its sender has given up after the handler failed is waited for no longer."""
        while line and line[0].arrival[1].index < floor and not line[0].busy and line[0].attempt:
            gone = line.popleft()
            key = gone.inlet.key(gone.arrival)
            if self._held.get(key) is gone:
                self._let_go(key, gone)

    def _next_turn(self, held: _Held) -> list[Effect]:
        if not held.in_line:
            return []
        session = session_of(held.arrival)
        line = self._lines[session]
        line.popleft()
        if line:
            return [self._deliver(line[0])]
        del self._lines[session]
        return []

    def _deliver(self, held: _Held) -> Deliver:
        self._token += 1
        held.attempt += 1
        held.busy = True
        self._handling[self._token] = held
        _, message = held.arrival
        record = Record(Position(self._stream, 0, message.index), message.envelope, at=0)
        return Deliver(record, self._token, held.attempt)

    def _delivered(self, token: int, ops: tuple[Op, ...]) -> list[Effect]:
        """The handler's own writes first: what it did is done when they are durable."""
        held = self._handling.pop(token, None)
        if held is None:
            return []
        if not ops:
            return self._processed(held)
        self._token += 1
        self._committing[self._token] = held
        return [Commit(ops, self._token, chain=None)]

    def _processed(self, held: _Held) -> list[Effect]:
        message = held.arrival[1]
        self.handled.count(Kind.HANDLED, message.envelope.id, message.index)
        if held.owed:
            self._done(held.inlet.key(held.arrival))
        return self._next_turn(held)

    def _failed(self, held: _Held | None, error: str) -> list[Effect]:
        """Not confirmed, so the sender sends it again and the handler gets another turn."""
        if held is None:
            return []
        held.busy = False
        envelope, index = held.arrival[1].envelope, held.arrival[1].index
        if self._held.get(held.inlet.key(held.arrival)) is held:
            self.handled.count(Kind.FAILED, envelope.id, index)
            return []
        detail = f"{self.name}: it was confirmed before, so nobody sends it again"
        return [*self._log_lost(held, error), Notify("handler-failed", detail, envelope.id), *self._next_turn(held)]

    def _log_lost(self, held: _Held, error: str) -> Sequence[Effect]:
        """A number would not do: this is the last event of the message, so the ledger names it."""
        message = held.arrival[1]
        if self.config.report_s is None:
            self.handled.count(Kind.FAILED, message.envelope.id, message.index)
            return ()
        event = message_event(
            Kind.FAILED, self.handled.hop, self.config.pipeline, message.envelope,
            attempt=held.attempt, cause=clean_cause(error),
        )  # fmt: skip
        return self._reports.one(self.handled, event)

    def _committed(self, token: int) -> list[Effect]:
        self._reports.written(token)
        held = self._committing.pop(token, None)
        return self._processed(held) if held is not None else []

    def _not_committed(self, token: int, error: str, now: float) -> list[Effect]:
        self._reports.not_written(token)
        return self._settle(self._failed(self._committing.pop(token, None), error), now)
