"""The path that messages take: producers' outboxes, a hub, consumers. Built from production machines as weather says.

app → outbox/pN → [hop] → hub/main → [hop per subscription] → inbox/sN → worker or follower → effects/sN
                                  └→ follower on the hub itself → effects/hub
"""

from __future__ import annotations

from dataclasses import replace

from semel.kernel.effects import Notify, Resume
from semel.kernel.hop import Receiver, ReceiverConfig, Sender, SenderConfig
from semel.kernel.ops import Advance, Put, Unit
from semel.kernel.position import Position
from semel.kernel.retry import RetryPolicy
from semel.kernel.store import Records, Trimmed
from semel.kernel.work import Follower, FollowerConfig, Worker, WorkerConfig
from semel.sim.kernel.apps import Item, Producer
from semel.sim.kernel.database import Database
from semel.sim.kernel.network import Link
from semel.sim.kernel.node import Node
from semel.sim.kernel.weather import HopPlan, KernelWorld, Subscription
from semel.sim.world import BEGIN_S, Drift

HUB = "hub/main"
HOP_IN = "outbox>hub/main"
READER = "hub-reader"
FOLLOWER_RETRY = RetryPolicy(interval_s=0.3, interval_max_s=2.0, factor=1.5)
PRODUCER, HUB_ROLE, CONSUMER = "producer", "hub", "consumer"


def outbox(producer: str) -> str:
    return f"outbox/{producer}"


def inbox(sub: Subscription) -> str:
    return f"inbox/{sub.name}"


def hop_out(sub: Subscription) -> str:
    return f"{HUB}>{sub.name}"


def hop_handler(sub: Subscription) -> str:
    return f"{inbox(sub)}>handler"


def effects(name: str) -> str:
    return f"effects/{name}"


class SimulatedPath:
    """All nodes, databases and links of one world."""

    def __init__(self, world: KernelWorld) -> None:
        self.world = world
        self.weather = world.weather
        self.nodes: list[Node] = []
        self.links: list[Link] = []
        self.senders: dict[str, str] = {}
        self.has_reader = self.weather.hub_reader == "present"
        self.items = self._items()
        self.hub = self._database("H", HUB_ROLE, self.weather.hub_shared)
        self.consumer = self._database("C", CONSUMER, self.weather.consumer_shared)
        self.hubs = [self._node(f"h{n + 1}", self.hub) for n in range(self.weather.hub_nodes)]
        self.consumers = [self._node(f"c{n + 1}", self.consumer) for n in range(self.weather.consumer_nodes)]
        self.producers = {name: self._producer(name) for name in self.items}
        self._build_hub()
        self._build_consumers()

    @property
    def databases(self) -> list[Database]:
        return [self.hub, self.consumer, *(node.database for node in self.producers.values())]

    def start(self) -> None:
        for node in self.nodes:
            node.start()

    # -- parts

    def _drift(self) -> Drift:
        nodes, random = self.weather.nodes, self.world.random
        offset_s = random.uniform(-nodes.drift_s, nodes.drift_s)
        return Drift(offset_s, 1 + random.uniform(-nodes.drift_rate, nodes.drift_rate))

    def _database(self, name: str, role: str, shared: bool) -> Database:
        return Database(self.world, name, role, shared=shared, drift=self._drift())

    def _node(self, name: str, database: Database) -> Node:
        node = Node(self.world, name, database, self._drift())
        node.on_notice = self._notice
        node.on_closed = self._closed
        self.nodes.append(node)
        return node

    def _link(
        self, name: str, hop: str, client: Node, machine: str, servers: list[Node], receiver: str, plan: HopPlan
    ) -> None:
        """Where the hop's own index counts, a peer is a session and keeps its name over all connections."""
        renames = self.weather.links.name_per_connection and not plan.hop_index
        link = Link(self.world, name, hop, client, machine, servers, receiver, name_per_connection=renames)
        self.links.append(link)

    def _items(self) -> dict[str, list[Item]]:
        """What each producer will send, numbered within its sessions in the order of sending."""
        traffic, random = self.weather.traffic, self.world.random
        items: dict[str, list[Item]] = {f"p{n + 1}": [] for n in range(traffic.producers)}
        counts: dict[str, int] = {}
        for due in sorted(random.uniform(0, traffic.over_s) for _ in range(traffic.items)):
            producer = random.choice(list(items))
            session = f"{producer}-{random.randint(1, traffic.sessions)}"
            index = counts[session] = counts.get(session, 0) + 1
            key = f"{producer}-{len(items[producer]) + 1}"
            item = Item(key, session, index, BEGIN_S + due, ids=[key])
            items[producer].append(replace(item, session=None, index=None) if traffic.without_session else item)
        everything = [item for each in items.values() for item in each]
        for item in random.sample(everything, min(len(everything), self.weather.stores.poison)):
            item.poison = random.choice((PRODUCER, HUB_ROLE, CONSUMER))
        return items

    # -- producers

    def _producer(self, name: str) -> Node:
        database = self._database(f"P{name[1:]}", PRODUCER, shared=False)
        _begin_cursors(database, {f"send/{name}": outbox(name)})
        node = self._node(name, database)
        node.factories["app"] = lambda _: Producer(
            "app",
            outbox(name),
            HOP_IN,
            self.items[name],
            depth=self.weather.traffic.depth,
            mints=self.weather.traffic.mints,
        )
        self._add_sender(node, name, outbox(name), f"{name}>hub", HOP_IN, "", self.weather.inbound)
        self.senders[name] = name
        self._link(f"{name}>hub", HOP_IN, node, name, self.hubs, "hub-in", self.weather.inbound)
        return node

    def _add_sender(
        self, node: Node, name: str, stream: str, peer: str, hop: str, pipeline: str, plan: HopPlan
    ) -> None:
        config = SenderConfig(name, stream, peer, hop, pipeline, plan.policy, seed=self.nodes.index(node))
        node.add(name, lambda node: Sender(config, node.database.store.cursor(config.cursor)))

    def replay_outboxes(self) -> None:
        """The hub was restored from a backup: every producer sends its whole outbox again, under a cursor of its own.
        What the hub still has is a duplicate; what it lost is new again."""
        for name, node in self.producers.items():
            node.remove(name)
            self._replay_outbox(name)

    def _replay_outbox(self, producer: str) -> None:
        node = self.producers[producer]
        if not node.up or node.paused:
            self.world.after(0.5, f"{producer} replay", self._replay_outbox, producer)
            return
        name = f"{producer}~replay"
        _begin_cursors(node.database, {f"send/{name}": outbox(producer)})
        self.senders[producer] = name
        next(link for link in self.links if link.name == f"{producer}>hub").client_machine = name
        self._add_sender(node, name, outbox(producer), f"{producer}>hub", HOP_IN, "replay", self.weather.inbound)

    # -- the hub

    def _build_hub(self) -> None:
        plan = self.weather.inbound
        config = ReceiverConfig(
            "hub-in", HOP_IN, stream=HUB, order=plan.order, hop_index=plan.hop_index, buffer_max=plan.buffer_max,
            gap=plan.gap,
        )  # fmt: skip
        for node in self.hubs:
            node.factories["hub-in"] = lambda _: Receiver(config)
        _begin_cursors(self.hub, {f"send/{sub.name}": HUB for sub in self.weather.subscriptions})
        for sub in self.weather.subscriptions:
            senders = self.hubs if sub.rivals else [self.world.random.choice(self.hubs)]
            for node in senders:
                peer = f"{sub.name}@{node.name}"
                self._add_sender(node, sub.name, HUB, peer, hop_out(sub), "", sub.hop)
                self._link(peer, hop_out(sub), node, sub.name, self.consumers, f"in-{sub.name}", sub.hop)
        if self.has_reader:
            self.pin_reader()
            self.add_hub_reader()

    def add_late_reader(self) -> None:
        if not self.hub.up:
            self.world.after(0.5, "late reader", self.add_late_reader)
            return
        self.has_reader = True
        self.pin_reader()
        self.add_hub_reader()

    def pin_reader(self) -> None:
        """The cursor comes first: from then on nothing more is trimmed that the reader has not seen."""
        if self.has_reader:
            _begin_cursors(self.hub, {f"follow/{READER}": HUB})

    def add_hub_reader(self) -> None:
        config = FollowerConfig(
            READER, HUB, f"{HUB}>reader", ahead=self.weather.handling.parallel, retry=FOLLOWER_RETRY
        )
        for node in self._follower_nodes(self.hubs):
            node.effects[READER] = effects("hub")
            node.add(READER, lambda node: Follower(config, node.database.store.cursor(config.cursor)))

    def _follower_nodes(self, nodes: list[Node]) -> list[Node]:
        return nodes if self.weather.handling.rival_followers else nodes[:1]

    # -- consumers

    def _build_consumers(self) -> None:
        for sub in self.weather.subscriptions:
            plan = sub.hop
            config = ReceiverConfig(
                f"in-{sub.name}", hop_out(sub), stream=inbox(sub), queue=inbox(sub) if sub.target == "queue" else "",
                order=plan.order, hop_index=plan.hop_index, buffer_max=plan.buffer_max, gap=plan.gap,
            )  # fmt: skip
            for node in self.consumers:
                node.factories[config.name] = lambda _, config=config: Receiver(config)  # type: ignore[misc]
            if sub.target == "queue":
                self._add_workers(sub)
            else:
                self._add_follower(sub)

    def _add_workers(self, sub: Subscription) -> None:
        handling = self.weather.handling
        for node in self.consumers:
            config = WorkerConfig(
                f"{sub.name}-{node.name}", inbox(sub), hop_handler(sub), parallel=handling.parallel,
                lease_s=handling.lease_s, idle_s=handling.idle_s, ahead=handling.ahead, batch=handling.batch,
                retry=RetryPolicy(handling.retries, interval_s=0.2, factor=2.0, interval_max_s=2.0, then=handling.then),
            )  # fmt: skip
            node.effects[config.name] = effects(sub.name)
            node.factories[config.name] = lambda _, config=config: Worker(config)  # type: ignore[misc]

    def _add_follower(self, sub: Subscription) -> None:
        config = FollowerConfig(
            f"{sub.name}-reader",
            inbox(sub),
            hop_handler(sub),
            ahead=self.weather.handling.parallel,
            retry=FOLLOWER_RETRY,
        )
        _begin_cursors(self.consumer, {config.cursor: inbox(sub)})
        for node in self._follower_nodes(self.consumers):
            node.effects[config.name] = effects(sub.name)
            node.factories[config.name] = lambda node: Follower(config, node.database.store.cursor(config.cursor))

    # -- operators

    def _notice(self, node: Node, machine: str, notice: Notify) -> None:
        if notice.topic == "suspended":
            delay_s = self.world.between((1.0, 5.0))
            self.world.after(delay_s, f"{node.name} resume", node.feed_event, None, machine, Resume())

    def _closed(self, node: Node, machine: str, reason: str) -> None:
        if reason == "trimmed":
            self._trimmed(node, machine)
        else:
            node.reload(machine)

    def _trimmed(self, node: Node, machine: str) -> None:
        """A reader behind a rival begins again where its cursor stands. One that came too late is refused, and begins
        at the first record left. For anybody else records that were needed are gone."""
        if node.database.up and isinstance(found := self._read_on(node, machine), Trimmed):
            if machine == READER and self._has_seen_nothing():
                self._begin_late(found.first)
            else:
                self.world.violated(f"{machine} on {node.name}: records that it needs were trimmed")
        node.reload(machine)

    def _read_on(self, node: Node, machine: str) -> Records | Trimmed:
        """What a fresh machine would find."""
        fresh = node.factories[machine](node)
        assert isinstance(fresh, Sender | Follower)
        store = node.database.store
        return store.read(fresh.config.stream, store.cursor(fresh.config.cursor), 1)

    def _has_seen_nothing(self) -> bool:
        cursor = self.hub.store.cursor(f"follow/{READER}")
        return cursor is None or cursor.offset == 0

    def _begin_late(self, first: Position) -> None:
        begin = Position(HUB, first.epoch, first.offset - 1)
        note = Put(f"begin/{READER}", str(first.offset).encode())
        self.hub.store.commit([Unit((Advance(f"follow/{READER}", begin), note))])


def _begin_cursors(database: Database, cursors: dict[str, str]) -> None:
    """Cursors stand before the first record from the beginning, so that they pin what they have not yet seen."""
    ops = [Advance(name, Position(stream, database.store.epoch, 0)) for name, stream in cursors.items()]
    database.store.commit([Unit(tuple(ops))])
