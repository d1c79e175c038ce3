"""A publisher with an outbox, in a process of its own: it publishes numbers, each under an id, and may be killed."""

from __future__ import annotations

import asyncio
import sys

from semel import WebPubSubClient


async def publish(url: str, outbox: str, numbers: range) -> None:
    async with WebPubSubClient(url, outbox=outbox) as client:
        for number in numbers:
            await client.send_to_group("crash", number, id=f"order-{number}", until_kept=True)
            print(number, flush=True)
    print("done", flush=True)


if __name__ == "__main__":
    url, outbox, first, end = sys.argv[1:]
    asyncio.run(publish(url, outbox, range(int(first), int(end))))
