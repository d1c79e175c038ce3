"""A user's table in PostgreSQL: rows come by COPY into a temporary table and go on from there in one statement."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psycopg
from psycopg import sql

from semel.errors import StoreUnavailable
from semel.kernel.ops import Conflict, Op, Outcome, Refused, Unit
from semel.kernel.store import Store
from semel.spark.tables import POSTGRES_TYPES, Lines, TableShape, Verdicts, no_key, no_table
from semel.stores.apply import apply
from semel.stores.postgres import PostgresStore
from semel.stores.postgres_connection import PostgresConnection, Statements
from semel.stores.postgres_engine import PostgresEngine, TryAgain
from semel.stores.postgres_gate import check_settled
from semel.stores.postgres_sync import barrier, watched

STAGED = "semel_staged"
NUMBER = "semel_number"
LAND_S = 60.0
"""How long the COMMIT of a batch may take, its wait for the standby included."""


class PostgresDatabase:
    """One connection with one transaction, which begins with the first statement."""

    def __init__(self, store: PostgresStore) -> None:
        self._witness = store.witness
        self._term = self._witness.term
        self.connection = PostgresConnection.connect(store.url, autocommit=True)
        try:
            # what was landed before is seen only when the synchronous standby has it
            barrier(self.connection)
            self.connection.autocommit = False
        except BaseException:
            self.connection.close()
            raise

    def columns(self, shape: TableShape) -> list[str]:
        try:
            with self.connection.transaction():
                found = self.connection.execute(sql.SQL("SELECT * FROM {} LIMIT 0").format(_table(shape)))
        except psycopg.errors.UndefinedTable:
            raise no_table(shape, POSTGRES_TYPES) from None
        return [column.name for column in found.description or ()]

    def check_key(self, shape: TableShape) -> None:
        """The statement itself, with no rows."""
        self._stage(shape)
        try:
            with self.connection.transaction():
                self.connection.execute(_move(shape))
        except psycopg.errors.InvalidColumnReference:
            raise no_key(shape) from None

    def insert(self, shape: TableShape, lines: Lines) -> Verdicts:
        self._stage(shape)
        verdicts = Verdicts(set(), {})
        self._insert(shape, lines, verdicts)
        return verdicts

    def _stage(self, shape: TableShape) -> None:
        """With the table's own types, so that what is equal there is equal here."""
        self.connection.execute(
            sql.SQL("CREATE TEMP TABLE {} ON COMMIT DROP AS SELECT {}, 0::bigint AS {} FROM {} WITH NO DATA").format(
                sql.Identifier(STAGED), _names(shape.names), sql.Identifier(NUMBER), _table(shape)
            )
        )

    def _insert(self, shape: TableShape, lines: Lines, verdicts: Verdicts) -> None:
        """A row that is refused is found by halving: the rest goes in without it."""
        try:
            with self.connection.transaction():
                self._copy(shape, lines)
                verdicts.fresh.update(number for (number,) in self.connection.execute(_move(shape)))
        except (psycopg.IntegrityError, psycopg.DataError) as error:
            if len(lines) == 1:
                verdicts.refused[lines[0][0]] = " ".join(str(error).split())
                return
            middle = len(lines) // 2
            self._insert(shape, lines[:middle], verdicts)
            self._insert(shape, lines[middle:], verdicts)

    def _copy(self, shape: TableShape, lines: Lines) -> None:
        self.connection.execute(sql.SQL("TRUNCATE {}").format(sql.Identifier(STAGED)))
        statement = sql.SQL("COPY {} ({}) FROM STDIN").format(sql.Identifier(STAGED), _names((*shape.names, NUMBER)))
        with self.connection.cursor() as cursor, cursor.copy(statement) as copy:
            for number, line in lines:
                copy.write_row((*line, number))

    def apply(self, store: Store, ops: Sequence[Op]) -> Outcome:
        """Nobody raises the epoch until the end of the transaction, as in those of the store, and whoever waits for new
        records is woken by its commit."""
        run = Statements(self.connection, ours=False)
        run.run("hold_epoch")
        check_settled(run)
        unit = Unit(tuple(ops))
        engine = PostgresEngine(run.join, store.node, [unit])
        try:
            outcome = apply(engine, [unit])[0]
            engine.flush()
        except TryAgain:
            # somebody made the same stream at this moment: begin again, and it is there
            return Refused((Conflict(0),))
        run.run("notify")
        return outcome

    def commit(self) -> None:
        """The store answers for it like for its own commits."""
        self._commit()
        [(lsn,)] = Statements(self.connection, ours=False).ask("flushed")
        self._witness.saw(self._term, lsn)

    def _commit(self) -> None:
        """A warning takes the success back: the synchronous standby has not confirmed, or not in time."""
        self.connection.warnings.clear()
        with watched(self.connection, LAND_S):
            self.connection.commit()
        if self.connection.warnings:
            raise StoreUnavailable(
                f"PostgreSQL's standby has not confirmed: {self.connection.warning_text}",
                fix="see that the standby runs; then start the query again: nothing is doubled",
            )

    def close(self) -> None:
        self.connection.close()


def _table(shape: TableShape) -> sql.Identifier:
    return sql.Identifier(*shape.table.split("."))


def _names(names: tuple[str, ...]) -> sql.Composed:
    return sql.SQL(", ").join(sql.Identifier(name) for name in names)


def _move(shape: TableShape) -> sql.Composed:
    """Insert the first row of each key that is not there yet, and answer which rows those were."""
    return sql.SQL(
        "WITH first AS (SELECT DISTINCT ON ({key}) * FROM {staged} ORDER BY {key}, {number}),"
        " added AS (INSERT INTO {table} ({names}) SELECT {names} FROM first ORDER BY {number}"
        " ON CONFLICT ({key}) DO NOTHING RETURNING {key})"
        " SELECT {number} FROM first JOIN added USING ({key})"
    ).format(
        key=_names(shape.key),
        staged=sql.Identifier(STAGED),
        number=sql.Identifier(NUMBER),
        table=_table(shape),
        names=_names(shape.names),
    )


@contextmanager
def postgres_errors() -> Iterator[None]:
    """A connection that breaks inside COMMIT is no harm: the number of the batch tells whether it happened."""
    try:
        yield
    except psycopg.Error as error:
        text = " ".join(str(error).split())
        raise StoreUnavailable(
            f"PostgreSQL failed: {text}", fix="see the message; then start the query again: nothing is doubled"
        ) from None
