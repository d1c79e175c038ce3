"""A circuit breaker for an endpoint: when too much fails, it takes nothing for a while, then one to try.

    closed    all goes on; failures are counted over a window
    open      nothing is taken until the pause is over; what is stored stays stored
    trying    one message at a time: if it succeeds the breaker closes, if it fails it opens again

It decides only what is taken from the store, never what is stored or acked: a message that arrives while it is open is
as claimable as any other.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum

from semel.errors import ConfigError

SLICES = 20
"""The window moves in so many steps: its memory does not grow with the traffic."""


class BreakerState(Enum):
    CLOSED = "closed"
    OPEN = "open"
    TRYING = "trying"


@dataclass(frozen=True, slots=True)
class BreakerOptions:
    """It opens when at least `minimum` messages ended within the window and `share` of them failed."""

    window_s: float = 600.0
    minimum: int = 10
    share: float = 0.15
    pause_s: float = 300.0

    def __post_init__(self) -> None:
        if self.window_s <= 0 or self.pause_s <= 0:
            raise ConfigError(
                f"a breaker with window {self.window_s} s and pause {self.pause_s} s", fix="use seconds above 0"
            )
        if self.minimum < 1:
            raise ConfigError(f"the breaker's minimum is {self.minimum}", fix="use 1 or more messages")
        if not 0 < self.share <= 1:
            raise ConfigError(f"the breaker's share is {self.share}", fix="use a share above 0, up to 1")


@dataclass(slots=True)
class _Slice:
    begin: float
    total: int = 0
    failed: int = 0


class Breaker:
    """Each message that is begun gets the number of the breaker's turn, and its end is reported with it: an end that
    belongs to an earlier turn says nothing about this one."""

    def __init__(self, options: BreakerOptions) -> None:
        self.options = options
        self._turn = 1
        self._state = BreakerState.CLOSED
        self._open_until: float | None = None
        self._is_trying = False
        self._window: deque[_Slice] = deque()

    def state(self, now: float) -> BreakerState:
        if self._state is BreakerState.OPEN and self._open_until is not None and now >= self._open_until:
            return BreakerState.TRYING
        return self._state

    def next_deadline(self) -> float | None:
        """When the pause is over, if it is open."""
        return self._open_until if self._state is BreakerState.OPEN else None

    def room(self, now: float, asked: int) -> int:
        """How many messages may be taken now, of so many that somebody has room for."""
        state = self.state(now)
        if state is BreakerState.CLOSED:
            return asked
        return min(asked, 1) if state is BreakerState.TRYING and not self._is_trying else 0

    def began(self, now: float) -> int:
        """A message goes to its handler: report its end with the turn that is returned."""
        if self._state is BreakerState.OPEN and self.state(now) is BreakerState.TRYING:
            self._change(BreakerState.TRYING)
        if self._state is BreakerState.TRYING:
            self._is_trying = True
        return self._turn

    def succeeded(self, turn: int, now: float) -> None:
        if turn != self._turn:
            return
        if self._state is BreakerState.TRYING:
            self._change(BreakerState.CLOSED)
        elif self._state is BreakerState.CLOSED:
            self._count(now, failed=0)

    def failed(self, turn: int, now: float) -> bool:
        """True if the breaker opened by it."""
        if turn != self._turn:
            return False
        if self._state is BreakerState.CLOSED:
            self._count(now, failed=1)
        if self._state is BreakerState.TRYING or self._is_too_much():
            self._change(BreakerState.OPEN)
            self._open_until = now + self.options.pause_s
            return True
        return False

    def released(self, turn: int) -> None:
        """A message was given back without an end: it says nothing, and another may be tried."""
        if turn == self._turn:
            self._is_trying = False

    def _change(self, to: BreakerState) -> None:
        self._turn += 1
        self._state = to
        self._open_until = None
        self._is_trying = False
        self._window.clear()

    def _count(self, now: float, failed: int) -> None:
        window, step = self._window, self.options.window_s / SLICES
        if not window or now >= window[-1].begin + step:
            window.append(_Slice(now))
        while window[0].begin <= now - self.options.window_s:
            window.popleft()
        window[-1].total += 1
        window[-1].failed += failed

    def _is_too_much(self) -> bool:
        total = sum(each.total for each in self._window)
        failed = sum(each.failed for each in self._window)
        return total >= self.options.minimum and failed >= self.options.share * total
