"""A follower's turns on stores in memory: who follows, what stops it, and what comes of any trouble in between."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from semel import App
from semel.errors import ConfigError, InputError, StoreUnavailable
from semel.inbox.following import FollowStart
from semel.inbox.identity import Identity
from semel.inbox.messages import envelope_of
from semel.kernel.envelope import Envelope
from semel.kernel.ledger import START as START_MARK
from semel.kernel.ops import Append, Finish, Outcome, Put, Trim, Unit, WorkState
from semel.kernel.store import Records
from semel.runtime.inbox import following
from semel.runtime.inbox.following import (
    REST_S,
    FollowTurn,
    SourceStore,
    StreamFollower,
    end_follow,
    find_follow,
    follow_from,
    follow_status,
    followed,
)
from semel.stores.memory import MemoryStore

STREAM = "orders-in"


@dataclass
class Order:
    id: str


class World:
    """Two stores, one clock, and as many followers as are asked for."""

    def __init__(self, **options: Any) -> None:
        self.now = 1_000.0
        self.source = MemoryStore(store_id="source", clock=self.micros)
        self.inbox = MemoryStore(store_id="inbox", clock=self.micros)
        self.app = App(self.inbox, name="shop")
        self.app.endpoint("orders", lease_s=10.0, **options).on(Order)(lambda order: None)
        self.app.follow("orders", STREAM, store="elsewhere")

    def micros(self) -> int:
        return int(self.now * 1_000_000)

    def follower(self, owner: str = "a") -> StreamFollower:
        source: Any = SourceStore(lambda: self.source, None, "x")
        return StreamFollower(self.app, self.app.follows[0], owner=owner, clock=lambda: self.now, source=source)

    def put(self, *ids: str, stream: str = STREAM, **more: Any) -> None:
        self.source.commit([Unit((Append(stream, envelope_of(Order(id), id), **more),)) for id in ids])

    def rows(self) -> list[str]:
        rows = self.inbox.work_rows("inbox/orders", set(WorkState), limit=10_000)
        return [row.envelope.id for row in rows]

    def until_rest(self, follower: StreamFollower) -> FollowTurn:
        for _ in range(1000):
            turn = follower.turn()
            if turn is not FollowTurn.MOVED:
                return turn
        raise AssertionError("it never comes to rest")


def test_it_takes_the_records_in_order_and_pins_what_it_has_not() -> None:
    world = World()
    follower = world.follower()
    world.put("a", "b", "c")
    assert world.until_rest(follower) is FollowTurn.RESTING
    assert world.rows() == ["a", "b", "c"]
    world.source.commit([Unit((Trim(STREAM, 100),))])
    assert isinstance(world.source.read(STREAM, world.source.cursor(pin(world)), 10), Records)
    world.put("d")
    world.now += 5
    assert world.until_rest(follower) is FollowTurn.RESTING
    assert world.rows()[-1] == "d"


def pin(world: World) -> str:
    [name] = [each.name for each in world.source.status().cursors if each.pins]
    return name


def test_what_was_not_taken_is_not_trimmed() -> None:
    world = World()
    follower = world.follower()
    world.until_rest(follower)
    world.put("a", "b")
    world.source.commit([Unit((Trim(STREAM, 100),))])
    assert world.until_rest(follower) is FollowTurn.RESTING
    assert world.rows() == ["a", "b"]


def test_the_pin_is_there_before_the_cursor_and_before_anything_is_read() -> None:
    world = World(buffer_high=1, buffer_low=1)
    for id in ("x", "y"):
        world.app.send(Order(id), to="orders", id=id)
    world.put("a", "b")
    assert world.follower().turn() is FollowTurn.HELD
    world.source.commit([Unit((Trim(STREAM, 100),))])
    [stream] = world.source.status().streams
    assert stream.first == 1


def test_an_idle_follower_gives_the_lease_back_and_writes_nothing() -> None:
    world = World()
    follower, other = world.follower(), world.follower("b")
    world.put("a")
    world.until_rest(follower)
    world.put("b")
    assert other.turn() is FollowTurn.ELSEWHERE
    world.until_rest(follower)
    world.now += REST_S + 1
    follower.turn()
    world.put("c")
    assert world.until_rest(other) is FollowTurn.RESTING
    assert world.rows() == ["a", "b", "c"]


def test_one_that_was_taken_for_dead_writes_nothing() -> None:
    """It has read; another takes over meanwhile; its commit is refused by the fence."""
    world = World()
    late, other = world.follower("late"), world.follower("other")
    world.put("a")
    world.until_rest(late)
    world.put("b", "c")
    reading = world.source.read

    def take_over(*args: Any) -> Any:
        found = reading(*args)
        world.source.read = reading  # type: ignore[method-assign]
        world.now += 60
        assert world.until_rest(other) is FollowTurn.RESTING
        return found

    world.source.read = take_over  # type: ignore[method-assign]
    assert late.turn() is FollowTurn.ELSEWHERE
    assert world.rows() == ["a", "b", "c"]
    assert Counter(entry.event.kind.name for entry in world.inbox.history("b")) == {"ACCEPTED": 2}, "on two hops, once"


def test_a_new_epoch_stops_it_until_somebody_says_from_where(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    follower = world.follower()
    world.put("a")
    world.until_rest(follower)
    world.source.raise_epoch("restored")
    world.put("b")
    assert follower.turn() is FollowTurn.STOPPED
    assert "semel inbox follow MODULE:APP orders orders-in --from" in caplog.text
    assert world.rows() == ["a"]
    assert world.until_rest(world.follower("b")) is FollowTurn.STOPPED, "all processes see it"
    [stopped] = [each for each in status(world) if each.stream == STREAM]
    assert "is in epoch 2" in stopped.stopped
    restart(world, FollowStart.EARLIEST)
    assert world.until_rest(follower) is FollowTurn.RESTING
    assert world.rows() == ["a", "b"], "what is there is read again, and known ids are duplicates"


def status(world: World) -> Any:
    return with_source(world, lambda: follow_status(world.app))


def restart(world: World, start: FollowStart) -> None:
    with_source(world, lambda: follow_from(world.app, "orders", STREAM, start))


def with_source(world: World, call: Callable[[], Any]) -> Any:
    opening = following.open_store
    following.open_store = lambda url, **more: world.source  # type: ignore[assignment]
    close, world.source.close = world.source.close, lambda: None  # type: ignore[method-assign]
    try:
        return call()
    finally:
        following.open_store = opening
        world.source.close = close  # type: ignore[method-assign]


def test_records_that_were_trimmed_stop_it() -> None:
    """Somebody has removed the pin, or the inbox was restored from a backup."""
    world = World()
    follower = world.follower()
    world.put("a")
    world.until_rest(follower)
    before = world.inbox.state(follower._key)
    assert before is not None
    world.put("b", "c", "d")
    world.until_rest(follower)
    world.source.commit([Unit((Trim(STREAM, 4),))])
    world.inbox.commit([Unit((Put(follower._key, before.value),))])
    world.put("e")
    assert follower.turn() is FollowTurn.STOPPED
    [stopped] = [each for each in status(world) if each.stream == STREAM]
    assert "2 records of orders-in were trimmed before they were taken" in stopped.stopped
    restart(world, FollowStart.LATEST)
    world.put("f")
    world.until_rest(follower)
    assert world.rows() == ["a", "b", "c", "d", "f"], "an operator left e out, and the ledger says so"
    actions = [e.event for e in world.inbox.ledger(START_MARK, 1000) if e.event.kind.name == "ACTION"]
    assert [event.message for event in actions] == ["follow stopped", "follow restarted"]


def test_another_store_under_the_same_url_stops_it() -> None:
    world = World()
    follower = world.follower()
    world.put("a")
    world.until_rest(follower)
    world.source = MemoryStore(store_id="other", clock=world.micros)
    world.put("x", "y")
    assert follower.turn() is FollowTurn.STOPPED
    assert world.rows() == ["a"]


def test_ended_nothing_is_kept_for_it_any_more() -> None:
    world = World()
    follower = world.follower()
    world.put("a", "b")
    world.until_rest(follower)
    with_source(world, lambda: end_follow(world.app, "orders", STREAM))
    assert world.inbox.state(follower._key) is None
    assert not any(each.pins for each in world.source.status().cursors)


def test_it_reads_no_more_than_the_endpoint_can_do() -> None:
    world = World(buffer_high=3, buffer_low=2)
    follower = world.follower()
    world.put(*(f"{at:03}" for at in range(300)))
    assert world.until_rest(follower) is FollowTurn.HELD
    assert len(world.rows()) == 200, "one batch"
    finish(world, 198)
    assert follower.turn() is FollowTurn.HELD
    finish(world, 1)
    assert follower.turn() is FollowTurn.MOVED
    assert len(world.rows()) == 300


def finish(world: World, count: int) -> None:
    rows = world.inbox.work_rows("inbox/orders", [WorkState.READY], limit=count)
    world.inbox.commit([Unit((Finish(row.queue, row.identity, WorkState.DONE),)) for row in rows])


def test_a_record_that_the_store_refuses_is_found_and_kept() -> None:
    """The other records of its batch are stored, and it is a dead letter."""
    world = World()
    world.put("a", "b", "c")
    missing = Envelope("bad", type="Order", data=b"x")
    world.source.commit([Unit((Append(STREAM, missing),))])
    world.put("d")
    enqueue = world.app.enqueue

    def refusing(endpoint: str, envelope: Envelope, **more: Any) -> Any:
        op = enqueue(endpoint, envelope, **more)
        return msgspec.structs.replace(op, identity="x" * 300) if envelope.id == "bad" else op

    world.app.enqueue = refusing  # type: ignore[method-assign]
    follower = world.follower()
    assert world.until_rest(follower) is FollowTurn.RESTING
    kinds = {row.envelope.type for row in world.inbox.work_rows("inbox/orders", set(WorkState))}
    assert kinds == {"Order", "unreadable"}
    assert [id for id in world.rows() if not id.startswith("unreadable")] == ["a", "b", "c", "d"]


def test_only_durable_endpoints_follow_and_none_twice() -> None:
    app = App(MemoryStore(), name="shop")
    app.endpoint("sms", mode="inline")
    app.endpoint("orders")
    with pytest.raises(InputError, match="inline"):
        app.follow("sms", "a")
    app.follow("orders", "a")
    app.follow("orders", "a", name="second")
    with pytest.raises(ConfigError, match="follows 'a' twice"):
        app.follow("orders", "a")
    assert [(each.stream, each.is_entrance) for each in followed(app)] == [
        ("inbox/orders", True), ("a", False), ("a", False),
    ]  # fmt: skip
    with pytest.raises(InputError, match="does not follow"):
        find_follow(app, "orders", "b")


# -- the stream of the endpoint itself


def test_what_is_appended_to_the_stream_of_an_endpoint_is_handled_and_trimmed() -> None:
    seen: list[str] = []
    app = App(MemoryStore(), name="shop")
    app.endpoint("orders").on(Order)(lambda order: seen.append(order.id))
    for id in ("a", "b", "a"):
        app.store.commit([Unit((Append("inbox/orders", envelope_of(Order(id), id)),))])
    assert app.drain() == 2
    assert seen == ["a", "b"]
    assert [entry.event.kind.name for entry in app.store.history("a")].count("DUPLICATE") == 1
    [stream] = [each for each in app.store.status().streams if each.name == "inbox/orders"]
    assert stream.first == stream.head + 1
    assert app.drain() == 0


def test_an_endpoint_that_nobody_appends_to_costs_no_rows() -> None:
    app = App(MemoryStore(), name="shop")
    app.endpoint("orders").on(Order)(lambda order: None)
    app.drain()
    assert app.store.states("inbox/follow/") == []
    assert app.store.status().cursors == ()


def test_records_of_an_entrance_that_were_trimmed_before_anybody_looked_stop_it() -> None:
    app = App(MemoryStore(), name="shop")
    app.endpoint("orders").on(Order)(lambda order: None)
    app.store.commit([Unit((Append("inbox/orders", envelope_of(Order(id), id)),)) for id in "abc"])
    app.store.commit([Unit((Trim("inbox/orders", 3),))])
    assert app.drain() == 0
    [found] = follow_status(app)
    assert "2 records of inbox/orders were trimmed" in found.stopped


def test_the_inbox_restored_in_a_new_epoch_goes_on() -> None:
    seen: list[str] = []
    app = App(MemoryStore(), name="shop")
    app.endpoint("orders").on(Order)(lambda order: seen.append(order.id))
    for id in ("a", "b"):
        app.store.commit([Unit((Append("inbox/orders", envelope_of(Order(id), id)),))])
        app.drain()
        app.store.raise_epoch("restored")
    assert seen == ["a", "b"]


def test_what_was_accepted_stands_in_the_log_once() -> None:
    app = App(MemoryStore(), name="shop")
    app.endpoint("orders", log=True).on(Order)(lambda order: None)
    for id in ("a", "b", "a"):
        app.send(Order(id), to="orders", id=id)
        app.store.commit([Unit((Append("inbox/orders", envelope_of(Order(id), id)),))])
    app.store.commit([Unit((Append("inbox/orders", envelope_of(Order("c"), "c")),))])
    app.drain()
    found = app.store.read("inbox/orders/log")
    assert isinstance(found, Records)
    assert [record.envelope.id for record in found.records] == ["a", "b", "c"]
    with pytest.raises(ConfigError, match="has a log"):
        app.endpoint("sms", mode="inline", log=True)


# -- any trouble


class Troubled(MemoryStore):
    """Commits fail before or after they happened, as the dice say."""

    dice: random.Random | None = None

    def commit(self, units: Sequence[Unit]) -> list[Outcome]:
        if self.dice is not None and self.dice.random() < 0.15:
            raise StoreUnavailable("no connection", fix="wait")
        outcomes = super().commit(units)
        if self.dice is not None and self.dice.random() < 0.15:
            raise StoreUnavailable("it died before it could tell", fix="wait")
        return outcomes


@pytest.mark.parametrize("seed", range(60))
def test_whatever_goes_wrong_each_record_becomes_one_row(seed: int) -> None:
    """Three processes, of which any may die at any commit, pause past its lease, or find the store away. Ids tell
    nothing here: there are five, which is what a row is known by in the ledger, and the position what it is counted
    by."""
    dice, world = random.Random(seed), World(buffer_high=100_000)
    world.inbox = Troubled(store_id="inbox", clock=world.micros)
    world.source = Troubled(store_id="source", clock=world.micros)
    world.app = App(world.inbox, name="shop", identity="id")
    world.app.endpoint("orders", lease_s=2.0).on(Order)(lambda order: None)
    world.app.follow("orders", STREAM, store="elsewhere")
    places: Counter[str] = Counter()
    world.app.identity_of = lambda endpoint, envelope: one_of_its_own(places)  # type: ignore[method-assign,assignment]
    assert world.app.handlers
    followers = [world.follower(str(at)) for at in range(3)]
    world.inbox.dice = world.source.dice = dice
    written = 0
    for _ in range(150):
        world.now += dice.choice([0.01, 0.1, 3.0])
        if dice.random() < 0.5:
            world.source.dice = None
            world.put(*(f"m{at % 5}" for at in range(written, written + dice.randint(1, 5))))
            written = world.source.head(STREAM).offset
            world.source.dice = dice
        at = dice.randrange(3)
        if dice.random() < 0.1:
            followers[at] = world.follower(f"{at} reborn {world.now}")
        try:
            followers[at].turn()
        except StoreUnavailable:
            continue
    world.inbox.dice = world.source.dice = None
    world.now += 60
    world.until_rest(world.follower("last"))
    found = [entry.event.delivery for entry in world.inbox.ledger(START_MARK, 100_000) if entry.event.hop == HOP]
    assert found == [f"{STREAM}/1/{offset}" for offset in range(1, written + 1)]


def one_of_its_own(places: Counter[str]) -> Any:
    """An identity that nobody has had: only the cursor keeps a record from being taken twice."""
    places["all"] += 1
    return Identity("inbox/orders", "inbox/orders", f"row {places['all']}")


HOP = f"{STREAM}>inbox/orders"
