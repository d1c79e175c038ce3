"""A handler that ends its transaction itself: it is found out, and its effect does not happen again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.orm import Session, sessionmaker
from tests.integration.inbox_shop import Order, Shop, write
from tests.integration.users import engine_of

from semel.inbox.messages import envelope_of
from semel.kernel.ops import WorkState

pytestmark = pytest.mark.connected


@pytest.fixture(params=["sqlite", "postgres"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    url = f"sqlite:///{tmp_path}/shop.db" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    made = Shop(url)
    yield made
    made.app.close()


def commits(db: Any, id: str) -> None:
    write(db, id)
    db.commit()


def leaves_a_block(db: Any, id: str) -> None:
    """On sqlite3 `with db` commits; on psycopg `transaction()` does where nothing was begun before."""
    with db.transaction() if isinstance(db, psycopg.Connection) else db:
        write(db, id)


def writes_before_and_after(db: Any, id: str) -> None:
    write(db, id)
    db.commit()
    write(db, f"{id} more")


def block_before_and_after(db: Any, id: str) -> None:
    leaves_a_block(db, id)
    write(db, f"{id} more")


def rolls_back(db: Any, id: str) -> None:
    write(db, id)
    db.rollback()


def autocommits(db: Any, id: str) -> None:
    db.autocommit = True
    write(db, id)


def statement(db: Any, id: str) -> None:
    write(db, id)
    db.execute("COMMIT")


EVERYWHERE = [commits, leaves_a_block, rolls_back, statement]
POSTGRES_ONLY = [writes_before_and_after, block_before_and_after, autocommits]


def check_found_out(shop: Shop, act: Callable[[Any, str], None], **options: Any) -> None:
    runs: list[str] = []
    if options:
        shop.app.endpoint("orders", **options)

    @shop.on("orders")
    def handle(order: Order, db: Any) -> None:
        runs.append(order.id)
        act(db, order.id)

    shop.send("a")
    shop.drain()
    [letter] = shop.app.dead_letters("orders")
    assert "has ended its transaction itself" in letter.cause
    assert (letter.attempts, runs) == (1, ["a"]), "once more would be its effect once more"


@pytest.mark.parametrize("act", EVERYWHERE)
def test_it_is_a_dead_letter_at_once(shop: Shop, act: Callable[[Any, str], None]) -> None:
    check_found_out(shop, act)


@pytest.mark.parametrize("act", POSTGRES_ONLY)
def test_on_postgresql_it_is_found_out_whatever_comes_after(postgres_url: str, act: Callable[[Any, str], None]) -> None:
    shop = Shop(postgres_url)
    check_found_out(shop, act)
    shop.app.close()


def only_reads(db: Any, id: str) -> None:
    db.execute("SELECT id FROM effect").fetchall()


def nothing(db: Any, id: str) -> None:
    pass


def saves_and_goes_back(db: Any, id: str) -> None:
    write(db, id)
    db.execute("SAVEPOINT mine")
    write(db, "never")
    db.execute("ROLLBACK TO mine")


def nests(db: Any, id: str) -> None:
    """Inside a transaction it is a savepoint."""
    write(db, id)
    if isinstance(db, psycopg.Connection):
        with db.transaction(), db.cursor() as cursor:
            cursor.executemany("SELECT %s", [("a",), ("b",)])


@pytest.mark.parametrize("act", [only_reads, nothing, saves_and_goes_back, nests, write])
@pytest.mark.parametrize("mode", ["durable", "inline"])
def test_what_is_harmless_is_left_alone(shop: Shop, act: Callable[[Any, str], None], mode: str) -> None:
    shop.app.endpoint("orders", mode=mode)

    @shop.on("orders", **({"idempotency": "eager"} if mode == "inline" else {}))
    def handle(order: Order, db: Any) -> None:
        act(db, order.id)

    for id in ("a", "b"):
        if mode == "inline":
            asyncio.run(shop.app.deliver("orders", envelope_of(Order(id), id)))
        else:
            shop.send(id)
            shop.drain()
    assert shop.app.dead_letters("orders") == []
    assert [shop.state(id) for id in ("a", "b")] == [WorkState.DONE] * 2


@pytest.mark.parametrize("style", ["eager", "optimistic"])
def test_an_inline_handler_is_found_out_too(shop: Shop, style: str, caplog: pytest.LogCaptureFixture) -> None:
    runs: list[str] = []
    shop.app.endpoint("orders", mode="inline")

    @shop.on("orders", idempotency=style)
    def handle(order: Order, db: Any) -> None:
        runs.append(order.id)
        commits(db, order.id)

    assert asyncio.run(shop.app.deliver("orders", envelope_of(Order("a"), "a"))).value == "ack"
    assert (runs, shop.effects()) == (["a"], ["a"])
    assert "has ended its transaction itself" in caplog.text


def test_an_async_connection_is_watched_too(postgres_url: str) -> None:
    shop = Shop(postgres_url)

    @shop.app.endpoint("orders").on(Order)
    async def handle(order: Order, db: psycopg.AsyncConnection) -> None:
        await db.execute("INSERT INTO effect VALUES ('a')")
        await db.commit()

    shop.send("a")
    shop.drain()
    assert "has ended its transaction itself" in shop.app.dead_letters("orders")[0].cause
    assert shop.effects() == ["a"]
    shop.app.close()


@pytest.mark.parametrize("driver", ["psycopg", "pysqlite"])
def test_a_session_is_watched_too(driver: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    url = f"sqlite:///{tmp_path}/shop.db" if driver == "pysqlite" else request.getfixturevalue("postgres_url")
    shop = Shop(url)
    engine = engine_of(sqlalchemy.create_engine, driver, url)
    shop.app.provide(Session, sessionmaker(engine).begin)

    @shop.app.endpoint("orders").on(Order)
    def handle(order: Order, db: Session) -> None:
        db.execute(sqlalchemy.text("INSERT INTO effect VALUES ('a')"))
        db.commit()

    shop.send("a")
    shop.drain()
    assert "has ended its transaction itself" in shop.app.dead_letters("orders")[0].cause
    assert shop.effects() == ["a"]
    shop.app.close()
    engine.dispose()


def test_who_shared_the_commit_does_not_run_again_either(shop: Shop) -> None:
    """Their effect was committed with the other's, and their mark was not."""
    runs: list[str] = []
    shop.app.endpoint("orders", share_commit=10)

    @shop.on("orders")
    def handle(order: Order, db: Any) -> None:
        runs.append(order.id)
        write(db, order.id)
        if order.id == "b":
            db.commit()

    shop.app.receive("orders", [envelope_of(Order(id), id) for id in "abc"])
    shop.drain()
    assert (sorted(runs), sorted(shop.effects())) == (["a", "b", "c"], ["a", "b", "c"])
    assert {letter.message for letter in shop.app.dead_letters("orders")} >= {"b"}
    assert shop.state("c") is WorkState.DONE
