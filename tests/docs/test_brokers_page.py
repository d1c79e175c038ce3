"""The how-to about brokers is run: its code with a real NATS and, where there is one, a real RabbitMQ."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import aio_pika
import pytest
from tests.tools.brokers import (
    WITHOUT_RABBITMQ,
    JetStream,
    NatsServer,
    Rabbit,
    RabbitServer,
    has_rabbitmq,
    shared_nats,
    shared_rabbitmq,
)

from semel.config import load_config
from semel.inbox.sources import parse_source
from semel.runtime.brokers.listeners import make_listeners
from semel.runtime.inbox.service import InboxService
from semel.testing.transport_contract import until

pytestmark = pytest.mark.connected
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "brokers.md"
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
Names = dict[str, Any]


@pytest.fixture(scope="module")
def nats_server() -> Iterator[NatsServer]:
    with shared_nats() as server:
        yield server


@pytest.fixture(scope="module")
def rabbit() -> Iterator[RabbitServer]:
    with shared_rabbitmq() as server:
        yield server


def run(*numbers: int, **names: Any) -> Names:
    blocks = BLOCK.findall(PAGE.read_text())
    assert len(blocks) == 3
    for number in numbers:
        exec(compile(blocks[number], PAGE.name, "exec"), names)
    return names


def rows(name: str, table: str) -> list[str]:
    with closing(sqlite3.connect(name)) as db:
        return [id for (id,) in db.execute(f"SELECT * FROM {table}")]


def make(name: str, table: str) -> None:
    with closing(sqlite3.connect(name)) as db:
        db.execute(f"CREATE TABLE {table} (id text)")


async def test_the_shop_on_the_page(nats_server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = run(0, 1, NATS_URL=nats_server.url)
    app = page["app"]
    make("shop.db", "reservation")
    async with JetStream(nats_server.port) as stream:
        await page["publish"](stream)
        # once more after the stream has forgotten it: then the inbox is asked
        await stream.publish("orders.new", b'{"id": "order-7"}', headers={"ce-id": "order-7"})
        async with InboxService(app, listeners=make_listeners(app, app)) as service:
            await until(lambda: service.listeners[0].acked == 2, "both deliveries")
            await until(lambda: rows("shop.db", "reservation"), "the reservation")
            sent = await stream.subscribe("stock.>")
            await sent.next_msg(30)
        assert (await stream.stream_info("STOCK")).state.messages == 1
        assert (await stream.consumer_info("ORDERS", "shop-orders")).name == "shop-orders"
    assert rows("shop.db", "reservation") == ["order-7"]
    app.close()


@pytest.mark.skipif(not has_rabbitmq(), reason=WITHOUT_RABBITMQ)
async def test_the_bills_on_the_page(rabbit: RabbitServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    app = run(0, 2, NATS_URL="nats://127.0.0.1", AMQP_URL=rabbit.url)["billing"]
    make("billing.db", "charge")
    async with Rabbit(rabbit) as channel:
        await channel.declare_queue("bills", durable=True)
        for _ in range(2):
            await channel.default_exchange.publish(aio_pika.Message(b'{"id": "bill-7"}'), "bills")
        async with InboxService(app, listeners=make_listeners(app, app)) as service:
            await until(lambda: service.listeners[0].acked == 2, "both deliveries")
            await until(lambda: rows("billing.db", "charge"), "the charge")
    assert rows("billing.db", "charge") == ["bill-7"]
    app.close()


def test_the_file_on_the_page(tmp_path: Path) -> None:
    [text] = re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "semel.toml").write_text(text)
    [endpoint] = load_config(tmp_path / "semel.toml").inbox.endpoint
    assert parse_source(str(endpoint.listen)).subject == "orders.eu.>"
