from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.calculus.jet import Jet

FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "sum": lambda x: 3 + x + 2.5 + x,
    "difference": lambda x: 2 - x - (x * x - 1),
    "product": lambda x: x * x * 3 * (1 - x),
    "quotient": lambda x: (1 + x) / (2 - x * x / 4),
    "of a number": lambda x: 1 / (3 + x) + x / 2,
    "power": lambda x: (x + 1) ** 5 + x**0 + x**1,
    "negative power": lambda x: (x + 2) ** -3,
    "negation": lambda x: -x * x,
}


@pytest.mark.parametrize("name", FUNCTIONS)
@given(at=st.floats(-0.9, 0.9))
def test_derivatives_as_by_small_steps(name: str, at: float) -> None:
    function, step = FUNCTIONS[name], 1e-4
    jet = function(Jet.variable(at))
    below, here, above = (function(at + shift) for shift in (-step, 0, step))
    assert jet.value == pytest.approx(here)
    assert jet.first == pytest.approx((above - below) / (2 * step), rel=1e-5, abs=1e-5)
    assert jet.second == pytest.approx((above - 2 * here + below) / step**2, rel=1e-4, abs=1e-5)


small = st.floats(-3, 3)
jets = st.builds(Jet, small, small, small)


def near(left: Jet, right: Jet) -> bool:
    pairs = zip((left.value, left.first, left.second), (right.value, right.first, right.second), strict=True)
    return all(math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-9) for a, b in pairs)


@given(jets, jets, jets)
def test_the_laws_of_arithmetic(x: Jet, y: Jet, z: Jet) -> None:
    assert near(x * y, y * x)
    assert near((x * y) * z, x * (y * z))
    assert near(x * (y + z), x * y + x * z)
    assert near(x - y, x + -1 * y)


def test_what_cannot_happen_adds_nothing_even_if_it_is_without_end() -> None:
    endless = Jet(1.0, math.inf, math.inf)
    assert endless * 0 == 0 * endless == endless * Jet(0) == Jet(0)
    assert (endless - endless).first == math.inf
    assert (0.5 * endless + 0.5).first == math.inf


def test_other_types_are_refused() -> None:
    for operation in (lambda: Jet(1) + "1", lambda: Jet(1) * "1", lambda: Jet(1) - "1", lambda: Jet(1) / "1"):
        with pytest.raises(TypeError):
            operation()
