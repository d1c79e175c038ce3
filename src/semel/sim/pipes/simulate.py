"""A path in virtual time: its production machines over links that lose, double and delay, with points that crash.

    simulate(parse_path("A -[loss=0.1,confirm_loss=0.2,retries=5]-> B"), messages=3000, seed=1)

The calculus takes losses and copies as independent of each other. Two messages, or two copies of one, that meet at a
worker are not: one finds the other in the window, or dies with it. So unless a spacing is given, everything goes on by
itself: a message is offered when nothing is left of the one before, a copy goes on only when what it would meet further
on has come to rest, and a sender's time is up only when nothing else can happen. With a spacing, time alone decides.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from semel.errors import ConfigError, LimitExceeded
from semel.kernel.effects import Received
from semel.kernel.envelope import Envelope
from semel.kernel.hop import AskForGap, Confirm
from semel.kernel.ledger import Kind
from semel.pipes.language.options import ConfirmOn
from semel.pipes.language.path import Path
from semel.pipes.workers.build import APP, Built, Route, build
from semel.pipes.workers.outlet import OutletConfig
from semel.sim.pipes.workers import Durable, Hops, Volatile


def check_ends(path: Path, built: Built, handler_fails: float = 0.0) -> None:
    """Refuse a path on which a sender would send for ever: no confirm can come back, and it never gives up."""
    _Check(path, built, handler_fails).all()


@dataclass(frozen=True, slots=True)
class _Check:
    path: Path
    built: Built
    handler_fails: float

    def all(self) -> None:
        for worker in self.built.workers:
            for outlet in worker.config.outlets:
                endless = outlet.resend is not None and (worker.durable or outlet.resend.retry.retries is None)
                if endless and not self._can_confirm(worker.config.name, outlet):
                    raise ConfigError(
                        f"{self.path.name}: {outlet.hop} sends for ever, since no confirm can come back: {self.path}",
                        fix="give it an end with retries=n, or let losses and crashes be less than 1",
                    )

    def _can_confirm(self, sender: str, outlet: OutletConfig) -> bool:
        receiver = self._receiver(sender, outlet)
        if not self._reaches(sender, receiver):
            return False
        if not _carries([link.confirm_loss for link in self.built.back[receiver, sender]]):
            return False
        plan = self.built.worker(receiver)
        if plan.durable and plan.crash >= 1:
            return False
        confirm = next((each.confirm for each in plan.config.inlets if each.hop == outlet.hop), None)
        if confirm is ConfirmOn.PROCESSING:
            return self.handler_fails < 1 and (plan.durable or plan.crash < 1)
        if confirm is ConfirmOn.CASCADE and not plan.durable:
            return plan.crash < 1 and any(self._can_confirm(receiver, onward) for onward in plan.config.outlets)
        return True

    def _receiver(self, sender: str, outlet: OutletConfig) -> str:
        """Who confirms: the peer, or the far end of the pipe whose middle the peer begins."""
        if not outlet.packs:
            return outlet.peer
        return next(back for back, to in self.built.back if to == sender and back != outlet.peer)

    def _reaches(self, sender: str, receiver: str) -> bool:
        """Whether a copy can come from one worker to the other."""
        found, seen = [sender], {sender}
        while found:
            at = found.pop()
            if at == receiver:
                return True
            for (begin, end), route in self.built.routes.items():
                if begin == at and end not in seen and _passes(route) and self._lets_pass(end, receiver):
                    seen.add(end)
                    found.append(end)
        return False

    def _lets_pass(self, worker: str, receiver: str) -> bool:
        plan = self.built.worker(worker)
        return worker == receiver or plan.durable or plan.crash < 1


def _passes(route: Route) -> bool:
    return _carries([link.loss for link in route]) and _carries([link.crash for link in route])


def _carries(losses: list[float]) -> bool:
    return math.prod(1 - loss for loss in losses) > 0


EVENTS_PER_MESSAGE = 2_000
"""A run that needs more than this for each worker and message will not end by itself."""
EVENTS_MIN = 200_000
TIME_MAX_S = 1e12

_CONFIRM, _TIMER, _DATA, _OFFER = range(4)


@dataclass(frozen=True, slots=True)
class HopCounts:
    """What the two ends of one hop have counted. `entered` messages were sent, `resent` times once more."""

    entered: int = 0
    resent: int = 0
    accepted: int = 0
    duplicates: int = 0
    dropped: int = 0
    confirmed: int = 0
    given_up: int = 0

    @property
    def transmissions(self) -> int:
        return self.entered + self.resent

    @property
    def attempts(self) -> float | None:
        """Per message that entered; None when none did."""
        return self.transmissions / self.entered if self.entered else None


@dataclass(frozen=True, slots=True)
class Simulated:
    """`sent` messages went in; `unique` of them came out, in `received` copies; `sum_of_squares` sums the squares of
    each message's copies. `transmissions` counts the data put on each link. `disorder` counts messages that came out
    after a later one."""

    sent: int
    unique: int
    received: int
    sum_of_squares: int
    transmissions: int
    hops: Mapping[str, HopCounts]
    disorder: int
    duration_s: float
    events: int
    copies: tuple[int, ...]
    """How many copies of each message arrived, in the order in which they were sent."""

    @property
    def reliability(self) -> float | None:
        return self.unique / self.sent if self.sent else None

    @property
    def uniqueness(self) -> float | None:
        return self.unique / self.received if self.received else None


def simulate(
    path: Path,
    *,
    messages: int,
    seed: int,
    spacing_s: float | None = None,
    handler_fails: float = 0.0,
    events_max: int | None = None,
    time_max_s: float = TIME_MAX_S,
) -> Simulated:
    """Send so many messages over the path. The same seed gives the same result, always.

    `spacing_s`: a message every so many seconds, whatever became of the ones before. `handler_fails`: how often the
    application's handler fails.
    """
    if messages < 1:
        raise ConfigError(f"{messages} messages", fix="simulate at least one message")
    if spacing_s is not None and not spacing_s > 0:
        raise ConfigError(f"a spacing of {spacing_s} s", fix="use a positive number of seconds, or none")
    built = build(path)
    check_ends(path, built, handler_fails)
    allowed = events_max or max(EVENTS_MIN, EVENTS_PER_MESSAGE * messages * len(built.workers))
    return _Run(path, built, messages, seed, spacing_s, handler_fails, allowed, time_max_s).run()


class _Lane:
    """The way from one worker to the next."""

    __slots__ = ("answer_rank", "data_rank", "delay_s", "losses", "put", "route", "single", "target")

    def __init__(self, target: Any, route: Route, below: int | None) -> None:
        self.target = target
        self.data_rank = _rank(below, _DATA)
        self.answer_rank = _rank(below, _CONFIRM)
        self.delay_s = sum(link.delay for link in route)
        self.route = [(link.loss, link.duplicate, link.crash) for link in route]
        self.losses = [link.confirm_loss for link in route if link.confirm_loss]
        loss, duplicate, crash = self.route[0]
        self.single = (loss, duplicate) if len(route) == 1 and not crash else None
        self.put = 0

    def copies(self, random: Random) -> int:
        """How many copies of one arrive: each link in turn loses or doubles each."""
        if self.single is not None:
            self.put += 1
            loss, duplicate = self.single
            if loss and random.random() < loss:
                return 0
            return 2 if duplicate and random.random() < duplicate else 1
        copies = 1
        for loss, duplicate, crash in self.route:
            self.put += copies
            arrived = 0
            for _ in range(copies):
                if loss and random.random() < loss:
                    continue
                doubled = 2 if duplicate and random.random() < duplicate else 1
                arrived += sum(not crash or random.random() >= crash for _ in range(doubled))
            copies = arrived
        return copies

    def answers(self, random: Random) -> bool:
        return all(random.random() >= loss for loss in self.losses)


def _rank(below: int | None, kind: int) -> int:
    """What is furthest on comes first: `below` are the hops from there to the furthest. None: time alone decides."""
    return 3 * below + kind if below is not None else 0


class _Run:
    def __init__(
        self,
        path: Path,
        built: Built,
        messages: int,
        seed: int,
        spacing_s: float | None,
        handler_fails: float,
        events_max: int,
        time_max_s: float,
    ) -> None:
        self.now = 0.0
        self._path = path
        self._messages = messages
        self._spacing_s = spacing_s
        self._handler_fails = handler_fails
        self._limits = events_max, time_max_s
        self._random = Random(seed)
        self._due: list[tuple[int, float, int, int, Any, str, Any]] = []
        self._order = 0
        self._events = 0
        self._offered = 0
        self._copies = [0] * messages
        self._latest = -1
        self._disorder = 0
        self._hops: Hops = {}
        self._timers: dict[str, float] = {}
        self._lanes: dict[tuple[str, str], _Lane] = {}
        self._way_back: dict[tuple[str, str], _Lane] = {}
        depths = _depths(built)
        self._apart = spacing_s is None
        deepest = max(depths.values())
        self._below = {name: deepest - depth if self._apart else None for name, depth in depths.items()}
        self._workers: dict[str, Volatile | Durable] = {}
        for plan in built.workers:
            kind = Durable if plan.durable else Volatile
            self._workers[plan.config.name] = kind(plan, self, self._hops)
        for (sender, receiver), route in built.routes.items():
            self._lanes[sender, receiver] = _Lane(self._workers[receiver], route, self._below[receiver])
        for (sender, receiver), route in built.back.items():
            self._way_back[sender, receiver] = _Lane(self._workers[receiver], route, self._below[receiver])
        self._first = self._workers[built.first]
        self._outlets = {outlet.hop for plan in built.workers for outlet in plan.config.outlets}
        self._handovers = _handovers(built)

    # -- what the workers see

    def strikes(self, probability: float) -> bool:
        return probability > 0 and self._random.random() < probability

    def send(self, worker: str, peer: str, message: Any) -> None:
        if type(message) is Confirm or type(message) is AskForGap:
            lane = self._way_back.get((worker, peer))
            if lane is not None and lane.answers(self._random):
                self._push(lane.answer_rank, self.now + lane.delay_s, _CONFIRM, lane.target, worker, message)
            return
        lane = self._lanes[worker, peer]
        for _ in range(lane.copies(self._random)):
            self._push(lane.data_rank, self.now + lane.delay_s, _DATA, lane.target, worker, message)

    def handle(self, id: str) -> bool:
        if self.strikes(self._handler_fails):
            return False
        number = int(id)
        self._copies[number] += 1
        if self._copies[number] == 1:
            self._disorder += number < self._latest
            self._latest = max(self._latest, number)
        return True

    # -- time

    def _push(self, rank: int, at: float, kind: int, worker: Any, peer: str, message: Any) -> None:
        self._order += 1
        heapq.heappush(self._due, (rank, at, self._order, kind, worker, peer, message))

    def run(self) -> Simulated:
        if self._apart:
            while self._offered < self._messages:
                self._offer()
                self._until_quiet()
        else:
            self._push(0, 0.0, _OFFER, None, "", None)
            self._until_quiet()
        return self._result()

    def _until_quiet(self) -> None:
        due = self._due
        events_max, time_max_s = self._limits
        while due:
            _, at, _, kind, worker, peer, message = heapq.heappop(due)
            if kind == _TIMER:
                if not self._is_due(worker, at):
                    continue
                self.now = max(self.now, at)
                worker.run_timers()
            else:
                self.now = max(self.now, at)
                if kind == _OFFER:
                    self._offer_next()
                    continue
                worker.receive(Received(peer, message), in_danger=kind == _DATA)
            self._set_timer(worker)
            self._events += 1
            if self._events > events_max or self.now > time_max_s:
                raise self._endless()

    def _is_due(self, worker: Any, at: float) -> bool:
        """The one timer that counts; others were set for what has been settled since."""
        if self._timers.get(worker.name) != at:
            return False
        del self._timers[worker.name]
        deadline = worker.next_deadline()
        if deadline is not None and deadline > at:
            self._set_timer(worker)
        return deadline is not None and deadline <= at

    def _set_timer(self, worker: Any) -> None:
        if not worker.has_timers:
            return
        deadline = worker.next_deadline()
        if deadline is None:
            return
        known = self._timers.get(worker.name)
        if known is None or deadline < known:
            self._timers[worker.name] = deadline
            self._push(_rank(self._below[worker.name], _TIMER), deadline, _TIMER, worker, "", None)

    def _offer_next(self) -> None:
        assert self._spacing_s is not None
        self._offer()
        if self._offered < self._messages:
            self._push(0, self._offered * self._spacing_s, _OFFER, None, "", None)

    def _offer(self) -> None:
        envelope = Envelope(str(self._offered), session="sim", index=self._offered + 1)
        self._offered += 1
        self._first.receive(Received(APP, envelope), in_danger=True)
        self._set_timer(self._first)

    def _endless(self) -> LimitExceeded:
        return LimitExceeded(
            f"{self._path.name}: {self._path} does not come to rest: message {self._offered} of {self._messages}, "
            f"{self._events:,} events, {self.now:,.0f} s of virtual time",
            fix="give the retries an end, or make the timeouts longer than the round trip and the losses smaller",
        )

    # -- the result

    def _result(self) -> Simulated:
        for worker in self._workers.values():
            worker.count()
        hops = {name: _hop_counts(counts) for name, counts in self._hops.items() if name in self._outlets}
        return Simulated(
            sent=self._messages,
            unique=sum(copies > 0 for copies in self._copies),
            received=sum(self._copies),
            sum_of_squares=sum(copies * copies for copies in self._copies),
            transmissions=sum(lane.put for ends, lane in self._lanes.items() if ends not in self._handovers),
            hops=hops,
            disorder=self._disorder,
            duration_s=self.now,
            events=self._events,
            copies=tuple(self._copies),
        )


def _hop_counts(counts: Counter[Kind]) -> HopCounts:
    return HopCounts(
        counts[Kind.SENT],
        counts[Kind.RESENT],
        counts[Kind.ACCEPTED],
        counts[Kind.DUPLICATE],
        counts[Kind.DROPPED],
        counts[Kind.CONFIRMED],
        counts[Kind.FAILED],
    )


def _handovers(built: Built) -> set[tuple[str, str]]:
    """Where the end of a pipe hands a message to the pipe's own middle or takes it out, and behind the entry of a
    second branch: there is no link."""
    into = {(plan.config.name, out.peer) for plan in built.workers for out in plan.config.outlets if out.packs}
    out_of = {
        (peer, plan.config.name)
        for plan in built.workers
        for inlet in plan.config.inlets
        if inlet.unpacks
        for peer in inlet.peers
    }
    entries = {(begin, end) for begin, end in built.routes if begin.startswith(f"{end}~")}
    return into | out_of | entries


def _depths(built: Built) -> dict[str, int]:
    """How many hops each worker is from the first, by the longest way."""
    depths = {worker.config.name: 0 for worker in built.workers}
    for _ in depths:
        for sender, receiver in built.routes:
            depths[receiver] = max(depths[receiver], depths[sender] + 1)
    return depths
