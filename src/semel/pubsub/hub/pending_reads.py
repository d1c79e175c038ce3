"""Reads of the store that are under way.

An answer says what was asked, but not when. Whoever asks the same while an answer is on its way may want what was not
there yet when the store was read: so it is read for them once more, after that answer.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class PendingReads(Generic[K, T]):
    """`ask` sends a read to the store. Those who wait for its answer are kept with it."""

    def __init__(self, ask: Callable[[K], None]) -> None:
        self._ask = ask
        self._asked: dict[K, list[T]] = {}
        self._next: dict[K, list[T]] = {}

    def __len__(self) -> int:
        return len(self._asked)

    def __iter__(self) -> Iterator[K]:
        return iter(tuple(self._asked))

    def ask(self, key: K, who: T) -> None:
        if key in self._asked:
            self._next.setdefault(key, []).append(who)
        else:
            self._asked[key] = [who]
            self._ask(key)

    def answered(self, key: K) -> Sequence[T]:
        """The answer is there: who it is for."""
        waiting = self._asked.pop(key, [])
        if key in self._next:
            self._asked[key] = self._next.pop(key)
            self._ask(key)
        return waiting
