"""Files that hold messages or lead to them are for their owner alone, whatever the umask of the process is.

Only files that are made here get these rights. One that is there already keeps its own: somebody may have shared it on
purpose, and `semel doctor` says so.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

OWNER_ONLY = 0o600


def open_private(path: Path, flags: int) -> int:
    """A file descriptor of the file, which is made if it is not there."""
    while True:
        try:
            fd = os.open(path, flags | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, OWNER_ONLY)
        except FileExistsError:
            try:
                return os.open(path, flags | os.O_CLOEXEC)
            except FileNotFoundError:
                if path.is_symlink():  # to nowhere: nothing could be made under this name
                    raise
                continue  # somebody has removed it in between
        os.fchmod(fd, OWNER_ONLY)
        return fd


def make_private(path: Path) -> None:
    os.close(open_private(path, os.O_RDWR))


def is_open_to_others(path: Path) -> bool:
    """Whether others than its owner can read or write it."""
    try:
        return bool(stat.S_IMODE(path.stat().st_mode) & 0o077)
    except OSError:
        return False
