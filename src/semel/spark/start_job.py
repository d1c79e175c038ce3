"""A small job that touches what most jobs touch. `java.build_start_cache` runs it to see what a JVM loads.

python -m semel.spark.start_job JVM-OPTION...
"""

from __future__ import annotations

import shlex
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semel.spark.session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def main(options: list[str]) -> None:
    """Run the job in a JVM with these options, and wait until the JVM has written what it was asked to write."""
    with tempfile.TemporaryDirectory() as folder:
        spark = spark_session(
            app="semel-start",
            master="local[2]",
            partitions=1,
            settings={"spark.driver.extraJavaOptions": shlex.join(options)},
            start_from_cache=False,
        )
        _work(spark, Path(folder))
        jvm: Any = spark.sparkContext._gateway
        spark.stop()
        jvm.proc.stdin.close()
        jvm.proc.wait()


def _work(spark: SparkSession, folder: Path) -> None:
    rows = spark.range(10_000).selectExpr("id", "id % 7 AS session", "cast(id AS string) AS text")
    rows.write.parquet(str(folder / "rows"))
    stored = spark.read.parquet(str(folder / "rows"))
    stored.groupBy("session").agg({"id": "max", "text": "count"}).join(rows, "session").count()
    stored.mapInArrow(lambda batches: batches, stored.schema).count()
    query = (
        spark.readStream.schema(stored.schema)
        .parquet(str(folder / "rows"))
        .dropDuplicates(["id"])
        .writeStream.format("noop")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1:])
