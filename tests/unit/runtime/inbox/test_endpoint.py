"""The handlers of an endpoint: which are good, by which type they are found, and the keys of their messages."""

from __future__ import annotations

import sqlite3
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import pytest

from semel.errors import ConfigError, InputError, MessageRefused
from semel.inbox.endpoint import EndpointOptions, Style, StylePolicy
from semel.kernel.envelope import Envelope
from semel.runtime.inbox.endpoint import InboxEndpoint, key_of
from semel.runtime.inbox.providers import Provider


@dataclass
class Order:
    id: str
    customer: str = "ada"


class AwaitedConnection:
    async def __aenter__(self) -> None: ...


PROVIDERS: dict[type, Provider] = {
    kind: Provider(kind, nullcontext) for kind in (sqlite3.Connection, AwaitedConnection)
}


def ready(endpoint: InboxEndpoint) -> dict[str, Any]:
    return dict(endpoint.ready(PROVIDERS, StylePolicy()))


@pytest.fixture
def orders() -> InboxEndpoint:
    return InboxEndpoint(EndpointOptions("orders"))


def with_transaction(order: Order, db: sqlite3.Connection) -> None: ...
def without(order: Order) -> None: ...
def of_dicts(order) -> None: ...  # type: ignore[no-untyped-def]
def blocks(order: Order, db: AwaitedConnection) -> None: ...


def test_handlers_are_found_by_the_type_of_their_messages(orders: InboxEndpoint) -> None:
    orders.on(Order)(with_transaction)
    orders.on("order.paid")(of_dicts)
    found = ready(orders)
    assert {name: each.kind for name, each in found.items()} == {"Order": Order, "order.paid": dict}
    assert found["Order"].message_of(Envelope("a", data=b'{"id":"7"}')) == Order("7")
    with pytest.raises(MessageRefused, match="is not a Order"):
        found["Order"].message_of(Envelope("a", data=b"[]"))


def test_the_style_follows_from_the_handler(orders: InboxEndpoint) -> None:
    orders.on(Order)(with_transaction)
    assert ready(orders)["Order"].style is Style.OPTIMISTIC
    for options, function in (({}, without), ({"outside": True}, with_transaction)):
        other = InboxEndpoint(EndpointOptions("orders"))
        other.on(Order, **options)(function)
        assert ready(other)["Order"].style is Style.RESERVED


def test_who_has_looked_sees_that_there_are_more(orders: InboxEndpoint) -> None:
    assert orders.registered == 0
    orders.on(Order)(without)
    assert orders.registered == 1


def test_two_handlers_for_one_type_are_refused(orders: InboxEndpoint) -> None:
    orders.on(Order)(with_transaction)
    orders.on(Order)(without)
    with pytest.raises(ConfigError, match=r"two handlers for 'Order'.*with_transaction and .*without") as refused:
        ready(orders)
    assert "keep one" in refused.value.fix


def test_a_style_that_cannot_work_is_refused(orders: InboxEndpoint) -> None:
    orders.on(Order, outside=True, idempotency="optimistic")(with_transaction)
    with pytest.raises(ConfigError, match="effects outside it") as refused:
        ready(orders)
    assert "use style 'reserved'" in refused.value.fix
    with pytest.raises(ConfigError, match="idempotency is 'always'") as unknown:
        orders.on(Order, idempotency="always")
    assert "'eager', 'optimistic', 'reserved', 'none'" in unknown.value.fix


def test_a_plain_function_cannot_have_a_connection_that_is_awaited(orders: InboxEndpoint) -> None:
    orders.on(Order)(blocks)
    with pytest.raises(ConfigError, match="plain function and asks for AwaitedConnection, which is async") as refused:
        ready(orders)
    assert "async def" in refused.value.fix


def test_the_key_is_the_handlers_or_the_session(orders: InboxEndpoint) -> None:
    message = Envelope("a", data=b'{"id":"7","customer":"bob"}', session="s")
    orders.on(Order)(without)
    assert key_of(ready(orders)["Order"], message) == "s"
    for key, expected in ((lambda order: order.customer, "bob"), (lambda order: None, None)):
        other = InboxEndpoint(EndpointOptions("orders"))
        other.on(Order, key=key)(without)
        assert key_of(ready(other)["Order"], message) == expected


def test_a_key_that_is_no_text_is_refused(orders: InboxEndpoint) -> None:
    orders.on(Order, key=lambda order: 7.5)(without)  # type: ignore[arg-type, return-value]
    with pytest.raises(InputError, match=r"the key of message 'a' is 7\.5") as refused:
        key_of(ready(orders)["Order"], Envelope("a", data=b'{"id":"7"}'))
    assert "text, an int, or None" in refused.value.fix


def test_a_key_that_is_a_number_is_its_text(orders: InboxEndpoint) -> None:
    orders.on(Order, key=lambda order: int(order.id))(without)
    assert key_of(ready(orders)["Order"], Envelope("a", data=b'{"id":"7"}')) == "7"


def test_a_key_that_cannot_be_made_is_refused_with_its_cause(orders: InboxEndpoint) -> None:
    orders.on(Order, key=lambda order: order.nobody)(without)
    with pytest.raises(InputError, match="the key of message 'a' cannot be made: AttributeError"):
        key_of(ready(orders)["Order"], Envelope("a", data=b'{"id":"7"}'))
