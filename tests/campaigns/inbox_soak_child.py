"""The application of the inbox campaign, and what starts and kills its processes.

    orders, bulk   (a broker) ──> charge: a row of `charge` and one outgoing message, in one commit
                                    ├─ 0  the broker ──> receipts (endpoint) ──> `receipt`
                                    ├─ 1  a hub      ──> posts    (follows it) ──> `post`
                                    ├─ 2  the stream `sent` of the application's own store
                                    └─ 3  a queue of the broker that nobody reads

`python -m tests.campaigns.inbox_soak_child` reads lines of JSON: `{"start": {...}}`, `{"kill": pid}`, `{"stop": pid}`,
`{"ended": true}`, and answers each with one. Each process is forked from it, so that only the first pays for the
imports. When its input ends, all of them are killed.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import signal
import sqlite3
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import aio_pika  # noqa: F401 - here, or every process would load it anew
import nats  # noqa: F401
import psycopg

from semel import App, Outbox, on
from semel.inbox.settle import DeliveryEnd
from semel.kernel.retry import RetryPolicy
from semel.runtime.inbox import listening, service
from semel.runtime.inbox.listening import InboxListener, TransportDelivery
from semel.testing.limits import scaled

ORDERS, BULK, RECEIPTS, POSTS = "orders", "bulk", "receipts", "posts"
"""Endpoints. The order of a key is promised at the first one only."""
SENT, TO_INBOX, TO_HUB, TO_STREAM, TO_QUEUE = "sent", 0, 1, 2, 3
WAYS = 4
"""An order's outgoing message goes the way that its number says."""
NAME = "shop"
ACK_FIRST, OWN_COMMIT, NOT_STRICT = "ack-first", "own-commit", "not-strict"
PLANTS = (ACK_FIRST, OWN_COMMIT, NOT_STRICT)
"""Mistakes: a delivery is acknowledged before it is stored; a handler commits its effect by itself, without a mark; a
listener lets others overtake what it has."""
SHARE = 10
LOOK_AGAIN = RetryPolicy(interval_s=0.1, factor=2.0, interval_max_s=0.5, jitter=0.2)
PLANTED_S, UNSTORED_S = 0.1, 0.5
"""What makes a mistake likely to be met by a kill."""


@dataclass(frozen=True)
class ShopConfig:
    """`listens` is what endpoints listen to, `to_inbox` and `to_queue` are destinations at the broker."""

    store: str
    broker: str
    url: str
    listens: dict[str, str]
    to_inbox: str
    to_queue: str
    hub: str
    connection: str
    hub_store: str
    lease_s: float
    plant: str | None = None


@dataclass
class Order:
    id: str
    key: str
    number: int


@dataclass
class Receipt:
    id: str
    key: str
    number: int


def make_app(config: ShopConfig) -> App:
    # a broker or a process that was killed is back soon, and a run of minutes should not wait for those of days
    service.RELAY_LEASE_S = config.lease_s
    service.RELAY_RETRY = listening.REOPEN = LOOK_AGAIN
    is_sqlite = config.store.startswith("sqlite:")
    mark = "?" if is_sqlite else "%s"
    brokers: dict[str, Any] = {config.broker: config.url}
    app = App(config.store, name=NAME, hub=config.connection, **brokers)
    app.errors(on(Exception).retry([0.0] * 50).dead_letter())  # a process that is killed is no fault of its messages
    ways = {
        TO_INBOX: config.to_inbox, TO_HUB: f"hub:{config.hub}", TO_STREAM: f"stream:{SENT}", TO_QUEUE: config.to_queue,
    }  # fmt: skip

    insert = f"INSERT INTO charge (id, key, number) VALUES ({mark}, {mark}, {mark})"

    def charge(order: Order, db: Any, outbox: Outbox) -> None:
        db.execute(insert, (order.id, order.key, order.number))
        answer(order, outbox)

    def charge_alone(order: Order, outbox: Outbox) -> None:
        """A mistake: its effect is a commit of its own, and the mark comes later."""
        with closing(connect(config.store)) as db:
            db.execute(insert, (order.id, order.key, order.number))
        time.sleep(PLANTED_S)
        answer(order, outbox)

    def answer(order: Order, outbox: Outbox) -> None:
        receipt = Receipt(order.id, order.key, order.number)
        outbox.publish(receipt, to=ways[order.number % WAYS], key=order.key)

    def write_to(table: str) -> Callable[..., None]:
        def write(receipt: Receipt, db: Any) -> None:
            db.execute(f"INSERT INTO {table} (id) VALUES ({mark})", (receipt.id,))

        write.__annotations__ = {"receipt": Receipt, "db": kind}
        return write

    kind: type = sqlite3.Connection if is_sqlite else psycopg.Connection
    charge.__annotations__["db"] = kind
    is_alone = config.plant == OWN_COMMIT
    for name, share in ((ORDERS, 1), (BULK, 1 if is_alone else SHARE)):
        endpoint = app.endpoint(name, lease_s=config.lease_s, share_commit=share, failed_head="passes")
        endpoint.on(Order, key=lambda order: order.key)(charge_alone if is_alone else charge)
    app.endpoint(RECEIPTS, lease_s=config.lease_s, share_commit=SHARE).on(Receipt)(write_to("receipt"))
    app.endpoint(POSTS, lease_s=config.lease_s, share_commit=SHARE).on("message")(write_to("post"))
    for name, source in config.listens.items():
        app.listen(name, source)
    app.follow(POSTS, f"hub/{config.hub}", store=config.hub_store)
    return app


def connect(url: str) -> Any:
    """To the application's own database, as a program beside it has it. Each statement is a commit of its own."""
    if url.startswith("sqlite:"):
        path = url.removeprefix("sqlite:///")
        return sqlite3.connect(path, timeout=scaled(30), isolation_level=None, check_same_thread=False)
    return psycopg.connect(url, autocommit=True)


# -- mistakes that must be found


def plant_ack_first() -> None:
    async def ack_first(self: InboxListener, deliveries: Sequence[TransportDelivery]) -> bool:
        for delivery in deliveries:
            await self._settle(delivery, DeliveryEnd.ACK)
        await asyncio.sleep(UNSTORED_S)
        await self._entrance.take([delivery.arrival for delivery in deliveries])
        return True

    InboxListener._take = ack_first  # type: ignore[method-assign]


def plant_slow_storing() -> None:
    """No mistake by itself: some processes are slower than others."""
    take = InboxListener._take

    async def slow(self: InboxListener, deliveries: Sequence[TransportDelivery]) -> bool:
        await asyncio.sleep(random.uniform(0, PLANTED_S))
        return await take(self, deliveries)

    InboxListener._take = slow  # type: ignore[method-assign]


# -- a process


def live(config: ShopConfig) -> None:
    if config.plant == ACK_FIRST:
        plant_ack_first()
    elif config.plant == NOT_STRICT:
        plant_slow_storing()
    make_app(config).run()


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(process)d %(name)s %(message)s")
    logging.getLogger("nats").setLevel(logging.CRITICAL)
    logging.getLogger("aiormq").setLevel(logging.CRITICAL)
    processes: set[int] = set()
    try:
        for line in sys.stdin:
            print(json.dumps(_answer(json.loads(line), processes)), flush=True)
    finally:
        for pid in processes:
            os.kill(pid, signal.SIGKILL)


def _answer(said: dict[str, Any], processes: set[int]) -> Any:
    if "start" in said:
        processes.add(pid := _start(ShopConfig(**said["start"])))
        return pid
    if "ended" in said:
        return [pid for pid in list(processes) if _has_ended(pid, processes)]
    [(word, pid)] = said.items()
    os.kill(pid, signal.SIGKILL if word == "kill" else signal.SIGTERM)
    processes.remove(pid)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


def _start(config: ShopConfig) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 0)
        os.dup2(nothing, 1)  # what it says would be taken for an answer
        live(config)
        code = 0
    except BaseException:
        logging.exception("a process of the application ends")
    finally:
        os._exit(code)


def _has_ended(pid: int, processes: set[int]) -> bool:
    found, _ = os.waitpid(pid, os.WNOHANG)
    if found:
        processes.remove(pid)
    return bool(found)


if __name__ == "__main__":
    main()
