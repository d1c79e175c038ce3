"""The Spark session that all tests of a worker share. A test that breaks it gets the others a new one."""

from __future__ import annotations

import gc
import warnings
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tests.tools.leftovers import shared

from semel.testing.limits import scaled

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

END_S = 60.0


class SharedSession:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._session: SparkSession | None = None

    def get(self) -> SparkSession:
        from semel.spark.session import spark_session

        if self._session is None:
            folder = self._folder
            places = {"spark.sql.warehouse.dir": str(folder / "warehouse"), "spark.local.dir": str(folder / "local")}
            with shared("spark"):
                self._session = spark_session(
                    app="semel-tests", master="local[2]", memory="2g", settings=places, fast=True
                )
        return self._session

    def is_well(self) -> bool:
        return self._session is None or self._session.range(1).count() == 1

    def cut_off(self) -> None:
        from pyspark import SparkContext

        if SparkContext._gateway is not None:
            SparkContext._gateway.proc.kill()

    def renew(self) -> None:
        """The JVM goes, and with it whatever it was at. Nothing is asked of it: it may not answer any more."""
        from pyspark import SparkContext
        from pyspark.sql import SparkSession

        self._session = None
        gateway, SparkContext._gateway = SparkContext._gateway, None
        SparkContext._jvm = SparkContext._active_spark_context = None
        SparkSession._instantiatedSession = SparkSession._activeSession = None
        if gateway is not None:
            gateway.proc.kill()
            gateway.proc.stdin.close()
            gateway.proc.wait()
            with suppress(Exception):
                gateway.shutdown()
        del gateway
        with warnings.catch_warnings():  # its connections, which nobody can close in order any more
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()

    def close(self) -> None:
        if self._session is None:
            return
        self._session.stop()
        # the gateway belongs to the process and would be closed by the garbage collector, with a warning
        gateway = self._session.sparkContext._gateway
        assert gateway is not None
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(scaled(END_S))
