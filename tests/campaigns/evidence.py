"""What a campaign found, as a file in `docs/evidence/`: its figures, the commit and the machine."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

from semel import __version__

EVIDENCE = Path("docs/evidence")


def write_evidence(name: str, figures: dict[str, Any]) -> Path:
    """`figures` name the commit that was run: while they came, somebody may have gone on with the next one."""
    EVIDENCE.mkdir(parents=True, exist_ok=True)
    path = EVIDENCE / f"{name}.json"
    evidence = {**figures, "semel": __version__, "commit": figures["commit"], "machine": _machine()}
    path.write_text(json.dumps(evidence, indent=2) + "\n")
    return path


def commit() -> str:
    """Ask before a run. With `-dirty` when something is changed that is not in it; evidence is what a run leaves
    behind, and says nothing about what was run."""
    name = _git("describe", "--always")
    changed = _git("status", "--porcelain", "--untracked-files=no", ":/", f":(top,exclude){EVIDENCE.as_posix()}")
    return f"{name}-dirty" if name and changed else name or "unknown"


def _git(*arguments: str) -> str:
    found = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False)
    return found.stdout.strip()


def _machine() -> dict[str, Any]:
    return {
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "architecture": platform.machine(),
        "system": platform.system(),
        "python": platform.python_version(),
    }
