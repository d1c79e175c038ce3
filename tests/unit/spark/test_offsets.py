"""Offsets and ranges: what Spark keeps comes back, no row is in two parts or in none, and nothing is passed over."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.errors import ConfigError, EpochChanged, StoreError
from semel.kernel.ledger import START, Mark
from semel.kernel.position import EPOCH_GAP
from semel.spark.offsets import (
    AVAILABLE,
    EARLIEST,
    LATEST,
    PARTITION_ROWS_MIN,
    Bounds,
    HistorySpan,
    OffsetSpan,
    Subject,
    check_place,
    check_position,
    cut_at,
    cut_evenly,
    end_of,
    offset_of,
    parts_of,
    place_of,
    start_of,
)

CHAT = Subject(stream="hub/chat")
LEDGER = Subject(dataset="ledger")
numbers = st.integers(0, 2**53 - 1)
streams = st.builds(
    lambda after, to: HistorySpan("s1", 1, CHAT, OffsetSpan(Mark(0, after), Mark(0, to))), numbers, numbers
)  # fmt: skip
marks = st.builds(Mark, numbers, numbers)
ledgers = st.builds(lambda after, to: HistorySpan("s1", 3, LEDGER, OffsetSpan(after, to)), marks, marks)


def at(offset: int) -> Mark:
    return Mark(0, offset)


def bounds(*, gone: int = 0, head: int = 100, epoch: int = 1, store: str = "s1", origin: int = 0) -> Bounds:
    return Bounds(store, epoch, at(origin), at(gone), at(head), at(head))


def place(after: int, to: int) -> HistorySpan:
    return HistorySpan("s1", 1, CHAT, OffsetSpan(at(after), at(to)))


@given(streams | ledgers)
def test_an_offset_survives_the_checkpoint(given: HistorySpan) -> None:
    assert place_of(json.loads(json.dumps(offset_of(given))), given.subject) == given


def test_an_offset_says_what_the_batch_holds() -> None:
    assert offset_of(place(5, 9)) == {"store": "s1", "stream": "hub/chat", "epoch": 1, "after": 5, "offset": 9}
    of_ledger = HistorySpan("s1", 2, LEDGER, OffsetSpan(Mark(812, 7), Mark(813, 1)))
    assert offset_of(of_ledger) == {
        "store": "s1", "dataset": "ledger", "epoch": 2, "after": "812.7", "mark": "813.1",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("offset", "why"),
    [
        ({"store": "s1", "stream": "other", "epoch": 1, "after": 0, "offset": 1}, "query over stream 'other'"),
        ({"store": "s1", "dataset": "index", "epoch": 1, "after": "0.0", "mark": "0.1"}, "query over the index"),
        ({"store": "s1", "stream": "hub/chat", "epoch": 1, "after": 0}, "did not write"),
        ({"store": "s1", "stream": "hub/chat", "epoch": "x", "after": 0, "offset": 1}, "did not write"),
    ],
)
def test_an_offset_of_something_else_is_refused(offset: dict[str, object], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        place_of(offset, CHAT)


@given(st.integers(0, 10**9), st.integers(1, 10**7), st.integers(1, 64))
def test_parts_cover_a_range_without_overlap(after: int, size: int, parts: int) -> None:
    span = OffsetSpan(at(after), at(after + size))
    pieces = cut_evenly(span, parts)
    assert pieces[0].after == span.after
    assert pieces[-1].to == span.to
    assert all(one.to == two.after for one, two in pairwise(pieces))
    assert all(pieces)
    sizes = [piece.to.seq - piece.after.seq for piece in pieces]
    assert max(sizes) - min(sizes) <= 1


def test_a_cut_at_the_very_end_makes_no_empty_part() -> None:
    span = OffsetSpan(Mark(5, 1), Mark(9, 4))
    assert cut_at(span, [Mark(7, 2), Mark(9, 4)]) == [
        OffsetSpan(Mark(5, 1), Mark(7, 2)),
        OffsetSpan(Mark(7, 2), Mark(9, 4)),
    ]


def test_few_rows_are_not_worth_two_tasks() -> None:
    assert parts_of(PARTITION_ROWS_MIN * 2 - 1, 8) == 1
    assert parts_of(PARTITION_ROWS_MIN * 2, 8) == 2
    assert parts_of(10**9, 8) == 8


def test_a_jump_between_epochs_is_not_counted_as_rows() -> None:
    assert OffsetSpan(at(0), at(EPOCH_GAP - 1)).is_dense
    assert not OffsetSpan(at(10), at(EPOCH_GAP + 10)).is_dense
    assert not OffsetSpan(Mark(7, 1), Mark(7, 5)).is_dense


def test_where_a_query_begins_and_ends() -> None:
    trimmed = bounds(gone=40)
    assert start_of(EARLIEST, trimmed, CHAT) == START
    assert start_of(AVAILABLE, trimmed, CHAT) == at(40)
    assert start_of(LATEST, trimmed, CHAT) == at(100)
    assert start_of(at(60), trimmed, CHAT) == at(59)
    assert start_of(at(101), trimmed, CHAT) == at(100)
    assert end_of(LATEST, trimmed) == at(100)
    assert end_of(at(70), trimmed) == at(70)
    assert end_of(at(700), trimmed) == at(100)


def test_a_stream_that_began_late_has_nothing_before_it() -> None:
    late = bounds(origin=1000, gone=1000, head=1005)
    assert start_of(EARLIEST, late, CHAT) == at(1000)
    assert start_of(at(1), late, CHAT) == at(1000)
    check_place(place(0, 1005), late)


def test_a_start_beyond_the_end_is_refused() -> None:
    with pytest.raises(ConfigError, match="ends at 100"):
        start_of(at(102), bounds(), CHAT)


def test_positions_are_words_or_numbers() -> None:
    words = (EARLIEST, LATEST)
    assert check_position("startingPosition", "latest", words) == "latest"
    assert check_position("startingPosition", "17", words) == at(17)
    assert check_position("startingPosition", "812.4711", words) == Mark(812, 4711)
    with pytest.raises(ConfigError, match="startingPosition is 'begin'"):
        check_position("startingPosition", "begin", words)


def test_rows_that_are_there_pass_the_check() -> None:
    check_place(place(40, 100), bounds(gone=40))
    check_place(place(0, 0), bounds(gone=40))


@pytest.mark.parametrize(
    ("now", "error", "why"),
    [
        (bounds(epoch=2), EpochChanged, "is in epoch 2"),
        (bounds(store="s2"), EpochChanged, "at this URL is store s2"),
        (bounds(head=70), StoreError, "the store only up to 70"),
        (bounds(gone=51), StoreError, "up to 51 it has been trimmed"),
    ],
)
def test_rows_that_are_not_there_are_never_passed_over(now: Bounds, error: type[StoreError], why: str) -> None:
    with pytest.raises(error, match=why) as caught:
        check_place(place(50, 80), now)
    assert caught.value.fix


def test_both_ways_out_of_a_trimmed_range_are_named() -> None:
    with pytest.raises(StoreError, match="trimmed") as caught:
        check_place(place(50, 80), bounds(gone=60))
    assert "available" in caught.value.fix
    assert "pinning cursor" in caught.value.fix
