"""What goes wrong between clients and a hub."""

from __future__ import annotations

from collections.abc import Callable

from semel.errors import StoreBusy
from semel.pubsub.hub.calls import CloseConnections, Connection
from semel.sim.client.network import ClientWorld
from semel.sim.client.sockets import SocketLink


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
            self._world.tell("rest", CloseConnections(Connection(link.connection), reason="enough"))

    def _long_outage(self) -> None:
        world = self._world
        world.unreachable_until = max(world.unreachable_until, world.now + 100)
        for link in list(world.links.values()):
            world.cut(link)
