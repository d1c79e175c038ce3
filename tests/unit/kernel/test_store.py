"""Every store has what the protocol says, under the names and with the defaults that it says."""

from __future__ import annotations

import inspect

import pytest

from semel.kernel.store import Store, Swept, Tx
from semel.stores.memory import MemoryStore, MemoryTx
from semel.stores.postgres import PostgresStore, PostgresTx
from semel.stores.sqlite import SqliteStore, SqliteTx


def methods(protocol: type) -> list[str]:
    return [name for name, value in vars(protocol).items() if inspect.isfunction(value) and name[0] != "_"]


@pytest.mark.parametrize("kind", [MemoryStore, SqliteStore, PostgresStore])
@pytest.mark.parametrize("name", methods(Store))
def test_stores_answer_alike(kind: type, name: str) -> None:
    asked = inspect.signature(getattr(Store, name)).parameters
    given = inspect.signature(getattr(kind, name)).parameters
    assert [(parameter.name, parameter.default) for parameter in given.values()] == [
        (parameter.name, parameter.default) for parameter in asked.values()
    ]


@pytest.mark.parametrize("kind", [MemoryTx, SqliteTx, PostgresTx])
def test_transactions_answer_alike(kind: type) -> None:
    assert methods(Tx) == ["apply", "keep_result"]
    assert list(inspect.signature(kind.apply).parameters) == list(inspect.signature(Tx.apply).parameters)  # type: ignore[attr-defined]


def test_a_sweep_adds_up() -> None:
    assert Swept(1, 2, 3, 4, 5, 6, more=True, moved=7).total == 21
