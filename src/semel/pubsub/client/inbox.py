"""The receiving half of a session: which messages are new, which the application has not had yet, and how much of them
the server may forget."""

from __future__ import annotations

from collections import deque

import msgspec

from semel.pubsub.client.events import ClientOptions


class SequenceAcks:
    """Only what the application has had is acknowledged. A server that was restarted may have forgotten how far it had
    sent, and takes an acknowledgement beyond it for a lie; so on each socket no more is acknowledged than came on it.

    At once when more than `count` messages or `size_max` bytes can be acknowledged, otherwise after `delay_s`."""

    def __init__(self, count: int, size_max: int, delay_s: float) -> None:
        self._count, self._size_max, self._delay_s = count, size_max, delay_s
        self._highest = self._delivered = 0
        self._on_new_socket()

    def _on_new_socket(self) -> None:
        self._received = self._acked = 0
        self._owed_count = self._owed_bytes = 0
        self._ack_at: float | None = None

    def begin_socket(self) -> None:
        """What was acknowledged on the last socket may not have arrived."""
        self._on_new_socket()

    def arrive(self, number: int, size: int, now: float) -> bool:
        """Whether it is new. One that the application has had already is only to be acknowledged again."""
        self._received = max(self._received, number)
        if number > self._highest:
            self._highest = number
            return True
        if number <= self._delivered:
            self._owe(size, now)
        return False

    def deliver(self, number: int, size: int, now: float) -> None:
        """The application has had it."""
        self._delivered = max(self._delivered, number)
        self._owe(size, now)

    def _owe(self, size: int, now: float) -> None:
        self._owed_count += 1
        self._owed_bytes += size
        if self._ack_at is None:
            self._ack_at = now + self._delay_s
        if self._owed_count > self._count or self._owed_bytes > self._size_max:
            self._ack_at = now

    def next_deadline(self) -> float | None:
        return self._ack_at

    def due(self, now: float) -> int | None:
        """What to acknowledge now."""
        return self.take() if self._ack_at is not None and self._ack_at <= now else None

    def take(self) -> int | None:
        """What can be acknowledged, whether it is time or not."""
        self._owed_count = self._owed_bytes = 0
        self._ack_at = None
        number = min(self._delivered, self._received)
        if number <= self._acked:
            return None
        self._acked = number
        return number


OVERFLOW, ROOM_AGAIN = 2.0, 0.5
"""How full it is when no more is taken, and when it is again."""


class _Handed(msgspec.Struct, frozen=True, gc=False):
    """`arrivals` are those of the session in which it came."""

    number: int
    arrivals: SequenceAcks | None
    sequence_id: int
    size: int


class DeliveryQueue:
    """Messages that the application has not had yet. They are bounded: what does not fit is not taken, and the server
    is asked for it again when there is room."""

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
