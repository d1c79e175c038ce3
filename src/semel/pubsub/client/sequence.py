"""The receiving half of a session: which messages are new, and how much of them the server may forget.

Only what the application has had is acknowledged. A server that was restarted may have forgotten how far it had sent,
and takes an acknowledgement beyond it for a lie; so on each socket no more is acknowledged than came on that socket.
"""

from __future__ import annotations


class SequenceAcks:
    """At once when more than `count` messages or `size_max` bytes can be acknowledged, otherwise after `delay_s`."""

    def __init__(self, count: int, size_max: int, delay_s: float) -> None:
        self._count, self._size_max, self._delay_s = count, size_max, delay_s
        self._highest = self._delivered = 0
        self._on_new_socket()

    def _on_new_socket(self) -> None:
        self._heard = self._acked = 0
        self._owed_count = self._owed_bytes = 0
        self._ack_at: float | None = None

    def begin_socket(self) -> None:
        """What was acknowledged on the last socket may not have arrived."""
        self._on_new_socket()

    def arrive(self, number: int, size: int, now: float) -> bool:
        """Whether it is new. One that the application has had already is only to be acknowledged again."""
        self._heard = max(self._heard, number)
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
        number = min(self._delivered, self._heard)
        if number <= self._acked:
            return None
        self._acked = number
        return number
