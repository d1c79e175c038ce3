"""For all tests: servers to test against, and which tests run in the process that has Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.tools.private_postgres import SharedPostgres
from tests.tools.renewing import sharing

from semel.testing.postgres import PrivatePostgres

# before anybody imports it
pytest.register_assert_rewrite("semel.testing.transport_contract")

pytest_plugins = ["tests.tools.anywhere", "semel.testing.plugin"]

SPARK = Path("tests", "spark")
"""Where the tests are that need Spark."""


@pytest.fixture(scope="session")
def private_postgres(private_postgres: PrivatePostgres) -> Iterator[PrivatePostgres]:
    """A test that breaks it gets the others a new one."""
    with sharing(SharedPostgres(private_postgres)):
        yield private_postgres


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--spark", choices=("only", "without"), help="run the tests that need Spark, or the others")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """To collect all the others takes longer than most tests with Spark."""
    folder = config.rootpath / SPARK
    is_within = collection_path.is_relative_to(folder)
    match config.getoption("--spark"):
        case "without" if is_within:
            return True
        case "only" if not is_within and not folder.is_relative_to(collection_path):
            return True
    return None


@pytest.hookimpl(trylast=True)  # after every folder has marked its own
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if (chosen := config.getoption("--spark")) is None:
        return
    parts: dict[str, list[pytest.Item]] = {"only": [], "without": []}
    for item in items:
        parts["without" if item.get_closest_marker("spark") is None else "only"].append(item)
    # the longest first: what is left at the end is short, and the workers end together
    items[:] = sorted(parts.pop(chosen), key=_seconds, reverse=True)
    [others] = parts.values()
    config.hook.pytest_deselected(items=others)


def _seconds(item: pytest.Item) -> float:
    slow = item.get_closest_marker("slow")
    return 0.0 if slow is None else slow.args[0]
