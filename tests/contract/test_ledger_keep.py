"""A ledger that nobody exports is kept for as long as the store was told, alike by every store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from tests.contract.test_postgres import TimeTravel

from semel.kernel.ledger import Kind
from semel.kernel.ops import Log, Put
from semel.kernel.store import Store
from semel.stores.memory import MemoryStore
from semel.stores.sqlite import SqliteStore
from semel.testing.contract.base import Time, commit, entries, events, logged

pytestmark = pytest.mark.contract

DAY_S = 24 * 3600.0
DAY_US = int(DAY_S * 1_000_000)
Open = Callable[[float | None], Store]


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def open_keeping(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    with ExitStack() as stack:

        def open(keep_s: float | None) -> Store:
            if request.param == "memory":
                return MemoryStore(ledger_keep_s=keep_s)
            if request.param == "sqlite":
                return stack.enter_context(closing(SqliteStore(f"sqlite:///{tmp_path}/semel.db", ledger_keep_s=keep_s)))
            url = request.getfixturevalue("postgres_url")
            return stack.enter_context(closing(TimeTravel(url, ledger_keep_s=keep_s)))

        yield open


def log(store: Store, *ids: str) -> None:
    commit(store, *(Log(logged(Kind.HANDLED, id)) for id in ids))


def left(store: Store) -> list[str | None]:
    return [event.message for event in events(store)]


def test_what_is_old_goes_in_bounded_steps(open_keeping: Open) -> None:
    store = open_keeping(DAY_S)
    log(store, "a", "b", "c")
    now = Time(store, None).now()
    assert store.sweep(now + DAY_US - 60_000_000).ledger == 0
    steps = [store.sweep(now + DAY_US + 60_000_000, limit=2) for _ in range(3)]
    assert [(step.ledger, step.more) for step in steps] == [(2, True), (1, False), (0, False)]
    assert left(store) == []
    assert store.history("a") == []


def test_what_came_later_stays(open_keeping: Open) -> None:
    store = open_keeping(DAY_S)
    log(store, "old")
    first = entries(store)[0].at
    log(store, "new")
    swept = store.sweep(first + DAY_US + 1)
    assert swept.ledger >= 1
    assert left(store)[-1:] == ["new"]
    assert store.history("old") == []


def test_without_an_end_it_stays(open_keeping: Open) -> None:
    store = open_keeping(None)
    log(store, "a")
    assert store.sweep(Time(store, None).now() + 3650 * DAY_US).ledger == 0
    assert left(store) == ["a"]


def test_an_export_decides_alone(open_keeping: Open) -> None:
    """However old an entry is, it stays until it was exported."""
    store = open_keeping(DAY_S)
    log(store, "a", "b")
    mark = entries(store)[0].mark
    commit(store, Put("export/ledger", f"{mark.xid}.{mark.seq}".encode()))
    assert store.sweep(Time(store, None).now() + 30 * DAY_US).ledger == 1
    assert left(store) == ["b"]
