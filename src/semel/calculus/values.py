"""What the elements calculate with: numbers, jets, and values that know whether a message is decided.

The elements only add, subtract and multiply, so one definition serves a float (a probability), a complex number (a
point of the circle from which the whole distribution is read), a `Jet` (mean and variance) and a `TwoState`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeAlias

from semel.calculus.jet import Jet

Value: TypeAlias = Any  # a float, a complex number, a Jet, or a TwoState of these: whatever adds and multiplies

# A jet whose value is this near to 1 is 1: it has been rounded on its way through a long path.
_ROUNDING = 4e-16


@dataclass(frozen=True, slots=True)
class TwoState:
    """The two-by-two table of a memory that is open and may become settled, but never the other way round.

        open -> open      `stays`        open -> settled   `settles`
        settled -> open   never          settled -> settled   `settled`

    Tables multiply in the order in which things happen. A plain number stands for that multiple of "nothing changes".
    """

    stays: Value
    settles: Value
    settled: Value

    def from_open(self) -> Value:
        """All that can become of an open one."""
        return self.stays + self.settles

    def __add__(self, other: Value) -> TwoState:
        if isinstance(other, TwoState):
            return TwoState(self.stays + other.stays, self.settles + other.settles, self.settled + other.settled)
        return TwoState(self.stays + other, self.settles, self.settled + other)

    __radd__ = __add__

    def __sub__(self, other: Value) -> TwoState:
        if isinstance(other, TwoState):
            return TwoState(self.stays - other.stays, self.settles - other.settles, self.settled - other.settled)
        return TwoState(self.stays - other, self.settles, self.settled - other)

    def __mul__(self, other: Value) -> TwoState:
        if isinstance(other, TwoState):
            return TwoState(
                self.stays * other.stays,
                self.stays * other.settles + self.settles * other.settled,
                self.settled * other.settled,
            )
        return TwoState(self.stays * other, self.settles * other, self.settled * other)

    def __rmul__(self, other: Value) -> TwoState:
        return TwoState(other * self.stays, other * self.settles, other * self.settled)


def powers(base: Value, count: int) -> tuple[Value, Value]:
    """base^count, and 1 + base + ... + base^(count-1): without a division, so base = 1 is no special case."""
    power: Value = 1.0
    total: Value = 0.0
    for bit in bin(count)[2:]:
        total = total + power * total
        power = power * power
        if bit == "1":
            total = total + power
            power = power * base
    return power, total


def _is_one(value: Value) -> bool:
    return abs(1 - value.value) <= _ROUNDING if isinstance(value, Jet) else bool(value == 1)


def power_for_ever(base: Value) -> Value:
    """The limit of base^n: what is left of a sender that is never confirmed. 0 for any base below 1."""
    if isinstance(base, TwoState):
        settled = power_for_ever(base.settled)
        return TwoState(power_for_ever(base.stays), sum_for_ever(base.stays, base.settles * settled), settled)
    if not _is_one(base):
        return 0.0
    if isinstance(base, Jet) and (base.first, base.second) != (0, 0):
        return Jet(1.0, math.inf, math.inf)
    return 1.0


def sum_for_ever(base: Value, last: Value) -> Value:
    """(1 + base + base^2 + ...) * last: any number of attempts, then the last one. 0 where there is no last one."""
    if isinstance(base, TwoState):
        table = last if isinstance(last, TwoState) else TwoState(last, 0.0, last)
        settled = sum_for_ever(base.settled, table.settled)
        return TwoState(
            sum_for_ever(base.stays, table.stays),
            sum_for_ever(base.stays, table.settles + base.settles * settled),
            settled,
        )
    if _is_one(base):
        return 0.0
    if isinstance(last, TwoState):
        return (1 / (1 - base)) * last
    return last / (1 - base)
