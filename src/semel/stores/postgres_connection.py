"""How the PostgreSQL store talks to its server: connections, statements by name, arrays, and errors in our words."""

from __future__ import annotations

import os
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any

import psycopg
from psycopg import Connection, RawCursor
from psycopg.abc import RV, Buffer, PQGen
from psycopg.adapt import Dumper, PyFormat
from psycopg.conninfo import conninfo_to_dict
from psycopg.errors import Diagnostic
from psycopg.pq import ConnStatus, Format
from psycopg.rows import tuple_row
from psycopg.types.numeric import Int8BinaryDumper

from semel.errors import (
    ConfigError,
    NotAStore,
    SemelError,
    StoreBusy,
    StoreFull,
    StoreReadOnly,
    StoreRefused,
    StoreUnavailable,
)
from semel.stores.queries import load_queries

Q = load_queries("postgres.sql")
Row = tuple[Any, ...]
LOCK_S = 10.0

DEFAULTS: dict[str, Any] = {
    "connect_timeout": 10,
    "fallback_application_name": "semel",
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 12_000,
}
"""A host without power is noticed in about 10 s. Not sooner than a lock may be waited for: meanwhile a server reads
nothing, and what does not fit into its buffers stays unconfirmed."""
SETTLE_S = 10.0
"""How long a new connection may take to answer for the first time."""
CONNECT_ONE_OF_S = 3
"""For each of several hosts. All members have to find a new primary within the time in which a switch is decided."""

# Our statements touch few rows through an index. A plan made while a table was small must not go on reading all of it.
# A frozen process must not hold a stream for ever, so its idle transaction is ended by the server.
SETTINGS = """
SET enable_seqscan = off;
SET enable_hashjoin = off;
SET enable_mergejoin = off;
SET jit = off;
SET plan_cache_mode = force_generic_plan;
SET idle_in_transaction_session_timeout = '60s';
"""


# -- arrays


class Array:
    """A column of values in the server's own binary form. Writing it by hand is several times faster than by item."""

    __slots__ = ("data", "oid")

    def __init__(self, item_oid: int, array_oid: int, count: int, items: bytes) -> None:
        head = struct.pack(">iiIii", 1, 1, item_oid, count, 1) if count else struct.pack(">iiI", 0, 0, item_oid)
        self.data = head + items
        self.oid = array_oid


_NULL = struct.pack(">i", -1)
_LENGTHS = [struct.pack(">i", length) for length in range(1024)]
_pack_length = struct.Struct(">i").pack


def texts(values: Sequence[str | None]) -> Array:
    if values.count(None) == len(values):
        return Array(25, 1009, len(values), _NULL * len(values))
    return Array(25, 1009, len(values), _join([None if value is None else value.encode() for value in values]))


def byteas(values: Sequence[bytes | None]) -> Array:
    return Array(17, 1001, len(values), _join(values))


def _join(values: Sequence[bytes | None]) -> bytes:
    parts: list[bytes] = []
    for value in values:
        if value is None:
            parts.append(_NULL)
        else:
            size = len(value)
            parts.append(_LENGTHS[size] if size < 1024 else _pack_length(size))
            parts.append(value)
    return b"".join(parts)


def bigints(values: Sequence[int | None]) -> Array:
    return Array(20, 1016, len(values), _pack(values, "q", 8))


def ints(values: Sequence[int | None]) -> Array:
    return Array(23, 1007, len(values), _pack(values, "i", 4))


def smallints(values: Sequence[int | None]) -> Array:
    return Array(21, 1005, len(values), _pack(values, "h", 2))


def bools(values: Sequence[bool]) -> Array:
    return Array(16, 1000, len(values), _pack(values, "?", 1))


def _pack(values: Sequence[int | None], code: str, size: int) -> bytes:
    count = len(values)
    missing = values.count(None)
    if missing == count:
        return _NULL * count
    if missing:
        pack = struct.Struct(">i" + code).pack
        return b"".join([_NULL if value is None else pack(size, value) for value in values])
    flat: list[int | None] = [size] * (2 * count)
    flat[1::2] = values
    return struct.pack(">" + ("i" + code) * count, *flat)


class _ArrayDumper(Dumper):
    format = Format.BINARY

    def get_key(self, obj: Array, format: PyFormat) -> Any:
        return obj.oid

    def upgrade(self, obj: Array, format: PyFormat) -> _ArrayDumper:
        dumper = _ArrayDumper(Array)
        dumper.oid = obj.oid
        return dumper

    def dump(self, obj: Array) -> Buffer:
        return obj.data


# -- statements


Call = tuple[str, tuple[Any, ...]]


class Statements:
    """Runs queries by name."""

    def __init__(self, connection: Connection[Any], *, ours: bool = True) -> None:
        self.connection = connection
        self._ours = ours

    def run(self, name: str, *params: Any) -> RawCursor[Row]:
        cursor = self._cursor()
        cursor.execute(Q[name], params, prepare=True if self._ours else None, binary=True)
        return cursor

    def ask(self, name: str, *params: Any) -> list[Row]:
        return self.run(name, *params).fetchall()

    def run_all(self, calls: Sequence[Call]) -> list[RawCursor[Row]]:
        """One after the other, in one round trip. On the user's connection a pipeline might be in the way of theirs."""
        if len(calls) == 1 or not self._ours:
            return [self.run(name, *params) for name, params in calls]
        with self.connection.pipeline():
            return [self.run(name, *params) for name, params in calls]

    def run_together(self, calls: Sequence[Call]) -> None:
        """Writes to different tables as one statement, which costs a fraction of one each, and wakes who listens."""
        params = [param for _, params in calls for param in params]
        self._cursor().execute(_together(tuple((name, len(params)) for name, params in calls)), params, prepare=True)

    def begin(self, calls: Sequence[Call]) -> Begun:
        """Begin a transaction and ask in the same round trip. The epoch is read when nobody can raise it any more."""
        _, _, *answers = self.run_all([("begin", ()), ("hold_epoch", ()), ("store_now", ()), *calls])
        return self, answers

    def join(self, calls: Sequence[Call]) -> Begun:
        """The same in a transaction of the user's."""
        return self, self.run_all([("store_joined", ()), *calls])

    def _cursor(self) -> RawCursor[Row]:
        cursor = RawCursor(self.connection, row_factory=tuple_row)
        if not self._ours:
            adapt(cursor)
        return cursor


Begun = tuple[Statements, list[RawCursor[Row]]]
"""A transaction that is open, and its first answers: of `store_now`, then of what was asked with it."""

_PARAM = re.compile(r"\$(\d+)")


@lru_cache
def _together(calls: tuple[tuple[str, int], ...]) -> bytes:
    parts: list[str] = []
    shift = 0
    for name, count in calls:
        parts.append(f"{name} AS ({_shift_params(Q[name], shift)})")
        shift += count
    return f"WITH {', '.join(parts)} {Q['notify']}".encode()


def _shift_params(sql: str, shift: int) -> str:
    return _PARAM.sub(lambda found: f"${int(found[1]) + shift}", sql)


def adapt(context: Connection[Any] | RawCursor[Row]) -> None:
    context.adapters.register_dumper(Array, _ArrayDumper)
    # one type for every number: otherwise each size of number would be prepared as another statement
    context.adapters.register_dumper(int, Int8BinaryDumper)


def keep_warnings(connection: Connection[Any]) -> list[str]:
    """The list to which the connection's warnings are added from now on."""
    warnings: list[str] = []

    def keep(notice: Diagnostic) -> None:
        if notice.severity_nonlocalized == "WARNING":
            warnings.append(notice.message_primary or "")

    connection.add_notice_handler(keep)
    return warnings


class Silent(psycopg.OperationalError):
    """The server has not answered for longer than a session has patience."""


class PostgresConnection(Connection[Any]):
    """A connection of ours. It keeps the warnings that came with the answers, for a COMMIT may succeed with one that
    takes the success back. It knows whether its server was a standby when it was opened, and in which term that was.

    While `patience_s` is set, a statement that the server does not answer for so long raises Silent, and the connection
    is of no use any more."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.is_standby = False
        self.term = -1
        self.patience_s: float | None = None
        self.waits_since: float | None = None
        self.warnings = keep_warnings(self)
        # a number of our own for the socket: the other one may be somebody else's by the time it is used
        self._line = socket.socket(fileno=os.dup(self.pgconn.socket))
        self._closing = threading.Lock()
        self.place = (self.info.host, self.info.hostaddr, self.info.port)

    @property
    def warning_text(self) -> str:
        return "; ".join(self.warnings)

    def wait(self, gen: PQGen[RV], *args: Any, **kwargs: Any) -> RV:
        self.waits_since = time.monotonic()
        try:
            if self.patience_s is None:
                return super().wait(gen, *args, **kwargs)
            return super().wait(_patient(gen, self.patience_s), *args, **kwargs)
        except Silent:
            self.hang_up()
            raise
        finally:
            self.waits_since = None

    def hang_up(self) -> None:
        """Cut it, from any thread. Whoever waits for an answer learns at once that there is none, and closes it."""
        with self._closing, suppress(OSError):
            self._line.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        super().close()
        with self._closing:
            self._line.close()


def _patient(gen: PQGen[RV], patience_s: float) -> PQGen[RV]:
    """`gen` until nothing has come for so long. Time in which this process did not run itself is not counted."""
    try:
        wanted = next(gen)
        quiet_s, last = 0.0, time.monotonic()
        while True:
            ready = yield wanted
            now = time.monotonic()
            quiet_s = 0.0 if ready else quiet_s + min(now - last, 1.0)
            last = now
            if quiet_s > patience_s:
                raise Silent(f"the server has not answered for {patience_s:g} s")
            wanted = gen.send(ready)
    except StopIteration as end:
        result: RV = end.value
        return result


def read_url(url: str) -> dict[str, Any]:
    """The parameters that a URL gives."""
    try:
        return conninfo_to_dict(url)
    except psycopg.ProgrammingError as error:
        raise ConfigError(
            f"{redact(url)!r} is not a PostgreSQL URL: {_text(error)}", fix="write postgresql://user@host:5432/database"
        ) from None


def add_defaults(given: Mapping[str, Any]) -> dict[str, Any]:
    """What is given, and for the rest what we take."""
    has_several = "," in f"{given.get('host', '')}{given.get('hostaddr', '')}"
    return {**DEFAULTS, **({"connect_timeout": CONNECT_ONE_OF_S} if has_several else {}), **given}


def connect(url: str, lock_s: float = LOCK_S, *, hosts: Mapping[str, str] | None = None) -> PostgresConnection:
    """A connection that commits each statement unless a transaction is begun, and waits `lock_s` for a lock.

    `hosts` are the parameters that say where to connect to, in place of those in the URL."""
    params = {**add_defaults(read_url(url)), **(hosts or {}), "client_encoding": "UTF8"}
    try:
        connection = PostgresConnection.connect("", autocommit=True, **params)
    except psycopg.Error as error:
        raise _unreachable(url, error) from error
    try:
        with errors(url):
            connection.patience_s = SETTLE_S
            connection.execute(SETTINGS)
            connection.execute("SELECT set_config('lock_timeout', %s, false)", [f"{int(lock_s * 1000)}ms"])
            adapt(connection)
            connection.patience_s = None
    except BaseException:
        connection.close()
        raise
    return connection


def is_broken(connection: Connection[Any]) -> bool:
    return connection.closed or connection.pgconn.status != ConnStatus.OK


# -- errors

FIX_DATA = "correct the message that was being stored"


@contextmanager
def errors(url: str) -> Iterator[None]:
    """The driver's errors in our words."""
    try:
        yield
    except psycopg.Error as error:
        raise translate(url, error) from error
    except UnicodeEncodeError as error:
        raise StoreRefused(
            f"not well-formed Unicode: {error}", fix="correct the message that was being stored"
        ) from None
    except struct.error as error:
        raise StoreRefused(
            f"a number is out of range: {error}", fix="correct the message that was being stored"
        ) from None


def translate(url: str, error: psycopg.Error) -> SemelError:
    """What is the data's fault is StoreRefused; the rest is about the server."""
    state = error.sqlstate or ("22" if isinstance(error, psycopg.DataError) else "")
    return translate_state(url, state, _text(error))


def translate_state(url: str, state: str, text: str) -> SemelError:
    """By the server's code, which is empty when the error is not the server's."""
    for prefix, make in _BY_STATE.items():
        if state.startswith(prefix):
            return make(text)
    return StoreUnavailable(
        f"the connection to {redact(url)} failed: {text}", fix="check that the server runs, then try again"
    )


def is_refusal(error: psycopg.Error) -> bool:
    """The server's word that a statement failed. That a session ends says nothing about what went before."""
    return error.diag.severity_nonlocalized == "ERROR"


def is_silence(error: SemelError) -> bool:
    """Somebody was waited for, and did not answer."""
    return isinstance(error.__cause__, Silent) or "connection timeout expired" in str(error.__cause__)


def is_retryable(error: BaseException | None) -> bool:
    """A deadlock or a serialization failure: the same transaction may succeed at once."""
    return isinstance(error, psycopg.Error) and error.sqlstate in ("40P01", "40001")


def _refused(text: str) -> SemelError:
    return StoreRefused(f"PostgreSQL refused the data: {text}", fix=FIX_DATA)


def _full(text: str) -> SemelError:
    return StoreFull(f"PostgreSQL has no space left: {text}", fix="free disk space; nothing written so far is lost")


def _read_only(text: str) -> SemelError:
    return StoreReadOnly(
        f"the database may not be written: {text}", fix="connect to the primary, or make the database writable"
    )


def _forbidden(text: str) -> SemelError:
    return StoreReadOnly(text, fix="give the user of the URL the right to create and write tables in its schema")


def _busy(text: str) -> SemelError:
    return StoreBusy(f"somebody else holds the lock: {text}", fix="try again; end transactions that stay open for long")


def _no_tables(text: str) -> SemelError:
    return NotAStore(f"a table of Semel is missing: {text}", fix="create the tables: semel store init <url>")


def _not_ours(text: str) -> SemelError:
    return NotAStore(f"the table semel_store is somebody else's: {text}", fix="use another database or schema")


def _stopping(text: str) -> SemelError:
    return StoreUnavailable(f"PostgreSQL ended the connection: {text}", fix="try again when the server is back")


_BY_STATE: dict[str, Callable[[str], SemelError]] = {
    "53100": _full,
    "25006": _read_only,
    "42501": _forbidden,
    "55P03": _busy,
    "57014": _busy,
    "40": _busy,
    "42P01": _no_tables,
    "42703": _not_ours,
    "57": _stopping,
    "25P03": _stopping,
    "22": _refused,
    "23": _refused,
    "42": _refused,
    "54": _refused,
}


def _unreachable(url: str, error: psycopg.Error) -> SemelError:
    text = _text(error)
    fix = "check host, port, user, password and database, and that the server runs"
    if "password authentication failed" in text or "no password supplied" in text:
        fix = "correct the user and password in the URL, or set PGPASSWORD"
    elif "database" in text and "does not exist" in text:
        fix = "create the database with createdb, or correct its name in the URL"
    elif "refused" in text or "No such file" in text:
        fix = "start PostgreSQL, or correct host and port in the URL"
    elif "the database system is" in text:
        fix = "wait: PostgreSQL is starting, recovering or stopping"
    return StoreUnavailable(f"cannot connect to {redact(url)}: {text}", fix=fix)


def _text(error: BaseException) -> str:
    return redact(" ".join(str(error).split()))


def redact(text: str) -> str:
    """A URL, or a text with one in it, without passwords: that of the user, that of its key, and others of the kind."""
    text = re.sub(r'(://[^:/?#\s@]*:)[^/?#\s"]*@', r"\1***@", text)
    return re.sub(r'([?&]\w*(?:password|secret)=)[^&\s"]*', r"\1***", text)
