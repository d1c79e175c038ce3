"""The journey of one message: what the ledgers of all stores that it passed tell of it, in one timeline.

An entry is about one message or about a range of a stream. Which ranges hold a record of the message is found by
looking through the index, as long as the record has not been trimmed. Each store has a clock of its own: where two of
them differ, what follows in truth may come first here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from semel.kernel.envelope import rfc3339
from semel.kernel.ledger import START, Entry, Event, Mark
from semel.kernel.position import Position
from semel.kernel.store import Store

PAGE = 5_000
HISTORY_MAX = 1_000


class MarkedEntry(Protocol):
    @property
    def mark(self) -> Mark: ...


T = TypeVar("T", bound=MarkedEntry)


def pages(read: Callable[[Mark, int], Sequence[T]], size: int = PAGE) -> Iterator[T]:
    """Everything that a reader by marks finds, one page in memory at a time."""
    mark = START
    while page := read(mark, size):
        yield from page
        mark = page[-1].mark


@dataclass(frozen=True, slots=True)
class StoreJourney:
    """What one store tells. `is_whole` False: it holds more than was to be looked through."""

    entries: list[Entry]
    is_whole: bool = True


def journey_in(store: Store, message: str, *, rows_max: int | None = None, page: int = PAGE) -> StoreJourney:
    """Everything about the message in the order of the ledger. With `rows_max` no more rows than that are read to find
    ranges; what is about the message alone is found at once."""
    direct = store.history(message, HISTORY_MAX)
    look = _Look(rows_max)
    places = [entry.record.position for entry in look.over(pages(store.index, page)) if _is_of(entry, message)]
    if not places and len(direct) < HISTORY_MAX:
        return StoreJourney(direct, not look.is_cut)
    found = [entry for entry in look.over(pages(store.ledger, page)) if is_about(entry.event, message, places)]
    if look.is_cut:
        known = {entry.mark for entry in found}
        found = sorted([*found, *(entry for entry in direct if entry.mark not in known)], key=lambda each: each.mark)
    return StoreJourney(found, not look.is_cut)


def is_about(event: Event, message: str, places: Sequence[Position]) -> bool:
    if event.first is None or event.last is None:
        return event.message == message
    where = (event.stream, event.epoch)
    return any((place.stream, place.epoch) == where and event.first <= place.offset <= event.last for place in places)


def _is_of(entry: Any, message: str) -> bool:
    return bool(entry.record.envelope.id == message)


class _Look:
    """Counts what is looked at, and stops when it is too much."""

    def __init__(self, rows_max: int | None) -> None:
        self._left = rows_max
        self.is_cut = False

    def over(self, rows: Iterator[T]) -> Iterator[T]:
        for row in rows:
            if self._left is not None:
                if self._left <= 0:
                    self.is_cut = True
                    return
                self._left -= 1
            yield row


@dataclass(frozen=True, slots=True)
class Step:
    """An entry, and the store that has it."""

    store: str
    entry: Entry


def timeline(found: Mapping[str, Sequence[Entry]]) -> list[Step]:
    """All of them in the order of time; at the same time in the order of the stores, and of each ledger."""
    steps = [Step(store, entry) for store, entries in found.items() for entry in entries]
    order = {store: number for number, store in enumerate(found)}
    return sorted(steps, key=lambda step: (step.entry.at, order[step.store], step.entry.mark))


def plain_step(step: Step) -> dict[str, Any]:
    """As JSON shows it."""
    entry, event = step.entry, step.entry.event
    told = {
        "at": rfc3339(entry.at), "store": step.store, "node": entry.node, "hop": event.hop,
        "kind": event.kind.name.lower(), "message": event.message, "delivery": event.delivery,
        "attempt": event.attempt, "cause": event.cause,
    }  # fmt: skip
    if event.first is not None:
        told |= {"stream": event.stream, "first": event.first, "last": event.last, "peer": event.peer}
    return told
