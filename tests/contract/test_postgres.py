"""The PostgreSQL store keeps the contract, alone and shared by several store objects on one database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from typing import Any

import psycopg
import pytest

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
