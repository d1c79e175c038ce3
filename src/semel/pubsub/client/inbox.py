"""Messages that the application has not had yet. They are bounded: what does not fit is not taken, and the server is
asked for it again when there is room."""

from __future__ import annotations

from collections import deque

import msgspec

from semel.pubsub.client.events import ClientOptions
from semel.pubsub.client.sequence import SequenceAcks

OVERFLOW, ROOM_AGAIN = 2.0, 0.5
"""How full it is when no more is taken, and when it is again."""


class _Handed(msgspec.Struct, frozen=True, gc=False):
    """`arrivals` are those of the session in which it came."""

    number: int
    arrivals: SequenceAcks | None
    sequence_id: int
    size: int


class Handing:
    def __init__(self, options: ClientOptions) -> None:
        self._count_max, self._bytes_max = options.inbox_max, options.inbox_bytes_max
        self._handed: deque[_Handed] = deque()
        self._count = self._bytes = 0
        self._overflowed = False

    def __len__(self) -> int:
        return len(self._handed)

    @property
    def fullness(self) -> float:
        return max(len(self._handed) / self._count_max, self._bytes / self._bytes_max)

    @property
    def can_make_up(self) -> bool:
        """Whether something was not taken for which there is room now."""
        return self._overflowed and self.fullness <= ROOM_AGAIN

    def overflows(self) -> bool:
        """Whether the next one cannot be taken, and none after it on this socket."""
        self._overflowed = self._overflowed or self.fullness >= OVERFLOW
        return self._overflowed

    def leave_socket(self) -> None:
        """On the next one the server begins with what was not taken."""
        self._overflowed = False

    def add(self, sequence_id: int, size: int, arrivals: SequenceAcks | None) -> int:
        """Returns the number under which it is handed on."""
        self._count += 1
        self._bytes += size
        self._handed.append(_Handed(self._count, arrivals, sequence_id, size))
        return self._count

    def delivered(self, number: int, now: float) -> None:
        """The application has had this one and those before it."""
        while self._handed and self._handed[0].number <= number:
            handed = self._handed.popleft()
            self._bytes -= handed.size
            if handed.arrivals is not None:
                handed.arrivals.deliver(handed.sequence_id, handed.size, now)
