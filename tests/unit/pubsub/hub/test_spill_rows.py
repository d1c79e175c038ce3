from __future__ import annotations

import msgspec
import pytest
from tests.unit.pubsub.hub.parts import HUB, STREAM, run

from semel.errors import StoreError
from semel.pubsub.hub import session_rows
from semel.pubsub.hub.session_rows import Spill, SpillRow, deletions, keys_of, messages_of, read_row, write_row


def test_messages_come_back_as_they_were_spilled() -> None:
    row, puts = write_row(HUB, "alice", 5, list(messages_of([run(5, 2), run(9)])))
    assert row == SpillRow(5, 9)
    assert [put.key for put in puts] == keys_of(HUB, "alice", row)
    found = read_row(STREAM, [put.value for put in puts if put.value is not None])
    assert [(each.first, each.fold) for each in found] == [(first, run(first).fold) for first in (5, 6, 9)]


def test_a_large_row_has_several_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_rows, "PART_BYTES", 20)
    row, puts = write_row(HUB, "alice", 5, list(messages_of([run(5, 3)])))
    assert row.parts == len(puts) > 1
    assert sorted(put.key for put in puts) == [put.key for put in puts]
    assert len(read_row(STREAM, [put.value for put in puts if put.value is not None])) == 3
    assert [put.key for put in deletions(HUB, "alice", [row])] == [put.key for put in puts]


def test_a_row_of_a_newer_semel_cannot_be_read() -> None:
    with pytest.raises(StoreError):
        read_row(STREAM, [msgspec.msgpack.encode("something new")])


def test_rows_of_which_everything_is_acknowledged_go() -> None:
    spill = Spill((SpillRow(1, 4), SpillRow(5, 9)))
    assert spill.take_acknowledged(3) == []
    assert spill.take_acknowledged(4) == [SpillRow(1, 4)]
    assert (spill.rows, spill.stored_last) == ((SpillRow(5, 9),), 9)
    spill.fall_back()
    assert spill.rows == (SpillRow(1, 4), SpillRow(5, 9))
