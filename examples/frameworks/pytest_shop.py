"""Tests of an application's handlers, with pytest and without a server: pytest pytest_shop.py"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

import pytest

from semel import App, Outbox, on

# -- the application, which is a module of its own in a real program

app = App("sqlite:///shop.db", name="shop")
orders = app.endpoint("orders", errors=[on(ValueError).dead_letter()])


@dataclass
class Order:
    id: str
    cents: int


@dataclass
class Receipt:
    order: str


@orders.on(Order)
def charge(order: Order, db: sqlite3.Connection, outbox: Outbox) -> None:
    if order.cents <= 0:
        raise ValueError("nothing to charge")
    db.execute("INSERT INTO charge VALUES (?, ?)", (order.id, order.cents))
    outbox.publish(Receipt(order.id), to="stream:receipts")


# -- its tests


@pytest.fixture
def shop() -> Iterator[App]:
    """The same application on a store of its own, which is gone afterwards."""
    shop = app.memory()
    with connected(shop) as db, db:
        db.execute("CREATE TABLE charge (id TEXT, cents INTEGER)")
    yield shop
    shop.close()


def connected(shop: App) -> closing[sqlite3.Connection]:
    return closing(sqlite3.connect(shop.url.removeprefix("sqlite:///")))


def charges(shop: App) -> list[tuple[str, int]]:
    with connected(shop) as db:
        return db.execute("SELECT * FROM charge").fetchall()


def test_an_order_that_comes_twice_is_charged_once(shop: App) -> None:
    for _ in range(2):
        shop.send(Order("order-7", 1999), to="orders", id="order-7")
    assert shop.drain() == 1
    assert charges(shop) == [("order-7", 1999)]


def test_a_receipt_leaves_with_the_charge(shop: App) -> None:
    shop.send(Order("order-7", 1999), to="orders", id="order-7")
    shop.drain()
    [record] = shop.store.read("receipts").records
    assert record.envelope.type == "Receipt"


def test_what_cannot_be_charged_is_a_dead_letter_and_sends_nothing(shop: App) -> None:
    shop.send(Order("order-8", 0), to="orders", id="order-8")
    shop.drain()
    [letter] = shop.dead_letters("orders")
    assert "nothing to charge" in letter.cause
    assert charges(shop) == []
    assert shop.store.head("receipts").offset == 0
