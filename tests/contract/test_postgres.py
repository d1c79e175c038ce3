"""The PostgreSQL store keeps the contract, alone and shared by several store objects on one database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from semel.kernel.store import Store
from semel.stores.postgres import PostgresStore
from semel.testing.contract import DurableContract, SharedContract, StoreContract, World
from semel.testing.postgres import new_database

pytestmark = pytest.mark.contract


class TimeTravel(PostgresStore):
    """Sweeps at whatever time a test says, because nobody can set the server's clock."""

    def _sweep_time(self, now: int) -> int:
        return now


class PostgresFixtures:
    @pytest.fixture
    def make_store(self, postgres_url: str) -> Iterator[Callable[[], Store]]:
        with ExitStack() as stack:
            yield lambda: stack.enter_context(closing(TimeTravel(postgres_url)))

    @pytest.fixture
    def connect(self, postgres_url: str) -> Callable[[], psycopg.Connection[Any]]:
        return lambda: psycopg.connect(postgres_url)

    @pytest.fixture
    def lossy_connections(
        self, postgres_url: str, postgres_server_url: str
    ) -> Iterator[dict[str, Callable[[], psycopg.Connection[Any]]]]:
        def with_commit(setting: str) -> psycopg.Connection[Any]:
            return psycopg.connect(postgres_url, options=f"-c synchronous_commit={setting}")

        with new_database(postgres_server_url) as other:
            PostgresStore(other).close()
            yield {
                "autocommit": lambda: psycopg.connect(postgres_url, autocommit=True),
                "another store": lambda: psycopg.connect(other),
                "off": lambda: with_commit("off"),
                "local": lambda: with_commit("local"),
                "remote_write": lambda: with_commit("remote_write"),
            }

    @pytest.fixture
    def odd_connections(self, postgres_url: str) -> dict[str, Callable[[], psycopg.Connection[Any]]]:
        return {
            "dicts": lambda: psycopg.connect(postgres_url, row_factory=dict_row),
            "cursors": lambda: psycopg.connect(postgres_url, cursor_factory=psycopg.ClientCursor),
            "never prepared": lambda: psycopg.connect(postgres_url, prepare_threshold=None),
            "always prepared": lambda: psycopg.connect(postgres_url, prepare_threshold=0),
            "remote_apply": lambda: psycopg.connect(postgres_url, options="-c synchronous_commit=remote_apply"),
        }


class TestPostgres(PostgresFixtures, StoreContract):
    examples = 12
    steps = 20

    @pytest.fixture
    def new_world(self, postgres_server_url: str) -> Callable[[], AbstractContextManager[World]]:
        @contextmanager
        def world() -> Iterator[World]:
            with new_database(postgres_server_url) as url:
                yield World(lambda: TimeTravel(url))

        return world


class TestDurablePostgres(PostgresFixtures, DurableContract):
    pass


class TestSharedPostgres(PostgresFixtures, SharedContract):
    pass
