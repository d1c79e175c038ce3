"""A storm first, in which safety must hold; then clear weather, in which everything must drain."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from semel.kernel.hop import ReceiveOrder
from semel.kernel.ledger import START, Kind
from semel.kernel.ops import Trim, Unit
from semel.kernel.store import Record
from semel.sim.kernel.checkers import ALL, Checker
from semel.sim.kernel.database import Database
from semel.sim.kernel.network import Link
from semel.sim.kernel.node import Node
from semel.sim.kernel.path import HOP_IN, HUB, SimulatedPath, inbox, outbox
from semel.sim.kernel.weather import KernelWorld


class Storm:
    """Lets the faults of a weather strike, each at its own random times, until the weather clears."""

    def __init__(self, world: KernelWorld, path: SimulatedPath) -> None:
        self._world = world
        self._path = path
        self._backup: tuple[int, dict[int, Record]] | None = None

    def begin(self) -> None:
        weather = self._world.weather
        for node in self._path.nodes:
            self._world.repeat_until_clear(weather.nodes.crash_every_s, f"{node.name} crash", node.crash)
            self._world.repeat_until_clear(
                weather.nodes.pause_every_s, f"{node.name} pause", partial(self._pause, node)
            )
        for database in self._path.databases:
            if database.shared:
                self._world.repeat_until_clear(weather.stores.outage_every_s, f"{database.name} crash", database.crash)
        for link in self._path.links:
            self._world.repeat_until_clear(weather.links.cut_every_s, f"{link.name} cut", link.cut)
            self._world.repeat_until_clear(
                weather.links.partition_every_s, f"{link.name} partition", partial(self._part, link)
            )
        self._plan_retention()
        self._plan_once()

    def clear(self) -> None:
        """The weather clears: what is down comes up by itself, what is paused or silent goes on now."""
        self._world.is_clear = True
        for node in self._path.nodes:
            if node.paused:
                node.resume()
        for link in self._path.links:
            link.heal()

    def _pause(self, node: Node) -> None:
        node.pause(self._world.between(self._world.weather.nodes.pause_s))

    def _part(self, link: Link) -> None:
        link.fall_silent(self._world.between((0.5, 5.0)))

    # -- retention

    def _plan_retention(self) -> None:
        """Trim as far as anybody allows, and sweep. Outboxes are kept where a restore may need them again."""
        if self._world.weather.retention_every_s <= 0:
            return
        streams = {
            self._path.hub: [HUB],
            self._path.consumer: [inbox(sub) for sub in self._world.weather.subscriptions if sub.target == "stream"],
        }
        if not self._world.weather.restore:
            streams |= {node.database: [outbox(name)] for name, node in self._path.producers.items()}
        for database, names in streams.items():
            self._retain(database, names)

    def _retain(self, database: Database, streams: list[str]) -> None:
        if database.up:
            database.archive_index()
            for stream in streams:
                database.store.commit([Unit((Trim(stream, database.store.head(stream).offset + 1),))])
            swept = database.store.sweep(database.micros(), limit=1000)
            self._world.see("retention.swept", swept.total)
        delay_s = self._world.random.expovariate(1 / self._world.weather.retention_every_s)
        self._world.after(max(delay_s, 0.1), f"{database.name} retention", self._retain, database, streams)

    # -- what happens at most once

    def _plan_once(self) -> None:
        weather = self._world.weather
        if weather.hub_reader == "late":
            self._world.after(self._world.between((1.0, weather.storm_s)), "late reader", self._path.add_late_reader)
        if weather.restore:
            at = self._world.between((weather.storm_s * 0.3, weather.storm_s * 0.8))
            self._world.after(at * self._world.random.random(), "backup", self._take_backup)
            self._world.after(at, "restore", self._restore)

    def _take_backup(self) -> None:
        hub = self._path.hub
        if not hub.up:
            self._world.after(0.1, "backup", self._take_backup)
            return
        hub.archive_index()
        self._backup = (len(hub.disk), dict(hub.archive))

    def _restore(self) -> None:
        """Stop the traffic of the hub, put the backup in place, and let the producers send again what it lacks.

        A confirm tells a producer that the hub has a message, but not in which epoch. So nothing that was sent before
        the restore may arrive after it: connections are closed, and paused processes are waited for. Where only
        stop-and-wait keeps the order, what the hub's processes have in memory would come before what was lost: there
        they are started again as well.
        """
        nodes = [*self._path.hubs, *self._path.producers.values()]
        if self._backup is None or not self._path.hub.up or any(node.paused for node in nodes):
            self._world.after(0.2, "restore", self._restore)
            return
        hub = self._path.hub
        for link in self._path.links:
            if link.hop == HOP_IN:
                link.purge()
        if hub.shared:
            hub.crash()
        inbound = self._world.weather.inbound
        if not hub.shared or (inbound.in_order and inbound.order is not ReceiveOrder.STRICT):
            for node in self._path.hubs:
                node.crash()
        length, archive = self._backup
        self._world.see("hub.restored")
        self._world.see("hub.restored-lost", max(0, len(hub.disk) - length))
        hub.restore(length)
        hub.archive = dict(archive)
        self._path.pin_reader()
        self._path.replay_outboxes()


DRAIN_S = 400.0
"""Virtual time within which everything must have drained once the weather is clear."""

QUIET_S = 10.0
"""Virtual time after that in which late copies and forgotten timers may still do harm."""

EVENTS_MAX = 100_000


class KernelScenario:
    def __init__(self, seed: int, log: Callable[[str], None] | None = None) -> None:
        self.world = KernelWorld(seed, log)
        self.weather: dict[str, Any] = self.world.weather.as_dict()

    def run(self) -> dict[str, float]:
        world, path = self.world, SimulatedPath(self.world)
        checker, storm = Checker(world, path), Storm(world, path)
        storm.begin()
        path.start()
        _run_until(world, world.weather.storm_s)
        checker.check(drained=False)
        storm.clear()
        if not world.violations and _drain(world, checker):
            _run_until(world, world.now + QUIET_S)
            checker.check(drained=True)
        return _figures(world, path)


def _run_until(world: KernelWorld, until: float) -> None:
    while world.clock.step(until):
        if world.clock.events > EVENTS_MAX:
            raise RuntimeError(f"{EVENTS_MAX} events and no end: something runs in circles")


def _drain(world: KernelWorld, checker: Checker) -> bool:
    end = world.now + DRAIN_S
    while not world.violations and (left := checker.under_way()):
        if world.now >= end:
            world.violated(f"not drained after {DRAIN_S:.0f} s of clear weather: {left}")
        _run_until(world, world.now + 1.0)
    return not world.violations


def _figures(world: KernelWorld, path: SimulatedPath) -> dict[str, float]:
    counts = dict.fromkeys(Kind, 0)
    for database in path.databases:
        for entry in database.store.ledger(START, ALL):
            counts[entry.event.kind] += entry.event.n
    return {
        "sent": counts[Kind.SENT],
        "accepted": counts[Kind.ACCEPTED],
        "duplicates": counts[Kind.DUPLICATE],
        "resent": counts[Kind.RESENT],
        "handled": counts[Kind.HANDLED],
        "crashes": world.seen["node.crash"] + world.seen["store.crash"],
        "virtual_s": round(world.now, 3),
        "events": world.clock.events,
    }
