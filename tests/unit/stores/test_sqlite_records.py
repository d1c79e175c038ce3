"""Rows in large statements come out as rows that were inserted one by one."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tools.strategies import envelopes

from semel.kernel.envelope import Blob, Envelope
from semel.stores.queries import load_migrations, load_queries
from semel.stores.rows import envelope_columns, envelope_row
from semel.stores.sqlite_records import RECORD_COLUMNS, STATEMENT_ROWS, insert_records

ADD_ONE = load_queries("sqlite.sql")["add_record"]
LARGEST = STATEMENT_ROWS[0]


@pytest.fixture(scope="module")
def db() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        for _, sql in load_migrations("sqlite"):
            connection.executescript(sql)
        yield connection


def rows_of(found: Sequence[Envelope], streams: Sequence[int] = (1,)) -> list[tuple[Any, ...]]:
    return [
        (at + 1, streams[at % len(streams)], 1, at + 1, f"i{at}", 0, "", 5, *envelope_row(envelope), digest)
        for at, (envelope, digest) in enumerate(zip(found, _digests(len(found)), strict=True))
    ]


def _digests(count: int) -> list[bytes | None]:
    """Few rows have none, and so have very many; in between some have one."""
    return [b"%d" % at if 8 < count < 100 and at % 3 else None for at in range(count)]


def stored(db: sqlite3.Connection, rows: Sequence[tuple[Any, ...]]) -> tuple[list[tuple[Any, ...]], list[str]]:
    """What the table holds after inserting the rows, and the statements that it took."""
    statements: list[str] = []
    db.execute("BEGIN")
    db.set_trace_callback(statements.append)
    try:
        insert_records(db, ADD_ONE, list(zip(*rows, strict=True)) if rows else [()] * len(RECORD_COLUMNS))
        db.set_trace_callback(None)
        names = ", ".join(f'"{name}"' for name in RECORD_COLUMNS)
        return db.execute(f"SELECT {names} FROM semel_record ORDER BY seq").fetchall(), statements
    finally:
        db.set_trace_callback(None)
        db.execute("ROLLBACK")


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 31, 32, 33, 47, 64, 100])
def test_every_row_arrives_whatever_their_number(db: sqlite3.Connection, count: int) -> None:
    rows = rows_of([Envelope(id=f"m{at}", data=b"%d" % at, index=at) for at in range(count)])
    assert stored(db, rows)[0] == rows


FULL = Envelope(
    id="m", source="s", type="t", subject="u", time=5, session="x", index=7, datacontenttype="c", headers={"h": "v"}
)
CHANGES: dict[str, dict[str, Any]] = {
    "source": {"source": "other"},
    "type": {"type": "other"},
    "subject": {"subject": None},
    "time": {"time": None},
    "session": {"session": None},
    "idx": {"index": None},
    "datacontenttype": {"datacontenttype": None},
    "headers": {"headers": {}},
    "data": {"data": b"other"},
    "blob": {"blob": Blob("b", 9)},
}


@pytest.mark.parametrize("at", [0, 1, LARGEST - 1, LARGEST, LARGEST + 2])
@pytest.mark.parametrize("column", CHANGES)
def test_one_row_that_differs_in_one_column_keeps_its_own_value(db: sqlite3.Connection, column: str, at: int) -> None:
    found = [FULL] * (LARGEST + 3)
    found[at] = msgspec.structs.replace(FULL, **CHANGES[column])
    rows = rows_of(found)
    assert stored(db, rows)[0] == rows


def test_rows_of_several_streams_stay_apart(db: sqlite3.Connection) -> None:
    rows = rows_of([FULL] * 40, streams=(1, 2, 3))
    assert stored(db, rows)[0] == rows


@given(found=st.lists(envelopes(), max_size=3))
def test_any_envelopes_come_out_as_they_went_in(db: sqlite3.Connection, found: list[Envelope]) -> None:
    rows = rows_of(found * 12)
    assert stored(db, rows)[0] == rows


@given(found=st.lists(envelopes(), max_size=3))
def test_columns_are_rows_turned_round(found: list[Envelope]) -> None:
    assert list(zip(*envelope_columns(found), strict=True)) == [envelope_row(envelope) for envelope in found]


def test_many_rows_are_few_statements(db: sqlite3.Connection) -> None:
    _, statements = stored(db, rows_of([FULL] * (2 * LARGEST + 9)))
    assert len(statements) == 4


def test_groups_alike_share_their_statement(db: sqlite3.Connection) -> None:
    """Otherwise each group would pay for preparing a large one."""
    texts: list[str] = []

    class Noting(sqlite3.Connection):
        def execute(self, sql: str, *args: Any) -> sqlite3.Cursor:
            texts.append(sql)
            return super().execute(sql, *args)

    with closing(sqlite3.connect(":memory:", isolation_level=None, factory=Noting)) as noting:
        for _, sql in load_migrations("sqlite"):
            noting.executescript(sql)
        for group in range(3):
            begin = group * LARGEST
            rows = [(row[0] + begin, row[1], row[2], row[3] + begin, f"g{group}{row[4]}", *row[5:])
                    for row in rows_of([FULL] * LARGEST)]  # fmt: skip
            insert_records(noting, ADD_ONE, list(zip(*rows, strict=True)))
    assert len(texts) == 3
    assert len(set(texts)) == 1


def test_a_row_that_is_there_already_stops_the_whole_statement(db: sqlite3.Connection) -> None:
    rows = rows_of([FULL] * LARGEST)
    rows[-1] = (*rows[-1][:4], rows[0][4], *rows[-1][5:])
    with pytest.raises(sqlite3.IntegrityError, match="identity"):
        stored(db, rows)
    assert stored(db, [])[0] == []
