"""Where the tests are, for the processes that they start."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def child_environment() -> dict[str, str]:
    """For a process that imports from `tests`, in whatever folder it runs."""
    given = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{given}" if given else str(ROOT)}
