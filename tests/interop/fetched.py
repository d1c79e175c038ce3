"""What tests fetch from elsewhere is kept in the virtual environment, one folder for each version of the lock."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import sys
from collections.abc import Callable
from pathlib import Path


def fetched(name: str, lock: bytes, fetch: Callable[[Path], None]) -> Path:
    """The folder with what this `lock` says. Whoever comes first fetches it, and the others wait for that."""
    root = Path(sys.prefix) / name
    folder = root / hashlib.sha256(lock).hexdigest()[:16]
    root.mkdir(exist_ok=True)
    with open(root / "lock", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        if not folder.exists():
            new = root / "new"
            shutil.rmtree(new, ignore_errors=True)
            new.mkdir()
            fetch(new)
            new.rename(folder)
    return folder
