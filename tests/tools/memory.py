"""How much memory another process has."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


def resident_bytes(pid: int) -> int:
    """How much memory a process has at this moment."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    except FileNotFoundError:  # not Linux
        said = subprocess.run(["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, text=True, check=True)
        return int(said.stdout) * 1024
