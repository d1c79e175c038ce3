"""The behaviours of the inbox that no other test shows, and that each of all of them has a test."""

from __future__ import annotations

import ast
import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.inbox_shop import Order, Shop, check_conservation
from tests.tools.paths import ROOT

from semel.errors import InputError
from semel.kernel.envelope import Envelope
from semel.kernel.ops import Applied, Duplicate, Unit, WorkState
from semel.runtime.inbox.service import InboxService
from semel.testing.limits import scaled

BEHAVIOURS = 27
ROW = re.compile(r"^\| (\d+) \| [^|]+ \| (.+) \|$", re.MULTILINE)
TEST = re.compile(r"`([^`:]+)::(\w+)`")


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.connected)])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    url = f"sqlite:///{tmp_path}/shop.db" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    made = Shop(url)
    yield made
    made.app.close()


def test_each_behaviour_has_a_test_that_exists() -> None:
    rows = ROW.findall((ROOT / "docs" / "reference" / "inbox.md").read_text())
    assert [int(number) for number, _ in rows] == list(range(1, BEHAVIOURS + 1))
    for number, tests in rows:
        named = TEST.findall(tests)
        assert named, number
        for path, name in named:
            assert name in functions(ROOT / path), f"behaviour {number}: {path} has no {name}"


def functions(path: Path) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}


def test_a_duplicate_is_an_answer_that_names_the_first(shop: Shop) -> None:
    shop.app.endpoint("orders").on(Order)(lambda order: None)
    op = shop.app.enqueue("orders", Envelope("a", type="Order", data=b'{"id":"a"}'))
    shop.app.store.commit([Unit((op,))])
    [outcome] = shop.app.store.commit([Unit((op,))])
    assert isinstance(outcome, Applied)
    assert isinstance(outcome.results[0], Duplicate)
    assert outcome.results[0].state is WorkState.READY
    check_conservation(shop, "orders")


@pytest.mark.parametrize("mode", ["durable", "inline"])
def test_what_cannot_be_read_is_kept_and_then_acknowledged(shop: Shop, mode: str) -> None:
    """Without an id nobody can make a message of it; brought again, it is kept once."""
    shop.app.endpoint("orders", mode=mode)
    with pytest.raises(InputError, match="id"):
        Envelope("")
    ids = [shop.app.keep_unreadable("orders", b"\xff no id", "it has no id") for _ in range(2)]
    [letter] = shop.app.dead_letters("orders")
    assert (ids, letter.cause) == ([letter.message] * 2, "it has no id")
    assert shop.row(letter.identity).envelope.data == b"\xff no id"
    assert shop.drain() == 0
    check_conservation(shop, "orders")


def test_a_worker_holds_no_more_than_it_may(shop: Shop) -> None:
    begun = asyncio.Event()
    go_on = asyncio.Event()
    endpoint = shop.app.endpoint("orders", buffer_high=4, buffer_low=3)

    @endpoint.on(Order)
    async def handle(order: Order) -> None:
        begun.set()
        await go_on.wait()

    async def serve() -> int:
        async with InboxService(shop.app), asyncio.timeout(scaled(30)):
            await begun.wait()
            claimed = await asyncio.to_thread(shop.app.store.work_rows, "inbox/orders", (WorkState.CLAIMED,))
            go_on.set()
            return len(claimed)

    for number in range(12):
        shop.send(str(number))
    assert 1 <= asyncio.run(serve()) <= 4
