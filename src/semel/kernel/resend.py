"""The sending end of a reliable hop: send, wait for the confirm, send the same thing again.

The id stays the same on every attempt and a confirm is accepted for whichever attempt it answers, however late. With
a new id per attempt, or with only the newest attempt's confirm accepted, a link whose round trip exceeds the timeout
never makes progress and doubles for ever.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import msgspec

from semel.errors import ConfigError, LocalProtocolError
from semel.kernel.ledger import hash_id
from semel.kernel.retry import Again, RetryPolicy

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ResendPolicy:
    """`window` unconfirmed items at most: 1 is stop-and-wait. The first attempt waits `timeout_s` for its confirm, each
    later one waits as `retry` says. When the retries are used up, everything stops until an operator resumes; only with
    `then="discard"` is the one item given up and the others go on."""

    window: int = 1
    timeout_s: float = 5.0
    retry: RetryPolicy = field(default_factory=RetryPolicy)

    def __post_init__(self) -> None:
        if self.window < 1:
            raise ConfigError(f"window is {self.window}", fix="use 1 for stop-and-wait, more for a pipeline")
        if self.timeout_s <= 0:
            raise ConfigError(f"timeout is {self.timeout_s} s", fix="use a positive time")


class Transmit(msgspec.Struct, Generic[T], frozen=True):
    """Put this item on the wire now. `attempt` counts from 1."""

    id: str
    item: T
    attempt: int


@dataclass(frozen=True, slots=True)
class GaveUp:
    """The item went unconfirmed through all its attempts: the sender is suspended, or the item discarded."""

    id: str
    attempts: int
    item: object = field(default=None, compare=False)


class _Flight(msgspec.Struct, Generic[T], eq=False):
    item: T
    attempt: int
    deadline: float


class Resend(Generic[T]):
    """Items go out in the order in which they were offered and stay in that order, whatever times out."""

    def __init__(self, policy: ResendPolicy, *, seed: int = 0) -> None:
        self.policy = policy
        self.seed = seed
        self.suspended: GaveUp | None = None
        self._flights: dict[str, _Flight[T]] = {}
        self._queue: OrderedDict[str, T] = OrderedDict()
        self._deadlines: list[tuple[float, int, str, int]] = []
        self._order = 0

    def __len__(self) -> int:
        return len(self._flights) + len(self._queue)

    def __contains__(self, id: str) -> bool:
        return id in self._flights or id in self._queue

    @property
    def room(self) -> int:
        """How many more items would go out at once."""
        return max(0, self.policy.window - len(self))

    def unconfirmed(self) -> Iterator[str]:
        yield from self._flights
        yield from self._queue

    def offer(self, id: str, item: T, now: float) -> list[Transmit[T]]:
        if id in self._flights or id in self._queue:
            raise LocalProtocolError(f"{id!r} is already on its way", fix="offer each item once; resends are ours")
        self._queue[id] = item
        return self._fill(now)

    def confirm(self, id: str, now: float) -> tuple[bool, list[Transmit[T]]]:
        """Whether this is the first confirm of the item, and what may go out in the room that it makes."""
        if self._flights.pop(id, None) is None:
            return False, []
        return True, self._fill(now)

    def confirm_all(self, ids: Iterable[str]) -> list[T]:
        """The items that are confirmed for the first time. `fill` says what may go out in the room that they make."""
        flights = (self._flights.pop(id, None) for id in ids)
        return [flight.item for flight in flights if flight is not None]

    def fill(self, now: float) -> list[Transmit[T]]:
        """What goes out in the room that there is."""
        return self._fill(now)

    def next_deadline(self) -> float | None:
        self._drop_settled()
        return self._deadlines[0][0] if self._deadlines and self.suspended is None else None

    def on_timer(self, now: float) -> list[Transmit[T] | GaveUp]:
        """Send again what is overdue, in offer order. One item that is out of attempts suspends all, unless it is to
        be discarded."""
        due: list[str] = []
        self._drop_settled()
        while self.suspended is None and self._deadlines and self._deadlines[0][0] <= now:
            due.append(heapq.heappop(self._deadlines)[2])
            self._drop_settled()
        # deadlines come up by time; the promise is offer order, which is the order of `_flights`
        overdue = [id for id in self._flights if id in set(due)] if len(due) > 1 else due
        effects: list[Transmit[T] | GaveUp] = []
        for id in overdue:
            effect = self._again(id, now)
            effects.append(effect)
            if self.suspended is not None:
                break
        return effects + self._fill(now) if len(self._flights) < self.policy.window else effects

    def resume(self, now: float) -> list[Transmit[T]]:
        """An operator's decision: every unconfirmed item is sent again, in order, and its attempts count from 1."""
        self.suspended = None
        return self.resend_all(now, reset=True) + self._fill(now)

    def resend_all(self, now: float, *, reset: bool = False) -> list[Transmit[T]]:
        """After a reconnect: what was in flight on the old connection goes out again at once, in order."""
        return self.resend(list(self._flights), now, reset=reset)

    def resend(self, ids: Iterable[str], now: float, *, reset: bool = False) -> list[Transmit[T]]:
        """These, if they are in flight, at once and in the order given. `reset`: their attempts count from 1."""
        if self.suspended is not None:
            return []
        effects = []
        for id in ids:
            flight = self._flights.get(id)
            if flight is None:
                continue
            flight.attempt = 1 if reset else flight.attempt + 1
            self._arm(id, flight, now)
            effects.append(Transmit(id, flight.item, flight.attempt))
        return effects

    def _fill(self, now: float) -> list[Transmit[T]]:
        effects = []
        while self._queue and self.suspended is None and len(self._flights) < self.policy.window:
            id, item = self._queue.popitem(last=False)
            assert id not in self._flights, "offer() lets an id in once"
            flight = _Flight(item, 1, 0.0)
            self._flights[id] = flight
            self._arm(id, flight, now)
            effects.append(Transmit(id, item, 1))
        return effects

    def _again(self, id: str, now: float) -> Transmit[T] | GaveUp:
        flight = self._flights[id]
        if not isinstance(self.policy.retry.decide(flight.attempt, now, 0.0), Again):
            return self._give_up(id, flight)
        flight.attempt += 1
        self._arm(id, flight, now)
        return Transmit(id, flight.item, flight.attempt)

    def _give_up(self, id: str, flight: _Flight[T]) -> GaveUp:
        gave_up = GaveUp(id, flight.attempt, flight.item)
        if self.policy.retry.then == "discard":
            del self._flights[id]
        else:
            # the item stays in flight: a late confirm still settles it, and a resume sends it again in its place
            self.suspended = gave_up
        return gave_up

    def _arm(self, id: str, flight: _Flight[T], now: float) -> None:
        if flight.attempt == 1:
            wait_s = self.policy.timeout_s
        else:
            wait_s = self.policy.retry.wait_s(flight.attempt - 1, self._chance(id, flight.attempt))
        flight.deadline = now + wait_s
        self._order += 1  # ties are broken by age: ids need not be comparable in a sensible way
        heapq.heappush(self._deadlines, (flight.deadline, self._order, id, flight.attempt))

    def _chance(self, id: str, attempt: int) -> float:
        """Jitter without dice: spread over senders by the seed, the same for the same attempt in every run."""
        if self.policy.retry.jitter == 0:
            return 0.0
        return (hash_id(f"{self.seed}/{id}/{attempt}") % 2**32) / 2**32

    def _drop_settled(self) -> None:
        """The heap keeps entries of confirmed items until they come up; that costs less than searching for them."""
        while self._deadlines:
            deadline, _, id, attempt = self._deadlines[0]
            flight = self._flights.get(id)
            if flight is not None and flight.attempt == attempt and flight.deadline == deadline:
                return
            heapq.heappop(self._deadlines)
