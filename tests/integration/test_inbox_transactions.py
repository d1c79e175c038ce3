"""Handlers, `app.first` and `app.outbox` with transactions in every form in which users have them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.integration.inbox_shop import Order, Receipt, Shop, check_conservation
from tests.integration.providers import FORMS, Form
from tests.integration.users import POSTGRES, SQLITE, Way, django_connection

from semel import Outbox
from semel.errors import InputError, LimitExceeded, StoreBusy
from semel.inbox.messages import envelope_of
from semel.kernel.ops import WorkState
from semel.runtime.inbox.providers import django_transaction
from semel.testing.postgres import new_database

pytestmark = pytest.mark.connected


@pytest.fixture(params=FORMS.values(), ids=list(FORMS))
def form(request: pytest.FixtureRequest) -> Form:
    found: Form = request.param
    return found


@pytest.fixture
def shop(form: Form, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Shop]:
    url = f"sqlite:///{tmp_path}/shop.db" if form.engine == "sqlite" else request.getfixturevalue("postgres_url")
    shop = Shop(url)
    engine = form.provide(shop.app, url) if form.provide is not None else None
    yield shop
    shop.app.close()
    if engine is not None:
        disposed = engine.dispose()
        if asyncio.iscoroutine(disposed):
            asyncio.run(disposed)


def handler(shop: Shop, form: Form, runs: list[str], fails: list[bool], **options: Any) -> None:
    """It writes, sends, and may raise after that."""
    endpoint = shop.app.endpoint("orders", **options)

    def say(order: Order, outbox: Outbox) -> None:
        runs.append(order.id)
        outbox.publish(Receipt(order.id), to="stream:receipts", id=f"receipt-{order.id}")
        outbox.cancel("never heard of", "stream:receipts")
        if fails:
            fails.pop()
            raise ValueError("not yet")

    if form.is_async:

        async def handle(order: Order, db: Any, outbox: Outbox) -> None:
            await form.insert(db, order.id)
            say(order, outbox)
    else:

        def handle(order: Order, db: Any, outbox: Outbox) -> None:  # type: ignore[misc]
            form.insert(db, order.id)
            say(order, outbox)

    handle.__annotations__["db"] = form.kind
    style = {"idempotency": "eager"} if options.get("mode") == "inline" else {}
    endpoint.on(Order, **style)(handle)


def test_a_handlers_effect_mark_and_outbox_are_one_commit(shop: Shop, form: Form) -> None:
    runs: list[str] = []
    handler(shop, form, runs, fails=[True])
    assert [shop.send("a"), shop.send("a")] == ["stored", "duplicate"]
    assert shop.drain() == 2
    assert (shop.effects(), shop.sent(), shop.state("a")) == (["a"], ["receipt-a"], WorkState.DONE)
    assert (runs, shop.open_outbox()) == (["a", "a"], [])
    check_conservation(shop, "orders")


def test_an_inline_handler_runs_once_and_is_rolled_back_whole(shop: Shop, form: Form) -> None:
    runs: list[str] = []
    handler(shop, form, runs, fails=[True], mode="inline")
    envelope = shop_order("a")
    ends = [asyncio.run(shop.app.deliver("orders", envelope)).value for _ in range(2)]
    assert (ends, runs, shop.effects()) == (["ack", "ack"], ["a", "a"], ["a"])
    shop.drain()
    assert shop.sent() == ["receipt-a"]
    check_conservation(shop, "orders")


def shop_order(id: str) -> Any:
    return envelope_of(Order(id), id)


# -- in the user's own code


WAYS = [
    *((f"sqlite/{name}", way) for name, way in SQLITE.items()),
    *((f"postgres/{name}", way) for name, way in POSTGRES.items()),
]


@pytest.fixture(params=WAYS, ids=[name for name, _ in WAYS])
def own(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Shop, Way]]:
    name, way = request.param
    url = f"sqlite:///{tmp_path}/shop.db" if name.startswith("sqlite/") else request.getfixturevalue("postgres_url")
    shop = Shop(url)
    yield shop, way
    shop.app.close()


def is_async(user: Any) -> bool:
    return asyncio.iscoroutinefunction(getattr(user.connection, "commit", None))


def first(shop: Shop, user: Any, id: str) -> bool:
    ask = shop.app.first_async if is_async(user) else shop.app.first
    return bool(user.wait(ask(user.connection, "charges", id)))


def publish(shop: Shop, user: Any, id: str) -> None:
    if not is_async(user):
        with shop.app.outbox(user.connection) as outbox:
            outbox.publish(Receipt(id), to="stream:receipts", id=id)
        return

    async def send() -> None:
        async with shop.app.outbox_async(user.connection) as outbox:
            outbox.publish(Receipt(id), to="stream:receipts", id=id)

    user.wait(send())


def test_first_and_outbox_go_with_the_users_own_commit(own: tuple[Shop, Way]) -> None:
    shop, way = own
    with way(shop.url) as user:
        assert first(shop, user, "a")
        user.execute("INSERT INTO effect VALUES ('lost')")
        publish(shop, user, "lost")
        user.rollback()
        assert first(shop, user, "a"), "what was rolled back was never first"
        user.execute("INSERT INTO effect VALUES ('a')")
        publish(shop, user, "r")
        user.commit()
        assert not first(shop, user, "a")
        user.commit()
    shop.drain()
    assert (shop.effects(), shop.sent()) == (["a"], ["r"])
    check_conservation(shop, "charges")


def answer(shop: Shop, user: Any, id: str) -> Any:
    ask = shop.app.first_async if is_async(user) else shop.app.first
    return user.wait(ask(user.connection, "charges", id))


def keep(user: Any, first: Any, result: bytes) -> None:
    user.wait(first.keep_async(result) if is_async(user) else first.keep(result))


def test_a_result_that_is_known_at_the_end_goes_with_the_mark(own: tuple[Shop, Way]) -> None:
    shop, way = own
    with way(shop.url) as user:
        keep(user, answer(shop, user, "a"), b"lost")
        user.rollback()
        found = answer(shop, user, "a")
        keep(user, found, b"not yet")
        keep(user, found, b'{"charged": "\xc3\xbc"}\x00')
        assert found.result == b'{"charged": "\xc3\xbc"}\x00'
        with pytest.raises(LimitExceeded, match="4,097 bytes"):
            keep(user, found, b"x" * 4097)
        user.commit()
        with pytest.raises(InputError, match="has ended"):
            keep(user, found, b"too late")
        user.rollback()
        again = answer(shop, user, "a")
        assert (bool(again), again.result) == (False, b'{"charged": "\xc3\xbc"}\x00')
        with pytest.raises(InputError, match="a duplicate has its result already"):
            keep(user, again, b"mine")
        user.commit()


@pytest.mark.parametrize(
    "own", [way for way in WAYS if way[0].startswith("postgres/")], indirect=True, ids=list(POSTGRES)
)
def test_first_does_not_wait_for_who_has_it(own: tuple[Shop, Way]) -> None:
    """On SQLite there is one write lock for all, and who waits for it cannot know for whom."""
    shop, way = own
    with way(shop.url) as user:
        assert first(shop, user, "a")
        with shop.connect() as other, pytest.raises(StoreBusy):
            shop.app.first(other, "charges", "a")
        user.commit()
    with shop.connect() as other:
        assert not shop.app.first(other, "charges", "a")


def test_first_and_outbox_refuse_autocommit(own: tuple[Shop, Way]) -> None:
    shop, way = own
    with way(shop.url, autocommit=True) as user:
        for call in (first, publish):
            with pytest.raises(InputError, match="no transaction is open") as refused:
                call(shop, user, "a")
            assert refused.value.fix
    assert shop.app.store.work("inbox/charges", "a") is None


def test_first_and_outbox_refuse_another_database(
    own: tuple[Shop, Way], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    shop, way = own
    if shop.is_sqlite:
        check_refused(shop, Shop(f"sqlite:///{tmp_path}/other.db"), way)
        return
    with new_database(request.getfixturevalue("postgres_server_url")) as url:
        check_refused(shop, Shop(url), way)


def check_refused(shop: Shop, other: Shop, way: Way) -> None:
    with way(other.url) as user:
        for call in (first, publish):
            with pytest.raises(InputError, match="another store") as refused:
                call(shop, user, "a")
            assert refused.value.fix
        user.rollback()
    other.app.close()


# -- Django


def test_an_atomic_block_that_raises_rolls_back(tmp_path: Path) -> None:
    shop = Shop(f"sqlite:///{tmp_path}/shop.db")
    alias = django_connection(shop.url).alias
    with suppress(ZeroDivisionError), django_transaction(alias)() as db:  # type: ignore[union-attr]
        db.cursor().execute("INSERT INTO effect VALUES ('a')")
        raise ZeroDivisionError
    assert shop.effects() == []
    shop.app.close()
