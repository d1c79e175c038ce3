"""What a seed decides of clients: what they do, and in which weather."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

from semel.errors import StoreBusy
from semel.pubsub.client.events import ClientOptions, RequestAccepted, RequestFailed, Stopped
from semel.pubsub.hub.calls import CloseConnections, Connection
from semel.sim.client.actor import Actor, SocketLink
from semel.sim.client.network import ClientWorld
from semel.sim.client.streams import (
    GROUP,
    StreamActor,
    check_nothing_broke,
    check_over,
    check_received,
    check_states,
    check_streams,
)
from semel.sim.hub.node import BEGIN_S
from semel.sim.world import SeededWorld

# -- what goes wrong between clients and a hub


class NetworkFaults:
    """What goes wrong, and when. `loses_sessions`: also what no session survives. `crashes`: also the processes of the
    applications."""

    def __init__(self, world: ClientWorld, *, loses_sessions: bool = False, crashes: bool = False) -> None:
        self._world, self._chance = world, world.chance
        self._faults: list[Callable[[], None]] = [
            self._cut, self._cut, self._cut, self._half_open, self._silence, self._restart, self._die_in_commit,
            self._hold, self._outage, self._slow, self._refuse,
        ]  # fmt: skip
        if loses_sessions:
            self._faults += [self._close_from_outside, self._long_outage, self._doubt]
        if crashes:
            self._faults += [self._crash] * 3

    def plan(self, seconds: float, faults: int) -> None:
        for _ in range(faults):
            delay_s, fault = self._chance.random() * seconds, self._chance.choice(self._faults)
            self._world.clock.after(delay_s, "fault", self._strike, fault)

    def _strike(self, fault: Callable[[], None]) -> None:
        self._world.world.see(f"fault.{fault.__name__.strip('_')}")
        fault()

    def _some_link(self) -> SocketLink | None:
        whole = [link for link in self._world.links.values() if link.is_whole]
        return self._chance.choice(whole) if whole else None

    def _cut(self) -> None:
        if (link := self._some_link()) is not None:
            self._world.cut(link)

    def _half_open(self) -> None:
        if (link := self._some_link()) is not None:
            self._world.cut(link, hub_knows_after_s=self._chance.random() * 5)

    def _silence(self) -> None:
        if (link := self._some_link()) is not None:
            self._world.cut(link, hub_knows_after_s=40, client_knows=False)

    def _crash(self) -> None:
        self._chance.choice(self._world.actors).crash()

    def _restart(self) -> None:
        self._world.restart()

    def _die_in_commit(self) -> None:
        self._world.dies_with_next_commit = True

    def _refuse(self) -> None:
        self._world.failing += [StoreBusy("the store is busy")] * self._chance.randint(1, 3)

    def _doubt(self) -> None:
        self._world.doubtful_commits += 1

    def _hold(self) -> None:
        world = self._world
        if world.held is None:
            world.held = []
            world.clock.after(self._chance.random(), "let go", world.let_go)

    def _outage(self) -> None:
        world = self._world
        world.unreachable_until = max(world.unreachable_until, world.now + self._chance.random() * 8)
        for link in list(world.links.values()):
            world.cut(link)

    def _slow(self) -> None:
        world = self._world
        world.latency_s = 0.5
        world.clock.after(1, "fast again", setattr, world, "latency_s", 0.005)

    def _close_from_outside(self) -> None:
        if (link := self._some_link()) is not None:
            self._world.feed("rest", CloseConnections(Connection(link.connection), reason="enough"))

    def _long_outage(self) -> None:
        world = self._world
        world.unreachable_until = max(world.unreachable_until, world.now + 100)
        for link in list(world.links.values()):
            world.cut(link)


# -- what must be true, by what the applications know and what the stream holds

Check = Callable[[ClientWorld], Iterator[str]]


def check_once(world: ClientWorld) -> Iterator[str]:
    """Each publish that was accepted is in the stream once, and each subscriber has had each message once, in order."""
    published = world.published()
    bodies = [body for _, _, body in published]
    if len(bodies) != len(set(bodies)):
        yield "a message is in the stream twice"
    for actor in world.actors:
        if actor.acked_too_early:
            yield f"{actor.name} acknowledged before the application had it"
        yield from _check_publishes(actor, set(bodies))
        yield from _check_deliveries(actor, published)


def _check_publishes(actor: Actor, bodies: set[str]) -> Iterator[str]:
    for token, body in actor.bodies.items():
        result = actor.settled.get(token)
        if isinstance(result, RequestAccepted) and body not in bodies:
            yield f"{body} was accepted and is not in the stream"
        elif isinstance(result, RequestFailed) and not result.maybe_taken and body in bodies:
            yield f"{body} was not accepted and is in the stream"


def _check_deliveries(actor: Actor, published: list[tuple[int, str, str]]) -> Iterator[str]:
    offsets = {body: offset for offset, _, body in published}
    got = [offsets[body] for _, body, _ in actor.got]
    if got != sorted(set(got)):
        yield f"delivered to {actor.name} twice or out of order"
    due = {offset for offset, group, _ in published if offset > actor.joined_at.get(group, 1 << 60)}
    if not actor.losses and not due <= set(got):
        yield f"{actor.name} has not had {sorted(due - set(got))}"


def check_done(world: ClientWorld) -> Iterator[str]:
    for actor in world.actors:
        if actor.unsettled:
            yield f"{actor.name} still waits"
        if not actor.connection or any(isinstance(state, Stopped) for state in actor.states):
            yield f"{actor.name} is not online"


def check_nothing_failed(world: ClientWorld) -> Iterator[str]:
    for actor in world.actors:
        failed = [result for result in actor.settled.values() if not isinstance(result, RequestAccepted)]
        yield from (f"{actor.name} was answered {result}" for result in failed)


def check_order(world: ClientWorld) -> Iterator[str]:
    """Each publisher's messages are in the stream in the order in which they were asked, but for what was given up."""
    bodies = [body for _, _, body in world.published()]
    for actor in world.actors:
        found = [body for body in bodies if body in actor.bodies.values()]
        if found != [body for body in actor.bodies.values() if body in found]:
            yield f"the messages of {actor.name} changed places"


def check_all_published(world: ClientWorld) -> Iterator[str]:
    bodies = {body for _, _, body in world.published()}
    for actor in world.actors:
        yield from (f"{body} is not in the stream" for body in actor.bodies.values() if body not in bodies)


def check_most_published(world: ClientWorld) -> Iterator[str]:
    """Each refusal costs a message, or a few that were under way with it."""
    asked, published = sum(len(actor.bodies) for actor in world.actors), len(world.published())
    if published <= asked * 0.82:
        yield f"only {published} of {asked} are in the stream: those that were given up have held up others"


def check_kept(world: ClientWorld) -> Iterator[str]:
    """What was in an outbox is in the stream, and in no outbox any more."""
    bodies = {body for _, _, body in world.published()}
    for actor in world.actors:
        yield from (f"{actor.name} has lost {body}" for body in sorted(actor.kept - bodies))
        if actor.outbox:
            yield f"{actor.name} has {len(actor.outbox)} in its outbox"


# -- what is played

NAMES = ("ann", "ben", "cem")
STORM_S = 20.0
FAULTS = 16


@dataclass(frozen=True)
class Chat:
    """Three clients in two groups publish to each other, in weather."""

    window: int = 256
    inbox_max: int = 1000
    ids: bool = False
    keeps: bool = False
    loses_sessions: bool = False
    crashes: bool = False
    messages: int = 12
    calm_s: float = 150.0

    def play(self, world: ClientWorld) -> None:
        options = ClientOptions(window=self.window, inbox_max=self.inbox_max, connect_for_s=None)
        for name, groups in zip(NAMES, ("a", "ab", "ab"), strict=True):
            actor = world.actor(name, options)
            for group in groups:
                actor.join(group)
        NetworkFaults(world, loses_sessions=self.loses_sessions, crashes=self.crashes).plan(STORM_S, FAULTS)
        for actor in world.actors:
            for delay_s in self._times(world.chance):
                world.clock.after(delay_s, f"{actor.name} publishes", self._publish, actor, world.chance.choice("ab"))
        _weather_clears(world, self.calm_s)

    def _times(self, chance: Random) -> list[float]:
        """Some alone, and some close together, so that several are under way when it breaks."""
        bursts = [chance.random() * STORM_S for _ in range(3)]
        alone = [chance.random() * STORM_S for _ in range(self.messages // 3)]
        together = [chance.choice(bursts) + chance.random() * 0.02 for _ in range(self.messages - len(alone))]
        return sorted([*alone, *together])

    def _publish(self, actor: Actor, group: str) -> None:
        body = f"{actor.name} {len(actor.bodies)}"
        actor.publish(group, body, id=body if self.ids else None, keep=self.keeps)


@dataclass(frozen=True)
class SlowNetwork:
    """A client publishes on and on, each frame is on its way for up to `latency_s`, and the store refuses now and then:
    much has been sent when a refusal comes back, and more refusals are on their way back when it is sent again."""

    latency_s: float
    ack_timeout_s: float = 5.0
    refusals_max: int = 10
    timeout_s: float | None = None
    messages: int = 80
    every_s: float = 0.05
    refusals: int = 3
    calm_s: float = 120.0

    def play(self, world: ClientWorld) -> None:
        options = ClientOptions(
            window=256, connect_for_s=None, ack_timeout_s=self.ack_timeout_s, refusals_max=self.refusals_max
        )
        ann = world.actor("ann", options)
        world.run_for(1)
        world.latency_s = self.latency_s
        for number in range(self.messages):
            world.clock.after(number * self.every_s, "ann publishes", self._publish, ann)
        busy_s = self.messages * self.every_s
        for _ in range(self.refusals):
            world.clock.after(world.chance.random() * busy_s, "refusal", world.failing.append, StoreBusy("busy"))
        world.run_for(busy_s + 1)
        world.failing.clear()
        world.run_for(self.calm_s)

    def _publish(self, actor: Actor) -> None:
        actor.publish("a", f"{actor.name} {len(actor.bodies)}", timeout_s=self.timeout_s)


@dataclass(frozen=True)
class Streaming:
    """Three clients send streams to their group, and watch what each says of itself there."""

    window: int = 256
    loses_sessions: bool = False
    streams: int = 4
    calm_s: float = 300.0

    def play(self, world: ClientWorld) -> None:
        options = ClientOptions(stream_window=self.window, connect_for_s=None, refusals_max=1000)
        actors = [StreamActor(world, name, options) for name in NAMES]
        for actor in actors:
            world.actors.append(actor)
            actor.join(GROUP)
            actor.watch()
        NetworkFaults(world, loses_sessions=self.loses_sessions).plan(STORM_S, FAULTS)
        for actor in actors:
            for number in range(self.streams):
                self._later(world, actor, self._stream, actor, f"{actor.name} {number}")
            for _ in range(5):
                self._later(world, actor, actor.say, world.chance.choice([None, "good", "bad", "typing"]))
        _weather_clears(world, self.calm_s)

    def _later(self, world: ClientWorld, actor: Actor, do: Callable[..., None], *args: Any) -> None:
        world.clock.after(0.1 + world.chance.random() * STORM_S, f"{actor.name} does something", do, *args)

    def _stream(self, actor: StreamActor, id: str) -> None:
        chance = actor.world.chance
        actor.stream(id, chance.randint(0, 12), aborts=chance.random() < 0.2)


def _weather_clears(world: ClientWorld, calm_s: float) -> None:
    world.run_for(STORM_S + 1)
    world.failing.clear()
    world.doubtful_commits = 0
    world.run_for(calm_s)


Play = Chat | SlowNetwork | Streaming
ORDERED: tuple[Check, ...] = (check_once, check_done, check_order, check_all_published)
SLOW: tuple[Check, ...] = (*ORDERED, check_nothing_failed)
GIVEN_UP: tuple[Check, ...] = (check_once, check_done, check_order)
HELD_UP: tuple[Check, ...] = (check_most_published,)
STREAMS: tuple[Check, ...] = (check_streams, check_received, check_over, check_states)

SCENES: dict[str, tuple[Play, tuple[Check, ...]]] = {
    "chat": (Chat(), ORDERED),
    "chat with ids": (Chat(ids=True), ORDERED),
    "chat, window of one": (Chat(window=1), ORDERED),
    "chat, small inbox": (Chat(inbox_max=1), (check_once, check_done)),
    "chat, sessions lost": (Chat(loses_sessions=True), (check_once, check_done)),
    "chat with ids, sessions lost": (
        Chat(ids=True, loses_sessions=True), (check_once, check_done, check_nothing_failed)
    ),
    "outboxes": (
        Chat(ids=True, keeps=True, loses_sessions=True, crashes=True), (check_once, check_done, check_kept)
    ),
    "slow network": (SlowNetwork(0.3), SLOW),
    "slower network": (SlowNetwork(0.5), SLOW),
    "slowest network": (SlowNetwork(0.8), SLOW),
    "slower network, short timeout": (SlowNetwork(0.5, 0.7), SLOW),
    "slowest network, short timeout": (SlowNetwork(0.8, 0.7), SLOW),
    "given up after a time": (SlowNetwork(0.8, timeout_s=1.5, refusals=6), GIVEN_UP),
    "given up after a refusal": (SlowNetwork(0.8, refusals_max=1, refusals=6), GIVEN_UP),
    "given up at once": (SlowNetwork(0.01, refusals_max=0, every_s=0.2), HELD_UP),
    "given up soon": (SlowNetwork(0.01, timeout_s=0.1, every_s=0.2), HELD_UP),
    "streams": (Streaming(), (*STREAMS, check_nothing_broke)),
    "streams, window of one": (Streaming(window=1), (*STREAMS, check_nothing_broke)),
    "streams, sessions lost": (Streaming(loses_sessions=True), STREAMS),
}  # fmt: skip

ROUGH = ("chat, sessions lost", "chat with ids, sessions lost", "outboxes", "streams", "streams, sessions lost")
DRAWN = (*SCENES, *ROUGH * 3)
"""Some have more in them that can go wrong, and are drawn more often."""


class ClientScenario:
    def __init__(self, seed: int, log: Callable[[str], None] | None = None, scene: str | None = None) -> None:
        scene = scene or Random(f"client {seed}").choice(DRAWN)
        self._play, self._checks = SCENES[scene]
        self.world = SeededWorld(seed, log)
        self.weather: dict[str, Any] = {"scene": scene, **vars(self._play)}

    def run(self) -> dict[str, float]:
        clients = ClientWorld(self.world)
        self._play.play(clients)
        for check in self._checks:
            for wrong in check(clients):
                self.world.violated(wrong)
        return {
            "published": len(clients.published()),
            "received": sum(len(actor.got) for actor in clients.actors),
            "sessions_lost": sum(actor.losses for actor in clients.actors),
            "virtual_s": round(self.world.now - BEGIN_S, 3),
            "events": self.world.clock.events,
        }
