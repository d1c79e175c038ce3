"""A process: the production interpreter with its machines, on a clock that drifts.

A crash takes everything but the store. A pause takes only time: the process goes on afterwards with what it believed
before, and learns in one go of all that happened meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from semel.errors import SemelError
from semel.kernel.effects import (
    Close,
    Deliver,
    Delivered,
    DeliverFailed,
    DeliverLost,
    Event,
    Machine,
    Notify,
    Send,
)
from semel.kernel.envelope import Envelope
from semel.kernel.group import CommitGroup, GroupLimits
from semel.kernel.interpreter import Seat
from semel.kernel.ledger import Kind, message_event
from semel.kernel.ops import Append, Applied, Finish, Log, Op, Stale, Unit, WorkRow, WorkState
from semel.kernel.work import Worker
from semel.sim.kernel.database import Database
from semel.sim.kernel.weather import KernelWorld
from semel.sim.process import Answering, Process
from semel.sim.world import TICK_S, Drift

if TYPE_CHECKING:
    from semel.sim.kernel.network import Link

Factory = Callable[["Node"], Machine]
"""Builds a machine from what the node's store holds."""

START_AGAIN_S = 0.3
RELOAD_S = 0.05


class Node(Process):
    """Performs effects in virtual time. `life` counts its lives: what was asked in one is not answered in the next."""

    def __init__(self, world: KernelWorld, name: str, database: Database, drift: Drift) -> None:
        self.name = name
        self.database = database
        self.factories: dict[str, Factory] = {}
        self.effects: dict[str, str] = {}
        self.links: list[Link] = []
        self.life = 0
        self.up = False
        self.paused = False
        self.on_notice: Callable[[Node, str, Notify], None] = lambda *_: None
        self.on_closed: Callable[[Node, str, str], None] = lambda *_: None
        self._world = world
        self._drift = drift
        self._backlog: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self._wake_due = False
        self._timer_at: float | None = None
        database.nodes.append(self)
        super().__init__(self.now)

    def now(self) -> float:
        return self._drift.local(self._world.now)

    # -- life

    def start(self) -> None:
        if self.up:
            return
        if not self.database.shared:
            self.database.open()
        if not self.database.up:
            self._world.after(START_AGAIN_S, f"{self.name} start", self.start)
            return
        self.up = True
        self._begin()
        for link in self.links:
            link.node_started(self)

    def _begin(self) -> None:
        self.begin(self.now, GroupLimits(rows=self._world.weather.stores.group_rows))
        for factory in list(self.factories.values()):
            self.interpreter.add(factory(self))
        self._set_timer()

    def add(self, name: str, factory: Factory) -> None:
        """One more machine, now and after every restart."""
        self.factories[name] = factory
        if self.up:
            self.run(self._reload, name)

    def remove(self, name: str) -> None:
        self.factories.pop(name, None)
        if self.up:
            self.interpreter.remove(name)

    def crash(self) -> None:
        if not self.up:
            return
        self._world.see("node.crash")
        self.up = self.paused = False
        self._end_life()
        for link in self.links:
            link.node_lost(self)
        if not self.database.shared:
            self.database.crash()
        self._world.after(self._world.between((0.2, 4.0)), f"{self.name} start", self.start)

    def _end_life(self) -> None:
        self.life += 1
        self._backlog.clear()
        self._wake_due = False
        self._timer_at = None

    def pause(self, length_s: float) -> None:
        if self.up and not self.paused:
            self._world.see("node.pause")
            self.paused = True
            self._world.after(length_s, f"{self.name} resume", self._resume, self.life)

    def _resume(self, life: int) -> None:
        if life == self.life:
            self.resume()

    def resume(self) -> None:
        self.paused = False
        backlog, self._backlog = self._backlog, []
        for do, args in backlog:
            self.run(do, *args)

    def run(self, do: Callable[..., None], *args: Any) -> None:
        """Do it in this process, now or after the pause."""
        if not self.up:
            return
        if self.paused:
            self._backlog.append((do, args))
            return
        do(*args)
        self._set_timer()

    def _run_in(self, life: int, do: Callable[..., None], *args: Any) -> None:
        if life == self.life:
            self.run(do, *args)

    def _later(self, delay_s: float, what: str, do: Callable[..., None], *args: Any) -> None:
        self._world.after(delay_s, f"{self.name} {what}", self._run_in, self.life, do, *args)

    # -- time

    def _set_timer(self) -> None:
        if not self.up or (deadline := self.interpreter.next_deadline()) is None:
            return
        at = max(self._world.now, self._drift.world(deadline)) + TICK_S
        if self._timer_at is None or at < self._timer_at:
            self._timer_at = at
            self._world.after(at - self._world.now, f"{self.name} timer", self._timer, self.life, at)

    def _timer(self, life: int, at: float) -> None:
        if life == self.life and at == self._timer_at:
            self._timer_at = None
            self.run(self._run_timers)

    def _run_timers(self) -> None:
        self.interpreter.run_timers()

    def wake_soon(self) -> None:
        if self.up and not self._wake_due:
            self._wake_due = True
            self._later(self._world.between(self._world.weather.stores.wake_s), "wake", self._wake)

    def _wake(self) -> None:
        self._wake_due = False
        self.interpreter.wake()

    # -- the store

    def commit(self, group: CommitGroup) -> None:
        self.database.commit(self, group)

    def complete(self, life: int, report: str, group: CommitGroup, answer: Any) -> None:
        self._run_in(life, self._complete, report, group, answer)

    def _complete(self, report: str, group: CommitGroup, answer: Any) -> None:
        waiting = len(self.interpreter.queue)
        self._count(report, group, answer)
        if report == "unknown":
            self.interpreter.unknown(group)
        else:
            getattr(self.interpreter, report)(group, answer)
        if report == "failed" and waiting - len(self.interpreter.queue) > len(group.members):
            self._world.see("completion.chained")

    def _count(self, report: str, group: CommitGroup, answer: Any) -> None:
        if report == "committed" or (report == "resolved" and answer is not None):
            for outcome in answer:
                applied = isinstance(outcome, Applied)
                self._world.see("completion.committed" if applied else "completion.refused")
                if not applied and any(isinstance(result, Stale) for result in outcome.results):
                    self._world.see("completion.stale")
        elif report == "refused" and len(group.members) > 1:
            self._world.see("completion.halved")
        else:
            self._world.see(f"completion.{report}", len(group.members))

    def ask(self, look: Callable[[Any], Any], done: Answering, failed: Answering) -> None:
        self.database.ask(self, look, partial(self._report, done, failed))

    def complete_load(self, life: int, done: Callable[..., None], answer: Any) -> None:
        self._run_in(life, done, answer)

    def _report(self, done: Answering, failed: Answering, found: Any) -> None:
        if isinstance(found, SemelError):
            self._world.see(f"read.{found.code}")
            failed(found)
        else:
            done(found)

    # -- the wire

    def send(self, seat: Seat, effect: Send) -> None:
        for link in self.links:
            if link.carries(effect.peer):
                link.send(self, effect.peer, effect.message)

    def feed_event(self, life: int | None, machine: str, event: Event) -> None:
        """An event for a machine, if the process and the machine are there. `life` None: whichever life this is."""
        if life is None or life == self.life:
            self.run(self._feed, machine, event)

    def _feed(self, machine: str, event: Event) -> None:
        seat = self.interpreter.seat(machine)
        if seat is not None:
            self.interpreter.feed(seat, event)

    # -- the application

    def deliver(self, seat: Seat, effect: Deliver) -> None:
        """The handler's effect goes into the commit of its completion, without an identity that could hide a double."""
        handling = self._world.weather.handling
        slow = self._world.strikes("handler.slow", handling.slow)
        delay_s = self._world.between(handling.slow_s if slow else (0.001, 0.05))
        if self._world.strikes("handler.failed", handling.fails):
            event: Event = DeliverFailed(effect.token, "the handler did not like it")
            self._later(delay_s, "handled", self._handled, seat, event)
        elif isinstance(effect.item, WorkRow) and self._world.strikes("handler.own-transaction", handling.own):
            self._later(delay_s, "handled", self._handle_itself, seat, effect.token, effect.item)
        else:
            event = Delivered(effect.token, self._effect(seat.machine.name, effect.item.envelope))
            self._later(delay_s, "handled", self._handled, seat, event)
        if self._world.strikes("node.pause-at-work", self._world.weather.nodes.pause_at_work):
            self.pause(self._world.between((0.5, 2.0)) * handling.lease_s)

    def _handled(self, seat: Seat, event: Event) -> None:
        self.interpreter.feed(seat, event)

    def _handle_itself(self, seat: Seat, token: int, row: WorkRow) -> None:
        """The handler has a connection of its own to the database, and may not learn what became of its commit."""
        if not self.database.up:
            self._handled(seat, DeliverFailed(token, "there is no database"))
            return
        outcome = self.database.commit_alone(self._own_unit(seat.machine, row))
        if isinstance(outcome, Applied) and self._world.strikes("handler.in-doubt", self._world.weather.stores.doubt):
            self._handled(seat, DeliverFailed(token, "the connection broke inside COMMIT"))
        elif isinstance(outcome, Applied):
            self._handled(seat, Delivered(token, finished=True))
        else:
            self._world.see("handler.lost")
            self._handled(seat, DeliverLost(token))

    def _own_unit(self, machine: Machine, row: WorkRow) -> Unit:
        assert isinstance(machine, Worker), "work rows come from workers"
        finish = Finish(row.queue, row.identity, WorkState.DONE, fence=row.fence)
        event = message_event(Kind.HANDLED, machine.config.hop, "", row.envelope, attempt=row.attempts)
        return Unit((finish, *self._effect(machine.name, row.envelope), Log(event)))

    def _effect(self, machine: str, envelope: Envelope) -> tuple[Op, ...]:
        effect = Envelope(id=envelope.id, data=envelope.data, session=envelope.session, index=envelope.index)
        return (Append(self.effects[machine], effect),)

    # -- people

    def notify(self, seat: Seat, effect: Notify) -> None:
        self._world.see(f"notice.{effect.topic}")
        self.on_notice(self, seat.machine.name, effect)

    def closed(self, seat: Seat, effect: Close) -> None:
        self._world.see(f"closed.{effect.reason}")
        self.on_closed(self, seat.machine.name, effect.reason)

    def reload(self, name: str) -> None:
        """Start again from the store, a moment later: whoever closes is still in the middle of something."""
        self._later(RELOAD_S, "reload", self._reload, name)

    def _reload(self, name: str) -> None:
        if name not in self.factories:
            return
        if not self.database.up:
            self._later(START_AGAIN_S, "reload", self._reload, name)
        else:
            self.interpreter.add(self.factories[name](self))
