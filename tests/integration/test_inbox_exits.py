"""Every way out of a handler settles the delivery and the row, as the table in `inbox/settle.py` says.

Each exit is driven on both stores, for each style that can come to it. Whatever happens, the ledger balances: what was
accepted or opened again has ended or is open. Process deaths are in `test_inbox_kills`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.integration.inbox_shop import Order, Shop, check_conservation, write

from semel import on
from semel.errors import StoreUnavailable
from semel.inbox.endpoint import EndpointMode, Style
from semel.inbox.messages import envelope_of
from semel.inbox.reservation import DIED, reservation_of
from semel.inbox.settle import DeliveryEnd, Exit, RowFate, settle
from semel.kernel.envelope import Envelope
from semel.kernel.ledger import Kind
from semel.kernel.ops import Claim, Enqueue, Finish, Unit, WorkState
from semel.runtime.inbox import inline, late_marks
from semel.runtime.inbox.definition import now_us
from semel.runtime.inbox.service import InboxService
from semel.testing.limits import scaled, wait_until

pytestmark = pytest.mark.connected

ACK, GIVE_BACK = DeliveryEnd.ACK, DeliveryEnd.GIVE_BACK
FATES: dict[RowFate, WorkState | None] = {
    RowFate.NO_ROW: None,
    RowFate.REMOVED: None,
    RowFate.DONE: WorkState.DONE,
    RowFate.READY: WorkState.SCHEDULED,  # behind all others, at once
    RowFate.SCHEDULED: WorkState.SCHEDULED,
    RowFate.DEAD: WorkState.DEAD,
    RowFate.PARKED: WorkState.PARKED,
    RowFate.RELEASED: WorkState.DEFERRED,
}
MARKED = ["eager", "optimistic", "reserved"]
ALL = [*MARKED, "none"]


@pytest.fixture(params=["sqlite", "postgres"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    url = f"sqlite:///{tmp_path}/shop.db" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    made = Shop(url)
    yield made
    made.app.close()


def order(id: str = "a", **attributes: Any) -> Envelope:
    return envelope_of(Order(id), id, **attributes)


def deliver(shop: Shop, id: str = "a", **attributes: Any) -> DeliveryEnd:
    return asyncio.run(shop.app.deliver("sms", order(id, **attributes)))


def handler(shop: Shop, style: str, does: Callable[[], None], **options: Any) -> list[str]:
    """With an effect in its transaction, or one without a transaction for the style that is made for that. Returns the
    list of its runs."""
    runs: list[str] = []
    shop.app.endpoint("sms", mode="inline", **options)
    if style == "reserved":

        @shop.on("sms", idempotency=style)
        def call(order: Order) -> None:
            runs.append(order.id)
            does()
    else:

        @shop.on("sms", idempotency=style)
        def text(order: Order, db: Any) -> None:
            runs.append(order.id)
            write(db, order.id)
            does()

    return runs


def check(shop: Shop, style: str, exit: Exit, end: DeliveryEnd) -> None:
    """What the table says is what happened."""
    wanted = settle(EndpointMode.INLINE, Style(style), exit)
    row = shop.app.store.work("inbox/sms", "a")
    assert (end, row and row.state) == (wanted.delivery, FATES[wanted.row])
    if style != "none":
        check_conservation(shop, "sms")


def fail() -> None:
    raise ValueError("never")


# -- inline: what a failure rule decides


ENDS = {
    Exit.REQUEUE: on(ValueError).requeue(1).discard(),
    Exit.SCHEDULE: on(ValueError).schedule([3600]).discard(),
    Exit.DISCARD: on(ValueError).discard(),
    Exit.DEAD_LETTER: on(ValueError).dead_letter(),
    Exit.PARK: on(ValueError).park(),
}


@pytest.mark.parametrize("style", ALL)
@pytest.mark.parametrize("exit", ENDS, ids=lambda exit: exit.name.lower())
def test_a_failure_ends_as_its_rule_says(shop: Shop, style: str, exit: Exit) -> None:
    runs = handler(shop, style, fail, errors=[ENDS[exit]])
    check(shop, style, exit, deliver(shop))
    assert (runs, shop.effects()) == (["a"], [])
    if exit in (Exit.SCHEDULE, Exit.DEAD_LETTER, Exit.PARK):
        assert b"ada" in shop.row("a", "sms").envelope.data, "what is kept has its body"


@pytest.mark.parametrize("style", MARKED)
def test_who_ended_is_not_handled_again(shop: Shop, style: str) -> None:
    runs = handler(shop, style, fail, errors=[on(ValueError).dead_letter()])
    assert [deliver(shop), deliver(shop), deliver(shop)] == [ACK] * 3
    check(shop, style, Exit.DEAD_LETTER, ACK)
    assert shop.history("a").count(Kind.DEAD_LETTERED) == 1
    if style != "optimistic":
        assert runs == ["a"]


@pytest.mark.parametrize("style", MARKED)
@pytest.mark.parametrize("end", ["park", "dead_letter"])
def test_what_was_kept_is_handled_by_a_worker_when_it_is_replayed(shop: Shop, style: str, end: str) -> None:
    fails = [True]
    runs = handler(shop, style, lambda: fail() if fails else None, errors=[on(ValueError).then(end)])
    assert deliver(shop) is ACK
    fails.clear()
    shop.app.replay("sms", "a")
    check_conservation(shop, "sms")
    assert shop.drain() == 1
    assert (shop.state("a", "sms"), runs) == (WorkState.DONE, ["a", "a"])
    assert shop.effects() == ([] if style == "reserved" else ["a"])
    assert deliver(shop) is ACK
    check_conservation(shop, "sms")


@pytest.mark.parametrize("style", MARKED)
def test_what_is_to_be_tried_later_is_tried_by_a_worker(shop: Shop, style: str) -> None:
    fails = [True]

    def once() -> None:
        if fails:
            fails.clear()
            fail()

    runs = handler(shop, style, once, errors=[on(ValueError).schedule([0.01]).dead_letter()])
    assert deliver(shop) is ACK
    wait_until(lambda: bool(shop.drain() or not shop.app.store.work_counts("inbox/sms")), "the second attempt")
    assert (shop.state("a", "sms"), runs) == (WorkState.DONE, ["a", "a"])
    check_conservation(shop, "sms")


@pytest.mark.parametrize("style", ALL)
def test_retries_keep_the_delivery(shop: Shop, style: str) -> None:
    fails = [True]

    def once() -> None:
        if fails:
            fails.clear()
            fail()

    runs = handler(shop, style, once, errors=[on(ValueError).retry([0]).dead_letter()])
    check(shop, style, Exit.OK, deliver(shop))
    assert runs == ["a", "a"]


@pytest.mark.parametrize("style", ALL)
def test_a_pause_in_a_rule_does_not_change_how_it_ends(shop: Shop, style: str) -> None:
    fails = [True]

    def once() -> None:
        if fails:
            fails.clear()
            fail()

    handler(shop, style, once, errors=[on(ValueError).retry([0]).pause(0.01).dead_letter()])
    check(shop, style, Exit.OK, deliver(shop))


@pytest.mark.parametrize("style", ALL)
def test_one_that_came_too_late_is_acknowledged_and_not_handled(shop: Shop, style: str) -> None:
    runs = handler(shop, style, fail, expire_s=60)
    check(shop, style, Exit.EXPIRED, deliver(shop, time=now_us() - 61_000_000))
    assert runs == []


# -- inline: duplicates


@pytest.mark.parametrize("style", MARKED)
def test_a_duplicate_whose_own_write_is_refused_is_no_dead_letter(shop: Shop, style: str) -> None:
    """The user's own key is violated before the mark is: it was handled, and stays so."""
    with shop.connect() as db:
        db.execute("CREATE UNIQUE INDEX once ON effect (id)")
    handler(shop, style, lambda: None)
    assert [deliver(shop), deliver(shop)] == [ACK, ACK]
    check(shop, style, Exit.OK, ACK)
    assert shop.app.dead_letters("sms") == []


@pytest.mark.parametrize("style", MARKED)
@pytest.mark.parametrize("state", [WorkState.READY, WorkState.SCHEDULED, WorkState.CLAIMED])
def test_a_duplicate_of_one_that_is_open_is_given_back(shop: Shop, style: str, state: WorkState) -> None:
    """Somebody else has it, or a worker will: an acknowledgement would lose it, should that one fail. A reserved
    handler knows that a row which nobody has claimed is stored with its body."""
    if style == "reserved" and state is WorkState.READY:
        return  # it takes such a row itself
    is_safe = style == "reserved" and state is WorkState.SCHEDULED
    runs = handler(shop, style, lambda: None)
    due = now_us() + 3_600_000_000 if state is WorkState.SCHEDULED else None
    shop.app.store.commit([Unit((shop.app.enqueue("sms", order(), due=due),))])
    if state is WorkState.CLAIMED:
        shop.app.store.commit([Unit((Claim("inbox/sms", "somebody"),))])
    assert deliver(shop) is (ACK if is_safe else GIVE_BACK)
    assert (shop.state("a", "sms"), shop.effects()) == (state, [])
    assert runs == (["a"] if style == "optimistic" else [])
    check_conservation(shop, "sms")


def test_a_parked_message_is_not_taken_up_by_its_duplicate(shop: Shop) -> None:
    runs = handler(shop, "reserved", fail, errors=[on(ValueError).park()])
    assert [deliver(shop), deliver(shop)] == [ACK, ACK]
    assert (runs, shop.state("a", "sms")) == (["a"], WorkState.PARKED)


# -- inline: the store is away, a commit is in doubt


@contextmanager
def away() -> Iterator[None]:
    def commit(store: Any, ops: Any) -> Any:
        raise StoreUnavailable("the store is away", fix="wait")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inline, "commit_unit", commit)
        patch.setattr(late_marks, "commit_unit", commit)
        yield


def test_a_reserved_handler_does_not_begin_without_its_claim(shop: Shop) -> None:
    runs = handler(shop, "reserved", fail)
    with away():
        end = deliver(shop)
    assert (runs, end, shop.app.store.work("inbox/sms", "a")) == ([], GIVE_BACK, None)


@pytest.mark.parametrize("style", ["eager", "optimistic"])
def test_a_transaction_that_cannot_begin_is_given_back(shop: Shop, style: str) -> None:
    def begin() -> Any:
        raise StoreUnavailable("the store is away", fix="wait")

    shop.app.provide(shop.connection, begin)
    runs = handler(shop, style, lambda: None)
    end = deliver(shop)
    assert (runs, end, shop.app.store.work("inbox/sms", "a")) == ([], GIVE_BACK, None)


@pytest.mark.parametrize("style", ["eager", "optimistic"])
@pytest.mark.parametrize("landed", [True, False], ids=["landed", "lost"])
def test_a_commit_in_doubt_is_found_out_by_the_next_attempt(shop: Shop, style: str, landed: bool) -> None:
    doubts = [True]

    @contextmanager
    def begin() -> Iterator[Any]:
        with shop.connect() as db:
            yield db
            if doubts and not landed:
                db.rollback()
        if doubts:
            doubts.clear()
            raise ConnectionError("the connection broke at the commit")

    shop.app.provide(shop.connection, begin)
    handler(shop, style, lambda: None)
    check(shop, style, Exit.OK, deliver(shop))
    assert shop.effects() == ["a"]


@pytest.mark.parametrize("style", ["eager", "optimistic"])
def test_the_last_attempt_in_doubt_leaves_no_dead_letter_of_what_was_handled(shop: Shop, style: str) -> None:
    @contextmanager
    def begin() -> Iterator[Any]:
        with shop.connect() as db:
            yield db
        raise ConnectionError("the connection broke at the commit")

    shop.app.provide(shop.connection, begin)
    handler(shop, style, lambda: None, errors=[on(ConnectionError).dead_letter()])
    check(shop, style, Exit.OK, deliver(shop))
    assert shop.app.dead_letters("sms") == []


def test_a_mark_that_is_not_yet_written_gets_a_last_try_at_the_end(shop: Shop) -> None:
    """The effect has happened. Closing the application writes what the store would not take before."""
    patches: list[Any] = []

    def go_away() -> None:
        patches.append(away())
        patches[-1].__enter__()

    handler(shop, "reserved", go_away)
    assert deliver(shop) is ACK
    assert shop.state("a", "sms") is WorkState.CLAIMED
    patches[-1].__exit__(None, None, None)
    shop.app.close()
    check(shop, "reserved", Exit.OK, ACK)


def test_a_mark_is_written_though_a_worker_has_put_its_message_aside(shop: Shop) -> None:
    """While the store was away the claim has run out."""
    handler(shop, "reserved", lambda: None)
    shop.app.store.commit([Unit((Enqueue("inbox/sms", "a", reservation_of(order()), scope="inbox/shop/id"),))])
    shop.app.store.commit([Unit((Claim("inbox/sms", "a process that hung", lease_s=0.0),))])
    fence = shop.row("a", "sms").fence
    shop.drain()
    row = shop.row("a", "sms")
    assert (row.state, row.cause) == (WorkState.DEFERRED, DIED)
    shop.app.mark_later((Finish("inbox/sms", "a", WorkState.DONE, fence=fence),))
    wait_until(lambda: shop.state("a", "sms") is WorkState.DONE, "the mark")


# -- inline: cut off


@pytest.mark.parametrize("style", MARKED)
@pytest.mark.parametrize("on_crash", ["retry", "drop", "park"])
def test_a_delivery_that_is_cancelled_leaves_what_a_crash_would(shop: Shop, style: str, on_crash: str) -> None:
    """Between effect and mark: a reserved claim stays, and nobody runs it beside the one that may go on."""
    if style != "reserved" and on_crash != "retry":
        return
    begun = asyncio.Event()
    runs: list[str] = []
    shop.app.endpoint("sms", mode="inline", on_crash=on_crash, lease_s=scaled(0.4))
    waits = [True]

    async def effect(id: str, db: Any = None) -> None:
        runs.append(id)
        if db is not None:
            await asyncio.to_thread(write, db, id)
        if waits:
            begun.set()
            await asyncio.Event().wait()

    if style == "reserved":

        @shop.on("sms", idempotency=style)
        async def call(order: Order) -> None:
            await effect(order.id)
    else:

        @shop.on("sms", idempotency=style)
        async def text(order: Order, db: Any) -> None:
            await effect(order.id, db)

    async def cut_off() -> DeliveryEnd:
        task = asyncio.create_task(shop.app.deliver("sms", order()))
        await asyncio.wait_for(begun.wait(), scaled(30))
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        waits.clear()
        if style == "reserved":
            assert shop.state("a", "sms") is WorkState.CLAIMED
            assert await shop.app.deliver("sms", order()) is GIVE_BACK, "the claim is not over"
        async with asyncio.timeout(scaled(30)):
            while (end := await shop.app.deliver("sms", order())) is GIVE_BACK:  # noqa: ASYNC110 - as a broker does
                await asyncio.sleep(0.02)
        return end

    assert asyncio.run(cut_off()) is ACK
    wanted = WorkState.PARKED if on_crash == "park" else WorkState.DONE
    assert (shop.state("a", "sms"), len(runs)) == (wanted, 2 if on_crash == "retry" else 1)
    assert shop.effects() == ([] if style == "reserved" else ["a"])
    if on_crash == "park":
        assert b"ada" in shop.row("a", "sms").envelope.data, "with the body of the delivery that found it"
    check_conservation(shop, "sms")


def test_a_handler_that_takes_longer_than_its_lease_keeps_its_claim(shop: Shop) -> None:
    ends: list[DeliveryEnd] = []
    lease_s = scaled(0.3)
    shop.app.endpoint("sms", mode="inline", lease_s=lease_s)

    @shop.on("sms", idempotency="reserved")
    async def call(order: Order) -> None:
        first = shop.row("a", "sms").due
        async with asyncio.timeout(scaled(30)):
            while shop.row("a", "sms").due < first + lease_s * 1_000_000:  # noqa: ASYNC110 - the store renews it
                await asyncio.sleep(0.02)
        ends.append(await shop.app.deliver("sms", envelope_of(order, order.id)))

    assert (deliver(shop), ends) == (ACK, [GIVE_BACK])


# -- durable


DURABLE = {
    Exit.REQUEUE: (on(ValueError).requeue(1).discard(), WorkState.DONE, [Kind.FAILED, Kind.DISCARDED]),
    Exit.DISCARD: (on(ValueError).discard(), WorkState.DONE, [Kind.DISCARDED]),
    Exit.DEAD_LETTER: (on(ValueError).dead_letter(), WorkState.DEAD, [Kind.DEAD_LETTERED]),
    Exit.PARK: (on(ValueError).park(), WorkState.PARKED, [Kind.SUSPENDED]),
    Exit.SCHEDULE: (on(ValueError).schedule([0]).park(), WorkState.PARKED, [Kind.FAILED, Kind.SUSPENDED]),
}


@pytest.mark.parametrize("has_transaction", [True, False], ids=["optimistic", "reserved"])
@pytest.mark.parametrize("exit", DURABLE, ids=lambda exit: exit.name.lower())
def test_a_stored_message_ends_as_its_rule_says(shop: Shop, exit: Exit, has_transaction: bool) -> None:
    rule, state, kinds = DURABLE[exit]
    shop.app.endpoint("orders", errors=[rule])
    fails_at(shop, has_transaction)
    shop.send("a")
    shop.drain()
    assert (shop.state("a"), shop.history("a"), shop.effects()) == (state, [Kind.ACCEPTED, *kinds], [])
    check_conservation(shop, "orders")


def fails_at(shop: Shop, has_transaction: bool) -> None:
    if has_transaction:

        @shop.on("orders")
        def text(order: Order, db: Any) -> None:
            write(db, order.id)
            fail()
    else:

        @shop.on("orders")
        def call(order: Order) -> None:
            fail()


@pytest.mark.parametrize(
    ("on_crash", "outside", "state"),
    [("retry", False, WorkState.READY), ("retry", True, WorkState.CLAIMED), ("park", True, WorkState.CLAIMED)],
)
def test_a_handler_that_outlasts_its_process_is_cut_off(
    shop: Shop, on_crash: str, outside: bool, state: WorkState
) -> None:
    """What it did in its transaction is rolled back and its message given back uncounted. With effects outside nobody
    knows: its claim runs out."""
    begun = asyncio.Event()
    shop.app.endpoint("orders", on_crash=on_crash, errors=[on(Exception).dead_letter()])

    @shop.on("orders", outside=outside)
    async def handle(order: Order, db: Any) -> None:
        await asyncio.to_thread(write, db, order.id)
        begun.set()
        await asyncio.Event().wait()

    async def serve() -> None:
        async with InboxService(shop.app) as service:
            await asyncio.wait_for(begun.wait(), scaled(30))
            await service.performer.close(timeout_s=0.01)

    shop.send("a")
    asyncio.run(serve())
    row = shop.row("a")
    assert (row.state, row.attempts, shop.effects()) == (state, 0 if state is WorkState.READY else 1, [])
    check_conservation(shop, "orders")


@pytest.mark.parametrize(("outside", "state", "attempts"), [(False, WorkState.READY, 0), (True, WorkState.CLAIMED, 1)])
def test_a_thread_that_outlasts_its_process_is_cut_off(
    shop: Shop, outside: bool, state: WorkState, attempts: int
) -> None:
    """The same for a plain function. What the threads had not begun is given back as it was. One that goes on after its
    process has given up commits only under a claim that is still its own."""
    begun, go_on = threading.Event(), threading.Event()
    shop.app.endpoint("orders", errors=[on(Exception).dead_letter()])

    @shop.on("orders", outside=outside)
    def handle(order: Order, db: Any) -> None:
        begun.set()
        go_on.wait(scaled(30))
        write(db, order.id)

    async def serve() -> InboxService:
        async with InboxService(shop.app) as service:
            assert await asyncio.to_thread(begun.wait, scaled(30))
            await service.performer.close(timeout_s=0.01)
        return service

    shop.send("a")
    shop.send("b")
    service = asyncio.run(serve())
    assert (shop.state("a"), shop.row("a").attempts) == (state, attempts)
    assert (shop.state("b"), shop.row("b").attempts) == (WorkState.READY, 0)
    go_on.set()
    for thread in service._lanes[0]._threads:
        thread.join(scaled(30))
    assert shop.effects() == (["a"] if outside else [])
    check_conservation(shop, "orders")


@pytest.mark.parametrize(("on_crash", "states"), [("drop", {WorkState.DONE}), ("park", {WorkState.PARKED})])
def test_only_what_was_begun_is_ambiguous_after_a_crash(shop: Shop, on_crash: str, states: set[WorkState]) -> None:
    """A worker claims no more than its handlers have: what waits in memory would be dropped or parked for nothing."""
    begun = asyncio.Event()
    shop.app.endpoint("orders", on_crash=on_crash, parallel=2)

    @shop.on("orders")
    async def handle(order: Order) -> None:
        begun.set()
        await asyncio.Event().wait()

    async def serve() -> None:
        async with InboxService(shop.app) as service:
            await asyncio.wait_for(begun.wait(), scaled(30))
            claimed = shop.app.store.work_rows("inbox/orders", (WorkState.CLAIMED,))
            assert len(claimed) <= 2
            await service.performer.close(timeout_s=0.01)

    for number in range(6):
        shop.send(str(number))
    asyncio.run(serve())
    assert len(shop.app.store.work_rows("inbox/orders", (WorkState.READY,))) >= 4


def test_a_parked_head_keeps_its_key_waiting(shop: Shop) -> None:
    shop.app.endpoint("orders", on_crash="park")
    runs: list[str] = []

    @shop.on("orders", key=lambda order: order.customer)
    def handle(order: Order) -> None:
        runs.append(order.id)

    shop.send("a")
    shop.send("b")
    shop.app.store.commit([Unit((Claim("inbox/orders", "a process that died", lease_s=0.0),))])
    shop.drain()
    assert (runs, shop.state("a"), shop.state("b")) == ([], WorkState.PARKED, WorkState.READY)
    shop.app.discard("orders", "a")
    shop.drain()
    assert runs == ["b"]
    check_conservation(shop, "orders")
