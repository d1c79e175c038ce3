"""Who asks one node about connections asks about those of all nodes. What others have done is known here as far as the
stream was read, so the answer waits until everything has been read that stood in it when the question came.

All who ask at once wait for the same read. A node that is alone has done everything itself, and waits for nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from semel.pubsub.hub.machine import Hub

READ_S = 5.0
TOO_LATE = "the store did not answer in time; ask again"
UNREADABLE = "the store cannot be read now; ask again"


@dataclass(slots=True, eq=False)
class _Asked:
    """One of the two calls is made, once. `read`: the first that is not too early for it."""

    read: int
    until: float
    then: Callable[[float], None]
    failed: Callable[[str], None]


class Current:
    """Those who wait, in the order in which they asked. Nobody stays after an answer, whatever becomes of the read."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._asked: deque[_Asked] = deque()

    def __len__(self) -> int:
        return len(self._asked)

    def when(self, then: Callable[[float], None], failed: Callable[[str], None], now: float) -> None:
        """`then`, as soon as all is known here that stands in the stream now. `failed` hears why that cannot be."""
        if not self._hub.options.is_shared:
            then(now)
            return
        self._asked.append(_Asked(self._hub.tail.read_to_end(), now + READ_S, then, failed))

    def has_read(self, number: int | None, now: float) -> None:
        """The tail has come to the end of the stream with this read, or cannot read it (None)."""
        if number is None:
            self.abandon(UNREADABLE)
            return
        while self._asked and self._asked[0].read <= number:
            self._asked.popleft().then(now)

    def abandon(self, why: str) -> None:
        """The hub begins anew, and will not hear of them. Who asks again at once waits for another read."""
        asked, self._asked = self._asked, deque()
        for each in asked:
            each.failed(why)

    def next_deadline(self) -> float | None:
        return self._asked[0].until if self._asked else None

    def on_timer(self, now: float) -> None:
        while self._asked and self._asked[0].until <= now:
            self._asked.popleft().failed(TOO_LATE)
