"""Python for Spark's own processes: without the archives that Spark carries along, and otherwise the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from semel.spark.python import choose_python, python_shim

SHOW = "import os, sys; print(os.environ['PYTHONPATH']); print(sys.executable); print(*sys.argv[1:], sep='|')"


def test_the_shim_takes_the_archives_away_and_nothing_else(tmp_path: Path) -> None:
    shim = python_shim(sys.executable, tmp_path)
    path = ["/spark/python/lib/pyspark.zip", "/mine/*", "/spark/lib/py4j-0.10.9.9-src.zip", "/with space/lib.zip"]
    ran = subprocess.run(
        [shim, "-c", SHOW, "one two", "*"], env=os.environ | {"PYTHONPATH": ":".join(path)}, stdout=subprocess.PIPE,
        text=True, check=True,
    )  # fmt: skip
    assert ran.stdout.splitlines() == ["/mine/*:/with space/lib.zip", sys.executable, "one two|*"]


def test_nothing_may_be_left_and_nothing_may_be_set(tmp_path: Path) -> None:
    shim = python_shim(sys.executable, tmp_path)
    bare = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    for env in (bare, bare | {"PYTHONPATH": "/spark/python/lib/pyspark.zip"}):
        ran = subprocess.run([shim, "-c", SHOW], env=env, stdout=subprocess.PIPE, text=True, check=True)
        assert ran.stdout.splitlines()[0] == ""


def test_each_interpreter_has_its_own(tmp_path: Path) -> None:
    assert python_shim("/a b/python", tmp_path) != python_shim("/c/python", tmp_path)
    assert "exec '/a b/python'" in python_shim("/a b/python", tmp_path).read_text()


@pytest.mark.parametrize(
    ("master", "theirs", "is_shim", "is_theirs"),
    [
        ("local[2]", None, True, False),
        ("spark://host:7077", None, False, False),
        ("local[*]", "/my/python", False, True),
        ("spark://host:7077", "/cache/python-1/semel-python", False, False),
    ],
)
def test_here_it_is_the_shim_and_elsewhere_the_interpreter_unless_somebody_names_another(
    master: str, theirs: str | None, is_shim: bool, is_theirs: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", theirs or "")
    if theirs is None:
        monkeypatch.delenv("PYSPARK_PYTHON")
    choose_python(master, tmp_path)
    chosen = os.environ["PYSPARK_PYTHON"]
    assert chosen == (
        theirs if is_theirs else str(python_shim(sys.executable, tmp_path)) if is_shim else sys.executable
    )
