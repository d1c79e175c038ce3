"""Plain numbers that an application keeps while messages pass. Who asks for metrics reads them."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from semel.errors import DuplicateMessage
from semel.inbox.settle import RowFate, Settlement
from semel.kernel.ops import WorkRow
from semel.kernel.retry import Again, Decision, Enough, Failure, FailurePolicy, PauseThen, Requeue
from semel.kernel.work import WORKER_DIED
from semel.runtime.host.performer import CommitTimes


class MessageCount(StrEnum):
    """What is counted, as the metrics are named after it."""

    STORED = "stored"
    BUFFERED = "buffered"
    DUPLICATES = "duplicates"
    UNREADABLE = "unreadable"
    HANDLED = "handled"
    FAILED = "failed"
    RETRIED = "retried"
    DEAD_LETTERED = "dead_lettered"
    PARKED = "parked"
    DISCARDED = "discarded"


_ENDS = {"dead_letter": MessageCount.DEAD_LETTERED, "park": MessageCount.PARKED, "discard": MessageCount.DISCARDED}
_FATES = {
    RowFate.DEAD: MessageCount.DEAD_LETTERED,
    RowFate.PARKED: MessageCount.PARKED,
    RowFate.SCHEDULED: MessageCount.RETRIED,
}


class EndpointCounts:
    """The counts of one endpoint, or of the outbox, in this process. Handlers end on any thread, so every step is under
    a lock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[MessageCount] = Counter()
        self._times = CommitTimes()

    def add(self, what: MessageCount, count: int = 1) -> None:
        if count:
            with self._lock:
                self._counts[what] += count

    def took(self, seconds: float) -> None:
        with self._lock:
            self._times.add(seconds, 1)

    def ran(self, error: BaseException | None) -> None:
        """A handler has ended; a duplicate that it found is no failure."""
        if error is None:
            self.add(MessageCount.HANDLED)
        else:
            self.add(MessageCount.DUPLICATES if isinstance(error, DuplicateMessage) else MessageCount.FAILED)

    def settled(self, settled: Settlement) -> None:
        """A delivery at an inline or buffered endpoint has ended."""
        if (what := _FATES.get(settled.row)) is not None:
            self.add(what)

    def decided(self, failure: Failure, decision: Decision) -> None:
        """What follows a failure. That a worker died is only decided upon when that is the end of the message."""
        then = decision.then if isinstance(decision, PauseThen) else decision
        if isinstance(then, Enough):
            self.add(_ENDS.get(then.then, MessageCount.PARKED))
        elif isinstance(then, Again | Requeue) and failure.types != WORKER_DIED:
            self.add(MessageCount.RETRIED)

    def read(self) -> tuple[Mapping[MessageCount, int], list[tuple[float, int]], float]:
        """The counts, how many runs took at most so long for each limit, and how long all of them took."""
        with self._lock:
            return dict(self._counts), list(self._times.up_to()), self._times.sum_s


@dataclass(frozen=True, slots=True)
class CountedPolicy:
    """Counts what a policy decides."""

    policy: FailurePolicy
    counts: EndpointCounts

    def last_attempt(self, row: WorkRow) -> int | None:
        return self.policy.last_attempt(row)

    def decide(self, failure: Failure, row: WorkRow, attempt: int, now: float, chance: float) -> Decision:
        decision = self.policy.decide(failure, row, attempt, now, chance)
        self.counts.decided(failure, decision)
        return decision


class RelayCounts:
    """What the relay has sent, by the kind of destination."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sent: Counter[str] = Counter()
        self._failed: Counter[str] = Counter()

    def ended(self, kind: str, *, is_sent: bool) -> None:
        with self._lock:
            (self._sent if is_sent else self._failed)[kind] += 1

    def read(self) -> tuple[Mapping[str, int], Mapping[str, int]]:
        with self._lock:
            return dict(self._sent), dict(self._failed)
