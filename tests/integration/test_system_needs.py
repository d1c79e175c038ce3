"""What happens when a test needs software that the system does not have."""

import importlib.util
import os
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "system-needs"

ROW = """
[[need]]
name = "a broker"
probe = "test -e {marker}"
package = "a-broker"
tests = "tests/interop/test_broker.py"
"""


@pytest.fixture(scope="module")
def script() -> ModuleType:
    loader = SourceFileLoader("system_needs", str(SCRIPT))
    spec = importlib.util.spec_from_loader("system_needs", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up by name while they are being made.
    sys.modules["system_needs"] = module
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = before
    return module


def run(tmp_path: Path, command: str, *, ci: bool = False, table: str | None = None) -> tuple[int, str]:
    arguments = [sys.executable, str(SCRIPT), command, "--not-tested", str(tmp_path / "not-tested")]
    if table is not None:
        (tmp_path / "needs.toml").write_text(table)
        arguments += ["--table", str(tmp_path / "needs.toml")]
    environment = {**os.environ, "CI": "true" if ci else ""}
    done = subprocess.run([*arguments, "--no-install"], env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_no_needs_is_silent(tmp_path: Path) -> None:
    assert run(tmp_path, "check", table="", ci=True) == (0, "")
    assert run(tmp_path, "report") == (0, "")


def test_the_projects_own_table_can_be_read(script: ModuleType) -> None:
    for need in script.read_table(SCRIPT.with_suffix(".toml")):
        assert need.name
        assert need.probe
        assert need.package
        assert need.tests


def test_a_need_that_is_there_is_used_without_a_word(tmp_path: Path) -> None:
    marker = tmp_path / "installed"
    marker.touch()
    assert run(tmp_path, "check", table=ROW.format(marker=marker), ci=True) == (0, "")
    assert run(tmp_path, "report") == (0, "")


def test_a_missing_need_is_named_at_the_end(tmp_path: Path) -> None:
    assert run(tmp_path, "check", table=ROW.format(marker=tmp_path / "absent")) == (0, "")
    code, said = run(tmp_path, "report")
    assert code == 0
    assert "Not tested" in said
    assert "a broker: tests/interop/test_broker.py (to run them: sudo apt install a-broker)" in said


def test_a_missing_need_fails_in_ci(tmp_path: Path) -> None:
    code, said = run(tmp_path, "check", table=ROW.format(marker=tmp_path / "absent"), ci=True)
    assert code == 1
    assert "a broker: tests/interop/test_broker.py" in said


def test_an_earlier_finding_does_not_linger(tmp_path: Path) -> None:
    marker = tmp_path / "installed"
    table = ROW.format(marker=marker)
    run(tmp_path, "check", table=table)
    marker.touch()
    run(tmp_path, "check", table=table)
    assert run(tmp_path, "report") == (0, "")


def test_what_is_missing_is_installed_and_probed_again(script: ModuleType) -> None:
    good = script.Need("good", "", "good-package", "")
    bad = script.Need("bad", "", "bad-package", "")
    there = script.Need("there", "", "there-package", "")
    installed = {"there-package"}
    asked: list[list[str]] = []

    def install(packages: list[str]) -> None:
        asked.append(packages)
        installed.update(set(packages) - {"bad-package"})

    missing = script.find_missing([good, bad, there], install=install, present=lambda need: need.package in installed)
    assert asked == [["bad-package", "good-package"]]
    assert missing == [bad]


def test_nothing_is_installed_when_nothing_is_missing(script: ModuleType) -> None:
    def install(packages: list[str]) -> None:
        pytest.fail(f"asked for {packages}")

    there = script.Need("there", "true", "there-package", "")
    assert script.find_missing([there], install=install) == []
