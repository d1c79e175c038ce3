"""`spark.read.format("semel")` and `spark.readStream.format("semel")`: any stream, the ledger or the index of a store.

    store               the URL of the store; a SQLite file, or PostgreSQL
    stream              the stream that is read, or instead of it
    dataset             `ledger` or `index`: of the whole store
    startingPosition    earliest (default), latest, available (what is not trimmed), or a number: the first row
    endingPosition      latest (default) or a number: the last row; for batch reads
    maxRowsPerBatch     of a streaming query: 100,000
    partitions          into how many tasks a large range is cut: the cores of the machine that plans
    pushFilters         let the database apply filters of batch reads; see `FilteringSemelDataSource`
    allowSharedFile     a SQLite file may be read on other machines, because they all see the same one

`.schema(...)` chooses columns: what is not asked for is not read.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from semel.errors import ConfigError
from semel.kernel.ledger import Mark
from semel.runtime.export.exporter import DATASETS
from semel.spark.engines import SqliteReading
from semel.spark.offsets import (
    AVAILABLE,
    EARLIEST,
    LATEST,
    Bounds,
    HistorySpan,
    OffsetSpan,
    Subject,
    check_kept,
    check_place,
    check_position,
    end_of,
    offset_of,
    place_of,
    start_of,
)
from semel.spark.reading import Condition, StoreReader, can_filter, check_columns, schema_of

MAX_ROWS_PER_BATCH = 100_000
_KNOWN = (
    "store", "stream", "dataset", "startingPosition", "endingPosition", "maxRowsPerBatch", "partitions", "pushFilters",
    "allowSharedFile",
)  # fmt: skip
_COMPARISONS: dict[type[Filter], str] = {
    EqualTo: "=",
    LessThan: "<",
    LessThanOrEqual: "<=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


# -- options


@dataclass(frozen=True, slots=True)
class SourceOptions:
    store: str
    subject: Subject
    start: str | Mark
    end: str | Mark
    rows_max: int
    partitions: int
    push_filters: bool
    allow_shared_file: bool


def parse_options(given: Mapping[str, str], *, push_filters: bool = False) -> SourceOptions:
    """A word that nobody knows is refused: a misspelt option must not quietly mean the default."""
    options = {name.lower(): value for name, value in given.items()}
    unknown = sorted(set(options) - {name.lower() for name in _KNOWN})
    if unknown:
        raise ConfigError(f"the source has no option {unknown[0]!r}", fix=f"use: {', '.join(_KNOWN)}")
    if not options.get("store"):
        raise ConfigError("the source needs a store", fix='add .option("store", "sqlite:////path/semel.db")')
    return SourceOptions(
        store=options["store"],
        subject=_subject(options.get("stream"), options.get("dataset")),
        start=check_position(
            "startingPosition", options.get("startingposition", EARLIEST), (EARLIEST, LATEST, AVAILABLE)
        ),
        end=check_position("endingPosition", options.get("endingposition", LATEST), (LATEST,)),
        rows_max=_number("maxRowsPerBatch", options.get("maxrowsperbatch"), MAX_ROWS_PER_BATCH),
        partitions=_number("partitions", options.get("partitions"), _cores()),
        push_filters=_flag("pushFilters", options.get("pushfilters"), push_filters),
        allow_shared_file=_flag("allowSharedFile", options.get("allowsharedfile"), False),
    )


def _subject(stream: str | None, dataset: str | None) -> Subject:
    if bool(stream) == bool(dataset):
        raise ConfigError(
            "the source reads one thing: a stream or a dataset",
            fix='add .option("stream", NAME), or .option("dataset", "ledger") or "index"',
        )
    if dataset and dataset not in DATASETS:
        raise ConfigError(f"there is no dataset {dataset!r}", fix=f"use one of: {', '.join(DATASETS)}")
    return Subject(stream or None, dataset or None)


def _number(name: str, text: str | None, default: int) -> int:
    if text is None:
        return default
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"{name} is {text!r}", fix="give a whole number from 1")
    return int(text)


def _flag(name: str, text: str | None, default: bool) -> bool:
    if text is None:
        return default
    if text.lower() not in ("true", "false"):
        raise ConfigError(f"{name} is {text!r}", fix="write true or false")
    return text.lower() == "true"


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# -- the data source


class SemelDataSource(DataSource):
    """Register it with `semel.spark.register(spark)`."""

    pushes_filters: ClassVar[bool] = False

    @classmethod
    def name(cls) -> str:
        return "semel"

    def schema(self) -> StructType:
        subject = parse_options(self.options).subject
        schema = from_arrow_schema(schema_of(subject))
        assert isinstance(schema, StructType)
        return schema

    def reader(self, schema: StructType) -> DataSourceReader:
        options = parse_options(self.options, push_filters=self.pushes_filters)
        return (FilteringSemelReader if options.push_filters else SemelReader)(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return SemelStreamReader(parse_options(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from semel.spark.writers import make_writer

        return make_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from semel.spark.writers import make_stream_writer

        return make_stream_writer(self.options, schema, overwrite)


class FilteringSemelDataSource(SemelDataSource):
    """For sessions with `spark.sql.python.filterPushdown.enabled`: filters of batch reads reach the database. Without
    that setting Spark refuses any reader that can filter, so which one it is must be known when it is registered."""

    pushes_filters = True


@dataclass
class RangePartition(InputPartition):
    """One task: a part of a range, and the machine where it was planned."""

    place: HistorySpan
    host: str


class _Source:
    """What batch and stream have in common. Made where the query is planned, and pickled into the tasks."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self.options = options
        self.reading = StoreReader(options.store)
        self.columns: pa.Schema = to_arrow_schema(schema, timezone="UTC")
        check_columns(options.subject, self.columns)

    def plan(self, place: HistorySpan) -> list[InputPartition]:
        spans = self.reading.cut(place.subject, place.span, self.options.partitions)
        return [RangePartition(place.moved(span.after, span.to), socket.gethostname()) for span in spans]

    def rows(self, partition: InputPartition, conditions: Sequence[Condition] = ()) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, RangePartition):
            return  # what Spark makes up where nothing was planned
        self._check_host(partition)
        try:
            yield from self.reading.batches(partition.place, self.columns, conditions)
        finally:
            self.reading.close()

    def _check_host(self, partition: RangePartition) -> None:
        """A file of the same name on another machine is another file."""
        here = socket.gethostname()
        is_file = isinstance(self.reading.engine, SqliteReading)
        if is_file and not self.options.allow_shared_file and here != partition.host:
            raise ConfigError(
                f"the SQLite file of the query is on {partition.host}, this task runs on {here}",
                fix="use a postgresql:// store on a cluster; if every machine sees the same file, set allowSharedFile",
            )


class SemelReader(DataSourceReader):
    """A batch read: what is there when the query is planned."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self.options = options
        self.source = _Source(options, schema)
        self.conditions: list[Condition] = []

    def partitions(self) -> Sequence[InputPartition]:
        subject = self.options.subject
        try:
            bounds = self.source.reading.bounds(subject)
            span = self._span(bounds)
            check_kept(subject, span, bounds)
            return self.source.plan(HistorySpan(bounds.store, bounds.epoch, subject, span))
        finally:
            self.source.reading.close()

    def _span(self, bounds: Bounds) -> OffsetSpan:
        """Filters on the offset of a stream decide what is read at all."""
        start, end = start_of(self.options.start, bounds, self.options.subject), end_of(self.options.end, bounds)
        for condition in self.conditions:
            if _is_range(self.options.subject, condition):
                [value] = condition.values
                assert isinstance(value, int)
                if condition.op in ("=", ">", ">="):
                    start = max(start, Mark(0, value if condition.op == ">" else value - 1))
                if condition.op in ("=", "<", "<="):
                    end = min(end, Mark(0, value - 1 if condition.op == "<" else value))
        return OffsetSpan(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self.source.rows(partition, self.conditions)


class FilteringSemelReader(SemelReader):
    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        for filter in filters:
            condition = condition_of(filter)
            if condition is not None and can_filter(self.options.subject, condition):
                self.conditions.append(condition)
            else:
                yield filter


def condition_of(filter: Filter) -> Condition | None:
    """A filter of Spark as one of ours, if it is one that we know."""
    column = ".".join(getattr(filter, "attribute", ()))
    if isinstance(filter, IsNotNull):
        return Condition(column, "IS NOT NULL")
    if isinstance(filter, In):
        values = tuple(_plain(value) for value in filter.value if value is not None)
        return Condition(column, "IN", values) if values and len(values) == len(filter.value) else None
    if isinstance(filter, EqualTo | LessThan | LessThanOrEqual | GreaterThan | GreaterThanOrEqual):
        return Condition(column, _COMPARISONS[type(filter)], (_plain(filter.value),))
    return None


def _plain(value: Any) -> Any:
    """Times as the databases keep them: microseconds since 1970."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        return (value - _EPOCH) // _MICROSECOND
    return value


def _is_range(subject: Subject, condition: Condition) -> bool:
    return subject.stream is not None and condition.column == "offset" and condition.op in _COMPARISONS.values()


class SemelStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming read. Spark keeps the offsets; that they mean the same rows for ever is the store's promise."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self.options = options
        self.source = _Source(options, schema)
        self.last: Mark | None = None

    def initialOffset(self) -> dict[str, Any]:
        bounds = self._bounds()
        after = start_of(self.options.start, bounds, self.options.subject)
        check_kept(self.options.subject, OffsetSpan(after, bounds.head), bounds)
        return offset_of(self._place(bounds, OffsetSpan(after, after)))

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self.options.rows_max)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        place = place_of(start, self.options.subject)
        bounds = self._bounds()
        after = max(place.span.to, bounds.origin)
        check_place(place.moved(place.span.to, place.span.to), bounds)
        end = end_of(self.options.end, bounds)
        span = OffsetSpan(after, end if self.last is None else min(end, self.last))
        check_kept(self.options.subject, span, bounds)
        if not span:
            return start
        to = self._limited(span, limit)
        return offset_of(place.moved(place.span.to, to))

    def _limited(self, span: OffsetSpan, limit: ReadLimit) -> Mark:
        if isinstance(limit, ReadAllAvailable):
            return span.to
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else self.options.rows_max
        return self.source.reading.up_to(self.options.subject, span, rows)

    def prepareForTriggerAvailableNow(self) -> None:
        """What comes in from now on is for the next run."""
        self.last = self._bounds().head

    def reportLatestOffset(self) -> dict[str, Any]:
        bounds = self._bounds()
        return offset_of(self._place(bounds, OffsetSpan(bounds.head, bounds.head)))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The batch is what its end says. Before the first one Spark keeps no offset and asks for the start again: by
        then that may be another place, `latest` for instance."""
        before, place = place_of(start, self.options.subject), place_of(end, self.options.subject)
        if place == before:
            # nothing new since the batch before, which is what this end still describes
            place = place.moved(place.span.to, place.span.to)
        bounds = self._bounds()
        check_place(place, bounds)
        return self.source.plan(place.moved(max(place.span.after, bounds.origin), place.span.to))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self.source.rows(partition)

    def stop(self) -> None:
        self.source.reading.close()

    def _bounds(self) -> Bounds:
        return self.source.reading.bounds(self.options.subject)

    def _place(self, bounds: Bounds, span: OffsetSpan) -> HistorySpan:
        return HistorySpan(bounds.store, bounds.epoch, self.options.subject, span)
