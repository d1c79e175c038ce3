"""Delivery modes: reliability R and uniqueness UR, as they are calculated and as they are counted.

Of S messages sent, Ru arrived at least once, in Rt copies. R = Ru / S, UR = Ru / Rt. Both 1: exactly once.

A count can never show that R is 1, only that it is above some bound, so counts are judged by intervals.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from enum import Enum

from semel.calculus import checks
from semel.errors import InputError

Interval = tuple[float, float]

Z_95 = 1.96


class Mode(Enum):
    UNRELIABLE = "unreliable"
    AT_MOST_ONCE = "at most once"
    AT_LEAST_ONCE = "at least once"
    EXACTLY_ONCE = "exactly once"

    @classmethod
    def of(cls, none_lost: bool, none_twice: bool) -> Mode:
        if none_lost:
            return cls.EXACTLY_ONCE if none_twice else cls.AT_LEAST_ONCE
        return cls.AT_MOST_ONCE if none_twice else cls.UNRELIABLE


@dataclass(frozen=True, slots=True)
class DeliveryMode:
    """{R, UR}, as the result of a calculation."""

    reliability: float
    uniqueness: float

    def __post_init__(self) -> None:
        checks.probability("reliability", self.reliability)
        checks.probability("uniqueness", self.uniqueness)

    def mode(self, tolerance: float = 0.0) -> Mode:
        """The mode, where what is within `tolerance` of 1 counts as 1."""
        least = 1 - tolerance
        return Mode.of(self.reliability >= least, self.uniqueness >= least)

    def tends_to(self, tolerance: float) -> str:
        """The mode in words: "tends to ..." where it is reached only within `tolerance`."""
        mode = self.mode(tolerance)
        return mode.value if mode is self.mode() else f"tends to {mode.value}"

    def __mul__(self, other: DeliveryMode) -> DeliveryMode:
        """The product rule for deliveries in series. It is a lower bound of both figures.

        It is exact when the first delivery makes no duplicates or the second loses nothing. Otherwise a duplicate
        of the first is a second chance in the second, and both figures are better by the same factor. It does not
        hold for cascade confirmation, where what happens in the second makes the first send again.
        """
        return DeliveryMode(self.reliability * other.reliability, self.uniqueness * other.uniqueness)


@dataclass(frozen=True, slots=True)
class ModeVerdict:
    """What counts show. `mode` is None when there are too few messages to tell; `words` says it for people."""

    mode: Mode | None
    words: str
    reliability: Interval
    uniqueness: Interval


@dataclass(frozen=True, slots=True)
class MessageCounts:
    """`sent` messages, `unique` of them received at least once, `received` copies in all.

    Count when nothing is under way any more: a message in flight looks like a lost one. `squares` is the sum over
    all messages of (copies received)^2; with it the interval of UR is exact, without it the worst case is taken.
    """

    sent: int
    unique: int
    received: int
    squares: int | None = None

    def __post_init__(self) -> None:
        for name, value in (("sent", self.sent), ("unique", self.unique), ("received", self.received)):
            checks.whole(name, value, 0)
        if self.unique > self.sent:
            raise InputError(
                f"{self.unique} unique messages were received, but only {self.sent} were sent",
                fix="leave ids that nobody sent out of the count; `MessageCounts.of` does so",
            )
        if self.unique > self.received or (self.received > 0 and self.unique == 0):
            raise InputError(
                f"{self.received} copies of {self.unique} unique messages cannot be",
                fix="count every copy of a message that was sent, the first one too",
            )
        if self.squares is not None and not self._squares_least() <= self.squares <= self._squares_most():
            raise InputError(
                f"the sum of squared copies is {self.squares}, which does not fit {self.received} copies",
                fix="add up the square of the number of copies of each message",
            )

    @classmethod
    def of(cls, sent: Iterable[Hashable], received: Iterable[Hashable]) -> MessageCounts:
        """From the ids at both ends. A resend keeps its id, and an id that was not sent does not count."""
        ids = set(sent)
        copies = Counter(id for id in received if id in ids)
        return cls(len(ids), len(copies), copies.total(), sum(count**2 for count in copies.values()))

    def _squares_least(self) -> int:
        if not self.unique:
            return 0
        each, more = divmod(self.received, self.unique)
        return more * (each + 1) ** 2 + (self.unique - more) * each**2

    def _squares_most(self) -> int:
        return (self.received - self.unique + 1) ** 2 + self.unique - 1 if self.unique else 0

    @property
    def undefined(self) -> str:
        """Which figure has no value, and why. Empty when both have one."""
        if not self.sent:
            return "R and UR are undefined: nothing was sent"
        return "" if self.received else "UR is undefined: nothing was received"

    @property
    def reliability(self) -> float | None:
        return self.unique / self.sent if self.sent else None

    @property
    def uniqueness(self) -> float | None:
        return self.unique / self.received if self.received else None

    @property
    def duplication_rate(self) -> float | None:
        """Copies per message that arrived: 2 means twice on average, not that every message came twice."""
        return self.received / self.unique if self.unique else None

    def reliability_interval(self, z: float = Z_95) -> Interval:
        """Wilson's interval for R; (0, 1) when nothing was sent."""
        return _wilson(self.unique, self.sent, z)

    def uniqueness_interval(self, sum_of_squares: int | None = None, z: float = Z_95) -> Interval:
        """The interval of UR, a ratio of two means, by the delta method; (0, 1) when nothing was received.

        Its variance is (UR^2 * sum of squares - unique) / received^2. That is 0 when there was no duplicate at all,
        which proves little, so then it is Wilson's interval over the copies.
        """
        if not self.received:
            return 0.0, 1.0
        if self.received == self.unique:
            return _wilson(self.unique, self.received, z)
        squares = sum_of_squares if sum_of_squares is not None else self.squares
        ratio = self.unique / self.received
        spread = ratio**2 * (self._squares_most() if squares is None else squares) - self.unique
        half = z * math.sqrt(max(0.0, spread)) / self.received
        return max(0.0, ratio - half), min(1.0, ratio + half)

    def verdict(self, tolerance: float, z: float = Z_95, sum_of_squares: int | None = None) -> ModeVerdict:
        """The mode that these counts show, where "1" means at least 1 - `tolerance`.

        A figure reaches 1 when its whole interval does, falls short when its whole interval does, and is undecided
        in between: more messages are needed.
        """
        checks.probability("tolerance", tolerance)
        reliability, uniqueness = self.reliability_interval(z), self.uniqueness_interval(sum_of_squares, z)
        none_lost, none_twice = _reaches(reliability, 1 - tolerance), _reaches(uniqueness, 1 - tolerance)
        if self.undefined or none_lost is None or none_twice is None:
            words = self.undefined or "undecided: too few messages for this tolerance"
            return ModeVerdict(None, words, reliability, uniqueness)
        mode = Mode.of(none_lost, none_twice)
        words = mode.value if mode is Mode.UNRELIABLE else f"tends to {mode.value}"
        return ModeVerdict(mode, words, reliability, uniqueness)


def _wilson(hits: int, trials: int, z: float) -> Interval:
    checks.positive("z", z)
    if not trials:
        return 0.0, 1.0
    share, square = hits / trials, z * z
    middle = (share + square / (2 * trials)) / (1 + square / trials)
    half = z / (1 + square / trials) * math.sqrt(share * (1 - share) / trials + square / (4 * trials**2))
    low = 0.0 if hits == 0 else max(0.0, middle - half)
    return low, 1.0 if hits == trials else min(1.0, middle + half)


def _reaches(interval: Interval, least: float) -> bool | None:
    low, high = interval
    if low >= least:
        return True
    return False if high < least else None


def sample_size(reliability: float, confidence: float = 0.95, lost: int = 0) -> int:
    """How many messages must be sent, of which `lost` or fewer are lost, to show R >= `reliability`.

    Exact (binomial): at this size, a path with R just below `reliability` would pass with a chance of no more than
    1 - `confidence`. With none lost it is ln(1 - confidence) / ln(reliability), near 3 / (1 - reliability) at 95 %.
    """
    checks.whole("lost", lost, 0)
    if not (0 < reliability < 1 and 0 < confidence < 1):
        raise InputError(
            f"no number of messages shows R >= {reliability} with a confidence of {confidence}",
            fix="give both a value between 0 and 1, such as 0.999 and 0.95",
        )
    low, high = lost, lost + 1
    while _at_most(lost, high, 1 - reliability) > 1 - confidence:
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _at_most(lost, middle, 1 - reliability) > 1 - confidence else (low, middle)
    return high


def _at_most(lost: int, trials: int, loss: float) -> float:
    """P(no more than `lost` of `trials` are lost). In logarithms, since the terms may be far below any float."""
    keep, drop = math.log1p(-loss), math.log(loss)
    choose = [math.lgamma(trials + 1) - math.lgamma(k + 1) - math.lgamma(trials - k + 1) for k in range(lost + 1)]
    return math.fsum(math.exp(c + k * drop + (trials - k) * keep) for k, c in enumerate(choose))
