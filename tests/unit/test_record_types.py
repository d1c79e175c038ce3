from __future__ import annotations

import sys
from enum import IntEnum
from types import ModuleType

import pytest

from semel.record_types import PROTOCOLS, type_names


def protocol(monkeypatch: pytest.MonkeyPatch, name: str, **kinds: int) -> str:
    module = ModuleType(name)
    vars(module)["RecordKind"] = IntEnum("RecordKind", kinds)  # type: ignore[misc]
    monkeypatch.setitem(sys.modules, name, module)
    return name


def test_the_next_protocol_adds_names_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    queues = protocol(monkeypatch, "queues", MESSAGE=0, LOCK=40)
    assert type_names([*PROTOCOLS, queues]) == type_names() | {40: "lock"}


def test_a_number_that_is_stored_has_one_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AssertionError, match="1 is join already"):
        type_names([*PROTOCOLS, protocol(monkeypatch, "queues", LOCK=1)])


def test_messages_are_messages_without_any_protocol() -> None:
    assert type_names([]) == {0: "message"}
