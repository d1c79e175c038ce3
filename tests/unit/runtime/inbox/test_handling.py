"""One run of a handler: its writes, its mark and what it sends are one commit, or nothing is."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from semel import App, Outbox
from semel.errors import DuplicateMessage, StoreBusy
from semel.inbox.messages import envelope_of
from semel.kernel.effects import OwnTransaction
from semel.kernel.ops import Duplicate, Enqueue, Fresh, Remember, WorkState
from semel.runtime.inbox.handling import HandlerRun, _check_new


@dataclass
class Order:
    id: str


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    made = App(f"sqlite:///{tmp_path}/shop.db", name="shop")
    with sqlite3.connect(tmp_path / "shop.db") as db:
        db.execute("CREATE TABLE effect (id text)")
    db.close()
    yield made
    made.close()


def run_of(app: App, id: str) -> HandlerRun:
    envelope = envelope_of(Order(id), id)
    [handler] = app.handlers["orders"].values()
    who = app.identity_of("orders", envelope)
    return HandlerRun(app.context, handler, envelope, who, (Remember(who.queue, who.identity),))


def effects(app: App) -> list[str]:
    db = sqlite3.connect(app.url.removeprefix("sqlite:///"))
    try:
        return [id for (id,) in db.execute("SELECT id FROM effect")]
    finally:
        db.close()


def write(order: Order, db: sqlite3.Connection) -> None:
    db.execute("INSERT INTO effect VALUES (?)", (order.id,))


def test_the_effect_and_its_mark_are_one_commit(app: App) -> None:
    app.endpoint("orders").on(Order)(write)
    assert run_of(app, "a").in_thread() is OwnTransaction.FINISHED
    with pytest.raises(DuplicateMessage):
        run_of(app, "a").in_thread()
    assert effects(app) == ["a"], "the second effect was rolled back with its mark"


def test_what_a_failing_handler_did_is_rolled_back(app: App) -> None:
    @app.endpoint("orders").on(Order)
    def handle(order: Order, db: sqlite3.Connection) -> None:
        write(order, db)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_of(app, "a").in_thread()
    assert effects(app) == []


async def test_a_coroutine_on_a_connection_that_blocks_does_the_same(app: App) -> None:
    @app.endpoint("orders").on(Order)
    async def handle(order: Order, db: sqlite3.Connection) -> None:
        write(order, db)

    assert await run_of(app, "a").on_loop() is OwnTransaction.FINISHED
    assert effects(app) == ["a"]


def test_without_a_transaction_what_it_sends_is_left_to_the_caller(app: App) -> None:
    @app.endpoint("orders").on(Order)
    def handle(order: Order, outbox: Outbox) -> None:
        outbox.publish(order, "stream:done")

    ops = run_of(app, "a").in_thread()
    assert isinstance(ops, tuple)
    assert [type(op) for op in ops if isinstance(op, Enqueue)] == [Enqueue]


def test_a_duplicate_of_one_that_is_still_open_is_not_acknowledged() -> None:
    _check_new([Fresh(None)])  # type: ignore[arg-type]
    with pytest.raises(DuplicateMessage):
        _check_new([Duplicate(None, state=WorkState.DONE)])  # type: ignore[arg-type]
    with pytest.raises(StoreBusy):
        _check_new([Duplicate(None, state=WorkState.CLAIMED)])  # type: ignore[arg-type]
