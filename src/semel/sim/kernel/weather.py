"""What kind of world a seed gets: its size, how its hops are configured, and which faults strike how often.

Each kind of fault is switched on or off on its own, so that some worlds have only one of them: a fault that is always
there hides what another one alone would show.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Literal

import msgspec

from semel.kernel.dedup import GapPolicy, OnGap
from semel.kernel.hop import ReceiveOrder
from semel.kernel.resend import ResendPolicy
from semel.kernel.retry import GiveUp, RetryPolicy
from semel.sim.world import SeededWorld

Span = tuple[float, float]
Target = Literal["queue", "stream"]


@dataclass(frozen=True, slots=True)
class HopPlan:
    """One reliable hop: how it is sent, and how the receiver tells new from old."""

    order: ReceiveOrder
    hop_index: bool
    policy: ResendPolicy
    buffer_max: int
    gap: GapPolicy

    @property
    def in_order(self) -> bool:
        """Stop-and-wait keeps the order because nothing else is under way; a strict index restores it."""
        return self.policy.window == 1 or self.order is ReceiveOrder.STRICT

    @property
    def in_whole_order(self) -> bool:
        """Not only each session's order, but that of all messages of one sender."""
        return self.policy.window == 1 or (self.order is ReceiveOrder.STRICT and self.hop_index)


@dataclass(frozen=True, slots=True)
class Subscription:
    """A hop from the hub to the consumers. With `rivals` both hub nodes send, as after a take-over from a zombie."""

    name: str
    hop: HopPlan
    target: Target
    rivals: bool = False


@dataclass(frozen=True, slots=True)
class ProducerTraffic:
    """What the producers send. `depth` appends are under way at a time; `mints` lets a producer give a message a new
    id when its append has failed for certain, which a caller may do."""

    producers: int
    sessions: int
    items: int
    over_s: float
    depth: int
    mints: bool
    without_session: bool


@dataclass(frozen=True, slots=True)
class LinkWeather:
    loss: float = 0.0
    double: float = 0.0
    straggle: float = 0.0
    delay_s: Span = (0.005, 0.03)
    fifo: bool = False
    survives_cut: float = 0.5
    cut_every_s: float = 0.0
    partition_every_s: float = 0.0
    name_per_connection: bool = False


@dataclass(frozen=True, slots=True)
class StoreWeather:
    """`poison` messages are refused by one store until the weather clears; `strike` is the chance that a power cut
    hits a commit at its worst moment; `wake_s` is how late a node learns that something was committed."""

    commit_s: Span = (0.001, 0.01)
    read_s: Span = (0.001, 0.01)
    wake_s: Span = (0.0, 0.02)
    unavailable: float = 0.0
    doubt: float = 0.0
    unresolved: float = 0.0
    strike: float = 0.0
    poison: int = 0
    outage_every_s: float = 0.0
    group_rows: int = 1000


@dataclass(frozen=True, slots=True)
class NodeWeather:
    """`pause_at_work` is the chance that a process stops for a while just when its handler has been called."""

    crash_every_s: float = 0.0
    pause_every_s: float = 0.0
    pause_s: Span = (0.5, 12.0)
    pause_at_work: float = 0.0
    drift_s: float = 0.0
    drift_rate: float = 0.0


@dataclass(frozen=True, slots=True)
class Handling:
    """How the consumers work: leases, slow or failing handlers, and what becomes of a message that keeps failing."""

    parallel: int
    lease_s: float
    idle_s: float
    slow: float
    slow_s: Span
    fails: float
    retries: int
    then: GiveUp
    rival_followers: bool
    ahead: int = 0
    batch: int = 1
    own: float = 0.0
    """How often a handler ends its work row in a transaction of its own."""


@dataclass(frozen=True, slots=True)
class Weather:
    traffic: ProducerTraffic
    inbound: HopPlan
    subscriptions: tuple[Subscription, ...]
    hub_nodes: int
    hub_shared: bool
    consumer_nodes: int
    consumer_shared: bool
    hub_reader: Literal["none", "present", "late"]
    handling: Handling
    links: LinkWeather
    stores: StoreWeather
    nodes: NodeWeather
    retention_every_s: float
    restore: bool
    storm_s: float

    def as_dict(self) -> dict[str, Any]:
        plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self))
        return plain


def draw_weather(random: Random) -> Weather:
    slow = random.random() < 0.12
    restore = not slow and random.random() < 0.25
    traffic = _traffic(random, slow)
    inbound = _inbound(random, slow, traffic, restore)
    count = 1 if random.random() < 0.6 else 2
    hub_nodes = random.choice((1, 2, 2, 2))
    subscriptions = tuple(_subscription(random, slow, n, inbound, traffic, hub_nodes, restore) for n in range(count))
    consumer_nodes = random.choice((1, 2, 2, 2))
    storm_s = traffic.over_s + random.uniform(4, 12)
    return Weather(
        traffic=traffic,
        inbound=inbound,
        subscriptions=_without_starving(inbound, subscriptions),
        hub_nodes=hub_nodes,
        hub_shared=hub_nodes > 1 or random.random() < 0.5,
        consumer_nodes=consumer_nodes,
        consumer_shared=consumer_nodes > 1 or random.random() < 0.5,
        hub_reader=random.choice(("none", "present", "late", "late")),
        handling=_handling(random),
        links=_links(random, slow),
        stores=_stores(random),
        nodes=_nodes(random),
        retention_every_s=random.uniform(1, 6) if random.random() < 0.6 else 0.0,
        restore=restore,
        storm_s=storm_s,
    )


def _traffic(random: Random, slow: bool) -> ProducerTraffic:
    return ProducerTraffic(
        producers=random.choice((1, 1, 2, 3)),
        sessions=random.choice((1, 1, 2, 3)),
        items=random.randint(4, 8) if slow else random.randint(8, 40),
        over_s=random.uniform(4, 20),
        depth=random.choice((1, 1, 3, 8)),
        mints=random.random() < 0.7,
        without_session=random.random() < 0.15,
    )


def _policy(random: Random, slow: bool, window: int) -> ResendPolicy:
    """On a slow link the confirm comes later than the resend: fixed intervals, so that it stays so."""
    if slow:
        return ResendPolicy(window, random.uniform(0.4, 0.8), RetryPolicy(interval_s=random.uniform(0.4, 0.8)))
    retry = RetryPolicy(
        retries=random.choice((None, None, 2, 5)),
        interval_s=random.uniform(0.3, 1.2),
        factor=random.choice((1.0, 1.5, 2.0)),
        interval_max_s=4.0,
        jitter=random.choice((0.0, 0.3)),
    )
    return ResendPolicy(window, random.uniform(0.3, 1.5), retry)


def _hop(random: Random, slow: bool, order: ReceiveOrder, hop_index: bool, gap: GapPolicy) -> HopPlan:
    """A monotonic index loses what comes late, so it is only ever used with stop-and-wait."""
    window = 1 if order is ReceiveOrder.MONOTONIC else random.choice((1, 2, 4, 8, 16))
    return HopPlan(order, hop_index, _policy(random, slow, window), random.choice((2, 1000)), gap)


def _gap(random: Random, may_skip: bool) -> GapPolicy:
    then = random.choice((OnGap.WAIT, OnGap.ASK, OnGap.SKIP) if may_skip else (OnGap.WAIT, OnGap.ASK))
    return GapPolicy(then, random.uniform(0.5, 3.0))


def _inbound(random: Random, slow: bool, traffic: ProducerTraffic, restore: bool) -> HopPlan:
    order, hop_index = random.choice(_orders(traffic.without_session))
    return _hop(random, slow, order, hop_index, _gap(random, may_skip=not restore and not hop_index))


def _orders(without_session: bool) -> list[tuple[ReceiveOrder, bool]]:
    by_hop = [(ReceiveOrder.ID, False), (ReceiveOrder.STRICT, True), (ReceiveOrder.MONOTONIC, True)]
    return by_hop if without_session else [*by_hop, (ReceiveOrder.STRICT, False), (ReceiveOrder.MONOTONIC, False)]


def _subscription(
    random: Random, slow: bool, number: int, inbound: HopPlan, traffic: ProducerTraffic, hub_nodes: int, restore: bool
) -> Subscription:
    """Only what may be promised after such an inbound hop.

    A session that entered the hub out of order would starve a strict window and be cut short by a monotonic index. A
    restore moves the hub's offsets, which a strict hop index waits for in vain and a monotonic one takes for new.
    """
    target: Target = random.choice(("queue", "stream"))
    orders = _orders(traffic.without_session)
    if not inbound.in_order:
        orders = [pair for pair in orders if pair[0] is ReceiveOrder.ID or pair[1]]
    if restore:
        orders = [pair for pair in orders if not pair[1] or (pair[0] is ReceiveOrder.MONOTONIC and target == "queue")]
    order, hop_index = random.choice(orders)
    hop = _hop(random, slow, order, hop_index, _gap(random, may_skip=not restore and not hop_index))
    rivals = hub_nodes == 2 and not hop_index and random.random() < 0.3
    return Subscription(f"s{number + 1}", hop, target, rivals)


def _without_starving(inbound: HopPlan, subscriptions: tuple[Subscription, ...]) -> tuple[Subscription, ...]:
    """What the hub may skip, a strict session after it must be able to skip as well."""
    if inbound.order is not ReceiveOrder.STRICT or inbound.gap.then is not OnGap.SKIP:
        return subscriptions
    return tuple(_skipping(sub) for sub in subscriptions)


def _skipping(sub: Subscription) -> Subscription:
    if sub.hop.order is not ReceiveOrder.STRICT or sub.hop.hop_index:
        return sub
    return replace(sub, hop=replace(sub.hop, gap=GapPolicy(OnGap.SKIP, 2.0)))


def _handling(random: Random) -> Handling:
    return Handling(
        parallel=random.choice((1, 1, 2, 4)),
        lease_s=random.uniform(1.0, 4.0),
        idle_s=random.uniform(0.5, 2.0),
        slow=random.choice((0.0, 0.1, 0.4)),
        slow_s=(0.5, 6.0),
        fails=random.choice((0.0, 0.1, 0.4)),
        retries=random.choice((1, 3, 9)),
        then=random.choice(("dead_letter", "dead_letter", "park", "discard")),
        rival_followers=random.random() < 0.3,
        **_batches(random),
    )


def _batches(random: Random) -> dict[str, Any]:
    ahead = random.choice((0, 0, 3, 8))
    return {"ahead": ahead, "batch": random.randint(1, 1 + ahead), "own": random.choice((0.0, 0.0, 0.3, 1.0))}


def _links(random: Random, slow: bool) -> LinkWeather:
    delay_s = (0.9, 1.3) if slow else random.choice(((0.002, 0.01), (0.005, 0.05), (0.01, 0.4)))
    return LinkWeather(
        loss=_sometimes(random, 0.02, 0.3),
        double=_sometimes(random, 0.02, 0.3),
        straggle=_sometimes(random, 0.01, 0.05),
        delay_s=delay_s,
        fifo=random.random() < 0.4,
        survives_cut=random.choice((0.0, 0.5, 1.0)),
        cut_every_s=_sometimes(random, 1, 8, share=0.65),
        partition_every_s=_sometimes(random, 5, 20, share=0.3),
        name_per_connection=random.random() < 0.3,
    )


def _stores(random: Random) -> StoreWeather:
    return StoreWeather(
        commit_s=random.choice(((0.0005, 0.005), (0.005, 0.05), (0.05, 0.3))),
        read_s=random.choice(((0.0005, 0.005), (0.005, 0.05), (0.1, 1.0))),
        wake_s=random.choice(((0.0, 0.02), (0.0, 0.02), (0.0, 1.0))),
        unavailable=_sometimes(random, 0.005, 0.08),
        doubt=_sometimes(random, 0.005, 0.08),
        unresolved=random.choice((0.0, 0.3, 0.9)),
        strike=_sometimes(random, 0.002, 0.02),
        poison=random.choice((0, 0, 1, 3)),
        outage_every_s=_sometimes(random, 4, 15, share=0.4),
        group_rows=random.choice((1, 4, 1000)),
    )


def _nodes(random: Random) -> NodeWeather:
    drifts = random.random() < 0.5
    return NodeWeather(
        crash_every_s=_sometimes(random, 5, 30),
        pause_every_s=_sometimes(random, 2, 15),
        pause_at_work=_sometimes(random, 0.02, 0.2),
        drift_s=random.choice((0.5, 5.0)) if drifts else 0.0,
        drift_rate=random.choice((0.001, 0.01, 0.3)) if drifts else 0.0,
    )


def _sometimes(random: Random, low: float, high: float, share: float = 0.5) -> float:
    """0 for none at all, else something in the span."""
    value = random.uniform(low, high)
    return value if random.random() < share else 0.0


class KernelWorld(SeededWorld):
    """Its weather is drawn first, from the same chance as all that follows."""

    def __init__(self, seed: int, log: Callable[[str], None] | None = None) -> None:
        super().__init__(seed, log)
        self.weather: Weather = draw_weather(self.random)
