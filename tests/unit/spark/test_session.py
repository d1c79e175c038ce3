"""The session: which settings are chosen and which errors are told. No JVM is started here."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, cast

import pytest

import semel
from semel.errors import ConfigError, PeerUnavailable
from semel.spark import session as module
from semel.spark.host import GIB, HostResources
from semel.spark.java import Java, start_cache
from semel.spark.session import (
    QUICK_CHECKPOINTS,
    asked_settings,
    check_executors,
    check_master,
    checked_master,
    checkpoint_settings,
    driver_memory,
    is_local,
    is_loopback,
    plan,
    spark_session,
)
from semel.testing.limits import scaled

MACHINE = HostResources(3, 10 * GIB)


# -- which settings


def test_on_one_machine_nothing_is_open_to_others() -> None:
    chosen = plan(MACHINE, {})
    assert chosen["spark.master"] == "local[3,4]"
    assert chosen["spark.driver.memory"] == "5120m"
    assert chosen["spark.sql.shuffle.partitions"] == "6"
    assert chosen["spark.ui.enabled"] == "false"
    assert chosen["spark.driver.bindAddress"] == "127.0.0.1"
    assert chosen["spark.sql.session.timeZone"] == "UTC"
    assert chosen["spark.sql.streaming.stateStore.providerClass"].endswith(".RocksDBStateStoreProvider")
    assert not QUICK_CHECKPOINTS.keys() & chosen.keys()


def test_a_cluster_must_reach_the_driver_and_chooses_its_own_partitions() -> None:
    chosen = plan(MACHINE, {"spark.master": "spark://far:7077"})
    for key in ("spark.ui.enabled", "spark.driver.host", "spark.driver.bindAddress", "spark.sql.shuffle.partitions"):
        assert key not in chosen
    assert plan(MACHINE, {"spark.master": "spark://127.0.0.1:7077"})["spark.driver.host"] == "127.0.0.1"


def test_what_was_asked_for_wins_and_a_named_argument_wins_over_the_table() -> None:
    asked = asked_settings(
        master="local[1]",
        memory="2g",
        partitions=7,
        settings={"spark.driver.memory": "9g", "spark.ui.enabled": "true", "spark.sql.adaptive.enabled": "true"},
    )
    chosen = plan(MACHINE, asked, fast=True)
    assert chosen["spark.driver.memory"] == "2g"
    assert chosen["spark.sql.shuffle.partitions"] == "7"
    assert chosen["spark.ui.enabled"] == "true"
    assert chosen["spark.sql.adaptive.enabled"] == "true"


def test_tests_run_on_one_partition() -> None:
    assert plan(MACHINE, {}, fast=True)["spark.sql.shuffle.partitions"] == "1"


@pytest.mark.parametrize(("free", "memory"), [(0, "1024m"), (GIB, "1024m"), (6 * GIB, "3072m"), (99 * GIB, "8192m")])
def test_memory_is_half_of_what_is_free_within_bounds(free: int, memory: str) -> None:
    assert driver_memory(HostResources(1, free)) == memory


@pytest.mark.parametrize(
    ("given", "master"),
    [
        ("local", "local[1,4]"),
        ("local[2]", "local[2,4]"),
        ("local[*]", "local[8,4]"),
        ("local[2,1]", "local[2,1]"),
        ("local[*, 3]", "local[8,3]"),
        ("local-cluster[2,1,1024]", "local-cluster[2,1,1024]"),
        ("spark://a:7077,b:7078", "spark://a:7077,b:7078"),
        ("yarn", "yarn"),
        ("k8s://https://host:6443", "k8s://https://host:6443"),
    ],
)
def test_masters(given: str, master: str) -> None:
    assert checked_master(given, 8) == master
    assert is_local(master) == master.startswith("local[")


@pytest.mark.parametrize(
    "given", ["", "locale", "local[0]", "local[]", "spark://", "spark://host", "mesos://x", "yarn2"]
)
def test_what_is_no_master_names_the_setting(given: str) -> None:
    with pytest.raises(ConfigError, match="is not a master of Spark") as caught:
        checked_master(given, 8)
    assert "[spark] master" in caught.value.fix
    assert "--master" in caught.value.fix


@pytest.mark.parametrize(
    ("master", "near"),
    [
        ("spark://127.0.0.1:1", True),
        ("spark://localhost:1,127.0.0.2:1", True),
        ("spark://[::1]:7077", True),
        ("spark://127.0.0.1:1,far:1", False),
        ("yarn", False),
    ],
)
def test_a_cluster_on_this_machine_is_recognised(master: str, near: bool) -> None:
    assert is_loopback(master) == near


# -- is the master there?


def test_a_master_that_answers_is_enough_even_if_another_does_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        check_master(f"spark://127.0.0.1:1,127.0.0.1:{server.getsockname()[1]}")


def test_a_master_that_does_not_answer_is_named_with_the_setting() -> None:
    with pytest.raises(PeerUnavailable) as caught:
        check_master("spark://127.0.0.1:1,127.0.0.1:99999")
    assert caught.value.message.startswith("the Spark master spark://127.0.0.1:1,127.0.0.1:99999 cannot be reached")
    assert "127.0.0.1:1: " in caught.value.message
    assert "[spark] master" in caught.value.fix


def test_no_java_is_started_for_a_master_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_running", lambda: None)
    monkeypatch.setattr(module, "find_java", lambda: pytest.fail("looked for Java"))
    with pytest.raises(PeerUnavailable):
        spark_session(master="spark://127.0.0.1:1")


@pytest.mark.parametrize("master", ["local[2,4]", "yarn", "k8s://https://host:1"])
def test_other_masters_are_not_called(master: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "create_connection", lambda *_: pytest.fail("called somebody"))
    check_master(master)


def test_without_pyspark_there_is_a_command_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match="no package pyspark") as caught:
        spark_session()
    assert caught.value.fix == "pip install 'semel[spark]'"


# -- checkpoints


@pytest.mark.parametrize(
    ("location", "quick"),
    [
        ("/data/x", True),
        ("file:///data/x", True),
        ("file:/data/x", True),
        ("/share/x/y", False),
        ("file:///share/x", False),
        ("/my disk/x", True),
        ("s3a://bucket/x", False),
        ("hdfs://name/x", False),
    ],
)
def test_the_quick_manager_is_for_disks_of_this_machine(location: str, quick: bool, tmp_path: Path) -> None:
    mounts = "a / ext4 rw 0 0\nb /share nfs4 rw 0 0\nc /share/x/y fuse.sshfs rw 0 0\nd /my\\040disk xfs rw 0 0\n"
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mounts").write_text(mounts)
    assert checkpoint_settings(location, tmp_path) == (QUICK_CHECKPOINTS if quick else {})


def test_where_mounts_are_not_known_the_safe_manager_stays(tmp_path: Path) -> None:
    assert checkpoint_settings("/data", tmp_path) == {}


# -- Java


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "jars").mkdir()
    (tmp_path / "a b").mkdir()
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    file = start_cache(JAVA, tmp_path / "jars", tmp_path / "a b")
    file.write_text("cache")
    return file


JAVA = Java(Path("/a"), "25.0.2", "PATH")


class Starts:
    """Stands for Spark: fails as often as told, and notes what Java's options were."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, failures: int, jvm: bool = False) -> None:
        self.options: list[str] = []
        self._failures = failures
        monkeypatch.setattr(module, "_started", self._start)
        monkeypatch.setattr(module, "_jvm_is_there", lambda: jvm)

    def _start(self, app: str, settings: dict[str, str]) -> str:
        self.options.append(settings["spark.driver.extraJavaOptions"])
        if len(self.options) <= self._failures:
            raise ConfigError("does not start")
        return "session"


def start(cache: Path, from_cache: bool = True) -> object:
    return module._started_on(JAVA, cache.parent, "app", {"spark.driver.extraJavaOptions": "-Dtheirs=1"}, from_cache)


def test_java_gets_its_log_settings_the_cache_and_what_the_user_wants(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts = Starts(monkeypatch, 0)
    assert start(cache) == "session"
    assert start(cache, from_cache=False) == "session"
    for options in starts.options:
        assert options.startswith("-Dlog4j2.configurationFile=file:///")
        assert options.endswith(" -Dtheirs=1")
    assert [f"'-XX:AOTCache={cache}'" in options for options in starts.options] == [True, False]
    assert "rootLogger.level = error" in (cache.parent / "log4j2.properties").read_text()


def test_a_cache_that_crashes_the_jvm_is_removed_and_spark_starts_without(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts = Starts(monkeypatch, 1)
    assert start(cache) == "session"
    assert ["AOTCache" in options for options in starts.options] == [True, False]
    assert not cache.exists()


@pytest.mark.parametrize(("from_cache", "jvm"), [(True, True), (False, False)])
def test_a_failure_that_is_not_the_fault_of_the_cache_is_told(
    from_cache: bool, jvm: bool, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts = Starts(monkeypatch, 1, jvm)
    with pytest.raises(ConfigError):
        start(cache, from_cache)
    assert len(starts.options) == 1
    assert cache.exists()


@pytest.mark.parametrize("before", [None, "/mine"])
def test_java_home_is_as_it_was_afterwards(before: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    if before is not None:
        monkeypatch.setenv("JAVA_HOME", before)
    seen = []

    def start() -> None:
        with module._java_home(Path("/shim")):
            seen.append(os.environ["JAVA_HOME"])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        start()
    assert seen == ["/shim"]
    assert os.environ.get("JAVA_HOME") == before


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("one line", "one line"),
        ("An error occurred.\n: java.lang.X: no\n\tat a\n\tat b", "java.lang.X: no"),
        ("An error\n: X\n\tat a\nCaused by: Y: first\n\tat b\nCaused by: Z: inner\n\t at c", "Z: inner"),
        ("", "ValueError"),
    ],
)
def test_a_stack_trace_is_told_in_one_line(text: str, cause: str) -> None:
    assert module._last_cause(ValueError(text)) == cause


# -- executors


class Cluster:
    """A session on a cluster, as far as the check looks: with so many executors, on hosts with these versions."""

    def __init__(self, executors: int, *versions: str | None) -> None:
        self.sparkContext = self._jsc = self
        self.master, self.applicationId, self.defaultParallelism = "spark://far:7077", f"app-{id(self)}", 2
        self._size = executors + 1
        self._versions = versions
        self.asked = 0

    def sc(self) -> Cluster:
        return self

    def getExecutorMemoryStatus(self) -> Cluster:
        return self

    def size(self) -> int:
        return self._size

    def parallelize(self, *_: object) -> Cluster:
        self.asked += 1
        return self

    def map(self, _: object) -> Cluster:
        return self

    def collect(self) -> list[tuple[str, str | None]]:
        return [(f"host-{number}", version) for number, version in enumerate(self._versions)]


def check(cluster: Cluster, timeout_s: float = 5.0) -> None:
    check_executors(cast("Any", cluster), timeout_s)


def test_a_cluster_that_gives_no_executor_is_told_in_time() -> None:
    with pytest.raises(PeerUnavailable, match="has given no executor within 0 s"):
        check(Cluster(0), 0.0)


def test_executors_are_asked_once() -> None:
    cluster = Cluster(1, semel.__version__, semel.__version__)
    check(cluster)
    check(cluster)
    assert cluster.asked == 1


def test_every_executor_with_another_version_is_named() -> None:
    with pytest.raises(ConfigError) as caught:
        check(Cluster(3, semel.__version__, "0.0.1", None))
    assert caught.value.message.endswith(": host-1 has 0.0.1; host-2 has none")
    assert caught.value.fix == f"on every worker: pip install 'semel[spark]=={semel.__version__}'"


# -- what the JVM says


def test_what_says_nothing_is_left_out_and_all_else_is_passed_on(capfd: pytest.CaptureFixture[str]) -> None:
    said = (
        "Warning: Java versions > Java 11 can only operate in restricted mode where no off-heap operations are allowed",
        "ERROR Executor: out of memory",
        "Starting Streaming TransformWithStateInPandas Python worker.",
        "",
        "Streaming TransformWithStateInPandas Python worker received parameters",
        "",
        "Traceback",
        "",
        "the end",
    )
    with module._filtered_stderr():
        subprocess.run([sys.executable, "-c", "import sys; sys.stderr.write(sys.argv[1])", "\n".join(said)], check=True)
    for thread in threading.enumerate():
        if thread.name == "stderr-of-spark":
            thread.join(scaled(30))
    assert capfd.readouterr().err == "ERROR Executor: out of memory\nTraceback\n\nthe end"
    os.write(2, b"direct again")
    assert capfd.readouterr().err == "direct again"


def test_what_was_said_before_a_failure_is_told_before_it(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(subprocess.CalledProcessError), module._filtered_stderr():
        subprocess.run(["sh", "-c", "echo no such option >&2; exit 1"], check=True)
    assert capfd.readouterr().err == "no such option\n"
