"""A shop behind FastAPI: a request is an order, and its card is charged once."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from typing import Annotated

from fastapi import FastAPI, Header, HTTPException, Request, Response
from fastapi.responses import JSONResponse

from semel import App
from semel.errors import StoreBusy

shop = App("sqlite:///shop.db", name="shop")
orders = shop.endpoint("orders")


@dataclass
class Order:
    id: str
    cents: int


@orders.on(Order)
def charge(order: Order, db: sqlite3.Connection) -> None:
    """Runs once for each order, in one commit with the mark that it has."""
    db.execute("INSERT INTO charge VALUES (?, ?)", (order.id, order.cents))


@asynccontextmanager
async def lifespan(web: FastAPI) -> AsyncIterator[None]:
    with closing(sqlite3.connect("shop.db")) as db, db:
        db.execute("CREATE TABLE IF NOT EXISTS orders (id TEXT, cents INTEGER)")
        db.execute("CREATE TABLE IF NOT EXISTS charge (id TEXT, cents INTEGER)")
    stop = asyncio.Event()
    handlers = asyncio.create_task(shop.serve(stop=stop))
    yield
    stop.set()
    await handlers  # what has begun is finished
    shop.close()


web = FastAPI(lifespan=lifespan)


@web.post("/orders", status_code=202)
def place(order: Order, idempotency_key: Annotated[str, Header()]) -> dict[str, object]:
    with closing(sqlite3.connect("shop.db")) as db, db:
        first = shop.first(db, "requests", idempotency_key)
        if first:
            db.execute("INSERT INTO orders VALUES (?, ?)", (order.id, order.cents))
            with shop.outbox(db) as outbox:
                outbox.publish(order, to="endpoint:orders", id=order.id)
    return {"order": order.id, "is_new": bool(first)}


@web.exception_handler(StoreBusy)
def try_again(request: Request, error: Exception) -> Response:
    """Another request with the same key is under way."""
    return JSONResponse({"error": "busy"}, status_code=409, headers={"Retry-After": "1"})


@web.get("/orders/{id}")
def look(id: str) -> dict[str, object]:
    with closing(sqlite3.connect("shop.db")) as db:
        charges = [cents for (cents,) in db.execute("SELECT cents FROM charge WHERE id = ?", (id,))]
        if not db.execute("SELECT 1 FROM orders WHERE id = ?", (id,)).fetchone():
            raise HTTPException(404)
    return {"order": id, "charges": charges}
