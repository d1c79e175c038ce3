"""Orders that two regions have taken become one stream: each order once, each customer's in turn, and priced.

    python delivery_pipeline.py                          fills two stores that stand for the regions
    semel pipeline run delivery_pipeline.py --once       merges them, on Spark

A sender that must not depend on one region writes to both. Here each region misses some orders, and the west has them
in another order and some of them twice.
"""

import json
import random
import sys

from semel import Append, Envelope, Unit, open_store
from semel.spark.delivery import delivery
from semel.spark.pipeline import Input

EAST, WEST = "sqlite:///orders.db", "sqlite:///orders-west.db"
LOGS = ("queue/east/orders", "queue/west/orders")
ORDERS, CUSTOMERS, EMPTY = 400, 10, 14


def price(order: Envelope) -> Envelope:
    """Runs in the tasks of Spark. What it returns takes effect once; what it refuses is kept as a dead letter."""
    pieces = json.loads(order.data)["pieces"]
    if pieces < 1:
        raise ValueError(f"{order.id} asks for nothing")
    return Envelope(id=order.id, type="order.priced", data=json.dumps({"price": 5 * pieces}).encode())


pipeline = delivery(
    Input(EAST, LOGS[0]),
    Input(WEST, LOGS[1]),
    store=EAST,
    handler="delivery_pipeline:price",
    to="inbox/orders",
    max_rows_per_batch=200,
    lease_s=5,
)


def orders() -> list[Envelope]:
    """What was sent: the orders of ten customers, and some that ask for nothing and come from nobody."""
    good = [
        Envelope(
            id=f"order-{number}",
            session=f"customer-{number % CUSTOMERS}",
            index=number // CUSTOMERS + 1,
            data=json.dumps({"pieces": number % 9 + 1}).encode(),
        )
        for number in range(ORDERS)
    ]
    return good + [Envelope(id=f"empty-{number}", data=b'{"pieces": 0}') for number in range(EMPTY)]


def fill(url: str, stream: str, envelopes: list[Envelope]) -> None:
    """The identity is the place in the log, so that an order may stand there twice. A good sender gives the id."""
    store = open_store(url)
    store.commit([Unit(tuple(Append(stream, each, identity=f"at-{at}") for at, each in enumerate(envelopes)))])
    print(f"{stream}: {len(envelopes)} records")
    store.close()


def main(east: str) -> None:
    sent = orders()
    western = [order for number, order in enumerate(sent) if number % 7 != 5]
    western += western[::50]
    random.Random(7).shuffle(western)
    fill(east, LOGS[0], [order for number, order in enumerate(sent) if number % 7 != 3])
    fill(east.replace(".db", "-west.db"), LOGS[1], western)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else EAST)
