"""What the store knows of rows that wait behind a gap."""

from __future__ import annotations

import pytest

from semel.errors import StoreError
from semel.kernel.envelope import Envelope
from semel.kernel.ops import Put, Unit
from semel.kernel.store import Store
from semel.spark import waiting
from semel.spark.landing import Job, Landing
from semel.spark.rows import Row, RowOutcome
from semel.spark.waiting import Wait, Waits, read_waits, rows_waiting, waiting_cause, waiting_ops, waits_key
from semel.stores.memory import MemoryStore


def row(session: str, index: int, rows: int) -> Row:
    return Row(
        Envelope(f"{session}#waits", session=session, index=index),
        outcome=RowOutcome.WAITING,
        cause=waiting_cause(rows),
    )


def land(store: Store, *rows: Row, query: str = "q", batch: int = 0) -> Waits:
    ops = waiting_ops(store, Job("orders", query, batch), rows)
    if ops:
        store.commit([Unit(tuple(ops))])
    return read_waits(store, "orders")


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


def test_sessions_come_change_and_go(store: Store) -> None:
    assert read_waits(store, "orders") == Waits()
    assert land(store, row("a", 2, 3), row("b", 1, 1)).sessions == {"a": Wait(2, 3), "b": Wait(1, 1)}
    assert land(store, row("a", 9, 1)).rows == 2
    assert land(store, row("b", 1, 0)).sessions == {"a": Wait(9, 1)}
    assert land(store).sessions == {"a": Wait(9, 1)}


def test_another_query_has_rows_of_its_own(store: Store) -> None:
    """After a lost checkpoint all is read again: what waits then is told again."""
    land(store, row("a", 2, 3))
    assert land(store, query="q2") == Waits("q2", {})
    assert land(store, row("b", 4, 1), query="q2").sessions == {"b": Wait(4, 1)}


def test_a_batch_that_says_nothing_of_it_writes_nothing(store: Store) -> None:
    job = Job("orders", "q", 0)
    assert waiting_ops(store, job, [Row(Envelope("m", session="s", index=1))]) == []
    assert waiting_ops(store, Job("orders", "j", 0, once=True), [row("a", 1, 1)]) == []
    landing = Landing(job, lambda body: pytest.fail("there is no body"))
    landing.add(row("a", 2, 3))
    assert landing.end() == []


def test_there_is_an_end_to_it(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "SESSIONS_MAX", 2)
    assert list(land(store, *(row(session, 1, 1) for session in "abc")).sessions) == ["a", "b"]


def test_what_somebody_else_wrote_is_no_number_and_no_state(store: Store) -> None:
    assert [rows_waiting(cause) for cause in (None, "", "many rows", waiting_cause(7))] == [0, 0, 0, 7]
    store.commit([Unit((Put(waits_key("orders"), b"x"),))])
    with pytest.raises(StoreError, match="is not one that this sink wrote"):
        read_waits(store, "orders")
