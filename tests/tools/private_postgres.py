"""What tests do with a `PrivatePostgres` beside starting and stopping it."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psycopg

from semel.testing.limits import scaled
from semel.testing.postgres import START_TIMEOUT_S, PrivatePostgres


class SharedPostgres:
    """A server that several tests share."""

    def __init__(self, server: PrivatePostgres) -> None:
        self._server = server

    def is_well(self) -> bool:
        with psycopg.connect(self._server.url, connect_timeout=int(scaled(START_TIMEOUT_S))) as connection:
            return connection.execute("SELECT 1").fetchone() == (1,)

    def cut_off(self) -> None:
        """Nothing: whoever waits for it is let go by a signal, and a server that others may use needs no harm."""

    def renew(self) -> None:
        """What was broken with it goes; databases stay."""
        self._server.stop()
        self._server.start()


def hang(server: PrivatePostgres) -> None:
    """Stop all of its processes where they are. The kernel goes on confirming what they are sent, as with a host whose
    disk hangs. Call `go_on` before it is stopped."""
    for pid in _processes(server):
        os.kill(pid, signal.SIGSTOP)


def go_on(server: PrivatePostgres) -> None:
    for pid in _processes(server):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def _processes(server: PrivatePostgres) -> Iterator[int]:
    """The server first: once it is stopped there are no new ones. The others are its children."""
    first = (server.folder / "data" / "postmaster.pid").read_text().split()[0]
    yield int(first)
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            if stat.read_text().rpartition(")")[2].split()[1] == first:
                yield int(stat.parent.name)


def make_template(folder: Path) -> Path:
    """The data of a server that has never run, for others to begin with."""
    server = PrivatePostgres()
    try:
        shutil.copytree(server.folder / "data", folder / "data")
    finally:
        server.close()
    return folder / "data"
