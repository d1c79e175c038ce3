"""Users' transactions behind PgBouncer in transaction pooling mode: each may have another server connection."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from tests.integration.inbox_shop import Order, Receipt, Shop, check_conservation, write
from tests.integration.users import engine_of
from tests.tools.pgbouncer import pgbouncer, program

from semel import Outbox
from semel.kernel.ops import WorkState

pytestmark = [
    pytest.mark.connected,
    pytest.mark.skipif(program() is None, reason="there is no PgBouncer: scripts/system-needs.toml names its package"),
]
MESSAGES = 12


@pytest.fixture
def shop(postgres_url: str) -> Iterator[Shop]:
    """Semel's own connections go to the server; those of the handlers by way of the pooler."""
    shop = Shop(postgres_url)
    yield shop
    shop.app.close()


@pytest.fixture
def pooled(shop: Shop) -> Iterator[str]:
    with pgbouncer(shop.url) as url:
        yield url


def check_all(shop: Shop) -> None:
    ids = [f"{number:02}" for number in range(MESSAGES)]
    for id in ids:
        assert [shop.send(id), shop.send(id)] == ["stored", "duplicate"]
    assert shop.drain() == MESSAGES + 1, "the first fails once"
    assert sorted(shop.effects()) == ids
    assert sorted(shop.sent()) == sorted(f"receipt-{id}" for id in ids)
    assert {shop.state(id) for id in ids} == {WorkState.DONE}
    check_conservation(shop, "orders")


def test_psycopg_without_prepared_statements(shop: Shop, pooled: str) -> None:
    fails = [True]
    shop.app.provide(psycopg.Connection, lambda: psycopg.connect(pooled, prepare_threshold=None))
    shop.app.endpoint("orders", parallel=4)

    @shop.on("orders")
    def handle(order: Order, db: Any, outbox: Outbox) -> None:
        write(db, order.id)
        outbox.publish(Receipt(order.id), to="stream:receipts", id=f"receipt-{order.id}")
        if fails:
            fails.pop()
            raise ValueError("not yet")

    check_all(shop)
    with psycopg.connect(pooled, prepare_threshold=None) as db:
        assert shop.app.first(db, "charges", "a")
        assert not shop.app.first(db, "charges", "a")


def test_asyncpg_without_a_statement_cache(shop: Shop, pooled: str) -> None:
    fails = [True]
    engine = engine_of(
        create_async_engine, "asyncpg", pooled, poolclass=sqlalchemy.NullPool,
        connect_args={"statement_cache_size": 0, "prepared_statement_name_func": lambda: ""},
    )  # fmt: skip
    shop.app.provide(AsyncSession, async_sessionmaker(engine).begin)

    async def handle(order: Order, db: AsyncSession, outbox: Outbox) -> None:
        await db.execute(sqlalchemy.text("INSERT INTO effect VALUES (:id)"), {"id": order.id})
        outbox.publish(Receipt(order.id), to="stream:receipts", id=f"receipt-{order.id}")
        if fails:
            fails.pop()
            raise ValueError("not yet")

    shop.app.endpoint("orders", parallel=4).on(Order)(handle)
    check_all(shop)
    asyncio.run(engine.dispose())
