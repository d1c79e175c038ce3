"""What several tests with a real server share. A module that needs another `served` has its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.interop.served import Served, shared_server
from tests.tools.postgres_pair import Pair
from tests.tools.private_postgres import make_template

from semel.stores import postgres_switch
from semel.stores.points import on_reach
from semel.testing.limits import scaled


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with shared_server(tmp_path_factory.mktemp("served")) as server:
        yield server


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[Served]:
    """A server that a test may kill."""
    server = Served(tmp_path)
    yield server
    server.stop()


@pytest.fixture(scope="session")
def postgres_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_template(tmp_path_factory.mktemp("postgres"))


@pytest.fixture
def postgres_pair(postgres_template: Path) -> Iterator[Pair]:
    """A primary with a synchronous standby, for this test alone."""
    with Pair(template=postgres_template) as pair:
        yield pair


# -- for tests of the PostgreSQL store


@pytest.fixture
def pair(postgres_pair: Pair, monkeypatch: pytest.MonkeyPatch) -> Pair:
    """On a slow machine a member that vouches late is not silent, which would cost the epoch."""
    monkeypatch.setattr(postgres_switch, "DECIDE_S", scaled(postgres_switch.DECIDE_S))
    return postgres_pair


@pytest.fixture
def url(pair: Pair) -> Iterator[str]:
    """A database of the pair. It leads to whichever of the two may be written."""
    with pair.new_database() as url:
        yield url


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as threads:
        yield threads


@pytest.fixture
def hook() -> Iterator[Callable[[Callable[[str], None] | None], None]]:
    """Have something called at every point that a store passes."""
    yield on_reach
    on_reach(None)
