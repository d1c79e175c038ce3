"""One server on a SQLite file, and how commands that are run beside it find it."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from semel.errors import ConfigError, StoreBusy
from semel.stores.private_files import open_private


@dataclass(frozen=True, slots=True)
class Running:
    """What a server tells commands that are run on its SQLite file: where it is, and which keys open it. `keys` None:
    those that a command finds by itself."""

    endpoint: str
    is_dev: bool = False
    keys: str | None = None


@contextmanager
def server_lock(path: Path) -> Iterator[Callable[[Running], None]]:
    """The lock of the one server on this SQLite file. It goes with the process, however that ends. With the function
    that is given here the server writes into the lock's file where it is."""
    try:
        lock = os.fdopen(open_private(_lock_file(path), os.O_WRONLY | os.O_APPEND), "a")
    except FileNotFoundError:
        raise ConfigError(
            f"there is no folder {path.parent}", fix=f"make it, mkdir -p {path.parent}, or choose another --store"
        ) from None
    except OSError as error:
        raise ConfigError(f"{path.parent} cannot be written: {error.strerror}", fix="choose another --store") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreBusy(
                f"another server uses {path}", fix="stop that one, or choose another --store; nodes share PostgreSQL"
            ) from None

        def announce(running: Running) -> None:
            lock.write(json.dumps(asdict(running)))
            lock.flush()

        lock.truncate(0)
        try:
            yield announce
        finally:
            lock.truncate(0)


def running_on(path: Path) -> Running | None:
    """What the server on this SQLite file said of itself. One that was killed could not take it back."""
    try:
        return Running(**json.loads(_lock_file(path).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def _lock_file(path: Path) -> Path:
    return path.with_name(f"{path.name}-server")
