"""Lines of the log for machines."""

from __future__ import annotations

import logging

import msgspec
from pydantic import BaseModel

from semel import Envelope
from semel.cli.log_lines import JsonLines
from semel.errors import MessageRefused
from semel.inbox.messages import decode
from semel.kernel.ops import WorkRow, WorkState
from semel.runtime.host.log_fields import about, about_item, about_many

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def line(text: str, *args: object, error: BaseException | None = None, **extra: object) -> dict[str, object]:
    info = None if error is None else (type(error), error, error.__traceback__)
    record = logging.getLogger("semel.test").makeRecord(
        "semel.test", logging.WARNING, "f", 1, text, args, info, "f", extra
    )
    formatted = JsonLines().format(record)
    assert "\n" not in formatted
    found: dict[str, object] = msgspec.json.decode(formatted)
    return found


def test_a_line_has_time_level_and_text() -> None:
    found = line("two\nlines of %s", "text")
    assert found["level"] == "warning"
    assert found["message"] == "two\nlines of text"
    assert str(found["time"]).endswith("+00:00")
    assert "message_id" not in found


def test_a_line_about_a_message_names_it_and_its_endpoint() -> None:
    envelope = Envelope("order-7", data=b"secret body", headers={"traceparent": PARENT, "authorization": "secret"})
    found = line("x", **about("orders", envelope))
    assert found["message_id"] == "order-7"
    assert found["endpoint"] == "orders"
    assert found["trace_id"] == "4bf92f3577b34da6a3ce929d0e0e4736"
    assert "secret" not in str(found)


def test_a_row_is_named_by_its_endpoint() -> None:
    row = WorkRow("inbox/orders", "7", None, 1, WorkState.CLAIMED, 0, 1, 1, "me", Envelope("7"))
    assert about_item(row) == {"message_id": "7", "endpoint": "orders"}
    assert about_many("orders", ["1", "2"]) == {"message_ids": ["1", "2"], "endpoint": "orders"}
    assert about_many("orders", ["1"]) == {"message_id": "1", "endpoint": "orders"}
    assert len(about_many("orders", map(str, range(1000)))["message_ids"]) == 20


def test_an_exception_has_class_text_and_place() -> None:
    try:
        raise ValueError("no such customer\nreally")
    except ValueError as error:
        found = line("failed", error=error)
    assert found["error"] == "ValueError"
    assert "no such customer" in str(found["cause"])
    assert "test_an_exception_has_class_text_and_place" in str(found["at"])


class Card(BaseModel):
    number: int


def test_what_does_not_decode_says_why_without_the_body() -> None:
    try:
        decode(Card, Envelope("7", data=b'{"number": "4111-1111"}'))
    except MessageRefused as error:
        found = line("failed", error=error)
    assert "number: Input should be a valid integer" in str(found["cause"])
    assert "4111" not in str(found)
