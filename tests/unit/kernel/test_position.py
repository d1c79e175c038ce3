from __future__ import annotations

import pytest

from semel.errors import EpochChanged
from semel.kernel.position import EPOCH_GAP, OFFSET_MAX, Position, check_epoch


def test_a_position_reads_as_stream_epoch_offset() -> None:
    assert str(Position("hub/chat", 2, 17)) == "hub/chat@2:17"


def test_positions_of_a_stream_sort_by_epoch_and_offset() -> None:
    positions = [Position("s", 2, 1), Position("s", 1, 9), Position("s", 1, 2)]
    assert sorted(positions) == [Position("s", 1, 2), Position("s", 1, 9), Position("s", 2, 1)]


def test_the_same_epoch_passes() -> None:
    check_epoch(Position("s", 3, 1), 3)


@pytest.mark.parametrize("current", [2, 4])
def test_another_epoch_is_refused_and_the_current_one_named(current: int) -> None:
    with pytest.raises(EpochChanged) as caught:
        check_epoch(Position("s", 3, 1), current)
    assert caught.value.current == current


def test_offsets_fit_a_javascript_number_through_many_epochs() -> None:
    assert float(OFFSET_MAX) == OFFSET_MAX
    assert OFFSET_MAX // EPOCH_GAP > 2_000_000
