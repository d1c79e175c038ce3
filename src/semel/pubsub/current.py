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
    from semel.pubsub.hub import Hub

READ_S = 5.0
TOO_LATE = "the store did not answer in time; ask again"
UNREADABLE = "the store cannot be read now; ask again"


@dataclass(slots=True, eq=False)
class _Asked:
    """One of the two calls is made, once."""

    until: float
    then: Callable[[float], None]
    failed: Callable[[str], None]
    is_open: bool = True

    def fail(self, why: str) -> None:
        if self.is_open:
            self.is_open = False
            self.failed(why)


class Current:
    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._asked: deque[_Asked] = deque()

    def __len__(self) -> int:
        return sum(asked.is_open for asked in self._asked)

    def when(self, then: Callable[[float], None], failed: Callable[[str], None], now: float) -> None:
        """`then`, as soon as all is known here that stands in the stream now. `failed` hears why that cannot be."""
        if not self._hub.options.is_shared:
            then(now)
            return
        asked = _Asked(now + READ_S, then, failed)
        self._asked.append(asked)
        self._hub.tail.read_to_end(lambda is_read, now: self._read(asked, is_read, now))

    def _read(self, asked: _Asked, is_read: bool, now: float) -> None:
        if not is_read:
            asked.fail(UNREADABLE)
        elif asked.is_open:
            asked.is_open = False
            asked.then(now)
        while self._asked and not self._asked[0].is_open:
            self._asked.popleft()

    def abandon(self, why: str) -> None:
        """The hub begins anew, and will not hear of them."""
        while self._asked:
            self._asked.popleft().fail(why)

    def next_deadline(self) -> float | None:
        return self._asked[0].until if self._asked else None

    def on_timer(self, now: float) -> None:
        while self._asked and self._asked[0].until <= now:
            self._asked.popleft().fail(TOO_LATE)
