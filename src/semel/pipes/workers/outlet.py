"""The sending half of a stage: sends once, a fixed number of times, or until confirmed.

Each message gets a delivery and an index on this hop; a resend keeps both, and a confirm is accepted for whichever
attempt it answers. A new run of the sender begins a new numbering, and says so in the delivery.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from semel.errors import InputError
from semel.kernel.envelope import Envelope
from semel.kernel.hop import HopMessage
from semel.kernel.ledger import Kind
from semel.kernel.resend import GaveUp, Resend, ResendPolicy, Transmit
from semel.pipes.workers.meter import HopMeter

PACKED = "semel.pipe.message"
PACKED_BYTES_MAX = 180 * 1024
"""The largest body of a packed message. It leaves room for the longest headers within the limit of an envelope."""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(HopMessage)


@dataclass(frozen=True, slots=True)
class OutletConfig:
    """`repeats` blind copies follow each message where nobody confirms. `packs`: messages go through the pipe's own
    middle, whose hops carry them as the body of theirs. At most `queue_max` messages wait for a place in the window.
    `floors`: messages say below which index all is settled, for a receiver that must not wait for those."""

    hop: str
    peer: str
    resend: ResendPolicy | None = None
    repeats: int = 0
    packs: bool = False
    queue_max: int = 100_000
    floors: bool = False


class Outlet:
    def __init__(self, config: OutletConfig, meter: HopMeter, run: str, *, stage: str, seed: int = 0) -> None:
        self.config = config
        self.meter = meter
        self._stage = stage
        self._run = run
        self._last = 0
        self._floor = 1
        self.resend: Resend[HopMessage] | None = Resend(config.resend, seed=seed) if config.resend is not None else None

    @property
    def is_full(self) -> bool:
        return self.resend is not None and len(self.resend) >= self.config.queue_max

    @property
    def unconfirmed(self) -> int:
        return len(self.resend) if self.resend is not None else 0

    def takes(self, envelope: Envelope) -> bool:
        """Whether it can be carried at all: inside another message there is less room."""
        return not self.config.packs or (envelope.blob is None and len(envelope.data) <= PACKED_BYTES_MAX)

    def offer(self, envelope: Envelope, now: float) -> tuple[str, list[HopMessage]]:
        """The delivery that a confirm will name, and what goes on the wire now."""
        self._last = index = self._last + 1
        message = HopMessage(f"{self._run}/{index}", envelope, index)
        self.meter.count(Kind.SENT, envelope.id, index)
        if self.resend is not None:
            return message.delivery, self.messages(self.resend.offer(message.delivery, message, now))
        return message.delivery, [message, *self._repeats(message)] if self.config.repeats else [message]

    def _repeats(self, message: HopMessage) -> list[HopMessage]:
        for _ in range(self.config.repeats):
            self.meter.count(Kind.RESENT, message.envelope.id, message.index)
        return [_attempt(message, repeat + 2) for repeat in range(self.config.repeats)]

    def messages(self, transmits: Sequence[Transmit[HopMessage] | GaveUp]) -> list[HopMessage]:
        """What `Resend` wants on the wire, counted."""
        messages: list[HopMessage] = []
        for transmit in transmits:
            if isinstance(transmit, GaveUp):
                continue
            message = transmit.item
            if transmit.attempt > 1:
                self.meter.count(Kind.RESENT, message.envelope.id, message.index)
                message = _attempt(message, transmit.attempt)
            messages.append(message)
        return self._with_floor(messages) if self.config.floors and messages else messages

    def _with_floor(self, messages: list[HopMessage]) -> list[HopMessage]:
        assert self.resend is not None
        while self._floor < self._last and f"{self._run}/{self._floor}" not in self.resend:
            self._floor += 1
        return [msgspec.structs.replace(message, floor=self._floor) for message in messages]

    def confirm(self, deliveries: Sequence[str], now: float) -> list[HopMessage]:
        """What goes out in the room that these confirms make."""
        if self.resend is None:
            return []
        confirmed = self.resend.confirm_all(deliveries)
        for message in confirmed:
            self.meter.count(Kind.CONFIRMED, message.envelope.id, message.index)
        return self.messages(self.resend.fill(now)) if confirmed else []

    def gave_up(self, gave_up: GaveUp) -> None:
        item = gave_up.item
        assert isinstance(item, HopMessage)
        self.meter.count(Kind.FAILED, item.envelope.id, item.index)

    def wire(self, message: HopMessage) -> HopMessage | Envelope:
        return pack(self._stage, message) if self.config.packs else message


def _attempt(message: HopMessage, attempt: int) -> HopMessage:
    return HopMessage(message.delivery, message.envelope, message.index, attempt)


def pack(sender: str, message: HopMessage) -> Envelope:
    """A pipe's message as the body of its middle's messages. Each attempt is a message of its own to the middle: were
    it the same, a middle that drops duplicates would drop the resend that the pipe lives by."""
    return Envelope(
        f"{message.envelope.id}#{sender}#{message.delivery}#{message.attempt}"[-255:],
        source=sender,
        type=PACKED,
        session=message.envelope.session,
        data=_encoder.encode(message),
    )


def unpack(envelope: Envelope) -> tuple[str, HopMessage]:
    """The pipe's sender and its message."""
    if envelope.type != PACKED:
        raise InputError(f"{envelope.id} is not a pipe's message", fix="send into a pipe through its sending end")
    try:
        return envelope.source, _decoder.decode(envelope.data)
    except msgspec.MsgspecError as error:
        raise InputError(f"{envelope.id} does not hold a pipe's message: {error}", fix="check the sender") from None
