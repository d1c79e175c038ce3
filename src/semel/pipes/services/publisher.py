"""The writing client of the storage pipe: pushes until each message is stored, and confirms upstream only then.

A request id belongs to one message and stays with it over every attempt. So an answer, however late, settles the
message that it is about and no other, and what times out keeps its place before what came after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from semel.kernel.effects import (
    CommitFailed,
    Committed,
    CommitUnknown,
    Effect,
    Event,
    Notify,
    PeerConnected,
    Received,
    Resume,
    Send,
)
from semel.kernel.envelope import Envelope
from semel.kernel.hop import Confirm, HopMessage
from semel.kernel.ledger import Kind
from semel.kernel.resend import GaveUp, Resend, ResendPolicy, Transmit
from semel.kernel.text import stream_name
from semel.pipes.services.storage import NO_STREAM, Create, Created, Push, Pushed, StorageRefused, until_answered
from semel.pipes.workers.meter import HopMeter, Reports


@dataclass(frozen=True, slots=True)
class PublisherConfig:
    """With a window of 1 the stream keeps the order in which messages came; a wider one is faster and does not.
    `report_s`: how often the counts are written to the ledger of the publisher's own store; None: never."""

    name: str
    service: str
    stream: str
    pipeline: str = ""
    policy: ResendPolicy = field(default_factory=ResendPolicy)
    queue_max: int = 10_000
    seed: int = 0
    report_s: float | None = 1.0

    @property
    def hop(self) -> str:
        return f"{self.name}>{self.stream}"


@dataclass(slots=True, eq=False)
class _Entry:
    """A message on its way, and whom to tell when it is stored."""

    envelope: Envelope
    owed: list[tuple[str, str]] = field(default_factory=list)


class Publisher:
    """`run` names this life of the publisher and is never used twice: its request ids begin with it."""

    def __init__(self, config: PublisherConfig, run: str) -> None:
        self.name = config.name
        self.config = config
        self.meter = HopMeter(config.hop, config.pipeline, stream_name("publish", config.name), config.service)
        self._reports = Reports([self.meter], config.report_s)
        self._run = run
        self._last = 0
        self._pushes: Resend[_Entry] = Resend(config.policy, seed=config.seed)
        self._creates: Resend[Create] = Resend(until_answered(config.policy.timeout_s), seed=config.seed)
        self._entries: dict[str, _Entry] = {}
        self._requests: dict[str, str] = {}
        self._is_reported = False

    @property
    def unconfirmed(self) -> int:
        return len(self._pushes)

    @property
    def is_full(self) -> bool:
        return len(self._pushes) >= self.config.queue_max

    @property
    def suspended(self) -> GaveUp | None:
        return self._pushes.suspended

    def start(self, now: float) -> Sequence[Effect]:
        return self._create(now)

    def receive(self, event: Event, now: float) -> Sequence[Effect]:
        effects = self._receive(event, now)
        self._reports.look(now)
        return effects

    def _receive(self, event: Event, now: float) -> Sequence[Effect]:
        service = self.config.service
        match event:
            case Received(peer=peer, message=Pushed() as pushed) if peer == service:
                return self._pushed(pushed, now)
            case Received(peer=peer, message=Created(request=request)) if peer == service:
                return self._created(request, now)
            case Received(peer=peer, message=StorageRefused() as refused) if peer == service:
                return self._refused(refused, now)
            case Received(peer=peer, message=HopMessage(delivery=delivery, envelope=envelope)):
                return self._take(envelope, (peer, delivery), now)
            case Received(message=Envelope() as envelope):
                return self._take(envelope, None, now)
            case PeerConnected(peer=peer) if peer == service:
                creates = [Send(service, each.item) for each in self._creates.resend_all(now)]
                return [*creates, *self._sends(self._pushes.resend_all(now))]
            case Resume() if self._pushes.suspended is not None:
                return self._sends(self._pushes.resume(now))
            case Committed(token=token):
                self._reports.written(token)
            case CommitFailed(token=token) | CommitUnknown(token=token):
                self._reports.not_written(token)
        return ()

    def next_deadline(self) -> float | None:
        deadlines = (self._pushes.next_deadline(), self._creates.next_deadline(), self._reports.at)
        return min((at for at in deadlines if at is not None), default=None)

    def on_timer(self, now: float) -> Sequence[Effect]:
        creates = [each for each in self._creates.on_timer(now) if isinstance(each, Transmit)]
        effects: list[Effect] = [Send(self.config.service, each.item) for each in creates]
        for outcome in self._pushes.on_timer(now):
            effects += self._gave_up(outcome) if isinstance(outcome, GaveUp) else self._sends([outcome])
        effects += self._reports.on_timer(now)
        self._reports.look(now)
        return effects

    # -- in

    def _take(self, envelope: Envelope, owed: tuple[str, str] | None, now: float) -> list[Effect]:
        """What finds no room is not confirmed: whoever resends, sends it again."""
        entry = self._entry(envelope)
        if entry is not None:
            if owed is not None and owed not in entry.owed:
                entry.owed.append(owed)
            return []
        if self.is_full:
            return []
        entry = _Entry(envelope, [owed] if owed is not None else [])
        request = self._next_request()
        self._entries[request] = entry
        self._requests[envelope.id] = request
        self.meter.count(Kind.SENT, envelope.id, self._last)
        return self._sends(self._pushes.offer(request, entry, now))

    def _entry(self, envelope: Envelope) -> _Entry | None:
        request = self._requests.get(envelope.id)
        return self._entries[request] if request is not None else None

    def _next_request(self) -> str:
        self._last += 1
        return f"{self._run}/{self._last}"

    # -- out

    def _sends(self, transmits: Sequence[Transmit[_Entry]]) -> list[Effect]:
        for transmit in transmits:
            if transmit.attempt > 1:
                self.meter.count(Kind.RESENT, transmit.item.envelope.id, 0)
        return [
            Send(self.config.service, Push(each.id, self.config.stream, each.item.envelope)) for each in transmits
        ]  # fmt: skip

    def _pushed(self, pushed: Pushed, now: float) -> list[Effect]:
        first, transmits = self._pushes.confirm(pushed.request, now)
        if not first:
            return []
        entry = self._forget(pushed.request)
        sends = self._sends(transmits)
        if pushed.error is not None:
            self.meter.count(Kind.REJECTED, entry.envelope.id, 0)
            detail = f"{self.name}: {self.config.service} will not store {entry.envelope.id}: {pushed.error}"
            return [Notify("rejected", detail, entry.envelope.id), *sends]
        self.meter.count(Kind.CONFIRMED, entry.envelope.id, 0)
        return [*(Send(peer, Confirm((delivery,))) for peer, delivery in entry.owed), *sends]

    def _forget(self, request: str) -> _Entry:
        entry = self._entries.pop(request)
        del self._requests[entry.envelope.id]
        return entry

    def _gave_up(self, gave_up: GaveUp) -> list[Effect]:
        words = f"{self.name}: no answer from {self.config.service} after {gave_up.attempts} attempts"
        if self._pushes.suspended is not None:
            return [Notify("suspended", f"{words}; resume it when {self.config.service} is back", gave_up.id)]
        entry = self._forget(gave_up.id)
        return [Notify("given-up", f"{words}; it is not confirmed", entry.envelope.id)]

    # -- the stream

    def _create(self, now: float) -> list[Effect]:
        if len(self._creates):
            transmits = self._creates.resend_all(now)
        else:
            request = self._next_request()
            transmits = self._creates.offer(request, Create(request, self.config.stream), now)
        return [Send(self.config.service, each.item) for each in transmits]

    def _created(self, request: str, now: float) -> list[Effect]:
        """What was refused for want of the stream goes out again at once."""
        self._is_reported = False
        first, _ = self._creates.confirm(request, now)
        return self._sends(self._pushes.resend_all(now)) if first else []

    def _refused(self, refused: StorageRefused, now: float) -> list[Effect]:
        """A push for want of its stream: create it. Anything else is for people, who are notified once; the resends go
        on meanwhile."""
        if refused.reason == NO_STREAM:
            return self._create(now)
        asked = refused.request in self._creates.unconfirmed() or refused.request in self._entries
        if self._is_reported or not asked:
            return []
        self._is_reported = True
        detail = f"{self.name}: {self.config.service} refuses {self.config.stream}: {refused.reason}"
        return [Notify("refused", detail)]
