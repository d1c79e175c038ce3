"""Which ackIds of a client were taken, so that each of its requests takes effect once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from semel.kernel.numbers import NumberSet


class AckMemory:
    """`taken`: what stands behind these is durable. `claimed`: also those on their way into the store. `waiting`: those
    that are not decided, and how often they were sent again meanwhile."""

    __slots__ = ("claimed", "taken", "waiting")

    def __init__(self, taken: Iterable[tuple[int, int]]) -> None:
        self.taken = NumberSet(taken)
        self.claimed = NumberSet(self.taken.ranges())
        self.waiting: dict[int, int] = {}

    def is_known(self, ack_id: int) -> bool:
        return ack_id in self.claimed or ack_id in self.waiting

    def wait_for(self, ack_id: int) -> None:
        """It is on its way, but may not be claimed before it is decided: the acks row would say that it was taken."""
        self.waiting.setdefault(ack_id, 0)

    def repeat(self, ack_id: int) -> None:
        """It was sent again before it was decided."""
        self.waiting[ack_id] = self.waiting.get(ack_id, 0) + 1

    def take_repeats(self, ack_id: int) -> int:
        """How often it was sent again."""
        return self.waiting.pop(ack_id, 0)

    def claim_waiting(self, ack_ids: Sequence[int]) -> None:
        """They are decided. One that was sent once is answered once."""
        self.claimed.add_all(ack_ids)
        for ack_id in ack_ids:
            if self.waiting.get(ack_id) == 0:
                del self.waiting[ack_id]

    def fall_back(self) -> None:
        """Nothing that was on its way will be stored."""
        self.claimed = NumberSet(self.taken.ranges())
