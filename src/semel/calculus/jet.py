"""A value with its first and second derivative, so that one definition of a path gives its moments too.

For a generating function G, `G(Jet(1, 1, 0))` is G(1), G'(1) and G''(1): from these come the mean number of copies
and its variance, without a formula of their own for every kind of path.

A derivative may be infinite: a sender that is never confirmed sends for ever. Two rules keep that from becoming "not
a number": what has probability 0 adds nothing, however many copies it would make (0 * inf = 0), and a part taken from
an infinite whole leaves it infinite (inf - inf = inf).
"""

from __future__ import annotations

import math
from dataclasses import dataclass


def _times(left: float, right: float) -> float:
    return 0.0 if left == 0 or right == 0 else left * right


def _minus(left: float, right: float) -> float:
    return left if math.isinf(left) else left - right


@dataclass(frozen=True, slots=True)
class Jet:
    """`value`, `first` and `second` derivative at one place. Numbers mix in as constants."""

    value: float
    first: float = 0.0
    second: float = 0.0

    @classmethod
    def variable(cls, value: float) -> Jet:
        """The variable itself at `value`: slope 1, no curvature."""
        return cls(value, 1.0, 0.0)

    def __add__(self, other: Jet | float) -> Jet:
        if isinstance(other, Jet):
            return Jet(self.value + other.value, self.first + other.first, self.second + other.second)
        if isinstance(other, int | float):
            return Jet(self.value + other, self.first, self.second)
        return NotImplemented

    __radd__ = __add__

    def __neg__(self) -> Jet:
        return Jet(-self.value, -self.first, -self.second)

    def __sub__(self, other: Jet | float) -> Jet:
        if isinstance(other, Jet):
            return Jet(self.value - other.value, _minus(self.first, other.first), _minus(self.second, other.second))
        if isinstance(other, int | float):
            return Jet(self.value - other, self.first, self.second)
        return NotImplemented

    def __rsub__(self, other: float) -> Jet:
        return -self + other

    def __mul__(self, other: Jet | float) -> Jet:
        if isinstance(other, Jet):
            return Jet(
                self.value * other.value,
                _times(self.first, other.value) + _times(self.value, other.first),
                _times(self.second, other.value)
                + 2 * _times(self.first, other.first)
                + _times(self.value, other.second),
            )
        if isinstance(other, int | float):
            return Jet(self.value * other, _times(self.first, other), _times(self.second, other))
        return NotImplemented

    __rmul__ = __mul__

    def _reciprocal(self) -> Jet:
        inverse = 1 / self.value
        bend = 2 * _times(_times(self.first, self.first), inverse) - self.second
        return Jet(inverse, -_times(self.first, inverse**2), _times(bend, inverse**2))

    def __truediv__(self, other: Jet | float) -> Jet:
        if isinstance(other, Jet):
            return self * other._reciprocal()
        if isinstance(other, int | float):
            return Jet(self.value / other, self.first / other, self.second / other)
        return NotImplemented

    def __rtruediv__(self, other: float) -> Jet:
        return self._reciprocal() * other

    def __pow__(self, exponent: int) -> Jet:
        if exponent < 0:
            return (self**-exponent)._reciprocal()
        result, base = Jet(1.0), self
        while exponent:
            if exponent & 1:
                result = result * base
            base = base * base
            exponent >>= 1
        return result
