"""The PostgreSQL store keeps the contract, alone and shared by several store objects on one database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any

import psycopg
import pytest

from semel.kernel.store import Store
from semel.stores.postgres import PostgresStore
from semel.testing.contract import DurableContract, SharedContract, StoreContract

pytestmark = pytest.mark.contract


class PostgresFixtures:
    @pytest.fixture
    def make_store(self, postgres_url: str) -> Iterator[Callable[[], Store]]:
        with ExitStack() as stack:
            yield lambda: stack.enter_context(closing(PostgresStore(postgres_url)))

    @pytest.fixture
    def connect(self, postgres_url: str) -> Callable[[], psycopg.Connection[Any]]:
        return lambda: psycopg.connect(postgres_url)


class TestPostgres(PostgresFixtures, StoreContract):
    pass


class TestDurablePostgres(PostgresFixtures, DurableContract):
    pass


class TestSharedPostgres(PostgresFixtures, SharedContract):
    pass
