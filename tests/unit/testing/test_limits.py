"""Limits grow with a machine that is slow or busy, and never shrink."""

from __future__ import annotations

import os

import pytest

from semel.testing import limits


@pytest.fixture(autouse=True)
def _nothing_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(limits.VARIABLE, raising=False)


def at(monkeypatch: pytest.MonkeyPatch, *, measured: float, load: float, processors: int = 2) -> float:
    monkeypatch.setattr(limits, "measured", lambda: measured)
    monkeypatch.setattr(limits, "processors", lambda: processors)
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    return limits.scaled(10)


def test_a_machine_that_is_quick_and_at_rest_has_the_limit_as_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    assert at(monkeypatch, measured=0.3, load=0.5) == 10


def test_a_slow_machine_is_given_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    assert at(monkeypatch, measured=3.0, load=0.5) == 30


def test_a_machine_that_became_busy_since_it_was_measured_is_given_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    assert at(monkeypatch, measured=1.0, load=16) == 80
    assert at(monkeypatch, measured=1.0, load=16, processors=16) == 10


def test_a_limit_stays_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert at(monkeypatch, measured=1.0, load=5000) == 10 * limits.FACTOR_MAX


def test_whoever_knows_better_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(limits.VARIABLE, "7")
    assert limits.scaled(10) == 70
    monkeypatch.setenv(limits.VARIABLE, "0.1")
    assert limits.scaled(10) == 10


def test_the_measure_is_taken_by_the_clock() -> None:
    assert 0.01 < limits.measured.__wrapped__() < 1000
    assert limits.processors() >= 1


def test_what_never_comes_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "factor", lambda: 1.0)
    limits.wait_until(lambda: True, "a word")
    with pytest.raises(TimeoutError, match=r"a word did not come within 1 s"):
        limits.wait_until(lambda: False, "a word", 0.02)
