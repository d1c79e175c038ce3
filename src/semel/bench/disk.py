"""The physical limit: how often a second this disk makes one page durable."""

from __future__ import annotations

import os
import time
from pathlib import Path

PAGE = 4096
PAGES = 1000


def fdatasync_rate(folder: Path, seconds: float = 0.5) -> float:
    """Write a page and wait for the disk, over and over, in a file that is removed afterwards."""
    path = folder / ".semel-fdatasync"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.pwrite(fd, b"\0" * PAGE * PAGES, 0)
        os.fdatasync(fd)
        return _count(fd, seconds)
    finally:
        os.close(fd)
        path.unlink()


def _count(fd: int, seconds: float) -> float:
    page = b"x" * PAGE
    begin = time.perf_counter()
    count = 0
    while (passed := time.perf_counter() - begin) < seconds:
        os.pwrite(fd, page, PAGE * (count % PAGES))
        os.fdatasync(fd)
        count += 1
    return count / passed
