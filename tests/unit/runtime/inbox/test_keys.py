"""Keys that are none: order must not be lost in silence, and neither must a message."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from semel import App
from semel.errors import InputError
from semel.inbox.settle import DeliveryEnd
from semel.kernel.envelope import Envelope
from semel.kernel.ledger import Kind
from semel.runtime.inbox.definition import Verdict


@dataclass
class Order:
    id: str
    customer: int


def make(key: Callable[[Any], Any], **options: Any) -> App:
    app = App("memory:", name="shop")
    endpoint = app.endpoint("orders", **options)
    endpoint.on(Order, key=key)(lambda order: None)
    return app


def of_wrong_type(order: Order) -> Any:
    return [order.customer]


def broken(order: Order) -> Any:
    return order.nobody  # type: ignore[attr-defined]


def message(id: str) -> Envelope:
    return Envelope(id, type="Order", data=b'{"id":"1","customer":7}')


def test_a_number_is_a_key() -> None:
    app = make(lambda order: order.customer)
    app.send(Order("1", 7), to="orders", id="a")
    app.send(Order("1", 7), to="orders", id="b", key=8)
    rows = [app.store.work("inbox/orders", id) for id in ("a", "b")]
    assert [row.key for row in rows if row is not None] == ["7", "8"]


@pytest.mark.parametrize("key", [of_wrong_type, broken])
def test_whoever_sends_a_message_without_a_proper_key_is_told(key: Callable[[Any], Any]) -> None:
    app = make(key)
    with pytest.raises(InputError, match="the key of message 'a'"):
        app.send(Order("1", 7), to="orders", id="a")
    assert app.store.work("inbox/orders", "a") is None


@pytest.mark.parametrize("key", [of_wrong_type, broken])
def test_what_a_transport_brings_without_a_proper_key_is_a_dead_letter_with_its_cause(
    key: Callable[[Any], Any],
) -> None:
    app = make(key)
    assert app.receive("orders", [message("a"), message("b")]) == [Verdict.STORED, Verdict.STORED]
    assert app.receive("orders", [message("a")]) == [Verdict.DUPLICATE]
    letters = {letter.message: letter.cause or "" for letter in app.dead_letters("orders")}
    assert [(id, cause.startswith(f"the key of message '{id}'")) for id, cause in sorted(letters.items())] == [
        ("a", True),
        ("b", True),
    ]
    assert [entry.event.kind for entry in app.store.history("a")][:2] == [Kind.ACCEPTED, Kind.DEAD_LETTERED]


@pytest.mark.parametrize("style", [None, "reserved"])
def test_an_inline_delivery_without_a_proper_key_is_a_dead_letter_and_acknowledged(style: str | None) -> None:
    app = make(broken, mode="inline", style=style)
    assert asyncio.run(app.deliver("orders", message("a"))) is DeliveryEnd.ACK
    [letter] = app.dead_letters("orders")
    assert "cannot be made" in (letter.cause or "")


def test_what_cannot_be_read_has_no_key_and_is_stored() -> None:
    app = make(lambda order: order.customer)
    assert app.receive("orders", [Envelope("a", type="Order", data=b"{")]) == [Verdict.STORED]
