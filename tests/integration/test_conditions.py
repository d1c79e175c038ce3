"""`scripts/conditions` runs make as it says, and keeps what came of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest
from tests.tools.leftovers import PROC

from semel.testing.limits import wait_until

SCRIPT = Path(__file__).parents[2] / "scripts" / "conditions"
MAKEFILE = """
test:
\t@echo "term=$$TERM columns=$$COLUMNS umask=$$(umask) user=$$(id -u) tests=$(PYTEST_ARGS)"
\t@grep SigIgn /proc/self/status || true
\t@echo "3 passed in 1.00s"
demo:
\t@echo "NOT exactly once"; exit 1
"""
SIGINT_AND_SIGHUP = 0b11


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """For a project of its own, in which make does nothing but to say how it is called."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    loader = SourceFileLoader("conditions_script", str(SCRIPT))
    spec = spec_from_loader(loader.name, loader)
    assert spec is not None
    module = module_from_spec(spec)
    monkeypatch.setitem(sys.modules, loader.name, module)
    loader.exec_module(module)
    project = tmp_path / "project"
    project.mkdir()
    (project / "Makefile").write_text(MAKEFILE)
    for folder in ("docs", "unit/deep"):
        (project / "tests" / folder).mkdir(parents=True)
        (project / "tests" / folder / "test_it.py").touch()
    (project / "tests" / "tools").mkdir()
    subprocess.run(["git", "init", "-q"], cwd=project, check=True)
    commit_all(project)
    monkeypatch.setattr(module, "ROOT", project)
    monkeypatch.setattr(module, "DEMOS", 2)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.chdir(tmp_path)
    return module


def commit_all(project: Path) -> None:
    for command in (["add", "."], ["-c", "user.name=x", "-c", "user.email=x@y", "commit", "-qm", "x"]):
        subprocess.run(["git", *command], cwd=project, check=True)


def said(script: ModuleType, name: str, tmp_path: Path) -> str:
    result = script.run(name, [""], tmp_path)
    assert result["holds"], result
    assert result["runs"][0]["said"] == ["3 passed in 1.00s"]
    return (tmp_path / f"{name}-1.log").read_text()


def test_each_condition_is_what_it_says(script: ModuleType, tmp_path: Path) -> None:
    assert "term=dumb columns=40" in said(script, "dumb", tmp_path)
    bare = said(script, "bare", tmp_path)
    assert "term= " in bare
    assert "umask=0077" in bare
    assert "user=0 " not in said(script, "other-user", tmp_path)
    if PROC.exists():
        [ignored] = [line for line in said(script, "background", tmp_path).splitlines() if "SigIgn" in line]
        assert int(ignored.split()[1], 16) & SIGINT_AND_SIGHUP == SIGINT_AND_SIGHUP


def test_a_load_is_kept_by_as_many_programs_as_are_missing_and_they_end_with_it(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (1.2, 0.0, 0.0))
    with script.Load(3):
        # a program that has only just begun has no arguments yet
        wait_until(lambda: len([each for each in _children() if "getppid" in each[1]]) == 2, "two programs")
    assert not [each for each in _children() if "getppid" in each[1]]
    with script.Load(0) as load:
        assert not [each for each in _children() if "getppid" in each[1]]
        assert load.mean() == 1.2


def _children() -> list[tuple[int, str]]:
    table = subprocess.run(["ps", "-axww", "-o", "pid=,ppid=,args="], capture_output=True, text=True, check=True).stdout
    rows = (line.split(None, 2) for line in table.splitlines() if len(line.split(None, 2)) == 3)
    return [(int(pid), args) for pid, ppid, args in rows if int(ppid) == os.getpid()]


def test_what_came_of_it_is_kept_and_a_failure_is_the_exit_code(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))  # its logs stay, for people to read
    monkeypatch.setitem(script.CONDITIONS, "load", script.Condition("at rest", script.here))
    monkeypatch.setitem(script.CONDITIONS, "demo", script.Condition("at rest", script.here, what="demo", times=2))
    monkeypatch.setattr(sys, "argv", ["conditions", "load"])
    assert script.main() == 0
    monkeypatch.setattr(sys, "argv", ["conditions", "dumb", "--tests", "-k nothing"])
    assert script.main() == 0
    monkeypatch.setattr(sys, "argv", ["conditions", "demo"])
    assert script.main() == 1
    assert "NOT exactly once" in capsys.readouterr().out
    kept = json.loads((tmp_path / "project" / "docs" / "evidence" / "conditions.json").read_text())
    assert kept["holds"] is False
    assert {name: len(each["runs"]) for name, each in kept["conditions"].items()} == {"load": 1, "demo": 2}
    for wrong in (["nonsense"], ["load", "--parts", "tools"], ["load", "--parts", "--tests", "x"]):
        monkeypatch.setattr(sys, "argv", ["conditions", *wrong])
        with pytest.raises(SystemExit):
            script.main()


def test_a_condition_may_be_run_folder_by_folder_and_holds_when_all_of_them_pass(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setitem(script.CONDITIONS, "load", script.Condition("at rest", script.here))
    project = tmp_path / "project"

    def run_parts(*folders: str) -> tuple[int, bool, list[str], dict[str, int]]:
        monkeypatch.setattr(sys, "argv", ["conditions", "load", "--parts", *folders])
        code = script.main()
        kept = json.loads((project / "docs" / "evidence" / "conditions.json").read_text())["conditions"]["load"]
        assert not kept["commit"].endswith("-dirty")
        return code, kept["holds"], kept["folders_missing"], {each["tests"]: each["exit_code"] for each in kept["runs"]}

    assert run_parts("unit") == (0, False, ["docs"], {"tests/unit": 0})
    assert run_parts("docs") == (0, True, [], {"tests/docs": 0, "tests/unit": 0})
    assert run_parts() == (0, True, [], {"tests/docs": 0, "tests/unit": 0})
    (project / "Makefile").write_text('test:\n\t@test "$(PYTEST_ARGS)" != tests/unit\n')
    commit_all(project)
    assert run_parts("docs") == (0, False, ["unit"], {"tests/docs": 0}), "what was run before is of another commit"
    assert run_parts() == (1, False, [], {"tests/docs": 0, "tests/unit": 2})


def test_the_commit_is_the_one_that_was_run_and_evidence_is_no_change(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "project"
    monkeypatch.chdir(project)
    evidence = project / "docs" / "evidence" / "x.json"
    evidence.parent.mkdir(parents=True)
    evidence.write_text("1")
    commit_all(project)
    before = script.commit()
    assert before not in ("", "unknown")
    evidence.write_text("2")
    assert script.commit() == before
    (project / "Makefile").write_text("test:\n\t@echo changed >> Makefile\n")
    commit_all(project)
    after = script.commit()
    assert after != before
    assert script.run("dumb", [""], tmp_path)["commit"] == after
    assert script.commit() == f"{after}-dirty"
