"""Sweeps that follow calls: soon, as often as it takes, and without a word when the store is away."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from semel.errors import StoreError, StoreUnavailable
from semel.kernel.store import Swept
from semel.runtime.inbox.call_sweeper import CallSweeper
from semel.testing.limits import wait_until


class Sweepable:
    """A store that has `left` more sweeps to do."""

    def __init__(self, left: int = 0, error: StoreError | None = None) -> None:
        self.left, self.error, self.sweeps = left, error, 0

    def sweep(self, now: int, limit: int = 0) -> Swept:
        self.sweeps += 1
        if self.error is not None:
            raise self.error
        self.left -= 1
        return Swept(more=self.left > 0)


def of(store: Any) -> Callable[[], Any]:
    return lambda: store


def rest(sweeper: CallSweeper) -> None:
    wait_until(lambda: not sweeper._sweeping.locked(), "the end of a sweep")


def test_the_first_call_of_a_process_sweeps_until_nothing_is_left() -> None:
    store = Sweepable(left=7)
    sweeper = CallSweeper(of(store))
    sweeper.called()
    rest(sweeper)
    assert store.sweeps == 7


def test_many_calls_sweep_again_and_so_does_time() -> None:
    store = Sweepable()
    sweeper = CallSweeper(of(store), every_calls=10)
    for _ in range(31):
        sweeper.called()
        rest(sweeper)
    assert store.sweeps == 4
    soon = CallSweeper(of(store), every_s=0.0)
    for _ in range(2):
        soon.called()
        rest(soon)
    assert store.sweeps == 6


def test_a_store_that_is_away_is_swept_the_next_time(caplog: pytest.LogCaptureFixture) -> None:
    store = Sweepable(error=StoreUnavailable("gone", fix="wait"))
    sweeper = CallSweeper(of(store), every_s=0.0)
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            sweeper.called()
            rest(sweeper)
    assert store.sweeps == 2
    assert "will be tried again" in caplog.text
