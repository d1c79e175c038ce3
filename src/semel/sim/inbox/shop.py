"""The application: the production `App` on the simulated store, with handlers that do what users' handlers do.

What happened outside any transaction is kept here, as the outside world would keep it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from semel.errors import CommitInDoubt, PeerUnavailable, StoreUnavailable
from semel.inbox.endpoint import EndpointMode
from semel.inbox.failure import FailureRule, on
from semel.inbox.outbox import Destination
from semel.kernel.envelope import Envelope
from semel.kernel.ops import Append, Enqueue, Fresh, Unit
from semel.kernel.store import Store
from semel.runtime.inbox.app import App
from semel.runtime.inbox.handling import HandlerContext
from semel.runtime.inbox.outbox import Outbox
from semel.sim.inbox.weather import EndpointPlan, InboxWorld
from semel.sim.kernel.database import Database
from semel.stores.memory import MemoryConnection, MemoryStore

APP = "shop"
KEEP_S = 1000.0
REMOTE = "nats:elsewhere"


@dataclass(frozen=True, slots=True)
class ShopOrder:
    """Every message is one. `id` is its name in the books of the world, whatever it is sent under."""

    id: str
    key: str
    index: int


class ProcessDies(BaseException):
    """A message that takes its process down with it."""


class Unlucky(ValueError):
    """What handlers raise when they fail."""


class Unluckier(Unlucky):
    """Has a rule of its own: it is discarded."""


@dataclass(slots=True)
class Outside:
    """The world outside: what was done there, and what another system received.

    `revocable` is what was sent for later, with its id and destination. `lost` is what a process had in memory when it
    died: a buffered endpoint promises no more for it."""

    world: InboxWorld
    done: Counter[tuple[str, str]] = field(default_factory=Counter)
    runs: Counter[tuple[str, str]] = field(default_factory=Counter)
    alone: set[tuple[str, str]] = field(default_factory=set)
    poison: set[str] = field(default_factory=set)
    received: dict[str, set[str]] = field(default_factory=dict)
    promised: dict[str, str] = field(default_factory=dict)
    due: dict[str, int] = field(default_factory=dict)
    revocable: dict[str, tuple[str, str]] = field(default_factory=dict)
    lost: set[tuple[str, str]] = field(default_factory=set)
    remote: MemoryStore = field(default_factory=lambda: MemoryStore(clock=lambda: 0))

    async def receive(self, destination: Destination, envelope: Envelope) -> None:
        """Another system, which remembers ids. Returns when it has the message, or raises and may have it."""
        weather = self.world.weather.remote
        if self.world.strikes("remote.away", weather.away):
            raise PeerUnavailable("nobody answers", fix="send it again")
        [outcome] = self.remote.commit([Unit((Enqueue("inbox/remote", envelope.id, envelope),))])
        if isinstance(outcome.results[0], Fresh):
            self.received.setdefault(envelope.data.decode(), set()).add(envelope.id)
        else:
            self.world.see("remote.duplicate")
        if self.world.strikes("remote.unanswered", weather.unanswered):
            raise PeerUnavailable("the connection broke", fix="send it again")


class SimulatedApp(App):
    """The same application in every process; the store of the moment, and the clock of its process."""

    def __init__(self, world: InboxWorld, database: Database, outside: Outside, now: Callable[[], int]) -> None:
        self._database = database
        super().__init__(database.store, name=APP, identity=world.weather.identity, keep_s=KEEP_S)
        self._world, self._outside, self._micros = world, outside, now
        self.open_until: dict[str, float] = {}
        self.provide(MemoryConnection, self.transaction)
        self.sender("nats", outside.receive)
        self.errors(on(Unluckier).discard())
        for plan in world.weather.endpoints:
            self._add(plan)

    @property
    def store(self) -> Store:
        return self._database.store

    def claim_endpoints(self) -> None:
        """There is one application, and a commit beside the world's own would reach a store that is down."""

    @property
    def context(self) -> HandlerContext:
        return HandlerContext(self.name, self.store, self.routes, self._micros, self._no_id)

    @staticmethod
    def _no_id() -> str:
        raise AssertionError("a handler's messages have ids that are derived")

    def _report_breaker(self, endpoint: str, until: float | None) -> None:
        self._world.see("breaker.closed" if until is None else "breaker.opened")
        self.open_until[endpoint] = until or 0.0

    def forget(self) -> None:
        """The process died, and with it what it had in memory: messages, and what its breakers have counted."""
        for name, buffer in self.buffers.items():
            self._world.see("buffer.lost", len(buffer))
            self._outside.lost |= {(name, id) for id in buffer.ids}
        self.buffers, self._gates, self.open_until = {}, {}, {}

    def _add(self, plan: EndpointPlan) -> None:
        endpoint = self.endpoint(
            plan.name, mode=plan.mode, on_crash=plan.on_crash, failed_head=plan.failed_head, expire_s=plan.expire_s,
            lease_s=self._world.weather.handlers.lease_s, parallel=plan.parallel, errors=[_rule(plan)],
            breaker=plan.breaker, buffer_high=plan.buffer, buffer_low=plan.buffer // 2,
        )  # fmt: skip
        style = None if plan.mode is EndpointMode.DURABLE else plan.style
        handler = self._plain(plan) if plan.outside else self._transactional(plan)
        key = (lambda order: str(order.key)) if plan.keyed else None
        endpoint.on(ShopOrder, key=key, idempotency=style and style.value)(handler)

    # -- handlers

    def _plain(self, plan: EndpointPlan) -> Callable[..., None]:
        def handle(message: ShopOrder, outbox: Outbox) -> None:
            self._meet(plan, message)
            self._outside.done[plan.name, message.id] += 1
            self._publish(plan, message, outbox)

        return handle

    def _transactional(self, plan: EndpointPlan) -> Callable[..., None]:
        def handle(message: ShopOrder, connection: MemoryConnection, outbox: Outbox) -> None:
            self._meet(plan, message)
            effect = Envelope(id=message.id, data=f"{message.key} {message.index}".encode())
            connection.apply(Unit((Append(f"effects/{plan.name}", effect),)))
            self._publish(plan, message, outbox)

        return handle

    def _meet(self, plan: EndpointPlan, message: ShopOrder) -> None:
        """What may go wrong before anything is done."""
        id = message.id
        self._outside.runs[plan.name, id] += 1
        if id in self._outside.poison:
            self._world.see("handler.poison")
            raise ProcessDies
        if id in self._outside.due and self._database.micros() < self._outside.due[id]:
            self._world.violated(f"{id} was handled before its time")
        if self._world.strikes("handler.failed", self._world.weather.handlers.fails):
            raise Unluckier("no") if self._world.random.random() < 0.2 else Unlucky("not now")

    def _publish(self, plan: EndpointPlan, message: ShopOrder, outbox: Outbox) -> None:
        """One to another system; some for later, there or at an endpoint of the same store; some are taken back."""
        if plan.name == "later":
            return
        text = f"{plan.name} {message.id}"
        id = outbox.publish(text, REMOTE, key=message.key, type="told")
        self._promise(text, id)
        if message.index % 3 == 1:
            reminder = f"{text} remind"
            id = outbox.schedule(reminder, REMOTE, after_s=1.5, type="told")
            self._promise(reminder, id)
            self._outside.revocable[reminder] = id, REMOTE
        if message.index % 3 == 0:
            later = f"{text} later"
            id = outbox.schedule(
                ShopOrder(later, "", 1), "endpoint:later", after_s=1.5,
            )  # fmt: skip
            self._promise(later, id)
            due = self._micros() + 1_500_000
            # which run is committed is not known here, and clocks differ: not before the earliest
            self._outside.due[later] = min(due, self._outside.due.get(later, due))
            self._outside.revocable[later] = id, "endpoint:later"
        if self._database.up and self._world.strikes("handler.cancels", self._world.weather.later.cancels):
            self.cancel_one(outbox)

    def cancel_one(self, outbox: Outbox) -> None:
        """Take back something that was sent for later: it may be sent, cancelled, or never have been stored."""
        if self._outside.revocable:
            id, to = self._world.random.choice(list(self._outside.revocable.values()))
            outbox.cancel(id, to)

    def _promise(self, text: str, id: str) -> None:
        known = self._outside.promised.setdefault(text, id)
        if known != id:
            self._world.violated(f"a handler that ran again sent {text!r} under another id")

    # -- transactions of handlers and callers

    @contextmanager
    def transaction(self) -> Iterator[MemoryConnection]:
        if not self._database.up:
            raise StoreUnavailable("there is no database", fix="wait")
        store = self._database.store
        connection = store.connect()
        stores = self._world.weather.stores
        try:
            yield connection
            if self._world.strikes("handler.commit-failed", stores.unavailable):
                raise StoreUnavailable("the commit failed", fix="try again")
            if self._world.strikes("handler.doubt-lost", stores.doubt / 2):
                raise CommitInDoubt("the connection broke", marker="?")
            connection.commit()
        finally:
            connection.rollback()
        if self._world.strikes("handler.doubt-landed", stores.doubt / 2):
            raise CommitInDoubt("the connection broke", marker="?")


def _rule(plan: EndpointPlan) -> FailureRule:
    rule = on(Unlucky)
    match plan.ways:
        case "requeue":
            rule = rule.requeue(3)
        case "schedule":
            rule = rule.schedule([0.3, 1.0, 1.0], jitter=0.5)
        case _:
            rule = rule.retry([0.1, 0.5, 1.0], jitter=0.5)
    return rule.then(plan.end)
