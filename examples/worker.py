"""A handler that runs once per message: its writes and the fact that it ran are one commit.

The handler fails on its first call. The row is tried again, and the effect is there once.
"""

import asyncio
import sys

from semel import Append, Committer, Enqueue, Envelope, Performer, RetryPolicy, Worker, WorkerConfig, open_store

calls = 0


async def reserve(row):
    """What is returned is committed together with the end of the row, or not at all."""
    global calls
    calls += 1
    if calls == 1:
        raise RuntimeError("the warehouse did not answer")
    reserved = Envelope(id=f"reserved-{row.identity}", data=row.envelope.data)
    return [Append("hub/reservations", reserved)]


async def main(url):
    store = open_store(url)
    retry = RetryPolicy(retries=3, interval_s=0.1, then="dead_letter")
    worker = Worker(WorkerConfig("worker-1", queue="inbox/orders", hop="inbox/orders>handler", retry=retry, idle_s=0.1))
    async with Performer(store) as performer:
        order = Envelope(id="order-7", session="customer-3", data=b"one book")
        await Committer(performer).commit([Enqueue("inbox/orders", order.id, order, key=order.session)])
        performer.add(worker, handler=reserve)
        await asyncio.to_thread(store.tail, "hub/reservations")
    print(f"calls of the handler: {calls}")
    print(f"reservations: {[record.envelope.id for record in store.read('hub/reservations').records]}")
    print(f"the row: {store.work('inbox/orders', 'order-7').state.name}")
    store.close()


asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "sqlite:///orders.db"))
