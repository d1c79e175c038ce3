"""Results as whole files: a reader finds the former one or the new one, never half of one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from semel.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def check_place(option: str, file: Path) -> None:
    """Before any work is done: a file that cannot be written is a fault of the command line."""
    if file.is_dir():
        raise ConfigError(f"{option} {file} is a folder", fix="name a file in it")
    if not file.absolute().parent.is_dir():
        raise ConfigError(f"there is no folder {file.parent} for {option}", fix="create it, or name another file")
    if not os.access(file.absolute().parent, os.W_OK):
        raise ConfigError(f"{option} {file}: the folder may not be written", fix="name another file, or allow it")


def write_whole(file: Path, text: str) -> None:
    """Beside it first, under a name that no collector takes for a result, then in its place."""
    beside = file.with_name(f".{file.name}.{os.getpid()}.part")
    try:
        with beside.open("w", encoding="utf-8", newline="\n") as part:
            part.write(text)
            part.flush()
            os.fsync(part.fileno())
        beside.replace(file)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise ConfigError(f"cannot write {file}: {error.strerror or error}", fix="name another file") from None


def write_tables(tables: Mapping[str, DataFrame], folder: Path) -> None:
    """Each table as a folder of Parquet files with its name. All are written before the first takes its place.

    On a cluster the folder must be one that all executors see."""
    folder = folder.absolute()
    beside = folder / f".part-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, rows in tables.items():
            rows.write.mode("overwrite").parquet(str(beside / name))
        for name in tables:
            _put_in_place(beside / name, folder / name, beside / f"{name}.old")
    except OSError as error:
        raise ConfigError(
            f"cannot write tables to {folder}: {error.strerror or error}", fix="name another folder"
        ) from None
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _put_in_place(new: Path, place: Path, old: Path) -> None:
    if place.exists():
        place.rename(old)
    new.rename(place)
