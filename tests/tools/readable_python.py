"""A Python for a process that runs as another user.

PostgreSQL refuses to run as root, and so must whoever starts it. In a container Python and its packages are often in
the home of root, where nobody else may look: then what is needed of both is copied to a folder for the other user.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from semel.errors import StoreUnavailable
from semel.testing.postgres import give_to

_NOT_NEEDED = ("config-*", "ensurepip", "idlelib", "lib2to3", "site-packages", "test", "tkinter")


@dataclass(frozen=True, slots=True)
class Python:
    command: list[str]
    environment: dict[str, str]


def usable_python(folder: Path, user: str | None, packages: Mapping[str, str]) -> Python:
    """This Python, or a copy of it in the folder. `packages` are what is imported, and which distributions have it."""
    here = Python([sys.executable], {})
    if _can_import(packages, here, user):
        return here
    copy = _copy_python(folder / "python", packages.values())
    if user is not None:
        give_to(folder / "python", user)
    if not _can_import(packages, copy, user):
        fix = "run as a user who is not root, or with a Python that every user may read"
        raise StoreUnavailable(f"the user {user} cannot run {sys.executable}, nor a copy of it", fix=fix)
    return copy


def _can_import(packages: Iterable[str], python: Python, user: str | None) -> bool:
    call = [*python.command, "-c", f"import {', '.join(packages)}"]
    try:
        done = subprocess.run(call, check=False, capture_output=True, user=user, cwd="/", env=python.environment)
    except OSError:
        return False
    return done.returncode == 0


def _copy_python(to: Path, packages: Iterable[str]) -> Python:
    """The interpreter finds its library beside itself."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    base = Path(sys.base_prefix)
    (to / "bin").mkdir(parents=True)
    program = shutil.copy2(os.path.realpath(sys.executable), to / "bin")
    shutil.copytree(base / "lib" / version, to / "lib" / version, ignore=shutil.ignore_patterns(*_NOT_NEEDED))
    for shared in (base / "lib").glob("libpython*"):
        shutil.copy2(shared, to / "lib")
    _copy_distributions(packages, to / "packages")
    return Python([str(program)], {"LD_LIBRARY_PATH": str(to / "lib"), "PYTHONPATH": str(to / "packages")})


def _copy_distributions(names: Iterable[str], to: Path) -> None:
    """With everything that they require and that is installed."""
    waiting, seen = set(names), set[str]()
    while waiting:
        name = waiting.pop()
        seen.add(name)
        try:
            found = distribution(name)
        except PackageNotFoundError:
            continue
        for file in found.files or ():
            source = Path(str(found.locate_file(file)))
            if ".." not in file.parts and source.is_file():
                (to / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, to / file)
        waiting |= {_name_of(line) for line in found.requires or () if "extra ==" not in line} - seen


def _name_of(requirement: str) -> str:
    """`PyYAML>=6; python_version > "3"` is about PyYAML."""
    found = re.match(r"[\w.-]+", requirement)
    assert found is not None
    return found[0]
