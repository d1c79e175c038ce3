"""Retry decisions. A policy says when to try again or that enough is enough; it never sleeps and never rolls dice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from semel.errors import ConfigError

GiveUp = Literal["suspend", "dead_letter", "discard", "park"]


@dataclass(frozen=True, slots=True)
class Again:
    """Try again at this time."""

    at: float


@dataclass(frozen=True, slots=True)
class Enough:
    """Do not try again; `then` says what becomes of the message."""

    then: GiveUp


Decision = Again | Enough


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """`retries` more attempts after the first one, `interval_s` apart, growing by `factor` up to `interval_max_s`.

    `jitter` spreads each wait over the last part of itself: 0.2 waits between 80 % and 100 %. `retries` None never
    gives up. A policy with `factor` 1 and `jitter` 0 is the fixed interval that ebXML asks for.
    """

    retries: int | None = None
    interval_s: float = 1.0
    factor: float = 1.0
    interval_max_s: float = 60.0
    jitter: float = 0.0
    then: GiveUp = "suspend"

    def __post_init__(self) -> None:
        if self.retries is not None and self.retries < 0:
            raise ConfigError(f"retries is {self.retries}", fix="use 0 or more, or None for no limit")
        if self.interval_s < 0 or self.interval_max_s < self.interval_s:
            raise ConfigError(
                f"interval {self.interval_s} s does not fit under its maximum {self.interval_max_s} s",
                fix="use 0 <= interval_s <= interval_max_s",
            )
        if self.factor < 1:
            raise ConfigError(f"factor is {self.factor}", fix="use 1 for a fixed interval, 2 to double it each time")
        if not 0 <= self.jitter <= 1:
            raise ConfigError(f"jitter is {self.jitter}", fix="use a share between 0 and 1")

    def wait_s(self, attempt: int, chance: float) -> float:
        """How long to wait after attempt number `attempt` (the first is 1). `chance` is a number in [0, 1)."""
        # past 64 doublings every interval is at its maximum, and the power would overflow
        grown = min(self.interval_max_s, self.interval_s * self.factor ** min(attempt - 1, 64))
        return grown * (1 - self.jitter * chance)

    def decide(self, attempt: int, now: float, chance: float) -> Decision:
        """What follows attempt number `attempt`, which has just failed or timed out."""
        if self.retries is not None and attempt > self.retries:
            return Enough(self.then)
        return Again(now + self.wait_s(attempt, chance))
