"""An envelope as columns, the same ones in every table and engine, so that SQL and Spark can read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from semel.kernel.envelope import Blob, Envelope

ENVELOPE_COLUMNS = (
    "id", "source", "type", "subject", "time", "session", "idx", "datacontenttype", "headers", "data", "blob", "size",
)  # fmt: skip

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, str]).decode


def envelope_row(envelope: Envelope) -> tuple[Any, ...]:
    """`headers` is JSON or NULL, `data` is NULL when the body is in chunks or has been dropped."""
    blob = envelope.blob
    return (
        envelope.id,
        envelope.source,
        envelope.type,
        envelope.subject,
        envelope.time,
        envelope.session,
        envelope.index,
        envelope.datacontenttype,
        headers_text(envelope.headers),
        envelope.data if blob is None else None,
        blob.name if blob is not None else None,
        blob.size if blob is not None else len(envelope.data),
    )


def headers_text(headers: dict[str, str]) -> str | None:
    return _encode(headers).decode() if headers else None


def envelope_columns(envelopes: Sequence[Envelope]) -> tuple[list[Any], ...]:
    """`envelope_row` for many at once, as one list per column."""
    headers: list[Any] = [envelope.headers for envelope in envelopes]
    bodies: list[Any] = [envelope.data for envelope in envelopes]
    blobs: list[Any] = [envelope.blob for envelope in envelopes]
    sizes = list(map(len, bodies))
    if any(headers):
        headers = list(map(headers_text, headers))
    else:
        headers = [None] * len(envelopes)
    if any(blobs):
        sizes = [envelope.size for envelope in envelopes]
        bodies = [envelope.data if envelope.blob is None else None for envelope in envelopes]
        blobs = [blob.name if blob is not None else None for blob in blobs]
    return (
        [envelope.id for envelope in envelopes],
        [envelope.source for envelope in envelopes],
        [envelope.type for envelope in envelopes],
        [envelope.subject for envelope in envelopes],
        [envelope.time for envelope in envelopes],
        [envelope.session for envelope in envelopes],
        [envelope.index for envelope in envelopes],
        [envelope.datacontenttype for envelope in envelopes],
        headers,
        bodies,
        blobs,
        sizes,
    )


def envelope_of(row: Sequence[Any]) -> Envelope:
    """Undo `envelope_row`. A dropped body comes back empty."""
    id, source, type, subject, time, session, index, datacontenttype, headers, data, blob, size = row
    return Envelope(
        id=id,
        source=source,
        type=type,
        data=bytes(data) if data is not None else b"",
        session=session,
        index=index,
        time=time,
        subject=subject,
        datacontenttype=datacontenttype,
        headers=_decode(headers) if headers else {},
        blob=Blob(blob, size) if blob is not None else None,
    )
