"""Looks at the inbox from outside: what the broker has, what the store holds, and what happened beyond it.

an ack            stands only for what the store has, or for a handler that ran where nothing is promised; of a
                  buffered message for one in memory, which is lost only with its process
once              effects in transactions happen once; outside at least once, or at most once where it is said
blame             only what ran alone is given up because its worker died
order             effects of a key come in the order of the key
nothing lost      every message has its effect, or somebody can see why not
outgoing          the same under the same id however often a handler runs, and one effect at the receiver; one
                  periodic message for each time, and what is for later is sent or taken back, never both
breaker           nothing is begun while it is open, and nothing that it refuses is lost (checked by the process)
conservation      accepted and replayed is ended and open, at every endpoint and in the outbox
"""

from __future__ import annotations

from collections import Counter

from semel.inbox.endpoint import EndpointMode, FailedHead, OnCrash, Style
from semel.inbox.outbox import outbox_hop, outbox_queue, parse_destination, row_identity
from semel.inbox.reservation import is_reservation
from semel.kernel.ledger import START, Event, Kind, balance
from semel.kernel.ops import OPEN_STATES, WorkRow, WorkState
from semel.kernel.store import Record, Records
from semel.sim.inbox.broker import Broker, BrokerMessage
from semel.sim.inbox.shop import APP, KEEP_S, REMOTE, Outside, SimulatedApp
from semel.sim.inbox.weather import EndpointPlan, InboxWorld
from semel.sim.kernel.database import Database

WORKER_DIED_TEXT = "its worker died"
LOST = "lost with its process"
ALL = 10**9
MOVING = (WorkState.READY, WorkState.SCHEDULED, WorkState.CLAIMED)
FAR_S = 30 * 24 * 3600.0


class InboxChecker:
    def __init__(self, world: InboxWorld, database: Database, app: SimulatedApp, outside: Outside) -> None:
        self._world, self._database, self._app, self._outside = world, database, app, outside
        self.broker: Broker
        self.replays: Counter[tuple[str, str]] = Counter()
        self._judged = 0

    # -- as it happens

    def on_ack(self, message: BrokerMessage) -> None:
        plan = message.plan
        if plan.mode is EndpointMode.BUFFERED:
            return
        if self._row(message) is None and not (
            plan.style is Style.NONE and self._outside.runs[plan.name, message.id] > 0
        ):
            self._world.violated(f"{plan.name}: {message.id} was acked and the store has no row of it")

    def check_blame(self) -> None:
        """At durable endpoints: elsewhere the broker says how many are handled at a time. To be asked before somebody
        replays what was given up, which may then run beside others."""
        events = [entry.event for entry in self._database.store.ledger(START, ALL)]
        durable = [plan.name for plan in self._world.weather.endpoints if plan.mode is EndpointMode.DURABLE]
        names = {self._app.endpoints[name].options.hop: name for name in durable}
        for event in events[self._judged :]:
            died = event.hop in names and (event.cause or "").startswith(WORKER_DIED_TEXT)
            if died and (names[event.hop], event.message) not in self._outside.alone:
                self._world.violated(f"{names[event.hop]}: {event.message} was given up for a death beside others")
        self._judged = len(events)

    def under_way(self) -> str:
        """What must come to an end once the weather is clear."""
        left = [f"{each.plan.name} {each.id}" for each in self.broker.messages if not each.is_acked]
        if left:
            return f"the broker still has {left[:5]}"
        if buffered := [each for process in self.broker.processes for each in process.in_memory()]:
            return f"in memory there still are {buffered[:5]}"
        for queue in self._queues():
            if rows := self._database.store.work_rows(queue, MOVING):
                return f"{queue} still has {rows[0].identity} {rows[0].state.name.lower()}"
        return ""

    def _queues(self) -> list[str]:
        return [outbox_queue(APP), *(each.options.queue for each in self._app.endpoints.values())]

    # -- at the end

    def check(self, *, drained: bool) -> None:
        events = [entry.event for entry in self._database.store.ledger(START, ALL)]
        for plan in self._world.weather.endpoints:
            self._check_once(plan)
            self._check_endpoint(plan.name, events)
        self.check_blame()
        self._check_balance(outbox_queue(APP), outbox_hop(APP), events)
        self._check_order()
        self._check_outgoing(events, drained)
        self._check_cancelled(events)
        if drained:
            self._check_ends(events)
            self._check_retention()

    def _effects(self, plan: EndpointPlan) -> list[Record]:
        found = self._database.store.read(f"effects/{plan.name}", None, ALL)
        return list(found.records) if isinstance(found, Records) else []

    def _check_once(self, plan: EndpointPlan) -> None:
        for id, count in Counter(record.envelope.id for record in self._effects(plan)).items():
            if count > 1:
                self._world.violated(f"{plan.name}: {id} took effect {count} times")
        if plan.style is not Style.RESERVED or plan.on_crash is OnCrash.RETRY:
            return
        for (name, id), count in self._outside.done.items():
            if name == plan.name and count > 1 + self.replays[name, id]:
                self._world.violated(f"{name}: {id} happened {count} times and may at most once")

    def _check_order(self) -> None:
        for plan in self._world.weather.endpoints:
            last: dict[str, int] = {}
            for record in self._effects(plan) if plan.keyed else ():
                key, index = record.envelope.data.decode().rsplit(" ", 1)
                passed = plan.failed_head is FailedHead.PASSES and self.replays[plan.name, record.envelope.id]
                if not passed and int(index) < last.get(key, 0):
                    self._world.violated(f"{plan.name}: {key} {index} took effect after {last[key]}")
                last[key] = max(int(index), last.get(key, 0)) if not passed else last.get(key, 0)

    def _check_balance(self, queue: str, hop: str, events: list[Event]) -> None:
        states = self._database.store.work_counts(queue).get(queue, {})
        open_count = sum(states.get(state, 0) for state in OPEN_STATES)
        sums = balance([event for event in events if event.hop == hop], open_count)
        if not sums.holds:
            self._world.violated(f"{queue}: accepted and replayed is not ended and open: {sums}")

    def _check_endpoint(self, name: str, events: list[Event]) -> None:
        endpoint = self._app.endpoints[name].options
        self._check_balance(endpoint.queue, endpoint.hop, events)
        ends = Counter(event.message for event in events if event.hop == endpoint.hop and event.kind is Kind.HANDLED)
        for message, count in ends.items():
            if count > 1:
                self._world.violated(f"{name}: the ledger has {message} handled {count} times")
        self._check_parked(name, [event for event in events if event.hop == endpoint.hop])

    def _check_parked(self, name: str, events: list[Event]) -> None:
        """What was put aside for a human waits for one."""
        parked: set[str | None] = set()
        for event in events:
            if event.kind is Kind.SUSPENDED:
                parked.add(event.message)
            elif event.kind is Kind.RESUMED:
                parked.discard(event.message)
            elif event.kind is Kind.HANDLED and event.message in parked:
                self._world.violated(f"{name}: {event.message} was put aside and handled without anybody asking")

    # -- what goes out

    def _check_outgoing(self, events: list[Event], drained: bool) -> None:
        for text, ids in self._outside.received.items():
            if len(ids) > 1:
                self._world.violated(f"{text!r} took effect {len(ids)} times at its receiver")
        accepted = {event.message for event in events if event.hop == outbox_hop(APP) and event.kind is Kind.ACCEPTED}
        by_id = {id: text for text, id in self._outside.promised.items()}
        later = {record.envelope.id for record in self._effects(self._plan("later"))}
        for id in sorted(str(each) for each in accepted - self._cancelled(events).keys()) if drained else ():
            text = by_id.get(id, "")
            if text.endswith(" later"):
                if text not in later and not self._excuse("later", id, events):
                    self._world.violated(f"{text!r} was scheduled and never handled")
            elif text not in self._outside.received:
                self._world.violated(f"{text!r} was stored in the outbox and never sent")

    def _cancelled(self, events: list[Event]) -> Counter[str | None]:
        hop = outbox_hop(APP)
        return Counter(event.message for event in events if event.hop == hop and event.kind is Kind.CANCELLED)

    def _check_cancelled(self, events: list[Event]) -> None:
        cancelled, queue = self._cancelled(events), self._app.endpoints["later"].options.queue
        tried = {event.message for event in events if event.hop == outbox_hop(APP) and event.kind is Kind.FAILED}
        for text, (id, to) in self._outside.revocable.items():
            if cancelled[id] > 1:
                self._world.violated(f"{text!r} was taken back {cancelled[id]} times")
            if to == REMOTE:
                # whom a relay has asked without an answer may have it, and nobody knows
                row = self._database.store.work(outbox_queue(APP), row_identity(parse_destination(to), id))
                is_sent = text in self._outside.received and row is not None and row.attempts <= 1 and id not in tried
            else:
                is_sent = self._database.store.work(queue, id) is not None
            if cancelled[id] and is_sent:
                self._world.violated(f"{text!r} was taken back and sent all the same")

    def _plan(self, name: str) -> EndpointPlan:
        return next(plan for plan in self._world.weather.endpoints if plan.name == name)

    # -- every message comes to an end

    def _check_ends(self, events: list[Event]) -> None:
        effects = {
            plan.name: {record.envelope.id for record in self._effects(plan)} for plan in self._world.weather.endpoints
        }
        for message in self.broker.messages:
            plan, excuse = message.plan, self._excuse(message.plan.name, message.id, events)
            if plan.outside:
                happened = self._outside.done[plan.name, message.id] > 0
            else:
                happened = message.id in effects[plan.name]
            if (plan.name, message.id) in self._outside.lost:
                excuse = excuse or LOST
            if not happened and not excuse and not self._is_unmarked(plan, message):
                self._world.violated(f"{plan.name}: {message.id} was accepted and is lost")
            if not happened and excuse == "deferred" and plan.mode is not EndpointMode.BUFFERED:
                self._world.violated(f"{plan.name}: {message.id} was acked, and is only reserved")
            if happened and excuse and not plan.outside and excuse != LOST:
                self._world.violated(f"{plan.name}: {message.id} took effect and yet is {excuse}")

    def _is_unmarked(self, plan: EndpointPlan, message: BrokerMessage) -> bool:
        """Without a mark nothing says that it was discarded, but its handler ran."""
        return plan.style is Style.NONE and plan.end == "discard" and self._outside.runs[plan.name, message.id] > 0

    def _excuse(self, endpoint: str, id: str, events: list[Event]) -> str:
        """Why a message may be without effect: because somebody can see that it is, and why."""
        options = self._app.endpoints[endpoint].options
        row = self._database.store.work(options.queue, id)
        if row is not None and row.state in (WorkState.DEAD, WorkState.PARKED, WorkState.DEFERRED):
            if row.state is not WorkState.DEFERRED and not row.envelope.data:
                self._world.violated(f"{endpoint}: the letter of {id} has no body")
            if row.state is WorkState.DEFERRED and not is_reservation(row.envelope):
                self._world.violated(f"{endpoint}: {id} is stored where no worker looks for it")
            return row.state.name.lower()
        kinds = {event.kind for event in events if event.hop == options.hop and event.message == id}
        return next((kind.name.lower() for kind in (Kind.DISCARDED, Kind.EXPIRED) if kind in kinds), "")

    def _row(self, message: BrokerMessage) -> WorkRow | None:
        endpoint = self._app.endpoints[message.plan.name].options
        return self._database.store.work(endpoint.queue, message.id)

    # -- after a long time

    def _check_retention(self) -> None:
        """The memory of what is done ends; what waits for somebody stays."""
        store = self._database.store
        kept = {(queue, row.identity) for queue in self._queues() for row in store.work_rows(queue, _KEPT, limit=ALL)}
        now = self._database.micros() + int((KEEP_S + FAR_S) * 1_000_000)
        while store.sweep(now, 1000).more:
            pass
        left = {(queue, row.identity) for queue in self._queues() for row in store.work_rows(queue, _KEPT, limit=ALL)}
        if gone := sorted(kept - left):
            self._world.violated(f"{gone[0]} waited for somebody and was swept")
        if store.status().remembered:
            self._world.violated(f"{store.status().remembered} finished rows are never forgotten")


_KEPT = (WorkState.DEAD, WorkState.PARKED, WorkState.DEFERRED)
