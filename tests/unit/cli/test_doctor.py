"""`semel doctor`: what it finds, and what its exit code says."""

from __future__ import annotations

import shutil
import sqlite3
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.unit.cli.conftest import Ran, Semel

from semel.bench import disk
from semel.cli import doctor as module
from semel.cli.doctor import DoctorCheck
from semel.config import load_config
from semel.errors import ConfigError, StoreBusy
from semel.spark import java as java_module
from semel.spark.java import Java


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SYNC_TRIAL_S", 0.01)


def found(ran: Ran) -> dict[str, dict[str, str]]:
    return {check["name"]: check for check in ran.result["checks"]}


def test_a_healthy_machine_with_nothing_set_up_is_well(semel: Semel) -> None:
    ran = semel("doctor", "--json")
    assert (ran.exit_code, ran.json["error"]) == (0, None)
    checks = found(ran)
    assert list(checks) == [
        "Python", "SQLite", "disk", "sync", "psycopg", "pyarrow", "pyspark", "Java", "Node", "Chromium",
        "configuration", "Spark", "store",
    ]  # fmt: skip
    for name in ("Python", "SQLite", "disk", "sync", "psycopg", "pyarrow", "pyspark", "Java", "configuration"):
        assert checks[name]["state"] == "ok", checks[name]
    assert checks["store"]["state"] == "missing"
    assert checks["store"]["fix"] == "create it: semel store init sqlite:///semel.db"
    assert "fdatasyncs per second" in checks["sync"]["detail"]
    assert list(Path().iterdir()) == []


def test_people_get_a_table_and_a_last_word(semel: Semel) -> None:
    ran = semel("doctor")
    assert ran.out.splitlines()[-1] == "All that Semel needs is here."
    assert f"✓  Python         {sys.version.split()[0]}" in ran.out
    assert "create it: semel store init sqlite:///semel.db" in ran.out


def test_a_store_that_is_there_is_opened(semel: Semel) -> None:
    semel("store", "init", "sqlite:///x.db")
    checks = found(semel("doctor", "--store", "sqlite:///x.db", "--json"))
    assert checks["store"]["state"] == "ok"
    assert checks["store"]["detail"].startswith("sqlite:///x.db (--store): SQLite ")


def test_files_that_others_can_read_are_told_and_left_alone(semel: Semel) -> None:
    semel("store", "init", "sqlite:///x.db")
    assert "store files" not in found(semel("doctor", "--store", "sqlite:///x.db", "--json"))
    Path("x.db").chmod(0o644)
    ran = semel("doctor", "--store", "sqlite:///x.db", "--json")
    assert ran.exit_code == 0
    check = found(ran)["store files"]
    assert check["state"] == "note"
    assert "x.db" in check["detail"]
    assert check["fix"].startswith("chmod 600 ")
    assert Path("x.db").stat().st_mode & 0o777 == 0o644


def test_a_bad_configuration_is_found_and_the_store_left_alone(semel: Semel) -> None:
    Path("semel.toml").write_text("[stoer]\n")
    ran = semel("doctor", "--json")
    assert ran.exit_code == 2
    assert found(ran)["configuration"]["detail"] == "semel.toml, line 1: there is no section [stoer]"
    assert "store" not in found(ran)
    assert ran.error == {"code": "doctor", "message": "not well: configuration", "fix": "did you mean 'store'?"}


@pytest.mark.parametrize(
    ("url", "exit_code", "detail"),
    [
        ("mysql://x", 2, "'mysql://x' is not the URL of a store"),
        ("sqlite://host/x.db", 2, "'sqlite://host/x.db' is not the URL of a SQLite store"),
        ("postgresql://127.0.0.1:1/x", 3, "cannot connect to postgresql://127.0.0.1:1/x"),
    ],
)
def test_a_store_that_cannot_be_opened_is_not_well(url: str, exit_code: int, detail: str, semel: Semel) -> None:
    ran = semel("doctor", "--store", url, "--json")
    assert ran.exit_code == exit_code
    assert found(ran)["store"]["state"] == "bad"
    assert found(ran)["store"]["detail"].startswith(detail)
    plain = semel("doctor", "--store", url)
    assert plain.exit_code == exit_code
    assert plain.err.startswith("error: not well: store\n  fix: ")


def test_a_file_that_is_no_database_is_not_well(semel: Semel) -> None:
    Path("semel.db").write_text("these are my notes, not a database")
    ran = semel("doctor", "--json")
    assert (ran.exit_code, found(ran)["store"]["state"]) == (3, "bad")


# -- the machine


def test_an_old_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PYTHON_MIN", (4, 0))
    assert module.check_python().state == "bad"
    assert module.check_python().fix == "install Python 4.0 or newer"


def test_an_old_or_crippled_sqlite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 7, 0))
    assert module.check_sqlite().state == "bad"
    monkeypatch.undo()
    assert module.check_sqlite().state == "ok"
    monkeypatch.setattr(module, "_compile_options", lambda _: frozenset({"THREADSAFE=0"}))
    assert module.check_sqlite().fix == "use a Python whose SQLite is built without THREADSAFE=0"


def test_a_full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=5_000_000))
    assert module.check_disk() == DoctorCheck("disk", "bad", "5.0 MB free here", "free some space", 3)


def test_a_slow_disk_and_one_that_may_not_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "fdatasync_rate", lambda *_: 20.0)
    assert (module.check_sync().state, module.check_sync().detail) == (
        "note",
        "20 fdatasyncs per second in this folder",
    )

    def refuse(*_: object) -> float:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(disk, "fdatasync_rate", refuse)
    assert module.check_sync().detail == "this folder cannot be written: Permission denied"


def test_what_is_not_installed_comes_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda _: None)
    where = "in a checkout: make setup; elsewhere:"
    assert module.check_psycopg().fix == f"{where} pip install 'semel[postgres]'"
    assert module.check_pyarrow().fix == f"{where} pip install 'semel[export]'"
    assert module.check_pyarrow().state == "missing"


def test_programs_of_later_parts_are_only_mentioned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda program: "/bin/chrome" if program == "google-chrome" else None)
    assert module.check_node() == DoctorCheck("Node", "note", "not found; not needed by this version")
    assert module.check_chromium() == DoctorCheck("Chromium", "note", "/bin/chrome; not needed by this version")


# -- Spark


@pytest.fixture
def java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Java:
    found = Java(Path("/opt/17"), "17.0.15", "PATH", ("/old/bin/java (JAVA_HOME): is version 11, too old",))
    monkeypatch.setattr(java_module, "find_java", lambda: found)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return found


@pytest.mark.usefixtures("java")
def test_which_java_and_why() -> None:
    assert module.check_java() == DoctorCheck(
        "Java",
        "ok",
        "17.0.15 in /opt/17 (from PATH), for Spark; passed over /old/bin/java (JAVA_HOME): is version 11, too old",
    )


def test_no_java_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> Java:
        raise ConfigError("no Java", fix="get one")

    monkeypatch.setattr(java_module, "find_java", none)
    assert module.check_java() == DoctorCheck("Java", "missing", "no Java", "get one")
    assert module.check_spark(load_config()).detail.endswith("no start-up cache without Java")


@pytest.mark.usefixtures("java")
def test_what_spark_would_run_with(semel: Semel, tmp_path: Path) -> None:
    (tmp_path / "semel.toml").write_text('[spark]\nmaster = "local[3]"\nmemory = "2g"\npartitions = 5\n')
    check = found(semel("doctor", "--json"))["Spark"]
    assert check["detail"] == "master local[3,4], driver memory 2g, shuffle partitions 5, no start-up cache"
    assert (check["state"], check["fix"]) == ("note", "start twice as fast: semel doctor --start-cache")


@pytest.mark.usefixtures("java")
def test_a_cache_is_made_when_asked_for_and_then_found(
    semel: Semel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def build(cache: Path) -> Path:
        cache.write_bytes(b"x" * 2000)
        return cache

    monkeypatch.setattr(java_module, "build_start_cache", build)
    checks = found(semel("doctor", "--start-cache", "--json"))
    assert checks["start-up cache"]["detail"].endswith(".jsa, 2.0 kB")
    assert str(tmp_path / "cache" / "semel" / "start-17.0.15-") in found(semel("doctor", "--json"))["Spark"]["detail"]
    (tmp_path / "semel.toml").write_text("[spark]\nstart_cache = false\n")
    assert found(semel("doctor", "--json"))["Spark"]["detail"].endswith("start-up cache switched off")


@pytest.mark.usefixtures("java")
def test_a_cache_that_cannot_be_made_is_not_well(semel: Semel, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(cache: Path) -> Path:
        raise StoreBusy("busy", fix="wait")

    monkeypatch.setattr(java_module, "build_start_cache", fail)
    ran = semel("doctor", "--start-cache", "--json")
    assert (ran.exit_code, ran.error["message"]) == (3, "not well: start-up cache")


@pytest.mark.usefixtures("java")
@pytest.mark.parametrize(
    ("master", "exit_code", "detail"),
    [
        ("nowhere", 2, "'nowhere' is not a master of Spark"),
        ("spark://127.0.0.1:1", 3, "the Spark master spark://127.0.0.1:1"),
    ],
)
def test_a_master_that_will_not_do(master: str, exit_code: int, detail: str, semel: Semel, tmp_path: Path) -> None:
    (tmp_path / "semel.toml").write_text(f'[spark]\nmaster = "{master}"\n')
    ran = semel("doctor", "--json")
    assert ran.exit_code == exit_code
    assert found(ran)["Spark"]["detail"].startswith(detail)


@pytest.mark.usefixtures("java")
def test_without_pyspark_there_is_nothing_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda _: None)
    assert module.check_pyspark().fix.endswith("pip install 'semel[spark]'")
    assert module.check_spark(load_config()).state == "note"
