"""A shop on SQLAlchemy's asyncio: orders and their charges, each in one transaction of a session."""

import asyncio
from dataclasses import dataclass

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from semel import App

engine = create_async_engine("sqlite+aiosqlite:///shop.db")
sessions = async_sessionmaker(engine)

shop = App("sqlite:///shop.db", name="shop")
shop.provide(AsyncSession, sessions.begin)
orders = shop.endpoint("orders")


@dataclass
class Order:
    id: str
    cents: int


@orders.on(Order)
async def charge(order: Order, session: AsyncSession) -> None:
    """Runs once for each order. The session is committed with the mark."""
    await session.execute(text("INSERT INTO charge VALUES (:id, :cents)"), {"id": order.id, "cents": order.cents})


async def place(order: Order, key: str) -> bool:
    """As a view or a consumer of yours would: False for what was placed before."""
    async with sessions.begin() as session:
        if not await shop.first_async(session, "requests", key):
            return False
        await session.execute(text("INSERT INTO orders VALUES (:id, :cents)"), {"id": order.id, "cents": order.cents})
        async with shop.outbox_async(session) as outbox:
            outbox.publish(order, to="endpoint:orders", id=order.id)
        return True


async def charges() -> list[tuple[str, int]]:
    async with sessions() as session:
        return [(id, cents) for id, cents in await session.execute(text("SELECT id, cents FROM charge ORDER BY id"))]


async def main() -> None:
    async with sessions.begin() as session:
        await session.execute(text("CREATE TABLE IF NOT EXISTS orders (id TEXT, cents INTEGER)"))
        await session.execute(text("CREATE TABLE IF NOT EXISTS charge (id TEXT, cents INTEGER)"))
    stop = asyncio.Event()
    handlers = asyncio.create_task(shop.serve(stop=stop))
    print("placed:", [await place(Order("order-7", 1999), "request-1") for _ in range(3)])
    while not await charges():  # noqa: ASYNC110 - the handlers may run in other processes
        await asyncio.sleep(0.05)
    stop.set()
    await handlers
    print("charged:", await charges())
    shop.close()
    await engine.dispose()


if __name__ == "__main__":
    asyncio.run(main())
