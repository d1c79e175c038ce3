"""The databases behind the source, by ADBC: how each is opened for reading, asked, and understood when it fails."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol
from urllib.parse import quote

import pyarrow as pa

from semel.errors import ConfigError, NotAStore, SemelError, StoreBusy, StoreUnavailable
from semel.stores.open import EXAMPLES
from semel.stores.sqlite import path_of

BUSY_MS = 30_000
OPEN_FILES = "/proc/self/fd"
SETTINGS_OFF = ("enable_seqscan", "enable_bitmapscan", "enable_sort", "enable_hashjoin", "enable_mergejoin", "jit")
"""What would make PostgreSQL read a whole table for a range of it, or the whole range for a page of it."""
SERVER = """
SELECT current_setting('synchronous_standby_names') <> '' AND NOT pg_is_in_recovery(),
    extract(epoch FROM pg_postmaster_start_time())::text
"""
"""Whether commits wait for a standby, and when the server began, by which it is known again."""


class DatabaseDialect(Protocol):
    """What differs between the databases. `has_xid`: several write at once, and marks go by transaction."""

    name: str
    has_xid: bool
    begin: str

    def connect(self) -> Any: ...

    def disconnect(self, connection: Any) -> None: ...

    def prepare(self, cursor: Any, rows: int) -> None:
        """Before a statement is run: make `rows` come as one batch, where the driver must be told."""
        ...

    def parameter(self, number: int) -> str: ...

    def error(self, error: Exception) -> SemelError: ...


class SqliteReading:
    """The file is opened read-only, whoever else writes to it: in another process.

    The driver brings a SQLite of its own. Two of them in one process do not see each other's locks, and whoever closes
    the file first drops the locks of both, which can destroy it. So a file that this process has open already, through
    `sqlite3`, is refused."""

    name = "sqlite"
    has_xid = False
    begin = "BEGIN"

    def __init__(self, path: Path) -> None:
        self.path = path

    def connect(self) -> Any:
        if self.path.is_dir():
            raise NotAStore(f"{self.path} is a folder", fix="name a file inside it, such as semel.db")
        if not self.path.exists():
            raise StoreUnavailable(
                f"there is no store at {self.path}",
                fix="correct the option `store`; tasks on other machines need the file there too",
            )
        if not _readings[self.path] and _is_open_here(self.path):
            raise ConfigError(
                f"this process has {self.path} open already, and SQLite cannot lock it against the same process",
                fix="close the store first, or read it in another process, as the tasks of Spark do",
            )
        dbapi = _driver("adbc_driver_sqlite")
        connection = dbapi.connect(f"file:{quote(str(self.path))}?mode=ro", autocommit=True)
        _set_up(connection, f"PRAGMA busy_timeout = {BUSY_MS}")
        _readings[self.path] += 1
        return connection

    def disconnect(self, connection: Any) -> None:
        _readings[self.path] -= 1
        connection.close()

    def prepare(self, cursor: Any, rows: int) -> None:
        cursor.adbc_statement.set_options(**{"adbc.sqlite.query.batch_rows": str(rows)})

    def parameter(self, number: int) -> str:
        return f"?{number}"

    def error(self, error: Exception) -> SemelError:
        text = " ".join(str(error).split())
        if "is locked" in text or "busy" in text:
            return StoreBusy(
                f"{self.path} is locked by another process", fix="close the program that holds it, or try again"
            )
        if "not a database" in text or "malformed" in text:
            return NotAStore(f"{self.path} is not a SQLite database: {text}", fix="name another file")
        if "no such table" in text or "no such column" in text:
            return NotAStore(f"{self.path} has no Semel tables: {text}", fix="add them: semel store init <url>")
        if "unable to open" in text or "readonly" in text:
            return StoreUnavailable(
                f"{self.path} cannot be opened: {text}",
                fix="check the permissions of the file and its folder: a reader, too, keeps an index of the log there",
            )
        return StoreUnavailable(f"SQLite failed on {self.path}: {text}", fix="check the disk and the file")


_readings: Counter[Path] = Counter()
"""Our own connections. Among themselves they know each other's locks."""


def _is_open_here(path: Path) -> bool:
    """Where the system tells which files a process has open. Elsewhere nobody can know."""
    for number in os.listdir(OPEN_FILES) if os.path.isdir(OPEN_FILES) else ():
        with suppress(OSError):
            if os.path.samefile(f"{OPEN_FILES}/{number}", path):
                return True
    return False


class PostgresReading:
    name = "postgres"
    has_xid = True
    begin = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"

    def __init__(self, url: str) -> None:
        self.url = url

    def connect(self) -> Any:
        from psycopg import ProgrammingError
        from psycopg.conninfo import conninfo_to_dict, make_conninfo

        from semel.stores.postgres_connection import DEFAULTS, redact

        try:
            given = conninfo_to_dict(self.url)
        except ProgrammingError:
            raise ConfigError(
                f"{redact(self.url)!r} is not a PostgreSQL URL", fix="write postgresql://user@host:5432/database"
            ) from None
        missing = {name: value for name, value in DEFAULTS.items() if name not in given}
        dbapi = _driver("adbc_driver_postgresql")
        connection = dbapi.connect(make_conninfo(self.url, client_encoding="UTF8", **missing), autocommit=True)
        _set_up(connection, *(f"SET {setting} = off" for setting in SETTINGS_OFF))
        try:
            self._wait_for_standby(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _wait_for_standby(self, connection: Any) -> None:
        """A server that has crashed shows commits that its synchronous standby may lack, so nothing is read before the
        standby has them. The driver passes no warnings on, which would take the success back. So the commit that waits
        is made on a connection beside it, to the same server."""
        from semel.stores.postgres_connection import connect, errors
        from semel.stores.postgres_sync import barrier

        is_followed, began = _first_row(connection, SERVER)
        if not is_followed:
            return
        with closing(connect(self.url)) as beside, errors(self.url):
            if beside.execute(SERVER).fetchone() != (True, began):
                raise StoreUnavailable("the database has moved to another server meanwhile", fix="try again")
            barrier(beside)

    def disconnect(self, connection: Any) -> None:
        connection.close()

    def prepare(self, cursor: Any, rows: int) -> None:
        """Without COPY, which takes no parameters, a result is one batch by itself."""
        cursor.adbc_statement.set_options(**{"adbc.postgresql.use_copy": "false"})

    def parameter(self, number: int) -> str:
        return f"${number}"

    def error(self, error: Exception) -> SemelError:
        from psycopg import OperationalError, errors

        from semel.stores.postgres_connection import translate

        text, state = str(error).partition("Query was:")[0], getattr(error, "sqlstate", None)
        if state == errors.InsufficientPrivilege.sqlstate:
            return StoreUnavailable(
                f"the database refused: {text.strip()}",
                fix="give the user of the URL the right to SELECT from the tables",
            )
        try:
            kind = errors.lookup(state or "")
        except KeyError:
            kind = OperationalError
        return translate(self.url, kind(text))


def _driver(package: str) -> Any:
    from importlib import import_module

    try:
        with _standing_in(_UNUSED):
            return import_module(f"{package}.dbapi")
    except ModuleNotFoundError:
        raise ConfigError(
            f"reading with Spark needs the package {package.replace('_', '-')}", fix="pip install 'semel[spark]'"
        ) from None


_UNUSED = {"polars": None, "pyarrow.dataset": ModuleType("pyarrow.dataset")}
"""What the drivers import, and use for nothing that is asked of them here: Polars if it is installed, and Arrow's
datasets, which bring Pandas along. That is most of a second in every process."""


@contextmanager
def _standing_in(modules: Mapping[str, ModuleType | None]) -> Iterator[None]:
    """Whoever imports one of these gets what is given instead. What is imported already stays."""
    given = {name: module for name, module in modules.items() if name not in sys.modules}
    sys.modules.update(given)  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in given:
            del sys.modules[name]


def is_driver_error(error: Exception) -> bool:
    """While rows are fetched, the driver's errors come as Arrow's or the system's."""
    is_drivers = type(error).__module__.partition(".")[0] == "adbc_driver_manager"
    return is_drivers or isinstance(error, OSError | pa.ArrowException)


def _set_up(connection: Any, *statements: str) -> None:
    try:
        for statement in statements:
            do(connection, statement)
    except BaseException:
        connection.close()
        raise


def do(connection: Any, statement: str) -> None:
    """A statement without parameters and without rows."""
    with connection.cursor() as cursor:
        cursor.executescript(statement)


def _first_row(connection: Any, query: str) -> tuple[Any, ...]:
    with connection.cursor() as cursor:
        cursor.execute(query)
        row: tuple[Any, ...] = cursor.fetchone()
        return row


def engine_of(url: str) -> DatabaseDialect:
    scheme = url.partition(":")[0].lower() if ":" in url else ""
    if scheme == "sqlite":
        return SqliteReading(path_of(url).absolute())
    if scheme in ("postgresql", "postgres"):
        return PostgresReading(url)
    if scheme == "memory":
        raise ConfigError(
            "a store in memory cannot be read by Spark, whose tasks are other processes", fix="use a SQLite store"
        )
    raise ConfigError(f"{url!r} is not the URL of a store", fix=f"use one of: {EXAMPLES}")
