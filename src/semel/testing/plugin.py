"""Fixtures for tests against real servers. Use them with `pytest_plugins = ["semel.testing.plugin"]`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from semel.testing.postgres import PrivatePostgres, make_template, new_database
from semel.testing.postgres_pair import Pair
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


@pytest.fixture(scope="session")
def postgres_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_template(tmp_path_factory.mktemp("postgres"))


@pytest.fixture
def postgres_pair(postgres_template: Path) -> Iterator[Pair]:
    """A primary with a synchronous standby, for this test alone."""
    with Pair(template=postgres_template) as pair:
        yield pair
