"""Files that outlive a power cut: written, synced, and only then given their names."""

from __future__ import annotations

import os
from pathlib import Path


def write_synced(path: Path, content: bytes | memoryview) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def make_folder(path: Path) -> None:
    """Make a folder and those above it, so that they outlive a power cut."""
    if not path.is_dir():
        make_folder(path.parent)
        path.mkdir(exist_ok=True)
        sync(path.parent)


def sync(path: Path) -> None:
    """A file that somebody else wrote, or a folder: a rename is only durable when the folder is."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def rename_unless_there(temporary: Path, path: Path) -> None:
    """A link never replaces what another process has put there first. Where there are no links, the last one wins."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        pass
    except OSError:
        temporary.rename(path)
    temporary.unlink(missing_ok=True)
    sync(path.parent)
