"""The life of an inbox's process that ends by kill -9 at a named point, and what starts such processes.

    python -m tests.campaigns.inbox_child URL FOLDER

reads one life per line (JSON, see `Life`) and answers with one line: what the process had told its transport before it
ended, and how it ended. Each life is a process of its own, forked from this one, so that only the first pays for the
imports. Effects outside the database are lines of files in FOLDER, as a bank or a receiver of messages would have them.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import sys
from collections.abc import Awaitable, Callable
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psycopg

from semel import App, Outbox, on
from semel.inbox import inline as inline_steps
from semel.inbox.messages import envelope_of
from semel.kernel.envelope import Envelope
from semel.runtime.inbox import service
from semel.stores.points import on_reach
from semel.testing.limits import scaled

LEASE_S = 0.4
"""On a machine at rest. One that runs out before the handler has begun is no death at the point that was meant."""
IN_HANDLER = "handler"
WRITTEN, COMMITTED = "caller.written", "caller.committed"
"""Before and after the COMMIT of a caller's own transaction."""
ACKED = "acked"
"""A buffered message is acknowledged, and nobody has begun with it."""
CALLS, POSTS = "calls", "posts"
RECEIPTS, URL = "stream:receipts", "https://example.com/orders"
FAR_S = 3600.0


@dataclass(frozen=True)
class Life:
    """What a process does, with which message, and where it dies: at its `count`th `point`, of those that come behind
    the point `after`. `act` is one of `ACTS`."""

    act: str
    endpoint: str
    id: str
    point: str = ""
    count: int = 1
    after: str = ""

    def as_json(self) -> str:
        return json.dumps(asdict(self))


@dataclass
class Order:
    id: str


@dataclass
class Poison:
    id: str


class Books:
    """What happened outside the database. A line is written by one call, so that no death can tear it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, name: str, line: str) -> None:
        at = os.open(self.folder / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(at, f"{line}\n".encode())
        os.close(at)

    def read(self, name: str) -> list[str]:
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []


def make_app(url: str, books: Books, in_handler: Callable[[], None] = lambda: None, *, lease_s: float = 30.0) -> App:
    """All the endpoints that a message can die at. `in_handler` is called after the effect of each handler."""
    is_sqlite = url.startswith("sqlite:")
    service.RELAY_LEASE_S = inline_steps.KEEPING_S = lease_s
    app = App(url, name="shop")
    app.errors(on(Exception).retry([0]).dead_letter())
    kind: type = sqlite3.Connection if is_sqlite else psycopg.Connection

    def write(order: Order, db: Any, outbox: Outbox) -> None:
        insert(db, order.id)
        publish(outbox, order.id)
        in_handler()

    def cancel(order: Order, db: Any, outbox: Outbox) -> None:
        insert(db, order.id)
        outbox.cancel(later(order.id), to=RECEIPTS)
        in_handler()

    def cancel_outside(order: Order, outbox: Outbox) -> None:
        outbox.cancel(later(order.id), to=RECEIPTS)

    def call(order: Order, outbox: Outbox) -> None:
        outbox.publish(Order(order.id), to=RECEIPTS, id=f"receipt {order.id}")
        books.write(CALLS, order.id)
        in_handler()

    def fail(poison: Poison) -> None:
        raise ValueError(poison.id)

    def fail_late(poison: Poison, db: Any) -> None:
        insert(db, poison.id)
        fail(poison)

    for each in (write, cancel, fail_late):
        each.__annotations__["db"] = kind
    app.endpoint("durable", lease_s=lease_s).on(Order)(write)
    app.endpoint("cancels", lease_s=lease_s).on(Order)(cancel)
    app.endpoint("cancels-outside", lease_s=lease_s).on(Order)(cancel_outside)
    app.endpoint("buffered", mode="buffered", lease_s=lease_s).on(Order, idempotency="eager")(write)
    app.endpoint("poison-buffered", mode="buffered", lease_s=lease_s).on(Poison, idempotency="eager")(fail_late)
    for on_crash in ("retry", "drop", "park"):
        app.endpoint(f"durable-{on_crash}", lease_s=lease_s, on_crash=on_crash).on(Order)(call)
        inline = app.endpoint(f"reserved-{on_crash}", mode="inline", lease_s=lease_s, on_crash=on_crash)
        inline.on(Order, idempotency="reserved")(call)
    for style in ("eager", "optimistic"):
        app.endpoint(style, mode="inline", lease_s=lease_s).on(Order, idempotency=style)(write)
    app.endpoint("poison", lease_s=lease_s).on(Poison)(fail)
    app.endpoint("poison-inline", mode="inline", lease_s=lease_s).on(Poison, idempotency="reserved")(fail)

    app.endpoint("poison-eager", mode="inline", lease_s=lease_s).on(Poison, idempotency="eager")(fail_late)

    async def post(destination: object, envelope: Envelope) -> None:
        books.write(POSTS, envelope.id)

    app.sender("url", post)
    return app


def insert(db: Any, id: str) -> None:
    """An effect in somebody's transaction, by a connection of either kind."""
    db.execute(f"INSERT INTO effect VALUES ({'?' if isinstance(db, sqlite3.Connection) else '%s'})", (id,))


def publish(outbox: Outbox, id: str) -> None:
    outbox.publish(Order(id), to=RECEIPTS, id=f"receipt {id}")
    outbox.publish(Order(id), to=URL, id=f"post {id}")


def later(id: str) -> str:
    """The id of the message that was sent for later, and may be taken back."""
    return f"later {id}"


def connect(url: str) -> Any:
    if url.startswith("sqlite:"):
        return sqlite3.connect(url.removeprefix("sqlite:///"), timeout=scaled(30))
    return psycopg.connect(url)


# -- a life

Say = Callable[[str], None]
At = Callable[[str], None]


def _receive(app: App, life: Life, say: Say, at: At) -> None:
    app.receive(life.endpoint, [message(life)])
    say("ack")
    at(ACKED)
    app.drain()


def _deliver(app: App, life: Life, say: Say, at: At) -> None:
    end = asyncio.run(_delivered(app, life))
    say(end)
    app.drain()


async def _delivered(app: App, life: Life) -> str:
    ending: Awaitable[Any] = app.deliver(life.endpoint, message(life))
    return str((await ending).value)


def call(app: App, life: Life, say: Say = lambda word: None, at: At = lambda point: None) -> None:
    """Somebody with a transaction of their own: an effect and what is sent with it. `first`: if it is new."""
    with closing(connect(app.url)) as db:
        insert(db, life.id)
        if life.act == "call" or app.first(db, life.endpoint, life.id):
            with app.outbox(db) as outbox:
                publish(outbox, life.id)
            at(WRITTEN)
            db.commit()
            at(COMMITTED)
    say("ack")


def _cancel(app: App, life: Life, say: Say, at: At) -> None:
    """Somebody takes a message back with a transaction of their own."""
    with closing(connect(app.url)) as db:
        insert(db, life.id)
        with app.outbox(db) as outbox:
            outbox.cancel(later(life.id), to=RECEIPTS)
        at(WRITTEN)
        db.commit()
        at(COMMITTED)
    say("ack")


def _relay(app: App, life: Life, say: Say, at: At) -> None:
    app.drain()


def _replay(app: App, life: Life, say: Say, at: At) -> None:
    app.replay(life.endpoint, life.id)
    say("ack")


def _discard(app: App, life: Life, say: Say, at: At) -> None:
    app.discard(life.endpoint, life.id)
    say("ack")


ACTS = {
    "receive": _receive,
    "deliver": _deliver,
    "call": call,
    "first": call,
    "cancel": _cancel,
    "relay": _relay,
    "replay": _replay,
    "discard": _discard,
}


def message(life: Life) -> Envelope:
    return envelope_of((Poison if "poison" in life.endpoint else Order)(life.id), life.id)


def live(url: str, folder: str, life: Life, lease_s: float) -> None:
    left, is_armed = life.count, not life.after

    def reached(point: str) -> None:
        nonlocal left, is_armed
        is_armed = is_armed or point == life.after
        left -= is_armed and point == life.point
        if is_armed and point == life.point and left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    app = make_app(url, Books(Path(folder)), lambda: reached(IN_HANDLER), lease_s=lease_s)
    _ = app.handlers  # the store is open, and what follows is the message's own
    on_reach(reached)
    ACTS[life.act](app, life, lambda word: Books(Path(folder)).write(f"told {life.id}", word), reached)
    on_reach(None)
    app.close()


def main() -> None:
    url, folder = sys.argv[1:3]
    for line in sys.stdin:
        lease_s = scaled(LEASE_S)
        child = os.fork()
        if child == 0:
            live(url, folder, Life(**json.loads(line)), lease_s)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
