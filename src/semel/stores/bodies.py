"""Bodies too large for one row: in as a stream of bytes, out as a stream of bytes, never whole in memory.

Each chunk is committed by itself, so no transaction is long. Nobody sees any of them until an envelope that names the
blob is stored. If that never happens, a sweep removes them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from semel.errors import LimitExceeded
from semel.kernel.envelope import Blob
from semel.kernel.ops import PutBlob, Unit
from semel.kernel.position import Position
from semel.kernel.store import BLOB_CHUNK_BYTES, Record, Records, Store, Trimmed
from semel.stores.points import reach

BODY_BYTES_MAX = 1024**3


def put_body(store: Store, name: str, data: Iterable[bytes], *, bytes_max: int = BODY_BYTES_MAX) -> Blob:
    """Store a body under a fresh name and return what an envelope carries in its place."""
    size = 0
    for part, chunk in enumerate(_chunks(data)):
        size += len(chunk)
        if size > bytes_max:
            raise LimitExceeded(
                f"the body has more than {bytes_max:,} bytes", fix="raise bytes_max, or send it in several messages"
            )
        store.commit([Unit((PutBlob(name, part, chunk),))])
        reach("blob.chunk")
    if size == 0:
        store.commit([Unit((PutBlob(name, 0, b""),))])
    return Blob(name, size)


def _chunks(data: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes in pieces of one size, whatever the sizes they come in."""
    waiting = bytearray()
    for piece in data:
        waiting += piece
        while len(waiting) >= BLOB_CHUNK_BYTES:
            yield bytes(waiting[:BLOB_CHUNK_BYTES])
            del waiting[:BLOB_CHUNK_BYTES]
    if waiting:
        yield bytes(waiting)


def read_whole(store: Store, stream: str, after: Position | None, limit: int) -> Records | Trimmed:
    """Like `Store.read`, with the bodies that are in chunks. For streams whose messages fit into memory."""
    found = store.read(stream, after, limit)
    if isinstance(found, Trimmed) or all(record.envelope.blob is None for record in found.records):
        return found
    return Records(tuple(_with_body(store, record) for record in found.records))


def _with_body(store: Store, record: Record) -> Record:
    blob = record.envelope.blob
    if blob is None:
        return record
    return msgspec.structs.replace(record, body=b"".join(store.body(blob.name)))
