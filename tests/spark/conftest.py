"""One Spark session for all tests of a worker, started when the first of them asks for it.

Those that use it are marked `spark`, and `make test` runs them apart. The others here start processes of their own, and
run beside the rest of the tests.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from semel.testing.spark_cluster import SparkCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE) and "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.spark)


@pytest.fixture(scope="session")
def _spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    from semel.spark.session import spark_session

    folder = tmp_path_factory.mktemp("spark")
    places = {"spark.sql.warehouse.dir": str(folder / "warehouse"), "spark.local.dir": str(folder / "local")}
    spark = spark_session(app="semel-tests", master="local[2]", memory="2g", settings=places, fast=True)
    yield spark
    spark.stop()
    # the gateway belongs to the process and would be closed by the garbage collector, with a warning
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()


@pytest.fixture
def spark(_spark: SparkSession) -> Iterator[SparkSession]:
    """The session, left as it was found: no query runs on, nothing is cached, no view stays, no setting is changed."""
    before = dict(_spark.conf.getAll)
    yield _spark
    for query in _spark.streams.active:
        query.stop()
    _spark.streams.resetTerminated()
    _spark.catalog.clearCache()
    for table in _spark.catalog.listTables():
        if table.isTemporary:
            _spark.catalog.dropTempView(table.name)
    _restore(_spark, before)


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
