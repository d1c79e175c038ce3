"""The demo's own clients of the hub: three in one process, each publishes and receives what all publish."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from semel.demo.children import REPORT_S, main, pause, say
from semel.demo.options import HUB_GROUP, HUB_HOP
from semel.kernel.ledger import Event, Kind
from semel.kernel.ops import Log, Unit
from semel.kernel.retry import RetryPolicy
from semel.kernel.store import Store
from semel.pubsub.client.data import Message
from semel.pubsub.client.events import ClientOptions
from semel.runtime.client.client import WebPubSubClient
from semel.stores import open_store
from semel.testing.limits import scaled

PACE_S = 0.01


def options() -> ClientOptions:
    """It resends soon. How long it tries altogether is a matter of the machine."""
    backoff = RetryPolicy(interval_s=0.05, factor=2.0, interval_max_s=0.5, jitter=1.0)
    return ClientOptions(
        ack_timeout_s=1.0, backoff=backoff, open_timeout_s=scaled(10.0), connect_for_s=scaled(60.0),
        recover_for_s=scaled(60.0), dead_s=scaled(45.0),
    )  # fmt: skip


class ClientBook:
    """What a client process says it sends goes into its own ledger first; its parent gets what it receives."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._published: list[str] = []
        self._received: dict[str, list[tuple[int, str]]] = {}

    def sends(self, message: str) -> None:
        self._store.commit([Unit((Log(Event(Kind.SENT, HUB_HOP, message=message)),))])

    def published(self, id: str) -> None:
        with self._lock:
            self._published.append(id)

    def received(self, client: str, id: str, sequence_id: int) -> None:
        with self._lock:
            self._received.setdefault(client, []).append((sequence_id, id))

    async def report(self, ended: asyncio.Event) -> None:
        while not ended.is_set():
            await pause(ended, REPORT_S)
            self.send_report()

    def send_report(self, **more: str) -> None:
        with self._lock:
            published, self._published = self._published, []
            received, self._received = self._received, {}
            if published or received or more:
                say(published=published, received=received, **more)


async def wait_for_go(file: str, ended: asyncio.Event) -> None:
    """Everybody has joined."""
    while not await asyncio.to_thread(Path(file).exists) and not ended.is_set():
        await pause(ended, REPORT_S)


async def speak(config: dict[str, Any], ended: asyncio.Event) -> None:
    store = open_store(config["store"], node="clients")
    book = ClientBook(store)
    try:
        async with AsyncExitStack() as stack:
            clients = {}
            for name, url in config["urls"].items():
                client = WebPubSubClient(url, options=options())
                client.on_message(_recorder(name, book))
                clients[name] = await stack.enter_async_context(client)
                await client.join_group(HUB_GROUP)
            say(ready=True)
            await wait_for_go(config["go"], ended)
            async with asyncio.TaskGroup() as group:
                group.create_task(book.report(ended))
                for name, client in clients.items():
                    group.create_task(publish(name, client, config["messages"], book))
        book.send_report()
    finally:
        store.close()


def _recorder(name: str, book: ClientBook) -> Callable[[Message], None]:
    return lambda message: book.received(name, message.data["id"], message.sequence_id or 0)


async def publish(name: str, client: WebPubSubClient, messages: int, book: ClientBook) -> None:
    """One after the other, so that the order in which they arrive can be judged."""
    for number in range(1, messages + 1):
        id = f"{name}-{number}"
        book.sends(id)
        await client.send_to_group(HUB_GROUP, {"id": id}, id=id)
        book.published(id)
        await asyncio.sleep(PACE_S)
    book.send_report(done=name)


if __name__ == "__main__":
    main(speak)
