"""The `semel` command as people run it: a process of its own, with everything that can be wrong around it."""

from __future__ import annotations

import json
import os
import resource
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest

from semel.cli.main import run
from semel.kernel.envelope import Envelope
from semel.kernel.ledger import Event, Kind
from semel.kernel.ops import Append, Log, Unit
from semel.runtime.export.exporter import segments
from semel.stores.open import open_store
from semel.stores.sqlite import SqliteStore
from semel.testing.limits import scaled

SEMEL = Path(sys.executable).with_name("semel")
ENV = {name: value for name, value in os.environ.items() if not name.startswith("SEMEL_")}
UNCOMPILED = ENV | {"PYTHONDONTWRITEBYTECODE": "1"}
"""For a process that may write small files only. Python does not notice that it kept half of what it compiled, and all
later processes would stumble over that."""


def start(*args: str, cwd: Path) -> subprocess.Popen[str]:
    """In a session of its own, so that a signal to the group reaches all of it and nobody else."""
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [SEMEL, *args], cwd=cwd, env=ENV, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    )


def semel(*args: str, cwd: Path, env: dict[str, str] = ENV, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [SEMEL, *args], cwd=cwd, env=env, capture_output=True, text=True, timeout=scaled(120), **options
    )


def refusal(*args: str, cwd: Path, exit_code: int, **options: Any) -> dict[str, str]:
    """What the command refuses, for people and for machines alike."""
    plain = semel(*args, cwd=cwd, **options)
    assert (plain.returncode, plain.stdout) == (exit_code, ""), plain.stderr
    ran = semel(*args, "--json", cwd=cwd, **options)
    assert (ran.returncode, ran.stderr) == (exit_code, "")
    answer = json.loads(ran.stdout)
    assert (answer["ok"], answer["result"]) == (False, None)
    error: dict[str, str] = answer["error"]
    assert error["message"].split("\n")[0] in plain.stderr
    assert f"fix: {error['fix']}" in plain.stderr
    assert error["fix"]
    return error


def wait_until(ready: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    until = time.monotonic() + scaled(60)
    while not ready():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.01)


def fill(path: Path, rows: int = 10) -> None:
    store = SqliteStore(f"sqlite:///{path}")
    log = (Log(Event(Kind.SENT, "a>b", message=f"m{n}")) for n in range(rows))
    store.commit([Unit((*log, *(Append("hub/chat", Envelope(id=f"m{n}")) for n in range(rows))))])
    store.close()


# -- bad input: each a clear error, and nothing written is lost


def test_an_unknown_scheme(tmp_path: Path) -> None:
    error = refusal("store", "status", "--store", "mysql://host/db", cwd=tmp_path, exit_code=2)
    assert error["message"] == "'mysql://host/db' is not the URL of a store"
    assert "sqlite:///semel.db" in error["fix"]


def test_a_server_that_cannot_be_reached(tmp_path: Path) -> None:
    error = refusal("store", "status", "--store", "postgresql://u:geheim@127.0.0.1:1/db", cwd=tmp_path, exit_code=3)
    assert error["code"] == "store-unavailable"
    assert "127.0.0.1" in error["message"]
    assert "geheim" not in error["message"]


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    notes = tmp_path / "notes.db"
    notes.write_text("these are my notes, not a database\n" * 100)
    for command in ("status", "init"):
        error = refusal("store", command, "--store", "sqlite:///notes.db", cwd=tmp_path, exit_code=3)
        assert error["code"] == "not-a-store"
    assert notes.read_text() == "these are my notes, not a database\n" * 100


def test_a_folder_instead_of_a_file_and_a_folder_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    assert "is a folder" in refusal("store", "init", "sqlite:///folder", cwd=tmp_path, exit_code=3)["message"]
    error = refusal("store", "init", "sqlite:///none/semel.db", cwd=tmp_path, exit_code=3)
    assert error["message"] == "the folder none does not exist"


def test_a_newer_schema(tmp_path: Path) -> None:
    fill(tmp_path / "semel.db")
    connection = sqlite3.connect(tmp_path / "semel.db")
    connection.execute("UPDATE semel_store SET schema = 99")
    connection.commit()
    connection.close()
    for command in ("status", "migrate"):
        error = refusal("store", command, "--store", "sqlite:///semel.db", cwd=tmp_path, exit_code=3)
        assert error["code"] == "schema-too-new"
        assert "schema 99" in error["message"]


def test_a_locked_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """In this process, because a patience of 30 seconds is right for people and long for a test."""
    fill(tmp_path / "semel.db")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(SqliteStore.__init__.__kwdefaults__, "busy_s", 0.2)
    blocker = sqlite3.connect(tmp_path / "semel.db", isolation_level=None)
    blocker.execute("BEGIN IMMEDIATE")
    assert run(["store", "status", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["result"]["ledger_entries"] == 10
    assert run(["store", "sweep", "--json"]) == 3
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["code"] == "store-busy"
    assert "locked by another process" in error["message"]
    blocker.execute("ROLLBACK")
    blocker.close()
    assert run(["store", "sweep", "--json"]) == 0


def test_a_disk_without_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """SQLite itself says that there is no room: its own limit on pages gives the same error as a full disk."""
    connect = SqliteStore._connect

    def small(self: SqliteStore, mode: str = "rw") -> sqlite3.Connection:
        connection = connect(self, mode)
        connection.execute("PRAGMA max_page_count = 5")
        return connection

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(SqliteStore, "_connect", small)
    assert run(["store", "init", "--json"]) == 3
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["code"] == "store-full"
    assert error["message"] == "no space left for semel.db"
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert run(["store", "init", "--json"]) == 0


def test_a_limit_on_the_size_of_files(tmp_path: Path) -> None:
    """A real failing write, in a process that may write 40 kB and no more. What was there before is still there."""
    fill(tmp_path / "semel.db")
    (tmp_path / "semel.toml").write_text('[store]\nurl = "sqlite:///semel.db"\n[ledger]\nlease_s = 1\n')

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))

    limited = {"preexec_fn": limit, "env": UNCOMPILED}
    error = refusal("store", "init", "sqlite:///new.db", cwd=tmp_path, exit_code=5, **limited)
    assert error["code"] == "commit-in-doubt"  # it may be in the file or not: nobody is told that it is
    refusal("store", "export", "--to", "lake", cwd=tmp_path, exit_code=3, **limited)
    ran = semel("store", "export", "--to", "lake", "--wait", "60s", "--json", cwd=tmp_path)
    assert ran.returncode == 0, ran.stdout
    assert [segment.rows for segment in segments(tmp_path / "lake", "ledger")] == [10]


def test_a_place_that_may_not_be_written(tmp_path: Path) -> None:
    """Below /sys nobody creates files, not even root, for whom permissions do not count."""
    error = refusal("store", "init", "sqlite:////sys/kernel/semel.db", cwd=tmp_path, exit_code=3)
    assert "cannot be opened" in error["message"]
    assert "may be written" in error["fix"]
    fill(tmp_path / "semel.db")
    export = ("store", "export", "--store", "sqlite:///semel.db", "--to", "/sys/kernel/lake")
    error = refusal(*export, cwd=tmp_path, exit_code=3)
    assert error["code"] == "store-read-only"


def test_a_configuration_with_mistakes(tmp_path: Path) -> None:
    (tmp_path / "semel.toml").write_text('[store]\nurl = "memory:"\n\n[ebxml]\n')
    error = refusal("store", "status", cwd=tmp_path, exit_code=2)
    assert error["message"].startswith("semel.toml, line 4: section [ebxml] belongs to a part that Semel ")


# -- how it starts and how it ends


def test_help_is_there_at_once_because_it_loads_almost_nothing(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "semel", "--help"], cwd=tmp_path, capture_output=True, text=True
    )
    assert ran.returncode == 0
    loaded = {line.rpartition("|")[2].strip() for line in ran.stderr.splitlines()}
    assert "semel.cli.store" in loaded
    heavy = ("pydantic", "pydantic_settings", "rich", "pyarrow", "psycopg", "sqlite3", "asyncio", "semel.sim")
    assert loaded & set(heavy) == set()


def test_it_runs_as_a_module_too(tmp_path: Path) -> None:
    ran = subprocess.run([sys.executable, "-m", "semel", "--version"], cwd=tmp_path, capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.startswith("semel ")


@pytest.mark.parametrize("args", [("sim", "--plants"), ("sim", "--plants", "--json"), ("--help",), ("store", "--help")])
def test_whoever_reads_it_may_go_away(args: tuple[str, ...], tmp_path: Path) -> None:
    process = start(*args, cwd=tmp_path)
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(scaled(60)) == 141
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stderr.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_continuous_export_ends_well_when_it_is_stopped(number: signal.Signals, tmp_path: Path) -> None:
    fill(tmp_path / "semel.db")
    process = start("store", "export", "--to", "lake", "--every", "1h", "--json", cwd=tmp_path)
    wait_until(lambda: bool(segments(tmp_path / "lake", "index")), process)
    process.send_signal(number)
    out, err = process.communicate(timeout=scaled(60))
    assert (process.returncode, err) == (0, "")
    assert json.loads(out)["result"]["datasets"]["ledger"]["rows"] == 10
    store = SqliteStore(f"sqlite:///{tmp_path}/semel.db")
    row = store.work("lease", "export/index")
    assert row is not None
    assert row.state.name == "READY"
    store.close()


def test_ctrl_c_ends_a_command_with_130_and_one_line(tmp_path: Path) -> None:
    process = start("demo", "--messages", "100000", "--folder", "data", cwd=tmp_path)
    wait_until((tmp_path / "data" / "receiver.db").exists, process)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=scaled(60))
    assert (process.returncode, err) == (130, "error: stopped\n")


# -- on a server


@pytest.mark.connected
def test_every_store_command_on_postgresql(postgres_url: str, tmp_path: Path) -> None:
    def call(*args: str) -> Any:
        ran = semel("store", *args, "--store", postgres_url, "--json", cwd=tmp_path)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return json.loads(ran.stdout)["result"]

    error = refusal("store", "status", "--store", postgres_url, cwd=tmp_path, exit_code=3)
    assert error["code"] == "not-a-store"
    assert call("init")["created"] is True
    assert call("init")["created"] is False
    store = open_store(postgres_url)
    log = (Log(Event(Kind.SENT, "a>b", message=f"m{n}")) for n in range(20))
    store.commit([Unit((*log, *(Append("hub/chat", Envelope(id=f"m{n}")) for n in range(20))))])
    store.close()
    status = call("status")
    assert (status["streams"][0]["head"], status["ledger_entries"]) == (20, 20)
    assert [entry["message"] for entry in call("ledger", "--last", "2")["entries"]] == ["m18", "m19"]
    assert [entry["kind"] for entry in call("ledger", "--message", "m7")["entries"]] == ["sent"]
    migrated = call("migrate")
    assert migrated["before"] == migrated["after"] == status["schema"]
    datasets = call("export", "--to", "lake")["datasets"]
    assert {name: found["rows"] for name, found in datasets.items()} == {"ledger": 20, "index": 20}
    swept = call("sweep", "--older-than", "0s")
    assert swept["trimmed"] == [{"stream": "hub/chat", "wanted": 21, "first": 21}]
    assert (swept["swept"]["records"], swept["swept"]["ledger"]) == (20, 20)
    assert call("new-epoch", "--reason", "a test")["epoch"] == status["epoch"] + 1


@pytest.mark.connected
def test_the_doctor_asks_a_server_for_what_its_word_is_worth(postgres_url: str, tmp_path: Path) -> None:
    """The tests' own server does not wait for its disk, and says so; others may."""
    open_store(postgres_url).close()
    with psycopg.connect(postgres_url) as connection:
        rows = connection.execute(
            "SELECT name FROM pg_settings WHERE name IN ('fsync', 'full_page_writes') AND setting = 'off' ORDER BY name"
        )
        off = [str(name) for (name,) in rows]
    ran = semel("doctor", "--store", postgres_url, "--json", cwd=tmp_path)
    checks = {check["name"]: check for check in json.loads(ran.stdout)["result"]["checks"]}
    assert checks["store"]["state"] == "ok"
    assert checks["PostgreSQL disk"]["state"] == ("bad" if off else "ok")
    assert all(name in checks["PostgreSQL disk"]["detail"] for name in off)
    assert ran.returncode == (2 if off else 0)
    assert {"PostgreSQL standbys", "synchronous_commit"} <= checks.keys()
