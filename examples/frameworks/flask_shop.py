"""A shop behind Flask: a request is an order, and its card is charged once."""

import sqlite3
from contextlib import closing
from dataclasses import dataclass

from flask import Flask, request
from flask.typing import ResponseReturnValue

from semel import App
from semel.errors import StoreBusy

shop = App("sqlite:///shop.db", name="shop")
orders = shop.endpoint("orders")
web = Flask(__name__)

with closing(sqlite3.connect("shop.db")) as db, db:
    db.execute("CREATE TABLE IF NOT EXISTS orders (id TEXT, cents INTEGER)")
    db.execute("CREATE TABLE IF NOT EXISTS charge (id TEXT, cents INTEGER)")


@dataclass
class Order:
    id: str
    cents: int


@orders.on(Order)
def charge(order: Order, db: sqlite3.Connection) -> None:
    """Runs once for each order, in `semel inbox run flask_shop:shop`."""
    db.execute("INSERT INTO charge VALUES (?, ?)", (order.id, order.cents))


@web.post("/orders")
def place() -> ResponseReturnValue:
    order, key = Order(**request.get_json()), request.headers["Idempotency-Key"]
    with closing(sqlite3.connect("shop.db")) as db, db:
        first = shop.first(db, "requests", key)
        if first:
            db.execute("INSERT INTO orders VALUES (?, ?)", (order.id, order.cents))
            with shop.outbox(db) as outbox:
                outbox.publish(order, to="endpoint:orders", id=order.id)
    return {"order": order.id, "is_new": bool(first)}, 202


@web.errorhandler(StoreBusy)
def try_again(error: StoreBusy) -> ResponseReturnValue:
    """Another request with the same key is under way."""
    return {"error": "busy"}, 409, {"Retry-After": "1"}
