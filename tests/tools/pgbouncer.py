"""A private PgBouncer in transaction pooling mode before a PostgreSQL, on a Unix socket of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import parse_qs, quote, urlsplit

import psycopg

from semel.testing.limits import wait_until
from semel.testing.postgres import unprivileged_user

PORT = 6432
CONFIG = """
[databases]
{database} = host={host} dbname={database} user={user}
[pgbouncer]
listen_addr =
listen_port = {port}
unix_socket_dir = {folder}
auth_type = any
pool_mode = transaction
default_pool_size = 3
logfile = {folder}/pgbouncer.log
"""


def program() -> str | None:
    return shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


@contextmanager
def pgbouncer(url: str) -> Iterator[str]:
    """The URL of the same database, by way of the pooler."""
    # not in a test's own folder: whichever user the pooler runs as has to get there
    with TemporaryDirectory(prefix="semel-bouncer-") as folder:
        yield from _serve(url, Path(folder))


def _serve(url: str, folder: Path) -> Iterator[str]:
    parts = urlsplit(url)
    host, database = parse_qs(parts.query)["host"][0], parts.path[1:]
    text = CONFIG.format(database=database, host=host, user=parts.username, folder=folder, port=PORT)
    (folder / "pgbouncer.ini").write_text(text)
    user = unprivileged_user()
    if user is not None:
        for path in (folder, folder / "pgbouncer.ini"):
            shutil.chown(path, user)
    found = program()
    assert found is not None, "who asks for it has looked whether it is there"
    process = subprocess.Popen([found, str(folder / "pgbouncer.ini")], user=user, stderr=subprocess.DEVNULL)
    pooled = f"postgresql://{parts.username}@/{quote(database)}?host={quote(str(folder), safe='')}&port={PORT}"
    try:
        wait_until(lambda: _answers(pooled), "PgBouncer")
        yield pooled
    finally:
        process.terminate()
        process.wait()


def _answers(url: str) -> bool:
    try:
        psycopg.connect(url).close()
    except psycopg.OperationalError:
        return False
    return True
