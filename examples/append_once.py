"""The same message twice: the store keeps the first and says where it is."""

import sys

from semel import Append, Envelope, Unit, open_store

store = open_store(sys.argv[1] if len(sys.argv) > 1 else "sqlite:///orders.db")

order = Envelope(id="order-7", type="order.placed", data=b'{"item": "book"}')
append = Append("hub/orders", order, identity=order.id)

for attempt in (1, 2):
    [outcome] = store.commit([Unit((append,))])
    print(f"attempt {attempt}: {outcome.results[0]}")

for record in store.read("hub/orders").records:
    print(f"stored: {record.position} {record.envelope.data.decode()}")

store.close()
