"""The last part of the tutorial with the shop is done as a person would do it: its program and its commands."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from semel.testing.limits import scaled, wait_until

PAGE = (Path(__file__).parents[2] / "docs" / "tutorial" / "a-shop-that-charges-once.md").read_text()
[(NAME, PROGRAM)] = re.findall(r"Save this as `(\w+\.py)`:\n\n```python\n(.*?)```", PAGE, re.DOTALL)
CONSOLE = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)
BIN = Path(sys.executable).parent
ENV = os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}"}


def commands(block: str) -> list[tuple[str, str]]:
    """Each command with what the page says that it prints."""
    return [(each.partition("\n")[0], each.partition("\n")[2]) for each in block.split("$ ")[1:]]


def run(folder: Path, command: str) -> str:
    return subprocess.run(
        ["bash", "-c", command], cwd=folder, env=ENV, text=True, capture_output=True, timeout=scaled(60), check=True
    ).stdout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / NAME).write_text(PROGRAM)
    return tmp_path


@pytest.fixture
def running(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The command that is left running, from when the test asks for it until its end."""
    [(command, _)] = commands(CONSOLE[1])
    for each, expected in commands(CONSOLE[0]):
        assert run(folder, each) == expected
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(["bash", "-c", f"exec {command}"], cwd=folder, env=ENV, stdout=log, stderr=log)
    yield process
    process.send_signal(signal.SIGINT)
    process.wait(scaled(60))


def is_paid(folder: Path) -> bool:
    with closing(sqlite3.connect(folder / "till.db", timeout=scaled(10))) as db:
        return db.execute("SELECT * FROM paid").fetchall() != []


def test_a_killed_process_and_a_late_answer_charge_once(folder: Path, running: subprocess.Popen[bytes]) -> None:
    wait_until(lambda: is_paid(folder), "the payment")
    for command, expected in commands(CONSOLE[2]):
        assert run(folder, command) == expected
    told = (folder / "log").read_text()
    for line in commands(CONSOLE[1])[0][1].splitlines():
        assert line.replace("4711", "") in re.sub(r"process \d+", "process ", told)
