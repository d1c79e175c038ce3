"""What follows when a handler fails. Rules decide; nobody sleeps and nobody rolls dice here.

    retry(TimeoutError, waits=[0.05, 0.25, 2], jitter=0.2).then("dead_letter")
    on(ValidationError).discard()
    on(ConnectionError).requeue(5).pause(60).then("park")

A rule has one step for each attempt that failed, and an end for the attempt after the last step: every message comes to
an end, however often it fails. The handler's own rules come before the endpoint's, and these before the application's;
among the rules of one of them the one for the most specific class decides.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from semel.errors import ConfigError
from semel.inbox.endpoint import FailedHead
from semel.kernel.retry import Again, Decision, Enough, Failure, PauseThen, Requeue, error_name

STEPS_MAX = 1000


# -- rules


class _Way(StrEnum):
    RETRY = "retry"
    REQUEUE = "requeue"
    SCHEDULE = "schedule"


class FailureEnd(StrEnum):
    """What becomes of a message after its last attempt."""

    DISCARD = "discard"
    DEAD_LETTER = "dead_letter"
    PARK = "park"


@dataclass(frozen=True, slots=True)
class _Step:
    way: _Way
    wait_s: float = 0.0
    jitter: float = 0.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.wait_s) and self.wait_s >= 0):
            raise ConfigError(f"a wait of {self.wait_s} s", fix="use seconds from 0 up")
        if not 0 <= self.jitter <= 1:
            raise ConfigError(f"jitter is {self.jitter}", fix="use a share between 0 and 1")

    def decide(self, now: float, chance: float) -> Again | Requeue:
        """Jitter spreads a wait over the last part of itself: 0.2 waits between 80 % and 100 %."""
        if self.way is _Way.REQUEUE:
            return Requeue()
        return Again(now + self.wait_s * (1 - self.jitter * chance), passes=self.way is _Way.SCHEDULE)


@dataclass(frozen=True, slots=True)
class FailureRule:
    """What follows the failures of some classes. Each method gives a new rule with one thing more said.

    A rule that says neither how to try again nor how to end tries again like the default.
    """

    classes: tuple[str, ...]
    steps: tuple[_Step, ...] = ()
    end: FailureEnd | None = None
    pause_s: float | None = None

    def retry(self, waits: Iterable[float], *, jitter: float = 0.0) -> FailureRule:
        """Try again after each of these seconds. Nothing of its key overtakes it."""
        return self._with(_Step(_Way.RETRY, wait, jitter) for wait in waits)

    def retry_now(self, times: int = 1) -> FailureRule:
        return self._with([_Step(_Way.RETRY)] * _times(times))

    def requeue(self, times: int = 1) -> FailureRule:
        """Try again behind what else is ready."""
        return self._with([_Step(_Way.REQUEUE)] * _times(times))

    def schedule(self, waits: Iterable[float], *, jitter: float = 0.0) -> FailureRule:
        """Try again after each of these seconds, and let those of its key go before."""
        return self._with(_Step(_Way.SCHEDULE, wait, jitter) for wait in waits)

    def pause(self, for_s: float) -> FailureRule:
        """Let the endpoint take nothing for so long, whenever it happens."""
        if not (math.isfinite(for_s) and for_s > 0):
            raise ConfigError(f"a pause of {for_s} s", fix="use seconds above 0")
        return replace(self, pause_s=for_s)

    def discard(self) -> FailureRule:
        return self.then(FailureEnd.DISCARD)

    def dead_letter(self) -> FailureRule:
        return self.then(FailureEnd.DEAD_LETTER)

    def park(self) -> FailureRule:
        return self.then(FailureEnd.PARK)

    def then(self, end: str) -> FailureRule:
        """How it ends after the last step: "dead_letter" (the default), "discard" or "park"."""
        try:
            return replace(self, end=FailureEnd(end))
        except ValueError:
            choices = ", ".join(repr(each.value) for each in FailureEnd)
            raise ConfigError(f"a failed message cannot end with {end!r}", fix=f"use one of {choices}") from None

    def _with(self, steps: Iterable[_Step]) -> FailureRule:
        longer = (*self.steps, *steps)
        if len(longer) > STEPS_MAX:
            raise ConfigError(f"a rule with {len(longer)} steps", fix=f"use at most {STEPS_MAX}, with longer waits")
        return replace(self, steps=longer)


def check_rules(rules: Iterable[FailureRule]) -> tuple[FailureRule, ...]:
    """The rules of one place, if they are rules."""
    found = tuple(rules)
    for each in found:
        if not isinstance(each, FailureRule):
            raise ConfigError(
                f"{each!r} is not a rule for failures", fix="give rules one by one: app.errors(on(TimeoutError).park())"
            )
    return found


def _times(times: int) -> int:
    if not 1 <= times <= STEPS_MAX:
        raise ConfigError(f"{times} times", fix=f"use a number from 1 to {STEPS_MAX}")
    return times


def on(*errors: type[BaseException] | str) -> FailureRule:
    """Begin a rule for these exceptions and what is derived from them: classes, or their qualified names."""
    if not errors:
        raise ConfigError("a rule for no exception", fix="name the classes: on(TimeoutError)")
    return FailureRule(tuple(_name_of(error) for error in errors))


def retry(*errors: type[BaseException] | str, waits: Iterable[float], jitter: float = 0.0) -> FailureRule:
    """A rule that tries again after each of these seconds; `then` says how it ends."""
    return on(*errors).retry(waits, jitter=jitter)


def _name_of(error: object) -> str:
    if isinstance(error, type) and issubclass(error, BaseException):
        return error_name(error)
    if isinstance(error, str) and error:
        return error
    raise ConfigError(
        f"{error!r} is not a class of exceptions", fix='give the class, or its qualified name: "package.module.Name"'
    )


def exponential(first_s: float, times: int, *, factor: float = 2.0, max_s: float = 60.0) -> tuple[float, ...]:
    """So many waits, each longer than the one before by `factor`, up to `max_s`."""
    if factor < 1:
        raise ConfigError(f"factor is {factor}", fix="use 1 for equal waits, 2 to double each")
    # past 64 doublings every wait is at its maximum, and the power would overflow
    return tuple(min(max_s, first_s * factor ** min(at, 64)) for at in range(_times(times)))


ATTEMPTS = 3
DEFAULT_RULE = retry(BaseException, waits=exponential(1.0, ATTEMPTS - 1, factor=4.0), jitter=0.2).dead_letter()


# -- the policy


@dataclass(frozen=True, slots=True)
class FailureRules:
    """The rules that hold for one handler at one endpoint, and what one that failed for good does to its key."""

    handler: tuple[FailureRule, ...] = ()
    endpoint: tuple[FailureRule, ...] = ()
    app: tuple[FailureRule, ...] = ()
    default: FailureRule = DEFAULT_RULE
    failed_head: FailedHead = FailedHead.BLOCKS

    def __post_init__(self) -> None:
        for level in (self.handler, self.endpoint, self.app):
            _check_once(level)

    @property
    def attempts_max(self) -> int:
        """After so many attempts no rule tries again: a row that has had more must not be handed out."""
        return 1 + max(len(self._steps(rule)) for rule in (*self.handler, *self.endpoint, *self.app, self.default))

    def rule_for(self, failure: Failure) -> FailureRule:
        for level in (self.handler, self.endpoint, self.app):
            if (rule := _most_specific(level, failure)) is not None:
                return rule
        return self.default

    def decide(self, failure: Failure, attempt: int, now: float, chance: float) -> Decision:
        """What follows attempt number `attempt` (the first is 1), which failed. `chance` is a number in [0, 1)."""
        assert attempt >= 1, "attempts are counted from 1"
        rule = self.rule_for(failure)
        decision = self._next(rule, attempt, now, chance)
        return decision if rule.pause_s is None else PauseThen(rule.pause_s, decision)

    def _next(self, rule: FailureRule, attempt: int, now: float, chance: float) -> Again | Requeue | Enough:
        steps = self._steps(rule)
        if attempt <= len(steps):
            return steps[attempt - 1].decide(now, chance)
        end = rule.end or self.default.end or FailureEnd.DEAD_LETTER
        blocks = end is not FailureEnd.DISCARD and self.failed_head is FailedHead.BLOCKS
        return Enough(end.value, holds=blocks)

    def _steps(self, rule: FailureRule) -> tuple[_Step, ...]:
        return self.default.steps if not rule.steps and rule.end is None else rule.steps


def _most_specific(rules: Sequence[FailureRule], failure: Failure) -> FailureRule | None:
    by_class = {name: rule for rule in rules for name in rule.classes}
    return next((by_class[name] for name in failure.types if name in by_class), None)


def _check_once(rules: Sequence[FailureRule]) -> None:
    seen: set[str] = set()
    for name in (name for rule in rules for name in rule.classes):
        if name in seen:
            raise ConfigError(f"two rules for {name} in one place", fix="join them into one rule")
        seen.add(name)
