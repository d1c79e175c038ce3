"""How fast retention goes: as fast as rows accumulate, and no faster."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from semel.errors import StoreError, StoreUnavailable
from semel.kernel.store import Store, Swept
from semel.runtime.host.sweeper import Sweeper


def sweeper(*found: Swept | StoreError) -> tuple[Sweeper, Mock, Mock]:
    store, failed = Mock(spec=Store), Mock()
    store.sweep.side_effect = found
    return Sweeper(store, every_s=5.0, limit=7, failed=failed), store, failed


def swept(rows: int, *, more: bool) -> Swept:
    return Swept(ledger=rows, more=more)


async def test_with_nothing_left_it_waits_its_whole_time() -> None:
    made, store, _ = sweeper(swept(3, more=False))
    assert await made.sweep_once() == 5.0
    assert store.sweep.call_args.args[1] == 7
    assert (made.total.rows, made.total.sweeps, made.total.behind) == (3, 1, False)


def test_with_more_to_do_it_pauses_as_long_as_it_took_and_less_and_less() -> None:
    made, _, _ = sweeper()
    pauses = [made._pause(swept(7, more=True), 1.0) for _ in range(40)]
    assert pauses[:3] == pytest.approx([1.0, 0.9, 0.81])
    assert pauses[-1] == pytest.approx(0.1)
    assert made.total.behind
    assert made._pause(swept(0, more=False), 1.0) == 5.0
    assert made._pause(swept(7, more=True), 1.0) == 1.0


async def test_a_sweep_that_fails_is_reported_and_tried_again() -> None:
    error = StoreUnavailable("gone", fix="look")
    made, _, failed = sweeper(error, swept(1, more=False))
    assert await made.sweep_once() == 5.0
    failed.assert_called_once_with(error, "a sweep failed and will be tried again")
    await made.sweep_once()
    assert (made.total.rows, made.total.sweeps) == (1, 1)
