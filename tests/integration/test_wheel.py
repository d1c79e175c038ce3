"""What people install: the wheel, in an environment with nothing but what it asks for."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from tests.tools.paths import ROOT

from semel.testing.limits import scaled

BIN = Path(sys.executable).parent
UV = BIN / "uv"
OURS_ALONE = ("campaign", "soak", "chaos", "crash", "_child")
"""Names of what only our own tests use."""


def environment() -> dict[str, str]:
    """Nothing in it leads back to this checkout."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}


def run(*command: object, cwd: Path, **variables: str) -> str:
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=environment() | variables, capture_output=True, text=True,
        timeout=scaled(300), check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run(BIN / "python", "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=ROOT)
    [made] = folder.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs of an environment with the wheel and its locked dependencies: no extra, no tool."""
    folder = tmp_path_factory.mktemp("installed")
    run(UV, "venv", "--quiet", "--python", sys.executable, folder / "venv", cwd=folder)
    python = folder / "venv" / "bin" / "python"
    install = (UV, "pip", "install", "--quiet", "--python", python)
    locked = (*install, "--require-hashes", "-r", ROOT / "requirements" / "main.txt")
    try:
        run(*locked, "--offline", cwd=folder)  # set-up has had them all
    except AssertionError:
        run(*locked, cwd=folder, UV_SYSTEM_CERTS="1")
    run(*install, "--no-deps", "--offline", wheel, cwd=folder)
    return python.parent


def test_the_wheel_has_the_package_and_nothing_of_our_own_tests(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {"semel/py.typed", "semel/testing/plugin.py", "semel/testing/contract/__init__.py"} <= set(names)
    assert [name for name in names if not name.startswith(("semel/", "semel-"))] == []
    assert [name for name in names if any(word in Path(name).stem for word in OURS_ALONE)] == []


def test_what_is_installed_can_be_imported_and_asked(installed: Path, tmp_path: Path) -> None:
    place = run(installed / "python", "-c", "import semel; print(semel.__file__)", cwd=tmp_path)
    assert str(installed.parent) in place
    assert "Semel: exactly-once messaging." in run(installed / "semel", "--help", cwd=tmp_path)
    assert json.loads(run(installed / "semel", "doctor", "--json", cwd=tmp_path))["ok"]


def test_an_example_runs_from_it(installed: Path, tmp_path: Path) -> None:
    said = run(installed / "python", ROOT / "examples" / "append_once.py", "sqlite:///orders.db", cwd=tmp_path)
    assert "attempt 2: Duplicate" in said


def test_the_server_for_developers_serves(installed: Path, tmp_path: Path) -> None:
    with subprocess.Popen(
        [installed / "semel", "serve", "--dev", "--port", "0", "--json"],
        cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as server:  # fmt: skip
        try:
            assert server.stdout is not None
            told = json.loads(server.stdout.readline())
            assert told["ok"], told
            # commands in the same folder find it by its store
            sent = run(installed / "semel", "pubsub", "send", "chat", "hello", "--everybody", "--json", cwd=tmp_path)
            assert json.loads(sent)["result"]["new"]
        finally:
            server.send_signal(signal.SIGTERM)
            _, complaints = server.communicate(timeout=scaled(60))
    assert server.returncode == 0, complaints
