"""The demo's sending process: customers place orders, and a sender passes them on until each is confirmed."""

from __future__ import annotations

import asyncio
from typing import Any

from semel.demo.children import REPORT_S, join_network, main, pause, say
from semel.demo.options import CUSTOMERS, HOP, OUTBOX, RECEIVER, SENDER
from semel.kernel.envelope import Envelope
from semel.kernel.hop import Sender, SenderConfig
from semel.kernel.ledger import Event, Kind
from semel.kernel.ops import Append
from semel.kernel.resend import ResendPolicy
from semel.kernel.retry import RetryPolicy
from semel.kernel.store import Store
from semel.runtime.host.committer import Committer
from semel.runtime.host.performer import Performer
from semel.stores import open_store

WINDOW = 128
WAITING_MAX = 3 * WINDOW
"""How many orders may wait unconfirmed: customers keep ordering during the whole run, not only at its beginning."""

RETRY = RetryPolicy(interval_s=0.15, factor=1.5, interval_max_s=1.0, jitter=0.2)
SENT = Event(Kind.SENT, HOP, "demo", peer=RECEIVER)


def order(number: int) -> Envelope:
    """Order number 1, 2, 3 … of the whole run. The same number is the same order, also after a restart."""
    customer, index = (number - 1) % CUSTOMERS, (number - 1) // CUSTOMERS + 1
    return Envelope(
        id=f"order-{number:07d}",
        source="demo",
        type="order.placed",
        session=f"customer-{customer + 1}",
        index=index,
        data=f'{{"order": {number}, "amount": {number * 7 % 100}}}'.encode(),
        datacontenttype="application/json",
    )


def build_sender(seed: int, store: Store) -> Sender:
    policy = ResendPolicy(window=WINDOW, timeout_s=0.15, retry=RETRY)
    config = SenderConfig(SENDER, OUTBOX, RECEIVER, HOP, "demo", policy, seed)
    return Sender(config, store.cursor(config.cursor))


class Shop:
    """Places the orders. It says that an order is placed only when the store has it."""

    def __init__(self, store: Store, committer: Committer, orders: int, ended: asyncio.Event) -> None:
        self.store = store
        self.committer = committer
        self.orders = orders
        self.ended = ended
        self.acked: list[str] = []
        self.placed = 0
        self.waiting = 0

    async def serve(self, customer: int) -> None:
        """One customer's orders, one after the other. After a restart those that are there answer `Duplicate`."""
        for number in range(customer + 1, self.orders + 1, CUSTOMERS):
            while self.waiting > WAITING_MAX and not self.ended.is_set():
                await pause(self.ended, REPORT_S)
            if self.ended.is_set():
                return
            envelope = order(number)
            await self.committer.commit([Append(OUTBOX, envelope, identity=envelope.id, on_fresh=SENT)])
            self.acked.append(envelope.id)
            self.placed += 1
            self.waiting += 1

    async def report(self) -> None:
        """Until every order is placed and confirmed, and the cursor that says so is stored."""
        while (self.placed < self.orders or self.waiting) and not self.ended.is_set():
            await pause(self.ended, REPORT_S)
            self.waiting = await asyncio.to_thread(self._count_waiting)
            acked, self.acked = self.acked, []
            say(acked=acked, waiting=self.waiting)

    def _count_waiting(self) -> int:
        cursor = self.store.cursor(f"send/{SENDER}")
        return self.store.head(OUTBOX).offset - (cursor.offset if cursor is not None else 0)


async def send(config: dict[str, Any], ended: asyncio.Event) -> None:
    store = open_store(config["store"], node=SENDER)
    try:
        async with Performer(store) as performer:
            transport = join_network(SENDER, config["secret"], performer)
            await performer.host(
                lambda store: build_sender(config["seed"], store), transport=transport, peers={RECEIVER}
            )
            transport.dial(RECEIVER, "127.0.0.1", config["port"])
            shop = Shop(store, Committer(performer), config["messages"], ended)
            say(ready=True)
            async with asyncio.TaskGroup() as group:
                for customer in range(CUSTOMERS):
                    group.create_task(shop.serve(customer))
                group.create_task(shop.report())
            say(done=True)
            await ended.wait()
    finally:
        store.close()


if __name__ == "__main__":
    main(send)
