"""The pipe campaigns can fail: with a known mistake in the receiver they find what it does.

That they hold without one is shown by tests/integration/test_soak.py, at a twentieth of their size.
"""

from __future__ import annotations

import pytest
from tests.campaigns.pipe_campaign import CASCADE, PIPES, Campaign, run


@pytest.mark.parametrize(
    ("campaign", "plant", "wrong"),
    [
        (PIPES, "no-dedup", "doubled"),
        (PIPES, "confirm-early", "lost"),
        (PIPES, "no-order", "disorder"),
        (CASCADE, "no-dedup", "doubled"),
        (CASCADE, "confirm-early", "lost"),
    ],
    ids=lambda value: value.name if isinstance(value, Campaign) else None,
)
def test_a_planted_mistake_makes_the_campaign_fail(campaign: Campaign, plant: str, wrong: str) -> None:
    figures = run(campaign, 300, 1, lambda done, total: None, plant)

    assert figures[wrong] > 0, figures
    assert not figures["holds"]
    assert sum(figures["kills"].values()) == 4


@pytest.mark.parametrize("campaign", [PIPES, CASCADE], ids=lambda campaign: campaign.name)
def test_a_campaign_says_what_it_saw(campaign: Campaign) -> None:
    steps: list[tuple[int, int]] = []
    figures = run(campaign, 300, 2, lambda done, total: steps.append((done, total)))

    assert figures["holds"], figures
    assert figures["told"] == figures["effects"] == 300
    assert figures["ledger"]["delivery"] == {
        "sent": 300, "unique": 300, "received": 300, "R": 1.0, "UR": 1.0, "exact": True,
    }  # fmt: skip
    assert figures["duplicates_turned_away"] > 0
    assert all(link["lost"] > 0 and link["doubled"] > 0 and link["delayed"] > 0 for link in figures["links"].values())
    assert set(figures["kills"]) == {"pipes": {"A", "B"}, "cascade": {"A", "P2", "B"}}[campaign.name]
    assert steps[-1] == (300, 300)
