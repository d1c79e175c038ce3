"""A tiny language for scripted stories: one process, one store, and a test that decides what happens when."""

from __future__ import annotations

from typing import Any

from semel.errors import SemelError, StoreUnavailable
from semel.kernel.effects import (
    Close,
    Deliver,
    Delivered,
    Event,
    Load,
    Machine,
    Read,
    Received,
    Send,
)
from semel.kernel.envelope import Envelope
from semel.kernel.group import CommitGroup
from semel.kernel.hop import Confirm, HopMessage
from semel.kernel.interpreter import Seat
from semel.kernel.ledger import START
from semel.kernel.ops import Append, Op, Unit
from semel.kernel.store import Records, Trimmed
from semel.sim import process as simulated
from semel.stores.memory import MemoryStore

__all__ = ["Process", "append", "message"]


class Process(simulated.Process):
    """Commits and reads wait until the test lets them happen; everything else happens at once and is remembered."""

    def __init__(self, store: MemoryStore) -> None:
        self.store = store
        self.now = 1000.0
        self.groups: list[CommitGroup] = []
        self.reads: list[tuple[Seat, Read]] = []
        self.loads: list[tuple[Seat, Load]] = []
        self.sent: list[Send] = []
        self.delivered: list[tuple[Seat, Deliver]] = []
        self.closed_for: list[str] = []
        super().__init__(lambda: self.now)

    # -- what a test says

    def start(self, machine: Machine) -> Process:
        self.seat = self.interpreter.add(machine)
        return self

    def hears(self, event: Event) -> None:
        self.interpreter.feed(self.seat, event)

    def receives(self, message: Any, peer: str = "peer") -> None:
        self.hears(Received(peer, message))

    def lands(self) -> None:
        """The commit under way happens, and the machines hear of it."""
        group = self.groups.pop(0)
        self.interpreter.committed(group, self.store.commit(group.units))

    def lands_unheard(self) -> None:
        """The commit under way happens, and nobody can say so."""
        group = self.groups.pop(0)
        self.store.commit(group.units)
        self.interpreter.unknown(group)

    def fails(self) -> None:
        self.interpreter.failed(self.groups.pop(0), StoreUnavailable("not now", fix="later"))

    def looks(self) -> Records | Trimmed | SemelError:
        """The store answers the oldest read; the machine has yet to hear it."""
        _, effect = self.reads[0]
        try:
            return self.store.read(effect.stream, effect.after, effect.limit)
        except SemelError as error:
            return error

    def tells(self, found: Records | Trimmed | SemelError) -> None:
        seat, effect = self.reads.pop(0)
        if isinstance(found, SemelError):
            self.interpreter.read_failed(seat, effect, found)
        else:
            self.interpreter.read_done(seat, effect, found)

    def reads_on(self) -> None:
        self.tells(self.looks())

    def loads_on(self) -> None:
        seat, effect = self.loads.pop(0)
        self.interpreter.load_done(seat, effect, self.store.state(effect.key))

    def waits(self, seconds: float) -> None:
        self.now += seconds
        self.interpreter.run_timers()

    def handles(self, *ops: Op) -> None:
        seat, effect = self.delivered.pop(0)
        self.interpreter.feed(seat, Delivered(effect.token, ops))

    def settles(self) -> None:
        """Let everything happen that is under way."""
        while self.groups or self.loads or (self.reads and not self._finds_nothing()):
            if self.groups:
                self.lands()
            elif self.loads:
                self.loads_on()
            else:
                self.reads_on()

    def _finds_nothing(self) -> bool:
        found = self.looks()
        return isinstance(found, Records) and not found.records

    @property
    def notices(self) -> list[str]:
        return [note.topic for note in self.notes]

    @property
    def messages(self) -> list[HopMessage]:
        return [send.message for send in self.sent if isinstance(send.message, HopMessage)]

    @property
    def confirmed(self) -> list[str]:
        return [id for send in self.sent if isinstance(send.message, Confirm) for id in send.message.deliveries]

    def ids(self, stream: str) -> list[str]:
        found = self.store.read(stream)
        assert isinstance(found, Records)
        return [record.envelope.id for record in found.records]

    def events(self) -> list[Any]:
        return [entry.event for entry in self.store.ledger(START)]

    # -- what the interpreter asks for

    def commit(self, group: CommitGroup) -> None:
        self.groups.append(group)

    def read(self, seat: Seat, effect: Read) -> None:
        self.reads.append((seat, effect))

    def load(self, seat: Seat, effect: Load) -> None:  # type: ignore[override]
        self.loads.append((seat, effect))

    def send(self, seat: Seat, effect: Send) -> None:
        self.sent.append(effect)

    def deliver(self, seat: Seat, effect: Deliver) -> None:
        self.delivered.append((seat, effect))

    def closed(self, seat: Seat, effect: Close) -> None:
        self.closed_for.append(effect.reason)


def append(store: MemoryStore, stream: str, *ids: str) -> None:
    store.commit([Unit(tuple(Append(stream, Envelope(id=id)) for id in ids))])


def message(index: int, *, attempt: int = 1, session: str | None = "s") -> HopMessage:
    """The message with this number in its session."""
    envelope = Envelope(id=f"m{index}", session=session, index=index if session is not None else None)
    return HopMessage(f"out/1/{index}", envelope, index, attempt)
