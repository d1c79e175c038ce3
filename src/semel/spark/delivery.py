"""The delivery pipeline: two regional logs of the same messages become one, each message once and in order.

A sender that must not depend on one region writes to both. Each log may miss some messages, hold some twice and have
them in another order. What comes out here is merged, deduplicated, in the order of each session, handled by the user's
function, and delivered to a stream.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from semel.spark.pipeline import Input, Order, Pipeline


def delivery(
    *regions: Input,
    store: str,
    name: str = "delivery",
    handler: str | Callable[..., Any] | None = None,
    order: Order | None = None,
    to: str | None = None,
    **settings: Any,
) -> Pipeline:
    """A pipeline over the logs of two or more regions.

    delivery(Input(east, "queue/east/orders"), Input(west, "queue/west/orders"), store=east, to="inbox/orders")
    """
    return Pipeline(name, regions, store, order=order or Order(), handler=handler, to=to, **settings)
