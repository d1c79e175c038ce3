"""A read barrier: questions about connections wait until this node has read everything that stood in the stream when
they came, so that the answer counts for the sessions of all nodes.

All who ask at once wait for the same read. A single node has written everything itself, and waits for nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from semel.pubsub.hub.context import HubContext
from semel.pubsub.hub.tail import Tail

READ_S = 5.0
TOO_LATE = "the store did not answer in time; ask again"
UNREADABLE = "the store cannot be read now; ask again"


@dataclass(slots=True, eq=False)
class _Asked:
    """One of the two calls is made, once. `read`: the first that is not too early for it."""

    number: int
    read: int
    until: float
    then: Callable[[float], None]
    failed: Callable[[str], None]


class ReadBarrier:
    """Those who wait, in the order in which they asked. Nobody stays after an answer, whatever becomes of the read.

    A node that is far behind may never come to the end of a stream that keeps growing. So it asks the store where the
    end is: `_looking_for` is the last question for which it does, `_ends` what was found for which question."""

    def __init__(self, context: HubContext, tail: Tail) -> None:
        self._context, self._tail = context, tail
        self._asked: deque[_Asked] = deque()
        self._count = 0
        self._looking_for: int | None = None
        self._ends: deque[tuple[int, int]] = deque()

    def __len__(self) -> int:
        return len(self._asked)

    def when(self, then: Callable[[float], None], failed: Callable[[str], None], now: float) -> None:
        """Call `then` as soon as all that stands in the stream now is applied here, or `failed` with why not."""
        if not self._context.options.is_shared:
            then(now)
            return
        self._count += 1
        self._asked.append(_Asked(self._count, self._tail.read_to_end(), now + READ_S, then, failed))

    def has_read(self, number: int | None, now: float) -> None:
        """The tail has come to the end of the stream with this read, or has more to read (0), or cannot (None)."""
        if number is None:
            self.abandon(UNREADABLE)
            return
        while self._asked and self._asked[0].read <= number:
            self._asked.popleft().then(now)
        self._answer_passed(now)
        if not number:
            self._look_for_end()

    def _look_for_end(self) -> None:
        known = self._ends[-1][0] if self._ends else 0
        if self._looking_for is None and self._asked and self._asked[-1].number > known:
            self._looking_for = self._asked[-1].number
            self._context.load_end(self._found_end)

    def _found_end(self, offset: int | None, now: float) -> None:
        """None: it cannot be read now, and is asked for again after the next page."""
        last, self._looking_for = self._looking_for, None
        if last is not None and offset is not None:
            self._ends.append((last, offset))
            self._answer_passed(now)

    def _answer_passed(self, now: float) -> None:
        """The questions for which the stream ended at a place that has been read by now."""
        while self._ends and self._ends[0][1] <= self._tail.offset:
            last, _ = self._ends.popleft()
            while self._asked and self._asked[0].number <= last:
                self._asked.popleft().then(now)

    def abandon(self, why: str) -> None:
        """The stream cannot be read, or the hub is loaded again. Who asks again at once waits for another read."""
        asked, self._asked = self._asked, deque()
        for each in asked:
            each.failed(why)

    def next_deadline(self) -> float | None:
        return self._asked[0].until if self._asked else None

    def on_timer(self, now: float) -> None:
        while self._asked and self._asked[0].until <= now:
            self._asked.popleft().failed(TOO_LATE)
