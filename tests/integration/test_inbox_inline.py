"""Inline endpoints on real stores: the handler first, then the word to the transport."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.pq import TransactionStatus
from tests.integration.inbox_shop import Order, Shop, write

from semel import on
from semel.errors import ConfigError, InputError, StoreBusy, StoreUnavailable
from semel.inbox import inline as inline_steps
from semel.inbox.messages import envelope_of
from semel.inbox.reservation import reservation_of
from semel.inbox.settle import DeliveryEnd
from semel.kernel.envelope import Envelope
from semel.kernel.ops import Claim, Enqueue, Finish, Unit, WorkState
from semel.runtime.inbox import inline, late_marks
from semel.testing.limits import scaled, wait_until

pytestmark = pytest.mark.connected

ACK, GIVE_BACK = DeliveryEnd.ACK, DeliveryEnd.GIVE_BACK
STYLES = ["eager", "optimistic", "reserved"]


@pytest.fixture(params=["sqlite", "postgres"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    url = f"sqlite:///{tmp_path}/shop.db" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    made = Shop(url)
    yield made
    made.app.close()


def order(id: str) -> Envelope:
    return envelope_of(Order(id), id)


def deliver(shop: Shop, id: str) -> DeliveryEnd:
    return asyncio.run(shop.app.deliver("sms", order(id)))


def handler(shop: Shop, style: str, calls: list[str], **options: Any) -> None:
    """One with an effect in its transaction, or one without a transaction for the style that is made for that."""
    shop.app.endpoint("sms", mode="inline", **options)

    if style == "reserved":

        @shop.on("sms", idempotency=style)
        def call(order: Order) -> None:
            calls.append(order.id)
    else:

        @shop.on("sms", idempotency=style)
        def text(order: Order, db: Any) -> None:
            calls.append(order.id)
            write(db, order.id)


@pytest.mark.parametrize("style", STYLES)
def test_a_message_takes_effect_once_and_both_deliveries_are_acknowledged(shop: Shop, style: str) -> None:
    calls: list[str] = []
    handler(shop, style, calls)
    assert [deliver(shop, "a"), deliver(shop, "a"), deliver(shop, "b")] == [ACK, ACK, ACK]
    if style == "reserved":
        assert calls == ["a", "b"]
    else:
        assert sorted(shop.effects()) == ["a", "b"]
    # only the optimistic one runs for a duplicate, and is rolled back
    assert calls.count("a") == (2 if style == "optimistic" else 1)


@pytest.mark.parametrize("style", ["eager", "optimistic"])
def test_a_duplicate_is_one_line_and_no_failure(shop: Shop, style: str, caplog: pytest.LogCaptureFixture) -> None:
    handler(shop, style, [])
    deliver(shop, "a")
    with caplog.at_level("INFO", "semel.runtime.inbox"):
        deliver(shop, "a")
    [record] = [each for each in caplog.records if each.name.startswith("semel.runtime.inbox")]
    assert (record.levelname, record.exc_info) == ("INFO", None)
    assert record.getMessage() == "a at sms is a duplicate: it was handled before"


@pytest.mark.parametrize("style", STYLES)
def test_what_is_remembered_has_no_body(shop: Shop, style: str) -> None:
    handler(shop, style, [])
    deliver(shop, "a")
    row = shop.row("a", "sms")
    assert (row.state, row.envelope.data) == (WorkState.DONE, b"")


def test_without_a_style_a_duplicate_runs_again(shop: Shop) -> None:
    calls: list[str] = []
    handler(shop, "none", calls)
    assert [deliver(shop, "a"), deliver(shop, "a")] == [ACK, ACK]
    assert shop.effects() == ["a", "a"]


@pytest.mark.parametrize("style", ["eager", "optimistic"])
def test_a_handler_that_fails_is_rolled_back_and_may_be_delivered_again(shop: Shop, style: str) -> None:
    fails = [True]
    shop.app.endpoint("sms", mode="inline", errors=[on(ValueError).requeue().discard()])

    @shop.on("sms", idempotency=style)
    def text(order: Order, db: Any) -> None:
        write(db, order.id)
        if fails.pop():
            fails.append(False)
            raise ValueError("not yet")
        fails.append(False)

    assert deliver(shop, "a") is GIVE_BACK
    assert shop.effects() == []
    assert deliver(shop, "a") is ACK
    assert shop.effects() == ["a"]


def test_retries_happen_while_the_broker_waits(shop: Shop) -> None:
    attempts: list[str] = []
    shop.app.endpoint("sms", mode="inline", errors=[on(ValueError).retry([0, 0]).dead_letter()])

    @shop.on("sms", idempotency="eager")
    def text(order: Order, db: Any) -> None:
        attempts.append(order.id)
        write(db, order.id)
        if len(attempts) < 3:
            raise ValueError("not yet")

    assert deliver(shop, "a") is ACK
    assert (len(attempts), shop.effects()) == (3, ["a"])


def test_one_that_cannot_succeed_is_kept_as_a_dead_letter_before_it_is_acknowledged(shop: Shop) -> None:
    shop.app.endpoint("sms", mode="inline")

    @shop.on("sms", idempotency="eager")
    def text(order: Order, db: Any) -> None:
        raise ValueError("never")

    assert deliver(shop, "a") is ACK
    [letter] = shop.app.dead_letters("sms")
    assert (letter.message, letter.cause) == ("a", "ValueError: never")
    assert "ada" in letter.body


def test_a_failed_attempt_holds_no_locks_when_its_connection_is_closed(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that has not noticed yet would let the next attempt find the message taken."""
    shop, seen = Shop(postgres_url), []

    class Watched(psycopg.Connection[Any]):
        def close(self) -> None:
            if not self.closed:
                seen.append(self.info.transaction_status)
            super().close()

    shop.app.endpoint("sms", mode="inline")

    @shop.on("sms", idempotency="eager")
    def text(order: Order, db: Any) -> None:
        raise ValueError("never")

    connect = psycopg.connect
    monkeypatch.setattr(psycopg, "connect", Watched.connect)
    deliver(shop, "a")
    monkeypatch.setattr(psycopg, "connect", connect)
    assert seen == [TransactionStatus.IDLE] * 3
    shop.app.close()


@pytest.mark.parametrize("style", STYLES)
def test_what_is_scheduled_is_stored_with_its_body_and_a_worker_goes_on_with_it(shop: Shop, style: str) -> None:
    calls: list[str] = []
    shop.app.endpoint("sms", mode="inline", errors=[on(ValueError).schedule([0, 0]).dead_letter()])

    def text(order: Order) -> None:
        calls.append(order.customer)
        if len(calls) < 2:
            raise ValueError("not yet")

    if style == "reserved":
        shop.on("sms", idempotency=style)(text)
    else:

        @shop.on("sms", idempotency=style)
        def text_in_transaction(order: Order, db: Any) -> None:
            text(order)

    assert deliver(shop, "a") is ACK
    kept = shop.row("a", "sms")
    # what is scheduled for now is due at once
    assert kept.state in (WorkState.SCHEDULED, WorkState.READY)
    assert b"ada" in kept.envelope.data
    assert shop.app.drain() == 1
    assert (calls, shop.state("a", "sms")) == (["ada", "ada"], WorkState.DONE)
    assert deliver(shop, "a") is ACK


@pytest.mark.parametrize("end", ["dead_letter", "park"])
def test_a_reserved_message_that_is_given_up_is_kept_with_its_body_and_can_be_replayed(shop: Shop, end: str) -> None:
    calls: list[str] = []
    shop.app.endpoint("sms", mode="inline", errors=[on(ValueError).then(end)])

    @shop.on("sms", idempotency="reserved")
    def text(order: Order) -> None:
        calls.append(order.customer)
        if len(calls) < 2:
            raise ValueError("not today")

    assert [deliver(shop, "a"), deliver(shop, "a")] == [ACK, ACK]
    [letter] = shop.app.dead_letters("sms")
    assert ("ada" in letter.body, letter.cause, calls) == (True, "ValueError: not today", ["ada"])
    shop.app.replay("sms", "a")
    assert shop.app.drain() == 1
    assert (calls, shop.state("a", "sms")) == (["ada", "ada"], WorkState.DONE)


def test_a_reserved_message_that_is_discarded_leaves_no_open_row(shop: Shop) -> None:
    shop.app.endpoint("sms", mode="inline", errors=[on(ValueError).discard()])

    @shop.on("sms", idempotency="reserved")
    def text(order: Order) -> None:
        raise ValueError("nobody needs it")

    assert deliver(shop, "a") is ACK
    assert shop.state("a", "sms") is WorkState.DONE


def test_a_message_of_an_unknown_type_is_a_dead_letter(shop: Shop) -> None:
    handler(shop, "eager", [])
    odd = Envelope("odd", type="odd", data=b"{}")
    assert asyncio.run(shop.app.deliver("sms", odd)) is ACK
    [letter] = shop.app.dead_letters("sms")
    assert "'odd'" in letter.cause


def test_a_duplicate_of_what_is_being_handled_is_given_back(shop: Shop) -> None:
    """An acknowledgement would lose it, should the one who has it fail."""
    second: list[DeliveryEnd] = []
    shop.app.endpoint("sms", mode="inline")

    @shop.on("sms", idempotency="reserved")
    async def call(order: Order) -> None:
        second.append(await shop.app.deliver("sms", envelope_of(order, order.id)))

    assert deliver(shop, "a") is ACK
    assert second == [GIVE_BACK]


@pytest.mark.parametrize(("on_crash", "calls_wanted"), [("retry", ["a"]), ("drop", []), ("park", [])])
def test_an_expired_claim_means_what_the_endpoint_says(shop: Shop, on_crash: str, calls_wanted: list[str]) -> None:
    calls: list[str] = []
    handler(shop, "reserved", calls, on_crash=on_crash)
    died = Enqueue("inbox/sms", "a", reservation_of(order("a")), scope="inbox/shop/id")
    shop.app.store.commit([Unit((died, Claim("inbox/sms", "a process that died", lease_s=0.0, identity="a")))])
    end = deliver(shop, "a")
    assert calls == calls_wanted
    wanted = WorkState.PARKED if on_crash == "park" else WorkState.DONE
    assert shop.state("a", "sms") is wanted
    assert end is ACK


def test_a_mark_that_cannot_be_written_fails_nothing_and_is_written_later(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    handler(shop, "reserved", calls)
    commit, failures = inline.commit_unit, [True]

    def fail_once(store: Any, ops: Any) -> Any:
        if len(calls) == 1 and failures:
            failures.clear()
            raise StoreUnavailable("the store is away", fix="wait")
        return commit(store, ops)

    monkeypatch.setattr(inline, "commit_unit", fail_once)
    monkeypatch.setattr(late_marks, "RETRY", late_marks.RetryPolicy(interval_s=0.01))
    assert deliver(shop, "a") is ACK
    wait_until(lambda: shop.state("a", "sms") is WorkState.DONE, "the mark")
    assert calls == ["a"]


def test_a_store_that_is_down_means_no_acknowledgement(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    handler(shop, "reserved", calls)

    def away(store: Any, ops: Any) -> Any:
        raise StoreUnavailable("the store is away", fix="wait")

    monkeypatch.setattr(inline, "commit_unit", away)
    assert deliver(shop, "a") is GIVE_BACK
    assert calls == []


def test_a_busy_store_means_no_acknowledgement(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    handler(shop, "reserved", [])

    def busy(store: Any, ops: Any) -> Any:
        raise StoreBusy("somebody else has it", fix="wait")

    monkeypatch.setattr(inline, "commit_unit", busy)
    assert deliver(shop, "a") is GIVE_BACK


def test_a_durable_endpoint_stores_and_does_not_deliver(shop: Shop) -> None:
    shop.app.endpoint("sms")
    with pytest.raises(InputError, match="durable"):
        deliver(shop, "a")


def test_a_style_that_takes_a_transaction_is_refused_for_a_handler_without_one(shop: Shop) -> None:
    shop.app.endpoint("sms", mode="inline")

    @shop.on("sms", idempotency="eager")
    def call(order: Order) -> None:
        pass

    with pytest.raises(ConfigError, match="eager"):
        assert shop.app.handlers


def test_nothing_is_stored_where_nobody_would_handle_it(shop: Shop) -> None:
    handler(shop, "eager", [])
    with pytest.raises(InputError, match="inline"):
        shop.send("a", to="sms")
    with pytest.raises(InputError, match="inline"):
        shop.app.receive("sms", [order("a")])


# -- what is kept with its body goes on like a row of a durable endpoint


def failing(shop: Shop, style: str, runs: list[str], rule: Any, **options: Any) -> list[bool]:
    """A handler that fails until it is mended: `mended.append(True)`."""
    mended: list[bool] = []
    shop.app.endpoint("sms", mode="inline", errors=[rule], **options)

    def run(order: Order) -> None:
        runs.append(order.id)
        if not mended:
            raise ValueError("not yet")

    if style in ("reserved", "none"):
        shop.on("sms", idempotency=style)(run)
    else:

        @shop.on("sms", idempotency=style)
        def text(order: Order, db: Any) -> None:
            write(db, order.id)
            run(order)

    return mended


@pytest.mark.parametrize("style", [*STYLES, "none"])
def test_a_replayed_dead_letter_is_handled_once_without_the_transport(shop: Shop, style: str) -> None:
    runs: list[str] = []
    mended = failing(shop, style, runs, on(ValueError).dead_letter())
    assert deliver(shop, "a") is ACK
    assert shop.drain() == 0, "a dead letter waits for a person"
    [letter] = shop.app.dead_letters("sms")
    assert (letter.state, "ada" in letter.body) == ("dead", True)
    mended.append(True)
    shop.app.replay("sms", "a")
    if style != "none":
        # a reserved handler takes the row itself; the others see that somebody is to handle it
        assert deliver(shop, "a") is (ACK if style == "reserved" else GIVE_BACK)
    # a reserved one is claimed by whoever comes first, here the transport
    assert shop.drain() == (0 if style == "reserved" else 1)
    assert shop.state("a", "sms") is WorkState.DONE
    if style != "none":
        assert deliver(shop, "a") is ACK
    # only the optimistic one runs for duplicates, and is rolled back
    assert len(runs) == (4 if style == "optimistic" else 2)
    if style in ("eager", "optimistic"):
        assert shop.effects() == ["a"]


@pytest.mark.parametrize("style", STYLES)
def test_a_replay_and_a_redelivery_at_the_same_time_have_one_effect(shop: Shop, style: str) -> None:
    """The transport brings it while the runner has it."""
    runs: list[str] = []
    ends: list[DeliveryEnd] = []
    shop.app.endpoint("sms", mode="inline", errors=[on(ValueError).dead_letter()])

    async def run(order: Order) -> None:
        runs.append(order.id)
        if len(runs) == 1:
            raise ValueError("not yet")
        if len(runs) == 2:
            ends.append(await shop.app.deliver("sms", envelope_of(order, order.id)))

    if style == "reserved":
        shop.on("sms", idempotency=style)(run)
    else:

        @shop.on("sms", idempotency=style)
        async def text(order: Order, db: Any) -> None:
            await run(order)
            await asyncio.to_thread(write, db, order.id)

    assert deliver(shop, "a") is ACK
    shop.app.replay("sms", "a")
    assert shop.drain() == 1
    assert shop.state("a", "sms") is WorkState.DONE
    assert set(ends) <= {ACK, GIVE_BACK}
    if style == "reserved":
        assert runs == ["a", "a"]
    else:
        assert shop.effects() == ["a"]


def test_a_parked_message_has_the_body_of_the_redelivery_and_waits_for_a_person(shop: Shop) -> None:
    calls: list[str] = []
    handler(shop, "reserved", calls, on_crash="park")
    died = Enqueue("inbox/sms", "a", reservation_of(order("a")), scope="inbox/shop/id")
    shop.app.store.commit([Unit((died, Claim("inbox/sms", "a process that died", lease_s=0.0, identity="a")))])
    assert [deliver(shop, "a"), deliver(shop, "a"), deliver(shop, "a")] == [ACK] * 3
    [letter] = shop.app.dead_letters("sms")
    assert (letter.state, "ada" in letter.body, calls) == ("parked", True, [])
    assert "may have happened" in letter.cause
    shop.app.replay("sms", "a")
    assert shop.drain() == 1
    assert (calls, shop.state("a", "sms")) == (["a"], WorkState.DONE)


@pytest.mark.parametrize(("on_crash", "calls_wanted"), [("retry", ["a"]), ("drop", []), ("park", [])])
def test_a_runner_never_handles_a_reservation_and_forgets_no_crash(
    shop: Shop, on_crash: str, calls_wanted: list[str]
) -> None:
    calls: list[str] = []
    handler(shop, "reserved", calls, on_crash=on_crash, errors=[on(Exception).dead_letter()])
    died = Enqueue("inbox/sms", "a", reservation_of(order("a")), scope="inbox/shop/id")
    shop.app.store.commit([Unit((died, Claim("inbox/sms", "a process that died", lease_s=0.0, identity="a")))])
    assert shop.drain() == 0
    # where it is dropped nobody needs its body: it is settled at once
    state = WorkState.DONE if on_crash == "drop" else WorkState.DEFERRED
    assert (calls, shop.state("a", "sms"), shop.app.dead_letters("sms")) == ([], state, [])
    assert deliver(shop, "a") is ACK
    assert calls == calls_wanted


def test_a_reserved_message_that_failed_is_not_in_doubt(shop: Shop) -> None:
    """It was given back, so the next delivery runs it, whatever a crash would mean."""
    runs: list[str] = []
    mended = failing(shop, "reserved", runs, on(ValueError).requeue(5), on_crash="park")
    assert deliver(shop, "a") is GIVE_BACK
    assert shop.drain() == 0
    mended.append(True)
    assert deliver(shop, "a") is ACK
    assert (runs, shop.state("a", "sms")) == (["a", "a"], WorkState.DONE)


@pytest.mark.parametrize("style", [*STYLES, "none"])
def test_a_scheduled_retry_is_stored_before_it_is_acknowledged(shop: Shop, style: str) -> None:
    runs: list[str] = []
    mended = failing(shop, style, runs, on(ValueError).schedule([0.01]).dead_letter())
    assert deliver(shop, "a") is ACK
    assert b"ada" in shop.row("a", "sms").envelope.data
    mended.append(True)
    wait_until(lambda: shop.drain() == 1, "its time")
    assert (len(runs), shop.state("a", "sms")) == (2, WorkState.DONE)


def test_a_discarded_message_is_remembered(shop: Shop) -> None:
    runs: list[str] = []
    failing(shop, "eager", runs, on(ValueError).discard())
    assert [deliver(shop, "a"), deliver(shop, "a")] == [ACK, ACK]
    assert (runs, shop.state("a", "sms")) == (["a"], WorkState.DONE)


def test_a_pause_gives_deliveries_back(shop: Shop) -> None:
    runs: list[str] = []
    failing(shop, "eager", runs, on(ValueError).pause(60).then("discard"))
    assert [deliver(shop, "a"), deliver(shop, "b")] == [ACK, GIVE_BACK]
    assert runs == ["a"]


@pytest.mark.parametrize("style", [*STYLES, "none"])
def test_a_dead_letter_that_was_stored_and_not_yet_put_aside_is_not_lost(
    shop: Shop, style: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process loses the store, or its life, between the two commits."""
    runs: list[str] = []
    failing(shop, style, runs, on(ValueError).dead_letter(), lease_s=scaled(0.2))
    commit, away = inline.commit_unit, [True]

    def lose_the_end(store: Any, ops: Any) -> Any:
        if away and any(isinstance(op, Finish) and op.to is WorkState.DEAD for op in ops):
            away.clear()
            raise StoreUnavailable("the store is away", fix="wait")
        return commit(store, ops)

    monkeypatch.setattr(inline, "commit_unit", lose_the_end)
    monkeypatch.setattr(inline_steps, "KEEPING_S", 0.01)
    assert deliver(shop, "a") is GIVE_BACK
    assert b"ada" in shop.row("a", "sms").envelope.data
    wait_until(lambda: shop.drain() == 1, "its turn")
    [letter] = shop.app.dead_letters("sms")
    assert (letter.state, "ada" in letter.body, len(runs)) == ("dead", True, 2)
