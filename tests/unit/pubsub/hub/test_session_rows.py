from __future__ import annotations

import msgspec
import pytest
from tests.unit.pubsub.hub.parts import EVERYTHING

from semel.errors import StoreError
from semel.pubsub.hub.session_rows import (
    AcksRow,
    ClientStream,
    OwnState,
    SessionRow,
    SpilledAcks,
    SpillRow,
    encode_row,
    read_acks,
    read_session,
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
