"""The sink into a user's own table, which lies in the database of the store.

The table and its unique key are the user's: nothing is created here. A row whose key is there already is a duplicate
and changes nothing. A row that the table refuses becomes a dead letter with the table's own words as its cause.

A batch is one transaction: its number under the driver's fence, the rows, the receipts and dead letters, the ledger. A
user's transaction may not append to streams (see `Tx`), because nobody knows how long it will hold their heads. This
one is the sink's own: it takes the heads last, after the table has answered, and commits at once. Where the process may
die:

    before the commit       nothing has happened; chunks of large bodies that nobody names are swept
    after it                all has happened; the number tells the replay, which only sweeps the staged files
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Protocol
from urllib.parse import quote

import msgspec
import pyarrow as pa
from pyspark.sql.types import StructType

from semel.errors import ConfigError, InputError, StoreBusy, StoreUnavailable
from semel.kernel.envelope import DATA_INLINE_BYTES_MAX, Blob
from semel.kernel.ops import Applied, Op, Refused, Unit
from semel.kernel.ops import Outcome as Applying
from semel.kernel.store import Store
from semel.spark.landing import Job, Landing, answered, read_state, state_key
from semel.spark.rows import ARROW_TRAVEL, Row, RowOutcome
from semel.spark.sink import (
    SinkOptions,
    body_keeper,
    check_complete,
    check_refusal,
    clean_up,
    message_rows,
    open_sink_store,
    progress_ops,
)
from semel.spark.staging import Staged, Task
from semel.spark.waiting import waiting_ops
from semel.stores.apply import apply
from semel.stores.bodies import BODY_BYTES_MAX
from semel.stores.sqlite import path_of
from semel.stores.sqlite_engine import SqliteEngine
from semel.stores.sqlite_files import Files, leave_open

TRIES_MAX = 20
REFUSED_MAX = 1000
"""More refused rows than this in one batch are no odd rows but a table that does not fit."""

TRAVEL_NAMES = ("outcome", "cause", "input", "ordinal")
BUSY_S = 30.0

SQLITE_TYPES = {
    "boolean": "INTEGER", "tinyint": "INTEGER", "smallint": "INTEGER", "int": "INTEGER", "bigint": "INTEGER",
    "float": "REAL", "double": "REAL", "decimal": "TEXT", "string": "TEXT", "varchar": "TEXT", "char": "TEXT",
    "binary": "BLOB", "date": "TEXT", "timestamp": "TEXT", "timestamp_ntz": "TEXT",
}  # fmt: skip
POSTGRES_TYPES = {
    "boolean": "boolean", "tinyint": "smallint", "smallint": "smallint", "int": "integer", "bigint": "bigint",
    "float": "real", "double": "double precision", "decimal": "numeric", "string": "text", "varchar": "text",
    "char": "text", "binary": "bytea", "date": "date", "timestamp": "timestamptz", "timestamp_ntz": "timestamp",
}  # fmt: skip


@dataclass(slots=True)
class _Batch:
    """The rows of one batch in order, by number: `rows` as messages, if they can be called by an id, and `lines` as
    what the table gets of those that pass. `refused` are the numbers of those that it does not want. `bodies` says
    where large bodies are kept, by the `id` of the bytes: two messages with equal bodies have one each."""

    rows: list[Row | None] = field(default_factory=list)
    lines: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    refused: set[int] = field(default_factory=set)
    bodies: dict[int, Blob] = field(default_factory=dict)

    @property
    def messages(self) -> list[Row]:
        return [row for row in self.rows if row is not None]


@dataclass(frozen=True, slots=True)
class Verdicts:
    """Which of the lines were new, and which were refused with what words, by their numbers."""

    fresh: set[int]
    refused: dict[int, str]


Lines = Sequence[tuple[int, tuple[Any, ...]]]
"""Numbered rows for a table."""


@dataclass(frozen=True, slots=True)
class TableShape:
    """What is written: the table, its columns with their Spark types, and the columns of its key."""

    table: str
    columns: tuple[tuple[str, str], ...]
    key: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.columns)

    def create_statement(self, types: dict[str, str]) -> str:
        columns = [f"{quoted(name)} {types[kind.partition('(')[0]]}" for name, kind in self.columns]
        key = ", ".join(quoted(name) for name in self.key)
        return f"CREATE TABLE {quoted_table(self.table)} ({', '.join(columns)}, PRIMARY KEY ({key}))"

    def index_statement(self) -> str:
        key = ", ".join(quoted(name) for name in self.key)
        name = quoted("_".join((self.table.rpartition(".")[2], *self.key, "key")))
        return f"CREATE UNIQUE INDEX {name} ON {quoted_table(self.table)} ({key})"


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def quoted_table(name: str) -> str:
    return ".".join(quoted(part) for part in name.split("."))


def shape_of(options: SinkOptions, schema: StructType) -> TableShape:
    """Checks what can be checked without the table."""
    assert options.table is not None
    names = schema.fieldNames()
    missing = [name for name in options.key if name not in names]
    if missing:
        raise ConfigError(f"the rows have no column {missing[0]!r}, which is the key", fix=f"use: {', '.join(names)}")
    if "outcome" in names and "id" not in names:
        raise ConfigError("rows with an outcome need an id to be reported under", fix="keep the column id")
    columns = []
    for column in schema.fields:
        kind = column.dataType.simpleString()
        if column.name in TRAVEL_NAMES:
            continue
        if kind.partition("(")[0] in SQLITE_TYPES:
            columns.append((column.name, kind))
        elif column.name not in ARROW_TRAVEL.names:
            raise ConfigError(
                f"column {column.name} is {kind}, which has no place in a table",
                fix="make a simple value of it, for example with to_json(), or drop it",
            )
    return TableShape(options.table, tuple(columns), options.key)


class TableTarget:
    """Rows become rows of the user's table."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        if options.store is None or not options.store.startswith(("sqlite:", "postgres:", "postgresql:")):
            raise ConfigError(
                f"a table stands beside the store, and {options.store} has none",
                fix="give option `store` the URL of a store in SQLite or PostgreSQL",
            )
        self.options = options
        self.shape = shape_of(options, schema)

    def stage(self, batches: Iterator[pa.RecordBatch], task: Task) -> Staged:
        return self.options.staged.write(batches, task)

    def commit(self, job: Job, staged: Sequence[Staged]) -> None:
        with closing(open_sink_store(self.options)) as store:
            self.land(store, job, staged)

    def abort(self, job: Job, staged: Sequence[Staged]) -> None:
        with closing(open_sink_store(self.options)) as store:
            clean_up(store, self.options, staged)

    def land(self, store: Store, job: Job, staged: Sequence[Staged]) -> None:
        shape: TableShape | None = None
        batch = _Batch()
        for _ in range(TRIES_MAX):
            known = store.state(state_key(job.pipeline))
            state = read_state(state_key(job.pipeline), known)
            if state.has(job.query, job.batch):
                self.options.staged.sweep(state.landed)
                return
            check_complete(job, self.options, state)
            if shape is None:
                shape = self._fitted(store)
                batch = self._read(job, shape, staged)
            head, _ = progress_ops(store, job, self.options, state, known.version if known is not None else 0)
            _bury(job, shape, batch, self._write(store, job, shape, head, batch))
        raise StoreBusy(f"others write for pipeline {job.pipeline!r} all the time", fix="run it in one place")

    def _fitted(self, store: Store) -> TableShape:
        """Without those columns of the message that the table does not have; it must have all others."""
        with open_database(store) as database:
            there = database.columns(self.shape)
            shape = TableShape(
                self.shape.table,
                tuple(each for each in self.shape.columns if each[0] in there or each[0] not in ARROW_TRAVEL.names),
                self.shape.key,
            )
            missing = [name for name in (*shape.names, *shape.key) if name not in there]
            if missing:
                raise ConfigError(
                    f"table {shape.table} has no column {missing[0]!r}", fix=f"add it, or select: {', '.join(there)}"
                )
            database.check_key(shape)
            return shape

    def _read(self, job: Job, shape: TableShape, staged: Sequence[Staged]) -> _Batch:
        found = _Batch()
        key = [shape.names.index(name) for name in shape.key]
        empty: dict[int, str] = {}
        for each, batch in self.options.staged.read(staged):
            columns = [_values(batch.column(name)) for name in shape.names]
            for line, row in zip(zip(*columns, strict=True), message_rows(job, each.partition, batch), strict=True):
                number = len(found.rows)
                found.rows.append(row)
                if row is not None and row.outcome is not None:
                    continue
                found.lines[number] = line
                if any(line[place] is None for place in key):
                    # a key that is empty is never equal to another one: the row would come again with each replay
                    empty[number] = f"its key ({', '.join(shape.key)}) is empty"
        _bury(job, shape, found, empty)
        return found

    def _write(self, store: Store, job: Job, shape: TableShape, head: Sequence[Op], batch: _Batch) -> dict[int, str]:
        """One transaction, which the state of the sink shows if it was committed. Returns the lines that the table
        refused: then it was not. The heads of streams are taken last, and held until the commit and no longer."""
        _keep_bodies(store, job, batch)
        known = answered(store, job.pipeline, batch.messages, elsewhere=True)
        landing = Landing(job, lambda body: batch.bodies[id(body)], known)
        waits = waiting_ops(store, job, batch.messages)
        lines = [(number, line) for number, line in batch.lines.items() if number not in batch.refused]
        with open_database(store) as database:
            outcome = database.apply(store, head)
            if isinstance(outcome, Refused):
                check_refusal(job, outcome)
                return {}
            verdicts = database.insert(shape, lines)
            if not verdicts.refused:
                landed = database.apply(store, [*_ops(landing, batch, verdicts.fresh), *waits])
                if isinstance(landed, Applied):
                    database.commit()
            return verdicts.refused


def _keep_bodies(store: Store, job: Job, batch: _Batch) -> None:
    """Store the bodies of all rows that may become dead letters before the transaction begins, since SQLite has one
    writer at a time. A sweep removes those that turn out not to be needed."""
    keep = body_keeper(store, job)
    for row in batch.messages:
        body = row.large if row.outcome is not None else None
        if body is not None and len(body) <= BODY_BYTES_MAX and id(body) not in batch.bodies:
            batch.bodies[id(body)] = keep(body)


def _bury(job: Job, shape: TableShape, batch: _Batch, refused: dict[int, str]) -> None:
    """Rows that the table refuses would hold up the query for ever: they become dead letters."""
    batch.refused.update(refused)
    if len(batch.refused) > REFUSED_MAX:
        raise ConfigError(
            f"table {shape.table} refuses more than {REFUSED_MAX:,} rows of batch {job.batch}, one of them with:"
            f" {next(iter(refused.values()))}",
            fix="the table does not fit these rows: change one of the two",
        )
    for number, why in refused.items():
        batch.rows[number] = _dead(shape, batch.lines[number], batch.rows[number], why)


def _dead(shape: TableShape, line: tuple[Any, ...], row: Row | None, why: str) -> Row:
    """With the columns as its body, unless it has a body of its own: nothing of the row is lost."""
    if row is None:
        key = {name: line[shape.names.index(name)] for name in shape.key}
        raise InputError(
            f"table {shape.table} refuses the row {key}: {why}",
            fix="correct the row or the table; with a column `id` such rows become dead letters",
        )
    dead = msgspec.structs.replace(row, outcome=RowOutcome.DEAD, cause=why)
    if row.envelope.data or row.large is not None:
        return dead
    body = msgspec.json.encode(dict(zip(shape.names, line, strict=True)))
    is_large = len(body) > DATA_INLINE_BYTES_MAX
    envelope = msgspec.structs.replace(row.envelope, data=b"" if is_large else body, datacontenttype="application/json")
    return msgspec.structs.replace(dead, envelope=envelope, large=body if is_large else None)


def _values(column: pa.Array) -> list[Any]:
    """Python's own values. A time is one in UTC."""
    if pa.types.is_timestamp(column.type) and column.type.tz is not None:
        column = column.cast(pa.timestamp("us", tz="UTC"))
    values: list[Any] = column.to_pylist()
    return values


def _ops(landing: Landing, batch: _Batch, fresh: set[int]) -> list[Op]:
    """What the store gets of the batch: each message took effect in the table, or was there already, or died."""
    for number, row in enumerate(batch.rows):
        if row is None:
            continue
        if row.outcome is None:
            landing.add_elsewhere(row, fresh=number in fresh)
        else:
            landing.add(row)
    return landing.end()


# -- databases


class TableDatabase(Protocol):
    """The user's tables, inside one transaction of theirs that is rolled back unless it is committed."""

    def columns(self, shape: TableShape) -> list[str]:
        """The columns of the table. Raises when there is no such table."""
        ...

    def check_key(self, shape: TableShape) -> None:
        """Raises when nothing keeps a key from being there twice."""
        ...

    def insert(self, shape: TableShape, lines: Lines) -> Verdicts: ...

    def apply(self, store: Store, ops: Sequence[Op]) -> Applying:
        """Semel's own writes, in the same transaction."""
        ...

    def commit(self) -> None: ...


@contextmanager
def open_database(store: Store) -> Iterator[TableDatabase]:
    if store.url.startswith("sqlite:"):
        with _sqlite_errors(), closing(SqliteDatabase(store.url)) as sqlite:
            yield sqlite
        return
    from semel.spark.tables_postgres import PostgresDatabase, postgres_errors
    from semel.stores.postgres import PostgresStore

    assert isinstance(store, PostgresStore), "the URL says so"
    with postgres_errors(), closing(PostgresDatabase(store)) as postgres:
        yield postgres


def no_table(shape: TableShape, types: dict[str, str]) -> ConfigError:
    return ConfigError(f"there is no table {shape.table}", fix=f"create it: {shape.create_statement(types)}")


def no_key(shape: TableShape) -> ConfigError:
    return ConfigError(
        f"nothing makes ({', '.join(shape.key)}) unique in table {shape.table}, so a replay would double its rows",
        fix=f"add a key: {shape.index_statement()}",
    )


class SqliteDatabase:
    """One row at a time: SQLite answers for each whether it was new, and at the speed of a batch.

    The file is never made here, and a commit counts only in the files that were opened."""

    def __init__(self, url: str) -> None:
        self._files = Files(path_of(url))
        self._files.note_database()
        name = f"file:{quote(self._files.database)}?mode=rw"
        self.connection = sqlite3.connect(name, uri=True, isolation_level=None, timeout=BUSY_S)
        try:
            self.connection.execute("PRAGMA synchronous = FULL")
            self.connection.execute("BEGIN IMMEDIATE")
            self._files.note()
        except BaseException:
            self.close()
            raise

    def columns(self, shape: TableShape) -> list[str]:
        schema, _, table = shape.table.rpartition(".")
        found = self.connection.execute("SELECT name FROM pragma_table_info(?, ?)", (table, schema or "main"))
        names = [name for (name,) in found]
        if not names:
            raise no_table(shape, SQLITE_TYPES)
        return names

    def check_key(self, shape: TableShape) -> None:
        try:
            self.connection.execute(f"EXPLAIN {_insert(shape)}", (None,) * len(shape.names))
        except sqlite3.OperationalError as error:
            if "ON CONFLICT clause does not match" not in str(error):
                raise
            raise no_key(shape) from None

    def insert(self, shape: TableShape, lines: Lines) -> Verdicts:
        statement = _insert(shape)
        cursor = self.connection.cursor()
        fresh: set[int] = set()
        refused: dict[int, str] = {}
        for number, line in lines:
            try:
                cursor.execute(statement, [_for_sqlite(value) for value in line])
            except (sqlite3.IntegrityError, sqlite3.DataError, OverflowError) as error:
                refused[number] = str(error)
                continue
            if cursor.rowcount == 1:
                fresh.add(number)
        return Verdicts(fresh, refused)

    def apply(self, store: Store, ops: Sequence[Op]) -> Applying:
        engine = SqliteEngine(self.connection, time.time_ns() // 1000, store.node)
        outcome = apply(engine, [Unit(tuple(ops))])[0]
        engine.finish()
        return outcome

    def commit(self) -> None:
        """If the files went meanwhile, it is in them, or nowhere: whoever looks next finds the number of the batch, or
        does not."""
        self.connection.execute("COMMIT")
        self._files.check()

    def close(self) -> None:
        if self._files.are_others():
            leave_open([self.connection])
        else:
            self.connection.close()


def _insert(shape: TableShape) -> str:
    names = ", ".join(quoted(name) for name in shape.names)
    key = ", ".join(quoted(name) for name in shape.key)
    marks = ", ".join("?" * len(shape.names))
    return f"INSERT INTO {quoted_table(shape.table)} ({names}) VALUES ({marks}) ON CONFLICT ({key}) DO NOTHING"


def _for_sqlite(value: Any) -> Any:
    """SQLite has no types for these: times and dates as ISO 8601 sort as text, and a decimal keeps its digits."""
    if isinstance(value, datetime | date):
        return value.isoformat(sep=" ") if isinstance(value, datetime) else value.isoformat()
    return str(value) if isinstance(value, Decimal) else value


@contextmanager
def _sqlite_errors() -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:
        raise StoreUnavailable(f"SQLite failed: {error}", fix="see the message; then start the query again") from None
