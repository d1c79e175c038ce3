"""One range of a store as Arrow batches, from SQLite and PostgreSQL by ADBC. It only reads.

A range is read page by page. Each page is a short transaction of its own, in which the store, its epoch and the trim
mark are looked at before the rows: rows never change, so the pages are one whole, and a slow consumer holds up neither
a checkpoint nor a vacuum. A page is fetched as one Arrow batch, bounded in rows and in bytes.

What a value costs is fetching it, so what is the same in a whole page is not fetched (`PageShape`). A survey of the
page finds that out; the next page is asked for as one of the same shape, and surveyed only if it turns out not to be.

That a page comes as one batch also decides the types: the SQLite driver infers a column's type from the first batch of
a result, and where that holds only NULLs it guesses. In a result of one batch there is no later row to contradict it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from semel.errors import (
    InputError,
    LimitExceeded,
    NotAStore,
    SchemaTooNew,
)
from semel.kernel.ledger import START, Mark
from semel.kernel.ops import MESSAGE
from semel.kernel.store import State
from semel.record_types import OTHER_TYPE, type_names
from semel.runtime.export.exporter import dataset_schema as exported_schema
from semel.spark.engines import do, engine_of, is_driver_error
from semel.spark.offsets import Bounds, HistorySpan, OffsetSpan, Subject, check_place, cut_at, cut_evenly, parts_of
from semel.spark.rows import ARROW
from semel.stores.queries import load_migrations
from semel.stores.shared import blob_missing, exported_mark

PAGE_ROWS = 65_536
PAGE_BYTES = 32 * 1024 * 1024
BATCH_ROWS = 8_192
"""A page travels in parts that fit into the caches of a processor: both sides are a fifth faster than with whole
pages."""
CHUNK_PARTS = 256
BODY_BYTES_MAX = 2**31 - 1

_decode_headers = msgspec.json.Decoder(dict[str, str]).decode


# -- what can be read

_TYPE_CASES = " ".join(f"WHEN {kind} THEN '{name}'" for kind, name in type_names().items())
_TABLES = {
    "stream": "semel_record r",
    "ledger": "semel_ledger r",
    "index": "semel_record r JOIN semel_stream s ON s.id = r.stream_id",
}
_EXPRESSIONS = {
    "stream": {"index": "r.idx"},
    "ledger": {"session": "coalesce(r.session, r.message)"},
    "index": {
        "stream": "s.name",
        "type": f"CASE r.kind {_TYPE_CASES} ELSE '{OTHER_TYPE}' END",
        "message": "r.id",
        "session": "coalesce(r.session, r.id)",
        "bytes": "r.size",
        "terms": "r.headers",
    },
}
"""Columns that are not simply the column of the same name. A message without a session is a session of its own."""

_SPARSE = ("subject", "datacontenttype", "headers", "blob")
"""Columns of a message that are NULL in most streams."""

_REPEATED = ("source", "type", "target")
"""Columns of a message that often have one value throughout a stream."""

_CONSTANTS = frozenset({"store", "stream", "epoch"})
"""What is the same for every row of a range: `stream` and `epoch` only where a stream is read."""


def schema_of(subject: Subject) -> pa.Schema:
    """All columns. A dataset has those of its exported files; the store's id tells the rows of several stores apart."""
    if subject.dataset is None:
        return ARROW
    fields = list(exported_schema(subject.dataset))
    if subject.dataset == "index":
        fields += [pa.field("seq", pa.int64()), pa.field("xid", pa.int64())]
    return pa.schema([field.with_nullable(True) for field in (*fields, pa.field("store", pa.string()))])


def _is_constant(subject: Subject, name: str) -> bool:
    return name == "store" or (subject.dataset is None and name in _CONSTANTS)


@dataclass(frozen=True, slots=True)
class Condition:
    """One filter that the database applies: `op` is one of `OPS`. Values travel as parameters."""

    column: str
    op: str
    values: tuple[int | str, ...] = ()


OPS = ("=", "<", "<=", ">", ">=", "IN", "IS NOT NULL")


def can_filter(subject: Subject, condition: Condition) -> bool:
    """Text is only ever compared for equality: databases order it in their own ways."""
    known = schema_of(subject)
    at = known.get_field_index(condition.column)
    if at < 0 or condition.op not in OPS or _is_constant(subject, condition.column):
        return False
    kind = known.field(at).type
    if condition.op == "IS NOT NULL":
        return not pa.types.is_map(kind)
    if pa.types.is_string(kind):
        return condition.op in ("=", "IN") and all(type(value) is str for value in condition.values)
    is_number = pa.types.is_integer(kind) or pa.types.is_timestamp(kind)
    return is_number and all(type(value) is int and abs(value) < 2**63 for value in condition.values)


# -- reading


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a range in SQL: from where, in which order, and the values of its `{}` parameters."""

    source: str
    order: str
    values: tuple[int | str, ...]

    @property
    def key_names(self) -> list[str]:
        return [part.removeprefix("r.").strip('"') for part in self.order.split(", ")]

    @property
    def key(self) -> str:
        """As a mark: a transaction and a number."""
        return self.order if len(self.key_names) == 2 else f"0, {self.order}"

    def mark_of(self, page: pa.Table) -> Mark:
        """The mark of the last row."""
        *xid, seq = [page.column(name)[-1].as_py() for name in self.key_names]
        return Mark(xid[0] if xid else 0, seq)

    def where(self, sql: str, *values: int | str) -> Rows:
        return Rows(f"{self.source} AND {sql}", self.order, (*self.values, *values))


@dataclass(frozen=True, slots=True)
class PageShape:
    """What the rows of a page have in common: how many make a page, how large the largest of them is, which columns are
    NULL in all of them, and which have the same value in all, with that value. `largest` is
    None where nobody had to look."""

    limit: int
    largest: int | None = None
    unused: frozenset[str] = frozenset()
    same: tuple[tuple[str, str], ...] = ()

    @property
    def likely_limit(self) -> int:
        """How many rows make a page, if none is larger than the largest of these."""
        return max(1, min(PAGE_ROWS, PAGE_BYTES // max(1, self.largest or 0)))

    def conditions(self) -> Iterator[tuple[str, tuple[int | str, ...]]]:
        """What a row fulfils that is like these, in SQL."""
        yield from ((f"r.{name} IS NULL", ()) for name in sorted(self.unused))
        yield from ((f"r.{name} = {{}}", (value,)) for name, value in self.same)
        size = "r.size" if "headers" in self.unused else "r.size + coalesce(length(r.headers), 0)"
        yield f"{size} <= {{}}", (max(self.largest or 0, PAGE_BYTES // self.likely_limit),)


class StoreReader:
    """A store as Spark reads it. It can be pickled; the connection is made where it is needed, and kept."""

    def __init__(self, url: str) -> None:
        self.engine = engine_of(url)
        self._connection: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {"engine": self.engine, "_connection": None}

    def close(self) -> None:
        if self._connection is not None:
            connection, self._connection = self._connection, None
            self.engine.disconnect(connection)

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """What is asked inside sees one state of the store. After an error the connection is not used again."""
        try:
            with self._errors():
                self._begin()
            yield
            with self._errors():
                do(self._connection, "COMMIT")
        except BaseException:
            with suppress(Exception):  # what is broken may not even close
                self.close()
            raise

    def _begin(self) -> None:
        """A connection may have died since it was last used. Nothing was asked yet, so a new one takes its place."""
        if self._connection is not None:
            try:
                do(self._connection, self.engine.begin)
                return
            except Exception:
                with suppress(Exception):
                    self.close()
        self._connection = self.engine.connect()
        do(self._connection, self.engine.begin)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if not is_driver_error(error):
                raise
            raise self.engine.error(error) from None

    def _ask(self, sql: str, *values: int | str, rows: int = 1024) -> pa.Table:
        numbers = [self.engine.parameter(number) for number in range(1, len(values) + 1)]
        with self._errors(), self._connection.cursor() as cursor:
            self.engine.prepare(cursor, rows)
            cursor.execute(sql.format(*numbers), values or None)
            return cursor.fetch_arrow_table()

    def _one(self, sql: str, *values: int | str) -> list[Any] | None:
        found = self._ask(sql, *values)
        return [column[0].as_py() for column in found.columns] if found.num_rows else None

    # -- what is there

    def bounds(self, subject: Subject) -> Bounds:
        """In a snapshot of its own."""
        with self.snapshot():
            return self._bounds(subject)

    def _bounds(self, subject: Subject) -> Bounds:
        if subject.stream is not None:
            return self._stream_bounds(subject.stream)
        assert subject.dataset is not None
        return self._marked_bounds(subject.dataset) if self.engine.has_xid else self._counted_bounds(subject.dataset)

    def _store(self) -> tuple[str, int]:
        row = self._one("SELECT store_id, schema, epoch FROM semel_store")
        if row is None:
            raise NotAStore("the tables of Semel are empty", fix="make a store of it: semel store init <url>")
        store, schema, epoch = row
        if schema > newest_schema(self.engine.name):
            raise SchemaTooNew(
                f"the store has schema {schema}, this Semel knows {newest_schema(self.engine.name)}",
                fix="install the newer Semel that wrote it",
            )
        return store, epoch

    def _stream_bounds(self, name: str) -> Bounds:
        store, epoch = self._store()
        row = self._one("SELECT start, first, head FROM semel_stream WHERE name = {}", name)
        start, first, head = row or (0, 1, 0)
        return Bounds(store, epoch, Mark(0, start), Mark(0, first - 1), Mark(0, head), Mark(0, head))

    def _counted_bounds(self, dataset: str) -> Bounds:
        """One writer gives out the numbers one by one, so the first row of the ledger tells what was swept."""
        store, epoch = self._store()
        row = self._one("SELECT ledger_seq, record_seq, (SELECT min(seq) FROM semel_ledger) FROM semel_store")
        assert row is not None
        ledger, record, first = row
        if dataset == "index":
            return Bounds(store, epoch, START, START, Mark(0, record), Mark(0, record))
        gone = Mark(0, ledger if first is None else first - 1)
        return Bounds(store, epoch, START, gone, Mark(0, ledger), Mark(0, ledger))

    def _marked_bounds(self, dataset: str) -> Bounds:
        """Rows of the ledger go once they are exported, the lowest first. Marks have holes, so whether something stood
        below the lowest row cannot be seen, unless that is the very first: below what was exported, it may have."""
        store, epoch = self._store()
        table = _TABLES[dataset].partition(" JOIN ")[0]
        row = self._one("SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint + xid_base FROM semel_store")
        assert row is not None
        [horizon] = row
        last = self._one(f"SELECT xid, seq FROM {table} WHERE xid < {{}} ORDER BY xid DESC, seq DESC LIMIT 1", horizon)
        head, gone = Mark(*last) if last is not None else START, START
        if dataset == "ledger":
            exported = self._exported()
            first = self._one("SELECT xid, seq FROM semel_ledger ORDER BY xid, seq LIMIT 1")
            if first is None or first[1] > 1:
                gone = exported if first is None else min(exported, Mark(first[0], first[1] - 1))
            head = max(head, exported)
        return Bounds(store, epoch, START, gone, head, Mark(horizon, 0))

    def _exported(self) -> Mark:
        row = self._one("SELECT value, version FROM semel_state WHERE key = 'export/ledger' AND version > 0")
        return (exported_mark(State(*row)) if row is not None else None) or START

    # -- ranges

    def _rows(self, subject: Subject, span: OffsetSpan) -> Rows:
        """All rows of a range, by the index that has them in order."""
        what = subject.dataset or "stream"
        if subject.stream is not None:
            within = (
                'r.stream_id = (SELECT id FROM semel_stream WHERE name = {}) AND r."offset" > {} AND r."offset" <= {}'
            )
            return Rows(f"{_TABLES[what]} WHERE {within}", 'r."offset"', (subject.stream, span.after.seq, span.to.seq))
        if not self.engine.has_xid:
            return Rows(f"{_TABLES[what]} WHERE r.seq > {{}} AND r.seq <= {{}}", "r.seq", (span.after.seq, span.to.seq))
        within = "(r.xid, r.seq) > ({}, {}) AND (r.xid, r.seq) <= ({}, {})"
        marks = (span.after.xid, span.after.seq, span.to.xid, span.to.seq)
        return Rows(f"{_TABLES[what]} WHERE {within}", "r.xid, r.seq", marks)

    def up_to(self, subject: Subject, span: OffsetSpan, limit: int) -> Mark:
        """Where the range ends if it may hold `limit` rows."""
        if span.is_dense:
            return min(span.to, Mark(0, span.after.seq + limit))
        rows = self._rows(subject, span)
        sql = f"SELECT {rows.key} FROM {rows.source} ORDER BY {rows.order} LIMIT 1 OFFSET {{}}"
        with self.snapshot():
            found = self._one(sql, *rows.values, limit - 1)
        return Mark(*found) if found is not None else span.to

    def cut(self, subject: Subject, span: OffsetSpan, partitions: int) -> list[OffsetSpan]:
        """A range in parts of nearly the same size. Where numbers have holes, that takes two looks at the index."""
        if not span:
            return []
        if span.is_dense:
            return cut_evenly(span, parts_of(span.to.seq - span.after.seq, partitions))
        rows = self._rows(subject, span)
        with self.snapshot():
            counted = self._one(f"SELECT count(*) FROM {rows.source}", *rows.values)
            assert counted is not None
            parts = parts_of(counted[0], partitions)
            if parts == 1:
                return [span]
            nth = f"SELECT {rows.key}, row_number() OVER (ORDER BY {rows.order}) AS nth FROM {rows.source}"
            step = -(-counted[0] // parts)
            found = self._ask(f"SELECT * FROM ({nth}) t WHERE nth % {{}} = 0 ORDER BY nth", *rows.values, step)
        marks = zip(found.column(0).to_pylist(), found.column(1).to_pylist(), strict=True)
        return cut_at(span, [Mark(xid, seq) for xid, seq in marks])

    # -- rows

    def batches(
        self, place: HistorySpan, schema: pa.Schema, conditions: Sequence[Condition] = ()
    ) -> Iterator[pa.RecordBatch]:
        """The rows of a range in order, with the columns of `schema`."""
        check_columns(place.subject, schema)
        after, limit = place.span.after, PAGE_ROWS
        likely: PageShape | None = None
        while after < place.span.to:
            rest = place.moved(after, place.span.to)
            with self.snapshot():
                check_place(rest, self._bounds(place.subject))
                found = self._likely(rest, schema, likely) if likely is not None and not conditions else None
                is_other = found is None and likely is not None
                shape, page = found or self._surveyed(rest, schema, conditions, limit)
                batch = self._batch(page, place, schema, shape)
            yield from (batch.slice(at, BATCH_ROWS) for at in range(0, page.num_rows, BATCH_ROWS))
            if found is None and page.num_rows < shape.limit:
                return
            after = self._rows(place.subject, rest.span).mark_of(page)
            limit = min(PAGE_ROWS, shape.limit * 4)
            # a stream that changes its shape would cost a query in vain for every page
            likely = None if is_other else shape

    def _likely(self, place: HistorySpan, schema: pa.Schema, shape: PageShape) -> tuple[PageShape, pa.Table] | None:
        """The next page, if its rows are like those of the last one. The offsets of a stream have no holes, so a page
        with fewer rows than offsets has some that are not, and those of a full page need not be fetched."""
        if place.subject.stream is None or shape.largest is None:
            return None
        limit = shape.likely_limit
        span = OffsetSpan(place.span.after, min(place.span.to, Mark(0, place.span.after.seq + limit)))
        rows = self._filtered(place.moved(span.after, span.to), ())
        for condition, values in shape.conditions():
            rows = rows.where(condition, *values)
        names = [name for name in _wanted(schema, shape) if name != "offset"] or ["offset"]
        page = self._page(rows, place.subject, names, limit)
        if page.num_rows != span.to.seq - span.after.seq:
            return None
        if "offset" not in names:
            page = page.append_column("offset", pa.array(np.arange(span.after.seq + 1, span.to.seq + 1)))
        return shape, page

    def _surveyed(
        self, place: HistorySpan, schema: pa.Schema, conditions: Sequence[Condition], limit: int
    ) -> tuple[PageShape, pa.Table]:
        rows = self._filtered(place, conditions)
        shape = self._survey(rows, schema, limit)
        wanted = _wanted(schema, shape)
        names = [*wanted, *(name for name in rows.key_names if name not in wanted)]
        return shape, self._page(rows, place.subject, names, shape.limit)

    def _filtered(self, place: HistorySpan, conditions: Sequence[Condition]) -> Rows:
        rows = self._rows(place.subject, place.span)
        if place.subject.stream is not None:
            rows = rows.where(f"r.kind = {MESSAGE}")
        elif place.subject.dataset == "index" and self.engine.has_xid:
            rows = rows.where("NOT r.hollow")
        for condition in conditions:
            rows = rows.where(_condition(place.subject, condition), *condition.values)
        return rows

    def _survey(self, rows: Rows, schema: pa.Schema, limit: int) -> PageShape:
        """How many rows make no more than `PAGE_BYTES` (one, if need be), and what they have in common. Only a message
        can be large."""
        if not {"data", "headers"} & set(schema.names):
            return PageShape(limit)
        repeated = [name for name in _REPEATED if name in schema.names]
        columns = ", ".join(f"r.{name}" for name in ("size", *_SPARSE, *repeated))
        sample = f"SELECT {columns} FROM {rows.source} ORDER BY {rows.order} LIMIT {{}}"
        counts = ", ".join([f"count({name})" for name in _SPARSE] + [f"min({n}), max({n})" for n in repeated])
        size = "size + coalesce(length(headers), 0)"
        look = f"SELECT CAST(sum({size}) AS bigint), max({size}), {counts} FROM ({sample}) t"
        while True:
            found = self._one(look, *rows.values, limit)
            assert found is not None
            total, largest, *rest = found
            if (total or 0) <= PAGE_BYTES or limit == 1:
                break
            limit = max(1, min(limit // 2, limit * PAGE_BYTES // total))
        used, bounds = rest[: len(_SPARSE)], rest[len(_SPARSE) :]
        return PageShape(
            limit,
            largest,
            frozenset(name for name, count in zip(_SPARSE, used, strict=True) if not count),
            tuple((n, low) for n, low, high in zip(repeated, bounds[::2], bounds[1::2], strict=True) if low == high),
        )

    def _page(self, rows: Rows, subject: Subject, names: Sequence[str], limit: int) -> pa.Table:
        parts = [f'{self._expression(subject, name)} AS "{name}"' for name in names if not _is_constant(subject, name)]
        sql = f"SELECT {', '.join(parts)} FROM {rows.source} ORDER BY {rows.order} LIMIT {{}}"
        return self._ask(sql, *rows.values, limit, rows=limit + 1)

    def _expression(self, subject: Subject, name: str) -> str:
        if name == "xid" and not self.engine.has_xid:
            return "NULL"
        return expression_of(subject, name)

    def _batch(self, page: pa.Table, place: HistorySpan, schema: pa.Schema, shape: PageShape) -> pa.RecordBatch:
        constants = {"store": place.store, "stream": place.subject.stream, "epoch": place.epoch, **dict(shape.same)}
        arrays = []
        for field in schema:
            if _is_constant(place.subject, field.name) or field.name in dict(shape.same):
                arrays.append(pa.repeat(pa.scalar(constants[field.name], field.type), page.num_rows))
            elif field.name == "headers":
                arrays.append(_headers(_column(page, "headers", pa.string()), field.type))
            elif field.name == "data":
                arrays.append(self._bodies(page))
            else:
                arrays.append(_column(page, field.name, field.type))
        return pa.record_batch(arrays, schema=schema)

    def _bodies(self, page: pa.Table) -> pa.Array:
        data = _column(page, "data", pa.binary())
        if "blob" not in page.schema.names:
            return data
        values = data.to_pylist()
        for at, (name, size) in enumerate(zip(page["blob"].to_pylist(), page["size"].to_pylist(), strict=True)):
            if name is not None:
                values[at] = self._body(name, size)
        return pa.array(values, pa.binary())

    def _body(self, name: str, size: int) -> bytes:
        if size > BODY_BYTES_MAX:
            raise LimitExceeded(
                f"the body {name!r} has {size:,} bytes, a row of Spark holds at most {BODY_BYTES_MAX:,}",
                fix="read without the column `data`, by .schema(...) with the others",
            )
        body, part = bytearray(), -1
        while True:
            found = self._ask(
                "SELECT part, data FROM semel_chunk WHERE blob = {} AND part > {} ORDER BY part LIMIT {}",
                name, part, CHUNK_PARTS,
            )  # fmt: skip
            for chunk in found.column("data").to_pylist():
                body += chunk
            if found.num_rows < CHUNK_PARTS:
                break
            part = found.column("part")[-1].as_py()
        if len(body) != size:
            raise blob_missing(name)
        return bytes(body)


@lru_cache
def newest_schema(engine: str) -> int:
    return load_migrations(engine)[-1][0]


def expression_of(subject: Subject, name: str) -> str:
    return _EXPRESSIONS[subject.dataset or "stream"].get(name, f'r."{name}"')


def _condition(subject: Subject, condition: Condition) -> str:
    assert can_filter(subject, condition)
    column = expression_of(subject, condition.column)
    if condition.op == "IS NOT NULL":
        return f"{column} IS NOT NULL"
    if condition.op == "IN":
        return f"{column} IN ({', '.join(['{}'] * len(condition.values))})"
    return f"{column} {condition.op} {{}}"


def _wanted(schema: pa.Schema, shape: PageShape) -> list[str]:
    """The columns to fetch. A body may be in chunks: then its row names them."""
    bodies = ["blob", "size"] if "data" in schema.names and "blob" not in shape.unused else []
    left_out = shape.unused | {name for name, _ in shape.same}
    return [name for name in (*schema.names, *bodies) if name not in left_out]


def _column(page: pa.Table, name: str, kind: pa.DataType) -> pa.Array:
    """As the wanted type. A column of nothing but NULLs was not fetched, or came in any type."""
    at = page.schema.names.index(name) if name in page.schema.names else -1
    if at < 0 or page.column(at).null_count == page.num_rows:
        return pa.nulls(page.num_rows, kind)
    values = _whole(page.column(at))
    return values if values.type.equals(kind) else values.cast(kind)


def _whole(column: pa.ChunkedArray) -> pa.Array:
    """Without a copy, which `combine_chunks` makes even of one chunk."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _headers(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """JSON as a map, an empty one where there are none: Spark takes very long to hand many NULL maps to Python (see
    `nulls.py`). Most messages have none, or the same ones as many others."""
    if column.null_count == len(column):
        return pa.MapArray.from_arrays(
            np.zeros(len(column) + 1, np.int32), pa.array([], kind.key_type), pa.array([], kind.item_type)
        )
    found = column.fill_null("{}").dictionary_encode()
    maps = [list(_decode_headers(text).items()) for text in found.dictionary.to_pylist()]
    return pa.array(maps, kind).take(found.indices)


def check_columns(subject: Subject, schema: pa.Schema) -> None:
    """A caller may choose columns, but neither make some up nor change their types."""
    known = schema_of(subject)
    for field in schema:
        at = known.get_field_index(field.name)
        if at < 0:
            raise InputError(f"{subject} has no column {field.name!r}", fix=f"use: {', '.join(known.names)}")
        if not field.type.equals(known.field(at).type):
            raise InputError(
                f"column {field.name!r} of {subject} is {known.field(at).type}, not {field.type}",
                fix="read it as it is, and cast it afterwards",
            )
