from __future__ import annotations

import msgspec
import pytest
from tests.unit.pubsub.hub.parts import EVERYTHING, HUB, STREAM, run

from semel.errors import StoreError
from semel.pubsub.hub import session_rows
from semel.pubsub.hub.session_rows import (
    AcksRow,
    ClientStream,
    OwnState,
    SessionRow,
    Spill,
    SpilledAcks,
    SpillRow,
    deletions,
    encode_row,
    keys_of,
    messages_of,
    read_acks,
    read_row,
    read_session,
    write_row,
)


def test_rows_come_back_as_they_were_written() -> None:
    row = SessionRow(
        "ann", "json", "node", 3, EVERYTHING, {"g": 4}, (("h", 1, 2),), 5.0, "state", 1, {"g": OwnState({"a": "b"}, 1)},
        ("g",),
    )  # fmt: skip
    acks = AcksRow(SpilledAcks(3, (SpillRow(4, 9, 2),)), ((1, 5),), (ClientStream("s", "g", 2, 1000),))
    assert read_session(encode_row(row)) == row
    assert read_acks(encode_row(acks)) == acks


def test_the_stored_format_does_not_change() -> None:
    """Rows of before have to be read, and older nodes have to read ours: fields may only be added at the end."""
    row = SessionRow("ann", "json", "node", 3, EVERYTHING, {"g": 4})
    first, second, third, fourth, _, groups, left, dropped_at, state, epoch, states, watches = msgspec.msgpack.decode(
        encode_row(row)
    )
    assert [first, second, third, fourth, groups] == ["ann", "json", "node", 3, {"g": 4}]
    assert [left, dropped_at, state, epoch, states, watches] == [[], None, "", 0, {}, []]
    assert msgspec.msgpack.decode(encode_row(AcksRow(7, ((1, 2),)))) == [7, [[1, 2]], []]
    spilled = AcksRow(SpilledAcks(7, (SpillRow(8, 9),)), ())
    assert msgspec.msgpack.decode(encode_row(spilled)) == [[7, [[8, 9, 1]]], [], []]


def test_a_row_of_a_newer_semel_is_an_error_that_says_so() -> None:
    for read in (read_session, read_acks):
        with pytest.raises(StoreError) as raised:
            read(msgspec.msgpack.encode({"something": "new"}))  # type: ignore[operator]
        assert "newer" in (raised.value.fix or "")


# -- rows of what is spilled


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
