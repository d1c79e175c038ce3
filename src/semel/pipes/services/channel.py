"""Channels: two pipes, one in each direction, under addresses that stay out of each other's way.

    application ⇄ outer address │ channel │ inner address ⇄ ⋯ route ⋯ ⇄ inner │ channel │ outer ⇄ application

What is sent to the outer address with a route behind it comes out at the far end and goes on along that route, and the
far end's outer address is on its way back: an answer returns through the channel. Between the inner addresses go the
pipes' own messages. Since those are messages like any other, a channel may lie over a channel.

A *static* channel knows both routes beforehand. A *session* is opened by an initiator at a spawner, which makes one
responder for each: a spawner that was restarted does not know the session, says so, and the initiator opens another
and sends again what nobody has confirmed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any

import msgspec

from semel.errors import ConfigError, InputError
from semel.kernel.effects import Deliver, Delivered, Effect, Event, Notify, Received, Resume, Send
from semel.kernel.envelope import Envelope
from semel.kernel.hop import AskForGap, Confirm, HopMessage
from semel.kernel.resend import Resend, ResendPolicy, Transmit
from semel.kernel.text import ID_CHARS_MAX, check_id
from semel.pipes.language.options import ConfirmOn
from semel.pipes.services.storage import StorageWire, until_answered
from semel.pipes.workers.blocks import Ends
from semel.pipes.workers.route import LOCAL, Parcel, ToWorker, parse_address
from semel.pipes.workers.stage import Stage, StageConfig

APP, FAR = "app", "far"
CARRIED = "semel.channel.parcel"
UNKNOWN, IDLE, FULL, FINISHED = "unknown session", "idle", "full", "finished"

PipeKind = Callable[[str, str], Ends]
"""A building block, applied to the names of its two ends."""


# -- the wire


class OpenSession(msgspec.Struct, frozen=True, tag="channel-open"):
    """The initiator asks for a responder. Its inner address is on the way back. Asking again is the same question."""

    session: str


class SessionOpened(msgspec.Struct, frozen=True, tag="channel-opened"):
    """`responder` is the one that was made for the session. It is named in all that follows: a late copy of
    `OpenSession` may reach a spawner that was restarted, whose responder knows nothing of what the first has had."""

    session: str
    responder: str


class CloseSession(msgspec.Struct, frozen=True, tag="channel-close"):
    """One side no longer has the session, or never had it."""

    session: str
    reason: str


class Carried(msgspec.Struct, frozen=True, tag="channel-carried"):
    """A message of one of the two pipes. A static channel has no session and no responder."""

    session: str
    responder: str
    body: HopMessage | Confirm | AskForGap


CHANNEL_TYPES = (OpenSession, SessionOpened, CloseSession, Carried)
ChannelWire = OpenSession | SessionOpened | CloseSession | Carried


class InnerMessage(msgspec.Struct, frozen=True):
    """What the application sent, as the pipe carries it: the way that lies before it beyond the channel, and the way
    back. It is an application's envelope, or a message of another protocol, such as a channel's above this one."""

    onward: tuple[str, ...]
    back: tuple[str, ...]
    envelope: Envelope | None = None
    wire: HopMessage | Confirm | AskForGap | ChannelWire | StorageWire | None = None


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(InnerMessage)


def addressed(found: ToWorker) -> Parcel:
    """What a router found for a worker, with the address on it: a channel has two and must know which was meant."""
    parcel = found.parcel
    return Parcel((f"{LOCAL}#{found.worker}", *parcel.onward), parcel.back, parcel.bodies)


# -- one end

Kept = OrderedDict[str, Envelope]
"""Messages on their way, under what makes two of them the same."""


@dataclass(slots=True)
class _Moves:
    """What came of something: for the far end, for the application here, for people."""

    frames: list[HopMessage | Confirm | AskForGap] = field(default_factory=list)
    arrived: list[InnerMessage] = field(default_factory=list)
    notes: list[Effect] = field(default_factory=list)


class _End:
    """A stage out and a stage in. `kept` holds what went in and is not confirmed, in order. What is on its way already
    does not go in again: a protocol that resends over this one would fill it with copies of what it still has."""

    def __init__(self, pipe: PipeKind, near: str, run: str) -> None:
        there, here = pipe(near, FAR), pipe(FAR, near)
        if there.durable or here.durable:
            raise ConfigError(f"the channel {near} keeps its state in memory", fix="use a durable pipe by itself")
        self.confirms = _never_discards(there.sender.outlets[0].resend)
        self.kept: Kept = OrderedDict()
        self._keys: dict[str, str] = {}
        self.out = Stage(_entry(there.sender, self.confirms), run)
        self.arrivals = Stage(replace(here.receiver, handles=True, report_s=None), run)

    def offer(self, key: str, envelope: Envelope, now: float) -> _Moves:
        if key in self.kept:
            return _Moves()
        if self.confirms:
            self.kept[key] = envelope
            self._keys[envelope.id] = key
        return self._collect(self.out.receive(Received(APP, envelope), now), now)

    def take(self, body: HopMessage | Confirm | AskForGap, now: float) -> _Moves:
        stage = self.arrivals if isinstance(body, HopMessage) else self.out
        return self._collect(stage.receive(Received(FAR, body), now), now)

    def resume(self, now: float) -> _Moves:
        return self._collect(self.out.receive(Resume(), now), now)

    def next_deadline(self) -> float | None:
        deadlines = (self.out.next_deadline(), self.arrivals.next_deadline())
        return min((at for at in deadlines if at is not None), default=None)

    def on_timer(self, now: float) -> _Moves:
        return self._collect([*self.out.on_timer(now), *self.arrivals.on_timer(now)], now)

    def _collect(self, effects: Sequence[Effect], now: float) -> _Moves:
        moves = _Moves()
        waiting = list(reversed(effects))
        while waiting:
            effect = waiting.pop()
            match effect:
                case Send(peer=peer, message=Confirm(deliveries=deliveries)) if peer == APP:
                    for delivery in deliveries:
                        self.kept.pop(self._keys.pop(delivery), None)
                case Send(message=message):
                    moves.frames.append(message)
                case Deliver(item=item, token=token):
                    self._hand_over(item.envelope, moves)
                    waiting += reversed(self.arrivals.receive(Delivered(token), now))
                case Notify():
                    moves.notes.append(effect)
        return moves

    def _hand_over(self, envelope: Envelope, moves: _Moves) -> None:
        """What cannot be read would come again for ever if it were not confirmed: it is reported instead."""
        try:
            moves.arrived.append(_unpack(envelope))
        except InputError as error:
            moves.notes.append(Notify("rejected", error.message, envelope.id))


def _entry(sender: StageConfig, confirms: bool) -> StageConfig:
    """The stage tells when a message has been confirmed, as it would tell a stage before it."""
    inlet = replace(sender.inlets[0], peers=(APP,), confirm=ConfirmOn.CASCADE if confirms else None)
    return replace(sender, inlets=(inlet,), report_s=None)


def _never_discards(resend: ResendPolicy | None) -> bool:
    """Whether every message ends in a confirm: only then is it worth keeping until it comes."""
    return resend is not None and (resend.retry.retries is None or resend.retry.then != "discard")


def _pack(inside: InnerMessage, source: str, number: str) -> tuple[str, Envelope]:
    """What makes it the same as another, and the message that the pipe carries.

    An application's message keeps its id, with the place that it goes to: the same message to two places is two. A
    protocol's message is new each time it is sent, since that protocol lives by its own resends: a pipe that drops
    duplicates would drop those. It is the same only as one that has not yet arrived."""
    data = _encoder.encode(inside)
    message = inside.envelope
    if message is None:
        key = _encoder.encode(msgspec.structs.replace(inside, wire=_first_attempt(inside.wire)))
        return f"wire {_digest(key)}", Envelope(number, source=source, type=CARRIED, data=data)
    id = f"{message.id}>{';'.join(inside.onward)}"
    if len(id) > ID_CHARS_MAX:
        id = f"{id[:200]}~{_digest(id.encode())}"
    return id, Envelope(id, source=source, type=CARRIED, session=message.session, data=data)


def _digest(data: bytes) -> str:
    return blake2b(data, digest_size=16).hexdigest()


def _first_attempt(wire: Any) -> Any:
    if isinstance(wire, Carried):
        return msgspec.structs.replace(wire, body=_first_attempt(wire.body))
    return msgspec.structs.replace(wire, attempt=1, floor=0) if isinstance(wire, HopMessage) else wire


def _unpack(envelope: Envelope) -> InnerMessage:
    if envelope.type != CARRIED:
        raise InputError(f"{envelope.id} does not come from a channel", fix="send to the channel's outer address")
    try:
        return _decoder.decode(envelope.data)
    except msgspec.MsgspecError as error:
        raise InputError(f"{envelope.id} does not hold a channel's parcel: {error}", fix="check the sender") from None


@dataclass(frozen=True, slots=True)
class ChannelConfig:
    """`route` leads to the far end's inner address; for an initiator, to the spawner's. At most `queue_max` messages
    are kept unconfirmed: more are dropped, as by any link, and people are notified."""

    name: str
    route: tuple[str, ...]
    pipe: PipeKind
    inner: str = ""
    outer: str = ""
    timeout_s: float = 1.0
    queue_max: int = 10_000

    @property
    def inner_address(self) -> str:
        return self.inner or f"{self.name}.inner"

    @property
    def outer_address(self) -> str:
        return self.outer or self.name


class _Host:
    """What every channel machine does with addresses: take parcels in, and give parcels out."""

    def __init__(self, name: str, inner: str, outer: str, run: str) -> None:
        self.name = name
        self.inner = inner
        self.outer = outer
        self._run = run
        self._last = 0

    @property
    def addresses(self) -> tuple[str, ...]:
        """The workers as which a router knows it."""
        return self.inner, self.outer

    def _next(self) -> str:
        self._last += 1
        return f"{self._run}/{self._last}"

    def _enclose(self, onward: tuple[str, ...], back: tuple[str, ...], body: Any) -> tuple[str, Envelope] | Notify:
        """What the pipe is to carry, or why it cannot."""
        try:
            if isinstance(body, Envelope):
                return _pack(InnerMessage(onward, back, envelope=body), self.name, "")
            return _pack(InnerMessage(onward, back, wire=body), self.name, self._next())
        except InputError as error:
            return self._rejected(error)

    def _out(
        self, moves: _Moves, names: tuple[str, str], route: tuple[str, ...], trace: tuple[str, ...]
    ) -> list[Effect]:
        """The application's first and the confirms after them: what is confirmed has been passed on."""
        effects: list[Effect] = []
        for inside in moves.arrived:
            effects += self._arrived(inside, trace)
        if moves.frames:
            effects.append(self._send(route, *(Carried(*names, frame) for frame in moves.frames)))
        return effects + moves.notes

    def _arrived(self, inside: InnerMessage, trace: tuple[str, ...]) -> list[Effect]:
        body = inside.envelope if inside.envelope is not None else inside.wire
        if not inside.onward:
            return [self._astray("the route ends at the channel")]
        try:
            parcel = Parcel(inside.onward, (*trace, *inside.back), (body,))
        except InputError as error:
            return [self._astray(error.message)]
        return [Send(parcel.onward[0], parcel)]

    def _send(self, route: tuple[str, ...], *bodies: ChannelWire) -> Send:
        return Send(route[0] if route else "", Parcel(route, (f"{LOCAL}#{self.inner}",), bodies))

    def _astray(self, why: str) -> Notify:
        return Notify("astray", f"{self.name}: {why}")

    def _rejected(self, error: InputError) -> Notify:
        return Notify("rejected", f"{self.name}: {error.message}")

    def _is_outer(self, address: str) -> bool:
        return _local_name(address) == self.outer


def _local_name(address: str) -> str:
    """The worker that an address names; nobody, where it is none: a stranger may have written it."""
    try:
        found = parse_address(address)
    except InputError:
        return ""
    return found.name if found.kind == LOCAL else ""


class Channel(_Host):
    """One end of a static channel; the other one is another `Channel`. Without a handshake neither notices that the
    other was restarted, so a pipe that counts from 1 is for sessions."""

    def __init__(self, config: ChannelConfig, run: str) -> None:
        super().__init__(config.name, config.inner_address, config.outer_address, run)
        self.config = config
        self._end = _End(config.pipe, config.name, run)

    @property
    def unconfirmed(self) -> int:
        return len(self._end.kept)

    def start(self, now: float) -> Sequence[Effect]:
        return ()

    def receive(self, event: Event, now: float) -> Sequence[Effect]:
        effects: list[Effect] = []
        match event:
            case Received(message=Parcel(onward=(address, *rest), back=back, bodies=bodies)):
                for body in bodies:
                    if self._is_outer(address):
                        effects += self._offer(tuple(rest), back, body, now)
                    elif isinstance(body, Carried) and not body.session:
                        effects += self._moved(self._end.take(body.body, now))
            case Resume():
                effects += self._moved(self._end.resume(now))
        return effects

    def next_deadline(self) -> float | None:
        return self._end.next_deadline()

    def on_timer(self, now: float) -> Sequence[Effect]:
        return self._moved(self._end.on_timer(now))

    def _offer(self, onward: tuple[str, ...], back: tuple[str, ...], body: Any, now: float) -> list[Effect]:
        if len(self._end.kept) >= self.config.queue_max:
            return [Notify("full", f"{self.name} keeps {self.config.queue_max} messages unconfirmed and takes no more")]
        enclosed = self._enclose(onward, back, body)
        if isinstance(enclosed, Notify):
            return [enclosed]
        return self._moved(self._end.offer(*enclosed, now))

    def _moved(self, moves: _Moves) -> list[Effect]:
        return self._out(moves, ("", ""), self.config.route, (f"{LOCAL}#{self.outer}",))


class Initiator(_Host):
    """Opens a session and keeps it open until the application sends `CloseSession` to the outer address.

    `run` names this life and is never used twice: its sessions begin with it."""

    def __init__(self, config: ChannelConfig, run: str) -> None:
        super().__init__(config.name, config.inner_address, config.outer_address, run)
        self.config = config
        self.session = ""
        self.is_open = False
        self._responder = ""
        self._end = _End(config.pipe, config.name, run)
        self._waiting: Kept = OrderedDict()
        self._opens: Resend[OpenSession] = Resend(until_answered(config.timeout_s))
        self._finished = False

    @property
    def unconfirmed(self) -> int:
        return len(self._end.kept) + len(self._waiting)

    def start(self, now: float) -> Sequence[Effect]:
        return self._open(now)

    def receive(self, event: Event, now: float) -> Sequence[Effect]:
        effects: list[Effect] = []
        match event:
            case Received(message=Parcel(onward=(address, *rest), back=back, bodies=bodies)):
                for body in bodies:
                    if self._is_outer(address):
                        effects += self._offer(tuple(rest), back, body, now)
                    else:
                        effects += self._receive(body, now)
            case Resume() if self.is_open:
                effects += self._moved(self._end.resume(now))
        return [*effects, *self._close_if_finished()]

    def next_deadline(self) -> float | None:
        deadlines = (self._opens.next_deadline(), self._end.next_deadline() if self.is_open else None)
        return min((at for at in deadlines if at is not None), default=None)

    def on_timer(self, now: float) -> Sequence[Effect]:
        outcomes = self._opens.on_timer(now)
        effects: list[Effect] = [
            self._send(self.config.route, each.item) for each in outcomes if isinstance(each, Transmit)
        ]
        if self.is_open:
            effects += self._moved(self._end.on_timer(now))
        return effects

    # -- the session

    def _open(self, now: float) -> list[Effect]:
        """Always another session: an old one's late messages are then told from this one's."""
        if len(self._opens):
            return []
        self.session = self._next()
        opens = self._opens.offer(self.session, OpenSession(self.session), now)
        return [self._send(self.config.route, each.item) for each in opens]

    def _receive(self, body: Any, now: float) -> list[Effect]:
        match body:
            case SessionOpened(session=session, responder=responder) if session in self._opens.unconfirmed():
                self._opens.confirm(session, now)
                self._responder = responder
                return self._opened(now)
            case Carried(session=session, responder=responder, body=frame) if self._is_mine(session, responder):
                return self._moved(self._end.take(frame, now))
            case CloseSession(session=session, reason=reason) if session == self.session and self.is_open:
                return self._lost(reason, now)
        return []

    def _is_mine(self, session: str, responder: str) -> bool:
        return self.is_open and (session, responder) == (self.session, self._responder)

    def _opened(self, now: float) -> list[Effect]:
        self.is_open = True
        self._end = _End(self.config.pipe, self.config.name, self.session)
        waiting, self._waiting = self._waiting, OrderedDict()
        offers = (self._end.offer(key, envelope, now) for key, envelope in waiting.items())
        return [effect for moves in offers for effect in self._moved(moves)]

    def _lost(self, reason: str, now: float) -> list[Effect]:
        """What nobody has confirmed goes into the next session, before whatever comes now. A responder that was only
        idle is not replaced before there is something to say."""
        self.is_open = False
        self._waiting = self._end.kept
        self._end = _End(self.config.pipe, self.config.name, self._next())
        return self._open(now) if self._waiting or reason == UNKNOWN else []

    # -- messages

    def _offer(self, onward: tuple[str, ...], back: tuple[str, ...], body: Any, now: float) -> list[Effect]:
        if isinstance(body, CloseSession):
            self._finished = True
            return []
        if self._finished or self.unconfirmed >= self.config.queue_max:
            return [Notify("full", f"{self.name} is closed, or keeps {self.config.queue_max} messages unconfirmed")]
        enclosed = self._enclose(onward, back, body)
        if isinstance(enclosed, Notify):
            return [enclosed]
        if self.is_open:
            return self._moved(self._end.offer(*enclosed, now))
        self._waiting.setdefault(*enclosed)
        return self._open(now)

    def _close_if_finished(self) -> list[Effect]:
        """The application has said all that it wanted to say, and all of it has arrived."""
        if not self._finished or not self.is_open or self.unconfirmed:
            return []
        self.is_open = False
        return [self._send(self.config.route, CloseSession(self.session, FINISHED))]

    def _moved(self, moves: _Moves) -> list[Effect]:
        return self._out(moves, (self.session, self._responder), self.config.route, (f"{LOCAL}#{self.outer}",))


@dataclass(frozen=True, slots=True)
class SpawnerConfig:
    """At most `sessions_max` responders at a time; one that has received nothing for `idle_s` is closed."""

    name: str
    pipe: PipeKind
    inner: str = ""
    outer: str = ""
    sessions_max: int = 1000
    idle_s: float = 600.0
    queue_max: int = 10_000


@dataclass(slots=True, eq=False)
class Responder:
    """The far end of one session. `route` is the way by which its initiator last sent, turned round."""

    name: str
    end: _End
    route: tuple[str, ...]
    received_at: float


class Spawner(_Host):
    """Makes a responder for each session that is opened, under addresses of its own.

    The way back from a responder leads over the spawner's outer address and, as the next one, the session."""

    def __init__(self, config: SpawnerConfig, run: str) -> None:
        super().__init__(config.name, config.inner or f"{config.name}.inner", config.outer or config.name, run)
        self.config = config
        self.sessions: OrderedDict[str, Responder] = OrderedDict()

    def start(self, now: float) -> Sequence[Effect]:
        return ()

    def receive(self, event: Event, now: float) -> Sequence[Effect]:
        effects: list[Effect] = []
        match event:
            case Received(message=Parcel(onward=(address, *rest), back=back, bodies=bodies)):
                for body in bodies:
                    if self._is_outer(address):
                        effects += self._offer(tuple(rest), back, body, now)
                    else:
                        effects += self._receive(back, body, now)
            case Resume():
                for session, responder in self.sessions.items():
                    effects += self._moved(session, responder, responder.end.resume(now))
        return effects

    def next_deadline(self) -> float | None:
        deadlines = [at for each in self.sessions.values() if (at := each.end.next_deadline()) is not None]
        if self.sessions:
            deadlines.append(next(iter(self.sessions.values())).received_at + self.config.idle_s)
        return min(deadlines, default=None)

    def on_timer(self, now: float) -> Sequence[Effect]:
        effects: list[Effect] = []
        for session, responder in list(self.sessions.items()):
            if responder.received_at + self.config.idle_s <= now:
                effects += self._close(session, IDLE)
                continue
            deadline = responder.end.next_deadline()
            if deadline is not None and deadline <= now:
                effects += self._moved(session, responder, responder.end.on_timer(now))
        return effects

    # -- sessions

    def _receive(self, back: tuple[str, ...], body: Any, now: float) -> list[Effect]:
        match body:
            case OpenSession(session=session):
                return self._opens(session, back, now)
            case Carried(session=session, responder=name, body=frame):
                responder = self._responder(session, back, now)
                if responder is None or responder.name != name:
                    return [self._send(back, CloseSession(session, UNKNOWN))] if back else []
                return self._moved(session, responder, responder.end.take(frame, now))
            case CloseSession(session=session):
                self.sessions.pop(session, None)
        return []

    def _responder(self, session: str, back: tuple[str, ...], now: float) -> Responder | None:
        """The longest silent is first in `sessions`, so that it is the first to be found idle."""
        responder = self.sessions.get(session)
        if responder is not None:
            responder.route, responder.received_at = back, now
            self.sessions.move_to_end(session)
        return responder

    def _opens(self, session: str, back: tuple[str, ...], now: float) -> list[Effect]:
        if not back:
            return []
        try:
            check_id("session", session)
        except InputError as error:
            return [self._rejected(error)]
        responder = self._responder(session, back, now)
        if responder is None:
            if len(self.sessions) >= self.config.sessions_max:
                return [self._send(back, CloseSession(session, FULL))]
            name = self._next()
            responder = Responder(name, _End(self.config.pipe, self.name, name), back, now)
            self.sessions[session] = responder
        return [self._send(back, SessionOpened(session, responder.name))]

    def _close(self, session: str, reason: str) -> list[Effect]:
        responder = self.sessions.pop(session)
        effects: list[Effect] = [self._send(responder.route, CloseSession(session, reason))]
        if responder.end.kept:
            detail = f"{self.name}: {session} was closed ({reason}) with {len(responder.end.kept)} unconfirmed"
            effects.append(Notify("session-closed", detail))
        return effects

    # -- messages

    def _offer(self, onward: tuple[str, ...], back: tuple[str, ...], body: Any, now: float) -> list[Effect]:
        session = _local_name(onward[0]) if onward else ""
        responder = self.sessions.get(session)
        if responder is None:
            return [self._astray(f"there is no session {session!r}")]
        if len(responder.end.kept) >= self.config.queue_max:
            return [Notify("full", f"{self.name}: {session} keeps {self.config.queue_max} messages unconfirmed")]
        enclosed = self._enclose(onward[1:], back, body)
        if isinstance(enclosed, Notify):
            return [enclosed]
        return self._moved(session, responder, responder.end.offer(*enclosed, now))

    def _moved(self, session: str, responder: Responder, moves: _Moves) -> list[Effect]:
        trace = f"{LOCAL}#{self.outer}", f"{LOCAL}#{session}"
        return self._out(moves, (session, responder.name), responder.route, trace)
