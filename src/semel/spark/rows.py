"""The row that travels through Spark: one message, with its position in the stream it came from.

Three faces of the same row: as Spark's schema (`MESSAGE`), as Arrow's (`arrow_schema`), and as the kernel's `Envelope`.
Transforms may add the columns of `TRAVEL`, which tell the sink what became of a row that does not pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from itertools import repeat
from typing import Any

import msgspec
import pyarrow as pa

from semel.errors import InputError
from semel.kernel.envelope import DATA_INLINE_BYTES_MAX, Envelope
from semel.kernel.position import Position

MESSAGE = (
    "id string, source string, type string, subject string, time timestamp, session string, index long, "
    "datacontenttype string, data binary, headers map<string,string>, stream string, epoch int, offset long, "
    "target string"
)
"""The columns of a message, as Spark spells them."""

TRAVEL = "outcome string, cause string, input string, ordinal int"
"""What a transform may add. `outcome` is empty for a row that passes on; see `RowOutcome`."""

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
        pa.field("target", pa.string()),
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


class RowOutcome(Enum):
    """What became of a row that does not pass on. It reaches the ledger, and never the output."""

    DUPLICATE = "duplicate"
    REJECTED = "rejected"
    SKIPPED = "skipped"
    WAITING = "waiting"
    HANDLED = "handled"
    DEAD = "dead"


class Row(msgspec.Struct, frozen=True, gc=False):
    """One travelling row in the kernel's words. `position` is where its input stands, if a stream it came from. A body
    that is too large for an envelope is in `large`, and whoever stores the row stores that in chunks. `target` says for
    whom it is, in a stream with many receivers."""

    envelope: Envelope
    position: Position | None = None
    outcome: RowOutcome | None = None
    cause: str | None = None
    input: str | None = None
    ordinal: int | None = None
    large: bytes | None = None
    target: str = ""


def arrow_schema(names: Sequence[str]) -> pa.Schema:
    """The chosen columns, in the given order."""
    known = {field.name: field for field in ARROW_TRAVEL}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise InputError(f"a message has no column {unknown[0]!r}", fix=f"use: {', '.join(known)}")
    return pa.schema([known[name] for name in names])


Values = dict[str, Any]
"""One row by column, as it came: nothing in it has been checked."""

Refuse = Callable[[Values, InputError], Row]
"""What to make of a row that no store would take."""

Derive = Callable[[str, int], str]
"""The id of an output that was given none: from the id of its input and its number among the outputs."""


def rows_of(batch: pa.RecordBatch, *, refuse: Refuse | None = None, derive: Derive | None = None) -> Iterator[Row]:
    """The rows of an Arrow batch. Columns may be missing or in any order, except `id`, and further ones are passed
    over. A row that breaks a rule raises InputError, unless `refuse` makes another one of it."""
    if "id" not in batch.schema.names:
        raise InputError("a message needs an id, and these rows have no column `id`", fix="select an id column")
    columns = [_column(batch, field) for field in ARROW_TRAVEL]
    for values in zip(*columns, strict=True):
        try:
            row = _row(derive, values)
        except InputError as error:
            if refuse is None:
                raise
            row = refuse(dict(zip(ARROW_TRAVEL.names, values, strict=True)), error)
        yield row


def _column(batch: pa.RecordBatch, field: pa.Field) -> Iterable[Any]:
    """As Python values; times as microseconds, which is what an envelope holds. This is on the hot path: a column
    with nothing in it costs nothing."""
    nothing = repeat(None, batch.num_rows)
    if field.name not in batch.schema.names:
        return nothing
    column = batch.column(field.name)
    if column.null_count == batch.num_rows:
        return nothing
    if column.type != field.type:
        column = column.cast(field.type)
    if pa.types.is_map(column.type) and column.offsets[0] == column.offsets[-1]:
        return nothing
    values: list[Any] = (column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column).to_pylist()
    return values


def _row(derive: Derive | None, values: tuple[Any, ...]) -> Row:
    (
        id, source, type, subject, time, session, index, datacontenttype, data, headers,
        stream, epoch, offset, target, outcome, cause, input, ordinal,
    ) = values  # fmt: skip
    if id is None:
        id = _derived(derive, input, ordinal)
    is_large = data is not None and len(data) > DATA_INLINE_BYTES_MAX
    envelope = Envelope(
        id,
        source or "semel",
        type or "message",
        b"" if is_large else data or b"",
        session,
        index,
        time,
        subject,
        datacontenttype,
        dict(headers) if headers else {},
    )
    return Row(
        envelope,
        Position(stream, epoch or 0, offset or 0) if stream is not None else None,
        _outcome(outcome) if outcome else None,
        cause,
        input,
        ordinal,
        data if is_large else None,
        target or "",
    )


def _derived(derive: Derive | None, input: str | None, ordinal: int | None) -> str:
    if derive is None or input is None:
        raise InputError("a message has no id", fix="give every row an id of its own")
    return derive(input, ordinal or 0)


def _outcome(text: str) -> RowOutcome:
    try:
        return RowOutcome(text)
    except ValueError:
        known = ", ".join(outcome.value for outcome in RowOutcome)
        raise InputError(f"outcome {text!r} is not known", fix=f"use one of: {known}; or leave it empty") from None


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
        "target": [row.target for row in rows],
        "outcome": [row.outcome.value if row.outcome else None for row in rows],
        "cause": [row.cause for row in rows],
        "input": [row.input for row in rows],
        "ordinal": [row.ordinal for row in rows],
    }
    return pa.record_batch([pa.array(columns[field.name], type=field.type) for field in schema], schema=schema)
