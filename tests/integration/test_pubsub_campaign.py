"""The pub/sub campaigns can fail: with a known mistake of its clients the first one finds what that does.

That it holds without one is shown by tests/integration/test_soak.py, at a twentieth of its size.
"""

from __future__ import annotations

import pytest
from tests.campaigns import bounded_campaign
from tests.campaigns.hub_books import Wrong
from tests.campaigns.pubsub_campaign import TWO_NODES, Place, run

from semel.testing.byte_faults import ByteFault


@pytest.mark.parametrize(("plant", "wrong"), [("new-ack-ids", "doubled"), ("no-recovery", "lost")])
def test_a_planted_mistake_makes_the_campaign_fail(plant: str, wrong: str) -> None:
    figures = run(Place(plant=plant, stall_s=2.0), 1_500, 1, lambda done, total: None)

    assert figures[wrong] > 0, figures
    assert not figures["holds"]
    assert figures["kills"] == 2


@pytest.mark.timeout(120)
def test_two_nodes_on_one_postgres_lose_and_double_nothing() -> None:
    steps: list[tuple[int, int]] = []
    figures = run(TWO_NODES, 2_000, 3, lambda done, total: steps.append((done, total)))

    assert figures["holds"], figures
    assert (figures["nodes"], figures["kills"], figures["cuts"]) == (2, 2, 6)
    assert figures["of_clients"]["recoveries"] > 50
    assert sum(figures["faults"].values()) > figures["cuts"]
    assert set(figures["faults"]) == {fault.value for fault in ByteFault}
    assert steps[-1] == (2_000, 2_000)


@pytest.mark.parametrize(
    ("got", "expected"),
    [
        ([1, 2, 3], Wrong()),
        ([1, 3], Wrong(lost=1)),
        ([1, 2, 2, 3], Wrong(doubled=1)),
        ([1, 3, 2], Wrong(disorder=1)),
        ([1, 2, 3, 4], Wrong(unknown=1)),
        ([1, 2, 3, 1 << 32 | 1], Wrong(unknown=1)),
        ([], Wrong(lost=3)),
    ],
)
def test_what_is_wrong_is_counted_as_what_it_is(got: list[int], expected: Wrong) -> None:
    wrong = Wrong()
    wrong.count(got, {0: 3})
    assert wrong == expected


def test_a_hub_under_load_ends_who_never_acknowledges_and_serves_the_others() -> None:
    load = bounded_campaign.Load(sessions=200, payload_bytes=200, backlog=5_000)
    figures = bounded_campaign.run(load, 5, 1, lambda done, total: None)

    assert figures["holds"], figures
    assert figures["backlogs_ended"] > 0
    assert figures["received_by_who_acknowledges"] == figures["published"] > 5_000
    assert len(figures["samples"]) == bounded_campaign.SAMPLES


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [([100, 200, 100, 200, 150, 210], True), ([100, 200, 300, 400, 500, 600], False), ([1, 1, 1, 1, 1, 30], True)],
)
def test_what_goes_up_and_down_is_bounded_and_what_goes_on_and_on_is_not(sizes: list[float], expected: bool) -> None:
    assert bounded_campaign.is_bounded(sizes) is expected
