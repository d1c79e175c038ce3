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


class OddCursors(sqlite3.Connection):
    """Refuses to make a cursor: what is the user's own is not used."""

    def cursor(self, *args: object, **kwargs: object) -> sqlite3.Cursor:
        raise AssertionError("a cursor of the user's own")


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

    @pytest.fixture
    def lossy_connections(self, path: Path, store: Store) -> dict[str, Callable[[], sqlite3.Connection]]:
        """A copy has the store's own name, and a database of somebody else's has none."""
        SqliteStore(f"sqlite:///{path}.other").close()
        Path(f"{path}.copy").write_bytes(b"")

        def copy() -> sqlite3.Connection:
            connection = sqlite3.connect(f"{path}.copy")
            with closing(sqlite3.connect(path)) as original:
                original.backup(connection)
            return connection

        def not_durable() -> sqlite3.Connection:
            connection = sqlite3.connect(path)
            connection.execute("PRAGMA synchronous = NORMAL")
            return connection

        return {
            "autocommit": lambda: sqlite3.connect(path, isolation_level=None),
            "another store": lambda: sqlite3.connect(f"{path}.other"),
            "a copy": copy,
            "no store": lambda: sqlite3.connect(":memory:"),
            "not durable": not_durable,
        }

    @pytest.fixture
    def odd_connections(self, path: Path) -> dict[str, Callable[[], sqlite3.Connection]]:
        def connect(**factories: object) -> sqlite3.Connection:
            connection = sqlite3.connect(path, factory=OddCursors)
            for name, factory in factories.items():
                setattr(connection, name, factory)
            return connection

        return {
            "rows": lambda: connect(row_factory=sqlite3.Row),
            "dicts": lambda: connect(
                row_factory=lambda cursor, row: {at[0]: row[n] for n, at in enumerate(cursor.description)}
            ),
            "bytes": lambda: connect(text_factory=bytes),
        }


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
