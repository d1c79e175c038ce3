"""The demo's receiving process: accepts each order once, in its customer's sequence, and confirms what is durable."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from semel.demo.children import REPORT_S, join_network, main, pause, say
from semel.demo.options import HOP, INBOX, RECEIVER
from semel.kernel.effects import Commit, Effect, Send
from semel.kernel.hop import Confirm, HopMessage, ReceiveOrder, Receiver, ReceiverConfig
from semel.kernel.store import Store
from semel.runtime.host.performer import Performer
from semel.stores import open_store

# -- receivers with a mistake built in: a verdict that cannot fail proves nothing

EARLY_BATCH = 50


class NoDedup(Receiver):
    """Takes every copy for a new message."""

    def _arrived(self, peer: str, message: HopMessage, now: float) -> Sequence[Effect]:
        return self._commit((self._accept(message, identity=None),), [(peer, message.delivery)], None)


class ConfirmEarly(Receiver):
    """Confirms on arrival and commits when enough have come together: what is in memory dies with the process."""

    def __init__(self, config: ReceiverConfig) -> None:
        super().__init__(config)
        self._kept: list[Effect] = []

    def _arrived(self, peer: str, message: HopMessage, now: float) -> Sequence[Effect]:
        effects = super()._arrived(peer, message, now)
        self._kept += [effect for effect in effects if isinstance(effect, Commit)]
        others = [effect for effect in effects if not isinstance(effect, Commit)]
        kept: list[Effect] = []
        if len(self._kept) >= EARLY_BATCH:
            kept, self._kept = self._kept, []
        return [*others, *kept, Send(peer, Confirm((message.delivery,)))]


def no_order(config: ReceiverConfig) -> Receiver:
    """Dedups by id, so nothing is lost or doubled, but accepts in the order of arrival."""
    return Receiver(replace(config, order=ReceiveOrder.ID))


_PLANTED: dict[str, Callable[[ReceiverConfig], Receiver]] = {
    "no-dedup": NoDedup,
    "no-order": no_order,
    "confirm-early": ConfirmEarly,
}


def planted(name: str, config: ReceiverConfig) -> Receiver:
    return _PLANTED[name](config)


def build_receiver(plant: str | None) -> Receiver:
    config = ReceiverConfig(RECEIVER, HOP, stream=INBOX, pipeline="demo", order=ReceiveOrder.STRICT)
    return Receiver(config) if plant is None else planted(plant, config)


async def receive(config: dict[str, Any], ended: asyncio.Event) -> None:
    store = open_store(config["store"], node=RECEIVER)
    try:
        async with Performer(store) as performer:
            transport = join_network(RECEIVER, config["secret"], performer)
            await performer.host(lambda store: build_receiver(config["plant"]), transport=transport)
            say(ready=True, port=await transport.listen())
            await _report(store, ended)
    finally:
        store.close()


async def _report(store: Store, ended: asyncio.Event) -> None:
    while not ended.is_set():
        head = await asyncio.to_thread(store.head, INBOX)
        say(accepted=head.offset)
        await pause(ended, REPORT_S)


if __name__ == "__main__":
    main(receive)
