"""Counts of an application, as Prometheus reads them."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from semel import App, Envelope, Outbox, WorkState, on, retry
from semel.errors import StoreUnavailable
from semel.inbox.outbox import Destination
from semel.runtime.inbox.counts import EndpointCounts, MessageCount
from semel.runtime.inbox.metrics import InboxMetrics


@dataclass
class Order:
    id: str


def figures(app: App) -> dict[tuple[str, ...], float]:
    """By the name of each sample and its labels but the application's."""
    return {
        (sample.name, *(value for label, value in sorted(sample.labels.items()) if label != "app")): sample.value
        for family in text_string_to_metric_families(app.metrics().text().decode())
        for sample in family.samples
    }


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    app = App(f"sqlite:///{tmp_path}/shop.db", name="shop")
    yield app
    app.close()


def order(id: str) -> Envelope:
    return Envelope(id, type="Order", data=b'{"id": "%s"}' % id.encode())


def test_what_comes_and_what_becomes_of_it_is_counted(app: App) -> None:
    orders = app.endpoint("orders", errors=[retry(ValueError, waits=[0]).then("dead_letter"), on(KeyError).discard()])

    @orders.on(Order)
    def place(order: Order, db: sqlite3.Connection) -> None:
        if order.id == "bad":
            raise ValueError("no")
        if order.id == "old":
            raise KeyError("gone")

    app.receive("orders", [order("1"), order("2"), order("bad"), order("old")])
    app.receive("orders", [order("1")])
    app.send(Order("3"), to="orders", id="3")
    app.keep_unreadable("orders", b"?", "not to be read")
    app.drain()
    found = figures(app)
    wanted = {"stored": 5, "duplicates": 1, "unreadable": 1, "handled": 3, "failed": 3, "retried": 1,
              "dead_lettered": 1, "discarded": 1}  # fmt: skip
    counted = {what.value: found[f"semel_inbox_{what}_total", "orders"] for what in MessageCount}
    assert {what: count for what, count in counted.items() if count} == wanted
    assert found["semel_inbox_handler_seconds_count", "orders"] == 6
    assert found["semel_inbox_rows", "inbox/orders", "dead"] == 2
    assert found[("semel_inbox_store_up",)] == 1


def test_an_endpoint_is_there_before_anything_has_happened(app: App) -> None:
    app.endpoint("orders")
    found = figures(app)
    assert found["semel_inbox_dead_lettered_total", "orders"] == 0
    assert found["semel_inbox_oldest_ready_seconds", "inbox/orders"] == 0
    assert found["semel_outbox_sent_total", "url"] == 0


def test_the_oldest_message_that_nobody_handles_grows_old(app: App) -> None:
    app.endpoint("orders")
    app.receive("orders", [order("1"), order("2")])
    [oldest, _] = app.store.work_rows("inbox/orders", (WorkState.READY,))
    later = InboxMetrics("shop", app.telemetry, lambda: app.store, app._queues, lambda: oldest.due + 90_000_000)
    [sample] = [
        sample
        for family in later.collect()
        for sample in family.samples
        if sample.name == "semel_inbox_oldest_ready_seconds" and sample.labels["queue"] == "inbox/orders"
    ]
    assert sample.value == 90
    assert figures(app)["semel_inbox_rows", "inbox/orders", "ready"] == 2


def test_the_relay_counts_by_the_kind_of_destination(app: App) -> None:
    orders, attempts = app.endpoint("orders"), []

    @orders.on(Order)
    def place(order: Order, db: sqlite3.Connection, outbox: Outbox) -> None:
        outbox.publish(order, to="nats:orders")
        outbox.publish(order, to="stream:orders")

    async def send(destination: Destination, envelope: Envelope) -> None:
        attempts.append(envelope.id)
        if len(attempts) == 1:
            raise ConnectionError("away")

    app.sender("nats", send)
    app.send(Order("1"), to="orders", id="1")
    app.drain()
    found = figures(app)
    assert found["semel_outbox_sent_total", "broker"] == 1
    assert found["semel_outbox_failed_total", "broker"] == 1
    assert found["semel_outbox_sent_total", "stream"] == 1
    assert found["semel_inbox_retried_total", "outbox/shop"] == 1


def test_an_inline_endpoint_counts_as_well(app: App) -> None:
    sms = app.endpoint("sms", mode="inline", style="eager", errors=[retry(ValueError, waits=[0]).then("dead_letter")])

    @sms.on(Order)
    def text(order: Order, db: sqlite3.Connection) -> None:
        db.execute("SELECT 1")
        if order.id == "bad":
            raise ValueError("no")

    async def deliver() -> None:
        for id in ("1", "1", "bad"):
            await app.deliver("sms", order(id))

    asyncio.run(deliver())
    found = figures(app)
    assert found["semel_inbox_handled_total", "sms"] == 1
    assert found["semel_inbox_duplicates_total", "sms"] == 1
    assert found["semel_inbox_failed_total", "sms"] == 2
    assert found["semel_inbox_retried_total", "sms"] == 1
    assert found["semel_inbox_dead_lettered_total", "sms"] == 1


def test_while_the_store_is_away_the_counts_are_there(app: App) -> None:
    app.endpoint("orders")

    def away() -> None:
        raise StoreUnavailable("away", fix="wait")

    found = {
        sample.name: sample.value
        for family in InboxMetrics("shop", app.telemetry, away, app._queues, lambda: 0).collect()
        for sample in family.samples
    }
    assert found["semel_inbox_store_up"] == 0
    assert "semel_inbox_rows" not in found
    assert found["semel_inbox_stored_total"] == 0


def test_the_lag_of_the_ledger_is_there_where_the_store_knows_it(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    horizon = SimpleNamespace(held_s=12.5, events=7)
    monkeypatch.setattr(type(app.store), "horizon", lambda self: horizon, raising=False)
    found = figures(app)
    assert found[("semel_ledger_horizon_lag_seconds",)] == 12.5
    assert found[("semel_ledger_horizon_entries",)] == 7


def test_it_goes_into_a_registry_of_the_users_own(app: App) -> None:
    registry = CollectorRegistry()
    registry.register(app.metrics())
    app.endpoint("orders")
    app.receive("orders", [order("1")])
    assert registry.get_sample_value("semel_inbox_stored_total", {"app": "shop", "endpoint": "orders"}) == 1


def test_no_count_is_lost_between_threads() -> None:
    counts = EndpointCounts()

    def count() -> None:
        for _ in range(2000):
            counts.ran(None)
            counts.took(0.001)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found, up_to, _ = counts.read()
    assert found[MessageCount.HANDLED] == 8000
    assert up_to[-1][1] == 8000


def test_a_pause_of_an_endpoint_is_no_reason_not_to_count(app: App) -> None:
    orders = app.endpoint("orders", errors=[on(ValueError).pause(0.01).then("park")])

    @orders.on(Order)
    def place(order: Order, db: sqlite3.Connection) -> None:
        raise ValueError("no")

    app.send(Order("1"), to="orders", id="1")
    app.drain()
    assert figures(app)["semel_inbox_parked_total", "orders"] == 1


def test_an_unknown_endpoint_adds_no_label(app: App) -> None:
    with pytest.raises(Exception, match="no endpoint"):
        app.receive("nobody", [order("1")])
    assert not [key for key in figures(app) if "nobody" in key]
