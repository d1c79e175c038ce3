"""A process of the demo's shop: handlers that charge for orders, each in a transaction of the shop's own database.

When its parent asks for it by a file, the handler that is just at work stops between its write and its commit and says
so. There it is killed with -9, at the worst moment there is.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from semel.demo.children import REPORT_S, main, say
from semel.demo.options import SHOP, SHOP_ENDPOINT, SHOP_TYPE
from semel.runtime.inbox.app import App

PLANTED: dict[str, dict[str, Any]] = {
    "no-dedup": {"mode": "inline", "style": "none"},
    "confirm-early": {"mode": "buffered", "style": "eager"},
}
"""The mistakes of `--plant` that an inbox can make too, as endpoints whose word they are."""


@dataclass(frozen=True, slots=True)
class DemoOrder:
    id: str
    cents: int


def build_app(config: dict[str, Any]) -> App:
    app = App(config["store"], name=SHOP, nats=config["nats"], config=config["settings"])
    app.endpoint(SHOP_ENDPOINT, lease_s=config["lease_s"], **PLANTED.get(config["plant"] or "", {}))
    if config["listen"]:
        app.listen(SHOP_ENDPOINT, config["listen"])
    return app


async def work(config: dict[str, Any], ended: asyncio.Event) -> None:
    app, halt = build_app(config), Path(config["halt"])

    @app.endpoints[SHOP_ENDPOINT].on(SHOP_TYPE)
    def charge(order: DemoOrder, db: sqlite3.Connection) -> None:
        db.execute("INSERT INTO charge VALUES (?, ?)", (order.id, order.cents))
        if halt.exists():
            say(inside=order.id)
            while not ended.is_set():  # until the kill; without a parent it ends as well
                time.sleep(REPORT_S)

    try:
        say(ready=True)
        await app.serve(stop=ended)
    finally:
        app.close()


if __name__ == "__main__":
    main(work)
