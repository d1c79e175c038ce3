"""What the tests of the sink share: rows, tasks, and a ledger that is held against the records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from semel.kernel.envelope import Envelope
from semel.kernel.ledger import START, Event, Kind, fold_ids
from semel.kernel.position import Position
from semel.kernel.store import Record, Records, Store
from semel.spark.landing import Job
from semel.spark.rows import ARROW_TRAVEL, Row, RowOutcome, batch_of
from semel.spark.sink import SinkOptions
from semel.spark.staging import Staged, Staging, Task
from semel.stores.sqlite import SqliteStore

SCHEMA = from_arrow_schema(ARROW_TRAVEL)


def row(
    id: str,
    *,
    session: str | None = None,
    index: int | None = None,
    stream: str | None = "hub/chat",
    outcome: RowOutcome | None = None,
    cause: str | None = None,
    input: str | None = None,
    ordinal: int | None = None,
    data: bytes = b"",
) -> Row:
    envelope = Envelope(id, session=session, index=index, data=data)
    position = Position(stream, 1, 1) if stream is not None else None
    return Row(envelope, position, outcome, cause, input, ordinal)


def raw(**columns: list[object]) -> pa.RecordBatch:
    """Rows that have not been checked by anybody."""
    known = {field.name: field.type for field in ARROW_TRAVEL}
    return pa.record_batch({name: pa.array(values, known[name]) for name, values in columns.items()})


def new_store(tmp_path: Path) -> SqliteStore:
    return SqliteStore(f"sqlite:///{tmp_path}/semel.db", node="spark")


def options_of(tmp_path: Path, at: Store, **more: object) -> SinkOptions:
    given = {"staging": str(tmp_path / "staging"), "store": at.url, **more}
    return SinkOptions(pipeline="orders", **given)  # type: ignore[arg-type]


def stage(
    staging: Staging, rows: Sequence[Row] | pa.RecordBatch, job: Job, partition: int = 0, attempt: int = 0
) -> Staged:
    batch = rows if isinstance(rows, pa.RecordBatch) else batch_of(rows)
    return staging.write(iter([batch]), Task(job.query, job.batch, partition, attempt, partition * 10 + attempt))


def records(store: Store, stream: str) -> tuple[Record, ...]:
    found = store.read(stream, limit=1_000_000)
    assert isinstance(found, Records)
    return found.records


def ids(store: Store, stream: str) -> list[str]:
    return [record.envelope.id for record in records(store, stream)]


def events(store: Store) -> list[Event]:
    return [entry.event for entry in store.ledger(START, 1_000_000)]


def told(store: Store) -> Counter[tuple[str, Kind, str]]:
    """Every event by hop, kind and message. A range is exact: it stands for all records from its first to its last."""
    found: Counter[tuple[str, Kind, str]] = Counter()
    for event in events(store):
        if event.message is not None:
            found[event.hop, event.kind, event.message] += 1
            continue
        assert event.stream is not None
        assert event.first is not None
        assert event.last is not None
        meant = [
            record.envelope.id
            for record in records(store, event.stream)
            if event.first <= record.position.offset <= event.last
        ]
        assert event.n == len(meant) == event.last - event.first + 1
        assert event.fold == fold_ids(meant)
        for id in meant:
            found[event.hop, event.kind, id] += 1
    return found
