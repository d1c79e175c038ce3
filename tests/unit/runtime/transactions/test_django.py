"""When a connection of Django has a transaction that can be written in."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from semel import open_store
from semel.errors import InputError
from semel.kernel.ops import Put
from semel.kernel.store import State, Store
from semel.runtime.transactions.django import bind


@dataclass
class DjangoConnection:
    """What is asked of `django.db.connection`."""

    connection: Any = None
    vendor: str = "sqlite"
    autocommits: bool = False
    needs_rollback: bool = False

    def get_autocommit(self) -> bool:
        return self.autocommits


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(open_store(f"sqlite:///{tmp_path}/semel.db")) as opened:
        yield opened


@pytest.mark.parametrize(
    ("connection", "why"),
    [
        (DjangoConnection(vendor="oracle"), "no store on oracle"),
        (DjangoConnection(vendor="postgresql"), "leads to PostgreSQL"),
        (DjangoConnection(autocommits=True), "no transaction is open"),
        (DjangoConnection(needs_rollback=True), "failed already"),
    ],
)
def test_a_connection_that_cannot_be_written_in_is_refused(
    store: Store, connection: DjangoConnection, why: str
) -> None:
    with pytest.raises(InputError, match=why) as refused:
        bind(store, connection)
    assert refused.value.fix


def test_the_connection_of_the_driver_is_looked_at_for_each_apply(store: Store, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "semel.db")) as driver:
        connection = DjangoConnection(driver)
        tx = bind(store, connection)
        tx.apply([Put("k", b"v")])
        driver.commit()
        connection.needs_rollback = True
        with pytest.raises(InputError, match="failed already"):
            tx.apply([Put("k", b"w")])
    assert store.state("k") == State(b"v", 1)
