"""The failover campaign with a few kills. `make soak PART=failover` has twenty, and judges how long they take."""

from __future__ import annotations

import json

import pytest
from tests.campaigns.failover_campaign import BEHIND, CLIENTS, failover

pytestmark = [pytest.mark.connected, pytest.mark.slow(50)]


@pytest.mark.timeout(600)
def test_a_database_that_dies_costs_nobody_a_message_or_a_session_and_one_that_lost_something_tells_everybody() -> None:
    """One death of PostgreSQL, one of its host, and one with commits that no standby has."""
    steps: list[tuple[int, int]] = []
    figures = failover(1, 3, lambda done, total: steps.append((done, total)))
    assert figures["holds"], json.dumps(figures, default=str)
    assert [death["kind"] for death in figures["deaths"]] == ["postgres", "host"]
    assert all(death["resumed"] == CLIENTS for death in figures["deaths"])
    assert figures["sessions_lost"] == 0
    assert figures["of_clients"]["refused"] > 0
    [rise] = figures["promoted_behind"]
    assert rise["after"] > rise["before"]
    assert rise["told"] == BEHIND
    assert steps[-1] == (3, 3)
