from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.tools.strategies import TIME_MAX, envelopes
from tests.unit.kernel.bench import Bench

from semel.errors import InputError, LimitExceeded, SemelError
from semel.kernel.envelope import (
    DATA_INLINE_BYTES_MAX,
    FRAME_BYTES_MAX,
    HEADERS_COUNT_MAX,
    Blob,
    Envelope,
    from_json,
    mint_id,
    pack,
    parse_rfc3339,
    rfc3339,
    to_json,
    unpack,
)
from semel.kernel.hop import HopMessage, ReceiveOrder, Receiver, ReceiverConfig
from semel.kernel.ledger import Kind
from semel.kernel.position import OFFSET_MAX


def attempt(read: Callable[[bytes], Envelope], data: bytes) -> Envelope | None:
    """Read what a stranger sent: an envelope, or a refusal in our words. Any other exception fails the test."""
    try:
        return read(data)
    except SemelError as error:
        refusal = error
    assert refusal.fix
    return None


@given(envelopes())
def test_a_packed_envelope_comes_back(envelope: Envelope) -> None:
    assert unpack(pack(envelope)) == envelope


@given(envelopes())
def test_an_envelope_comes_back_from_json(envelope: Envelope) -> None:
    assert from_json(to_json(envelope)) == envelope


@given(envelopes())
def test_json_is_a_cloud_event(envelope: Envelope) -> None:
    event = json.loads(to_json(envelope))
    assert (event["specversion"], event["id"], event["source"]) == ("1.0", envelope.id, envelope.source)
    assert not ("data" in event and "data_base64" in event)


@given(st.binary(max_size=300))
@example(b"")
@example(b"\x81\xa2id\xa0")
def test_arbitrary_bytes_are_refused_in_our_words(data: bytes) -> None:
    for read in (unpack, from_json):
        attempt(read, data)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.integers(-(2**63), 2**64 - 1)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
ATTRIBUTES = [
    "specversion",
    "id",
    "source",
    "type",
    "subject",
    "time",
    "datacontenttype",
    "data",
    "data_base64",
    "partitionkey",
    "sequence",
    "headers",
    "blob",
    "x",
]


@given(
    st.fixed_dictionaries(
        {"specversion": st.just("1.0"), "id": st.just("m"), "source": st.just("s"), "type": st.just("t")},
        optional=dict.fromkeys(ATTRIBUTES[4:], json_values),
    )
)
@example({"specversion": "1.0", "id": "m", "source": "s", "type": "t", "sequence": 1e308})
@example({"specversion": "1.0", "id": "m", "source": "s", "type": "t", "time": "0001-01-01T00:00:00+23:59"})
def test_nearly_good_events_are_read_or_refused_in_our_words(event: dict[str, Any]) -> None:
    envelope = attempt(from_json, json.dumps(event).encode())
    assert envelope is None or from_json(to_json(envelope)) == envelope


@given(
    st.dictionaries(st.sampled_from(["id", "source", "type", "data", "index", "time", "headers", "blob"]), json_values)
)
def test_nearly_good_frames_are_read_or_refused_in_our_words(fields: dict[str, Any]) -> None:
    frame = msgspec.msgpack.encode(fields)
    envelope = attempt(unpack, frame)
    assert envelope is None or unpack(pack(envelope)) == envelope


@pytest.mark.parametrize("depth", [1_000, 50_000])
def test_deep_nesting_is_refused_or_read_but_never_crashes(depth: int) -> None:
    body = b"[" * depth + b"]" * depth
    text = b'{"specversion":"1.0","id":"m","source":"s","type":"t","data":' + body + b"}"
    with pytest.raises(SemelError):
        from_json(text)
    assert to_json(Envelope(id="m", data=body, datacontenttype="application/json"))


def test_nesting_near_the_limit_of_the_interpreter_is_refused_in_our_words() -> None:
    for depth in range(100, 1000, 1):
        body = b"[" * depth + b"]" * depth
        try:
            from_json(b'{"specversion":"1.0","id":"m","source":"s","type":"t","data":' + body + b"}")
        except SemelError:
            return
    raise AssertionError("no depth was refused")


@pytest.mark.parametrize(
    "fields",
    [
        {"id": ""},
        {"id": "a\x00"},
        {"id": "\ud800"},
        {"id": "x" * 256},
        {"id": None},
        {"id": 7},
        {"source": ""},
        {"type": "\x00"},
        {"data": b"x" * (DATA_INLINE_BYTES_MAX + 1)},
        {"data": "text"},
        {"data": bytearray(b"x")},
        {"data": None},
        {"session": ""},
        {"session": 5},
        {"index": -1},
        {"index": OFFSET_MAX + 1},
        {"index": "1"},
        {"index": 1.5},
        {"time": -1},
        {"time": TIME_MAX + 2},
        {"time": "2026-01-01"},
        {"subject": "\x00"},
        {"datacontenttype": ""},
        {"headers": {"": "x"}},
        {"headers": {"x": "\ud800"}},
        {"headers": {"x": 5}},
        {"headers": {str(n): "" for n in range(HEADERS_COUNT_MAX + 1)}},
        {"headers": {"x": "y" * 20_000}},
        {"headers": {str(n): "y" * 9_000 for n in range(2)}},
        {"data": b"x", "blob": Blob("b", 1)},
    ],
    ids=str,
)
def test_an_invalid_envelope_cannot_be_built(fields: dict[str, Any]) -> None:
    with pytest.raises(InputError) as caught:
        Envelope(**{"id": "m", **fields})
    assert caught.value.fix


def test_the_advice_on_an_index_is_good_for_every_hop() -> None:
    """0 may be carried, for protocols that begin there. Nobody is told to begin there: a hop by index rejects it."""
    with pytest.raises(InputError) as caught:
        Envelope(id="m", index=-1)
    assert caught.value.fix == "number the messages of a session from 1 upwards"
    bench = Bench()
    bench.add(Receiver(ReceiverConfig("in", "out>in", stream="inbox/app", order=ReceiveOrder.STRICT)))
    for index in (0, 1):
        envelope = Envelope(id=f"m{index}", session="s", index=index)
        bench.wires["in"] = [("out", HopMessage(f"d{index}", envelope, index))]
        bench.pass_on("in")
    assert [event.kind for event in bench.ledger()] == [Kind.REJECTED, Kind.ACCEPTED]


@pytest.mark.parametrize(("name", "size"), [("", 1), ("b", -1), ("a\x00", 1)])
def test_an_invalid_blob_cannot_be_built(name: str, size: int) -> None:
    with pytest.raises(InputError):
        Blob(name, size)


def test_the_largest_envelope_fits_a_frame() -> None:
    envelope = Envelope(
        id="x" * 255,
        source="s" * 1024,
        type="t" * 1024,
        data=b"x" * DATA_INLINE_BYTES_MAX,
        subject="🙂" * 1024,
        headers={f"{n:0254}": "🙂" for n in range(60)},
    )
    assert len(pack(envelope)) < FRAME_BYTES_MAX
    assert unpack(pack(envelope)) == envelope


def test_an_oversized_frame_is_refused_before_it_is_read() -> None:
    with pytest.raises(LimitExceeded):
        unpack(b"\x00" * (FRAME_BYTES_MAX + 1))


def test_size_is_that_of_the_body_wherever_it_is() -> None:
    assert Envelope(id="m", data=b"12345").size == 5
    assert Envelope(id="m", blob=Blob("b", 10**9)).size == 10**9


def test_text_and_json_bodies_stay_readable() -> None:
    assert json.loads(to_json(Envelope(id="m", data=b"hello", datacontenttype="text/plain")))["data"] == "hello"
    body = json.loads(to_json(Envelope(id="m", data=b'{"a":1}', datacontenttype="application/json")))
    assert body["data"] == {"a": 1}


@pytest.mark.parametrize("data", [b'{"a": 1}', b"[1.00]", b"not json", b"\xff", b'"\\u0041"'])
def test_a_body_that_json_would_change_is_kept_as_bytes(data: bytes) -> None:
    envelope = Envelope(id="m", data=data, datacontenttype="application/json")
    assert "data" not in json.loads(to_json(envelope))
    assert from_json(to_json(envelope)) == envelope


def _event(**more: Any) -> bytes:
    return json.dumps({"specversion": "1.0", "id": "m", "source": "s", "type": "t", **more}).encode()


def test_attributes_that_semel_does_not_know_become_headers() -> None:
    found = from_json(_event(traceparent="00-1", retries=3, urgent=True))
    assert found.headers == {"traceparent": "00-1", "retries": "3", "urgent": "true"}


@pytest.mark.parametrize(
    "more",
    [
        {"specversion": "0.3"},
        {"specversion": None},
        {"id": 5},
        {"id": None},
        {"source": None},
        {"sequence": "one"},
        {"sequence": 1.5},
        {"sequence": True},
        {"sequence": -1},
        {"sequence": "1_000"},
        {"sequence": " 1"},
        {"sequence": "٣"},
        {"sequence": [1]},
        {"time": "yesterday"},
        {"time": "2026-01-01T00:00:00"},
        {"time": 5},
        {"time": None},
        {"data_base64": "§"},
        {"data_base64": 5},
        {"partitionkey": 5},
        {"headers": []},
        {"headers": {"x": []}},
        {"x": {}},
        {"blob": {"name": "b"}},
        {"blob": {"name": "b", "size": "x"}},
        {"blob": {"name": "", "size": 1}},
        {"blob": {"name": "b", "size": 1}, "data": "both"},
    ],
    ids=str,
)
def test_a_malformed_event_is_refused(more: dict[str, Any]) -> None:
    with pytest.raises(InputError) as caught:
        from_json(_event(**more))
    assert caught.value.fix


def test_a_sequence_may_be_text_or_a_number() -> None:
    assert from_json(_event(sequence="42")).index == from_json(_event(sequence=42)).index == 42


@given(st.integers(0, TIME_MAX))
def test_times_come_back_to_the_microsecond(time: int) -> None:
    assert parse_rfc3339(rfc3339(time)) == time


def test_times_of_any_offset_are_understood() -> None:
    expected = 1_767_225_600_000_000
    for text in ("2026-01-01T00:00:00Z", "2026-01-01T02:00:00+02:00", "2025-12-31T19:00:00.000-05:00"):
        assert parse_rfc3339(text) == expected
    assert rfc3339(expected) == "2026-01-01T00:00:00Z"


@given(st.floats(0, 2**37), st.binary(min_size=10, max_size=10))
def test_minted_ids_are_uuids_of_version_7(now: float, random: bytes) -> None:
    uuid = UUID(mint_id(now, random))
    assert (uuid.version, uuid.variant) == (7, "specified in RFC 4122")
    assert uuid.int >> 80 == int(now * 1000)


@given(st.binary(min_size=10, max_size=10), st.binary(min_size=10, max_size=10))
def test_minted_ids_sort_by_time(left: bytes, right: bytes) -> None:
    assert mint_id(1000.0, left) < mint_id(1000.001, right)


@given(
    st.lists(st.binary(min_size=10, max_size=10), unique_by=lambda b: (b[0] & 15, b[1], b[2] & 63, b[3:]), max_size=9)
)
def test_different_random_bytes_give_different_ids(draws: list[bytes]) -> None:
    assert len({mint_id(5.0, draw) for draw in draws}) == len(draws)


def test_too_few_random_bytes_are_refused() -> None:
    with pytest.raises(InputError):
        mint_id(1.0, b"short")
