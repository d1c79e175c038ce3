"""The senders of the brokers that an application knows, for the relay of its outbox."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from semel.runtime.brokers.amqp import AmqpSender
from semel.runtime.brokers.nats import NatsSender
from semel.runtime.inbox.relay import Sender


class BrokerSenders:
    """One connection for each broker, made when the first message goes there. `urls` are by kind."""

    def __init__(self, urls: Mapping[str, str], name: str) -> None:
        kinds: dict[str, type[NatsSender] | type[AmqpSender]] = {"nats": NatsSender, "amqp": AmqpSender}
        self._senders = {kind: kinds[kind](url, f"semel outbox/{name}") for kind, url in urls.items()}

    @property
    def by_kind(self) -> dict[str, Sender]:
        return {kind: sender.send for kind, sender in self._senders.items()}

    async def close(self) -> None:
        await asyncio.gather(*(each.close() for each in self._senders.values()))
