"""What a handler may ask for, and what is refused before the first message."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from semel.errors import ConfigError
from semel.kernel.envelope import Envelope
from semel.runtime.inbox.injection import Wanted, read_signature
from semel.runtime.inbox.outbox import Outbox


@dataclass
class Order:
    id: str


KINDS = (sqlite3.Connection,)


def test_each_parameter_is_filled_by_its_annotation() -> None:
    def handle(db: sqlite3.Connection, order: Order, envelope: Envelope, outbox: Outbox, limit: int = 3) -> None: ...

    signature = read_signature(handle, Order, KINDS)
    assert signature.wanted == {
        "db": Wanted.TRANSACTION,
        "order": Wanted.MESSAGE,
        "envelope": Wanted.ENVELOPE,
        "outbox": Wanted.OUTBOX,
    }
    assert (signature.transaction, signature.is_async) == (sqlite3.Connection, False)
    given = {Wanted.TRANSACTION: 1, Wanted.MESSAGE: 2, Wanted.ENVELOPE: 3, Wanted.OUTBOX: 4}
    assert signature.arguments(given) == {"db": 1, "order": 2, "envelope": 3, "outbox": 4}


def test_the_message_is_what_the_first_parameter_says() -> None:
    async def handle(order: Order) -> None: ...

    signature = read_signature(handle, None, KINDS)
    assert (signature.message, signature.transaction, signature.is_async) == (Order, None, True)


def test_a_message_without_annotation_is_what_was_registered() -> None:
    def handle(order) -> None: ...  # type: ignore[no-untyped-def]

    assert read_signature(handle, Order, KINDS).message is Order


def test_a_handler_need_not_take_its_message() -> None:
    def handle(outbox: Outbox) -> None: ...

    assert read_signature(handle, Order, KINDS).wanted == {"outbox": Wanted.OUTBOX}


def unknown(order: Order, thing: dict[str, int]) -> None: ...
def bare(order: Order, thing) -> None: ...  # type: ignore[no-untyped-def]
def many(order: Order, *things: Any) -> None: ...
def by_place(order: Order, thing: Outbox, /) -> None: ...
def twice(order: Order, one: Outbox, two: Outbox) -> None: ...
def anything(order: Order, thing: object) -> None: ...


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (unknown, "thing that cannot be filled: nobody provides"),
        (bare, "thing that cannot be filled: annotate it"),
        (many, r"\*things that cannot be filled: name each parameter"),
        (by_place, "order that cannot be filled: make it a parameter that can be passed by name"),
        (twice, "two that cannot be filled: it already gets the outbox"),
        (anything, "thing that cannot be filled: nobody provides object"),
    ],
)
def test_what_nobody_can_provide_is_refused(function: Callable[..., Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why) as refused:
        read_signature(function, Order, KINDS)
    assert "sqlite3.Connection" in refused.value.fix


def test_a_handler_that_names_no_messages_is_refused() -> None:
    def handle(outbox: Outbox) -> None: ...

    with pytest.raises(ConfigError, match="does not say which messages it handles") as refused:
        read_signature(handle, None, KINDS)
    assert "@endpoint.on(OrderPlaced)" in refused.value.fix


def test_annotations_that_cannot_be_read_are_refused() -> None:
    def handle(order: Unheard) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(ConfigError, match="cannot be read: name 'Unheard' is not defined") as refused:
        read_signature(handle, Order, KINDS)
    assert "TYPE_CHECKING" in refused.value.fix
