"""The relay sends to a real server: to a URL of it that takes nothing, and to a hub by its REST API."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.interop.served import KEY, Served

from semel import App, Outbox
from semel.testing.limits import scaled

pytestmark = pytest.mark.connected


@dataclass
class Order:
    id: str


def test_a_hub_gets_what_a_handler_publishes_and_a_url_that_refuses_it_is_told(served: Served, tmp_path: Path) -> None:
    hub = f"Endpoint={served.endpoint};AccessKey={KEY};Version=1.0;"
    app = App(f"sqlite:///{tmp_path}/shop.db", name="shop", hub=hub)

    @app.endpoint("orders").on(Order)
    def handle(order: Order, outbox: Outbox) -> None:
        for to in ("hub:chat", "hub:chat/group/room 1", "hub:chat/user/ada"):
            outbox.publish(order, to=to, id=order.id)
        outbox.publish(order, to=f"{served.endpoint}/nobody/is/here", id=order.id)

    app.send(Order("a"), to="orders", id="a")
    assert app.drain(scaled(60)) == 1
    [letter] = app.dead_letters("outbox/shop")
    assert "/nobody/is/here answered 4" in letter.cause, "the three for the hub were taken"
    assert app.store.work_counts("outbox/shop")["outbox/shop"].keys() == {letter_state(app)}
    app.close()


def letter_state(app: App) -> object:
    [row] = app.store.work_rows("outbox/shop", set(app.store.work_counts("outbox/shop")["outbox/shop"]))
    return row.state
