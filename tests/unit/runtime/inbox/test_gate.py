"""What an endpoint may take: nothing while its breaker is open, one message to try, then all again."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

import pytest

from semel import App, on
from semel.errors import ConfigError, MessageRefused, StoreUnavailable
from semel.inbox.breaker import BreakerOptions
from semel.inbox.messages import envelope_of
from semel.inbox.reservation import RESERVED_HEADER
from semel.inbox.settle import DeliveryEnd
from semel.kernel.envelope import Envelope
from semel.kernel.ops import WorkState
from semel.runtime.inbox.gate import EndpointGate
from semel.runtime.inbox.operating import queue_status, set_paused
from semel.runtime.inbox.service import InboxService
from semel.stores.memory import MemoryStore
from semel.testing.limits import wait_until

OPTIONS = BreakerOptions(window_s=100.0, minimum=2, share=0.5, pause_s=30.0)
BROKEN = ConnectionError("the bank does not answer")


def opened(told: list[float | None] | None = None) -> EndpointGate:
    heard: list[float | None] = [] if told is None else told
    gate = EndpointGate("orders", OPTIONS, heard.append)
    for ticket in "ab":
        assert gate.enter(ticket, 0.0)
        gate.failed(ticket, BROKEN, 0.0)
    return gate


def test_it_opens_tries_one_and_closes_and_says_so_once_each(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    told: list[float | None] = []
    gate = opened(told)
    assert (gate.room(29.0, 8), gate.enter("c", 29.0), gate.next_deadline(29.0)) == (0, False, 30.0)
    assert gate.room(30.0, 8) == 1
    assert gate.enter("c", 30.0)
    assert (gate.room(30.0, 8), gate.next_deadline(30.0), gate.takes_nothing(30.0)) == (0, None, False)
    gate.succeeded("c", 31.0)
    assert gate.room(31.0, 8) == 8
    assert told == [30.0, None]
    lines = [record.getMessage() for record in caplog.records]
    assert [line.split(" is ")[1].split()[0].rstrip(":") for line in lines] == ["open", "closed"]
    assert "the bank does not answer" in lines[0]


def test_one_that_fails_when_tried_opens_it_again() -> None:
    gate = opened()
    assert gate.enter("c", 30.0)
    gate.failed("c", BROKEN, 30.0)
    assert (gate.room(59.0, 8), gate.room(60.0, 8)) == (0, 1)


@pytest.mark.parametrize("error", [MessageRefused("odd", fix="x"), StoreUnavailable("away", fix="x")])
def test_what_says_nothing_about_handlers_is_not_counted(error: Exception) -> None:
    gate = EndpointGate("orders", OPTIONS)
    for ticket in range(5):
        assert gate.enter(ticket, 0.0)
        gate.failed(ticket, error, 0.0)
    assert gate.room(0.0, 8) == 8
    gate = opened()
    assert gate.enter("c", 30.0)
    gate.leave("c")
    assert gate.room(30.0, 8) == 1, "another may be tried"


def test_a_pause_takes_nothing_until_it_is_over() -> None:
    gate = EndpointGate("orders", None)
    gate.pause(10.0)
    assert (gate.room(9.0, 3), gate.takes_nothing(9.0), gate.next_deadline(9.0)) == (0, True, 10.0)
    assert (gate.room(10.0, 3), gate.takes_nothing(10.0), gate.next_deadline(10.0)) == (3, False, None)


@dataclass
class Order:
    id: str


def test_a_durable_endpoint_leaves_what_is_stored_while_its_breaker_is_open() -> None:
    app = App(MemoryStore(), name="shop")
    now, works, runs = [4_000_000_000.0], [False], []
    app.clock = lambda: now[0]
    once = on(ConnectionError).dead_letter()

    @app.endpoint("orders", breaker=OPTIONS, errors=[once], failed_head="passes").on(Order)
    def handle(order: Order) -> None:
        runs.append(order.id)
        if not works[0]:
            raise BROKEN

    for id in "abcde":
        app.send(Order(id), to="orders", id=id)
    assert app.drain() == 2
    states = [app.store.work("inbox/orders", id) for id in "cde"]
    assert [row and row.state for row in states] == [WorkState.READY] * 3, "anybody may claim them"
    assert [row and row.attempts for row in states] == [0] * 3
    wait_until(lambda: queue_status(app)[0].breaker != "", "the word of the breaker")
    assert app.drain() == 0
    now[0] += 31
    assert app.drain() == 1, "one to try, and it fails"
    now[0] += 31
    works[0] = True
    assert app.drain() == 2
    assert sorted(runs) == list("abcde")
    wait_until(lambda: queue_status(app)[0].breaker == "", "the word that it is closed")


def test_a_breaker_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="BreakerOptions"):
        App(MemoryStore()).endpoint("orders", breaker=True)


def test_a_message_that_calls_itself_a_reservation_is_handled_all_the_same() -> None:
    app, runs = App(MemoryStore(), name="shop"), []

    @app.endpoint("orders").on("note")
    def handle(body: bytes) -> None:
        runs.append(body)

    app.receive("orders", [Envelope("a", type="note", headers={RESERVED_HEADER: "1"})])
    assert app.drain() == 1
    assert runs == [b""]


async def test_what_an_operator_pauses_takes_no_deliveries_where_the_application_runs() -> None:
    app, runs = App(MemoryStore(), name="shop"), []

    @app.endpoint("sms", mode="inline").on(Order)
    async def handle(order: Order) -> None:
        runs.append(order.id)

    set_paused(app, "sms", True)
    message = envelope_of(Order("a"), "a")
    async with InboxService(app):
        assert await app.deliver("sms", message) is DeliveryEnd.GIVE_BACK
        set_paused(app, "sms", False)
        await asyncio.to_thread(
            wait_until, lambda: not app.gate("sms").takes_nothing(app.clock()), "the end of the pause"
        )
        assert await app.deliver("sms", message) is DeliveryEnd.ACK
        set_paused(app, "sms", True)
        await asyncio.to_thread(wait_until, lambda: app.gate("sms").takes_nothing(app.clock()), "the pause")
    assert not app.gate("sms").takes_nothing(app.clock()), "who runs nothing hears of no end"
    assert runs == ["a"]


async def test_each_attempt_of_an_inline_delivery_counts_and_an_open_breaker_gives_deliveries_back() -> None:
    app, runs = App(MemoryStore(), name="shop"), []
    three = BreakerOptions(window_s=100.0, minimum=3, share=1.0, pause_s=3600.0)

    @app.endpoint("sms", mode="inline", breaker=three, errors=[on(ConnectionError).retry([0, 0]).discard()]).on(Order)
    async def handle(order: Order) -> None:
        runs.append(order.id)
        raise BROKEN

    ends = [await app.deliver("sms", envelope_of(Order(id), id)) for id in "ab"]
    assert (ends, runs) == ([DeliveryEnd.ACK, DeliveryEnd.GIVE_BACK], ["a"] * 3)
