"""The tutorial that needs Spark, run from top to bottom: its commands in a shell, its programs in this process."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from semel.spark.session import FAST
from semel.testing.limits import scaled

REPOSITORY = Path(__file__).parents[2]
PAGE = REPOSITORY / "docs" / "tutorial" / "a-pipeline-and-its-audit.md"
PROGRAM = "delivery_pipeline.py"
BLOCK = re.compile(r"```(sh|python)\n(.*?)```\n(?:```text\n(.*?)```\n)?", re.DOTALL)


def in_shell(commands: str) -> str:
    """What it wrote to stdout. Every command must succeed, the last one as well as the first."""
    found = subprocess.run(
        ["sh", "-e", "-c", commands], stdout=subprocess.PIPE, text=True, timeout=scaled(600), check=True
    )
    return found.stdout


def in_python(code: str, names: dict[str, object]) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, PAGE.name, "exec"), names)
    return printed.getvalue()


@pytest.mark.slow(80)
@pytest.mark.timeout(900)  # it starts four JVMs, one after the other
def test_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    quick = {name: FAST[name] for name in ("spark.driver.extraJavaOptions", "spark.sql.shuffle.partitions")}
    monkeypatch.setenv("SEMEL_SPARK__SETTINGS", json.dumps(quick))
    (_, install, _), (_, program, _), *blocks = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    assert install.startswith("pip install")  # what it installs runs this test
    assert program == (REPOSITORY / "examples" / PROGRAM).read_text(encoding="utf-8")
    Path(PROGRAM).write_text(program, encoding="utf-8")
    names: dict[str, object] = {}
    assert len(blocks) > 5
    for language, code, expected in blocks:
        printed = in_shell(code) if language == "sh" else in_python(code, names)
        assert printed == expected, code
