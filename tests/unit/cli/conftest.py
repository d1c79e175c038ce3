"""Run a command line inside this process, in an empty folder, and look at what it printed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from semel.cli.main import run


@dataclass(frozen=True)
class Ran:
    exit_code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The one object on stdout. Anything else there makes this fail."""
        answer: dict[str, Any] = json.loads(self.out)
        assert list(answer) == ["ok", "command", "result", "error"]
        assert answer["ok"] == (self.exit_code == 0)
        return answer

    @property
    def result(self) -> Any:
        return self.json["result"]

    @property
    def error(self) -> dict[str, str]:
        error: dict[str, str] = self.json["error"]
        assert list(error) == ["code", "message", "fix"]
        return error


Semel = Callable[..., Ran]


@pytest.fixture
def semel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Semel:
    monkeypatch.chdir(tmp_path)
    for variable in ("SEMEL_DEBUG", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(variable, raising=False)

    def call(*args: str) -> Ran:
        capsys.readouterr()
        exit_code = run(args)
        printed = capsys.readouterr()
        return Ran(exit_code, printed.out, printed.err)

    return call
