"""The demo's receiving process: accepts each order once, in its customer's sequence, and confirms what is durable."""

from __future__ import annotations

import asyncio
from typing import Any

from semel.demo.children import REPORT_S, join_network, main, pause, say
from semel.demo.options import HOP, INBOX, RECEIVER
from semel.demo.plants import planted
from semel.kernel.hop import ReceiveOrder, Receiver, ReceiverConfig
from semel.kernel.store import Store
from semel.runtime.host.performer import Performer
from semel.stores import open_store


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
