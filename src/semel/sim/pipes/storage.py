"""The storage pipe in the simulator's world: production machines, and a seed that brings the weather.

source + publisher → [link] → service on a store ← [link] ← consumer, whose handler writes to effects/con
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from semel.kernel.effects import Effect, Event, Notify, Received, Resume, Send
from semel.kernel.envelope import Envelope
from semel.kernel.hop import Confirm, HopMessage
from semel.kernel.resend import ResendPolicy
from semel.kernel.retry import RetryPolicy
from semel.kernel.store import Records
from semel.pipes.services.consumer import Consumer, ConsumerConfig
from semel.pipes.services.publisher import Publisher, PublisherConfig
from semel.pipes.services.storage import StorageConfig, StorageService, decode_place
from semel.sim.kernel.database import Database
from semel.sim.kernel.network import Link
from semel.sim.kernel.node import Node
from semel.sim.kernel.weather import KernelWorld
from semel.sim.world import BEGIN_S, Drift

STREAM, EFFECTS = "pipe/orders/main", "effects/con"
STORM_S, DRAIN_S, EVENTS_MAX = 20.0, 300.0, 100_000
AHEAD = 5


class Source:
    """An application with a publisher in its own process: it hands over in order, a few at a time, and again after a
    crash what was not confirmed. What it knows to be confirmed outlives the process, as in a user's own database."""

    def __init__(self, publisher: Publisher, due: dict[str, float], confirmed: set[str]) -> None:
        self.name = publisher.name
        self._publisher = publisher
        self._due = due
        self._confirmed = confirmed
        self._given: set[str] = set()

    def start(self, now: float) -> Sequence[Effect]:
        return [*self._received(self._publisher.start(now)), *self._hand_over(now)]

    def receive(self, event: Event, now: float) -> Sequence[Effect]:
        return [*self._received(self._publisher.receive(event, now)), *self._hand_over(now)]

    def next_deadline(self) -> float | None:
        deadlines = [self._publisher.next_deadline(), *(self._due[id] for id in self._next())]
        return min((at for at in deadlines if at is not None), default=None)

    def on_timer(self, now: float) -> Sequence[Effect]:
        return [*self._received(self._publisher.on_timer(now)), *self._hand_over(now)]

    def _next(self) -> list[str]:
        if len(self._given - self._confirmed) >= AHEAD:
            return []
        return [id for id in self._due if id not in self._confirmed and id not in self._given][:1]

    def _hand_over(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        while (due := self._next()) and self._due[due[0]] <= now:
            self._given.add(due[0])
            message = HopMessage(due[0], Envelope(due[0]), 0)
            effects += self._received(self._publisher.receive(Received("app", message), now))
        return effects

    def _received(self, effects: Sequence[Effect]) -> list[Effect]:
        others: list[Effect] = []
        for effect in effects:
            if isinstance(effect, Send) and isinstance(effect.message, Confirm):
                self._confirmed.update(effect.message.deliveries)
            else:
                others.append(effect)
        return others


class StorageWorld:
    def __init__(self, seed: int, *, durable: bool, window: int = 1, log: Callable[[str], None] | None = None) -> None:
        self.world = world = KernelWorld(seed, log)
        self.durable, self.window = durable, window
        self.confirmed: set[str] = set()
        self.ids = [f"m{number}" for number in range(world.random.randint(8, 25))]
        times = sorted(world.random.uniform(0, STORM_S * 0.8) for _ in self.ids)
        self.due = {id: BEGIN_S + at for id, at in zip(self.ids, times, strict=True)}
        self._lives = 0
        self.store = Database(world, "S", "store", shared=True, drift=Drift())
        self.home = Database(world, "C", "consumer", shared=False, drift=Drift())
        self.nodes = [
            self._node("p", Database(world, "P", "source", shared=False, drift=Drift()), "pub", self._source),
            self._node("s", self.store, "store", self._service),
            self._node("c", self.home, "con", self._consumer),
        ]
        self.nodes[2].effects["con"] = EFFECTS
        renames = world.weather.links.name_per_connection
        source, service, consumer = self.nodes
        self.links = [
            Link(world, "pub>store", "in", source, "pub", [service], "store", name_per_connection=renames),
            Link(world, "con>store", "out", consumer, "con", [service], "store", name_per_connection=renames),
        ]

    def _node(self, name: str, database: Database, machine: str, factory: Callable[[Node], object]) -> Node:
        node = Node(self.world, name, database, Drift())
        node.factories[machine] = factory  # type: ignore[assignment]
        node.on_notice = self._noticed
        node.on_closed = lambda node, machine, reason: self.world.violated(f"{machine} stopped: {reason}")
        return node

    def _run(self) -> str:
        self._lives += 1
        return f"life{self._lives}"

    def _source(self, _: Node) -> Source:
        policy = ResendPolicy(self.window, 0.5, RetryPolicy(interval_s=0.5))
        publisher = Publisher(PublisherConfig("pub", "pub>store", STREAM, "orders", policy), self._run())
        return Source(publisher, self.due, self.confirmed)

    def _service(self, _: Node) -> StorageService:
        return StorageService(StorageConfig("store", "pipe/orders/"))

    def _consumer(self, _: Node) -> Consumer:
        retry = RetryPolicy(interval_s=0.2, factor=1.5, interval_max_s=2.0)
        config = ConsumerConfig(
            "con", "con>store", STREAM, "billing", "orders", self.durable, 4, wait_s=2.0, timeout_s=0.7, retry=retry
        )  # fmt: skip
        return Consumer(config, self._run())

    def _noticed(self, node: Node, machine: str, notice: Notify) -> None:
        if notice.topic == "suspended":
            self.world.after(1.0, "resume", node.feed_event, None, machine, Resume())

    # -- a run

    def run(self) -> list[str]:
        """What was violated."""
        self._storm()
        for node in self.nodes:
            node.start()
        self._until(STORM_S)
        self.world.is_clear = True
        for node in self.nodes:
            if node.paused:
                node.resume()
        for link in self.links:
            link.heal()
        end = self.world.now + DRAIN_S
        while self.world.now < end and not self._is_done():
            self._until(self.world.now + 1.0)
        self._until(self.world.now + 10.0)
        self._check()
        return self.world.violations

    def _until(self, until: float) -> None:
        while self.world.clock.step(until):
            self._check_saved()
            if self.world.clock.events > EVENTS_MAX:
                raise RuntimeError("something runs in circles")

    def _storm(self) -> None:
        weather = self.world.weather
        for node in self.nodes:
            self.world.repeat_until_clear(weather.nodes.crash_every_s, "crash", node.crash)
            self.world.repeat_until_clear(weather.nodes.pause_every_s, "pause", partial(node.pause, 1.5))
        self.world.repeat_until_clear(weather.stores.outage_every_s, "outage", self.store.crash)
        for link in self.links:
            self.world.repeat_until_clear(weather.links.cut_every_s, "cut", link.cut)
            self.world.repeat_until_clear(weather.links.partition_every_s, "partition", partial(link.fall_silent, 2.0))

    # -- what must hold

    def stored(self) -> list[str]:
        return self._read(self.store, STREAM)

    def done(self) -> list[str]:
        return self._read(self.home, EFFECTS)

    def index(self) -> int:
        return decode_place(self.store.store.state(f"storage/store/index/billing/{STREAM}")).offset

    @staticmethod
    def _read(database: Database, stream: str) -> list[str]:
        found = database.store.read(stream)
        assert isinstance(found, Records)
        return [record.envelope.id for record in found.records]

    def _is_done(self) -> bool:
        return (
            all(database.up for database in (self.store, self.home))
            and self.confirmed >= set(self.ids)
            and set(self.done()) >= set(self.ids)
            and self.index() >= len(self.stored())
        )

    def _check_saved(self) -> None:
        """At every moment: what the consumer takes for saved has been saved, and is still there."""
        node = self.nodes[2]
        seat = node.interpreter.seat("con") if node.up else None
        if seat is None or not self.store.up:
            return
        assert isinstance(seat.machine, Consumer)
        if seat.machine.saved.offset > self.index():
            self.world.violated("an index was taken for saved that was not")

    def _check(self) -> None:
        stored, done = self.stored(), self.done()
        checks = {
            "a message was not confirmed": self.confirmed == set(self.ids),
            "a confirmed message is not in the store": set(stored) >= self.confirmed,
            "the store has a message twice": len(set(stored)) == len(stored),
            "the stream is out of order": self.window > 1 or stored == self.ids,
            "a message took no effect": set(done) >= set(stored),
            "effects are out of order": list(dict.fromkeys(done)) == stored,
            "a message took effect twice": not self.durable or len(set(done)) == len(done),
            "the index is not where the consumer is": self.index() == len(stored),
        }
        for what, holds in checks.items():
            if not holds:
                self.world.violated(what)
