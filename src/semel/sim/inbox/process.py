"""A process that runs the application: a worker for each endpoint, the relay, and the deliveries it has in hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

from semel.errors import (
    CommitInDoubt,
    LimitExceeded,
    MessageRefused,
    SemelError,
    StaleFence,
    StoreError,
    StoreUnavailable,
)
from semel.inbox.cron import Schedule
from semel.inbox.inline import CommitOps, MarkLater, PauseEndpoint, RunHandler, Step, Steps, StoreBody, WaitFor
from semel.inbox.outbox import OutboxCalls, outbox_hop, outbox_queue
from semel.inbox.rows import done_row, leaves_doubt, row_end
from semel.inbox.settle import ARRIVALS, DeliveryEnd, Exit, Settlement
from semel.kernel.effects import Deliver, DeliverFailed, Event, OwnTransaction, delivered
from semel.kernel.envelope import Envelope
from semel.kernel.group import CommitGroup
from semel.kernel.interpreter import Seat
from semel.kernel.ops import Applied, Op, Renew, Result, Unit, WorkRow
from semel.kernel.retry import RetryPolicy, type_names
from semel.kernel.work import ALONE, Worker, WorkerConfig
from semel.runtime.host.hosting import cause_of
from semel.runtime.inbox import inline
from semel.runtime.inbox.buffered import Buffer, Buffered, buffer_of, next_wait_s
from semel.runtime.inbox.endpoint import InboxEndpoint, ReadyHandler
from semel.runtime.inbox.gate import ticket_of
from semel.runtime.inbox.handling import Answer, HandlerRun
from semel.runtime.inbox.inline import Tries, inline_steps
from semel.runtime.inbox.policies import EndpointPolicy
from semel.runtime.inbox.relay import Relay
from semel.sim.inbox.shop import APP, KEEP_S, REMOTE, Outside, ProcessDies, SimulatedApp
from semel.sim.inbox.weather import InboxWorld
from semel.sim.kernel.database import Database
from semel.sim.kernel.node import Node
from semel.sim.kernel.weather import KernelWorld
from semel.sim.world import Drift

Settle = Callable[[DeliveryEnd], None]
MARK_AGAIN_S = 0.3
TICK_AGAIN_S = 0.3
IDLE_S = 0.5
RELAY = "outbox"
RELAY_RETRY = RetryPolicy(interval_s=0.2, factor=2.0, interval_max_s=2.0)


class AppProcess(Node):
    """Its machines are workers, and what it is receiving is lost with it."""

    def __init__(self, world: InboxWorld, name: str, database: Database, drift: Drift, outside: Outside) -> None:
        self._inbox, self._outside = world, outside
        self._micros_drift = drift
        self._in_hand: dict[str, dict[int, str]] = {}
        self._buffers_busy: dict[str, int] = {}
        self._schedule = EverySeconds("ticks", "* * * * *", period_s=world.weather.later.period_s)
        self.app = SimulatedApp(world, database, outside, self._micros)
        self._relay = Relay(outbox_hop(APP), self.app.enqueue, self.app.senders)
        # the kernel's nodes and databases ask a world for its stores and nodes only, and this one has them
        super().__init__(cast(KernelWorld, world), name, database, drift)
        for endpoint in self.app.endpoints.values():
            self._add_worker(endpoint)
        config = WorkerConfig(
            f"{name}/{RELAY}", outbox_queue(APP), outbox_hop(APP), parallel=4, lease_s=world.weather.handlers.lease_s,
            idle_s=IDLE_S, retry=RELAY_RETRY, keep_s=KEEP_S, dead_keep_s=None,
        )  # fmt: skip
        self.add(config.name, lambda _: Worker(config))

    def _micros(self) -> int:
        return int(self._micros_drift.local(self._inbox.now) * 1_000_000)

    def _add_worker(self, endpoint: InboxEndpoint) -> None:
        options, handlers = endpoint.options, self._inbox.weather.handlers
        by_type = {name: self.app.rules_for(endpoint, each) for name, each in self.app.handlers[options.name].items()}
        config = WorkerConfig(
            f"{self.name}/{options.name}", options.queue, options.hop, parallel=options.parallel,
            lease_s=options.lease_s, idle_s=IDLE_S, ahead=handlers.ahead, batch=1, keep_s=options.keep_s,
            dead_keep_s=None, policy=EndpointPolicy(by_type, self.app.rules_for(endpoint, None)),
        )  # fmt: skip
        # each life has gates of its own
        self.add(config.name, lambda _: Worker(replace(config, gate=self.app.gate(options.name))))

    def _begin(self) -> None:
        super()._begin()
        self._later(0.0, "periodic", self._put_tick, self._micros())

    # -- rows

    def _note(self, seat: Seat, effect: Deliver) -> None:
        """Who was the only one that its worker had handed out? Only such a one may be blamed for a death."""
        assert isinstance(effect.item, WorkRow), "there are only workers here"
        in_hand, name = self._in_hand.setdefault(seat.machine.name, {}), seat.machine.name.rpartition("/")[2]
        in_hand[effect.token] = effect.item.envelope.id
        found = {(name, id) for id in in_hand.values()}
        self._outside.alone = self._outside.alone - found if len(found) > 1 else self._outside.alone | found

    def commit(self, group: CommitGroup) -> None:
        """A row that is marked to run alone was alone, also if the process dies before it learns that it may begin."""
        for op in (op for unit in group.units for op in unit.ops):
            if isinstance(op, Renew) and (op.cause or "").startswith(ALONE):
                self._outside.alone.add((op.queue.rpartition("/")[2], op.identity))
        super().commit(group)

    def _returned(self, seat: Seat, token: int, event: Event) -> None:
        self._in_hand[seat.machine.name].pop(token, None)
        self._handled(seat, event)

    def _end_life(self) -> None:
        self._in_hand.clear()
        self._buffers_busy.clear()
        self.app.forget()
        super()._end_life()

    def _check_breaker(self, endpoint: str) -> None:
        """By what the breaker itself has reported, not by what the gate says."""
        if self.now() < self.app.open_until.get(endpoint, 0.0):
            self._inbox.violated(f"{endpoint}: a message was begun while the breaker was open")

    def deliver(self, seat: Seat, effect: Deliver) -> None:
        self._note(seat, effect)
        self._check_breaker(seat.machine.name.rpartition("/")[2])
        slow = self._inbox.strikes("handler.slow", self._inbox.weather.handlers.slow)
        delay_s = self._inbox.between((0.5, 4.0) if slow else (0.001, 0.05))
        self._later(delay_s, "handler", self._handle_row, seat, effect)
        self._pause_at_work()

    def _pause_at_work(self) -> None:
        if self._inbox.strikes("node.pause-at-work", self._inbox.weather.nodes.pause_at_work):
            self.pause(self._inbox.between((0.5, 2.0)) * self._inbox.weather.handlers.lease_s)

    def _handle_row(self, seat: Seat, effect: Deliver) -> None:
        assert isinstance(effect.item, WorkRow), "there are only workers here"
        name = seat.machine.name.rpartition("/")[2]
        try:
            answer = self._send(effect.item) if name == RELAY else self._run_row(name, effect.item)
            event: Event = delivered(effect.token, answer)
        except ProcessDies:
            self.crash()
            return
        except Exception as error:
            event = DeliverFailed(effect.token, cause_of(error), type_names(type(error)))
        # whoever dies here has done it, and nobody knows
        self._later(self._inbox.between((0.0, 0.05)), "handled", self._returned, seat, effect.token, event)

    def _run_row(self, name: str, row: WorkRow) -> Answer:
        endpoint = self.app.endpoints[name]
        handler = self.app.handlers[name].get(row.envelope.type)
        end = row_end(endpoint.options, handler.style if handler is not None else None, row, self._micros())
        if end is not None:
            return self._end(end.ops(endpoint.options, row))
        if handler is None:
            raise MessageRefused("no handler knows it", fix="add one")
        try:
            return self._run_counted(endpoint, handler, row)
        except StoreError as error:
            self._inbox.see("handler.store-trouble")
            if not leaves_doubt(handler.style, error):
                raise
            return OwnTransaction.LOST

    def _run_counted(self, endpoint: InboxEndpoint, handler: ReadyHandler, row: WorkRow) -> Answer:
        gate = self.app.gate(endpoint.name)
        try:
            answer = self._run(endpoint, handler, row.envelope, done_row(endpoint.options, row, row.envelope))
        except Exception as error:
            gate.failed(ticket_of(row), error, self.now())
            raise
        gate.succeeded(ticket_of(row), self.now())
        return answer

    def _end(self, ops: tuple[Op, ...]) -> Answer:
        try:
            self._commit_now(ops)
        except StoreError:
            return OwnTransaction.LOST
        return OwnTransaction.FINISHED

    def _run(
        self,
        endpoint: InboxEndpoint,
        handler: ReadyHandler,
        envelope: Envelope,
        mark: tuple[Op, ...],
        before: tuple[Op, ...] = (),
    ) -> Answer:
        who = self.app.identity_of(endpoint.name, envelope)
        answer = HandlerRun(self.app.context, handler, envelope, who, mark, before).in_thread()
        if answer is OwnTransaction.FINISHED:
            self.database.wake()
        return answer

    def _send(self, row: WorkRow) -> tuple[Op, ...]:
        """The relay waits for nothing here: its coroutine ends at once."""
        try:
            self._relay.deliver(row).send(None)
        except StopIteration as end:
            ops: tuple[Op, ...] = end.value
            return ops
        raise AssertionError("the simulated senders do not wait")

    def _commit_now(self, ops: Sequence[Op]) -> tuple[Result, ...]:
        """A commit of somebody who waits for it: it happens, it does not, or nobody can say."""
        stores = self._inbox.weather.stores
        if not self.database.up or self._inbox.strikes("direct.unavailable", stores.unavailable):
            raise StoreUnavailable("the store is away", fix="wait")
        if self._inbox.strikes("direct.doubt-lost", stores.doubt / 2):
            raise CommitInDoubt("the connection broke", marker="?")
        outcome = self.database.commit_alone(Unit(tuple(ops)))
        if self._inbox.strikes("direct.doubt-landed", stores.doubt / 2):
            raise CommitInDoubt("the connection broke", marker="?")
        if not isinstance(outcome, Applied):
            self._inbox.see("direct.stale")
            raise StaleFence("another has it", fix="let it go")
        return outcome.results

    # -- receiving

    def receive(self, endpoint: str, envelopes: Sequence[Envelope], settle: Sequence[Settle]) -> None:
        """At a durable endpoint: one commit for all, then each is acknowledged."""
        self.run(self._receive, endpoint, envelopes, settle)

    def _receive(self, endpoint: str, envelopes: Sequence[Envelope], settle: Sequence[Settle]) -> None:
        try:
            self._commit_now([self.app.enqueue(endpoint, envelope) for envelope in envelopes])
            exit = Exit.STORED
        except CommitInDoubt:
            exit = Exit.IN_DOUBT
        except SemelError:
            exit = Exit.STORE_DOWN
        end = ARRIVALS[exit].delivery
        for each in settle:
            self._later(self._inbox.between((0.0, 0.05)), "answers the broker", each, end)

    def begin_inline(self, endpoint: str, envelope: Envelope, settle: Settle) -> None:
        of = _Delivery(endpoint, envelope, lambda settled: settle(settled.delivery))
        self.run(self._begin_delivery, of)
        self._pause_at_work()

    def _begin_delivery(self, of: _Delivery) -> None:
        if not self.app.gate(of.endpoint).enter(of, self.now()):
            self._inbox.see("breaker.refused")
            of.settled(inline.not_now())
            return
        self._check_breaker(of.endpoint)
        endpoint = self.app.endpoints[of.endpoint]
        steps = inline_steps(self.app, endpoint, of.envelope, self._micros(), of.tries.count).run()
        self._step(steps, of, None, None)

    def _step(self, steps: Steps, of: _Delivery, answer: Any, error: Exception | None) -> None:
        try:
            step = steps.throw(error) if error is not None else steps.send(answer)
        except StopIteration as end:
            self.app.gate(of.endpoint).leave(of)
            of.settled(end.value)
            return
        delay_s = step.seconds if isinstance(step, WaitFor) else self._inbox.between((0.001, 0.02))
        if isinstance(step, RunHandler) and self._inbox.strikes("handler.slow", self._inbox.weather.handlers.slow):
            delay_s = self._inbox.between((0.5, 4.0))
        self._later(delay_s, f"inline {type(step).__name__}", self._take, steps, of, step)

    def _take(self, steps: Steps, of: _Delivery, step: Step) -> None:
        answer, failed = None, None
        try:
            answer = self._answer(of, step)
        except ProcessDies:
            self.crash()
            return
        except Exception as error:
            failed = error
        self._later(self._inbox.between((0.0, 0.02)), "inline goes on", self._step, steps, of, answer, failed)

    def _answer(self, of: _Delivery, step: Step) -> Any:
        match step:
            case CommitOps(ops=ops):
                return self._commit_now(ops)
            case RunHandler():
                return self._run_delivery(of, step)
            case StoreBody(after_s=after_s):
                due = None if after_s is None else self._micros() + round(after_s * 1_000_000)
                return self._commit_now((self.app.enqueue(of.endpoint, of.envelope, due=due),))[0]
            case WaitFor():
                self.app.gate(of.endpoint).enter(of, self.now())
            case PauseEndpoint(seconds=seconds):
                self.app.gate(of.endpoint).pause(self.now() + seconds)
            case MarkLater(ops=ops):
                self._inbox.see("mark.later")
                self._later(MARK_AGAIN_S, "mark", self._mark_again, ops)
        return None

    def _run_delivery(self, of: _Delivery, step: RunHandler) -> Answer:
        gate, handler = self.app.gate(of.endpoint), self.app.handlers[of.endpoint][of.envelope.type]
        of.tries.count += 1
        try:
            answer = self._run(self.app.endpoints[of.endpoint], handler, of.envelope, step.mark, step.before)
        except Exception as error:
            of.tries.count -= isinstance(error, StoreError)
            gate.failed(of, error, self.now())
            raise
        gate.succeeded(of, self.now())
        return answer

    def _mark_again(self, ops: tuple[Op, ...]) -> None:
        try:
            self._commit_now(ops)
        except StaleFence:
            return
        except StoreError:
            self._later(MARK_AGAIN_S, "mark", self._mark_again, ops)

    # -- in memory

    def buffer(self, endpoint: str, envelope: Envelope, settle: Settle) -> None:
        """At a buffered endpoint: acknowledged when it has come, while there is room."""
        self.run(self._buffer, endpoint, envelope, settle)

    def _buffer(self, endpoint: str, envelope: Envelope, settle: Settle) -> None:
        try:
            self._buffer_of(endpoint).put_now([envelope])
            end = DeliveryEnd.ACK
        except LimitExceeded:
            self._inbox.see("buffer.full")
            end = DeliveryEnd.GIVE_BACK
        self._later(self._inbox.between((0.0, 0.05)), "answers the broker", settle, end)
        self._take_buffered(endpoint)

    def _buffer_of(self, endpoint: str) -> Buffer:
        return buffer_of(self.app, self.app.endpoints[endpoint])

    def in_memory(self) -> list[str]:
        return [f"{name} {id}" for name, buffer in self.app.buffers.items() for id in buffer.ids]

    def _take_buffered(self, endpoint: str) -> None:
        buffer, parallel = self._buffer_of(endpoint), self.app.endpoints[endpoint].options.parallel
        while self._buffers_busy.get(endpoint, 0) < parallel and (item := buffer.take_now()) is not None:
            self._buffers_busy[endpoint] = self._buffers_busy.get(endpoint, 0) + 1
            settled = partial(self._buffered_settled, endpoint, item)
            self._begin_delivery(_Delivery(endpoint, item.envelope, settled, item.tries))
            self._pause_at_work()

    def _buffered_settled(self, endpoint: str, item: Buffered, settled: Settlement) -> None:
        self._buffers_busy[endpoint] -= 1
        if settled.again:
            self._inbox.see("buffer.again")
            wait_s = next_wait_s(item, self.app.gate(endpoint), self.now())
            self._later(wait_s, "buffered again", self._put_back, endpoint, item)
        else:
            self._buffer_of(endpoint).end(item)
        self._later(0.0, "buffered next", self._take_buffered, endpoint)

    def _put_back(self, endpoint: str, item: Buffered) -> None:
        self._buffer_of(endpoint).put_back(item)
        self._take_buffered(endpoint)

    # -- periodic messages

    def _put_tick(self, after: int) -> None:
        """Every process puts the next one into the outbox, under an id that all of them give it."""
        if self._inbox.is_clear:
            return
        calls, due = OutboxCalls(APP), self._schedule.next_after(after)
        text = f"tick {due}"
        id = calls.schedule_next(self._schedule, text, REMOTE, after=after, type="told")
        self._outside.promised.setdefault(text, id)
        try:
            self._commit_now(calls.enqueues)
            after = due
        except StoreError:
            self._inbox.see("periodic.not-now")
        wait_s = max(TICK_AGAIN_S, (due - self._micros()) / 1_000_000)
        self._later(wait_s, "periodic", self._put_tick, after)


@dataclass(frozen=True, slots=True)
class EverySeconds(Schedule):
    """Cron has no seconds, and no seed has minutes."""

    period_s: int = 1

    def next_after(self, time: int) -> int:
        period = self.period_s * 1_000_000
        return (time // period + 1) * period


@dataclass(frozen=True, slots=True, eq=False)
class _Delivery:
    """A delivery that is in hand, of a broker or out of memory. It is its own ticket at the endpoint's gate."""

    endpoint: str
    envelope: Envelope
    settled: Callable[[Settlement], None]
    tries: Tries = field(default_factory=Tries)
