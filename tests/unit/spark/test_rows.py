"""The row: whatever an envelope can hold comes back from Arrow unchanged."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tools.strategies import envelopes

from semel.errors import InputError
from semel.kernel.envelope import DATA_INLINE_BYTES_MAX, Envelope
from semel.kernel.position import Position
from semel.spark.rows import ARROW, Row, RowOutcome, arrow_schema, batch_of, rows_of

positions = st.builds(Position, st.just("hub/chat"), st.integers(1, 9), st.integers(1, 2**53 - 1))
rows = st.builds(
    Row,
    envelopes().filter(lambda envelope: envelope.blob is None),
    st.none() | positions,
    st.none() | st.sampled_from(RowOutcome),
    st.none() | st.text(max_size=20),
    st.none() | st.text(min_size=1, max_size=20),
    st.none() | st.integers(0, 2**31 - 1),
)


@given(st.lists(rows, max_size=5))
def test_a_row_survives_arrow(given: list[Row]) -> None:
    assert list(rows_of(batch_of(given))) == given


def test_missing_columns_take_their_defaults() -> None:
    batch = pa.record_batch({"id": ["m"], "more": [1]})
    assert list(rows_of(batch)) == [Row(Envelope(id="m"))]


def test_a_body_too_large_for_an_envelope_travels_beside_it() -> None:
    body = b"x" * (DATA_INLINE_BYTES_MAX + 1)
    row = Row(Envelope(id="m"), large=body)
    assert list(rows_of(batch_of([row]))) == [row]


@pytest.mark.parametrize(
    "batch", [pa.record_batch({"name": ["m"]}), pa.record_batch({"id": pa.array([None], pa.string())})]
)
def test_a_row_without_an_id_is_refused(batch: pa.RecordBatch) -> None:
    with pytest.raises(InputError, match="id"):
        list(rows_of(batch))


def test_columns_are_chosen_by_name() -> None:
    assert arrow_schema(["offset", "id"]).names == ["offset", "id"]
    with pytest.raises(InputError, match="no column 'idx'"):
        arrow_schema(["idx"])


def test_every_column_of_a_message_is_in_the_schema_of_spark() -> None:
    from semel.spark.rows import MESSAGE

    assert [part.split()[0] for part in MESSAGE.split(", ")] == ARROW.names
