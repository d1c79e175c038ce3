"""Notices that a SQLite file was put back in time.

A database file cannot know that it was replaced by an older copy of itself. The sidecar beside it can: it notes after
each commit how many there have been, and how far offsets and fences had come. It is written after the commit is
durable and never synced, so it may lag behind the database and never runs ahead of it. A database that has fewer
commits than its sidecar has been rewound.
"""

from __future__ import annotations

import errno
import os
import struct
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from semel.errors import StoreError, StoreReadOnly, StoreUnavailable
from semel.stores.private_files import open_private

_LAYOUT = struct.Struct(">8s32sQQQ")
_MAGIC = b"semel-1\n"
READS = 5


@dataclass(frozen=True, slots=True)
class Marks:
    """How far a store had come: commits made, highest offset of any stream, highest fence."""

    store_id: str
    commits: int
    head: int
    fence: int


class Sidecar:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None
        self._identity = (0, 0)

    def read(self) -> Marks | None:
        """The last note, or None when there is none that makes sense. Another process may be writing just now."""
        for _ in range(READS):
            marks = self._read()
            if marks is not None:
                return marks
        return None

    def _read(self) -> Marks | None:
        try:
            text = self.path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _file_error(self.path, error) from None
        body, check = text[: _LAYOUT.size], text[_LAYOUT.size :]
        if len(check) != 4 or zlib.crc32(body) != int.from_bytes(check):
            return None
        magic, store_id, commits, head, fence = _LAYOUT.unpack(body)
        return Marks(store_id.decode(), commits, head, fence) if magic == _MAGIC else None

    def write(self, marks: Marks) -> None:
        if self._fd is not None and not self._is_in_place():
            # it is a note and no history: without it the next start would only have to suspect the worst
            self.close()
        fd = self._open() if self._fd is None else self._fd
        body = _LAYOUT.pack(_MAGIC, marks.store_id.encode(), marks.commits, marks.head, marks.fence)
        # the commit is durable already: a note that cannot be made only makes the sidecar lag, and that is allowed
        with suppress(OSError):
            os.pwrite(fd, body + zlib.crc32(body).to_bytes(4), 0)

    def _open(self) -> int:
        try:
            self._fd = fd = open_private(self.path, os.O_RDWR)
        except OSError as error:
            raise _file_error(self.path, error) from None
        found = os.fstat(fd)
        self._identity = (found.st_dev, found.st_ino)
        return fd

    def _is_in_place(self) -> bool:
        try:
            found = os.stat(self.path)
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == self._identity

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _file_error(path: Path, error: OSError) -> StoreError:
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return StoreReadOnly(f"{path} may not be written", fix="correct the permissions of the file and its folder")
    return StoreUnavailable(f"{path} cannot be opened: {error.strerror}", fix="check the disk and the folder")
