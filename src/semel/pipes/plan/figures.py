"""From the ledgers of a path to its figures: those of a pipe and those of the delivery, kept apart.

    A  →  P1 ══ P2  →  B        pipe       R = unique messages that P2 sent on / messages that P1 received
                                delivery   R = unique messages handled at B    / messages that A took over

What gets lost between P2 and B is no fault of the pipe: it shows in the delivery alone. Each figure is made from what
two different workers wrote, never from one worker's word about itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from semel.calculus.mode import MessageCounts
from semel.errors import InputError
from semel.kernel.ledger import Event, Kind, fold_ids, hash_id
from semel.kernel.store import Record
from semel.pipes.workers.build import Built, WorkerPlan

Expand = Callable[[Event], Sequence[str] | None]
"""The ids of the messages that a range of the ledger stands for; None when nobody kept them."""


@dataclass(slots=True)
class Tally:
    """What passed one place. `ids` is None when some of it is known by number only; `gaps` counts ranges that do not
    fit the records which they name."""

    n: int = 0
    fold: int | None = 0
    ids: list[str] | None = field(default_factory=list)
    gaps: int = 0

    def add(self, event: Event, expand: Expand) -> None:
        self.n += event.n
        if event.message is not None:
            self._fold(hash_id(event.message))
            self._know([event.message])
            return
        self._fold(event.fold)
        ids = expand(event)
        if ids is not None and (len(ids) != event.n or event.fold not in (None, fold_ids(ids))):
            self.gaps += 1
        self._know(ids)

    def _fold(self, fold: int | None) -> None:
        """None once a worker has kept numbers only: then nothing can be said about which messages they were."""
        self.fold = None if fold is None or self.fold is None else self.fold ^ fold

    def _know(self, ids: Sequence[str] | None) -> None:
        if ids is None:
            self.ids = None
        elif self.ids is not None:
            self.ids += ids


@dataclass(frozen=True, slots=True)
class Measured:
    """`exact` is False where ids are not known and the two sides differ, or were counted without a fold: then a lost
    message and a doubled one may hide each other, and copies that a worker took over again after a crash look like
    messages. `counts` are plain numbers."""

    counts: MessageCounts
    exact: bool
    gaps: int = 0


@dataclass(frozen=True, slots=True)
class PathFigures:
    """`pipes` by the name of their hop, such as "P1>P2"."""

    pipes: dict[str, Measured]
    delivery: Measured


def measure(built: Built, events: Iterable[Event], expand: Expand | None = None) -> PathFigures:
    """The figures of a path from the ledgers of all its workers. Count when nothing is under way any more."""
    mine = [event for event in events if event.pipeline == built.name]
    expand = expand or _unknown
    taken = _tally(mine, Kind.ACCEPTED, _ways_in(built.worker(built.first)), expand)
    handled = _tally(mine, Kind.HANDLED, (f"{built.last}>handler",), expand)
    return PathFigures(
        {
            f"{sender.config.name}>{receiver.config.name}": compare(
                _tally(mine, Kind.ACCEPTED, _ways_in(sender), expand), _sent_on(receiver, mine, expand)
            )
            for sender, receiver in _pipes(built)
        },
        compare(taken, handled),
    )


def compare(sent: Tally, arrived: Tally) -> Measured:
    """What the sending end wrote down, beside what the receiving end did."""
    gaps = sent.gaps + arrived.gaps
    if sent.ids is not None and arrived.ids is not None:
        return Measured(MessageCounts.of(sent.ids, arrived.ids), True, gaps)
    same = sent.n == arrived.n and sent.fold is not None and sent.fold == arrived.fold
    return Measured(MessageCounts(sent.n, min(sent.n, arrived.n), arrived.n if sent.n else 0), same, gaps)


def records_by_place(records: Iterable[Record]) -> Expand:
    """Finds the messages of a range among these records. Ranges of a volatile worker name no records: its meters kept
    numbers only."""
    found: dict[tuple[str, int], dict[int, str]] = {}
    for record in records:
        position = record.position
        found.setdefault((position.stream, position.epoch), {})[position.offset] = record.envelope.id

    def expand(event: Event) -> Sequence[str] | None:
        if event.stream is None or event.epoch is None or event.first is None or event.last is None:
            raise InputError(f"{event.kind.name} on {event.hop} is no range of a stream", fix="read it from a store")
        ids = found.get((event.stream, event.epoch))
        if ids is None:
            return None
        return [ids[offset] for offset in range(event.first, event.last + 1) if offset in ids]

    return expand


def _pipes(built: Built) -> Iterable[tuple[WorkerPlan, WorkerPlan]]:
    """The two workers of every hop that resends until confirmed."""
    receivers = {inlet.hop: worker for worker in built.workers for inlet in worker.config.inlets}
    for worker in built.workers:
        for outlet in worker.config.outlets:
            if outlet.resend is not None:
                yield worker, receivers[outlet.hop]


def _sent_on(worker: WorkerPlan, events: Sequence[Event], expand: Expand) -> Tally:
    """What a worker passed on. A durable one writes down what it has taken over, and sends that until it is taken; one
    at the end of the path has nobody to send to but its handler."""
    hops = tuple(outlet.hop for outlet in worker.config.outlets[:1])
    if worker.durable or not hops:
        return _tally(events, Kind.ACCEPTED, _ways_in(worker), expand)
    return _tally(events, Kind.SENT, hops, expand)


def _ways_in(worker: WorkerPlan) -> tuple[str, ...]:
    return tuple(inlet.hop for inlet in worker.config.inlets)


def _tally(events: Iterable[Event], kind: Kind, hops: Collection[str], expand: Expand) -> Tally:
    tally = Tally()
    for event in events:
        if event.kind is kind and event.hop in hops:
            tally.add(event, expand)
    return tally


def _unknown(event: Event) -> None:
    return None
