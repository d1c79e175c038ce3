"""Where exactly once would leak if nobody looked: each place has a test that fails without its closing.

docs/reference/inbox.md has the list of all of them.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.integration.inbox_shop import Order, Receipt, Shop, check_conservation, write

from semel import Envelope, Outbox, on
from semel.errors import ConfigError, InputError, StoreBusy
from semel.inbox.outbox import SINCE_HEADER, Destination, is_in_doubt
from semel.kernel.ledger import Kind
from semel.kernel.ops import WorkRow, WorkState
from semel.kernel.retry import RetryPolicy
from semel.testing.limits import scaled

DAY_US = 24 * 3600 * 1_000_000
NO_WAIT = RetryPolicy(interval_s=0.01, factor=1.0, interval_max_s=0.01)


@pytest.fixture(params=["sqlite", "postgres"])
def shop(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[Shop]:
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/shop.db"
    else:
        url = request.getfixturevalue("postgres_url")
    shop = Shop(url)
    yield shop
    shop.app.close()


def in_threads(calls: int, call: Callable[[], object]) -> list[object]:
    """All at once; an exception is an answer too."""
    ready, answers = threading.Barrier(calls), []

    def one() -> None:
        ready.wait(scaled(10))
        try:
            answers.append(call())
        except Exception as error:
            answers.append(error)

    threads = [threading.Thread(target=one) for _ in range(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


# -- a dead letter is replayed twice


def test_a_dead_letter_that_two_operators_replay_is_handled_once(shop: Shop) -> None:
    repaired: list[str] = []

    @shop.on("orders", errors=[on(ValueError).dead_letter()])
    def handle(order: Order, db: Any) -> None:
        if not repaired:
            raise ValueError("not yet")
        write(db, order.id)

    shop.send("a")
    shop.drain()
    repaired.append("now")
    answers = in_threads(4, lambda: shop.app.replay("orders", "a"))
    assert answers.count(None) == 1, answers
    assert all(isinstance(answer, StoreBusy | InputError) for answer in answers if answer is not None)
    shop.drain()
    with pytest.raises(InputError, match="it is no dead letter"):
        shop.app.replay("orders", "a")
    assert shop.effects() == ["a"]
    assert shop.history("a").count(Kind.REPLAYED) == 1
    check_conservation(shop, "orders")


# -- a scheduled message is cancelled while it is being sent


def test_a_message_that_is_being_sent_can_no_longer_be_cancelled(shop: Shop) -> None:
    """The cancel comes when the other side has it and the row is not done yet: it is sent once, and not cancelled."""
    sent: list[str] = []

    async def send(destination: Destination, envelope: Envelope) -> None:
        sent.append(envelope.id)
        await asyncio.to_thread(cancel)

    def cancel() -> None:
        with shop.connect() as db, shop.app.outbox(db) as outbox:
            outbox.cancel("reminder", "nats:reminders")

    shop.app.sender("nats", send)
    with shop.connect() as db, shop.app.outbox(db) as outbox:
        outbox.schedule(Receipt("a"), to="nats:reminders", after_s=0, id="reminder")
    shop.drain()
    assert sent == ["reminder"]
    assert shop.history("reminder") == [Kind.ACCEPTED, Kind.HANDLED]
    assert shop.open_outbox() == []


# -- a relay that was halted for longer than its receiver remembers


class OtherStore:
    """Somebody who takes an id once, as long as it remembers it."""

    def __init__(self) -> None:
        self.taken: list[str] = []
        self.remembered: set[str] = set()
        self.loses_answer = True

    async def send(self, destination: Destination, envelope: Envelope) -> None:
        if envelope.id not in self.remembered:
            self.taken.append(envelope.id)
            self.remembered.add(envelope.id)
        if self.loses_answer:
            raise ConnectionError("the answer was lost")


def halted(shop: Shop, other: OtherStore, monkeypatch: pytest.MonkeyPatch, for_us: int, send: Any = None) -> None:
    """A message is taken, its answer lost, and the relay halted for so long."""
    shop.app.sender("nats", send or other.send)
    now = shop.app.context.now
    monkeypatch.setattr("semel.runtime.inbox.service.RELAY_RETRY", NO_WAIT)
    tried = asyncio.Event()

    async def once() -> None:
        async def send_and_tell(destination: Destination, envelope: Envelope) -> None:
            try:
                await other.send(destination, envelope)
            finally:
                tried.set()

        shop.app.senders["nats"] = send_and_tell
        serving = asyncio.ensure_future(shop.app.serve())
        await asyncio.wait_for(tried.wait(), scaled(30))
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)

    with shop.connect() as db, shop.app.outbox(db) as outbox:
        outbox.publish(Receipt("a"), to="nats:receipts", id="a", key="ada")
    asyncio.run(once())
    shop.app.senders["nats"] = send or other.send
    other.loses_answer = False
    other.remembered.clear()
    monkeypatch.setattr("semel.runtime.inbox.service.now_us", lambda: now() + for_us)


def test_what_may_have_been_sent_before_its_receiver_forgot_is_put_aside(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = OtherStore()
    halted(shop, other, monkeypatch, for_us=8 * DAY_US)
    shop.drain()
    assert other.taken == ["a"], "sent blindly, it would be there twice"
    [letter] = shop.app.dead_letters("outbox/shop")
    assert letter.state == "parked"
    assert "may have been received: nats:receipts remembers an id no longer than that" in letter.cause
    # a person has looked: it is not there after all
    shop.app.replay("outbox/shop", letter.identity)
    shop.drain()
    assert (other.taken, shop.open_outbox()) == (["a", "a"], [])


def test_what_the_receiver_still_knows_is_sent_again(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    other = OtherStore()
    halted(shop, other, monkeypatch, for_us=6 * DAY_US)
    other.remembered.add("a")
    shop.drain()
    assert (other.taken, shop.open_outbox()) == (["a"], [])


def test_a_receiver_that_remembers_less_is_known_by_its_name(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    other = OtherStore()
    shop.app.receiver("nats", keep_s=120)
    halted(shop, other, monkeypatch, for_us=3600 * 1_000_000)
    shop.drain()
    assert other.taken == ["a"]
    assert len(shop.app.dead_letters("outbox/shop")) == 1


@pytest.mark.parametrize("knows", [True, False])
def test_a_receiver_that_can_be_asked_is_asked_first(shop: Shop, monkeypatch: pytest.MonkeyPatch, knows: bool) -> None:
    """That it knows the id is an answer; that it does not may be because it has forgotten."""
    other = OtherStore()

    async def send(destination: Destination, envelope: Envelope) -> None:
        await other.send(destination, envelope)

    async def ask(destination: Destination, envelope: Envelope) -> bool:
        return knows

    send.knows = ask  # type: ignore[attr-defined]
    halted(shop, other, monkeypatch, for_us=8 * DAY_US, send=send)
    shop.drain()
    assert other.taken == ["a"]
    assert len(shop.app.dead_letters("outbox/shop")) == (0 if knows else 1)


def test_what_was_never_tried_is_sent_however_long_it_has_waited(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    other = OtherStore()
    other.loses_answer = False
    shop.app.sender("nats", other.send)
    with shop.connect() as db, shop.app.outbox(db) as outbox:
        outbox.publish(Receipt("a"), to="nats:receipts", id="a")
    now = shop.app.context.now
    monkeypatch.setattr("semel.runtime.inbox.service.now_us", lambda: now() + 30 * DAY_US)
    shop.drain()
    assert (other.taken, shop.open_outbox()) == (["a"], [])


def test_what_leaves_does_not_carry_what_only_the_row_needs(shop: Shop) -> None:
    left: list[Envelope] = []

    async def send(destination: Destination, envelope: Envelope) -> None:
        left.append(envelope)

    shop.app.sender("nats", send)

    @shop.on("orders")
    def handle(order: Order, db: Any, outbox: Outbox) -> None:
        outbox.publish(Receipt(order.id), to="nats:receipts", headers={"mine": "x"})

    shop.send("a")
    shop.drain()
    assert [envelope.headers for envelope in left] == [{"mine": "x"}]


@pytest.mark.parametrize(
    ("attempts", "since", "in_doubt"),
    [
        (1, "0", False),
        (2, "0", True),
        (2, str(10 * DAY_US - 1), False),
        (2, "", False),
        (2, "x", False),
        (2, None, False),
    ],
)
def test_doubt(attempts: int, since: str | None, in_doubt: bool) -> None:
    headers = {} if since is None else {SINCE_HEADER: since}
    row = WorkRow("outbox/shop", "a", None, 1, WorkState.CLAIMED, 0, attempts, 1, "me", Envelope("a", headers=headers))
    assert is_in_doubt(row, 10 * DAY_US, 7 * 24 * 3600.0) is in_doubt


def test_a_receiver_remembers_for_some_time(shop: Shop) -> None:
    with pytest.raises(ConfigError, match="keep_s is 0"):
        shop.app.receiver("nats", keep_s=0)
