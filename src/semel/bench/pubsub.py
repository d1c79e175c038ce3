"""`semel bench pubsub`: a hub beside bare sockets, beside other brokers, and with many clients.

Parts, of which any may be asked for:

* publish: durable acknowledged messages through `semel serve` on SQLite, with and without a subscriber, beside a bare
  echo of the same payload by picows and by Semel's own listener;
* postgres: the same on PostgreSQL;
* peers: NATS JetStream, RabbitMQ and Mosquitto, by their own Python clients and with ready-made packets;
* fanout: one publisher and a thousand subscribers, beside a bare broadcast by the same listener;
* idle: memory of ten thousand connections that say nothing;
* recover: a thousand sessions come back after kill -9, and get what they missed;
* growth: the rate with 1x, 10x and 100x messages stored.

Everything that is compared runs in turns, so that a noisy machine hurts all alike; every figure is a median.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from semel.bench import pubsub_crowd as crowd
from semel.bench import pubsub_peers as peers
from semel.bench.pubsub_load import HOST, PublishLoad, Sized, drive, masked, open_socket, send_frames
from semel.bench.pubsub_sides import (
    GROUP,
    SemelServer,
    Serve,
    bare_server,
    listener_batched,
    listener_one_by_one,
    picows,
)

PARTS = ("publish", "postgres", "peers", "fanout", "idle", "recover", "growth")
RATE_MAX = 150_000
"""More publishes a second than this are not made ready."""

ECHO_WANTED = 0.35
SYNCED_WANTED = 3.0
DELIVERIES_WANTED = 100_000
P99_S_WANTED = 1.0
BROADCAST_WANTED = 0.6
IDLE_KB_WANTED = 20.0
RECOVER_S_WANTED = 10.0
KEEPS_WANTED = 0.7

PICOWS = "bare echo: picows"
LISTENER_SINGLE = "bare echo: Semel's listener, one write for each"
LISTENER = "bare echo: Semel's listener"
SQLITE = "SQLite, one subscriber"
SQLITE_ALONE = "SQLite, no subscriber"
POSTGRES = "PostgreSQL, one subscriber"
NATS, NATS_SYNC, RABBITMQ, MOSQUITTO = "NATS default", "NATS sync always", "RabbitMQ quorum", "Mosquitto QoS 2"
PEERS = (NATS, NATS_SYNC, RABBITMQ, MOSQUITTO)
SYNCED = (NATS_SYNC, RABBITMQ)
"""They have it on disk before they answer."""
PACKETS = "{}, packets"


@dataclass(frozen=True, slots=True)
class PubSubOptions:
    """`seconds` is how long one measurement takes. `fan_window` messages are on their way to the subscribers. `url` is
    a PostgreSQL server to use. `stored` is the 1x of stored messages."""

    parts: tuple[str, ...] = PARTS
    rounds: int = 3
    seconds: float = 2.0
    body_bytes: int = 200
    window: int = 1000
    subscribers: int = 1000
    fan_window: int = 40
    connections: int = 10_000
    sessions: int = 1000
    missed: int = 20
    stored: int = 5000
    scales: tuple[int, ...] = (1, 10, 100)
    url: str | None = None
    folder: Path = field(default_factory=Path.cwd)

    def quick(self) -> PubSubOptions:
        """To see that it works. Its figures mean little."""
        return replace(
            self, rounds=1, seconds=0.1, window=50, subscribers=20, fan_window=5, connections=50, sessions=20, missed=3,
            stored=100, scales=(1, 10),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Figure:
    part: str
    name: str
    value: float
    unit: str


@dataclass(frozen=True, slots=True)
class Goal:
    """What was promised of a figure: at least `wanted`, or at most if it `is_limit`."""

    name: str
    value: float
    wanted: float
    is_limit: bool = False

    @property
    def holds(self) -> bool:
        return self.value <= self.wanted if self.is_limit else self.value >= self.wanted


@dataclass(frozen=True, slots=True)
class PubSubResult:
    """`absent` are peers that are not installed here."""

    body_bytes: int
    window: int
    figures: tuple[Figure, ...] = ()
    goals: tuple[Goal, ...] = ()
    absent: tuple[str, ...] = ()

    @property
    def misses(self) -> list[str]:
        return [
            f"{goal.name}: {goal.value:.3g}, and not {'at most' if goal.is_limit else 'at least'} {goal.wanted:.3g}"
            for goal in self.goals
            if not goal.holds
        ]

    @property
    def holds(self) -> bool:
        return not self.misses

    def as_dict(self) -> dict[str, Any]:
        goals = [{**asdict(goal), "holds": goal.holds} for goal in self.goals]
        return {**asdict(self), "goals": goals, "misses": self.misses, "holds": self.holds}


Step = Callable[[], None]


def run(options: PubSubOptions, console: Console) -> PubSubResult:
    """Measure, showing progress on `console`. Temporary data is removed."""
    crowd.raise_file_limit()
    bench = _Bench(options)
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="semel-bench-", dir=options.folder))
        progress = stack.enter_context(Progress(console=console, transient=True))
        for name, measure in bench.parts():
            task = progress.add_task(name, total=None)
            measure(crowd.folder_of(Path(folder).resolve(), name), partial(progress.advance, task))
            progress.remove_task(task)
    return bench.result()


class _Bench:
    def __init__(self, options: PubSubOptions) -> None:
        self._options = options
        self._figures: dict[str, Figure] = {}
        self._goals: list[Goal] = []
        self._absent: list[str] = []
        self._ready: tuple[bytes, int] | None = None

    def parts(self) -> list[tuple[str, Callable[[Path, Step], None]]]:
        asked = self._options.parts
        alone = [(name, getattr(self, f"_measure_{name}")) for name in PARTS[3:] if name in asked]
        return [("rates", self._measure_rates), *alone] if {*PARTS[:3]} & {*asked} else alone

    def result(self) -> PubSubResult:
        options, figures = self._options, tuple(self._figures.values())
        return PubSubResult(options.body_bytes, options.window, figures, tuple(self._goals), tuple(self._absent))

    def _note(self, part: str, name: str, value: float, unit: str = "/s") -> None:
        self._figures[name] = Figure(part, name, value, unit)

    def _frames(self) -> tuple[bytes, int]:
        if self._ready is None:
            count = self._options.window + int(RATE_MAX * self._options.seconds)
            self._ready = send_frames(GROUP, self._options.body_bytes, count)
        return self._ready

    # -- rates, all in turns

    def _measure_rates(self, folder: Path, step: Step) -> None:
        with ExitStack() as stack:
            sides: dict[str, tuple[str, peers.Measure]] = {}
            if "publish" in self._options.parts:
                sides |= self._publish_sides(stack, folder)
            if "postgres" in self._options.parts:
                sides |= self._postgres_side(stack, folder)
            if "peers" in self._options.parts:
                sides |= self._peer_sides(stack, folder)
            rates: dict[str, list[float]] = {name: [] for name in sides}
            for _, measure in sides.values():
                measure(self._options.seconds / 4)  # not counted: all begin with warm code
                step()
            for _ in range(self._options.rounds):
                for name, (_, measure) in sides.items():
                    rates[name].append(measure(self._options.seconds))
                    step()
        for name, (part, _) in sides.items():
            self._note(part, name, median(rates[name]))
        self._judge_rates()

    def _publish_sides(self, stack: ExitStack, folder: Path) -> dict[str, tuple[str, peers.Measure]]:
        store_url = f"sqlite:///{folder}/semel.db"
        server = stack.enter_context(SemelServer(store_url, folder))
        bare: dict[str, Serve] = {PICOWS: picows, LISTENER_SINGLE: listener_one_by_one, LISTENER: listener_batched}
        ports = {name: stack.enter_context(bare_server(serve)) for name, serve in bare.items()}
        return {
            **{name: ("publish", partial(self._echo, port)) for name, port in ports.items()},
            SQLITE: ("publish", partial(self._publish, server, 1)),
            SQLITE_ALONE: ("publish", partial(self._publish, server, 0)),
        }

    def _echo(self, port: int, seconds: float) -> float:
        frame = masked(b"x" * self._options.body_bytes)
        answer = Sized(len(frame) - 4)
        sock = open_socket(port, "/client/echo")
        publisher = PublishLoad(sock, answer, frame * 1000, len(frame), self._options.window, is_endless=True)
        try:
            count, took = drive(publisher, (), seconds)
        finally:
            publisher.close()
        return count / took

    def _publish(self, server: SemelServer, subscribers: int, seconds: float) -> float:
        return crowd.publish(server, subscribers, self._frames(), self._options.window, seconds)

    def _postgres_side(self, stack: ExitStack, folder: Path) -> dict[str, tuple[str, peers.Measure]]:
        from semel.testing.postgres import PrivatePostgres, new_database

        url = self._options.url
        if url is None:
            url = stack.enter_context(PrivatePostgres(durable=True)).url
        server = stack.enter_context(SemelServer(stack.enter_context(new_database(url)), folder))
        server.await_hub()
        return {POSTGRES: ("postgres", partial(self._publish, server, 1))}

    def _peer_sides(self, stack: ExitStack, folder: Path) -> dict[str, tuple[str, peers.Measure]]:
        size = (self._options.body_bytes, self._options.window)
        made: dict[str, Callable[[Path], AbstractContextManager[peers.Peer]]] = {
            NATS: lambda place: peers.nats(place, *size, sync_always=False),
            NATS_SYNC: lambda place: peers.nats(place, *size, sync_always=True),
            RABBITMQ: lambda place: peers.rabbitmq(place, *size),
            MOSQUITTO: lambda place: peers.mosquitto(place, *size),
        }
        sides: dict[str, tuple[str, peers.Measure]] = {}
        for name, make in made.items():
            try:
                peer = stack.enter_context(make(crowd.folder_of(folder, name.replace(" ", "-").lower())))
            except peers.NotInstalled as missing:
                self._absent.append(f"{name}: {missing}")
            else:
                sides[name] = ("peers", peer.library)
                sides[PACKETS.format(name)] = ("peers", peer.packets)
        return sides

    def _judge_rates(self) -> None:
        found = {name: figure.value for name, figure in self._figures.items()}
        if PICOWS in found:
            self._goal("SQLite with a subscriber, of picows' bare echo", found[SQLITE] / found[PICOWS], ECHO_WANTED)
        others = [name for name in PEERS if name in found]
        synced = max((found[name] for name in SYNCED if name in found), default=None)
        if SQLITE in found and others:
            best = max(others, key=lambda name: found[name])
            self._goal(f"SQLite, of the fastest peer ({best})", found[SQLITE] / found[best], 1.0)
        if SQLITE in found and synced is not None:
            self._goal("SQLite, of the fastest peer that syncs", found[SQLITE] / synced, SYNCED_WANTED)
        if POSTGRES in found and synced is not None:
            self._goal("PostgreSQL, of the fastest peer that syncs", found[POSTGRES] / synced, 1.0)

    def _goal(self, name: str, value: float, wanted: float, *, is_limit: bool = False) -> None:
        self._goals.append(Goal(name, value, wanted, is_limit))

    # -- many clients

    def _measure_fanout(self, folder: Path, step: Step) -> None:
        options = self._options
        size = (options.subscribers, options.body_bytes, options.fan_window, options.seconds)
        hub, bare = [], []
        with bare_server(listener_batched) as port, SemelServer(f"sqlite:///{folder}/semel.db", folder) as server:
            for _ in range(options.rounds):
                bare.append(crowd.broadcast(port, *size))
                step()
                hub.append(crowd.fan_out(server, *size))
                step()
        rate, p99_s = median(each.deliveries_per_s for each in hub), median(each.p99_s for each in hub)
        limit = median(each.deliveries_per_s for each in bare)
        self._note("fanout", f"deliveries to {options.subscribers:,} subscribers", rate)
        self._note("fanout", "p99 from publish to delivery", p99_s * 1000, " ms")
        self._note("fanout", "bare broadcast", limit)
        self._goal("deliveries a second", rate, DELIVERIES_WANTED)
        self._goal("p99 of a delivery, seconds", p99_s, P99_S_WANTED, is_limit=True)
        self._goal("deliveries, of a bare broadcast", rate / limit, BROADCAST_WANTED)

    def _measure_idle(self, folder: Path, step: Step) -> None:
        with SemelServer(f"sqlite:///{folder}/semel.db", folder) as server:
            found = crowd.idle(server, self._options.connections)
        step()
        self._note("idle", f"memory of each of {found.connections:,} connections", found.bytes_each / 1024, " KB")
        self._goal("KB of an idle connection", found.bytes_each / 1024, IDLE_KB_WANTED, is_limit=True)

    def _measure_recover(self, folder: Path, step: Step) -> None:
        options = self._options
        with SemelServer(f"sqlite:///{folder}/semel.db", folder) as server:
            found = crowd.recover(server, options.sessions, options.missed, options.body_bytes)
        step()
        self._note("recover", f"{found.sessions:,} sessions, with {options.missed} messages each", found.seconds, " s")
        self._note("recover", "of that until the server listened", found.start_s, " s")
        self._goal("seconds from kill -9 until all are back", found.seconds, RECOVER_S_WANTED, is_limit=True)

    def _measure_growth(self, folder: Path, step: Step) -> None:
        options = self._options
        counts = [options.stored * scale for scale in options.scales]
        rates: dict[int, list[float]] = {count: [] for count in counts}
        with ExitStack() as stack:
            servers = {}
            for count in counts:
                url = f"sqlite:///{folder}/{count}.db"
                crowd.fill(url, count, options.body_bytes)
                servers[count] = stack.enter_context(SemelServer(url, folder))
                self._publish(servers[count], 0, options.seconds / 4)
                step()
            for _ in range(options.rounds):
                for count in counts:
                    rates[count].append(self._publish(servers[count], 0, options.seconds))
                    step()
        found = [median(rates[count]) for count in counts]
        for count, rate in zip(counts, found, strict=True):
            self._note("growth", f"with {count:,} messages stored", rate)
        self._goal(f"with {counts[-1]:,} stored, of that with {counts[0]:,}", found[-1] / found[0], KEEPS_WANTED)


def tables(result: PubSubResult) -> list[Table]:
    """The result for people."""
    figures = Table(title=f"pub/sub on {HOST}: {result.body_bytes} byte bodies, {result.window:,} in flight")
    for name, side in (("part", "left"), ("what", "left"), ("figure", "right"), ("of picows", "right")):
        figures.add_column(name, justify=side)  # type: ignore[arg-type]
    limit = next((figure.value for figure in result.figures if figure.name == PICOWS), None)
    for figure in result.figures:
        share = f"{figure.value / limit:.2f}" if limit and figure.part in PARTS[:3] else ""
        value = f"{figure.value:,.0f}" if figure.unit == "/s" else f"{figure.value:,.2f}"
        figures.add_row(figure.part, figure.name, value + figure.unit, share)
    if result.absent:
        figures.caption = "not measured: " + "; ".join(result.absent)
    goals = Table(title="what was promised")
    for name in ("goal", "figure", "wanted", "holds"):
        goals.add_column(name, justify="left" if name == "goal" else "right")
    for goal in result.goals:
        wanted = f"{'at most' if goal.is_limit else 'at least'} {goal.wanted:,g}"
        value = f"{goal.value:,.0f}" if goal.value >= 1000 else f"{goal.value:.2f}"
        goals.add_row(goal.name, value, wanted, "yes" if goal.holds else "no")
    return [table for table in (figures, goals) if table.row_count]
