"""How records reach SQLite: many rows in one statement, and what they have in common bound once.

A statement per row is run again for each, and the `sqlite3` module takes seven times as long to bind a NULL or `bytes`
as to bind a number or a `bytearray`: it looks for somebody who knows how to adapt them. Saving all three saves two
thirds of what an insert costs.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

from semel.stores.rows import ENVELOPE_COLUMNS

RECORD_COLUMNS = (
    "seq",
    "stream_id",
    "epoch",
    "offset",
    "identity",
    "kind",
    "target",
    "at",
    *ENVELOPE_COLUMNS,
    "digest",
)
"""In the order of the query `add_record`."""

STATEMENT_ROWS = (32, 8)
"""Rows in one statement, the larger first. Still more would save little and cost much to prepare: these, 0.3 ms."""

_OWN = frozenset({"seq", "offset", "identity", "id", "session", "idx", "data", "size", "digest"})
"""Nearly always different from row to row, or too large to compare."""
_BYTES = ("data", "digest")


def insert_records(db: sqlite3.Connection, add_one: str, columns: Sequence[Sequence[Any]]) -> None:
    """`columns` are in the order of RECORD_COLUMNS, `add_one` is the statement for a single row."""
    count = len(columns[0])
    done = _insert_many(db, columns, count) if count >= STATEMENT_ROWS[-1] else 0
    if done < count:
        db.executemany(add_one, zip(*[column[done:] for column in columns], strict=True))


def _insert_many(db: sqlite3.Connection, columns: Sequence[Sequence[Any]], count: int) -> int:
    """As many rows as fill whole statements. Answers how many that were."""
    own_names: list[str] = []
    own: list[Sequence[Any]] = []
    shared_names: list[str] = []
    shared: list[Any] = []
    for name, column in zip(RECORD_COLUMNS, columns, strict=True):
        if (name not in _OWN or column[0] is None) and column.count(column[0]) == count:
            shared_names.append(name)
            shared.append(column[0])
        else:
            own_names.append(name)
            own.append(column if name not in _BYTES else [body and bytearray(body) for body in column])
    values = list(chain.from_iterable(zip(*own, strict=True)))
    done, width = 0, len(own)
    for rows in STATEMENT_ROWS:
        statement = _statement(tuple(shared_names), tuple(own_names), rows)
        while done + rows <= count:
            db.execute(statement, shared + values[done * width : (done + rows) * width])
            done += rows
    return done


@lru_cache(maxsize=64)
def _statement(shared: tuple[str, ...], own: tuple[str, ...], rows: int) -> str:
    numbers = iter(range(1, 1 + len(shared) + rows * len(own)))
    common = [f"?{next(numbers)}" for _ in shared]
    values = [", ".join([*common, *(f"?{next(numbers)}" for _ in own)]) for _ in range(rows)]
    names = ", ".join(f'"{name}"' for name in (*shared, *own))
    return f"INSERT INTO semel_record ({names}) VALUES ({'), ('.join(values)})"
