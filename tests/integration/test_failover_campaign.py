"""The failover campaign with a few kills. `make soak PART=failover` has twenty, and judges how long they take."""

from __future__ import annotations

import pytest

from semel.testing.failover_campaign import BEHIND, run

pytestmark = [pytest.mark.connected, pytest.mark.slow]


@pytest.mark.timeout(600)
def test_a_standby_that_is_promoted_behind_the_head_raises_the_epoch_and_everybody_is_told() -> None:
    steps: list[tuple[int, int]] = []
    figures = run(0, 1, 3, lambda done, total: steps.append((done, total)))
    assert figures["holds"], figures
    [rise] = figures["promoted_behind"]
    assert rise["after"] > rise["before"]
    assert rise["told"] == BEHIND
    assert steps[-1] == (1, 1)
