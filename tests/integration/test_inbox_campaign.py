"""The inbox campaign can fail: with a known mistake it finds what that does.

That it holds without one is shown by tests/integration/test_soak.py, at a twentieth of its size.
"""

from __future__ import annotations

import pytest
from tests.campaigns.inbox_books import Wrong, disorder, once
from tests.campaigns.inbox_campaign import Place, run, shares
from tests.campaigns.inbox_soak_child import ACK_FIRST, NOT_STRICT, OWN_COMMIT


@pytest.mark.slow(12)
@pytest.mark.parametrize(
    ("plant", "wrong", "store"),
    [(ACK_FIRST, "lost", "sqlite"), (OWN_COMMIT, "doubled", "postgres"), (NOT_STRICT, "disorder", "sqlite")],
)
def test_a_planted_mistake_makes_the_campaign_fail(plant: str, wrong: str, store: str) -> None:
    figures = run([Place("nats", store)], 300, 1, lambda done, total: None, plant, kills=6)

    assert figures[wrong] > 0, figures
    assert not figures["holds"]
    assert (figures["kills"], figures["broker_kills"]) == (6, 1)


def test_messages_and_kills_are_divided_without_a_rest() -> None:
    assert shares(10, 4) == [3, 3, 2, 2]


@pytest.mark.parametrize(
    ("got", "expected"),
    [
        (["a", "b"], Wrong()),
        (["b"], Wrong(lost=1)),
        (["a", "b", "b"], Wrong(doubled=1)),
        (["a", "b", "c"], Wrong(unknown=1)),
    ],
)
def test_what_is_wrong_is_counted(got: list[str], expected: Wrong) -> None:
    assert once(["a", "b"], got) == expected


@pytest.mark.parametrize(
    ("numbers", "expected"), [([1, 2, 3], 0), ([1, 3, 2], 2), ([2, 3], 1), ([1, 2, 2, 3], 0), ([1, 2, 1, 3], 0)]
)
def test_the_numbers_of_a_key_rise_without_a_gap(numbers: list[int], expected: int) -> None:
    """Each key for itself; one that is there twice is counted elsewhere."""
    assert disorder((key, number) for number in numbers for key in ("a", "b")) == 2 * expected
