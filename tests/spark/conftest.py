"""One Spark session for all tests of a worker, started when the first of them asks for it.

All tests in this folder are marked `spark`, and `make test` runs them in a pytest of their own. Some do not need the
session and start a Spark of their own, in another process.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.spark.shared_session import SharedSession
from tests.tools.renewing import sharing
from tests.tools.spark_cluster import SparkCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.spark)


@pytest.fixture(scope="session")
def shared_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedSession]:
    with sharing(SharedSession(tmp_path_factory.mktemp("spark"))) as session:
        yield session
        session.close()


@pytest.fixture
def spark(shared_spark: SharedSession) -> Iterator[SparkSession]:
    """The session, left as it was found: no query runs on, nothing is cached, no view stays, no setting is changed."""
    session = shared_spark.get()
    before = dict(session.conf.getAll)
    yield session
    for query in session.streams.active:
        query.stop()
    session.streams.resetTerminated()
    session.catalog.clearCache()
    for table in session.catalog.listTables():
        if table.isTemporary:
            session.catalog.dropTempView(table.name)
    _restore(session, before)


def _restore(spark: SparkSession, before: dict[str, str]) -> None:
    now = dict(spark.conf.getAll)
    for key in now.keys() - before.keys():
        spark.conf.unset(key)
    for key, value in before.items():
        if now.get(key) != value:
            spark.conf.set(key, value)


@pytest.fixture(scope="session")
def spark_cluster() -> Iterator[SparkCluster]:
    """A master and two workers with a core and 1 GiB each. This process may have a session already: run the driver in
    a child, with `spark_session(master=spark_cluster.url)`."""
    with SparkCluster(workers=2, cores=1, memory="1g") as cluster:
        yield cluster
