"""Counts what passes a hop, and writes it to the ledger as ranges.

A volatile stage has no stream whose records a range could name, so its ranges name the hop's own indexes: `stream` is
the stage's, `first..last` are the lowest and highest index counted (0 where there is none), `n` how many. `fold`, the
xor of their hashed ids, is kept where it is asked for: it is what makes counting cost something.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from semel.kernel.effects import Commit
from semel.kernel.ledger import Event, Kind, hash_id
from semel.kernel.ops import Log

NO_INDEX = 2**63
"""Above every index, so that the first one counted is the lowest."""


def _per_kind(value: int) -> list[int]:
    return [value] * (max(Kind) + 1)


@dataclass(slots=True)
class HopMeter:
    """Counts what passes one end of a hop. `counts` only grow; `take` returns what is new since its last call."""

    hop: str
    pipeline: str = ""
    stream: str = ""
    peer: str = ""
    folds: bool = False
    _counts: list[int] = field(default_factory=lambda: _per_kind(0))
    _reported: list[int] = field(default_factory=lambda: _per_kind(0))
    _first: list[int] = field(default_factory=lambda: _per_kind(NO_INDEX))
    _last: list[int] = field(default_factory=lambda: _per_kind(0))
    _fold: list[int] = field(default_factory=lambda: _per_kind(0))

    def count(self, kind: Kind, message: str, index: int) -> None:
        self._counts[kind] += 1
        if index < self._first[kind]:
            self._first[kind] = index
        if index > self._last[kind]:
            self._last[kind] = index
        if self.folds:
            self._fold[kind] ^= hash_id(message)

    def count_reported(self, kind: Kind) -> None:
        """The ledger has an event of its own for this one, so no range speaks of it."""
        self._counts[kind] += 1
        self._reported[kind] += 1

    @property
    def counts(self) -> Counter[Kind]:
        return Counter({kind: count for kind in Kind if (count := self._counts[kind])})

    @property
    def has_news(self) -> bool:
        return self._counts != self._reported

    def take(self) -> list[Event]:
        events = [self._event(kind, n) for kind in Kind if (n := self._counts[kind] - self._reported[kind])]
        if events:
            self._reported = self._counts.copy()
            self._first, self._last, self._fold = _per_kind(NO_INDEX), _per_kind(0), _per_kind(0)
        return events

    def _event(self, kind: Kind, n: int) -> Event:
        first = min(self._first[kind], self._last[kind])
        return Event(
            kind, self.hop, self.pipeline, peer=self.peer, stream=self.stream, epoch=0,
            first=first, last=self._last[kind], n=n, fold=self._fold[kind] if self.folds else None,
        )  # fmt: skip

    def put_back(self, events: Sequence[Event]) -> None:
        """What was taken, or had an event of its own, could not be written: it is still to be reported."""
        for event in events:
            kind = event.kind
            self._reported[kind] -= event.n
            self._first[kind] = min(self._first[kind], event.first or 0)
            self._last[kind] = max(self._last[kind], event.last or 0)
            if self.folds:
                self._fold[kind] ^= hash_id(event.message) if event.message is not None else event.fold or 0


class Reports:
    """Has the news of some meters written to the ledger, `every_s` after the first of them; None: never.

    Its commits bear negative tokens, so that they are never taken for one of its owner's.
    """

    def __init__(self, meters: Sequence[HopMeter], every_s: float | None) -> None:
        self.meters = meters
        self.at: float | None = None
        self._every_s = every_s
        self._token = 0
        self._under_way: dict[int, list[tuple[HopMeter, list[Event]]]] = {}

    def look(self, now: float) -> None:
        """Set a time for the next report if there is anything to say."""
        if self.at is None and self._every_s is not None and any(meter.has_news for meter in self.meters):
            self.at = now + self._every_s

    def on_timer(self, now: float) -> list[Commit]:
        if self.at is None or now < self.at:
            return []
        self.at = None
        taken = [(meter, events) for meter in self.meters if (events := meter.take())]
        return [self._commit(taken)] if taken else []

    def one(self, meter: HopMeter, event: Event) -> list[Commit]:
        """About one message, at once and by its name."""
        meter.count_reported(event.kind)
        return [self._commit([(meter, [event])])]

    def _commit(self, taken: list[tuple[HopMeter, list[Event]]]) -> Commit:
        self._token -= 1
        self._under_way[self._token] = taken
        return Commit(tuple(Log(event) for _, events in taken for event in events), self._token, chain=None)

    def written(self, token: int) -> None:
        self._under_way.pop(token, None)

    def not_written(self, token: int) -> None:
        """What could not be written goes into the next report."""
        for meter, events in self._under_way.pop(token, ()):
            meter.put_back(events)
