"""A Spark cluster on this machine: one master and some workers, each a process of its own, reachable from here only.

    with SparkCluster() as cluster:
        spark_session(master=cluster.url)

One process can have one driver, so a test that has a session already starts its driver in a child.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from tests.tools.paths import child_environment

from semel.errors import PeerUnavailable
from semel.spark.java import cache_folder, find_java, java_home, write_once
from semel.spark.session import spark_jars
from semel.testing.limits import scaled

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 10.0
HOST = "127.0.0.1"

_LOG4J = """rootLogger.level = info
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %p %c{1}: %m%n%ex
"""


class SparkCluster:
    """A context manager. `url` is what `--master` takes; `kill_worker` and `add_worker` are for tests that hurt it."""

    def __init__(self, workers: int = 2, *, cores: int = 1, memory: str = "1g") -> None:
        self.url = ""
        self.workers: list[subprocess.Popen[bytes]] = []
        self._wanted, self._cores, self._memory = workers, cores, memory
        self._master: subprocess.Popen[bytes] | None = None
        self._started = 0
        self._folder = Path()
        self._home = Path()

    def __enter__(self) -> SparkCluster:
        self._folder = Path(tempfile.mkdtemp(prefix="semel-cluster-"))
        self._home = java_home(find_java(), cache_folder())
        write_once(self._folder / "log4j2.properties", _LOG4J)
        try:
            self._master = self._start("master.Master", "master")
            self.url = self._read_url()
            for _ in range(self._wanted):
                self._launch_worker()
            self._await_registered(self._wanted)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End what was started here, and nothing else. A worker takes its executors with it."""
        running = [*self.workers, *([self._master] if self._master else [])]
        for process in running:
            process.terminate()
        for process in running:
            try:
                process.wait(scaled(STOP_TIMEOUT_S))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.workers, self._master = [], None
        shutil.rmtree(self._folder, ignore_errors=True)

    def kill_worker(self, number: int = 0) -> None:
        """With -9. Its executors notice and end themselves."""
        worker = self.workers.pop(number)
        worker.kill()
        worker.wait()

    def add_worker(self) -> None:
        self._launch_worker()
        self._await_registered(self._started)

    def _launch_worker(self) -> None:
        self._started += 1
        name = f"worker-{self._started}"
        size = ["--cores", str(self._cores), "--memory", self._memory]
        self.workers.append(self._start("worker.Worker", name, *size, "--work-dir", str(self._folder / name), self.url))

    def _start(self, machine: str, name: str, *options: str) -> subprocess.Popen[bytes]:
        jars = spark_jars()
        command = [
            str(self._home / "bin" / "java"),
            *("-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"),
            f"-Dlog4j2.configurationFile={(self._folder / 'log4j2.properties').as_uri()}",
            "-cp",
            f"{jars}/*",
            f"org.apache.spark.deploy.{machine}",
            *("--host", HOST, "--port", "0", "--webui-port", "0"),
            *options,
        ]
        settings = {
            "JAVA_HOME": str(self._home),
            "SPARK_HOME": str(jars.parent),
            "SPARK_SCALA_VERSION": _scala(jars),  # the launcher would look for it in a source tree
            "SPARK_LOCAL_IP": HOST,
            "SPARK_LOCAL_DIRS": str(self._folder / f"{name}-local"),
            "PYSPARK_PYTHON": sys.executable,
        }
        with self._log(name).open("wb") as log:
            return subprocess.Popen(
                command,
                cwd=self._folder,
                env={**child_environment(), **settings},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def _read_url(self) -> str:
        found = self._await_log("the master did not start", lambda text: re.findall(rf"spark://{HOST}:\d+", text)[:1])
        return found[0]

    def _await_registered(self, count: int) -> None:
        self._await_log(
            f"no {count} workers came to the master",
            lambda text: re.findall(r"Registering worker ", text)[count - 1 :],
        )

    def _await_log(self, problem: str, search: Callable[[str], list[str]]) -> list[str]:
        """Read the master's log until something is in it."""
        until = time.monotonic() + scaled(START_TIMEOUT_S)
        while not (found := search(self._log("master").read_text(errors="replace"))):
            ended = [process for process in [self._master, *self.workers] if process and process.poll() is not None]
            if ended or time.monotonic() > until:
                logs = "\n".join(log.read_text(errors="replace")[-2000:] for log in self._folder.glob("*.log"))
                raise PeerUnavailable(f"{problem}:\n{logs}", fix="read the end of these logs")
            time.sleep(0.05)
        return found


def _scala(jars: Path) -> str:
    """The version of Scala that these jars are made for, as in spark-core_2.13-4.3.0.jar."""
    [core] = jars.glob("spark-core_*.jar")
    return core.name.split("_")[1].split("-")[0]
