from __future__ import annotations

from hypothesis import given
from tests.tools.strategies import envelopes

from semel.kernel.envelope import Blob, Envelope
from semel.stores.rows import ENVELOPE_COLUMNS, envelope_of, envelope_row


@given(envelopes())
def test_an_envelope_comes_back_from_its_columns(envelope: Envelope) -> None:
    row = envelope_row(envelope)
    assert len(row) == len(ENVELOPE_COLUMNS)
    assert envelope_of(row) == envelope


@given(envelopes())
def test_columns_hold_only_what_every_engine_holds(envelope: Envelope) -> None:
    assert {type(value) for value in envelope_row(envelope)} <= {str, int, bytes, type(None)}


def test_size_is_that_of_the_body() -> None:
    size = ENVELOPE_COLUMNS.index("size")
    assert envelope_row(Envelope(id="m", data=b"12345"))[size] == 5
    assert envelope_row(Envelope(id="m", blob=Blob("b", 7)))[size] == 7


def test_a_dropped_body_comes_back_empty() -> None:
    row = list(envelope_row(Envelope(id="m", data=b"body", headers={"a": "b"})))
    for column in ("data", "headers", "blob"):
        row[ENVELOPE_COLUMNS.index(column)] = None
    assert envelope_of(row) == Envelope(id="m")


def test_a_buffer_of_the_driver_becomes_bytes() -> None:
    row = list(envelope_row(Envelope(id="m", data=b"body")))
    row[ENVELOPE_COLUMNS.index("data")] = memoryview(b"body")
    assert envelope_of(row).data == b"body"
