"""Buffered endpoints: acknowledged when a message has come, kept in memory until it is done."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from semel import App, on
from semel.errors import InputError, LimitExceeded, StoreUnavailable
from semel.inbox.breaker import BreakerOptions
from semel.inbox.endpoint import EndpointOptions
from semel.inbox.messages import envelope_of
from semel.inbox.settle import DeliveryEnd
from semel.kernel.envelope import Envelope
from semel.kernel.ops import WorkState
from semel.runtime.inbox import buffered
from semel.runtime.inbox.buffered import Buffer
from semel.runtime.inbox.service import InboxService
from semel.stores.memory import MemoryStore
from semel.testing.limits import scaled, wait_until

ACK, GIVE_BACK = DeliveryEnd.ACK, DeliveryEnd.GIVE_BACK


@dataclass
class Order:
    id: str


def order(id: str) -> Envelope:
    return envelope_of(Order(id), id)


def make(run: Callable[[Order], object], *, style: str | None = None, **options: object) -> App:
    app = App(MemoryStore(), name="shop")

    @app.endpoint("sms", mode="buffered", **options).on(Order, idempotency=style)
    async def handle(order: Order) -> None:
        result = run(order)
        if asyncio.iscoroutine(result):
            await result

    return app


def deliver(app: App, *ids: str) -> list[DeliveryEnd]:
    async def all_of_them() -> list[DeliveryEnd]:
        return [await app.deliver("sms", order(id)) for id in ids]

    return asyncio.run(all_of_them())


def test_it_is_acknowledged_on_arrival_and_handled_later() -> None:
    runs: list[str] = []
    app = make(lambda order: runs.append(order.id))
    assert deliver(app, "a", "b", "a") == [ACK] * 3
    assert runs == []
    assert app.drain() == 3
    assert runs == ["a", "b", "a"], "duplicates are found on request only"


def test_on_request_a_duplicate_is_not_handled() -> None:
    runs: list[str] = []
    app = make(lambda order: runs.append(order.id), style="reserved")
    deliver(app, "a", "a", "b")
    app.drain()
    assert deliver(app, "a") == [ACK]
    app.drain()
    assert sorted(runs) == ["a", "b"]
    row = app.store.work("inbox/sms", "a")
    assert row is not None
    assert (row.state, row.envelope.data) == (WorkState.DONE, b"")


def test_retries_happen_in_memory_and_dead_letters_are_stored_with_their_body() -> None:
    runs: list[str] = []

    def run(order: Order) -> None:
        runs.append(order.id)
        if order.id == "bad" or len(runs) < 3:
            raise ValueError("not yet")

    app = make(run, errors=[on(ValueError).requeue(1).retry([0, 0]).dead_letter()])
    deliver(app, "a")
    app.drain()
    assert runs == ["a"] * 3
    deliver(app, "bad")
    app.drain(scaled(30))
    assert runs.count("bad") == 4
    [letter] = app.dead_letters("sms")
    assert (letter.message, letter.body) == ("bad", '{"id":"bad"}')


def test_a_replayed_dead_letter_is_handled() -> None:
    runs: list[str] = []

    def run(order: Order) -> None:
        runs.append(order.id)
        if len(runs) == 1:
            raise ValueError("not yet")

    app = make(run, errors=[on(ValueError).dead_letter()])
    deliver(app, "a")
    app.drain()
    app.replay("sms", "a")
    assert app.drain() == 1
    assert (runs, app.dead_letters("sms")) == (["a", "a"], [])


def test_what_meets_a_store_that_is_away_stays_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[str] = []
    app = make(lambda order: runs.append(order.id), style="reserved")
    away, commit = [True, True], app.store.commit

    def sometimes(units: object, *args: object, **options: object) -> object:
        is_ours = any(getattr(op, "identity", "") == "a" for unit in units for op in unit.ops)  # type: ignore[attr-defined]
        if is_ours and away:
            away.pop()
            raise StoreUnavailable("the store is away", fix="wait")
        return commit(units, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(app.store, "commit", sometimes)
    deliver(app, "a")
    assert app.drain(scaled(30)) == 1
    assert (runs, away) == (["a"], [])


async def test_a_full_buffer_lets_nothing_in_until_it_is_down_to_its_low_mark() -> None:
    buffer = Buffer(EndpointOptions("sms", mode="buffered", buffer_high=3, buffer_low=1))  # type: ignore[arg-type]
    for id in "abc":
        assert await buffer.put(order(id))
    waiting = asyncio.create_task(buffer.put(order("d")))
    with pytest.raises(LimitExceeded, match="3 messages"):
        buffer.put_now([order("e")])
    for left in (2, 1):
        with pytest.raises(LimitExceeded):
            buffer.put_now([order("e")])
        assert not waiting.done()
        buffer.end(await buffer.take())
        assert len(buffer) == left
    assert await asyncio.wait_for(waiting, scaled(30))
    assert buffer.ids == ["c", "d"]


async def test_of_many_that_are_received_at_once_all_or_none_are_taken() -> None:
    app = make(lambda order: None, buffer_high=3, buffer_low=1)
    with pytest.raises(LimitExceeded):
        app.receive("sms", [order(id) for id in "abcd"])
    assert app.receive("sms", [order(id) for id in "abc"]) == ["buffered"] * 3


async def test_back_pressure_holds_the_transport_while_handlers_are_slow() -> None:
    go, runs = asyncio.Event(), []

    async def run(order: Order) -> None:
        await go.wait()
        runs.append(order.id)

    app = make(run, buffer_high=2, buffer_low=1)
    async with InboxService(app):
        assert [await app.deliver("sms", order(id)) for id in "ab"] == [ACK, ACK]
        third = asyncio.create_task(app.deliver("sms", order("c")))
        await asyncio.sleep(0)
        assert not third.done()
        go.set()
        assert await asyncio.wait_for(third, scaled(30)) is ACK
    assert runs == ["a", "b", "c"], "what is in memory is finished before the service ends"


async def test_a_process_that_ends_says_what_it_gave_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    begun = asyncio.Event()

    async def run(order: Order) -> None:
        begun.set()
        await asyncio.Event().wait()

    app = make(run, buffer_high=2, buffer_low=1)
    monkeypatch.setattr(buffered.BufferRunner.close, "__defaults__", (0.01,))
    async with InboxService(app):
        assert [await app.deliver("sms", order(id)) for id in "ab"] == [ACK, ACK]
        waiting = asyncio.create_task(app.deliver("sms", order("c")))
        await begun.wait()
    assert await asyncio.wait_for(waiting, scaled(30)) is GIVE_BACK, "the transport still has it"
    assert "gave up 2 messages that it had in memory: a, b" in caplog.text
    assert await app.deliver("sms", order("d")) is GIVE_BACK


async def test_an_open_breaker_keeps_messages_in_memory() -> None:
    opened = asyncio.Event()

    def run(order: Order) -> None:
        opened.set()
        raise ZeroDivisionError(order.id)

    app = make(run, breaker=BreakerOptions(minimum=1, share=0.5, pause_s=3600), errors=[
        on(ZeroDivisionError).discard()
    ])  # fmt: skip
    app.receive("sms", [order("a"), order("b")])
    async with InboxService(app) as service:
        await opened.wait()
        async with asyncio.timeout(scaled(30)):
            await asyncio.to_thread(wait_until, lambda: app.buffers["sms"].ids == ["b"], "the end of the first")
        assert service.handled == 1


@pytest.mark.asyncio
async def test_a_paused_endpoint_does_not_hold_up_the_end_of_its_process(caplog: pytest.LogCaptureFixture) -> None:
    app = make(lambda order: pytest.fail("it is paused"))
    app.gate("sms").hold(True)
    await app.deliver("sms", order("a"))
    async with InboxService(app) as service:
        [runner] = service._runners
        await asyncio.wait_for(runner.close(timeout_s=scaled(600)), scaled(10))
    assert "gave up 1 messages that it had in memory: a" in caplog.text


def test_a_buffered_endpoint_stores_nothing_that_is_sent() -> None:
    app = make(lambda order: None)
    with pytest.raises(InputError, match="buffered"):
        app.send(Order("a"), to="sms")
