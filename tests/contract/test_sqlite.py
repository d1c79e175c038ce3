"""The SQLite store keeps the contract, alone and shared by several store objects on one file."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from semel.kernel.store import Store
from semel.stores.sqlite import SqliteStore
from semel.testing.contract import DurableContract, ManualClock, SharedContract, StoreContract, World

pytestmark = pytest.mark.contract


class SqliteFixtures:
    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock()

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return tmp_path / "semel.db"

    @pytest.fixture
    def make_store(self, path: Path, clock: ManualClock) -> Iterator[Callable[[], Store]]:
        with ExitStack() as stack:
            yield lambda: stack.enter_context(closing(SqliteStore(f"sqlite:///{path}", clock=clock)))

    @pytest.fixture
    def connect(self, path: Path) -> Callable[[], sqlite3.Connection]:
        return lambda: sqlite3.connect(path)


class TestSqlite(SqliteFixtures, StoreContract):
    examples = 50

    @pytest.fixture
    def new_world(self) -> Callable[[], AbstractContextManager[World]]:
        @contextmanager
        def world() -> Iterator[World]:
            clock = ManualClock()
            with TemporaryDirectory() as folder:
                yield World(lambda: SqliteStore(f"sqlite:///{folder}/semel.db", clock=clock), clock)

        return world


class TestDurableSqlite(SqliteFixtures, DurableContract):
    pass


class TestSharedSqlite(SqliteFixtures, SharedContract):
    pass
