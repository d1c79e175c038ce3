"""Microsoft's own Python client in the demo, as it comes from the registry. It publishes and receives like ours.

What its own retries send again goes out under new ackIds, and so twice. So they are off, and whoever uses it asks again
under the same ackId until the hub has answered.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from azure.messaging.webpubsubclient import WebPubSubClient, _client
from azure.messaging.webpubsubclient.models import (
    CallbackType,
    OnGroupDataMessageArgs,
    OpenClientError,
    SendMessageError,
)
from websocket import WebSocketException

from semel.demo.children import main, say
from semel.demo.hub_clients import PACE_S, ClientBook, wait_for_go
from semel.demo.options import HUB_GROUP
from semel.errors import PeerUnavailable
from semel.stores import open_store
from semel.testing.limits import scaled

ACK_TIMEOUT_S = 1.0
AGAIN_S = 0.05
OPEN_S = 5.0
"""How long one attempt to connect may take. The client may miss that it is connected, and then waits for so long."""
GIVE_UP_S = 50.0
"""When the last attempt begins. With that one it is less than its parent waits, so that it says itself what went
wrong."""
RECOVER_S = 10.0
LAST_ACK_S = 1.2
"""It acknowledges what it has received once a second."""


def give_up_at() -> float:
    return time.monotonic() + scaled(GIVE_UP_S)


def ask(call: Callable[..., None], *arguments: Any, ack_id: int, until: float | None = None) -> None:
    """Without a connection it says no at once, and it may miss an answer. A Duplicate is an answer: it returns."""
    until = give_up_at() if until is None else until
    while True:
        try:
            return call(*arguments, ack_id=ack_id)
        except (SendMessageError, WebSocketException) as error:
            if time.monotonic() > until:
                raise PeerUnavailable(f"{arguments} was never answered: {error}") from error
            time.sleep(AGAIN_S)


def publish(name: str, client: WebPubSubClient, messages: int, book: ClientBook) -> None:
    for number in range(1, messages + 1):
        id, ack_id = f"{name}-{number}", number + 1
        # under this name the hub keeps a message that has none of its own
        book.sends(f"{client._connection_id}#{ack_id}")
        ask(client.send_to_group, HUB_GROUP, {"id": id}, "json", ack_id=ack_id)
        book.published(id)
        time.sleep(PACE_S)
    book.send_report(done=name)


def joined(url: str, receive: Callable[[OnGroupDataMessageArgs], None]) -> WebPubSubClient:
    """Connected and in the group. Its parent waits for both together, so both have one limit."""
    until = give_up_at()
    client = opened(url, receive, until)
    ask(client.join_group, HUB_GROUP, ack_id=1, until=until)
    return client


def opened(url: str, receive: Callable[[OnGroupDataMessageArgs], None], until: float) -> WebPubSubClient:
    """A connection that comes too late belongs to a client that is given up, and joins nothing."""
    while True:
        client = WebPubSubClient(url, message_retry_total=0, ack_timeout=ACK_TIMEOUT_S, start_timeout=scaled(OPEN_S))
        client.subscribe(CallbackType.GROUP_MESSAGE, receive)
        try:
            client.open()
            return client
        except OpenClientError as error:
            if time.monotonic() > until:
                raise PeerUnavailable(f"Microsoft's client does not connect: {error}") from error


def keep_sessions() -> None:
    """The client gives its session up after 30 s. On a machine that takes so long to start a server, it must not."""
    _client._RECOVERY_TIMEOUT = max(_client._RECOVERY_TIMEOUT, scaled(RECOVER_S))


async def speak(config: dict[str, Any], ended: asyncio.Event) -> None:
    store = open_store(config["store"], node="microsoft")
    book = ClientBook(store)
    [(name, url)] = config["urls"].items()
    keep_sessions()

    def receive(message: OnGroupDataMessageArgs) -> None:
        assert isinstance(message.data, dict)
        book.received(name, message.data["id"], message.sequence_id or 0)

    try:
        client = await asyncio.to_thread(joined, url, receive)
        say(ready=True)
        await wait_for_go(config["go"], ended)
        async with asyncio.TaskGroup() as group:
            group.create_task(book.report(ended))
            group.create_task(asyncio.to_thread(publish, name, client, config["messages"], book))
        await asyncio.sleep(LAST_ACK_S)
        await asyncio.to_thread(client.close)
        book.send_report()
    finally:
        store.close()


if __name__ == "__main__":
    main(speak)
