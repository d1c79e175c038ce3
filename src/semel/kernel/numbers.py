"""A set of numbers kept as ranges: exact, and small where numbers come nearly in order."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence

from semel.errors import InputError

RANGES_MAX = 4096


class NumberSet:
    """Holds any numbers from 0 on. Beyond `ranges_max` ranges the lowest is forgotten, and `forgotten` counts its
    numbers: who counts upwards, as clients do, is remembered for good, and who does not cannot fill the memory.
    """

    __slots__ = ("_firsts", "_lasts", "forgotten", "ranges_max")

    def __init__(self, ranges: Iterable[Sequence[int]] = (), *, ranges_max: int = RANGES_MAX) -> None:
        self.ranges_max = ranges_max
        self.forgotten = 0
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        for first, last in ranges:
            if first > last or (self._lasts and first <= self._lasts[-1] + 1):
                raise InputError(
                    f"{first}..{last} is not a range after {self._lasts[-1:]}", fix="pass what ranges() gave"
                )
            self._firsts.append(first)
            self._lasts.append(last)

    def __contains__(self, number: int) -> bool:
        at = bisect_right(self._firsts, number)
        return at > 0 and number <= self._lasts[at - 1]

    def __len__(self) -> int:
        return sum(last - first + 1 for first, last in self.ranges())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NumberSet) and (self._firsts, self._lasts) == (other._firsts, other._lasts)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = ", ".join(f"{first}..{last}" for first, last in self.ranges())
        return f"NumberSet({shown})"

    def ranges(self) -> Iterator[tuple[int, int]]:
        """First and last of each range, in order. Feed it to a new set to get this one back."""
        return zip(self._firsts, self._lasts, strict=True)

    def add(self, number: int) -> bool:
        """True if it is new."""
        lasts = self._lasts
        if lasts and number == lasts[-1] + 1:  # by far the commonest: the next one
            lasts[-1] = number
            return True
        at = bisect_right(self._firsts, number)
        if at > 0 and number <= lasts[at - 1]:
            return False
        self._insert(at, number)
        return True

    def add_all(self, numbers: Iterable[int]) -> None:
        lasts = self._lasts
        for number in numbers:
            if lasts and number == lasts[-1] + 1:
                lasts[-1] = number
            else:
                self.add(number)

    def _insert(self, at: int, number: int) -> None:
        """Between two ranges, joining what it touches."""
        firsts, lasts = self._firsts, self._lasts
        joins_lower = at > 0 and lasts[at - 1] == number - 1
        joins_upper = at < len(firsts) and firsts[at] == number + 1
        if joins_lower and joins_upper:
            lasts[at - 1] = lasts[at]
            del firsts[at], lasts[at]
        elif joins_lower:
            lasts[at - 1] = number
        elif joins_upper:
            firsts[at] = number
        else:
            firsts.insert(at, number)
            lasts.insert(at, number)
            self._bound()

    def _bound(self) -> None:
        if len(self._firsts) > self.ranges_max:
            self.forgotten += self._lasts.pop(0) - self._firsts.pop(0) + 1
