"""Retry decisions. A policy says when to try again or that enough is enough; it never sleeps and never rolls dice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from semel.errors import ConfigError
from semel.kernel.ops import WorkRow

GiveUp = Literal["suspend", "dead_letter", "discard", "park"]


@dataclass(frozen=True, slots=True)
class Again:
    """Try again at this time. Until then a work row keeps its key from those behind it, unless it lets them `pass`."""

    at: float
    passes: bool = False


@dataclass(frozen=True, slots=True)
class Enough:
    """Do not try again; `then` says what becomes of the message. One that `holds` keeps its key from those behind it,
    also when it is dead or parked."""

    then: GiveUp
    holds: bool = False


@dataclass(frozen=True, slots=True)
class Requeue:
    """Try again at the end of the queue: everything that is due now comes first, of its own key too."""


@dataclass(frozen=True, slots=True)
class Release:
    """Let go of it as if it had never been claimed: the attempt does not count."""


@dataclass(frozen=True, slots=True)
class PauseThen:
    """Take nothing new for so long; the message itself goes the way of `then`."""

    for_s: float
    then: Again | Enough | Requeue | Release


Decision = Again | Enough | Requeue | Release | PauseThen


@dataclass(frozen=True, slots=True)
class Failure:
    """What went wrong: in words, and as the names of the exception's class and of those that it derives from, the most
    specific first. Without names nobody knows the class."""

    text: str
    types: tuple[str, ...] = ()


class FailurePolicy(Protocol):
    """Decides by what went wrong with which row, where a `RetryPolicy` decides alike for all failures."""

    def last_attempt(self, row: WorkRow) -> int | None:
        """After so many attempts nothing is tried again, whatever the failure; None if there is no such number."""
        ...

    def decide(self, failure: Failure, row: WorkRow, attempt: int, now: float, chance: float) -> Decision:
        """What follows attempt number `attempt` (the first is 1), which failed. `chance` is a number in [0, 1)."""
        ...


def type_names(kind: type[BaseException]) -> tuple[str, ...]:
    """The names for `Failure.types`. Those of Python itself stand without a module, as in a traceback."""
    return tuple(error_name(each) for each in kind.__mro__ if issubclass(each, BaseException))


def error_name(kind: type[BaseException]) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


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

    @property
    def last_attempt(self) -> int | None:
        return None if self.retries is None else self.retries + 1

    def decide(self, attempt: int, now: float, chance: float) -> Again | Enough:
        """What follows attempt number `attempt`, which has just failed or timed out."""
        if self.retries is not None and attempt > self.retries:
            return Enough(self.then)
        return Again(now + self.wait_s(attempt, chance))


@dataclass(frozen=True, slots=True)
class AnyFailure:
    """A `RetryPolicy` where a `FailurePolicy` is asked for."""

    retry: RetryPolicy

    def last_attempt(self, row: WorkRow) -> int | None:
        return self.retry.last_attempt

    def decide(self, failure: Failure, row: WorkRow, attempt: int, now: float, chance: float) -> Decision:
        return self.retry.decide(attempt, now, chance)
