"""Clients that send streams to each other and watch each other's states in a group."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from semel.errors import RequestInDoubt, SemelError, StreamBroken
from semel.pubsub.client.events import (
    BeginStream,
    ClientOptions,
    DeliverMessage,
    Effect,
    EndStream,
    FlushStream,
    MessageDelivered,
    ReportStates,
    RequestFailed,
    Result,
    SessionLost,
    Settle,
    StreamEvent,
    StreamOver,
    SubmitRequest,
    WritePart,
)
from semel.pubsub.client.inbound import Ended, Inbound, PartReceived, StreamBegan
from semel.pubsub.hub.records import RecordKind, terms_of
from semel.pubsub.hub.session_rows import SessionRow, read_session, session_key
from semel.pubsub.protocol.messages import (
    ErrorName,
    Fault,
    GroupMessage,
    GroupStateItem,
    SetGroupState,
    StartStream,
    StreamPart,
    SubscribeGroupState,
)
from semel.sim.client.actor import Actor
from semel.sim.client.network import ClientWorld
from semel.sim.hub.node import HUB, text

GROUP = "g"


@dataclass
class SentStream:
    """What a sender knows of a stream. `written`: those for which there was room, `sure` up to which one a flush has
    returned; `over` is the last word."""

    id: str
    parts: int
    aborts: bool
    written: list[str] = field(default_factory=list)
    sure: int = 0
    over: StreamOver | None = None


@dataclass
class ReceivedStream:
    """What a receiver has of one stream. `end` is empty while it goes on."""

    id: str
    is_whole: bool
    bodies: list[str] = field(default_factory=list)
    end: list[SemelError | None] = field(default_factory=list)


class StreamActor(Actor):
    def __init__(self, world: ClientWorld, name: str, options: ClientOptions) -> None:
        self.sent: dict[str, SentStream] = {}
        self.incoming: dict[int, ReceivedStream] = {}
        self.inbound = Inbound()
        self.seen: dict[str, GroupStateItem] = {}
        self._steps: dict[int, Callable[[Result], None]] = {}
        self.waits = 0
        self.last_state: dict[str, str] | None = None
        super().__init__(world, name, options)

    def perform(self, effects: list[Effect]) -> None:  # type: ignore[override]
        for effect in effects:
            match effect:
                case Settle(token=token, result=result) if token in self._steps:
                    self.waits -= 1
                    self._steps.pop(token)(result)
                case StreamOver(stream_id=id):
                    if self.sent[id].over is not None:
                        self.world.violated(f"{id} is over twice")
                    self.sent[id].over = effect
                case ReportStates(changed=changed):
                    self._see(changed)
                case _:
                    super().perform([effect])

    # -- sending

    def stream(self, id: str, parts: int, *, aborts: bool) -> None:
        sent = self.sent[id] = SentStream(id, parts, aborts)
        self._do(lambda token: BeginStream(token, StartStream(GROUP, id)), lambda result: self._begun(sent, result))

    def _do(self, make: Callable[[int], StreamEvent], then: Callable[[Result], None]) -> None:
        token = next(self.world.tokens)
        self._steps[token] = then
        self.waits += 1
        self.feed(make(token))

    def _begun(self, sent: SentStream, result: Result) -> None:
        if not isinstance(result, RequestFailed):
            self._soon(lambda: self._write(sent))

    def _soon(self, do: Callable[[], None]) -> None:
        """As an application would: not from within the machine."""
        chance = self.world.chance
        delay_s = chance.choice([0.0, chance.random() * 0.01, chance.random()])
        self.world.clock.after(delay_s, f"{self.name} streams", do)

    def _write(self, sent: SentStream) -> None:
        if sent.over is not None:
            return
        number = len(sent.written) + 1
        if number > sent.parts:
            self._end(sent)
            return
        body = f"{sent.id} {number}"

        def written(result: Result) -> None:
            if not isinstance(result, RequestFailed):
                sent.written.append(body)
                self._soon(lambda: self._flush(sent) if self.world.chance.random() < 0.1 else self._write(sent))

        self._do(lambda token: WritePart(token, sent.id, text(body)), written)

    def _flush(self, sent: SentStream) -> None:
        if sent.over is not None:
            return
        upto = len(sent.written)

        def flushed(result: Result) -> None:
            if not isinstance(result, RequestFailed):
                sent.sure = upto
                self._soon(lambda: self._write(sent))

        self._do(lambda token: FlushStream(token, sent.id), flushed)

    def _end(self, sent: SentStream) -> None:
        error = Fault(ErrorName.USER, "no more", "E7") if sent.aborts else None
        self._do(lambda token: EndStream(token, sent.id, error), lambda result: None)

    # -- receiving

    def _hand_over(self, effect: DeliverMessage) -> None:
        message = effect.message
        assert isinstance(message, GroupMessage)
        for step in self.inbound.take(message):
            match step:
                case StreamBegan(number=number, is_whole=is_whole):
                    assert message.stream is not None
                    self.incoming[number] = ReceivedStream(message.stream.stream_id, is_whole)
                case PartReceived(number=number):
                    assert message.data is not None
                    self.incoming[number].bodies.append(message.data.body.decode())
                case Ended(number=number, error=error):
                    self.incoming[number].end.append(error)
        self._busy_until = max(self._busy_until, self.world.now + self.world.chance.random() * 0.005)
        self._had_later(effect.number, message.sequence_id or 0)

    def _had_later(self, number: int, sequence_id: int) -> None:
        def do() -> None:
            self._had = sequence_id
            self.feed(MessageDelivered(number))

        self.world.clock.at(self._busy_until, f"{self.name} has {sequence_id}", do)

    # -- states

    def say(self, value: str | None) -> None:
        state = self.last_state = None if value is None else {"mood": value}
        self.ask(SubmitRequest(next(self.world.tokens), SetGroupState(GROUP, state=state)))

    def watch(self) -> None:
        self.ask(SubmitRequest(next(self.world.tokens), SubscribeGroupState(GROUP)))

    def _see(self, changed: tuple[GroupStateItem, ...]) -> None:
        for item in changed:
            if self.seen.get(item.connection_id) == (None if item.state is None else item):
                self.world.violated(f"{self.name} was notified twice of {item}")
            if item.state is None:
                self.seen.pop(item.connection_id, None)
            else:
                self.seen[item.connection_id] = item


# -- what must be true


def check_streams(world: ClientWorld) -> Iterator[str]:
    """In the hub each part is once and in order, and the end is as it was reported to its sender."""
    published = _streams(world)
    for actor in _members(world):
        for sent in actor.sent.values():
            yield from _check_sent(sent, published.get(sent.id, []))


def _members(world: ClientWorld) -> list[StreamActor]:
    return [actor for actor in world.actors if isinstance(actor, StreamActor)]


def _streams(world: ClientWorld, after: int = 0) -> dict[str, list[tuple[StreamPart, str]]]:
    """What the hub has of each stream, after this offset."""
    found: dict[str, list[tuple[StreamPart, str]]] = defaultdict(list)
    for record in world.records():
        part = terms_of(record.envelope).stream if record.kind == RecordKind.MESSAGE else None
        if part is not None and record.position.offset > after:
            found[part.stream_id].append((part, record.envelope.data.decode()))
    return found


def _check_sent(sent: SentStream, published: list[tuple[StreamPart, str]]) -> Iterator[str]:
    parts = [(part.sequence_id, body) for part, body in published if not part.is_end]
    ends = [part for part, _ in published if part.is_end]
    good = [end for end in ends if end.error is None]
    error = sent.over.error if sent.over is not None else None
    wrong = {
        "is not in order, or twice": parts != [(n, f"{sent.id} {n}") for n in range(1, len(parts) + 1)],
        "has several ends": len(ends) > 1,
        "has lost what was flushed": len(parts) < sent.sure,
        "is whole without all its parts": bool(good) and not len(parts) == len(sent.written) == sent.parts,
        "broke, and its receivers take it for whole": isinstance(error, StreamBroken) and bool(good),
        "has lost what was sure": isinstance(error, StreamBroken) and len(parts) < error.parts,
        "is in doubt without all its parts": isinstance(error, RequestInDoubt) and len(parts) != sent.parts,
    }
    if sent.over is not None and error is None:
        wrong["did not end well"] = not sent.aborts and [end.error for end in ends] != [None]
        wrong["was given up, and is whole"] = sent.aborts and (not ends or bool(good))
    yield from (f"{sent.id} {what}" for what, is_so in wrong.items() if is_so)


def check_received(world: ClientWorld) -> Iterator[str]:
    """Who lost no session has all of all streams, and whoever has a whole has all parts of it."""
    published = _streams(world)
    for actor in _members(world):
        for got in actor.incoming.values():
            bodies = [body for part, body in published[got.id] if not part.is_end]
            if got.is_whole and got.end == [None] and got.bodies != bodies:
                yield f"{actor.name} took {got.id} for whole"
        if not actor.losses:
            yield from _check_all_received(actor, _streams(world, actor.joined_at[GROUP]))


def _check_all_received(actor: StreamActor, due: dict[str, list[tuple[StreamPart, str]]]) -> Iterator[str]:
    ended = {id for id, parts in due.items() if parts[0][0].sequence_id == 1 and parts[-1][0].is_end}
    got = {got.id for got in actor.incoming.values() if len(got.end) == 1}
    if not ended <= got:
        yield f"{actor.name} has not had {sorted(ended - got)}"
    if any(len(got.end) > 1 for got in actor.incoming.values()):
        yield f"{actor.name} got several ends of one stream"


def check_states(world: ClientWorld) -> Iterator[str]:
    """What was reported to a watcher is what the store holds, and the last state of each is there."""
    rows = {name: row.states[GROUP] for name, row in _sessions(world) if GROUP in row.states}
    there = {name: (own.state, own.updated_at) for name, own in rows.items()}
    for actor in _members(world):
        seen = {name: (item.state, item.updated_at) for name, item in actor.seen.items()}
        if seen != there:
            yield f"{actor.name} sees what is not there, or not all"
        own = rows[actor.connection].state if actor.connection in rows else None
        if own != actor.last_state:
            yield f"{actor.name} said {actor.last_state}, and there is {own}"


def _sessions(world: ClientWorld) -> Iterator[tuple[str, SessionRow]]:
    prefix = session_key(HUB, "")
    return ((key.removeprefix(prefix), read_session(state.value)) for key, state in world.store.states(prefix))


def check_over(world: ClientWorld) -> Iterator[str]:
    for actor in _members(world):
        if actor.waits or actor.unsettled:
            yield f"{actor.name} still waits"
        yield from (f"{sent.id} is not over" for sent in actor.sent.values() if sent.over is None)


def check_nothing_broke(world: ClientWorld) -> Iterator[str]:
    for actor in _members(world):
        yield from (f"{actor.name} lost a session" for state in actor.states if isinstance(state, SessionLost))
        over = [(sent.id, sent.over.error) for sent in actor.sent.values() if sent.over is not None]
        yield from (f"{id} broke: {error}" for id, error in over if error is not None)
