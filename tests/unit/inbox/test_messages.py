from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, ClassVar
from uuid import UUID

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.errors import ConfigError, InputError, LimitExceeded
from semel.inbox.messages import (
    BYTES,
    JSON,
    TEXT,
    MessageTypes,
    decode,
    encode,
    envelope_of,
    is_message_class,
    type_name,
)
from semel.kernel.envelope import DATA_INLINE_BYTES_MAX, Envelope


@dataclass(frozen=True)
class OrderPlaced:
    order: int
    price: Decimal = Decimal("9.99")
    at: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    tags: list[str] = field(default_factory=list)


class StockReserved(msgspec.Struct):
    order: UUID


class SmsSent(pydantic.BaseModel):
    semel_type: ClassVar[str] = "sms.sent"
    number: str


class SmsSentAgain(SmsSent):
    pass


VALUES = [
    OrderPlaced(7, tags=["a"]),
    StockReserved(UUID(int=5)),
    SmsSent(number="+49"),
    {"order": 7},
    "text ä",
    b"\x00\xff",
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_message_comes_back_as_it_was(value: Any) -> None:
    envelope = envelope_of(value, "1", type="t")
    assert decode(type(value), envelope) == value
    assert is_message_class(type(value))


@given(st.dictionaries(st.text(), st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text()))
def test_any_dict_of_plain_values_comes_back(value: dict[str, Any]) -> None:
    assert decode(dict, envelope_of(value, "1", type="t")) == value


def test_what_the_bytes_are_is_said() -> None:
    assert [encode(value)[1] for value in VALUES] == [JSON, JSON, JSON, JSON, TEXT, BYTES]


def test_the_type_is_the_name_of_the_class_or_what_it_says() -> None:
    assert type_name(OrderPlaced) == "OrderPlaced"
    assert type_name(SmsSent) == "sms.sent"
    assert envelope_of(SmsSent(number="1"), "1").type == "sms.sent"


def test_a_derived_class_is_another_message() -> None:
    assert type_name(SmsSentAgain) == "SmsSentAgain"


@pytest.mark.parametrize("value", [{"a": 1}, "text", b"bytes"])
def test_a_value_without_a_type_of_its_own_must_be_given_one(value: Any) -> None:
    with pytest.raises(InputError, match="no type") as caught:
        envelope_of(value, "1")
    assert "type=" in caught.value.fix


def test_attributes_go_onto_the_envelope_and_the_session_stays_the_applications() -> None:
    envelope = envelope_of(OrderPlaced(7), "1", source="shop", subject="s", time=5, headers={"a": "b"})
    assert (envelope.source, envelope.subject, envelope.time, envelope.headers) == ("shop", "s", 5, {"a": "b"})
    assert envelope.session is None
    assert envelope_of(OrderPlaced(7), "1", session="c7").session == "c7"


def test_an_envelope_is_sent_as_it_is_under_its_new_id() -> None:
    first = Envelope("1", "shop", "order", b"x", session="c7", headers={"a": "b"})
    assert envelope_of(first, "2") == msgspec.structs.replace(first, id="2")


@pytest.mark.parametrize("value", [object(), 5, [1], {"a": object()}, OrderPlaced(object()), {"a": float}])  # type: ignore[arg-type]
def test_what_is_no_message_is_refused(value: Any) -> None:
    with pytest.raises(InputError) as caught:
        envelope_of(value, "1", type="t")
    assert caught.value.fix


def test_a_body_that_is_too_large_is_refused() -> None:
    with pytest.raises(LimitExceeded):
        envelope_of("x" * (DATA_INLINE_BYTES_MAX + 1), "1", type="t")


@pytest.mark.parametrize("kind", [OrderPlaced, StockReserved, SmsSent, dict])
@pytest.mark.parametrize("data", [b"\xff", b"{", b"[1]", b""])
def test_what_does_not_fit_is_an_input_error_with_the_id(kind: type, data: bytes) -> None:
    with pytest.raises(InputError, match="'order-7'") as caught:
        decode(kind, Envelope("order-7", data=data))
    assert caught.value.fix


@pytest.mark.parametrize(
    ("kind", "data"),
    [(OrderPlaced, b'{"order": "x"}'), (StockReserved, b'{"order": 5}'), (SmsSent, b'{"number": 5}'), (str, b"\xff")],
)
def test_fields_of_another_type_are_refused(kind: type, data: bytes) -> None:
    with pytest.raises(InputError, match="'order-7'"):
        decode(kind, Envelope("order-7", data=data))


def test_types_are_found_by_their_names() -> None:
    types = MessageTypes()
    assert types.add(OrderPlaced) == "OrderPlaced"
    assert types.add(SmsSent) == "sms.sent"
    assert types.add(dict, "order.changed") == "order.changed"
    types.add(OrderPlaced)
    assert types.kind_of(Envelope("1", type="sms.sent")) is SmsSent
    assert types.kind_of(Envelope("1", type="order.changed")) is dict


def test_an_unknown_type_says_which_are_known() -> None:
    types = MessageTypes()
    types.add(OrderPlaced)
    with pytest.raises(InputError, match="'OrderLost'") as caught:
        types.kind_of(Envelope("1", type="OrderLost"))
    assert "'OrderPlaced'" in caught.value.fix


def test_two_classes_of_one_name_are_refused() -> None:
    types = MessageTypes()
    types.add(OrderPlaced)

    @dataclass
    class Other:
        semel_type: ClassVar[str] = "OrderPlaced"

    with pytest.raises(ConfigError, match="both called 'OrderPlaced'") as caught:
        types.add(Other)
    assert "semel_type" in caught.value.fix


def test_what_cannot_be_a_type_is_refused() -> None:
    types = MessageTypes()
    for kind in (int, object, list):
        with pytest.raises(ConfigError, match="not a message"):
            types.add(kind)
    with pytest.raises(ConfigError, match="need a name"):
        types.add(dict)

    class Odd(msgspec.Struct):
        semel_type: ClassVar[int] = 5

    with pytest.raises(ConfigError, match="semel_type"):
        types.add(Odd)
