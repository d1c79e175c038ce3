"""The row that travels through Spark: one message, with its position in the stream it came from.

Three faces of the same row: as Spark's schema (`MESSAGE`), as Arrow's (`arrow_schema`), and as the kernel's `Envelope`.
Transforms may add the columns of `TRAVEL`, which tell the sink what became of a row that does not pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import pyarrow as pa

from semel.errors import InputError
from semel.kernel.envelope import DATA_INLINE_BYTES_MAX, Envelope
from semel.kernel.position import Position

MESSAGE = (
    "id string, source string, type string, subject string, time timestamp, session string, index long, "
    "datacontenttype string, data binary, headers map<string,string>, stream string, epoch int, offset long"
)
"""The columns of a message, as Spark spells them."""

TRAVEL = "outcome string, cause string, input string, ordinal int"
"""What a transform may add. `outcome` is empty for a row that passes on; see `Outcome`."""

_TIME = pa.timestamp("us", tz="UTC")

ARROW = pa.schema(
    [
        pa.field("id", pa.string()),
        pa.field("source", pa.string()),
        pa.field("type", pa.string()),
        pa.field("subject", pa.string()),
        pa.field("time", _TIME),
        pa.field("session", pa.string()),
        pa.field("index", pa.int64()),
        pa.field("datacontenttype", pa.string()),
        pa.field("data", pa.binary()),
        pa.field("headers", pa.map_(pa.string(), pa.string())),
        pa.field("stream", pa.string()),
        pa.field("epoch", pa.int32()),
        pa.field("offset", pa.int64()),
    ]
)

ARROW_TRAVEL = pa.schema(
    [
        *ARROW,
        pa.field("outcome", pa.string()),
        pa.field("cause", pa.string()),
        pa.field("input", pa.string()),
        pa.field("ordinal", pa.int32()),
    ]
)


class Outcome(Enum):
    """What became of a row that does not pass on. It reaches the ledger, and never the output."""

    DUPLICATE = "duplicate"
    REJECTED = "rejected"
    SKIPPED = "skipped"
    HANDLED = "handled"
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class Row:
    """One travelling row in the kernel's words. `position` is where its input stands, if a stream it came from. A body
    that is too large for an envelope is in `large`, and whoever stores the row stores that in chunks."""

    envelope: Envelope
    position: Position | None = None
    outcome: Outcome | None = None
    cause: str | None = None
    input: str | None = None
    ordinal: int | None = None
    large: bytes | None = None


def arrow_schema(names: Sequence[str]) -> pa.Schema:
    """The chosen columns, in the given order."""
    known = {field.name: field for field in ARROW_TRAVEL}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise InputError(f"a message has no column {unknown[0]!r}", fix=f"use: {', '.join(known)}")
    return pa.schema([known[name] for name in names])


def rows_of(batch: pa.RecordBatch) -> Iterator[Row]:
    """The rows of an Arrow batch. Columns may be missing or in any order, except `id`, and further ones are passed
    over."""
    names = set(batch.schema.names)
    if "id" not in names:
        raise InputError("a message needs an id, and these rows have no column `id`", fix="select an id column")
    columns = {
        field.name: _values(batch.column(field.name).cast(field.type)) if field.name in names else None
        for field in ARROW_TRAVEL
    }
    for at in range(batch.num_rows):
        yield _row({name: values[at] if values is not None else None for name, values in columns.items()})


def _values(column: pa.Array) -> list[Any]:
    """As Python values; times as microseconds, which is what an envelope holds."""
    return column.cast(pa.int64()).to_pylist() if pa.types.is_timestamp(column.type) else column.to_pylist()


def _row(values: dict[str, Any]) -> Row:
    stream, epoch, offset = values["stream"], values["epoch"], values["offset"]
    return Row(
        envelope=_envelope(values),
        position=Position(stream, epoch or 0, offset or 0) if stream is not None else None,
        outcome=Outcome(values["outcome"]) if values["outcome"] else None,
        cause=values["cause"],
        input=values["input"],
        ordinal=values["ordinal"],
        large=values["data"] if _is_large(values["data"]) else None,
    )


def _is_large(data: bytes | None) -> bool:
    return data is not None and len(data) > DATA_INLINE_BYTES_MAX


def _envelope(values: dict[str, Any]) -> Envelope:
    if values["id"] is None:
        raise InputError("a message has no id", fix="give every row an id of its own")
    return Envelope(
        id=values["id"],
        source=values["source"] or "semel",
        type=values["type"] or "message",
        data=b"" if _is_large(values["data"]) else values["data"] or b"",
        session=values["session"],
        index=values["index"],
        time=values["time"],
        subject=values["subject"],
        datacontenttype=values["datacontenttype"],
        headers=dict(values["headers"] or ()),
    )


def batch_of(rows: Sequence[Row], schema: pa.Schema = ARROW_TRAVEL) -> pa.RecordBatch:
    """Undo `rows_of`."""
    columns: dict[str, list[Any]] = {
        "id": [row.envelope.id for row in rows],
        "source": [row.envelope.source for row in rows],
        "type": [row.envelope.type for row in rows],
        "subject": [row.envelope.subject for row in rows],
        "time": [row.envelope.time for row in rows],
        "session": [row.envelope.session for row in rows],
        "index": [row.envelope.index for row in rows],
        "datacontenttype": [row.envelope.datacontenttype for row in rows],
        "data": [row.envelope.data if row.large is None else row.large for row in rows],
        "headers": [list(row.envelope.headers.items()) for row in rows],
        "stream": [row.position.stream if row.position else None for row in rows],
        "epoch": [row.position.epoch if row.position else None for row in rows],
        "offset": [row.position.offset if row.position else None for row in rows],
        "outcome": [row.outcome.value if row.outcome else None for row in rows],
        "cause": [row.cause for row in rows],
        "input": [row.input for row in rows],
        "ordinal": [row.ordinal for row in rows],
    }
    return pa.record_batch([pa.array(columns[field.name], type=field.type) for field in schema], schema=schema)
