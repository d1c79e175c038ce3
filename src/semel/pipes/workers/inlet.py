"""The receiving half of a stage: tells new from old, and keeps order where order is wanted.

    nothing    every copy passes
    id         an id passes once while the window remembers it
    index      an index above the last one passes: no going back
    strict     every index passes once and in order; early ones wait in a bounded buffer

Indexes are the hop's own: each sender numbers what it sends, from 1 again each time it is started, so a session is a
peer together with the run that the delivery names.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import TypeVar

from semel.errors import ConfigError
from semel.kernel.dedup import GapAsked, GapPolicy, IdWindow, MonotonicIndex, Passed, Repeated, StrictIndex
from semel.kernel.hop import HopMessage
from semel.pipes.language.options import ConfirmOn, DedupBy
from semel.pipes.workers.meter import HopMeter

S = TypeVar("S")

SIZE = 100_000
KEEP_S = 24 * 3600.0
RUNS_MAX = 1_000
"""How many runs of senders are remembered: the longest silent one is let go."""


@dataclass(frozen=True, slots=True)
class InletConfig:
    """`peers` are those whom it listens to (none named: everybody). `confirm` None: nobody waits for a confirm.

    `unpacks`: the messages come inside others, through a pipe's own middle, and the sender is named within.
    `confirms_carrier`: the end of that middle is durable, and keeps each of those others until it is confirmed.
    """

    hop: str
    peers: tuple[str, ...] = ()
    confirm: ConfirmOn | None = None
    dedup: DedupBy = DedupBy.NONE
    keep_s: float | None = None
    size: int | None = None
    buffer_max: int = 1000
    gap: GapPolicy = field(default_factory=GapPolicy)
    unpacks: bool = False
    confirms_carrier: bool = False


Arrival = tuple[str, HopMessage]
"""A peer, and what came from it."""


def session_of(arrival: Arrival) -> str:
    """A peer, and the run that its delivery names."""
    peer, message = arrival
    return f"{peer}/{message.delivery.rpartition('/')[0]}"


@dataclass(slots=True)
class Inlet:
    config: InletConfig
    meter: HopMeter
    ids: IdWindow | None = None
    _monotonic: OrderedDict[str, MonotonicIndex] = field(default_factory=OrderedDict)
    _strict: OrderedDict[str, StrictIndex[Arrival]] = field(default_factory=OrderedDict)

    def __post_init__(self) -> None:
        if self.config.dedup is DedupBy.SESSION:
            raise ConfigError(
                f"{self.config.hop}: dedup=session needs a memory that survives", fix="make the receiving end durable"
            )
        if self.config.dedup is DedupBy.ID:
            self.ids = IdWindow(self.config.size or SIZE, self.config.keep_s or KEEP_S)

    def accepts_from(self, peer: str) -> bool:
        return not self.config.peers or peer in self.config.peers

    def key(self, arrival: Arrival) -> Hashable:
        """What makes two arrivals the same message: its id on this hop, or its delivery."""
        peer, message = arrival
        return (self.config.hop, message.envelope.id) if self.ids is not None else (peer, message.delivery)

    def admit(self, arrival: Arrival, now: float) -> list[Arrival] | Repeated:
        """What passes now, in order: nothing while an early one waits. `Repeated`: it has passed before."""
        message = arrival[1]
        match self.config.dedup:
            case DedupBy.ID:
                assert self.ids is not None
                return [arrival] if self.ids.is_new(message.envelope.id, now) else Repeated(waiting=False)
            case DedupBy.INDEX:
                passes = self._session(self._monotonic, arrival, MonotonicIndex).is_new(message.index)
                return [arrival] if passes else Repeated(waiting=False)
            case DedupBy.STRICT:
                return self._admit_strict(arrival, now)
        return [arrival]

    def _admit_strict(self, arrival: Arrival, now: float) -> list[Arrival] | Repeated:
        """Below the sender's floor nothing will come any more: it was confirmed to a former life, or given up."""
        message = arrival[1]
        session = self._session(self._strict, arrival, self._new_strict)
        passed = [item for _, item in session.skip_to(message.floor, now)] if message.floor > session.next else []
        outcome = session.offer(message.index, arrival, now)
        if isinstance(outcome, Passed):
            return passed + [item for _, item in outcome.items]
        return outcome if isinstance(outcome, Repeated) and not passed else passed

    def is_late(self, arrival: Arrival) -> bool:
        """Whether an arrival that does not pass is no copy, but came after its place was given up. True once."""
        if self.config.dedup is DedupBy.INDEX:
            return self._session(self._monotonic, arrival, MonotonicIndex).given_up.take(arrival[1].index)
        if self.config.dedup is DedupBy.STRICT:
            return self._session(self._strict, arrival, self._new_strict).given_up.take(arrival[1].index)
        return False

    def forget(self, arrival: Arrival) -> None:
        """It did not get through after all: its next copy is new again."""
        if self.ids is not None:
            self.ids.forget(arrival[1].envelope.id)

    @property
    def can_forget(self) -> bool:
        """An index that has passed cannot be taken back."""
        return self.config.dedup in (DedupBy.NONE, DedupBy.ID)

    def next_deadline(self) -> float | None:
        deadlines = [at for session in self._strict.values() if (at := session.next_deadline()) is not None]
        return min(deadlines, default=None)

    def on_timer(self, now: float) -> tuple[list[Arrival], list[tuple[str, GapAsked]], list[str]]:
        """Arrivals that a given-up gap lets pass, what to ask for and of whom, and the gaps in words."""
        passed: list[Arrival] = []
        asks: list[tuple[str, GapAsked]] = []
        gaps: list[str] = []
        for name, session in self._strict.items():
            waiting = session.first_waiting()
            outcome = session.on_timer(now)
            if isinstance(outcome, GapAsked):
                assert waiting is not None
                asks.append((waiting[0], outcome))
            elif outcome is not None:
                passed += [item for _, item in outcome.items]
                gaps.append(f"{name}: {outcome.first}..{outcome.last} never came")
        return passed, asks, gaps

    def _new_strict(self) -> StrictIndex[Arrival]:
        return StrictIndex(buffer_max=self.config.buffer_max, gap=self.config.gap)

    @staticmethod
    def _session(sessions: OrderedDict[str, S], arrival: Arrival, new: Callable[[], S]) -> S:
        name = session_of(arrival)
        session = sessions.get(name)
        if session is None:
            session = sessions[name] = new()
            if len(sessions) > RUNS_MAX:
                sessions.popitem(last=False)
        else:
            sessions.move_to_end(name)
        return session
