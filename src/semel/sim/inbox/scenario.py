"""A storm first, in which safety must hold; then clear weather, in which everything must come to an end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

from semel.errors import SemelError, StoreError
from semel.inbox.endpoint import EndpointMode
from semel.kernel.ledger import START, Kind
from semel.runtime.inbox import gate
from semel.runtime.inbox.operating import dead_letters, discard, replay
from semel.sim.inbox.broker import Broker
from semel.sim.inbox.checkers import ALL, InboxChecker
from semel.sim.inbox.process import AppProcess
from semel.sim.inbox.shop import Outside, SimulatedApp
from semel.sim.inbox.weather import EndpointPlan, InboxWorld
from semel.sim.kernel.database import Database
from semel.sim.kernel.weather import KernelWorld
from semel.sim.world import Drift

DRAIN_S = 120.0
EVENTS_MAX = 60_000
POISONED = ("orders", "mail", "parcels", "sms")


class InboxScenario:
    def __init__(self, seed: int, log: Callable[[str], None] | None = None) -> None:
        self.world = InboxWorld(seed, log)
        self.weather: dict[str, Any] = self.world.weather.as_dict()
        self._outside = Outside(self.world)
        self._database = Database(cast(KernelWorld, self.world), "S", "store", shared=True, drift=Drift())
        self._app = SimulatedApp(self.world, self._database, self._outside, self._database.micros)
        self._checker = InboxChecker(self.world, self._database, self._app, self._outside)
        self._processes = [self._process(f"p{n + 1}") for n in range(self.world.weather.processes)]
        self._broker = Broker(self.world, self._processes, self._checker.on_ack)
        self._checker.broker = self._broker

    def _process(self, name: str) -> AppProcess:
        nodes, random = self.world.weather.nodes, self.world.random
        drift = Drift(random.uniform(-1, 1) * nodes.drift_s, 1 + random.uniform(-1, 1) * nodes.drift_rate)
        return AppProcess(self.world, name, self._database, drift, self._outside)

    def run(self) -> dict[str, float]:
        with _quiet():
            return self._run()

    def _run(self) -> dict[str, float]:
        self._begin()
        self._run_until(self.world.weather.storm_s)
        self._checker.check(drained=False)
        self._clear()
        if not self.world.violations and self._drain():
            self._checker.check(drained=True)
        return self._figures()

    # -- the storm

    def _begin(self) -> None:
        weather, world = self.world.weather, self.world
        for process in self._processes:
            process.start()
            world.repeat_until_clear(weather.nodes.crash_every_s, f"{process.name} crash", process.crash)
            pause = partial(self._pause, process)
            world.repeat_until_clear(weather.nodes.pause_every_s, f"{process.name} pause", pause)
        world.repeat_until_clear(weather.stores.outage_every_s, "S crash", self._database.crash)
        world.repeat_until_clear(weather.sweep_every_s, "sweep", self._sweep)
        world.repeat_until_clear(2.0, "operator", self._operate)
        world.repeat_until_clear(weather.later.caller_every_s, "caller", self._cancel)
        self._plan_traffic()

    def _pause(self, process: AppProcess) -> None:
        process.pause(self.world.between(self.world.weather.nodes.pause_s))

    def _sweep(self) -> None:
        if self._database.up:
            self.world.see("retention.swept", self._database.store.sweep(self._database.micros(), limit=1000).moved)

    def _plan_traffic(self) -> None:
        """Each endpoint gets messages of its own; with identities by endpoint some ids come to two of them."""
        weather, random = self.world.weather, self.world.random
        plans = [plan for plan in weather.endpoints if plan.name != "later"]
        for n in range(1, weather.messages + 1):
            plan = plans[n % len(plans)]
            key, id = f"k{random.randrange(weather.keys)}", f"m{n}"
            at = weather.over_s * n / weather.messages
            self.world.after(at, f"publish {id}", self._publish, plan, id, key, n)
            if weather.identity == "id+endpoint" and random.random() < 0.3:
                other = random.choice([each for each in plans if each is not plan])
                self.world.after(at, f"publish {id}", self._publish, other, id, key, n)
            elif plan.name in POISONED and len(self._outside.poison) < weather.handlers.poison:
                self._outside.poison.add(id)
        self.world.after(weather.over_s / 2, "a fetch once more", self._fetch_again)

    def _publish(self, plan: EndpointPlan, id: str, key: str, index: int) -> None:
        self._broker.publish(plan, id, key, index)

    def _fetch_again(self) -> None:
        """What was delivered one by one comes as one batch, as after a rebalance."""
        for plan in self.world.weather.endpoints:
            mine = [each for each in self._broker.messages if each.plan is plan][-self.world.weather.broker.batch :]
            if plan.mode is EndpointMode.DURABLE and not plan.keyed and mine:
                self._broker.deliver_together(mine)

    # -- people

    def _cancel(self) -> None:
        """Somebody takes back what was sent for later, with a transaction of their own."""
        try:
            with self._app.transaction() as connection, self._app.outbox(connection) as outbox:
                self._app.cancel_one(outbox)
            self.world.see("caller.cancels")
        except StoreError:
            self.world.see("caller.store-trouble")

    def _operate(self) -> None:
        """Somebody looks at the dead letters: what blocks a key, and every second one of the others."""
        if not self._database.up:
            return
        self._checker.check_blame()
        for name in self._app.endpoints:
            for letter in dead_letters(self._app, name):
                if name != "orders" and int(letter.message.lstrip("m").split(".")[0] or 0) % 2:
                    continue
                try:
                    self._decide(name, letter.identity, letter.message)
                except SemelError:
                    self.world.see("operator.too-late")

    def _decide(self, endpoint: str, identity: str, message: str) -> None:
        if message in self._outside.poison or self.world.random.random() < 0.2:
            discard(self._app, endpoint, identity)
            self.world.see("operator.discard")
        else:
            replay(self._app, endpoint, identity)
            self._checker.replays[endpoint, message] += 1
            self.world.see("operator.replay")
        self._database.wake()

    # -- clear weather

    def _clear(self) -> None:
        self.world.is_clear = True
        for process in self._processes:
            if process.paused:
                process.resume()

    def _drain(self) -> bool:
        end = self.world.now + DRAIN_S
        while not self.world.violations and (left := self._checker.under_way()):
            if self.world.now >= end:
                self.world.violated(f"not drained after {DRAIN_S:.0f} s of clear weather: {left}")
            self._run_until(self.world.now + 1.0)
            self._operate()
        self._run_until(self.world.now + 2 * self.world.weather.handlers.lease_s)
        return not self.world.violations

    def _run_until(self, until: float) -> None:
        while self.world.clock.step(until):
            if self.world.clock.events > EVENTS_MAX:
                raise RuntimeError(f"{EVENTS_MAX} events and no end: something runs in circles")

    def _figures(self) -> dict[str, float]:
        counts = dict.fromkeys(Kind, 0)
        for entry in self._database.store.ledger(START, ALL):
            counts[entry.event.kind] += entry.event.n
        return {
            "published": len(self._broker.messages),
            "accepted": counts[Kind.ACCEPTED],
            "duplicates": counts[Kind.DUPLICATE],
            "handled": counts[Kind.HANDLED],
            "dead_lettered": counts[Kind.DEAD_LETTERED],
            "discarded": counts[Kind.DISCARDED],
            "cancelled": counts[Kind.CANCELLED],
            "crashes": self.world.seen["node.crash"] + self.world.seen["store.crash"],
            "virtual_s": round(self.world.now, 3),
            "events": self.world.clock.events,
        }


@contextmanager
def _quiet() -> Iterator[None]:
    """An operator wants to know that a breaker has opened; here they open all the time."""
    gate.log.disabled = True
    try:
        yield
    finally:
        gate.log.disabled = False
