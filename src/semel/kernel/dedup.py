"""The receiving end of a reliable hop: which arrivals are new, and in which order they pass.

Three ways, from weak to strong:

* `IdWindow` remembers ids for a time and up to a number. What leaks when it is too small is known to the calculus.
* `MonotonicIndex` passes an index above the last one. It never blocks, and it loses what arrives late.
* `StrictIndex` passes every index once and in order. Early arrivals wait in a bounded buffer; a gap policy says what
  happens when the missing one does not come.

All three hold plain values and can be saved with `snapshot` and brought back with `restore`. Where nobody will send the
early items again, as in a pipeline over a log, `early` and `given_up.snapshot` save the rest of what a machine knows.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, TypeVar

from semel.errors import ConfigError

T = TypeVar("T")


class IdWindow:
    """Remembers up to `size` ids, each for `keep_s`. `leaked` counts ids pushed out before their time was up."""

    def __init__(self, size: int, keep_s: float) -> None:
        if size < 1 or keep_s <= 0:
            raise ConfigError(f"a window of {size} ids for {keep_s} s remembers nothing", fix="use positive numbers")
        self.size = size
        self.keep_s = keep_s
        self.leaked = 0
        self._seen: OrderedDict[str, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._seen)

    def is_new(self, id: str, now: float) -> bool:
        """True the first time. A repeat does not extend the memory, so memory stays bounded in time as well."""
        self._forget(now)
        if id in self._seen:
            return False
        self._seen[id] = now + self.keep_s
        if len(self._seen) > self.size:
            self._seen.popitem(last=False)
            self.leaked += 1
        return True

    def forget(self, id: str) -> None:
        """It did not get through after all: the next copy is new again."""
        self._seen.pop(id, None)

    def _forget(self, now: float) -> None:
        while self._seen and next(iter(self._seen.values())) <= now:
            self._seen.popitem(last=False)

    def snapshot(self) -> dict[str, float]:
        return dict(self._seen)

    def restore(self, seen: dict[str, float]) -> None:
        self._seen = OrderedDict(sorted(seen.items(), key=lambda item: item[1]))


class GivenUp:
    """The indexes whose place was given up before they came, so that a late one is not taken for a duplicate.

    It holds `RANGES_MAX` ranges, the newest: long after, a message that comes late cannot be told from a second copy
    and counts as a duplicate. The same is true after a restart, unless its owner saves it. With `keep_all` the two
    lowest ranges become one instead, with all between them: then a second copy of what passed there is taken for a late
    one, which is for those who know copies by their ids as well.
    """

    RANGES_MAX = 100

    def __init__(self, *, keep_all: bool = False) -> None:
        self._ranges: list[tuple[int, int]] = []
        self._keep_all = keep_all

    def add(self, first: int, last: int) -> None:
        if first > last:
            return
        if self._keep_all and len(self._ranges) >= self.RANGES_MAX:
            (lowest, _), (_, highest), *others = sorted(self._ranges)
            self._ranges = [(lowest, highest), *others]
        self._ranges.append((first, last))
        del self._ranges[: -self.RANGES_MAX]

    def take(self, index: int) -> bool:
        """Whether this is a late one. True once: what comes after it is its copy."""
        if not self._ranges:
            return False
        found = next(((first, last) for first, last in self._ranges if first <= index <= last), None)
        if found is None:
            return False
        self._ranges.remove(found)
        self.add(found[0], index - 1)
        self.add(index + 1, found[1])
        return True

    def snapshot(self) -> list[tuple[int, int]]:
        return list(self._ranges)

    def restore(self, ranges: Iterable[tuple[int, int]]) -> None:
        self._ranges = [(first, last) for first, last in ranges]


class MonotonicIndex:
    """Passes an index above the last one that passed; an equal or lower one is a duplicate, or came too late."""

    def __init__(self, last: int = 0, given_up: GivenUp | None = None) -> None:
        self.last = last
        self.given_up = given_up or GivenUp()

    def is_new(self, index: int) -> bool:
        if index <= self.last:
            return False
        self.given_up.add(self.last + 1, index - 1)
        self.last = index
        return True

    def snapshot(self) -> int:
        return self.last

    def restore(self, last: int) -> None:
        self.last = last


class OnGap(Enum):
    """What to do when the next index does not come."""

    WAIT = "wait"
    SKIP = "skip"
    ASK = "ask"


@dataclass(frozen=True, slots=True)
class GapPolicy:
    """WAIT for ever, SKIP the missing ones after `after_s`, or ASK the sender again every `after_s`."""

    then: OnGap = OnGap.WAIT
    after_s: float = 10.0

    def __post_init__(self) -> None:
        if self.after_s <= 0:
            raise ConfigError(f"a gap policy after {self.after_s} s would act at once", fix="use a positive time")


@dataclass(frozen=True, slots=True)
class Passed(Generic[T]):
    """These items pass now, in order."""

    items: tuple[tuple[int, T], ...]


@dataclass(frozen=True, slots=True)
class Repeated:
    """Seen before: `waiting` when the first copy is still in the buffer, so nothing may be confirmed yet."""

    waiting: bool


@dataclass(frozen=True, slots=True)
class Early:
    """Kept in the buffer until the ones before it have come."""


@dataclass(frozen=True, slots=True)
class Overflow:
    """Not kept: the buffer is full. The sender will send it again."""


@dataclass(frozen=True, slots=True)
class GapSkipped(Generic[T]):
    """The indexes `first..last` are given up and recorded as skipped; `items` pass now."""

    first: int
    last: int
    items: tuple[tuple[int, T], ...]


@dataclass(frozen=True, slots=True)
class GapAsked:
    """Ask the sender for `first..last` again."""

    first: int
    last: int


# they hold nothing of their own, and one is needed for every arrival that does not pass at once
_REPEATED = Repeated(waiting=False)
_REPEATED_WAITING = Repeated(waiting=True)
_EARLY = Early()
_OVERFLOW = Overflow()


@dataclass(slots=True)
class StrictIndex(Generic[T]):
    """Passes 1, 2, 3 … each once. At most `buffer_max` early items are kept."""

    next: int = 1
    buffer_max: int = 1000
    gap: GapPolicy = field(default_factory=GapPolicy)
    given_up: GivenUp = field(default_factory=GivenUp)
    _early: dict[int, T] = field(default_factory=dict)
    _deadline: float | None = None

    def __len__(self) -> int:
        return len(self._early)

    def offer(self, index: int, item: T, now: float) -> Passed[T] | Repeated | Early | Overflow:
        if index < self.next:
            return _REPEATED
        if index in self._early:
            return _REPEATED_WAITING
        if index > self.next:
            return self._keep(index, item, now)
        self._early[index] = item
        return Passed(self._release(now))

    def pass_run(self, indexes: Sequence[int | None], at: int) -> int:
        """Offer `indexes[at:]` as far as each is the next one and nothing waits: exactly those pass, each alone.

        Returns where the run ends; what stands there, an index or none at all, is for others to decide.
        """
        if self._early:
            return at
        end, number, stop = at, self.next, len(indexes)
        while end < stop and indexes[end] == number:
            end += 1
            number += 1
        self.next = number
        return end

    def _keep(self, index: int, item: T, now: float) -> Early | Overflow:
        if len(self._early) >= self.buffer_max:
            return _OVERFLOW
        self._early[index] = item
        if self._deadline is None and self.gap.then is not OnGap.WAIT:
            self._deadline = now + self.gap.after_s
        return _EARLY

    def _release(self, now: float) -> tuple[tuple[int, T], ...]:
        """Everything consecutive from `next` on. A gap that remains gets a fresh deadline: it is another gap."""
        items: list[tuple[int, T]] = []
        while self.next in self._early:
            items.append((self.next, self._early.pop(self.next)))
            self.next += 1
        waits = self._early and self.gap.then is not OnGap.WAIT
        self._deadline = now + self.gap.after_s if waits else None
        return tuple(items)

    def skip_to(self, index: int, now: float) -> tuple[tuple[int, T], ...]:
        """Nothing below `index` will come any more. What waited below it passes, and what follows it without a gap."""
        items: list[tuple[int, T]] = []
        for at in sorted(each for each in self._early if each < index):
            self.given_up.add(self.next, at - 1)
            items.append((at, self._early.pop(at)))
            self.next = at + 1
        self.given_up.add(self.next, index - 1)
        self.next = index
        return (*items, *self._release(now))

    def waiting(self) -> list[T]:
        """The early items, lowest index first."""
        return [self._early[index] for index in sorted(self._early)]

    def first_waiting(self) -> T | None:
        """The early item with the lowest index."""
        return self._early[min(self._early)] if self._early else None

    def next_deadline(self) -> float | None:
        return self._deadline

    def on_timer(self, now: float) -> GapSkipped[T] | GapAsked | None:
        if self._deadline is None or now < self._deadline:
            return None
        if self.gap.then is OnGap.ASK:
            self._deadline = now + self.gap.after_s
            return GapAsked(self.next, min(self._early) - 1)
        return self.skip_gap(now)

    def skip_gap(self, now: float, arrived: int | None = None) -> GapSkipped[T]:
        """Give up what is missing before the first early item, without waiting for its time.

        `arrived` is the index of one that has come and is not among the early ones: it is not given up.
        """
        first, last = self.next, min(self._early) - 1
        if arrived is not None:
            last = min(last, arrived - 1)
        self.given_up.add(first, last)
        self.next = last + 1
        return GapSkipped(first, last, self._release(now))

    def early(self) -> dict[int, T]:
        """The early items by index, lowest first."""
        return {index: self._early[index] for index in sorted(self._early)}

    def snapshot(self) -> int:
        """Only `next`: early items are unconfirmed, so their sender still has them."""
        return self.next

    def restore(self, next: int) -> None:
        self.next = next
        self._early.clear()
        self._deadline = None

    def restore_early(self, early: Mapping[int, T], deadline: float | None, now: float) -> None:
        """Bring back what `early` and `next_deadline` gave, after `restore`.

        The gap policy may be another one since: one that acts gets its full time, one that waits drops the deadline.
        """
        self._early = dict(early)
        if not early or self.gap.then is OnGap.WAIT:
            self._deadline = None
        else:
            self._deadline = deadline if deadline is not None else now + self.gap.after_s
