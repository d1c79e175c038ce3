"""`scripts/test` runs pytest twice: without Spark and with it. What either of the two says counts."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from semel.testing.limits import scaled

REPOSITORY = Path(__file__).parents[2]
PLAIN = """
import os

def test_plain():
    assert "plain" not in os.environ["FAILING"]
"""
WITH_SPARK = """
import os, pytest

@pytest.mark.spark
def test_spark():
    assert "spark" not in os.environ["FAILING"]
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two tests, one of each kind, with our script and our choice of tests."""
    folder = tmp_path_factory.mktemp("project")
    for name in ("scripts", "tests/spark"):
        (folder / name).mkdir(parents=True)
    for name in (".venv", "scripts/test", "tests/conftest.py", "tests/tools"):
        (folder / name).symlink_to(REPOSITORY / name)
    (folder / "pytest.ini").write_text("[pytest]\ntestpaths = tests\nmarkers = spark\n")
    (folder / "tests" / "test_plain.py").write_text(PLAIN)
    (folder / "tests" / "spark" / "test_spark.py").write_text(WITH_SPARK)
    return folder


def run(project: Path, *args: str, failing: str = "") -> tuple[int, str, str]:
    """The exit code, and what was said about each kind."""
    command = [str(project / "scripts" / "test"), "1", "-n0", "-p", "no:cacheprovider", *args]
    # the workers of pytest-xdist would take the variables of those that run this test for their own
    env = {"PATH": "/usr/bin:/bin", "FAILING": failing}
    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=scaled(120), env=env)
    without, with_spark = ran.stdout.split("semel: tests with Spark\n")
    return ran.returncode, without, with_spark


def test_each_kind_runs_once_in_its_turn(project: Path) -> None:
    code, without, with_spark = run(project)
    assert code == 0
    assert "1 passed" in without
    assert "1 passed" in with_spark


@pytest.mark.parametrize(("failing", "named"), [("plain", "without Spark"), ("spark", "with Spark")])
def test_a_failure_of_either_kind_is_one_and_is_named_at_the_end(project: Path, failing: str, named: str) -> None:
    code, _, last = run(project, failing=failing)
    assert code == 1
    assert last.endswith(f"semel: FAILED: the tests {named}\n")


@pytest.mark.parametrize(("chosen", "expected"), [("test_plain", 0), ("nothing", 5)])
def test_a_choice_may_leave_nothing_for_one_kind_but_not_for_both(project: Path, chosen: str, expected: int) -> None:
    assert run(project, "-k", chosen)[0] == expected
