"""The sums of windows from one turn to the next. A window that says the same stays as it was; one that says something
else takes its place under the next number."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from semel.spark.audit import figures

Row = dict[str, Any]

CELL = ("code", "session_class", "window")
_SUMS = (*figures.SUMS, "latencies", "skewed", "messages")
_LARGEST = ("latency_max", "skew")
_NOT_STATED = ("sketch", "messages", "revision")
"""Sketches of the same latencies need not be the same bytes."""
SCHEMA = pa.schema(
    [
        ("code", pa.int64()),
        ("session_class", pa.string()),
        ("window", pa.int64()),
        *((name, pa.int64()) for name in (*_SUMS, *_LARGEST)),
        ("sketch", pa.map_(pa.int32(), pa.int64())),
        ("revision", pa.int64()),
    ]
)


def cell(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in CELL)


def revised(old: pa.Table | None, new: Iterable[Row], horizon: int) -> pa.Table:
    """The windows as `new` has them all. Closed ones stay."""
    before = {cell(row): row for row in old.to_pylist()} if old is not None else {}
    rows = [row for row in before.values() if row["window"] < horizon]
    return _table([*rows, *(_next(before.get(cell(row)), row) for row in new)])


def put_right(old: pa.Table, less: Iterable[Row], more: Iterable[Row]) -> pa.Table | None:
    """The windows with some messages taken out and put in again. None where the largest of a window cannot be told any
    more, because it was taken out."""
    out, into = ({cell(row): row for row in rows} for rows in (less, more))
    here = pc.is_in(old["window"], pa.array(sorted({at[2] for at in (*out, *into)}), pa.int64()))
    before = {cell(row): row for row in old.filter(here).to_pylist()}
    rows = [row for at, row in before.items() if at not in out and at not in into]
    for at in dict.fromkeys((*out, *into)):
        known = before.get(at)
        row = _less_and_more(at, known, out.get(at), into.get(at))
        if row is None:
            return None
        if row["messages"]:
            rows.append(_next(known, row))
    return _sorted(pa.concat_tables([old.filter(pc.invert(here)), _table(rows)]))


def _less_and_more(at: tuple[Any, ...], known: Row | None, less: Row | None, more: Row | None) -> Row | None:
    row: Row = dict(zip(CELL, at, strict=True))
    known, less, more = (each or {} for each in (known, less, more))
    for name in _SUMS:
        row[name] = known.get(name, 0) - less.get(name, 0) + more.get(name, 0)
    for name in _LARGEST:
        was, gone, new = (each.get(name) for each in (known, less, more))
        is_out = was is not None and was == gone
        others = row[_COUNTS[name]] - more.get(_COUNTS[name], 0)
        if is_out and others and (new is None or new < gone):
            return None
        row[name] = max((time for time in (None if is_out else was, new) if time is not None), default=None)
    bins = dict(known.get("sketch", ()))
    for sign, each in ((-1, less), (1, more)):
        for bin, count in each.get("sketch", ()):
            bins[bin] = bins.get(bin, 0) + sign * count
    row["sketch"] = [(bin, count) for bin, count in sorted(bins.items()) if count]
    return row


_COUNTS = {"latency_max": "latencies", "skew": "skewed"}


def _next(known: Row | None, row: Row) -> Row:
    if known is None:
        return {**row, "revision": 1}
    return {**row, "revision": known["revision"] + (_stated(known) != _stated(row))}


def _stated(row: Row) -> tuple[Any, ...]:
    return tuple(value for name, value in sorted(row.items()) if name not in _NOT_STATED)


def _table(rows: list[Row]) -> pa.Table:
    return _sorted(pa.Table.from_pylist(rows, SCHEMA))


def _sorted(table: pa.Table) -> pa.Table:
    return table.take(pc.sort_indices(table, [(name, "ascending") for name in CELL])) if table.num_rows else table
