"""A shop for the tests of the inbox: an application on a real store, with a table of its own beside Semel's."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg

from semel import App, on
from semel.inbox.identity import inbox_hop, inbox_queue
from semel.kernel.ledger import START, Entry, Kind, balance
from semel.kernel.ops import OPEN_STATES, WorkRow, WorkState
from semel.kernel.store import Records, Store
from semel.testing import limits

AT_ONCE = on(Exception).retry([0, 0]).dead_letter()
"""Three attempts, without waits."""


@dataclass
class Order:
    id: str
    customer: str = "ada"


@dataclass
class Receipt:
    id: str


class Shop:
    """`on` registers a handler; its parameter `db` is the connection of the store's own kind."""

    def __init__(self, url: str, **options: Any) -> None:
        self.url = url
        self.is_sqlite = url.startswith("sqlite:")
        self.connection: type = sqlite3.Connection if self.is_sqlite else psycopg.Connection
        self.app = App(url, name="shop", **options)
        self.app.errors(AT_ONCE)
        assert self.app.store, "its tables are there before ours"
        with self.connect() as db:
            db.execute("CREATE TABLE effect (id text)")

    @contextmanager
    def connect(self) -> Iterator[Any]:
        """A connection of the user's own, committed at the end."""
        path = self.url.removeprefix("sqlite:///")
        with closing(sqlite3.connect(path) if self.is_sqlite else psycopg.connect(self.url)) as db, db:
            yield db

    def on(self, endpoint: str, message: Any = Order, **options: Any) -> Callable[[Callable[..., Any]], Any]:
        def register(function: Callable[..., Any]) -> Any:
            if "db" in function.__annotations__:
                function.__annotations__["db"] = self.connection
            found = self.app.endpoints.get(endpoint) or self.app.endpoint(endpoint)
            return found.on(message, **options)(function)

        return register

    def send(self, id: str, to: str = "orders", customer: str = "ada", **options: Any) -> str:
        return self.app.send(Order(id, customer), to=to, **{"id": id, **options})[1].value

    def drain(self) -> int:
        return self.app.drain(limits.scaled(30))

    def effects(self) -> list[str]:
        with self.connect() as db:
            return [id for (id,) in db.execute("SELECT id FROM effect").fetchall()]

    def sent(self, stream: str = "receipts") -> list[str]:
        """The ids of what the relay has put into a stream."""
        found = self.app.store.read(stream)
        return [record.envelope.id for record in found.records] if isinstance(found, Records) else []

    def row(self, id: str, endpoint: str = "orders") -> WorkRow:
        row = self.app.store.work(f"inbox/{endpoint}", id)
        assert row is not None, f"{id} was never stored"
        return row

    def state(self, id: str, endpoint: str = "orders") -> WorkState:
        return self.row(id, endpoint).state

    def history(self, id: str) -> list[Kind]:
        return [entry.event.kind for entry in self.app.store.history(id)]

    def open_outbox(self) -> list[WorkRow]:
        states = set(WorkState) - {WorkState.DONE}
        return self.app.store.work_rows("outbox/shop", states)


def write(db: Any, id: str) -> None:
    """The effect that a handler has."""
    db.execute("INSERT INTO effect VALUES (?)" if isinstance(db, sqlite3.Connection) else INSERT_PG, (id,))


INSERT_PG = "INSERT INTO effect VALUES (%s)"


def check_conservation(shop: Shop, endpoint: str) -> None:
    """Everything that an endpoint accepted or opened again has ended, or is still open."""
    hop, queue = inbox_hop(endpoint), inbox_queue(endpoint)
    events = [entry.event for entry in all_entries(shop.app.store) if entry.event.hop == hop]
    found = balance(events, len(shop.app.store.work_rows(queue, OPEN_STATES)))
    assert found.holds, (found, [(event.kind.name, event.message) for event in events])


def all_entries(store: Store) -> list[Entry]:
    """Once the last one written is visible: a store may show them a moment after their commit."""
    count = store.status().ledger_entries
    limits.wait_until(lambda: len(store.ledger(START, limit=10_000)) >= count, "the ledger")
    return store.ledger(START, limit=10_000)
