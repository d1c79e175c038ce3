"""What kind of inbox a seed gets: its endpoints and their rules, its traffic, and which faults strike how often."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import msgspec

from semel.inbox.breaker import BreakerOptions
from semel.inbox.endpoint import EndpointMode, FailedHead, OnCrash, Style
from semel.sim.kernel.weather import NodeWeather, StoreWeather
from semel.sim.world import SeededWorld


@dataclass(frozen=True, slots=True)
class EndpointPlan:
    """One endpoint and its handler. `outside`: its effect cannot be rolled back. `keyed` messages have an order.

    `ways` is how a failure is tried again, and `end` what follows the last attempt. A buffered one lets `buffer` in."""

    name: str
    mode: EndpointMode
    style: Style
    outside: bool = False
    keyed: bool = False
    on_crash: OnCrash = OnCrash.RETRY
    failed_head: FailedHead = FailedHead.BLOCKS
    ways: str = "retry"
    end: str = "dead_letter"
    expire_s: float | None = None
    parallel: int = 1
    breaker: BreakerOptions | None = None
    buffer: int = 1000


@dataclass(frozen=True, slots=True)
class BrokerWeather:
    """`again_s` is how long the broker waits for an answer before it delivers again."""

    again_s: float = 6.0
    double: float = 0.0
    ack_lost: float = 0.0
    batch: int = 1


@dataclass(frozen=True, slots=True)
class HandlerWeather:
    lease_s: float
    fails: float
    slow: float
    poison: int
    parallel: int
    ahead: int


@dataclass(frozen=True, slots=True)
class RemoteWeather:
    """What is outside: it may be away, or take a message and not say so."""

    away: float = 0.0
    unanswered: float = 0.0


@dataclass(frozen=True, slots=True)
class LaterWeather:
    """What is sent for later. `cancels` is how often a handler takes one back, and `caller_every_s` how often somebody
    else does; every `period_s` a periodic message is due."""

    cancels: float
    caller_every_s: float
    period_s: int


@dataclass(frozen=True, slots=True)
class InboxWeather:
    endpoints: tuple[EndpointPlan, ...]
    identity: str
    messages: int
    keys: int
    over_s: float
    processes: int
    broker: BrokerWeather
    handlers: HandlerWeather
    remote: RemoteWeather
    later: LaterWeather
    stores: StoreWeather
    nodes: NodeWeather
    sweep_every_s: float
    storm_s: float

    def as_dict(self) -> dict[str, Any]:
        plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(self))
        return plain


def draw_inbox_weather(random: Random) -> InboxWeather:
    over_s = random.uniform(3, 10)
    return InboxWeather(
        endpoints=_endpoints(random),
        identity=random.choice(("id", "id+endpoint")),
        messages=random.randint(10, 28),
        keys=random.choice((1, 2, 4)),
        over_s=over_s,
        processes=random.choice((1, 2, 2, 3)),
        broker=BrokerWeather(
            again_s=random.uniform(1.0, 8.0),
            double=_sometimes(random, 0.05, 0.4),
            ack_lost=_sometimes(random, 0.05, 0.4),
            batch=random.choice((1, 3, 8)),
        ),
        handlers=HandlerWeather(
            lease_s=random.uniform(1.0, 3.0),
            fails=_sometimes(random, 0.2, 0.9, share=0.7),
            slow=_sometimes(random, 0.05, 0.4),
            poison=random.choice((0, 0, 0, 1)),
            parallel=random.choice((1, 2, 4)),
            ahead=random.choice((0, 3)),
        ),
        remote=RemoteWeather(away=_sometimes(random, 0.05, 0.3), unanswered=_sometimes(random, 0.05, 0.3)),
        later=LaterWeather(
            cancels=_sometimes(random, 0.1, 0.5),
            caller_every_s=_sometimes(random, 0.3, 2.0),
            period_s=random.choice((1, 3)),
        ),
        stores=StoreWeather(
            commit_s=random.choice(((0.0005, 0.005), (0.005, 0.05))),
            read_s=(0.0005, 0.005),
            wake_s=random.choice(((0.0, 0.02), (0.0, 0.5))),
            unavailable=_sometimes(random, 0.01, 0.1),
            doubt=_sometimes(random, 0.01, 0.1),
            unresolved=random.choice((0.0, 0.3, 0.9)),
            outage_every_s=_sometimes(random, 4, 12, share=0.3),
            group_rows=random.choice((1, 1000)),
        ),
        nodes=_nodes(random),
        sweep_every_s=random.uniform(0.5, 3.0),
        storm_s=over_s + random.uniform(4, 10),
    )


def _endpoints(random: Random) -> tuple[EndpointPlan, ...]:
    """Always one of each kind that differs in its code; what they promise is drawn."""
    return (
        EndpointPlan(
            "orders", EndpointMode.DURABLE, Style.OPTIMISTIC, keyed=True, failed_head=random.choice(tuple(FailedHead)),
            parallel=random.choice((1, 3)), end=_end(random),
        ),
        EndpointPlan(
            "mail", EndpointMode.DURABLE, Style.RESERVED, outside=True, on_crash=random.choice(tuple(OnCrash)),
            ways=_ways(random), end=_end(random), failed_head=random.choice(tuple(FailedHead)),
            breaker=_breaker(random),
        ),
        EndpointPlan(
            "parcels", EndpointMode.DURABLE, Style.OPTIMISTIC, ways=_ways(random), end=_end(random),
            expire_s=random.choice((None, 5.0)), failed_head=random.choice(tuple(FailedHead)), breaker=_breaker(random),
        ),
        EndpointPlan("later", EndpointMode.DURABLE, Style.OPTIMISTIC),
        EndpointPlan(
            "stock", EndpointMode.INLINE, random.choice((Style.EAGER, Style.OPTIMISTIC)), ways=_ways(random),
            end=_end(random), breaker=_breaker(random),
        ),
        EndpointPlan(
            "sms", EndpointMode.INLINE, Style.RESERVED, outside=True, on_crash=random.choice(tuple(OnCrash)),
            ways=_ways(random), end=_end(random),
        ),
        EndpointPlan(
            "hooks", EndpointMode.INLINE, Style.NONE, outside=True, ways=_ways(random), end=_end(random),
        ),
        EndpointPlan(
            "news", EndpointMode.BUFFERED, random.choice((Style.EAGER, Style.OPTIMISTIC)), ways=_ways(random),
            end=_end(random), breaker=_breaker(random), parallel=random.choice((1, 3)), buffer=random.choice((2, 1000)),
        ),
        EndpointPlan(
            "pings", EndpointMode.BUFFERED, Style.RESERVED, outside=True, on_crash=random.choice(tuple(OnCrash)),
            ways=_ways(random), end=_end(random), buffer=random.choice((2, 1000)),
        ),
    )  # fmt: skip


def _ways(random: Random) -> str:
    return random.choice(("retry", "requeue", "schedule"))


def _breaker(random: Random) -> BreakerOptions | None:
    """Quick to open, so that it does so among a few messages, and soon over."""
    options = BreakerOptions(
        window_s=10.0, minimum=random.choice((1, 2)), share=random.choice((0.3, 0.7)), pause_s=random.uniform(0.5, 3.0)
    )
    return options if random.random() < 0.5 else None


def _end(random: Random) -> str:
    return random.choice(("dead_letter", "dead_letter", "park", "discard"))


def _nodes(random: Random) -> NodeWeather:
    drifts = random.random() < 0.5
    return NodeWeather(
        crash_every_s=_sometimes(random, 3, 12),
        pause_every_s=_sometimes(random, 3, 12),
        pause_s=(0.5, 8.0),
        pause_at_work=_sometimes(random, 0.02, 0.15),
        drift_s=random.choice((0.5, 5.0)) if drifts else 0.0,
        drift_rate=random.choice((0.001, 0.01, 0.2)) if drifts else 0.0,
    )


def _sometimes(random: Random, low: float, high: float, share: float = 0.5) -> float:
    value = random.uniform(low, high)
    return value if random.random() < share else 0.0


class InboxWorld(SeededWorld):
    """Its weather is drawn first, from the same chance as all that follows."""

    def __init__(self, seed: int, log: Callable[[str], None] | None = None) -> None:
        super().__init__(seed, log)
        self.weather: InboxWeather = draw_inbox_weather(self.random)
