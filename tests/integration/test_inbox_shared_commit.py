"""Handlers that share a commit: what one of them does wrong is not the others' loss, and nothing happens twice."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.integration.inbox_shop import Order, Receipt, Shop, write

from semel import App, Outbox
from semel.kernel.ledger import Kind
from semel.kernel.ops import Applied, Claim, Finish, Unit, WorkState
from semel.runtime.inbox import shared_commit
from semel.runtime.inbox.service import InboxService
from semel.testing import limits

pytestmark = pytest.mark.connected

IDS = [f"{number:02}" for number in range(10)]


@pytest.fixture(params=["sqlite", "postgres"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    url = f"sqlite:///{tmp_path}/shop.db" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    shop = Shop(url)
    shop.app.endpoint("orders", share_commit=5)
    yield shop
    shop.app.close()


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many handlers ran in each transaction that was shared to its end."""
    counts: list[int] = []
    run = shared_commit._run_shared

    def counted(runs: Any, **how: Any) -> Any:
        ends = run(runs, **how)
        counts.append(len(runs))
        return ends

    monkeypatch.setattr(shared_commit, "_run_shared", counted)
    return counts


def send_all(shop: Shop) -> None:
    for id in IDS:
        shop.send(id)


def test_handlers_share_transactions_and_each_message_takes_effect_once(shop: Shop, shared: list[int]) -> None:
    @shop.on("orders")
    def handle(order: Order, db: Any, outbox: Outbox) -> None:
        write(db, order.id)
        outbox.publish(Receipt(order.id), to="stream:receipts")

    send_all(shop)
    assert shop.drain() == 10
    assert sorted(shop.effects()) == IDS
    assert len(shop.sent()) == 10
    assert {shop.state(id) for id in IDS} == {WorkState.DONE}
    assert shop.history("03") == [Kind.ACCEPTED, Kind.HANDLED]
    assert 1 < max(shared) <= 5


def test_cancels_share_the_commit_as_well(shop: Shop, shared: list[int]) -> None:
    runs: Counter[str] = Counter()

    @shop.on("orders")
    def handle(order: Order, db: Any, outbox: Outbox) -> None:
        runs[order.id] += 1
        outbox.cancel(f"reminder {order.id}", "stream:receipts")
        outbox.cancel("never heard of", "stream:receipts")

    with shop.connect() as db:
        write(db, "00")
        with shop.app.outbox(db) as outbox:
            for id in IDS:
                outbox.schedule(Receipt(id), to="stream:receipts", after_s=3600, id=f"reminder {id}")
    send_all(shop)
    shop.drain()
    assert shop.open_outbox() == []
    assert 1 < max(shared) <= 5
    assert set(runs.values()) == {1}


def test_one_that_fails_is_rolled_back_alone_and_tried_again(shop: Shop, shared: list[int]) -> None:
    runs: Counter[str] = Counter()

    @shop.on("orders")
    def handle(order: Order, db: Any) -> None:
        runs[order.id] += 1
        write(db, order.id)
        if order.id == "02" and shop.row("02").attempts < 3:
            raise ValueError("not yet")

    send_all(shop)
    shop.drain()
    assert sorted(shop.effects()) == IDS
    assert shop.history("02") == [Kind.ACCEPTED, Kind.FAILED, Kind.FAILED, Kind.HANDLED]
    again = [id for id in IDS if id != "02" and runs[id] > 1]
    assert len(again) <= (0 if shop.is_sqlite else 4), "the others kept their first run, or ran once more with it"
    assert max(runs[id] for id in IDS if id != "02") <= 2
    assert shared


def test_after_a_failure_there_are_savepoints_for_a_while(
    shop: Shop, shared: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On PostgreSQL, where each of them is a round trip. SQLite always has them."""
    monkeypatch.setattr(shared_commit, "CAREFUL", 3)
    points: list[str] = []
    run_behind = shared_commit._run_behind

    def counted(savepoints: Any, run: Any, *more: Any) -> Any:
        if not isinstance(savepoints, shared_commit._NoSavepoints):
            points.append(run.envelope.id)
        return run_behind(savepoints, run, *more)

    monkeypatch.setattr(shared_commit, "_run_behind", counted)
    fails = {"00"}

    @shop.on("orders")
    def handle(order: Order, db: Any) -> None:
        write(db, order.id)
        if order.id in fails:
            fails.remove(order.id)
            raise ValueError("not yet")

    for number in range(60):
        shop.send(f"{number:02}")
    shop.drain()
    assert sorted(shop.effects()) == [f"{number:02}" for number in range(60)]
    if not shop.is_sqlite:
        assert "00" in points
        assert len(points) < 30, "there were three such transactions"
    else:
        assert len(set(points)) > 30


def test_one_that_breaks_the_transaction_takes_nobody_with_it(shop: Shop) -> None:
    """It has caught the database's error: the handler returns, and nothing more is possible in its transaction."""

    @shop.on("orders")
    def handle(order: Order, db: Any) -> None:
        write(db, order.id)
        if order.id == "02":
            db.close()

    send_all(shop)
    shop.drain()
    assert sorted(shop.effects()) == [id for id in IDS if id != "02"]
    assert shop.state("02") is WorkState.DEAD


def test_a_commit_that_fails_lets_each_run_by_itself(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: Counter[str] = Counter()
    together: list[int] = []
    apply_all = shared_commit._apply_all

    def fails_once(store: Any, transaction: Any, good: Any) -> None:
        apply_all(store, transaction, good)
        together.append(len(good))
        monkeypatch.setattr(shared_commit, "_apply_all", apply_all)
        raise ConnectionError("gone before the commit")

    monkeypatch.setattr(shared_commit, "_apply_all", fails_once)

    @shop.on("orders")
    def handle(order: Order, db: Any) -> None:
        runs[order.id] += 1
        write(db, order.id)

    send_all(shop)
    shop.drain()
    assert sorted(shop.effects()) == IDS
    handled = [entry.event for id in IDS for entry in shop.app.store.history(id) if entry.event.kind is Kind.HANDLED]
    assert [event.attempt for event in handled] == [1] * len(IDS), "to run again by itself is no new attempt"
    [again] = together
    assert again > 1, "what was there at once shared a commit; how much it was depends on the machine"
    assert sorted(runs.values()) == [1] * (len(IDS) - again) + [2] * again


def test_a_commit_in_doubt_that_happened_is_not_repeated(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit went through and its answer was lost: each runs again by itself, and is refused by its fence."""
    run_shared = shared_commit._run_shared

    def loses_the_answer(runs: Any, **how: Any) -> Any:
        run_shared(runs, **how)
        monkeypatch.setattr(shared_commit, "_run_shared", run_shared)
        raise ConnectionError("the answer to COMMIT was lost")

    monkeypatch.setattr(shared_commit, "_run_shared", loses_the_answer)

    @shop.on("orders")
    def handle(order: Order, db: Any) -> None:
        write(db, order.id)

    send_all(shop)
    shop.drain()
    assert sorted(shop.effects()) == IDS
    assert {tuple(shop.history(id)) for id in IDS} == {(Kind.ACCEPTED, Kind.HANDLED)}


def test_a_stale_fence_keeps_only_its_own_message_from_happening(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another worker has taken one of them over just before they run."""
    run_shared = shared_commit._run_shared

    def too_late(runs: Any, **how: Any) -> Any:
        if shop.row("02").owner != "another" and any(run.envelope.id == "02" for run in runs):
            take_over(shop, "02")
        return run_shared(runs, **how)

    monkeypatch.setattr(shared_commit, "_run_shared", too_late)

    @shop.on("orders")
    def handle(order: Order, db: Any) -> None:
        write(db, order.id)

    send_all(shop)
    others = [id for id in IDS if id != "02"]
    asyncio.run(serve_until(shop, lambda: {shop.state(id) for id in others} == {WorkState.DONE}))
    assert sorted(shop.effects()) == others
    assert shop.row("02").owner == "another"


def take_over(shop: Shop, id: str) -> None:
    row = shop.row(id)
    release = Finish(row.queue, row.identity, WorkState.READY, fence=row.fence)
    claim = Claim(row.queue, "another", lease_s=limits.scaled(60), identity=row.identity)
    [outcome] = shop.app.store.commit([Unit((release, claim))])
    assert isinstance(outcome, Applied)


async def serve_until(shop: Shop, is_done: Callable[[], bool]) -> None:
    async with InboxService(shop.app):
        await asyncio.to_thread(limits.wait_until, is_done, "the others are handled")


def test_the_order_of_a_key_holds(shop: Shop) -> None:
    seen: dict[str, list[str]] = {"ada": [], "bob": []}

    @shop.on("orders", key=lambda order: order.customer)
    def handle(order: Order, db: Any) -> None:
        write(db, order.id)
        seen[order.customer].append(order.id)

    for id in IDS:
        shop.send(id, customer="ada" if int(id) % 2 else "bob")
    shop.drain()
    assert seen == {"ada": IDS[1::2], "bob": IDS[::2]}


# -- killed in the middle

PROGRAM = """
import os, sqlite3, time
from dataclasses import dataclass
from pathlib import Path
from semel import App

app = App("sqlite:///shop.db", name="shop")
orders = app.endpoint("orders", share_commit=5, lease_s=1.0)

@dataclass
class Order:
    id: str
    customer: str

@orders.on(Order)
def handle(order: Order, db: sqlite3.Connection):
    db.execute("INSERT INTO effect VALUES (?)", (order.id,))
    if order.id == "03" and not Path("killed").exists():
        Path("middle").touch()
        time.sleep(600)
"""


def test_whoever_dies_in_the_middle_leaves_nothing_behind_and_another_does_it_all(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(PROGRAM)
    app = App(f"sqlite:///{tmp_path}/shop.db", name="shop")
    app.endpoint("orders").on(Order)(_never)
    assert app.store
    with closing(sqlite3.connect(tmp_path / "shop.db")) as db:
        db.execute("CREATE TABLE effect (id text)")
    for id in IDS:
        app.send(Order(id), to="orders", id=id)
    command = [sys.executable, "-m", "semel", "inbox", "run", "shop:app"]
    first = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL)
    limits.wait_until((tmp_path / "middle").exists, "a handler in the middle of a shared transaction")
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    assert _effects(tmp_path) == []
    (tmp_path / "killed").touch()
    second = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL)
    try:
        limits.wait_until(lambda: len(_effects(tmp_path)) >= 10, "all messages handled")
    finally:
        second.terminate()
        second.wait()
    assert sorted(_effects(tmp_path)) == IDS
    app.close()


def _never(order: Order) -> None:
    raise AssertionError("this process only looks")


def _effects(folder: Path) -> list[str]:
    with closing(sqlite3.connect(folder / "shop.db", timeout=limits.scaled(30))) as db:
        return [id for (id,) in db.execute("SELECT id FROM effect")]
