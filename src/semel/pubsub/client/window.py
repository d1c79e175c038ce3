"""The parts of a client stream that the server has not acknowledged, in order.

An acknowledgement names the next part that is expected, and a server drops what comes after a gap. So there is one time
to wait for all of them, which starts again with each acknowledgement; when it is up, everything goes out again from
the first. With a time for each part, a slow link would carry every part again and again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice

from semel.pubsub.protocol.frames import Frame


class Window:
    """`first` is the first part that is not acknowledged, `next` the number of the next new one."""

    def __init__(self, count_max: int, bytes_max: int) -> None:
        self._count_max, self._bytes_max = count_max, bytes_max
        self._kept: deque[tuple[Frame, int]] = deque()
        self._bytes = 0
        self.first = self.next = 1
        self._unsent = 1  # what goes out next
        self._sent_max = 0  # the highest that ever went out

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def has_room(self) -> bool:
        return len(self._kept) < self._count_max and self._bytes < self._bytes_max

    def add(self, frame: Frame, size: int) -> None:
        """The frame of part `next`."""
        self._kept.append((frame, size))
        self._bytes += size
        self.next += 1

    def take_unsent(self) -> Iterator[Frame]:
        """What goes out now."""
        for frame, _ in islice(self._kept, self._unsent - self.first, None):
            self._unsent += 1
            self._sent_max = max(self._sent_max, self._unsent - 1)
            yield frame

    def go_back(self) -> None:
        """All of it goes out again."""
        self._unsent = self.first

    def clear(self) -> None:
        """Nobody wants the rest any more."""
        self._kept.clear()
        self._bytes = 0
        self._unsent = self.next = self.first

    def can_expect(self, number: int) -> bool:
        """Whether a server that keeps its word may say that it expects this part next."""
        return self.first <= number <= self._sent_max + 1

    def acknowledge(self, expected: int) -> bool:
        """All before this one are there. Whether that is news."""
        is_new = expected > self.first
        while self._kept and self.first < expected:
            self._bytes -= self._kept.popleft()[1]
            self.first += 1
        self._unsent = max(self._unsent, self.first)
        return is_new
