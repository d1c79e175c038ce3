"""Python for Spark's own processes, which plan reads, run tasks and commit writes.

Spark lets them import PySpark out of an archive that it carries along. Nothing out of an archive is kept compiled, so
each of these processes would compile PySpark again, which takes half a second, and a query starts several. On the
machine of the driver the same PySpark is installed and compiled. So there Python is started through a small script, the
shim, that takes the archives away.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import sys
from pathlib import Path

from semel.spark.java import write_once

SHIM = "semel-python"

_SHIM = """#!/bin/sh
# Written by Semel: starts {python} with the PySpark that is installed, which is compiled, instead of the archive's.
set -f
IFS=:
kept=
for part in $PYTHONPATH; do
  case "$part" in
    */pyspark.zip | */py4j-*-src.zip) ;;
    *) kept="${{kept:+$kept:}}$part" ;;
  esac
done
export PYTHONPATH="$kept"
exec {python} "$@"
"""


def choose_python(master: str, folder: Path) -> None:
    """Let PYSPARK_PYTHON name this interpreter, unless somebody has named another. On other machines there is no
    shim."""
    theirs = os.environ.get("PYSPARK_PYTHON")
    if theirs is None or Path(theirs).name == SHIM:
        is_here = master.startswith("local") and os.name == "posix"
        os.environ["PYSPARK_PYTHON"] = str(python_shim(sys.executable, folder)) if is_here else sys.executable


def python_shim(python: str, folder: Path) -> Path:
    digest = hashlib.sha256(python.encode()).hexdigest()[:16]
    return write_once(folder / f"python-{digest}" / SHIM, _SHIM.format(python=shlex.quote(python)), 0o700)
