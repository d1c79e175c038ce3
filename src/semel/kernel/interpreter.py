"""The one place that performs effects. The asyncio runtime and the simulator both drive this code.

It knows nothing of sockets, threads or clocks. A driver does the work that takes time and reports back; the interpreter
decides what may happen when: which commits share a transaction, that a completion reaches the machine that asked and no
other, that nothing a machine asks for is forgotten, and that a defect stops one machine and no other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from semel.errors import SemelError
from semel.kernel.effects import (
    CancelTimer,
    Close,
    Commit,
    Deliver,
    Effect,
    Event,
    Load,
    LoadAll,
    Loaded,
    LoadedAll,
    LoadedHead,
    LoadFailed,
    LoadHead,
    Loading,
    LookForWork,
    Machine,
    Notify,
    Read,
    ReadDone,
    ReadFailed,
    ReadTrimmed,
    Send,
    SetTimer,
    TimerFired,
    Wake,
    WorkFound,
)
from semel.kernel.group import CommitGroup, CommitQueue, Completion, GroupLimits
from semel.kernel.ops import Claim, Outcome
from semel.kernel.position import Position
from semel.kernel.store import Records, State, Trimmed


@dataclass(slots=True, eq=False)
class Seat:
    """A machine at work. Completions belong to the seat: a machine that replaces another gets none of them.

    `asked` holds the reads that are under way, with the number of wakes before each. One that `is_resting` may finish
    what it has begun, but what it asks for in order to begin more is dropped.
    """

    machine: Machine
    alive: bool = True
    is_resting: bool = False
    timers: dict[str, float] = field(default_factory=dict)
    asked: dict[Read, int] = field(default_factory=dict)
    waiting: list[Read] = field(default_factory=list)


class Driver(Protocol):
    """Does what takes time. Each call returns at once; the result is reported to the interpreter later."""

    def commit(self, group: CommitGroup) -> None:
        """Then report one of: committed, refused, failed, resolved, unknown."""
        ...

    def read(self, seat: Seat, effect: Read) -> None:
        """Then report read_done or read_failed."""
        ...

    def load(self, seat: Seat, effect: Loading) -> None:
        """Ask `effect.of(store)`, then report load_done or load_failed."""
        ...

    def send(self, seat: Seat, effect: Send) -> None: ...

    def deliver(self, seat: Seat, effect: Deliver) -> None:
        """Run the application's code, then feed Delivered or DeliverFailed to the seat."""
        ...

    def notify(self, seat: Seat, effect: Notify) -> None: ...

    def closed(self, seat: Seat, effect: Close) -> None: ...


OnDefect = Callable[[Seat, Exception], Sequence[Effect]]


class Interpreter:
    """`on_defect` says what is performed instead when a machine raises. Without it the error goes to the caller: a test
    or a simulation wants to see it."""

    def __init__(
        self,
        driver: Driver,
        clock: Callable[[], float],
        limits: GroupLimits | None = None,
        on_defect: OnDefect | None = None,
    ) -> None:
        self._driver = driver
        self._clock = clock
        self._on_defect = on_defect
        self.queue = CommitQueue(limits or GroupLimits())
        self._seats: dict[str, Seat] = {}
        self._events: deque[tuple[Seat, Event]] = deque()
        self._wakes = 0
        self._running = False

    # -- machines

    def add(self, machine: Machine) -> Seat:
        """Start a machine. One of the same name is replaced; what it asked for no longer reaches anybody."""
        self.remove(machine.name)
        seat = self._seats[machine.name] = Seat(machine)
        self._step(seat, machine.start, self._clock())
        self._run()
        return seat

    def remove(self, name: str) -> None:
        seat = self._seats.pop(name, None)
        if seat is not None:
            seat.alive = False

    def seat(self, name: str) -> Seat | None:
        return self._seats.get(name)

    def feed(self, seat: Seat, event: Event) -> None:
        """Hand an event to a machine, after those that came before it."""
        self._events.append((seat, event))
        self._run()

    def wake(self, *, is_own: bool = False) -> None:
        """Something was committed, here or elsewhere: waiting reads look again, and workers look for work."""
        self._wakes += 1
        for seat in list(self._seats.values()):
            waiting, seat.waiting = seat.waiting, []
            for effect in waiting:
                self._read(seat, effect)
            self._events.append((seat, Wake(is_own)))
        self._run()

    # -- time

    def next_deadline(self) -> float | None:
        return min(self._deadlines(), default=None)

    def _deadlines(self) -> Iterable[float]:
        for seat in self._seats.values():
            deadline = seat.machine.next_deadline()
            if deadline is not None:
                yield deadline
            yield from seat.timers.values()

    def run_timers(self) -> None:
        now = self._clock()
        for seat in list(self._seats.values()):
            for name in [name for name, at in seat.timers.items() if at <= now]:
                del seat.timers[name]
                self._events.append((seat, TimerFired(name)))
            deadline = seat.machine.next_deadline()
            if deadline is not None and deadline <= now and seat.alive:
                self._step(seat, seat.machine.on_timer, now)
        self._run()

    # -- reports of the driver

    def committed(self, group: CommitGroup, outcomes: Sequence[Outcome]) -> None:
        self.queue.committed(group, outcomes)
        self._run()

    def refused(self, group: CommitGroup, error: SemelError) -> None:
        self.queue.refused(group, error)
        self._run()

    def failed(self, group: CommitGroup, error: SemelError) -> None:
        self.queue.failed(group, error)
        self._run()

    def resolved(self, group: CommitGroup, outcomes: Sequence[Outcome] | None) -> None:
        self.queue.resolved(group, outcomes)
        self._run()

    def unknown(self, group: CommitGroup) -> None:
        self.queue.unknown(group)
        self._run()

    def read_done(self, seat: Seat, effect: Read, found: Records | Trimmed) -> None:
        """An empty read is not an answer: it waits for the next commit. One that came while the read was under way may
        have come too late for it and would wake nobody again, so then the read is made once more."""
        wakes = seat.asked.pop(effect, self._wakes)
        if isinstance(found, Trimmed):
            self.feed(seat, ReadTrimmed(effect.stream, found.first, effect.after, effect.limit))
        elif found.records or not effect.wait:
            self.feed(seat, ReadDone(effect.stream, found.records, effect.after, effect.limit))
        elif seat.alive and wakes != self._wakes:
            self._read(seat, effect)
        elif seat.alive:
            seat.waiting.append(effect)

    def read_failed(self, seat: Seat, effect: Read, error: SemelError) -> None:
        seat.asked.pop(effect, None)
        self.feed(seat, ReadFailed(effect.stream, error, effect.after, effect.limit))

    def load_done(
        self,
        seat: Seat,
        effect: Loading,
        found: State | Sequence[tuple[str, State]] | Position | bool | None,
    ) -> None:
        if isinstance(effect, LoadHead):
            assert isinstance(found, Position)
            self.feed(seat, LoadedHead(found))
        elif isinstance(effect, LookForWork):
            assert isinstance(found, bool)
            self.feed(seat, WorkFound(effect.queue, found))
        elif isinstance(effect, Load):
            assert found is None or isinstance(found, State)
            self.feed(seat, Loaded(effect.key, found))
        else:
            assert isinstance(found, Sequence)
            self.feed(seat, LoadedAll(effect, found))

    def load_failed(self, seat: Seat, effect: Loading, error: SemelError) -> None:
        match effect:
            case Load(key=key) | LoadAll(prefix=key) | LoadHead(stream=key) | LookForWork(queue=key):
                self.feed(seat, LoadFailed(key, error))

    # -- performing

    def _run(self) -> None:
        """Events are handled one at a time and in order, however deep the call that brought them."""
        if self._running:
            return
        self._running = True
        try:
            while self._events:
                seat, event = self._events.popleft()
                if seat.alive:
                    self._step(seat, seat.machine.receive, event, self._clock())
        finally:
            self._running = False
        self._begin_commit()

    def _begin_commit(self) -> None:
        group = self.queue.next_group()
        if group is not None:
            self._driver.commit(group)

    def _step(self, seat: Seat, step: Callable[..., Sequence[Effect]], *arguments: object) -> None:
        """One step of a machine, and what it asks for."""
        try:
            effects = step(*arguments)
        except Exception as error:
            if self._on_defect is None:
                raise
            effects = self._on_defect(seat, error)
        self._perform(seat, [each for each in effects if not _begins_more(each)] if seat.is_resting else effects)

    def _perform(self, seat: Seat, effects: Sequence[Effect]) -> None:
        """What a driver reports meanwhile waits until all of the effects are performed."""
        was_running, self._running = self._running, True
        try:
            for effect in effects:
                self._perform_one(seat, effect)
        finally:
            self._running = was_running

    def _perform_one(self, seat: Seat, effect: Effect) -> None:
        match effect:
            case Commit(ops=ops, token=token, chain=chain):
                chain_name = None if chain is None else f"{seat.machine.name}/{chain}"
                self.queue.submit(ops, chain_name, token, self._completion(seat))
            case Send():
                self._driver.send(seat, effect)
            case Read():
                self._read(seat, effect)
            case Load() | LoadAll() | LoadHead() | LookForWork():
                self._driver.load(seat, effect)
            case Deliver():
                self._driver.deliver(seat, effect)
            case SetTimer(name=name, at=at):
                seat.timers[name] = at
            case CancelTimer(name=name):
                seat.timers.pop(name, None)
            case Notify():
                self._driver.notify(seat, effect)
            case Close():
                self.remove(seat.machine.name)
                self._driver.closed(seat, effect)

    def _read(self, seat: Seat, effect: Read) -> None:
        seat.asked[effect] = self._wakes
        self._driver.read(seat, effect)

    def _completion(self, seat: Seat) -> Callable[[Completion], None]:
        return lambda completion: self._events.append((seat, completion))


def _begins_more(effect: Effect) -> bool:
    if isinstance(effect, Commit):
        return any(isinstance(op, Claim) for op in effect.ops)
    return isinstance(effect, Read | Load | LookForWork | Deliver)
