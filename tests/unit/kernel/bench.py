"""A workbench for machines: one interpreter, one memory store, links that a test can read and tamper with.

Nothing happens until the test says so: `run` does the work that waits, in order, until none is left.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from semel.errors import SemelError
from semel.kernel.effects import Close, Machine, OwnTransaction, Received, Send
from semel.kernel.group import CommitGroup
from semel.kernel.interpreter import Seat
from semel.kernel.ledger import START, Event
from semel.kernel.ops import Op
from semel.sim.process import Process
from semel.stores.memory import MemoryStore


class Bench(Process):
    """`wires[peer]` holds what was sent to a peer; `pass_on` hands it over to the machine of that name."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.store = MemoryStore(clock=lambda: int(self.now * 1_000_000))
        self.wires: dict[str, list[Any]] = {}
        self.closes: list[str] = []
        self.delivered: list[str] = []
        self.handler: Callable[[Any], tuple[Op, ...] | OwnTransaction] = lambda item: ()
        self.fail_commits: list[SemelError | None] = []
        self._jobs: deque[Callable[[], None]] = deque()
        self._senders: dict[str, str] = {}
        super().__init__(lambda: self.now)

    def add(self, machine: Machine, answers_to: str = "") -> Seat:
        """Start a machine. `answers_to` is the peer that its messages seem to come from."""
        self._senders[machine.name] = answers_to or machine.name
        seat = self.interpreter.add(machine)
        self.run()
        return seat

    def run(self) -> None:
        while self._jobs:
            self._jobs.popleft()()

    def wait(self, seconds: float) -> None:
        """Let time pass, running timers as they fall due."""
        until = self.now + seconds
        while (deadline := self.interpreter.next_deadline()) is not None and deadline <= until:
            self.now = max(self.now, deadline)
            self.interpreter.run_timers()
            self.run()
        self.now = until

    def pass_on(self, peer: str, *, keep: Callable[[Any], int] = lambda message: 1) -> int:
        """Hand over what waits on the wire to `peer`. `keep` says how many copies of a message arrive."""
        messages, self.wires[peer] = self.wires.get(peer, []), []
        seat = self.interpreter.seat(peer)
        for sender, message in messages:
            for _ in range(keep(message)):
                if seat is not None:
                    self.interpreter.feed(seat, Received(sender, message))
        self.run()
        return len(messages)

    def settle(self, *peers: str) -> None:
        """Pass everything on until the wires are quiet."""
        while sum(self.pass_on(peer) for peer in peers):
            pass

    def sent_to(self, peer: str) -> list[Any]:
        return [message for _, message in self.wires.get(peer, [])]

    def ledger(self) -> list[Event]:
        return [entry.event for entry in self.store.ledger(START)]

    # -- the driver

    def soon(self, do: Callable[..., None], *args: Any) -> None:
        self._jobs.append(partial(do, *args))

    def land(self, group: CommitGroup) -> None:
        error = self.fail_commits.pop(0) if self.fail_commits else None
        if error is not None:
            self.interpreter.failed(group, error)
        else:
            super().land(group)

    def send(self, seat: Seat, effect: Send) -> None:
        self.wires.setdefault(effect.peer, []).append((self._senders[seat.machine.name], effect.message))

    def handle(self, item: Any) -> tuple[Op, ...] | OwnTransaction:
        self.delivered.append(item.envelope.id)
        return self.handler(item)

    def closed(self, seat: Seat, effect: Close) -> None:
        self.closes.append(effect.reason)
