"""An application: its twin for tests, and what it refuses before anything runs."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import psycopg
import pytest

from semel import App, Envelope, Outbox, StylePolicy, on
from semel.errors import ConfigError, InputError
from semel.inbox.endpoint import Style
from semel.inbox.outbox import Destination
from semel.stores.memory import MemoryStore


@dataclass
class Order:
    id: str


class Session:
    """As a user's own."""


def test_handlers_that_ask_for_sqlite_get_a_file_that_goes_with_the_twin(tmp_path: Path) -> None:
    app = App(f"sqlite:///{tmp_path}/real.db", name="shop")

    @app.endpoint("orders").on(Order)
    def handle(order: Order, db: sqlite3.Connection) -> None:
        db.execute("INSERT INTO effect VALUES (?)", (order.id,))

    twin = app.memory()
    file = Path(twin.url.removeprefix("sqlite:///"))
    twin.send(Order("a"), to="orders", id="a")
    with closing(sqlite3.connect(file)) as db, db:
        db.execute("CREATE TABLE effect (id text)")
    assert twin.drain() == 1
    with closing(sqlite3.connect(file)) as db:
        assert db.execute("SELECT id FROM effect").fetchall() == [("a",)]
    twin.close()
    assert not file.exists()
    assert not (tmp_path / "real.db").exists(), "the application itself was never opened"


def test_handlers_without_a_connection_run_in_memory() -> None:
    app, runs = App("sqlite:///never.db", name="shop"), []

    @app.endpoint("orders").on(Order)
    def handle(order: Order) -> None:
        runs.append(order.id)

    twin = app.memory()
    twin.send(Order("a"), to="orders")
    twin.drain()
    assert (runs, twin.url) == (["a"], "memory:")


@pytest.mark.parametrize("kind", [psycopg.Connection, psycopg.AsyncConnection, Session])
def test_a_connection_that_memory_cannot_have_is_refused(kind: type) -> None:
    app = App("sqlite:///never.db", name="shop")
    app.provide(Session, Session)

    def handle(order: Order, db: object) -> None:
        raise AssertionError("it is never called")

    handle.__annotations__["db"] = kind
    app.endpoint("orders").on(Order)(handle)
    with pytest.raises(ConfigError, match=kind.__qualname__) as refused:
        app.memory()
    assert "test database" in refused.value.fix


# -- refused where it is written, not when a message comes


@pytest.mark.parametrize("keep_s", [-1, 0, float("nan"), float("inf"), "7 days"])
def test_an_identity_is_kept_for_a_time(keep_s: Any) -> None:
    with pytest.raises(ConfigError, match="keep_s is") as refused:
        App("memory:", keep_s=keep_s)
    assert "above 0" in refused.value.fix


def test_styles_are_a_policy() -> None:
    wrong: Any = "eager"
    with pytest.raises(ConfigError, match="styles is 'eager'") as refused:
        App("memory:", styles=wrong)
    assert "StylePolicy(" in refused.value.fix
    assert App("memory:", styles=StylePolicy(with_transaction=Style.EAGER)).styles.with_transaction is Style.EAGER


def test_rules_are_given_one_by_one() -> None:
    app, wrong = App("memory:"), cast("Any", [on(ValueError).park()])
    for register in (
        lambda: app.errors(wrong),
        lambda: app.endpoint("orders", errors=[wrong]),
        lambda: app.endpoint("bills").on(Order, errors=[wrong]),
    ):
        with pytest.raises(ConfigError, match="is not a rule") as refused:
            register()
        assert "one by one" in refused.value.fix


def test_a_periodic_message_that_cannot_be_sent_is_refused_when_it_is_set_up() -> None:
    app = App("memory:")
    with pytest.raises(InputError, match="'orders' is not a destination") as refused:
        app.every("@daily", Order("a"), to="orders", name="daily")
    assert "endpoint:<name>" in refused.value.fix
    with pytest.raises(InputError, match="a dict has no type"):
        app.every("@daily", {"id": "a"}, to="endpoint:orders", name="daily")
    app.every("@daily", {"id": "a"}, to="endpoint:orders", name="daily", type="order.placed")
    app.every("@hourly", lambda: {"id": "a"}, to="endpoint:orders", name="made each time", type="order.placed")
    assert [each.attributes for each in app.periodic] == [{"type": "order.placed"}] * 2


@pytest.mark.parametrize("mode", ["durable", "buffered"])
def test_a_transport_brings_envelopes(mode: str) -> None:
    app, wrong = App("memory:"), cast("Any", {"id": "a"})
    app.endpoint("orders", mode=mode)
    with pytest.raises(InputError, match="a dict is not an envelope") as refused:
        app.receive("orders", [wrong])
    assert "Envelope(id" in refused.value.fix
    with pytest.raises(InputError, match="a dict is not an envelope"):
        asyncio.run(app.deliver("orders", wrong))


def test_a_wait_is_a_number() -> None:
    app = App("memory:")
    app.endpoint("orders").on(Order)(lambda order: None)
    with pytest.raises(InputError, match="after_s is nan"):
        app.send(Order("a"), to="orders", after_s=float("nan"))


# -- who sends


def test_any_scheme_with_a_sender_is_a_destination() -> None:
    app, sent = App("memory:"), []

    async def produce(destination: Destination, envelope: Envelope) -> None:
        sent.append((destination.to, envelope.id))

    @app.endpoint("orders").on(Order)
    def handle(order: Order, outbox: Outbox) -> None:
        outbox.publish(order, to="kafka:orders.new", id="k")

    twin = app.memory()
    twin.sender("kafka", produce)
    twin.send(Order("a"), to="orders")
    twin.drain()
    assert sent == [("orders.new", "k")]


def test_a_scheme_without_a_sender_is_refused_by_publish() -> None:
    outbox = App("memory:").context.outbox("handle", None)
    with pytest.raises(InputError, match="nobody sends to kafka: kafka:orders") as refused:
        outbox.publish(Order("a"), to="kafka:orders")
    assert "app.sender('kafka', send)" in refused.value.fix


@pytest.mark.parametrize("name", ["kafka:", "Kafka", "", "stream", "endpoint", None])
def test_a_sender_has_a_name_that_a_destination_can_have(name: Any) -> None:
    with pytest.raises(ConfigError, match="nobody to send to"):
        App("memory:").sender(name, print)
    with pytest.raises(ConfigError, match="sends nothing"):
        App("memory:").sender("kafka", cast("Any", "kafka://broker"))


def test_in_memory_a_result_is_kept_with_its_mark_too() -> None:
    store = MemoryStore()
    app, connection = App(store), store.connect()
    first = app.first(connection, "charges", "a")
    first.keep(b"charged")
    connection.commit()
    with pytest.raises(InputError, match="has ended"):
        first.keep(b"too late")
    assert app.first(connection, "charges", "a").result == b"charged"
    connection.close()


# -- inside an event loop


def test_a_coroutine_sends_receives_and_drains() -> None:
    app, runs = App("sqlite:///never.db", name="shop"), []

    @app.endpoint("orders").on(Order)
    def handle(order: Order) -> None:
        runs.append(order.id)

    async def story() -> None:
        twin = app.memory()
        assert await twin.send_async(Order("a"), to="orders", id="a") == ("a", "stored")
        brought = Envelope("b", type="Order", data=b'{"id": "b"}')
        assert await twin.receive_async("orders", [brought]) == ["stored"]
        for call, fix in ((twin.drain, "drain_async"), (twin.run, "serve")):
            with pytest.raises(InputError, match="inside an event loop") as refused:
                call()
            assert fix in refused.value.fix
        assert await twin.drain_async() == 2

    asyncio.run(story())
    assert runs == ["a", "b"]
