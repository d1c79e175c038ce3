"""A simulated process: the production interpreter, and what it needs to perform effects on a store in memory.

This one does everything at once. Others change when things happen, or whether: they queue them, delay them, let them
fail, or lose them in a crash.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from semel.errors import SemelError
from semel.kernel.effects import Close, Deliver, DeliverFailed, Loading, Notify, OwnTransaction, Read, Send, delivered
from semel.kernel.group import CommitGroup, GroupLimits
from semel.kernel.interpreter import Interpreter, Seat
from semel.kernel.ops import Append, Applied, Enqueue, Finish, Op, Outcome, Unit
from semel.kernel.retry import type_names
from semel.kernel.store import Store
from semel.stores.bodies import read_whole

Answering = Callable[[Any], None]

NEWS = (Append, Enqueue, Finish)


class Process:
    """The driver of an interpreter. `soon` decides when a job is done."""

    store: Store

    def __init__(self, clock: Callable[[], float], limits: GroupLimits | None = None) -> None:
        self.notes: list[Notify] = []
        self.begin(clock, limits)

    def begin(self, clock: Callable[[], float], limits: GroupLimits | None = None) -> None:
        """A new life, in which nothing is known of the one before."""
        self.interpreter = Interpreter(self, clock, limits)

    def soon(self, do: Callable[..., None], *args: Any) -> None:
        do(*args)

    # -- the store

    def commit(self, group: CommitGroup) -> None:
        self.soon(self.land, group)

    def land(self, group: CommitGroup) -> None:
        outcomes = self.store.commit(group.units)
        self.interpreter.committed(group, outcomes)
        if is_news(group.units, outcomes):
            self.interpreter.wake()

    def read(self, seat: Seat, effect: Read) -> None:
        def look(store: Store) -> Any:
            read = partial(read_whole, store) if effect.bodies else store.read
            return read(effect.stream, effect.after, effect.limit)

        done, failed = self.interpreter.read_done, self.interpreter.read_failed
        self.ask(look, partial(done, seat, effect), partial(failed, seat, effect))

    def load(self, seat: Seat, effect: Loading) -> None:
        done, failed = self.interpreter.load_done, self.interpreter.load_failed
        self.ask(effect.of, partial(done, seat, effect), partial(failed, seat, effect))

    def ask(self, look: Callable[[Any], Any], done: Answering, failed: Answering) -> None:
        """Look at the store, and report what was found."""
        self.soon(self._look, look, done, failed)

    def _look(self, look: Callable[[Any], Any], done: Answering, failed: Answering) -> None:
        try:
            found = look(self.store)
        except SemelError as error:
            failed(error)
        else:
            done(found)

    # -- everybody else

    def send(self, seat: Seat, effect: Send) -> None:
        raise AssertionError(f"nobody carries {effect}")

    def deliver(self, seat: Seat, effect: Deliver) -> None:
        self.soon(self._deliver, seat, effect)

    def _deliver(self, seat: Seat, effect: Deliver) -> None:
        try:
            answer = self.handle(effect.item)
        except Exception as error:
            self.interpreter.feed(seat, DeliverFailed(effect.token, str(error), type_names(type(error))))
        else:
            self.interpreter.feed(seat, delivered(effect.token, answer))

    def handle(self, item: Any) -> tuple[Op, ...] | OwnTransaction:
        """The application's code."""
        return ()

    def notify(self, seat: Seat, effect: Notify) -> None:
        self.notes.append(effect)

    def closed(self, seat: Seat, effect: Close) -> None:
        raise AssertionError(f"{seat.machine.name} closed: {effect.reason}")


def is_news(units: Sequence[Unit], outcomes: Sequence[Outcome]) -> bool:
    """As in the runtime: only what a reader or a worker may be waiting for wakes anybody."""
    return any(
        isinstance(outcome, Applied) and any(isinstance(op, NEWS) for op in unit.ops)
        for unit, outcome in zip(units, outcomes, strict=True)
    )
