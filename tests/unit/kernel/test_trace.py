"""Trace context in the headers of a message."""

from __future__ import annotations

import msgspec
import pytest

from semel.kernel.envelope import HEADERS_CHARS_MAX, HEADERS_COUNT_MAX, Envelope, from_json, to_json
from semel.kernel.ledger import Kind, message_event
from semel.kernel.trace import trace_id, with_trace

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"


@pytest.mark.parametrize("text", [PARENT, f"00-{TRACE}-{SPAN}-00", f"01-{TRACE}-{SPAN}-01-more"])
def test_the_trace_id_is_read(text: str) -> None:
    assert trace_id({"traceparent": text}) == TRACE


@pytest.mark.parametrize(
    "text",
    [
        "", "garbage", f"ff-{TRACE}-{SPAN}-01", f"00-{'0' * 32}-{SPAN}-01", f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01", f"{PARENT}-more", f"{PARENT}\n", f"00-{TRACE}-{SPAN}", "0" * 10_000,
    ],
)  # fmt: skip
def test_what_is_no_trace_context_is_none(text: str) -> None:
    assert trace_id({"traceparent": text}) is None


def test_the_ledger_has_the_trace_of_a_message() -> None:
    traced, plain = Envelope("1", headers={"traceparent": PARENT}), Envelope("2", headers={"other": "x"})
    assert message_event(Kind.ACCEPTED, "a>b", "", traced).trace == TRACE
    assert message_event(Kind.ACCEPTED, "a>b", "", plain).trace is None


def test_a_new_context_takes_the_place_of_the_old_one_with_its_state() -> None:
    old = {"traceparent": PARENT, "tracestate": "a=1", "other": "x"}
    new = f"00-{TRACE}-{'1' * 16}-01"
    assert with_trace(old, {"traceparent": new}) == {"other": "x", "traceparent": new}
    assert with_trace(old, {}) == old


def test_a_message_is_not_refused_for_its_telemetry() -> None:
    """It has as many headers as it may have, or as long ones: then it goes without."""
    many = {f"h{number}": "x" for number in range(HEADERS_COUNT_MAX)}
    long = {"h": "x" * (HEADERS_CHARS_MAX - 1)}
    for headers in (many, long):
        found = with_trace(headers, {"traceparent": PARENT, "tracestate": "a=1"})
        assert found == headers
        Envelope("1", headers=found)


def test_where_only_the_state_does_not_fit_the_parent_is_kept() -> None:
    headers = {"h": "x" * (HEADERS_CHARS_MAX - 100)}
    found = with_trace(headers, {"traceparent": PARENT, "tracestate": "a=" + "1" * 100})
    assert found == {**headers, "traceparent": PARENT}


def test_in_json_it_stands_where_cloudevents_has_it() -> None:
    envelope = Envelope("1", headers={"traceparent": PARENT, "tracestate": "a=1", "other": "x"})
    event = msgspec.json.decode(to_json(envelope))
    assert event["traceparent"] == PARENT
    assert event["tracestate"] == "a=1"
    assert event["headers"] == {"other": "x"}
    assert from_json(to_json(envelope)) == envelope
