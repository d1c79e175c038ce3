"""A long transaction holds the ledger of PostgreSQL back: everybody who reads it can say for how long, and by whom."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from semel.cli.main import run
from semel.kernel.ledger import START, Event, Kind
from semel.kernel.ops import Log, Unit
from semel.kernel.store import LedgerHorizon, Store
from semel.runtime.host.performer import Performer
from semel.runtime.host.store_watch import StoreWatch
from semel.stores.memory import MemoryStore
from semel.stores.open import open_store

pytestmark = pytest.mark.connected


@pytest.fixture
def store(postgres_url: str) -> Iterator[Store]:
    with closing(open_store(postgres_url)) as found:
        yield found


@pytest.fixture
def long_one(store: Store, postgres_url: str) -> Iterator[psycopg.Connection]:
    """A user's transaction that has written something and stays open, while others go on."""
    with closing(psycopg.connect(postgres_url, application_name="month-end")) as db:
        db.execute("CREATE TABLE figures (n int)")
        db.commit()
        db.execute("INSERT INTO figures VALUES (1)")
        yield db


def log(store: Store, *ids: str) -> None:
    store.commit([Unit((Log(Event(Kind.ACCEPTED, "a>b", message=id)),)) for id in ids])


def test_a_store_says_what_is_held_back_and_by_whom(store: Store, long_one: psycopg.Connection) -> None:
    assert store.horizon() == LedgerHorizon(), "nothing was written behind it yet"
    log(store, "a", "b")
    assert store.ledger(START) == [], "which is why it is worth knowing"
    held = store.horizon()
    assert held.events == 2
    assert held.held_s > 0
    assert held.holder.startswith(f"month-end (pid {long_one.info.backend_pid}), idle in transaction, open for")
    assert store.status().horizon.events == 2
    long_one.commit()
    assert store.horizon() == LedgerHorizon()
    assert len(store.ledger(START)) == 2


def test_commands_say_it_when_it_lasts(
    store: Store,
    long_one: psycopg.Connection,
    postgres_url: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("semel.kernel.store.LEDGER_HELD_S", 0.0)
    log(store, "a")
    monkeypatch.setenv("COLUMNS", "400")

    def said(*args: str) -> str:
        run([*args, "--store", postgres_url])
        return " ".join("".join(capsys.readouterr()).split())

    assert "1 entries held back for" in said("store", "status")
    assert "the newest part could not be exported: 1 entries held" in said("store", "export", "--to", str(tmp_path))
    assert "by month-end (pid" in said("doctor")


def test_an_audit_says_it(
    store: Store, long_one: psycopg.Connection, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = pytest.importorskip("semel.spark.audit.sources")
    monkeypatch.setattr("semel.kernel.store.LEDGER_HELD_S", 0.0)
    log(store, "a")
    [note] = sources.find([postgres_url]).notes
    assert "1 entries held back" in note
    assert "month-end" in note


@pytest.mark.asyncio
async def test_the_server_has_a_gauge_for_it(store: Store, long_one: psycopg.Connection) -> None:
    log(store, "a")
    performer = Performer(store)
    await performer.start()
    try:
        watch = StoreWatch(performer)
        await watch.look_at_horizon()
        assert watch.horizon.events == 1
    finally:
        await performer.close()


def test_where_there_is_one_writer_nothing_is_held_back() -> None:
    assert MemoryStore().horizon() == LedgerHorizon()
