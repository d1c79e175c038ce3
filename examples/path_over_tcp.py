"""A durable path between two nodes: orders enter at A and are billed at B, once each and in order.

    python examples/path_over_tcp.py sqlite:///orders.db

The two nodes live in one program here, each with a store of its own and a real TCP connection between them. In two
programs nothing would be different but the address.
"""

import asyncio
import sys

from semel import Append, Envelope, Performer, PipeNode, open_store
from semel.pipes import build, parse_path
from semel.runtime.transports.tcp import TcpTransport

PATH = build(parse_path("A -[retries=inf,timeout=200ms,window=64,dedup=strict,durable=yes]-> B"))
SECRET = b"both sides know it: take it from a file, not from here"


def bill(record):
    """Runs at B. What it returns is committed together with the fact that it ran."""
    return [Append("hub/bills", Envelope(id=f"bill-{record.envelope.id}"))]


async def main(url: str) -> None:
    shop, office = open_store(url), open_store(url.replace(".db", "-office.db"))
    async with Performer(office) as right, Performer(shop) as left:
        listener, dialler = TcpTransport("office", secret=SECRET), TcpTransport("shop", secret=SECRET)
        receiving, sending = PipeNode("office", right, listener), PipeNode("shop", left, dialler)
        await receiving.deploy(PATH, here={"B"}, nodes={"A": "shop"}, handler=bill)
        await sending.deploy(PATH, here={"A"}, nodes={"B": "office"})
        dialler.dial("office", "127.0.0.1", await listener.listen())
        for number in (1, 2, 3, 2):
            await sending.offer("A", Envelope(id=f"order-{number}"))  # returns when the shop's disk has it
        await sending.drained("A")  # everything is confirmed by the office
        await receiving.drained("B")  # and handled there
    print("bills:", [record.envelope.id for record in office.read("hub/bills").records])
    shop.close()
    office.close()


asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "sqlite:///orders.db"))
