"""Clients that send streams to each other and watch each other's group states, through the bad weather of
`client_world`, with the real hub."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from tests.unit.pubsub.client.client_world import STREAM, Actor, ClientWorld, Weather
from tests.unit.pubsub.hub.world import text

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
from semel.pubsub.client.inbound import Began, Came, Ended, Inbound
from semel.pubsub.hub.record_kinds import RecordKind
from semel.pubsub.hub.records import terms_of
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

GROUP = "g"


@dataclass
class Sent:
    """What a sender knows of a stream. `written`: those for which there was room, `sure` up to which one a flush has
    returned; `over` is the last word."""

    id: str
    parts: int
    aborts: bool
    is_begun: bool = False
    written: list[str] = field(default_factory=list)
    sure: int = 0
    over: StreamOver | None = None


@dataclass
class Got:
    """What a receiver has of one stream. `end` is empty while it goes on."""

    id: str
    is_whole: bool
    bodies: list[str] = field(default_factory=list)
    end: list[SemelError | None] = field(default_factory=list)


class StreamActor(Actor):
    world: StreamWorld

    def __init__(self, world: StreamWorld, name: str, options: ClientOptions) -> None:
        self.sent: dict[str, Sent] = {}
        self.incoming: dict[int, Got] = {}
        self.inbound = Inbound()
        self.seen: dict[str, GroupStateItem] = {}
        self._steps: dict[int, Callable[[Result], None]] = {}
        self.waits = 0
        super().__init__(world, name, options)

    def perform(self, effects: list[Effect]) -> None:  # type: ignore[override]
        for effect in effects:
            match effect:
                case Settle(token=token, result=result) if token in self._steps:
                    self.waits -= 1
                    self._steps.pop(token)(result)
                case StreamOver(stream_id=id):
                    assert self.sent[id].over is None, "a stream is over once"
                    self.sent[id].over = effect
                case ReportStates(changed=changed):
                    self._see(changed)
                case _:
                    super().perform([effect])

    # -- sending

    def stream(self, id: str, parts: int, *, aborts: bool) -> None:
        sent = self.sent[id] = Sent(id, parts, aborts)
        self._do(lambda token: BeginStream(token, StartStream(GROUP, id)), lambda result: self._begun(sent, result))

    def _do(self, make: Callable[[int], StreamEvent], then: Callable[[Result], None]) -> None:
        token = next(self.world.tokens)
        self._steps[token] = then
        self.waits += 1
        self.tell(make(token))

    def _begun(self, sent: Sent, result: Result) -> None:
        if not isinstance(result, RequestFailed):
            sent.is_begun = True
            self._soon(lambda: self._write(sent))

    def _soon(self, do: Callable[[], None]) -> None:
        """As an application would: not from within the machine."""
        rng = self.world.rng
        self.world.at(self.world.now + rng.choice([0.0, rng.random() * 0.01, rng.random()]), do)

    def _write(self, sent: Sent) -> None:
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
                self._soon(lambda: self._flush(sent) if self.world.rng.random() < 0.1 else self._write(sent))

        self._do(lambda token: WritePart(token, sent.id, text(body)), written)

    def _flush(self, sent: Sent) -> None:
        if sent.over is not None:
            return
        upto = len(sent.written)

        def flushed(result: Result) -> None:
            if not isinstance(result, RequestFailed):
                sent.sure = upto
                self._soon(lambda: self._write(sent))

        self._do(lambda token: FlushStream(token, sent.id), flushed)

    def _end(self, sent: Sent) -> None:
        error = Fault(ErrorName.USER, "no more", "E7") if sent.aborts else None
        self._do(lambda token: EndStream(token, sent.id, error), lambda result: None)

    # -- receiving

    def _hand_over(self, effect: DeliverMessage) -> None:
        message = effect.message
        assert isinstance(message, GroupMessage)
        for step in self.inbound.take(message):
            match step:
                case Began(number=number, is_whole=is_whole):
                    assert message.stream is not None
                    self.incoming[number] = Got(message.stream.stream_id, is_whole)
                case Came(number=number):
                    assert message.data is not None
                    self.incoming[number].bodies.append(message.data.body.decode())
                case Ended(number=number, error=error):
                    self.incoming[number].end.append(error)
        self._busy_until = max(self._busy_until, self.world.now + self.world.rng.random() * 0.005)
        self._had_later(effect.number, message.sequence_id or 0)

    def _had_later(self, number: int, sequence_id: int) -> None:
        def do() -> None:
            self._had = sequence_id
            self.tell(MessageDelivered(number))

        self.world.at(self._busy_until, do)

    # -- states

    def say(self, value: str | None) -> None:
        state = None if value is None else {"mood": value}
        self.ask(SubmitRequest(next(self.world.tokens), SetGroupState(GROUP, state=state)))

    def watch(self) -> None:
        self.ask(SubmitRequest(next(self.world.tokens), SubscribeGroupState(GROUP)))

    def _see(self, changed: tuple[GroupStateItem, ...]) -> None:
        for item in changed:
            if item.state is None:
                assert item.connection_id in self.seen, "what was never told is taken back"
                del self.seen[item.connection_id]
            else:
                assert self.seen.get(item.connection_id) != item, "told twice"
                self.seen[item.connection_id] = item


class StreamWorld(ClientWorld):
    def actor(self, name: str, options: ClientOptions | None = None) -> StreamActor:
        actor = StreamActor(self, name, options or ClientOptions())
        self.actors.append(actor)
        return actor

    @property
    def members(self) -> list[StreamActor]:
        return [actor for actor in self.actors if isinstance(actor, StreamActor)]

    def streams(self, after: int = 0) -> dict[str, list[tuple[StreamPart, str]]]:
        """What the hub has of each stream, after this offset."""
        found: dict[str, list[tuple[StreamPart, str]]] = defaultdict(list)
        for record in self.store.read(STREAM, None, 1_000_000).records:  # type: ignore[union-attr]
            part = terms_of(record.envelope).stream if record.kind == RecordKind.MESSAGE else None
            if part is not None and record.position.offset > after:
                found[part.stream_id].append((part, record.envelope.data.decode()))
        return found


@dataclass(frozen=True)
class StreamPlan:
    window: int = 256
    refuses: bool = True
    loses_sessions: bool = False
    streams: int = 4
    faults: int = 16
    storm_s: float = 20.0
    calm_s: float = 300.0

    def run(self, seed: int) -> StreamWorld:
        world = StreamWorld(seed)
        options = ClientOptions(stream_window=self.window, connect_for_s=None, refusals_max=1000)
        for name in ("ann", "ben", "cem"):
            actor = world.actor(name, options)
            actor.join(GROUP)
            actor.watch()
        weather = Weather(world, refuses=self.refuses, loses_sessions=self.loses_sessions, crashes=False)
        weather.brew(self.storm_s, self.faults)
        names = count(1)
        for actor in world.members:
            for _ in range(self.streams):
                self._at(world, lambda actor=actor: self._stream(world, actor, next(names)))  # type: ignore[misc]
            for _ in range(5):
                value = world.rng.choice([None, "good", "bad", "typing"])
                self._at(world, lambda actor=actor, value=value: actor.say(value))  # type: ignore[misc]
        world.run_for(self.storm_s + 1)
        world.failing.clear()
        world.doubtful_commits = 0
        world.run_for(self.calm_s)
        return world

    def _at(self, world: StreamWorld, do: Callable[[], None]) -> None:
        world.at(world.now + 0.1 + world.rng.random() * self.storm_s, do)

    def _stream(self, world: StreamWorld, actor: StreamActor, number: int) -> None:
        actor.stream(f"{actor.name} {number}", world.rng.randint(0, 12), aborts=world.rng.random() < 0.2)


# -- what must be true


def check_streams(world: StreamWorld) -> None:
    """In the hub each part is once and in order, and the end is as its sender was told."""
    published = world.streams()
    for actor in world.members:
        for sent in actor.sent.values():
            _check_sent(sent, published.get(sent.id, []))


def _check_sent(sent: Sent, published: list[tuple[StreamPart, str]]) -> None:
    parts = [(part.sequence_id, body) for part, body in published if not part.is_end]
    ends = [part for part, _ in published if part.is_end]
    bodies = [f"{sent.id} {number}" for number in range(1, len(parts) + 1)]
    assert parts == [*enumerate(bodies, 1)], f"{sent.id} is not in order, or twice"
    assert len(ends) <= 1, f"{sent.id} has several ends"
    assert len(parts) >= sent.sure, f"{sent.id} has lost what was flushed"
    good = [end for end in ends if end.error is None]
    if sent.over is not None and sent.over.error is None:
        _check_as_asked(sent, parts, ends)
    if sent.over is not None and isinstance(sent.over.error, StreamBroken):
        assert not good, f"{sent.id} broke, and its receivers take it for whole"
        assert len(parts) >= sent.over.error.parts, f"{sent.id} has lost what was sure"
    if good:
        assert len(parts) == len(sent.written) == sent.parts, f"{sent.id} is whole without all its parts"
    if sent.over is not None and isinstance(sent.over.error, RequestInDoubt):
        assert len(parts) == sent.parts


def _check_as_asked(sent: Sent, parts: list[tuple[int, str]], ends: list[StreamPart]) -> None:
    if not sent.aborts:
        assert [end.error for end in ends] == [None], f"{sent.id} did not end well"
        assert len(parts) == sent.parts, f"{sent.id} is whole without all its parts"
    else:
        assert ends
        assert all(end.error is not None for end in ends), f"{sent.id} was given up, and is whole"


def check_received(world: StreamWorld) -> None:
    """Who lost no session has all of all streams, and whoever has a whole has all parts of it."""
    published = world.streams()
    for actor in world.members:
        for got in actor.incoming.values():
            if got.is_whole and got.end == [None]:
                bodies = [body for part, body in published[got.id] if not part.is_end]
                assert got.bodies == bodies, f"{actor.name} took {got.id} for whole"
        if not actor.losses:
            _check_all_received(actor, world.streams(actor.joined_at[GROUP]))


def _check_all_received(actor: StreamActor, due: dict[str, list[tuple[StreamPart, str]]]) -> None:
    ended = {id for id, parts in due.items() if parts[0][0].sequence_id == 1 and parts[-1][0].is_end}
    got = {got.id for got in actor.incoming.values() if len(got.end) == 1}
    assert ended <= got, f"{actor.name} has not had {sorted(ended - got)}"
    assert all(len(got.end) <= 1 for got in actor.incoming.values())


def check_states(world: StreamWorld) -> None:
    """What a watcher was told is what there is."""
    there = world.hub.group_states._groups.get(GROUP, {})
    for actor in world.members:
        view = actor.client.states.views[GROUP]
        assert view.items == actor.seen, f"{actor.name} was told something else than it knows"
        assert view.items == there, f"{actor.name} sees what is not there, or not all"
        own = next((item.state for item in there.values() if item.connection_id == _connection(actor)), None)
        assert actor.client.states.own.get(GROUP) == own, f"{actor.name} takes itself for another"


def _connection(actor: StreamActor) -> str:
    assert actor.client._session is not None
    return actor.client._session.connection_id


def check_all_is_over(world: StreamWorld) -> None:
    for actor in world.members:
        assert not actor.waits, f"{actor.name} still waits"
        assert not actor.unsettled
        left = [sent.id for sent in actor.sent.values() if sent.over is None]
        assert not left, f"{left} are not over"


def check_nothing_broke(world: StreamWorld) -> None:
    for actor in world.members:
        assert not any(isinstance(state, SessionLost) for state in actor.states)
        for sent in actor.sent.values():
            assert sent.over is not None
            assert sent.over.error is None, f"{sent.id}: {sent.over.error}"
