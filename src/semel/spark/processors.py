"""The decisions of `ordering.py` over rows of Arrow, bucket by bucket.

Spark hands rows to a stateful Python processor one by one, through pandas, and that costs more than the decisions do.
So rows travel packed: `Pack` puts the rows of one bucket into one value of Arrow bytes before the exchange, the
processor takes and gives such values, and `Unpack` makes rows of them again. No column is converted on the way, so
every type arrives as it left.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)

from semel.errors import ConfigError, InputError
from semel.kernel.dedup import OnGap
from semel.kernel.text import ID_CHARS_MAX
from semel.spark.nulls import emptied
from semel.spark.ordering import Bucket, Decided, Gap, Rules
from semel.spark.rows import RowOutcome
from semel.spark.waiting import waiting_cause

BUCKET = "semel_bucket"
"""The column that says into which bucket a row goes. Spark renames columns with a leading underscore on their way."""
NOW = "semel_now"
"""The column that holds the time of the batch in milliseconds, the same in a replay."""
PACKED = f"{BUCKET} int, {NOW} long, rows binary"
"""What `Pack` gives and the exchange carries."""
PASSED_ON = "rows binary"
"""What a processor gives and `Unpack` takes."""
STATE = "state binary, timer long"
"""The bucket as bytes with a version of their own, and the one timer that is set for it."""

PACK_ROWS_MAX = 65_536
PACK_BYTES_MAX = 16 * 1024 * 1024
GAP_ROWS_MAX = 1000
"""A gap longer than this comes out as this many rows, and one for all that is left."""

_VERDICT = (pa.field("outcome", pa.string()), pa.field("cause", pa.string()))
_TAKES_PLACE = (RowOutcome.DEAD.value, RowOutcome.HANDLED.value)
"""A row with one of these outcomes has come and is the one of its index; the other kinds of rows only tell of one."""
Waits = dict[str, tuple[int, int]]
"""By session the index that it waits for, and how many rows do."""
_TIES = ("stream", "epoch", "offset", "id")


@dataclass(frozen=True, slots=True)
class Pack:
    """For `mapInArrow`: rows with the columns `BUCKET` and `NOW` become few rows of many rows each."""

    rows_max: int = PACK_ROWS_MAX
    bytes_max: int = PACK_BYTES_MAX

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        held: list[pa.RecordBatch] = []
        rows = size = 0
        for batch in batches:
            held.append(batch)
            rows += batch.num_rows
            size += batch.nbytes
            if rows >= self.rows_max or size >= self.bytes_max:
                yield _packed(held)
                held, rows, size = [], 0, 0
        if rows:
            yield _packed(held)


def _packed(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    table = pa.Table.from_batches(batches).combine_chunks()
    buckets = table.column(BUCKET).to_numpy()
    by_bucket = np.argsort(buckets, kind="stable")
    now = table.column(NOW)[0].as_py()
    table = emptied(table.drop_columns([BUCKET, NOW])).take(pa.array(by_bucket))
    starts = _starts(buckets[by_bucket])
    ends = [*starts[1:], len(buckets)]
    return pa.record_batch(
        [
            pa.array(buckets[by_bucket][starts], pa.int32()),
            pa.array([now] * len(starts), pa.int64()),
            pa.array([to_bytes(table[start:end]) for start, end in zip(starts, ends, strict=True)], pa.binary()),
        ],
        names=[BUCKET, NOW, "rows"],
    )


def _starts(values: np.ndarray) -> list[int]:
    """Where each run of equal values begins."""
    return [0, *(np.flatnonzero(values[1:] != values[:-1]) + 1).tolist()] if len(values) else []


@dataclass(frozen=True, slots=True)
class Unpack:
    """For `mapInArrow`: undo `Pack`, in the same order.

    Rows that were kept while the query had other columns lose what it no longer has, and are empty in what is new.
    """

    schema: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for rows in batch.column("rows"):
                yield from map(self._fitted, pa.ipc.open_stream(rows.as_buffer()))

    def _fitted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.schema.names == self.schema.names:
            return batch
        has = set(batch.schema.names)
        columns = [
            batch.column(field.name) if field.name in has else pa.nulls(batch.num_rows, field.type)
            for field in self.schema
        ]
        return pa.record_batch(columns, names=self.schema.names)


def to_bytes(table: pa.Table) -> bytes:
    """Rows as an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def from_bytes(rows: Sequence[bytes]) -> pa.Table:
    """The rows of many packs as one table."""
    return joined([pa.ipc.open_stream(each).read_all() for each in rows]).combine_chunks()


def joined(tables: Sequence[pa.Table]) -> pa.Table:
    """One table, with every column that any of them has. Every column may be empty: the row of a skipped index has only
    a name."""
    try:
        return pa.concat_tables([_nullable(table) for table in tables], promote_options="permissive")
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise ConfigError(
            f"rows that wait in the state of this query do not fit its columns of today: {error}",
            fix="give the column back its type, or start the query with a new checkpoint folder",
        ) from None


def _nullable(table: pa.Table) -> pa.Table:
    return pa.Table.from_arrays(table.columns, schema=_all_nullable(table.schema))


def _all_nullable(schema: pa.Schema) -> pa.Schema:
    return pa.schema([field.with_nullable(True) for field in schema])


def decide(bucket: Bucket, held: pa.Table | None, fresh: pa.Table, now: float) -> tuple[Decided, pa.Table]:
    """Offer rows to a bucket: what was decided, and the table that its row numbers mean.

    The rows of a batch have no order of arrival: Spark reads them in several tasks. They are taken by index and then by
    position, so that a session that is complete within the batch never waits, and a replay decides the same.
    """
    table = joined([fresh] if held is None else [held, fresh])
    first = table.num_rows - fresh.num_rows
    decided = Decided()
    plays = _plays(fresh)
    codes, names = _sessions(fresh)
    _offer_sessions(bucket, fresh, np.flatnonzero(plays & (codes >= 0)), codes, names, first, now, decided)
    alone = np.flatnonzero(plays & (codes < 0))
    ids = fresh.column("id").take(pa.array(alone)).to_pylist() if bucket.rules.ids and len(alone) else []
    bucket.offer_ids(ids, (alone + first).tolist(), now, decided)
    decided.passed.extend((np.flatnonzero(~plays) + first).tolist())
    return decided, table.combine_chunks()


def _plays(table: pa.Table) -> np.ndarray:
    """Which rows take part: those that pass on, and those whose end was decided before they got their place."""
    if "outcome" not in table.column_names:
        return np.ones(table.num_rows, dtype=bool)
    outcome = table.column("outcome")
    takes = pc.or_(pc.is_null(outcome), pc.is_in(outcome, pa.array(_TAKES_PLACE)))
    return takes.to_numpy().astype(bool)


def _sessions(table: pa.Table) -> tuple[np.ndarray, list[str]]:
    """A number for the session of each row, -1 without one, and the sessions' names by number."""
    encoded = table.column("session").combine_chunks().dictionary_encode()
    encoded = encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded
    return encoded.indices.fill_null(-1).to_numpy(), encoded.dictionary.to_pylist()


def _offer_sessions(
    bucket: Bucket,
    table: pa.Table,
    chosen: np.ndarray,
    codes: np.ndarray,
    names: list[str],
    first: int,
    now: float,
    decided: Decided,
) -> None:
    if not len(chosen):
        return
    order = chosen[_by_index(table.take(pa.array(chosen)), codes[chosen])]
    indexes = table.column("index").take(pa.array(order)).to_pylist()
    rows = (order + first).tolist()
    of_session = codes[order]
    starts = _starts(of_session)
    for start, end in zip(starts, [*starts[1:], len(rows)], strict=True):
        bucket.offer(names[of_session[start]], indexes[start:end], rows[start:end], now, decided)


def _by_index(table: pa.Table, codes: np.ndarray) -> np.ndarray:
    """The order by session, index and position, of those columns that there are."""
    keys = [name for name in ("index", *_TIES) if name in table.column_names]
    sortable = table.select(keys).append_column(BUCKET, pa.array(codes))
    return pc.sort_indices(sortable, sort_keys=[(name, "ascending") for name in (BUCKET, *keys)]).to_numpy()


def given(decided: Decided, table: pa.Table, verdicts: bool) -> pa.Table:
    """What comes out. With `verdicts` also the rows that do not pass, each with its outcome."""
    passed = table.take(pa.array(decided.passed, pa.int64()))
    if not verdicts:
        _no_rejected(decided, table)
        return passed
    stopped = table.take(pa.array([verdict.row for verdict in decided.verdicts], pa.int64()))
    for field, values in zip(
        _VERDICT,
        (
            [verdict.outcome.value for verdict in decided.verdicts],
            [verdict.cause for verdict in decided.verdicts],
        ),
        strict=True,
    ):
        stopped = _with(stopped, field, pa.array(values, field.type))
        if field.name not in passed.column_names:
            passed = passed.append_column(field, pa.nulls(passed.num_rows, field.type))
    return pa.concat_tables([passed, stopped.select(passed.column_names), _gap_rows(decided.gaps, passed.schema)])


def _with(table: pa.Table, field: pa.Field, values: pa.Array) -> pa.Table:
    at = table.schema.get_field_index(field.name)
    return table.append_column(field, values) if at < 0 else table.set_column(at, field, values)


def _no_rejected(decided: Decided, table: pa.Table) -> None:
    """A row that has no place must not vanish where nobody would notice."""
    for verdict in decided.verdicts:
        if verdict.outcome is RowOutcome.REJECTED:
            row = table.slice(verdict.row, 1).to_pylist()[0]
            name = row.get("id") or f"a row of session {row['session']!r}"
            raise InputError(
                f"{name} cannot be put in order: {verdict.cause}",
                fix="number the rows of a session from 1, take these rows out before, or use verdicts=True, "
                "which lets them out with outcome 'dead'",
            )


def _gap_rows(gaps: Sequence[Gap], schema: pa.Schema) -> pa.Table:
    """The indexes that were given up, one row each."""
    rows = [
        (_gap_id(gap.session, text), gap.session, index, RowOutcome.SKIPPED.value, cause)
        for gap in gaps
        if (cause := f"indexes {gap.first}..{gap.last} never came")
        for index, text in _numbers(gap)
    ]
    return _report_rows(rows, schema)


def waiting_rows(before: Waits, after: Waits, schema: pa.Schema) -> pa.Table:
    """A row for each session that waits for another index than before, or with another number of rows."""
    changed = [
        session for session in (*after, *(before.keys() - after.keys())) if before.get(session) != after.get(session)
    ]
    rows = [
        (_gap_id(session, "waits"), session, index, RowOutcome.WAITING.value, waiting_cause(count))
        for session in sorted(changed)
        for index, count in [after.get(session, (before.get(session, (0, 0))[0], 0))]
    ]
    return _report_rows(rows, schema)


_REPORTED = ("id", "session", "index", "outcome", "cause")


def _report_rows(rows: Sequence[tuple[Any, ...]], schema: pa.Schema) -> pa.Table:
    """Rows that are no messages: what they tell, and nothing else."""
    columns = dict(zip(_REPORTED, zip(*rows, strict=True), strict=True)) if rows else dict.fromkeys(_REPORTED, ())
    return pa.table(
        [
            pa.array(columns[field.name], field.type) if field.name in columns else pa.nulls(len(rows), field.type)
            for field in schema
        ],
        schema=schema,
    )


def _numbers(gap: Gap) -> Iterator[tuple[int, str]]:
    """The indexes of a gap, and how each is named. A gap may be as wide as the numbers are."""
    last = min(gap.last, gap.first + GAP_ROWS_MAX - 1)
    yield from ((index, str(index)) for index in range(gap.first, last + 1))
    if last < gap.last:
        yield last + 1, f"{last + 1}..{gap.last}"


def _gap_id(session: str, index: str) -> str:
    id = f"{session}#{index}"
    return id if len(id) <= ID_CHARS_MAX else f"{hashlib.sha256(session.encode()).hexdigest()}#{index}"


class OrderingProcessor(StatefulProcessor):
    """One bucket of sessions in a streaming query. The clock is the batch's, so a replay decides the same.

    Timers are used only where gaps are skipped: a query with timers runs batches without end, even when nothing comes.
    Elsewhere sessions are forgotten when rows of others come.
    """

    def __init__(self, rules: Rules, *, verdicts: bool, waiting: bool = False) -> None:
        self._rules = rules
        self._verdicts = verdicts
        self._waiting = verdicts and waiting
        self._timers = rules.gap.then is OnGap.SKIP

    @property
    def time_mode(self) -> str:
        return "ProcessingTime" if self._timers else "None"

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._state = handle.getValueState("bucket", STATE)

    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: TimerValues
    ) -> Iterator[pd.DataFrame]:
        packed = pd.concat(rows, ignore_index=True)
        now_ms = int(packed[NOW].max())
        bucket, kept, timer = self._load(now_ms)
        before = bucket.waits()
        decided, table = decide(bucket, kept, from_bytes(list(packed["rows"])), now_ms / 1000)
        if not self._timers:
            bucket.on_timer(now_ms / 1000)
        self._save(bucket, table, now_ms, timer)
        yield from self._out(decided, table, before, bucket.waits())

    def handleExpiredTimer(
        self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[pd.DataFrame]:
        now_ms = timerValues.getCurrentProcessingTimeInMs()
        bucket, kept, _ = self._load(now_ms)
        before = bucket.waits()
        decided = bucket.on_timer(now_ms / 1000)
        self._save(bucket, kept, now_ms, None)
        if kept is not None:
            yield from self._out(decided, kept, before, bucket.waits())

    def _load(self, now_ms: int) -> tuple[Bucket, pa.Table | None, int | None]:
        value = self._state.get() if self._state.exists() else None
        if value is None:
            return Bucket(self._rules), None, None
        bucket, rows = Bucket.decode(bytes(value[0]), self._rules, now_ms / 1000)
        return bucket, from_bytes([rows]) if rows else None, value[1]

    def _save(self, bucket: Bucket, table: pa.Table | None, now_ms: int, timer: int | None) -> None:
        if not bucket:
            self._state.clear()
            return
        self._state.update((bucket.encode(lambda rows: _kept(table, rows)), self._set_timer(bucket, now_ms, timer)))

    def _set_timer(self, bucket: Bucket, now_ms: int, timer: int | None) -> int | None:
        """One timer per bucket. One that is set too early does no harm: it finds nothing to do and sets the next."""
        deadline = bucket.next_deadline() if self._timers else None
        due = None if deadline is None else max(math.ceil(deadline * 1000), now_ms + 1)
        if due is None or (timer is not None and timer <= due):
            return timer
        if timer is not None:
            self._handle.deleteTimer(timer)
        self._handle.registerTimer(due)
        return due

    def _out(self, decided: Decided, table: pa.Table, before: Waits, after: Waits) -> Iterator[pd.DataFrame]:
        out = given(decided, table, self._verdicts)
        if self._waiting and before != after:
            out = pa.concat_tables([out, waiting_rows(before, after, out.schema)])
        yield from map(_frame, _pieces(out))


def _kept(table: pa.Table | None, rows: list[int]) -> bytes:
    return to_bytes(table.take(pa.array(rows, pa.int64()))) if table is not None else b""


def _pieces(table: pa.Table) -> Iterator[bytes]:
    """Values that stay well below what one value may hold."""
    if not table.num_rows:
        return
    step = max(1, min(PACK_ROWS_MAX, table.num_rows * PACK_BYTES_MAX // max(1, table.nbytes)))
    yield from (to_bytes(table.slice(start, step)) for start in range(0, table.num_rows, step))


def _frame(rows: bytes) -> pd.DataFrame:
    return pd.DataFrame({"rows": [rows]})


@dataclass(frozen=True, slots=True)
class BatchInOrder:
    """For `applyInArrow`: the same over one bucket of a batch, where nothing more will come."""

    rules: Rules
    verdicts: bool

    def __call__(self, table: pa.Table) -> pa.Table:
        bucket = Bucket(self.rules)
        table = emptied(table.drop_columns([BUCKET])).combine_chunks()
        decided, table = decide(bucket, None, table, now=0.0)
        rest = bucket.finish()
        decided.passed += rest.passed
        decided.gaps += rest.gaps
        return given(decided, table, self.verdicts)


@dataclass(frozen=True, slots=True)
class Counted:
    """For `mapInArrow`: the rows of each batch counted by all their columns, so that only counts are exchanged."""

    by: tuple[str, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            counted = pa.Table.from_batches([batch]).group_by(list(self.by)).aggregate([([], "count_all")])
            columns = [*(counted.column(name) for name in self.by), counted.column("count_all")]
            yield from pa.table(columns, names=[*self.by, "count"]).to_batches()


class Settled(StatefulProcessor):
    """Counts one window of one group, and tells the count when the watermark has passed the window's end.

    Rows that come later open it again: the new count comes out at once, with the next revision. A window is forgotten
    `forget_ms` after its end, and what comes after that is not counted.
    """

    def __init__(self, forget_ms: int) -> None:
        self._forget_ms = forget_ms

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._state = handle.getValueState("window", "count long, revision int")

    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: TimerValues
    ) -> Iterator[pd.DataFrame]:
        end_ms, watermark_ms = _end_ms(key), timerValues.getCurrentWatermarkInMs()
        known = self._state.get() if self._state.exists() else None
        fresh = sum(int(frame["count"].sum()) for frame in rows)
        if end_ms + self._forget_ms <= watermark_ms:
            return
        if known is None:
            self._handle.registerTimer(end_ms if end_ms > watermark_ms else end_ms + self._forget_ms)
        count, revision = known or (0, -1)
        if end_ms <= watermark_ms:
            revision += 1
            yield _window(key, count + fresh, revision)
        self._state.update((count + fresh, revision))

    def handleExpiredTimer(
        self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[pd.DataFrame]:
        end_ms = _end_ms(key)
        if expiredTimerInfo.getExpiryTimeInMs() >= end_ms + self._forget_ms:
            self._state.clear()
            return
        count, revision = self._state.get() or (0, 0)
        if revision < 0:
            revision = 0
            self._state.update((count, revision))
            yield _window(key, count, revision)
        forget_ms = max(end_ms + self._forget_ms, timerValues.getCurrentWatermarkInMs() + 1)
        self._handle.registerTimer(forget_ms)


def window_key(width: int) -> list[str]:
    """The columns of the key: names that every format takes, whatever those of the group are."""
    return [f"key{at}" for at in range(width)]


def _end_ms(key: Any) -> int:
    """When a window ends; the key is its start and end in microseconds, and then its group."""
    return math.ceil(key[1] / 1000)


def _window(key: Any, count: int, revision: int) -> pd.DataFrame:
    names = window_key(len(key))
    return pd.DataFrame({name: [value] for name, value in zip(names, key, strict=True)}).assign(
        count=count, revision=revision
    )
