"""The inbox on real stores: what arrives takes effect once, with its mark and what it sends in one commit."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from tests.integration.inbox_shop import Order, Receipt, Shop, write

from semel import App, Outbox, on
from semel.errors import ConfigError, InputError, MessageRefused, StoreBusy
from semel.inbox.identity import DEDUPLICATION_HEADER
from semel.kernel.effects import Pause, Resume
from semel.kernel.envelope import Envelope
from semel.kernel.ledger import Kind
from semel.kernel.ops import Claim, Enqueue, Finish, Unit, WorkState
from semel.runtime.inbox import service as service_module
from semel.runtime.inbox.definition import now_us
from semel.runtime.inbox.operating import set_paused
from semel.runtime.inbox.service import InboxService
from semel.testing import limits

pytestmark = pytest.mark.connected

HOUR_US = 3_600_000_000


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/shop.db"
    given: str = request.getfixturevalue("postgres_url")
    return given


MakeShop = Callable[..., Shop]


@pytest.fixture
def make_shop(url: str) -> Iterator[MakeShop]:
    made: list[Shop] = []

    def make(**options: Any) -> Shop:
        made.append(Shop(url, **options))
        return made[-1]

    yield make
    for shop in made:
        shop.app.close()


@pytest.fixture
def shop(make_shop: MakeShop) -> Shop:
    return make_shop()


@pytest.fixture
def sqlite_shop(tmp_path: Path) -> Iterator[Shop]:
    """For what needs nothing but one of the stores."""
    shop = Shop(f"sqlite:///{tmp_path}/shop.db")
    yield shop
    shop.app.close()


def writes_it(shop: Shop, endpoint: str = "orders", **options: Any) -> None:
    @shop.on(endpoint, **options)
    def handle(order: Order, db: Any) -> None:
        write(db, order.id)


def publishes(shop: Shop) -> None:
    """A handler that has an effect and sends a receipt."""

    @shop.on("orders")
    def handle(order: Order, db: Any, outbox: Outbox) -> None:
        write(db, order.id)
        outbox.publish(Receipt(order.id), to="stream:receipts")


def raw(id: str, type: str = "Order", data: bytes = b'{"id":"x"}', **attributes: Any) -> Envelope:
    """As a transport brings it."""
    return Envelope(id, type=type, data=data, **attributes)


# -- who is the same


def test_the_same_id_twice_is_handled_once(shop: Shop) -> None:
    writes_it(shop)
    assert [shop.send("a"), shop.send("a")] == ["stored", "duplicate"]
    assert shop.drain() == 1
    assert shop.send("a") == "duplicate"
    assert shop.drain() == 0
    assert shop.effects() == ["a"]
    assert shop.history("a") == [Kind.ACCEPTED, Kind.DUPLICATE, Kind.HANDLED, Kind.DUPLICATE]


def test_the_same_body_under_two_ids_is_handled_twice(shop: Shop) -> None:
    writes_it(shop)
    assert [shop.app.send(Order("same"), to="orders", id=id)[1] for id in ("a", "b")] == ["stored", "stored"]
    shop.drain()
    assert shop.effects() == ["same", "same"]


def test_an_id_is_one_message_at_all_endpoints(shop: Shop) -> None:
    writes_it(shop, "orders")
    writes_it(shop, "bills")
    assert [shop.send("a", to) for to in ("orders", "bills", "bills")] == ["stored", "duplicate", "duplicate"]
    assert shop.drain() == 1
    assert shop.app.store.work("inbox/bills", "a") is None


def test_an_id_is_one_message_at_each_endpoint(make_shop: MakeShop) -> None:
    """Handled at one endpoint, it is still to be handled at the other."""
    shop = make_shop(identity="id+endpoint")
    writes_it(shop, "orders")
    writes_it(shop, "bills")
    assert shop.send("a", "orders") == "stored"
    assert shop.drain() == 1
    assert shop.send("a", "bills") == "stored"
    assert shop.state("a", "bills") is WorkState.READY
    assert shop.drain() == 1
    assert [shop.send("a", to) for to in ("orders", "bills")] == ["duplicate", "duplicate"]
    assert shop.effects() == ["a", "a"]


def test_one_intent_under_two_ids_is_handled_once(shop: Shop) -> None:
    writes_it(shop)
    intent = {DEDUPLICATION_HEADER: "checkout-7"}
    assert [shop.send(id, headers=intent) for id in ("a", "b")] == ["stored", "duplicate"]


def test_an_id_is_one_of_its_source(shop: Shop) -> None:
    writes_it(shop)
    verdicts = shop.app.receive("orders", [raw("1", source=source) for source in ("east", "west", "east")])
    assert verdicts == ["stored", "stored", "duplicate"]


def test_of_many_that_send_an_id_at_once_one_wins(shop: Shop) -> None:
    writes_it(shop)
    with ThreadPoolExecutor(8) as threads:
        verdicts = list(threads.map(lambda _: shop.send("a"), range(24)))
    assert sorted(verdicts) == ["duplicate"] * 23 + ["stored"]
    assert shop.drain() == 1


def test_an_identity_is_forgotten_after_its_time_and_not_before(shop: Shop) -> None:
    shop.app.endpoint("orders", keep_s=3600)
    shop.app.endpoint("bills", keep_s=0.001)
    writes_it(shop)
    writes_it(shop, "bills")
    shop.send("a")
    shop.send("b", to="bills")
    shop.send("later", to="bills", after_s=3600)
    shop.drain()

    def is_taken_anew() -> bool:
        shop.app.store.sweep(now_us())
        return shop.send("b", to="bills") == "stored"

    limits.wait_until(is_taken_anew, "the end of its time")
    assert shop.send("a") == "duplicate"
    assert shop.state("later", "bills") is WorkState.SCHEDULED


# -- one commit


def test_a_message_is_stored_before_it_is_handled(shop: Shop) -> None:
    writes_it(shop)
    shop.send("a")
    assert (shop.state("a"), shop.effects()) == (WorkState.READY, [])


def test_effect_mark_and_outbox_are_there_together(shop: Shop) -> None:
    publishes(shop)
    shop.send("a")
    assert shop.drain() == 1
    assert (shop.state("a"), shop.effects(), len(shop.sent()), shop.open_outbox()) == (WorkState.DONE, ["a"], 1, [])
    assert shop.row("a").envelope.data == b"", "what is handled needs no body"


def test_the_store_itself_commits_neither_mark_nor_outbox(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both go with the handler's transaction, and there is no commit of ours beside it."""
    commit, ops = shop.app.store.commit, []

    def recording(units: Any, *args: Any, **options: Any) -> Any:
        ops.extend(op for unit in units for op in unit.ops)
        return commit(units, *args, **options)

    publishes(shop)
    shop.send("a")
    monkeypatch.setattr(shop.app.store, "commit", recording)
    shop.drain()
    assert [op for op in ops if isinstance(op, Claim)], "what the store commits is seen here"
    assert [op for op in ops if isinstance(op, Finish) and op.queue == "inbox/orders"] == []
    assert [op for op in ops if isinstance(op, Enqueue)] == []
    assert (shop.state("a"), shop.effects(), len(shop.sent())) == (WorkState.DONE, ["a"], 1)


def test_a_handler_that_raises_leaves_nothing_and_its_message_open(shop: Shop) -> None:
    seen: list[tuple[list[str], WorkState]] = []

    @shop.on("orders")
    def handle(order: Order, db: Any, outbox: Outbox) -> None:
        seen.append((shop.effects(), shop.state("a")))
        write(db, order.id)
        outbox.publish(Receipt(order.id), to="stream:receipts")
        raise ConnectionError("the bank does not answer")

    shop.send("a")
    assert shop.drain() == 3
    assert seen == [([], WorkState.CLAIMED)] * 3
    assert (shop.effects(), shop.sent(), shop.open_outbox()) == ([], [], [])
    [letter] = shop.app.dead_letters("orders")
    assert (letter.identity, letter.attempts, letter.state) == ("a", 3, "dead")
    assert letter.cause == "ConnectionError: the bank does not answer"
    assert shop.history("a") == [Kind.ACCEPTED, Kind.FAILED, Kind.FAILED, Kind.DEAD_LETTERED]


def test_a_commit_that_fails_takes_mark_and_outbox_with_it(shop: Shop) -> None:
    """They are in the handler's own transaction: not before it, not after it, not beside it."""
    with shop.connect() as db:
        db.execute("CREATE TABLE customer (id text PRIMARY KEY)")
        deferred = "REFERENCES customer DEFERRABLE INITIALLY DEFERRED"
        db.execute(f"CREATE TABLE bill (customer text {deferred})")

    @shop.on("orders")
    def handle(order: Order, db: Any, outbox: Outbox) -> None:
        if shop.is_sqlite:
            db.execute("PRAGMA foreign_keys = ON")
        write(db, order.id)
        db.execute("INSERT INTO bill VALUES ('nobody')")
        outbox.publish(Receipt(order.id), to="stream:receipts")

    shop.send("a")
    assert shop.drain() == 3
    assert (shop.effects(), shop.sent(), shop.open_outbox()) == ([], [], [])
    assert shop.state("a") is WorkState.DEAD
    assert "foreign key" in shop.app.dead_letters("orders")[0].cause.lower()


def test_who_has_lost_the_message_has_no_effect(shop: Shop) -> None:
    """The mark is refused under an old fence, and the effect with it."""
    runs: list[str] = []

    @shop.on("orders")
    def handle(order: Order, db: Any, outbox: Outbox) -> None:
        runs.append(order.id)
        if len(runs) == 1:
            give_to_another(shop, order.id)
        write(db, f"run {len(runs)}")
        outbox.publish(Receipt(order.id), to="stream:receipts", id=f"run {len(runs)}")

    shop.send("a")
    assert shop.drain() == 2
    assert (shop.effects(), shop.sent()) == (["run 2"], ["run 2"])
    assert shop.history("a") == [Kind.ACCEPTED, Kind.HANDLED]


def give_to_another(shop: Shop, id: str) -> None:
    """As if its lease had run out: anybody may claim it now."""
    row = shop.row(id)
    shop.app.store.commit([Unit((Finish(row.queue, row.identity, WorkState.READY, fence=row.fence),))])


def test_a_handler_that_runs_again_sends_the_same_ids(shop: Shop) -> None:
    ids: list[list[str]] = []

    @shop.on("orders")
    def handle(order: Order, db: Any, outbox: Outbox) -> None:
        ids.append([outbox.publish(Receipt(order.id), to="stream:receipts") for _ in range(2)])
        if len(ids) == 1:
            raise ConnectionError("the bank does not answer")

    shop.send("a")
    shop.drain()
    first, again = ids
    assert first == again == shop.sent()
    assert len(set(first)) == 2


def test_the_relay_puts_messages_into_other_endpoints_once(shop: Shop) -> None:
    @shop.on("orders")
    def handle(order: Order, db: Any, outbox: Outbox) -> None:
        outbox.publish(Receipt(order.id), to="endpoint:receipts")

    @shop.on("receipts", Receipt)
    def keep(receipt: Receipt, db: Any) -> None:
        write(db, f"receipt {receipt.id}")

    shop.send("a")
    assert shop.drain() == 2
    assert shop.effects() == ["receipt a"]


def test_messages_to_a_stream_keep_their_order(shop: Shop) -> None:
    @shop.on("orders")
    def handle(order: Order, db: Any, outbox: Outbox) -> None:
        for number in range(5):
            outbox.publish(Receipt(order.id), to="stream:receipts", id=f"{order.id}{number}", key=order.customer)

    for id in "abc":
        shop.send(id)
    shop.drain()
    assert shop.sent() == [f"{id}{number}" for id in "abc" for number in range(5)]


def test_a_handler_without_a_transaction_is_marked_when_it_has_returned(shop: Shop) -> None:
    seen: list[WorkState] = []

    @shop.on("orders")
    def handle(order: Order, outbox: Outbox) -> None:
        seen.append(shop.state(order.id))
        outbox.publish(Receipt(order.id), to="stream:receipts", id="r")

    shop.send("a")
    assert shop.drain() == 1
    assert (seen, shop.state("a"), shop.sent()) == ([WorkState.CLAIMED], WorkState.DONE, ["r"])


def test_a_handler_without_a_transaction_that_raises_sends_nothing(shop: Shop) -> None:
    @shop.on("orders")
    def handle(order: Order, outbox: Outbox) -> None:
        outbox.publish(Receipt(order.id), to="stream:receipts")
        raise ValueError(order.id)

    shop.send("a")
    shop.drain()
    assert (shop.state("a"), shop.sent(), shop.open_outbox()) == (WorkState.DEAD, [], [])


# -- awaited handlers


def test_an_awaited_handler_has_its_effect_in_one_commit(shop: Shop) -> None:
    runs: list[str] = []

    @shop.on("orders")
    async def handle(order: Order, db: Any, outbox: Outbox) -> None:
        await asyncio.to_thread(write, db, order.id)
        outbox.publish(Receipt(order.id), to="stream:receipts", id="r")
        runs.append(order.id)
        if len(runs) == 1:
            raise ConnectionError("the bank does not answer")

    shop.send("a")
    assert shop.drain() == 2
    assert (shop.state("a"), shop.effects(), shop.sent()) == (WorkState.DONE, ["a"], ["r"])


def test_an_awaited_handler_that_lost_its_message_has_no_effect(shop: Shop) -> None:
    runs: list[str] = []

    @shop.on("orders")
    async def handle(order: Order, db: Any) -> None:
        runs.append(order.id)
        if len(runs) == 1:
            await asyncio.to_thread(give_to_another, shop, order.id)
        await asyncio.to_thread(write, db, f"run {len(runs)}")

    shop.send("a")
    assert shop.drain() == 2
    assert shop.effects() == ["run 2"]


def test_an_awaited_handler_without_a_transaction(shop: Shop) -> None:
    handled: list[str] = []

    @shop.on("orders")
    async def handle(order: Order, envelope: Envelope) -> None:
        await asyncio.sleep(0)
        handled.append(envelope.id)

    shop.send("a")
    assert shop.drain() == 1
    assert (handled, shop.state("a")) == (["a"], WorkState.DONE)


def test_awaited_handlers_run_side_by_side(sqlite_shop: Shop) -> None:
    """Each waits until the other has begun: one after the other, none would end."""
    begun: list[str] = []
    both = asyncio.Event()
    sqlite_shop.app.endpoint("orders", parallel=2)

    @sqlite_shop.on("orders")
    async def handle(order: Order) -> None:
        begun.append(order.id)
        if len(begun) == 2:
            both.set()
        await asyncio.wait_for(both.wait(), limits.scaled(30))

    for id in "ab":
        sqlite_shop.send(id)
    assert sqlite_shop.drain() == 2


# -- order


def test_a_dead_head_blocks_its_key_and_nobody_else(shop: Shop) -> None:
    @shop.on("orders", key=lambda order: order.customer)
    def handle(order: Order, db: Any) -> None:
        write(db, order.id)
        if order.id == "a1" and not shop.app.dead_letters("orders") and "mended" not in shop.effects():
            raise ValueError("poison")

    for id, customer in (("a1", "ada"), ("a2", "ada"), ("b1", "bob"), ("a3", "ada")):
        shop.send(id, customer=customer)
    shop.drain()
    assert shop.effects() == ["b1"]
    assert [shop.state(id) for id in ("a1", "a2", "a3")] == [WorkState.DEAD, WorkState.READY, WorkState.READY]
    with shop.connect() as db:
        write(db, "mended")
    shop.app.replay("orders", "a1")
    assert shop.drain() == 3
    assert shop.effects() == ["b1", "mended", "a1", "a2", "a3"]


def test_a_discarded_head_lets_its_key_go_on(shop: Shop) -> None:
    @shop.on("orders", key=lambda order: order.customer)
    def handle(order: Order, db: Any) -> None:
        write(db, order.id)
        if order.id == "a1":
            raise ValueError("poison")

    for id in ("a1", "a2", "a3"):
        shop.send(id)
    shop.drain()
    assert shop.effects() == []
    shop.app.discard("orders", "a1")
    assert shop.drain() == 2
    assert shop.effects() == ["a2", "a3"]
    assert (shop.state("a1"), shop.send("a1")) == (WorkState.DONE, "duplicate")


def test_a_dead_head_passes_where_that_was_asked_for(shop: Shop) -> None:
    shop.app.endpoint("orders", failed_head="passes")

    @shop.on("orders", key=lambda order: order.customer)
    def handle(order: Order, db: Any) -> None:
        write(db, order.id)
        if order.id == "a1":
            raise ValueError("poison")

    for id in ("a1", "a2"):
        shop.send(id)
    shop.drain()
    assert (shop.effects(), shop.state("a1")) == (["a2"], WorkState.DEAD)


def test_messages_of_a_key_are_handled_in_order_by_many(shop: Shop) -> None:
    shop.app.endpoint("orders", parallel=4)

    writes_it(shop, key=lambda order: order.customer)
    for number in range(40):
        shop.send(f"{number:02}", customer=f"customer {number % 4}")
    assert shop.drain() == 40
    for rest in range(4):
        mine = [id for id in shop.effects() if int(id) % 4 == rest]
        assert mine == sorted(mine)


# -- what cannot be read


def test_an_unknown_type_and_what_does_not_decode_are_dead_letters_at_once(shop: Shop) -> None:
    writes_it(shop)
    assert shop.app.receive("orders", [raw("u", type="Unheard"), raw("d", data=b"{"), raw("ok")]) == ["stored"] * 3
    shop.drain()
    unknown, undecoded = shop.app.dead_letters("orders")
    assert (unknown.identity, unknown.attempts) == ("u", 1)
    assert "no handler at 'orders' knows messages of type 'Unheard'" in unknown.cause
    assert (undecoded.identity, undecoded.attempts, undecoded.body) == ("d", 1, "{")
    assert "is not a Order" in undecoded.cause
    assert shop.effects() == ["x"]


def test_an_endpoint_without_handlers_loses_nothing(shop: Shop) -> None:
    shop.app.endpoint("orders")
    shop.app.receive("orders", [raw("u")])
    shop.drain()
    assert [letter.identity for letter in shop.app.dead_letters("orders")] == ["u"]


def test_what_could_not_be_read_is_handled_after_a_replay(shop: Shop) -> None:
    shop.app.endpoint("orders")
    shop.app.receive("orders", [raw("u")])
    shop.drain()
    writes_it(shop)
    shop.app.replay("orders", "u")
    assert shop.drain() == 1
    assert (shop.effects(), shop.state("u")) == (["x"], WorkState.DONE)
    assert shop.history("u") == [Kind.ACCEPTED, Kind.DEAD_LETTERED, Kind.REPLAYED, Kind.HANDLED]


def test_a_sender_is_told_what_nobody_can_read(sqlite_shop: Shop) -> None:
    writes_it(sqlite_shop)
    with pytest.raises(InputError, match="no handler at 'orders' knows messages of type 'Receipt'") as unknown:
        sqlite_shop.app.send(Receipt("r"), to="orders")
    assert "add one" in unknown.value.fix
    with pytest.raises(MessageRefused, match="is not a Order"):
        sqlite_shop.app.send(raw("d", data=b"{"), to="orders", id="d")
    with pytest.raises(InputError, match="there is no endpoint 'order'") as nowhere:
        sqlite_shop.send("a", to="order")
    assert "there are: orders" in nowhere.value.fix
    assert sqlite_shop.app.store.work("inbox/orders", "d") is None


# -- failures


def test_a_replay_counts_attempts_from_the_beginning(shop: Shop) -> None:
    runs: list[str] = []

    @shop.on("orders")
    def handle(order: Order, db: Any) -> None:
        runs.append(order.id)
        raise ValueError("never")

    shop.send("a")
    shop.drain()
    shop.app.replay("orders", "a")
    assert shop.drain() == 3
    assert len(runs) == 6
    assert shop.app.dead_letters("orders")[0].attempts == 3


def test_only_dead_letters_are_replayed_and_discarded(sqlite_shop: Shop) -> None:
    writes_it(sqlite_shop)
    sqlite_shop.send("a")
    for move in (sqlite_shop.app.replay, sqlite_shop.app.discard):
        with pytest.raises(InputError, match="'a' at 'orders' is ready: it is no dead letter"):
            move("orders", "a")
        with pytest.raises(InputError, match="'b' at 'orders' is not known") as unknown:
            move("orders", "b")
        assert "dead-letters list" in unknown.value.fix


@pytest.mark.parametrize(
    ("rule", "state", "kind"),
    [
        (on(ValueError).discard(), WorkState.DONE, Kind.DISCARDED),
        (on(ValueError).park(), WorkState.PARKED, Kind.SUSPENDED),
        (on(ValueError).requeue(1).dead_letter(), WorkState.DEAD, Kind.DEAD_LETTERED),
    ],
    ids=["discard", "park", "requeue"],
)
def test_the_handlers_own_rule_comes_first(shop: Shop, rule: Any, state: WorkState, kind: Kind) -> None:
    @shop.on("orders", errors=[rule])
    def handle(order: Order, db: Any) -> None:
        write(db, order.id)
        raise ValueError("never")

    shop.send("a")
    assert shop.drain() == 1 + len(rule.steps)
    assert (shop.state("a"), shop.history("a")[-1], shop.effects()) == (state, kind, [])


def test_a_dead_letter_stays_until_somebody_decides(shop: Shop) -> None:
    @shop.on("orders")
    def handle(order: Order) -> None:
        raise ValueError("never")

    shop.send("a")
    shop.drain()
    shop.app.store.sweep(now_us() + 1000 * 24 * HOUR_US)
    assert [letter.identity for letter in shop.app.dead_letters("orders")] == ["a"]


def test_a_message_that_came_too_late_is_not_handled(shop: Shop) -> None:
    shop.app.endpoint("orders", expire_s=60)
    writes_it(shop)
    shop.send("late", time=now_us() - 61_000_000)
    shop.send("in time", time=now_us())
    shop.send("undated")
    shop.drain()
    assert sorted(shop.effects()) == ["in time", "undated"]
    assert (shop.state("late"), shop.history("late")) == (WorkState.DONE, [Kind.ACCEPTED, Kind.EXPIRED])
    assert shop.send("late") == "duplicate"


def test_a_message_without_a_time_expires_from_when_it_came(sqlite_shop: Shop) -> None:
    sqlite_shop.app.endpoint("orders", expire_s=60)
    writes_it(sqlite_shop)
    before = now_us()
    sqlite_shop.send("a")
    time = sqlite_shop.row("a").envelope.time
    assert time is not None
    assert before <= time <= now_us()


# -- later


def test_a_message_for_later_waits_and_keeps_nobody_waiting(shop: Shop) -> None:
    writes_it(shop, key=lambda order: order.customer)
    shop.send("later", after_s=3600)
    shop.send("now")
    assert shop.drain() == 1
    assert (shop.effects(), shop.state("later")) == (["now"], WorkState.SCHEDULED)
    assert shop.row("later").due > now_us() + HOUR_US // 2


def test_a_handler_schedules_and_cancels(shop: Shop) -> None:
    tomorrow = datetime.now(UTC) + timedelta(days=1)

    @shop.on("orders")
    def handle(order: Order, db: Any, outbox: Outbox) -> None:
        outbox.schedule(Receipt(order.id), to="stream:receipts", at=tomorrow, id="reminder", key="ada")
        outbox.schedule(Receipt(order.id), to="stream:receipts", after_s=0, id="soon", key="ada")

    @shop.on("orders", Receipt)
    def cancel(receipt: Receipt, db: Any, outbox: Outbox) -> None:
        outbox.cancel("reminder", "stream:receipts")
        outbox.cancel("soon", "stream:receipts")
        outbox.cancel("never heard of", "stream:receipts")
        outbox.publish(receipt, to="stream:receipts", id="cancelled")

    shop.send("a")
    shop.drain()
    assert (shop.sent(), [row.envelope.id for row in shop.open_outbox()]) == (["soon"], ["reminder"])
    shop.app.send(Receipt("a"), to="orders", id="c")
    assert shop.drain() == 1
    assert shop.state("c") is WorkState.DONE
    assert (shop.sent(), shop.open_outbox()) == (["soon", "cancelled"], [])
    assert shop.history("reminder") == [Kind.ACCEPTED, Kind.CANCELLED]
    assert Kind.CANCELLED not in shop.history("soon"), "it was sent before"


def test_a_handler_without_a_transaction_cancels(shop: Shop) -> None:
    @shop.on("orders")
    def handle(order: Order, outbox: Outbox) -> None:
        outbox.schedule(Receipt(order.id), to="stream:receipts", after_s=3600, id="reminder")

    @shop.on("orders", Receipt)
    def cancel(receipt: Receipt, outbox: Outbox) -> None:
        outbox.cancel("never heard of", "stream:receipts")
        outbox.cancel("reminder", "stream:receipts")

    shop.send("a")
    shop.drain()
    shop.app.send(Receipt("a"), to="orders", id="c")
    shop.drain()
    assert (shop.state("c"), shop.open_outbox()) == (WorkState.DONE, [])


def test_periodic_messages_are_sent_once_by_many_processes(shop: Shop) -> None:
    """Two that run the same application put the same next one into the outbox."""
    shop.app.every("@daily", lambda: Receipt("r"), to="stream:reports", name="report")
    for _ in range(2):
        serve_until(shop, lambda: len(shop.open_outbox()) == 1)
    [row] = shop.open_outbox()
    assert row.due > now_us()


# -- pausing


def test_a_paused_endpoint_takes_nothing_until_it_is_resumed(shop: Shop) -> None:
    writes_it(shop)
    set_paused(shop.app, "orders", True)
    assert shop.send("a") == "stored"
    assert shop.drain() == 0
    assert (shop.state("a"), shop.effects(), shop.row("a").attempts) == (WorkState.READY, [], 0)
    set_paused(shop.app, "orders", False)
    assert shop.drain() == 1


def test_a_pause_reaches_processes_that_run(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[object] = []
    feed = InboxService._feed
    monkeypatch.setattr(service_module, "PAUSES_S", 0.01)
    monkeypatch.setattr(
        InboxService, "_feed", lambda self, name, event: (feed(self, name, event), heard.append((name, event)))
    )
    writes_it(shop)
    writes_it(shop, "bills")

    def steps() -> Iterator[bool]:
        set_paused(shop.app, "orders", True)
        yield from until(lambda: heard == [("orders", Pause())])
        shop.send("o")
        shop.send("b", to="bills")
        yield from until(lambda: "b" in shop.effects())
        assert shop.effects() == ["b"]
        set_paused(shop.app, "orders", False)
        yield from until(lambda: "o" in shop.effects())

    walk = steps()
    serve_until(shop, lambda: next(walk, "end") == "end")
    assert heard == [("orders", Pause()), ("orders", Resume())]


def until(condition: Callable[[], bool]) -> Iterator[bool]:
    while not condition():
        yield False


def serve_until(shop: Shop, condition: Callable[[], object]) -> None:
    """Run the application as a server does, until the condition holds."""

    async def serve() -> None:
        stop = asyncio.Event()
        async with asyncio.timeout(limits.scaled(60)):
            task = asyncio.create_task(shop.app.serve(stop=stop))
            while not await asyncio.to_thread(condition):
                assert not task.done() or task.result()
                await asyncio.sleep(limits.POLL_S)
            stop.set()
            await task

    asyncio.run(serve())


# -- a caller's own transaction


def test_an_outbox_in_a_callers_transaction(shop: Shop) -> None:
    with shop.connect() as db:
        write(db, "rolled back")
        with shop.app.outbox(db) as outbox:
            outbox.publish(Receipt("r"), to="stream:receipts", id="lost")
        db.rollback()
        write(db, "committed")
        with shop.app.outbox(db) as outbox:
            outbox.publish(Receipt("r"), to="stream:receipts", id="kept")
        assert shop.open_outbox() == []
    shop.drain()
    assert (shop.effects(), shop.sent()) == (["committed"], ["kept"])


def test_what_a_caller_publishes_in_a_block_that_raises_is_not_stored(shop: Shop) -> None:
    with shop.connect() as db:
        write(db, "a")
        with suppress(ValueError), shop.app.outbox(db) as outbox:
            outbox.publish(Receipt("r"), to="stream:receipts")
            raise ValueError("no")
    shop.drain()
    assert (shop.effects(), shop.sent()) == (["a"], [])


def test_a_caller_cancels_in_its_transaction(shop: Shop) -> None:
    with shop.connect() as db, shop.app.outbox(db) as outbox:
        id = outbox.schedule(Receipt("r"), to="stream:receipts", after_s=3600)
    with shop.connect() as db, shop.app.outbox(db) as outbox:
        outbox.cancel("never heard of", "stream:receipts")
        outbox.cancel(id, "stream:receipts")
        outbox.publish(Receipt("r"), to="stream:receipts", id="kept")
    shop.drain()
    assert (shop.open_outbox(), shop.sent()) == ([], ["kept"])


# -- what is refused at start


def test_two_handlers_for_one_type_are_refused(sqlite_shop: Shop) -> None:
    writes_it(sqlite_shop)
    writes_it(sqlite_shop)
    with pytest.raises(ConfigError, match="two handlers for 'Order'") as refused:
        sqlite_shop.drain()
    assert "an endpoint of its own" in refused.value.fix


def test_optimistic_with_effects_outside_is_refused(sqlite_shop: Shop) -> None:
    writes_it(sqlite_shop, outside=True, idempotency="optimistic")
    with pytest.raises(ConfigError, match="with a transaction and effects outside it") as refused:
        sqlite_shop.drain()
    assert "reserved" in refused.value.fix


def test_what_nobody_provides_is_refused(sqlite_shop: Shop) -> None:
    @sqlite_shop.on("orders")
    def handle(order: Order, session: Thread) -> None: ...

    with pytest.raises(ConfigError, match="parameter session that cannot be filled: nobody provides Thread") as refused:
        sqlite_shop.send("a")
    assert "sqlite3.Connection" in refused.value.fix


def test_an_application_on_another_store_is_refused(sqlite_shop: Shop, tmp_path: Path) -> None:
    """Its handlers write to one database and its marks would go to another."""
    with closing(sqlite3.connect(tmp_path / "other.db", check_same_thread=False)) as other:
        sqlite_shop.app.provide(sqlite3.Connection, lambda: other)
        writes_it(sqlite_shop)
        sqlite_shop.send("a")
        sqlite_shop.drain()
    assert sqlite_shop.state("a") is WorkState.DEAD


# -- the one-liner


@pytest.fixture
def first_shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(f"sqlite:///{tmp_path}/shop.db")
    yield shop
    shop.app.close()


def test_the_first_of_an_id_is_told_from_the_others(first_shop: Shop) -> None:
    app = first_shop.app
    with first_shop.connect() as db:
        assert app.first(db, "charges", "a", result=b"charged")
        write(db, "a")
        again = app.first(db, "charges", "a")
        assert (bool(again), again.result) == (False, b"charged")
    with first_shop.connect() as db:
        again = app.first(db, "charges", "a")
        assert (bool(again), again.result) == (False, b"charged")
        assert app.first(db, "charges", "b")
    assert first_shop.history("a") == [Kind.ACCEPTED, Kind.HANDLED, Kind.DUPLICATE, Kind.DUPLICATE]


def test_what_is_rolled_back_was_never_first(first_shop: Shop) -> None:
    app = first_shop.app
    with first_shop.connect() as db:
        assert app.first(db, "charges", "a")
        write(db, "a")
        db.rollback()
        assert app.first(db, "charges", "a")
        write(db, "a")
    assert (first_shop.effects(), first_shop.history("a")) == (["a"], [Kind.ACCEPTED, Kind.HANDLED])


def test_the_first_is_one_of_all_endpoints_or_of_each(first_shop: Shop) -> None:
    by_endpoint = App(first_shop.url, name="other", identity="id+endpoint")
    with first_shop.connect() as db:
        assert [bool(first_shop.app.first(db, to, "a")) for to in ("charges", "bills")] == [True, False]
        verdicts = [bool(by_endpoint.first(db, to, "a")) for to in ("refunds", "reports", "reports")]
        assert verdicts == [True, True, False]
    by_endpoint.close()


def test_who_handles_it_just_now_is_not_waited_for(first_shop: Shop) -> None:
    app = first_shop.app
    with first_shop.connect() as db, first_shop.connect() as other:
        assert app.first(db, "charges", "a")
        with pytest.raises(StoreBusy):
            app.first(other, "charges", "a")
        db.commit()
        assert not app.first(other, "charges", "a")


def test_a_busy_file_is_waited_for_as_long_as_the_users_connection_waits(first_shop: Shop) -> None:
    path = first_shop.url.removeprefix("sqlite:///")
    with first_shop.connect() as db, closing(sqlite3.connect(path, timeout=0.2)) as hasty:
        write(db, "holds the lock")
        began = time.monotonic()
        with pytest.raises(StoreBusy):
            first_shop.app.first(hasty, "charges", "a")
        assert 0.1 < time.monotonic() - began < limits.scaled(4)
        assert hasty.execute("PRAGMA busy_timeout").fetchone() == (200,)


def test_first_knows_a_message_as_every_endpoint_does(first_shop: Shop) -> None:
    app = first_shop.app
    event = Envelope("7", source="/shop", data=b"{}")
    intent = Envelope("9", headers={DEDUPLICATION_HEADER: "charge 7"})
    with first_shop.connect() as db:
        assert app.first(db, "charges", event)
        assert not app.first(db, "charges", "7", source="/shop")
        assert app.first(db, "charges", "7"), "of no source it is another"
        assert app.first(db, "charges", "8", deduplication_id="charge 7")
        assert not app.first(db, "charges", intent)
        with pytest.raises(InputError, match="says its source"):
            app.first(db, "charges", event, source="/shop")
    app.endpoint("orders")
    assert app.receive("orders", [event, intent]) == ["duplicate", "duplicate"]


def test_a_message_that_was_first_elsewhere_is_a_duplicate_at_the_door(first_shop: Shop) -> None:
    writes_it(first_shop)
    with first_shop.connect() as db:
        assert first_shop.app.first(db, "orders", "a")
    assert first_shop.send("a") == "duplicate"
    assert first_shop.drain() == 0
