from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.errors import LimitExceeded
from semel.kernel.envelope import Blob, Envelope
from semel.kernel.ops import Append, Unit
from semel.kernel.store import BLOB_CHUNK_BYTES
from semel.stores.bodies import put_body
from semel.stores.memory import MemoryStore
from semel.stores.points import on_reach


def stored(data: list[bytes]) -> bytes:
    store = MemoryStore()
    blob = put_body(store, "body", data)
    assert blob == Blob("body", sum(map(len, data)))
    store.commit([Unit((Append("hub/x", Envelope(id="m", blob=blob)),))])
    return b"".join(store.body("body"))


@given(st.lists(st.integers(0, 2 * BLOB_CHUNK_BYTES), max_size=4))
def test_pieces_of_any_size_come_back_as_they_went_in(sizes: list[int]) -> None:
    data = [bytes([n % 251]) * size for n, size in enumerate(sizes)]
    assert stored(data) == b"".join(data)


def test_an_empty_body_is_a_body() -> None:
    assert stored([]) == b""


def test_one_chunk_is_in_memory_at_a_time() -> None:
    """The source is asked for more only when what came before is stored."""
    chunks_stored = 0

    def count(point: str) -> None:
        nonlocal chunks_stored
        chunks_stored += point == "blob.chunk"

    def source() -> Iterator[bytes]:
        for number in range(5):
            assert chunks_stored == number
            yield b"x" * BLOB_CHUNK_BYTES

    on_reach(count)
    try:
        put_body(MemoryStore(), "body", source())
    finally:
        on_reach(None)
    assert chunks_stored == 5


def test_a_body_without_end_is_stopped() -> None:
    def endless() -> Iterator[bytes]:
        while True:
            yield b"x" * BLOB_CHUNK_BYTES

    with pytest.raises(LimitExceeded):
        put_body(MemoryStore(), "body", endless(), bytes_max=3 * BLOB_CHUNK_BYTES)
