"""Connections and sessions of SQLAlchemy on SQLite: the transaction of whichever is given is written in."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine
from sqlalchemy.orm import Session

from semel import open_store
from semel.errors import InputError
from semel.kernel.ops import Put
from semel.kernel.store import State, Store
from semel.runtime.transactions.sqlalchemy import bind, bind_connection
from semel.stores.memory import MemoryStore


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(open_store(f"sqlite:///{tmp_path}/semel.db")) as opened:
        yield opened


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    made = create_engine(f"sqlite:///{tmp_path}/semel.db")
    yield made
    made.dispose()


def test_a_connection_without_a_transaction_begins_one_that_its_commit_ends(store: Store, engine: Engine) -> None:
    with engine.connect() as connection:
        bind_connection(store, connection).apply([Put("k", b"v")])
        assert connection.in_transaction()
        connection.commit()
    assert store.state("k") == State(b"v", 1)


def test_a_session_is_written_in_by_its_connection(store: Store, engine: Engine) -> None:
    with Session(engine) as session:
        tx = bind(store, session)
        tx.apply([Put("k", b"v")])
        session.rollback()
    assert store.state("k") is None or store.state("k") == State(None, 0)


def test_a_store_on_another_engine_is_refused(engine: Engine) -> None:
    with engine.connect() as connection, pytest.raises(InputError, match="leads to SQLite"):
        bind(MemoryStore(), connection)
