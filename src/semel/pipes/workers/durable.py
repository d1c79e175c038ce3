"""A worker on a path that keeps its state in the store: it commits before it confirms, and begins again after a crash.

    receiver   →   pipe/<path>/<name>   →   a sender per outlet, or a follower with the application's handler

The three are the kernel's own machines, hosted here as one under one address. A durable worker drops duplicates by id
at least, since a commit knows what it has. Confirming upstream can wait for more than the commit: with cascade until
every onward cursor has passed the message, with processing until the handler's writes are committed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import msgspec

from semel.errors import ConfigError
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
    Loaded,
    LoadFailed,
    Machine,
    Notify,
    PeerConnected,
    ReadDone,
    ReadFailed,
    ReadTrimmed,
    Received,
    Resume,
    Send,
    Wake,
)
from semel.kernel.envelope import Envelope
from semel.kernel.hop import (
    AskForGap,
    Confirm,
    HopMessage,
    ReceiveOrder,
    Receiver,
    ReceiverConfig,
    Sender,
    SenderConfig,
)
from semel.kernel.ops import Duplicate, Fresh
from semel.kernel.position import Position
from semel.kernel.resend import ResendPolicy
from semel.kernel.work import Follower, FollowerConfig
from semel.pipes.language.options import ConfirmOn, DedupBy
from semel.pipes.workers.inlet import InletConfig
from semel.pipes.workers.route import Parcel
from semel.pipes.workers.stage import StageConfig

ORDERS = {
    DedupBy.NONE: ReceiveOrder.ID,
    DedupBy.ID: ReceiveOrder.ID,
    DedupBy.INDEX: ReceiveOrder.MONOTONIC,
    DedupBy.STRICT: ReceiveOrder.STRICT,
    DedupBy.SESSION: ReceiveOrder.STRICT,
}
OWED_MAX = 100_000
"""Confirms that wait. Beyond it the oldest are let go: their senders send again and are answered then."""
HANDLED_AT_ONCE = 100
"""Handled messages whose commits may be under way together."""
RUN = "\x1f"
"""Stands between a peer and its run in the name of a session. Whoever has it in a name is ignored: the confirm of one
could be led to another."""


class Cursors(Protocol):
    """Where the store says that each cursor and the end of each stream stand."""

    def cursor(self, name: str) -> Position | None: ...

    def head(self, stream: str) -> Position: ...


@dataclass(slots=True, eq=False)
class _Part:
    machine: Machine
    tokens: dict[int, int]
    """Ours to its own."""


class DurableStage:
    """Built from the store: `cursors` is the store or anything that knows its cursors."""

    def __init__(self, config: StageConfig, cursors: Cursors) -> None:
        self.name = config.name
        self.config = config
        self._token = 0
        self._owner: dict[int, _Part] = {}
        self._stored = cursors.head(config.stream).offset
        self._owed: deque[tuple[int, Send]] = deque(maxlen=OWED_MAX)
        receiver = _receiver(config)
        self._hop_index = receiver.hop_index
        self._in = _Part(Receiver(receiver), {})
        self._out = [_Part(machine, {}) for machine in _onward(config, cursors)]
        self._late = _confirm(config.inlets) in (ConfirmOn.CASCADE, ConfirmOn.PROCESSING)

    @property
    def _parts(self) -> list[_Part]:
        return [self._in, *self._out]

    @property
    def unconfirmed(self) -> int:
        return sum(part.machine.unconfirmed for part in self._out if isinstance(part.machine, Sender))

    @property
    def is_full(self) -> bool:
        """The store holds the queue, so there is room as long as the store has room."""
        return False

    @property
    def passed(self) -> int:
        """Everything stored up to this offset has been confirmed onward, or handled."""
        return min((_passed(part.machine) for part in self._out), default=self._stored)

    def start(self, now: float) -> Sequence[Effect]:
        return [effect for part in self._parts for effect in self._own(part, part.machine.start(now))]

    def receive(self, event: Event, now: float) -> Sequence[Effect]:
        match event:
            case Received(peer=peer, message=Parcel(bodies=bodies)):
                return [each for body in bodies for each in self.receive(Received(peer, body), now)]
            case Received(message=HopMessage() | Envelope()):
                return self._arrived(self._inbound(event), now)
            case Received(message=Confirm() | AskForGap()) | PeerConnected() | Wake() | Resume():
                return self._feed_all(self._out, event, now)
            case Committed() | CommitFailed() | CommitUnknown() | Delivered() | DeliverFailed():
                return self._completed(event, now)
            case ReadDone() | ReadFailed() | ReadTrimmed():
                return self._read(event, now)
            case Loaded() | LoadFailed():
                return self._own(self._in, self._in.machine.receive(event, now))
        return ()

    def next_deadline(self) -> float | None:
        return min((at for part in self._parts if (at := part.machine.next_deadline()) is not None), default=None)

    def on_timer(self, now: float) -> Sequence[Effect]:
        effects: list[Effect] = []
        for part in self._parts:
            deadline = part.machine.next_deadline()
            if deadline is not None and deadline <= now:
                effects += self._own(part, part.machine.on_timer(now))
        return effects

    # -- between the parts and the outside

    def _inbound(self, event: Received) -> Received:
        """Where the hop's indexes decide, every run of a peer counts for itself."""
        message = event.message
        if isinstance(message, Envelope):
            message = HopMessage(message.id, message, 0)
        if not self._hop_index:
            return Received(event.peer, message)
        return Received(f"{event.peer}{RUN}{message.delivery.rpartition('/')[0]}", message)

    def _arrived(self, event: Received, now: float) -> list[Effect]:
        if event.peer.count(RUN) > self._hop_index:
            words = f"{self.name} ignores {event.peer!r}: a control character stands in it or in its delivery"
            return [Notify("rejected", words, event.message.envelope.id)]
        return self._own(self._in, self._in.machine.receive(event, now))

    def _feed_all(self, parts: Sequence[_Part], event: Event, now: float) -> list[Effect]:
        return [effect for part in parts for effect in self._own(part, part.machine.receive(event, now))]

    def _completed(
        self, event: Committed | CommitFailed | CommitUnknown | Delivered | DeliverFailed, now: float
    ) -> list[Effect]:
        part = self._owner.pop(event.token, None)
        if part is None:
            return []
        inner = msgspec.structs.replace(event, token=part.tokens.pop(event.token))
        if part is self._in and isinstance(event, Committed):
            return self._accepted(event, list(part.machine.receive(inner, now)))
        return [*self._own(part, part.machine.receive(inner, now)), *self._release()]

    def _read(self, event: ReadDone | ReadFailed | ReadTrimmed, now: float) -> list[Effect]:
        """Parts read the same stream from places of their own; the one that has asked for this gets it."""
        effects: list[Effect] = []
        for part in self._out:
            if _expects(part.machine, event):
                effects += self._own(part, part.machine.receive(event, now))
        return effects

    def _own(self, part: _Part, effects: Sequence[Effect]) -> list[Effect]:
        return [self._outbound(part, effect) for effect in effects]

    def _outbound(self, part: _Part, effect: Effect) -> Effect:
        match effect:
            case Commit(token=token, chain=chain):
                name = None if chain is None else f"{part.machine.name}/{chain}"
                return msgspec.structs.replace(effect, token=self._take(part, token), chain=name)
            case Deliver(token=token):
                return msgspec.structs.replace(effect, token=self._take(part, token))
            case Send(peer=peer) if RUN in peer:
                return Send(peer.partition(RUN)[0], effect.message)
        return effect

    def _take(self, part: _Part, token: int) -> int:
        self._token += 1
        self._owner[self._token] = part
        part.tokens[self._token] = token
        return self._token

    # -- confirming later than the commit

    def _accepted(self, event: Committed, effects: list[Effect]) -> list[Effect]:
        """What was stored where, and who gets a confirm. A duplicate by index says not where its first copy stands:
        then everything stored so far must be through."""
        offsets = [result.position.offset for result in event.results if isinstance(result, Fresh | Duplicate)]
        self._stored = max(self._stored, *offsets) if offsets else self._stored
        due = max(offsets, default=self._stored)
        sends = self._own(self._in, effects)
        if not self._late:
            return sends
        self._owed.extend((due, send) for send in sends if isinstance(send, Send))
        return [*(effect for effect in sends if not isinstance(effect, Send)), *self._release()]

    def _release(self) -> list[Effect]:
        if not self._owed:
            return []
        passed = self.passed
        ready = [send for due, send in self._owed if due <= passed]
        if ready:
            self._owed = deque(((due, send) for due, send in self._owed if due > passed), maxlen=OWED_MAX)
        return list(ready)


def _passed(machine: Machine) -> int:
    assert isinstance(machine, Sender | Follower)
    return machine.cursor.offset if machine.cursor is not None else 0


def _expects(machine: Machine, event: ReadDone | ReadFailed | ReadTrimmed) -> bool:
    assert isinstance(machine, Sender | Follower)
    return machine.awaits(event.after)


def _confirm(inlets: Sequence[InletConfig]) -> ConfirmOn | None:
    return next((inlet.confirm for inlet in inlets if inlet.confirm is not None), None)


def _receiver(config: StageConfig) -> ReceiverConfig:
    if len({inlet.dedup for inlet in config.inlets}) > 1:
        raise ConfigError(
            f"{config.name} keeps one memory, but its ways in ask for different dedups", fix="give them all the same"
        )
    inlet = config.inlets[0] if config.inlets else InletConfig(f"app>{config.name}")
    order = ORDERS[inlet.dedup]
    return ReceiverConfig(
        f"{config.pipeline}/{config.name}",
        inlet.hop,
        stream=config.stream,
        pipeline=config.pipeline,
        order=order,
        hop_index=order is not ReceiveOrder.ID and inlet.dedup is not DedupBy.SESSION,
        buffer_max=inlet.buffer_max,
        gap=inlet.gap,
    )


def _onward(config: StageConfig, cursors: Cursors) -> list[Machine]:
    machines: list[Machine] = []
    for outlet in config.outlets:
        policy = outlet.resend or ResendPolicy()
        policy = replace(policy, retry=replace(policy.retry, then="suspend"))
        name = f"{config.pipeline}/{config.name}/{outlet.peer}"
        send = SenderConfig(name, config.stream, outlet.peer, outlet.hop, config.pipeline, policy, config.seed)
        machines.append(Sender(send, cursors.cursor(send.cursor)))
    if config.handles:
        follow = FollowerConfig(
            f"{config.pipeline}/{config.name}",
            config.stream,
            f"{config.name}>handler",
            config.pipeline,
            ahead=HANDLED_AT_ONCE,
            retry=config.handler_retry,
        )
        machines.append(Follower(follow, cursors.cursor(follow.cursor)))
    return machines
