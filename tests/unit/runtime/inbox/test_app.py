"""The twin of an application for tests."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from semel import App
from semel.errors import ConfigError


@dataclass
class Order:
    id: str


class Session:
    """As a user's own."""


def test_handlers_that_ask_for_sqlite_get_a_file_that_goes_with_the_twin(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path}/real.db", name="shop")

    @app.endpoint("orders").on(Order)
    def handle(order: Order, db: sqlite3.Connection) -> None:
        db.execute("INSERT INTO effect VALUES (?)", (order.id,))

    twin = app.memory()
    file = Path(twin.url.removeprefix("sqlite:///"))
    twin.send(Order("a"), to="orders", id="a")
    with closing(sqlite3.connect(file)) as db, db:
        db.execute("CREATE TABLE effect (id text)")
    assert twin.drain() == 1
    with closing(sqlite3.connect(file)) as db:
        assert db.execute("SELECT id FROM effect").fetchall() == [("a",)]
    twin.close()
    assert not file.exists()
    assert not (tmp_path / "real.db").exists(), "the application itself was never opened"


def test_handlers_without_a_connection_run_in_memory() -> None:
    app, runs = App("sqlite:///never.db", name="shop"), []

    @app.endpoint("orders").on(Order)
    def handle(order: Order) -> None:
        runs.append(order.id)

    twin = app.memory()
    twin.send(Order("a"), to="orders")
    twin.drain()
    assert (runs, twin.url) == (["a"], "memory:")


@pytest.mark.parametrize("kind", [psycopg.Connection, psycopg.AsyncConnection, Session])
def test_a_connection_that_memory_cannot_have_is_refused(kind: type) -> None:
    app = App("sqlite:///never.db", name="shop")
    app.provide(Session, Session)

    def handle(order: Order, db: object) -> None:
        raise AssertionError("it is never called")

    handle.__annotations__["db"] = kind
    app.endpoint("orders").on(Order)(handle)
    with pytest.raises(ConfigError, match=kind.__qualname__) as refused:
        app.memory()
    assert "test database" in refused.value.fix
