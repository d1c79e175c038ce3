"""Errors of ours, found again in what Spark said."""

from __future__ import annotations

import pytest

from semel.errors import CommitInDoubt, EpochChanged, StaleFence, StoreError
from semel.spark.failures import first_line, ours_in


def test_the_first_of_ours_comes_back_with_its_advice() -> None:
    text = "o1.start\nsemel.errors.StaleFence: taken over\n  fix: end this one\n at x\nsemel.errors.StoreError: later\n"
    found = ours_in(text)
    assert isinstance(found, StaleFence)
    assert (found.message, found.fix) == ("taken over", "end this one")


def test_one_that_wants_more_than_words_keeps_them() -> None:
    changed = ours_in("semel.errors.EpochChanged: the store is in epoch 3")
    assert isinstance(changed, EpochChanged)
    assert changed.current == 3
    doubt = ours_in("semel.errors.CommitInDoubt: the connection broke")
    assert isinstance(doubt, StoreError)
    assert not isinstance(doubt, CommitInDoubt)


@pytest.mark.parametrize(
    "text", ["", "java.lang.OutOfMemoryError", "semel.errors.NoSuchError: what", "semel.errors.re: x"]
)
def test_what_is_not_ours_is_left_to_others(text: str) -> None:
    assert ours_in(text) is None


def test_the_line_of_the_bridge_is_passed_over() -> None:
    assert first_line("An error occurred while calling o1.x.\n: java.lang.Error: no\n\tat y") == "java.lang.Error: no"
    assert first_line(" \n") == "no reason was given"
