"""What the how-to about testing shows is run as it stands, with a store of our own as somebody else's."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from semel.testing import byte_faults, faults, limits, plugin, serve_process
from semel.testing.limits import scaled

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "test-with-semel.md").read_text()
CONTRACT, WITH_POSTGRES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
MY_STORE = """
import sqlite3
from semel.stores.sqlite import SqliteStore

def MyStore(path, clock):
    return SqliteStore(f"sqlite:///{path}", clock=clock)

def connect_to(path):
    return sqlite3.connect(path)
"""


def run(folder: Path, *options: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:asyncio", *options],
        cwd=folder, capture_output=True, text=True, timeout=scaled(120), check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_contract_suite_runs_against_a_store_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "my_store.py").write_text(MY_STORE)
    (tmp_path / "test_my_store.py").write_text(CONTRACT.replace("examples = 50", "examples = 3"))
    collected = int(re.findall(r"(\d+) tests collected", run(tmp_path, "--collect-only"))[0])
    assert collected > 300
    assert " passed" in run(tmp_path, "-k", "random_units or (TestMyShared and claim) or (TestMyDurable and epoch)")


def test_the_fixtures_give_a_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, postgres_server_url: str
) -> None:
    monkeypatch.setenv("SEMEL_TEST_POSTGRES", postgres_server_url)
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["semel.testing.plugin"]\n')
    (tmp_path / "test_it.py").write_text(WITH_POSTGRES)
    assert "1 passed" in run(tmp_path)


def test_every_name_on_the_page_exists() -> None:
    fixtures = re.findall(r"^\| `(\w*postgres\w*)` \|", PAGE, re.MULTILINE)
    assert len(fixtures) == 3
    assert all(hasattr(plugin, name) for name in fixtures)
    assert faults.FaultProxy
    assert byte_faults.ByteProxy
    assert serve_process.ServeProcess
    assert limits.wait_until
