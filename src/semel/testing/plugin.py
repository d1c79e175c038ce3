"""Fixtures for tests against real servers. Use them with `pytest_plugins = ["semel.testing.plugin"]`."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from semel.testing.postgres import PrivatePostgres, new_database
from semel.testing.renewing import sharing


@pytest.fixture(scope="session")
def postgres_server_url() -> Iterator[str]:
    """A PostgreSQL where databases may be created: SEMEL_TEST_POSTGRES, or a private one for this test process."""
    given = os.environ.get("SEMEL_TEST_POSTGRES")
    if given:
        yield given
        return
    with PrivatePostgres() as server, sharing(server):
        yield server.url


@pytest.fixture
def postgres_url(postgres_server_url: str) -> Iterator[str]:
    """The URL of an empty database, dropped after the test."""
    with new_database(postgres_server_url) as url:
        yield url
