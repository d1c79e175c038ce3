"""Fixtures for tests against real servers. Use them with `pytest_plugins = ["semel.testing.plugin"]`."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from semel.testing.postgres import PrivatePostgres, new_database


@pytest.fixture(scope="session")
def private_postgres() -> Iterator[PrivatePostgres]:
    """A PostgreSQL for this test process alone. It does not wait for the disk."""
    with PrivatePostgres() as server:
        yield server


@pytest.fixture(scope="session")
def postgres_server_url(request: pytest.FixtureRequest) -> str:
    """A PostgreSQL where databases may be created: SEMEL_TEST_POSTGRES, or a private one for this test process."""
    if given := os.environ.get("SEMEL_TEST_POSTGRES"):
        return given
    server: PrivatePostgres = request.getfixturevalue("private_postgres")
    return server.url


@pytest.fixture
def postgres_url(postgres_server_url: str) -> Iterator[str]:
    """The URL of an empty database, dropped after the test."""
    with new_database(postgres_server_url) as url:
        yield url
