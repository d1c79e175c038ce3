"""Which family a connection belongs to, by where its class is defined."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import psycopg
import pytest
import sqlalchemy

from semel.errors import InputError
from semel.runtime.transactions.base import bind, family_of, family_of_type, need_postgres, need_sqlite
from semel.stores.memory import MemoryStore


class OwnConnection(sqlite3.Connection):
    """A user's own, derived from one that is known."""


def test_a_class_belongs_to_the_package_that_it_or_its_base_is_of() -> None:
    assert family_of(sqlite3.connect(":memory:", factory=OwnConnection)) == "sqlite3"
    assert family_of_type(psycopg.AsyncConnection) == "psycopg"
    assert family_of_type(sqlalchemy.Connection) == "sqlalchemy"
    assert family_of(object()) is None


@pytest.mark.parametrize("driver", ["aiosqlite", "asyncpg", "psycopg2"])
def test_a_driver_without_a_way_of_its_own_is_refused_with_the_way_there_is(driver: str) -> None:
    connection = type("Connection", (), {"__module__": f"{driver}.core"})()
    with pytest.raises(InputError, match=driver) as refused:
        bind(MemoryStore(), connection)
    assert "SQLAlchemy" in (refused.value.fix or "")


def test_a_store_on_another_engine_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="leads to PostgreSQL, the store is at memory:"):
        need_postgres(MemoryStore())
    with pytest.raises(InputError, match="leads to SQLite, the store is at memory:"):
        need_sqlite(MemoryStore())
