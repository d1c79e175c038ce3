"""The session: Spark started with settings that fit the machine, and with Semel's source and sink in it.

    spark = spark_session()
    spark.read.format("semel").option("store", url).option("stream", name).load()

What is chosen here can be overruled by name with `settings`. A session that is running already is used as it is.
"""

from __future__ import annotations

import os
import re
import shlex
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semel import __version__
from semel.errors import ConfigError, PeerUnavailable
from semel.spark.host import GIB, HostResources, this_machine
from semel.spark.java import (
    INSTALL,
    Java,
    cache_folder,
    find_java,
    java_home,
    start_cache,
    use_options,
    write_once,
)
from semel.spark.python import choose_python

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASK_ATTEMPTS = 4
CONNECT_TIMEOUT_S = 5.0
EXECUTORS_TIMEOUT_S = 60.0
MASTER_NAMES = "[spark] master in semel.toml, or --master"

NEEDED = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}
"""What Semel's source, sink and transforms count on. A checkpoint keeps some of it for good."""

EVOLVING_STATE = {"spark.sql.streaming.stateStore.encodingFormat": "avro"}
"""For a query whose state variables may get new fields. Not for the session: Spark refuses dropDuplicates with it."""

TUNED = {
    "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "1000000",
    "spark.ui.showConsoleProgress": "false",
    # else PySpark asks the JVM several times for each column where in the program it was written: a third of an audit
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    # of what rows take to cross between the JVM and Python, this saves some hundredths
    "spark.buffer.size": "1048576",
}

LOCAL = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
"""On one machine nobody else needs to reach the driver, so nobody else can."""

QUICK_CHECKPOINTS = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}

_SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=256m"
"""A JVM that is gone in minutes is better off with code that is compiled quickly than with code that runs quickly. Such
a one would have little room for it, throw away what many queries have generated, and compile it again."""

FAST = {
    **QUICK_CHECKPOINTS,
    "spark.driver.extraJavaOptions": _SHORT_LIVED,
    "spark.executor.extraJavaOptions": _SHORT_LIVED,
    "spark.sql.shuffle.partitions": "1",
    "spark.default.parallelism": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.shuffle.compress": "false",
    "spark.sql.streaming.pollingDelay": "1ms",
}
"""For tests: little data, many queries."""

_LOG4J = """# Written by Semel: errors only, on stderr.
rootLogger.level = error
rootLogger.appenderRef.console.ref = console
# Spark takes the level of its gateway for the root, and says so aloud when the two differ.
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""


def spark_session(
    *,
    app: str = "semel",
    master: str | None = None,
    memory: str | None = None,
    partitions: int | None = None,
    settings: Mapping[str, str] | None = None,
    fast: bool = False,
    start_from_cache: bool = True,
) -> SparkSession:
    """Start Spark, or take the session that is running. Raises ConfigError when it cannot be started as asked, and
    PeerUnavailable when the master does not answer."""
    need_pyspark()
    asked = asked_settings(master=master, memory=memory, partitions=partitions, settings=settings)
    if (running := _running()) is not None:
        return _reused(running, asked)
    if "PYSPARK_GATEWAY_PORT" in os.environ:  # spark-submit has started the JVM and knows the master
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        return _ready(_started(app, NEEDED | TUNED | (FAST if fast else {}) | asked))
    chosen = plan(this_machine(), asked, fast=fast)
    check_master(chosen["spark.master"])
    java, folder = find_java(), cache_folder()
    choose_python(chosen["spark.master"], folder)
    with _java_home(java_home(java, folder)):
        return _ready(_started_on(java, folder, app, chosen, start_from_cache))


def need_pyspark() -> None:
    if find_spec("pyspark") is None:
        raise ConfigError("Spark is not installed: there is no package pyspark here", fix=INSTALL)


def register(spark: SparkSession) -> None:
    """Make `format("semel")` known to a session."""
    from semel.spark.source import FilteringSemelDataSource, SemelDataSource

    filters = spark.conf.get("spark.sql.python.filterPushdown.enabled") == "true"
    spark.dataSource.register(FilteringSemelDataSource if filters else SemelDataSource)


# -- which settings


def asked_settings(
    *, master: str | None, memory: str | None, partitions: int | None, settings: Mapping[str, str] | None
) -> dict[str, str]:
    """What the caller said, in Spark's words. A named argument wins over the same thing in `settings`."""
    named = {
        "spark.master": None if master is None else checked_master(master, this_machine().cores),
        "spark.driver.memory": memory,
        "spark.sql.shuffle.partitions": None if partitions is None else str(partitions),
    }
    return {**(settings or {}), **{key: value for key, value in named.items() if value is not None}}


def plan(machine: HostResources, asked: Mapping[str, str], *, fast: bool = False) -> dict[str, str]:
    """All settings but those of Java: Semel's choices for this machine, and over them what was asked for."""
    master = asked.get("spark.master", f"local[{machine.cores},{TASK_ATTEMPTS}]")
    chosen = {**NEEDED, **TUNED, "spark.master": master, "spark.driver.memory": driver_memory(machine)}
    if is_local(master):
        chosen |= {**LOCAL, "spark.sql.shuffle.partitions": str(2 * machine.cores)}
    elif is_loopback(master):
        chosen |= {key: LOCAL[key] for key in ("spark.driver.host", "spark.driver.bindAddress")}
    return {**chosen, **(FAST if fast else {}), **asked}


def driver_memory(machine: HostResources) -> str:
    """Half of what is free, 1 to 8 GiB: beside the JVM there are Python workers and RocksDB, which are not in its
    heap."""
    return f"{min(max(machine.memory // 2, GIB), 8 * GIB) >> 20}m"


def checked_master(master: str, cores: int) -> str:
    """A master that Spark will understand. On one machine a failed task is tried again, as on a cluster."""
    if found := re.fullmatch(r"local(?:\[(\*|[1-9]\d*)(?:,\s*([1-9]\d*))?\])?", master):
        count = {None: "1", "*": str(cores)}.get(found[1], found[1])
        return f"local[{count},{found[2] or TASK_ATTEMPTS}]"
    if re.fullmatch(r"yarn|k8s://.+|local-cluster\[\d+,\s*\d+,\s*\d+\]", master) or _hosts(master):
        return master
    raise ConfigError(
        f"{master!r} is not a master of Spark",
        fix=f"set {MASTER_NAMES}, to local[N], spark://host:port, yarn or k8s://https://host:port",
    )


def is_local(master: str) -> bool:
    return re.match(r"local(\[|$)", master) is not None


def is_loopback(master: str) -> bool:
    hosts = _hosts(master)
    return bool(hosts) and all(host in {"localhost", "::1"} or host.startswith("127.") for host, _ in hosts)


def _hosts(master: str) -> list[tuple[str, int]]:
    """The addresses in spark://host:port,host:port; none when it is not one of these."""
    if not (found := re.fullmatch(r"spark://([^\s/]+)", master)):
        return []
    parts = [re.fullmatch(r"\[?(.+?)\]?:(\d{1,5})", part) for part in found[1].split(",")]
    return [(part[1], int(part[2])) for part in parts if part] if all(parts) else []


def check_master(master: str, timeout_s: float = CONNECT_TIMEOUT_S) -> None:
    """Spark itself takes a minute to find out that nobody is there, and says so in a stack trace."""
    reasons = []
    for host, port in _hosts(master):
        try:
            socket.create_connection((host, port), timeout_s).close()
            return
        except (OSError, OverflowError) as error:
            reasons.append(f"{host}:{port}: {error}")
    if reasons:
        raise PeerUnavailable(
            f"the Spark master {master} cannot be reached ({'; '.join(reasons)})",
            fix=f"start it, or correct {MASTER_NAMES}",
        )


def checkpoint_settings(location: str, root: Path = Path("/")) -> dict[str, str]:
    """Settings for a query with its checkpoint there. A disk of this machine allows a manager that is twice as quick;
    elsewhere its renames are not safe."""
    scheme, separator, rest = location.partition(":")
    if separator and scheme != "file" and "/" not in scheme:
        return {}
    path = Path("/" + rest.lstrip("/")) if separator and scheme == "file" else Path(location)
    return QUICK_CHECKPOINTS if _is_on_own_disk(path.absolute(), root) else {}


_OWN_DISKS = frozenset({"apfs", "bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "tmpfs", "xfs", "zfs"})


def _is_on_own_disk(path: Path, root: Path) -> bool:
    """By the list of mounts. Where there is no such list, it is not known, which counts as no."""
    try:
        lines = (root / "proc/self/mounts").read_text().splitlines()
    except OSError:
        return False
    kinds = {Path(fields[1].replace("\\040", " ")): fields[2] for fields in map(str.split, lines)}
    real = path.resolve()
    return next((kinds[folder] for folder in [real, *real.parents] if folder in kinds), "") in _OWN_DISKS


# -- starting


def spark_jars() -> Path:
    """The jars that come with pyspark, or those of the Spark that SPARK_HOME names."""
    need_pyspark()
    import pyspark

    return Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent) / "jars"


def _started_on(java: Java, folder: Path, app: str, chosen: Mapping[str, str], start_from_cache: bool) -> SparkSession:
    """A damaged cache can crash a JVM before it has begun. Then it goes, and Spark starts without it."""
    cache = start_cache(java, spark_jars(), folder)
    options = use_options(cache) if start_from_cache else []
    try:
        return _started(app, {**chosen, **_java_options(folder, chosen, options)})
    except ConfigError:
        if not options or _jvm_is_there():
            raise
        cache.unlink(missing_ok=True)
        return _started(app, {**chosen, **_java_options(folder, chosen, [])})


def _jvm_is_there() -> bool:
    from pyspark import SparkContext

    return SparkContext._gateway is not None


def _java_options(folder: Path, chosen: Mapping[str, str], more: list[str]) -> dict[str, str]:
    log4j = write_once(folder / "log4j2.properties", _LOG4J)
    options = [f"-Dlog4j2.configurationFile={log4j.as_uri()}", *more]
    theirs = chosen.get("spark.driver.extraJavaOptions", "")
    return {"spark.driver.extraJavaOptions": f"{shlex.join(options)} {theirs}".strip()}


@contextmanager
def _java_home(home: Path) -> Iterator[None]:
    """Only the JVM that is started now shall see the shim, and not whatever else this program may start."""
    before = os.environ.get("JAVA_HOME")
    os.environ["JAVA_HOME"] = str(home)
    try:
        yield
    finally:
        if before is None:
            del os.environ["JAVA_HOME"]
        else:
            os.environ["JAVA_HOME"] = before


def _started(app: str, settings: Mapping[str, str]) -> SparkSession:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(app)
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        with _filtered_stderr():
            return builder.getOrCreate()
    except Exception as error:
        _clear_away()
        raise ConfigError(
            f"Spark does not start: {_last_cause(error)}",
            fix=f"see what it wrote above; `semel doctor` says what it runs with; a cluster is set by {MASTER_NAMES}",
        ) from error


_NOISE = (
    b"Warning: Java versions > Java 11 can only operate in restricted mode",
    b"Starting Streaming TransformWithStateInPandas Python worker",
    b"Streaming TransformWithStateInPandas Python worker ",
)
"""What a library for sketches and the workers of stateful queries print past all settings for logs."""


@contextmanager
def _filtered_stderr() -> Iterator[None]:
    """A JVM that is started now writes to a pipe instead of stderr, and all but the noise is passed on from there. Its
    Python workers write to its stderr too. What ends with this process is the pipe, and then nobody listens anyway."""
    try:
        sys.stderr.flush()
        real = os.dup(2)
    except (AttributeError, OSError, ValueError):  # a program without a stderr
        yield
        return
    reading, writing = os.pipe()
    os.dup2(writing, 2)
    os.close(writing)
    listener = threading.Thread(target=_pass_on, args=(reading, os.dup(real)), name="stderr-of-spark", daemon=True)
    listener.start()
    try:
        yield
    except BaseException:
        os.dup2(real, 2)
        listener.join(1.0)  # a JVM that could not start is gone, and what it said comes before what is said about it
        raise
    finally:
        os.dup2(real, 2)
        os.close(real)


def _pass_on(reading: int, to: int) -> None:
    """Line by line, without the noise and the empty lines that follow it."""
    with open(reading, "rb") as lines, open(to, "wb", buffering=0) as out:
        was_noise = False
        for line in lines:
            was_noise = line.startswith(_NOISE) or (was_noise and not line.strip())
            if not was_noise:
                with suppress(OSError):
                    out.write(line)


def _clear_away() -> None:
    """A context that failed half-way would be taken for a running one by the next call."""
    from pyspark import SparkContext

    if SparkContext._active_spark_context is not None:
        with suppress(Exception):
            SparkContext._active_spark_context.stop()


def _last_cause(error: Exception) -> str:
    """The innermost reason in one line, out of a stack trace of Java."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    causes = [line for line in lines if line.startswith("Caused by: ")]
    return (causes[-1].removeprefix("Caused by: ") if causes else lines[-1 if len(lines) < 3 else 1]).strip(" :")


def _ready(spark: SparkSession) -> SparkSession:
    register(spark)
    return spark


def _running() -> SparkSession | None:
    if "pyspark.sql" not in sys.modules:
        return None
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is None and SparkContext._active_spark_context is not None:
        active = SparkSession.builder.getOrCreate()
    return active


def _reused(spark: SparkSession, asked: Mapping[str, str]) -> SparkSession:
    """Its owner's choices stay. What only counts from now on is set; what would need another JVM is refused."""
    theirs = spark.conf.getAll
    for key, value in {**{key: value for key, value in NEEDED.items() if key not in theirs}, **asked}.items():
        if theirs.get(key) != value:
            _set(spark, key, value)
    return _ready(spark)


def _set(spark: SparkSession, key: str, value: str) -> None:
    if not spark.conf.isModifiable(key):
        raise ConfigError(
            f"Spark is running already with {key} = {spark.conf.get(key, 'nothing')!r}, and {value!r} was asked for",
            fix="stop that session first (spark.stop()), or ask for no other value",
        )
    spark.conf.set(key, value)


# -- the other machines


_checked: set[str] = set()


def check_executors(spark: SparkSession, timeout_s: float = EXECUTORS_TIMEOUT_S) -> None:
    """See that the executors of a cluster are there and have this version of Semel. Asked once for each application."""
    context = spark.sparkContext
    if is_local(str(context.master)) or context.applicationId in _checked:
        return
    _await_executors(context, timeout_s)
    wrong = sorted(
        {f"{host} has {version or 'none'}" for host, version in _executors(context) if version != __version__}
    )
    if wrong:
        raise ConfigError(
            f"the executors need Semel {__version__}: {'; '.join(wrong)}",
            fix=f"on every worker: pip install 'semel[spark]=={__version__}'",
        )
    _checked.add(context.applicationId)


def _executors(context: Any) -> set[tuple[str, str | None]]:
    """Host and version of Semel. There is no way to address one executor; twice as many tasks as cores reach all."""
    from pyspark import cloudpickle

    # by value: an executor without Semel could not even load a function of it, and would not say so clearly
    module = sys.modules[__name__]
    cloudpickle.register_pickle_by_value(module)
    try:
        tasks = 2 * context.defaultParallelism
        return set(context.parallelize(range(tasks), tasks).map(_describe_executor).collect())
    except Exception as error:
        raise ConfigError(
            f"the executors cannot run Python: {_last_cause(error)}",
            fix="install the same Python on every worker, and let PYSPARK_PYTHON name it",
        ) from error
    finally:
        cloudpickle.unregister_pickle_by_value(module)


def _describe_executor(_: int) -> tuple[str, str | None]:
    import socket

    try:
        import semel
    except ImportError:
        return socket.gethostname(), None
    return socket.gethostname(), semel.__version__


def _await_executors(context: Any, timeout_s: float) -> None:
    """Without an executor a job would wait for ever, and say nothing."""
    status = context._jsc.sc()
    until = time.monotonic() + timeout_s
    while status.getExecutorMemoryStatus().size() < 2:  # the driver is counted, too
        if time.monotonic() > until:
            raise PeerUnavailable(
                f"the cluster {context.master} has given no executor within {timeout_s:.0f} s",
                fix="see in the master's web page whether workers are there, and have the memory and cores asked for",
            )
        time.sleep(0.1)


@contextmanager
def with_settings(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Inside, the session has these settings; afterwards its own again."""
    before = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, given in before.items():
            spark.conf.unset(name) if given is None else spark.conf.set(name, given)
