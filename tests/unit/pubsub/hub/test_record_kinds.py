from __future__ import annotations

from semel.pubsub.hub.records import RecordKind
from semel.record_types import type_names


def test_numbers_that_are_stored_never_change() -> None:
    assert {kind.name: kind.value for kind in RecordKind} == {
        "MESSAGE": 0,
        "JOIN": 1,
        "LEAVE": 2,
        "OPEN": 3,
        "CLOSE": 4,
        "STATE": 5,
        "ORDER": 6,
        "REPLY": 7,
    }


def test_the_exported_index_calls_them_by_name() -> None:
    names = ["message", "join", "leave", "open", "close", "state", "order", "reply"]
    assert dict(enumerate(names)) == type_names()
