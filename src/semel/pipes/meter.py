"""Counts what passes a hop, and writes it to the ledger as ranges.

A volatile stage has no stream whose records a range could name, so its ranges name the hop's own indexes: `stream` is
the stage's, `first..last` are the lowest and highest index counted, `n` how many, `fold` the xor of their hashed ids.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from semel.kernel.ledger import Event, Kind, hash_id


@dataclass(slots=True)
class _Span:
    first: int
    last: int
    n: int = 0
    fold: int = 0


@dataclass(slots=True)
class Meter:
    """Of one hop, on one side of it. `counts` grow for good; `take` hands over what is new since it was last called."""

    hop: str
    pipeline: str = ""
    stream: str = ""
    peer: str = ""
    keeps_spans: bool = False
    _counts: list[int] = field(default_factory=lambda: [0] * (max(Kind) + 1))
    _spans: dict[Kind, _Span] = field(default_factory=dict)

    def count(self, kind: Kind, message: str, index: int) -> None:
        self._counts[kind] += 1
        if not self.keeps_spans:
            return
        span = self._spans.get(kind)
        if span is None:
            span = self._spans[kind] = _Span(index, index)
        span.first = min(span.first, index)
        span.last = max(span.last, index)
        span.n += 1
        span.fold ^= hash_id(message)

    @property
    def counts(self) -> Counter[Kind]:
        return Counter({kind: count for kind in Kind if (count := self._counts[kind])})

    @property
    def has_news(self) -> bool:
        return bool(self._spans)

    def take(self) -> list[Event]:
        spans, self._spans = self._spans, {}
        return [
            Event(
                kind, self.hop, self.pipeline, peer=self.peer, stream=self.stream, epoch=0,
                first=span.first, last=span.last, n=span.n, fold=span.fold,
            )
            for kind, span in spans.items()
        ]  # fmt: skip

    def put_back(self, events: list[Event]) -> None:
        """What was taken could not be written: it is still to be told."""
        for event in events:
            assert event.first is not None
            assert event.last is not None
            assert event.fold is not None
            span = self._spans.setdefault(event.kind, _Span(event.first, event.last))
            span.first, span.last = min(span.first, event.first), max(span.last, event.last)
            span.n += event.n
            span.fold ^= event.fold
