from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import pairwise
from typing import Any
from unittest.mock import Mock

import pytest

from semel.errors import StoreUnavailable
from semel.kernel.effects import (
    Close,
    Commit,
    CommitFailed,
    Committed,
    Deliver,
    Delivered,
    DeliverFailed,
    DeliverLost,
    Effect,
    Event,
    Load,
    Loaded,
    LoadFailed,
    Notify,
    OwnTransaction,
    PeerConnected,
    PeerDisconnected,
    Read,
    ReadDone,
    ReadFailed,
    Received,
    Resume,
    Send,
    SendFailed,
    Sent,
    SetTimer,
    TimerFired,
)
from semel.kernel.envelope import Envelope
from semel.kernel.group import GroupLimits
from semel.kernel.interpreter import Seat
from semel.kernel.ledger import START, Kind
from semel.kernel.ops import Claim, Enqueue, Op, Put, Renew, Unit, WorkRow, WorkState
from semel.kernel.position import Position
from semel.kernel.retry import RetryPolicy
from semel.kernel.store import Record, Store
from semel.kernel.work import Follower, FollowerConfig, Worker, WorkerConfig
from semel.runtime.host.committer import Committer
from semel.runtime.host.performer import Performer
from semel.runtime.transports.base import Inbox
from semel.stores.points import on_reach
from semel.testing.limits import scaled
from unit.runtime.stores import STREAM, ScriptedStore, append, ids

Answer = Callable[[Event], Sequence[Effect]]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(scaled(30)):
        while not condition():  # noqa: ASYNC110 - the condition belongs to code that offers no event
            await asyncio.sleep(0.001)


class Puppet:
    """A machine that does what a test tells it to, and remembers what it heard."""

    wants_sent = True

    def __init__(self, name: str = "puppet", begin: Sequence[Effect] = (), answer: Answer | None = None) -> None:
        self.name = name
        self.begin = begin
        self.answer = answer or (lambda event: ())
        self.heard: list[Event] = []
        self.deadline: float | None = None
        self.on_deadline: Sequence[Effect] = ()
        self._changed = asyncio.Event()

    def start(self, now: float) -> Sequence[Effect]:
        return self.begin

    def receive(self, event: Event, now: float) -> Sequence[Effect]:
        self.heard.append(event)
        self._changed.set()
        return self.answer(event)

    def next_deadline(self) -> float | None:
        return self.deadline

    def on_timer(self, now: float) -> Sequence[Effect]:
        self.deadline = None
        return self.on_deadline

    async def hears(self, kind: type[Event]) -> Any:
        """Wait until it has heard an event of this kind."""
        async with asyncio.timeout(scaled(30)):
            while True:
                for event in self.heard:
                    if isinstance(event, kind):
                        return event
                self._changed.clear()
                await self._changed.wait()


class Wire:
    """A transport that keeps what it is given."""

    def __init__(self) -> None:
        self.inbox: Inbox | None = None
        self.sent: list[tuple[str, Any]] = []
        self.written: list[tuple[str, Any]] = []
        self.open = True
        self.log: list[str] = []

    def bind(self, inbox: Inbox) -> None:
        self.inbox = inbox

    def send(self, peer: str, message: Any) -> bool:
        if self.open:
            self.sent.append((peer, message))
        return self.open

    def flush(self) -> None:
        self.written += self.sent
        self.sent = []

    def pause(self) -> None:
        self.log.append("pause")

    async def close(self) -> None:
        self.log.append("close")


@pytest.fixture
def store() -> ScriptedStore:
    return ScriptedStore()


@pytest.fixture
async def performer(store: ScriptedStore) -> AsyncIterator[Performer]:
    async with Performer(store) as performer:
        yield performer
        store.gate.set()


async def test_a_machine_hears_what_became_of_its_commit(store: ScriptedStore, performer: Performer) -> None:
    puppet = Puppet(begin=[Commit((append("a"),), token=7)])
    performer.add(puppet)

    committed = await puppet.hears(Committed)
    assert committed.token == 7
    assert ids(store) == ["a"]


async def test_machines_and_producers_share_transactions(store: ScriptedStore, performer: Performer) -> None:
    committer = Committer(performer)
    puppet = Puppet(begin=[Commit((append("machine"),), token=1)])
    performer.add(puppet)
    await committer.commit([append("producer")])
    await puppet.hears(Committed)

    assert store.groups == [[["machine"], ["producer"]]]


async def test_a_send_leaves_only_after_the_machines_have_heard_of_the_commit(performer: Performer) -> None:
    wire = Wire()
    performer.attach(wire)
    at_completed: list[tuple[bool, int]] = []

    def confirm(event: Event) -> Sequence[Effect]:
        return [Send("peer", "confirm")] if isinstance(event, Committed) else ()

    puppet = Puppet(begin=[Commit((append("a"),), token=1)], answer=confirm)

    def look(point: str) -> None:
        if point == "perform.completed":
            at_completed.append((isinstance(puppet.heard[0], Committed), len(wire.written)))

    on_reach(look)
    try:
        performer.add(puppet, transport=wire)
        await puppet.hears(Sent)
    finally:
        on_reach(None)

    assert at_completed == [(True, 0)]
    assert wire.written == [("peer", "confirm")]


async def test_a_send_that_nobody_takes_is_reported(performer: Performer) -> None:
    wire = Wire()
    wire.open = False
    performer.attach(wire)
    puppet, alone = Puppet("with", begin=[Send("peer", "x")]), Puppet("without", begin=[Send("peer", "x")])
    performer.add(puppet, transport=wire)
    performer.add(alone)

    assert (await puppet.hears(SendFailed)).peer == "peer"
    assert (await alone.hears(SendFailed)).peer == "peer"


async def test_a_read_waits_until_there_is_something(store: ScriptedStore, performer: Performer) -> None:
    puppet = Puppet(begin=[Read(STREAM, None, 10)])
    performer.add(puppet)
    await Committer(performer).commit([append("a")])

    done = await puppet.hears(ReadDone)
    assert [record.envelope.id for record in done.records] == ["a"]


async def test_a_read_is_woken_by_a_commit_from_elsewhere(store: ScriptedStore, performer: Performer) -> None:
    puppet = Puppet(begin=[Read(STREAM, None, 10)])
    performer.add(puppet)
    await asyncio.to_thread(store.commit, [Unit((append("elsewhere"),))])

    done = await puppet.hears(ReadDone)
    assert [record.envelope.id for record in done.records] == ["elsewhere"]


async def test_reads_and_loads_that_fail_are_told(store: ScriptedStore, performer: Performer) -> None:
    store.failing_reads.extend([StoreUnavailable("gone", fix=""), RuntimeError("odd")])
    puppet = Puppet(begin=[Read(STREAM, None, 10)])
    performer.add(puppet)
    assert isinstance((await puppet.hears(ReadFailed)).error, StoreUnavailable)

    other = Puppet("other", begin=[Load("key")])
    performer.add(other)
    assert "odd" in (await other.hears(LoadFailed)).error.message


async def test_state_is_loaded(performer: Performer) -> None:
    await Committer(performer).commit([Put("key", b"value")])
    puppet = Puppet(begin=[Load("key"), Load("no such key")])
    performer.add(puppet)
    await until(lambda: len(puppet.heard) == 2)

    states = {event.key: event.state for event in puppet.heard if isinstance(event, Loaded)}
    assert states["key"] is not None
    assert states["key"].value == b"value"
    assert states["no such key"] is None


async def test_a_slow_read_blocks_neither_the_loop_nor_commits(store: ScriptedStore, performer: Performer) -> None:
    reading, go_on = threading.Event(), threading.Event()

    class Slow(Exception):
        pass

    def slow(*_: Any) -> Any:
        reading.set()
        assert go_on.wait(scaled(30))
        raise Slow

    performer._readers.submit(slow, lambda _: None, lambda _: None)
    assert await asyncio.to_thread(reading.wait, 10)
    await Committer(performer).commit([append("a")])
    go_on.set()

    assert ids(store) == ["a"]


async def test_timers_fire_at_their_time_and_can_be_set_anew(performer: Performer) -> None:
    now = performer._clock()
    puppet = Puppet(begin=[SetTimer("late", now + 60), SetTimer("soon", now + 0.02)])
    performer.add(puppet)

    assert await puppet.hears(TimerFired) == TimerFired("soon")
    assert performer._clock() >= now + 0.02


async def test_a_wall_clock_that_is_set_back_does_not_hold_up_the_machines(
    store: ScriptedStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    wall = [1_000_000.0]
    monkeypatch.setattr("time.time", lambda: wall[0])
    async with Performer(store) as performer:
        before = performer._clock()
        wall[0] -= 3600
        puppet = Puppet(begin=[SetTimer("soon", performer._clock() + 0.02)])
        performer.add(puppet)
        await puppet.hears(TimerFired)
        assert 0.02 <= performer._clock() - before < 60
    assert 0 <= before - 1_000_000 < 60


async def test_a_machines_own_deadline_is_kept(performer: Performer) -> None:
    puppet = Puppet()
    puppet.deadline = performer._clock() + 0.02
    puppet.on_deadline = [Commit((append("on time"),), token=1)]
    performer.add(puppet)

    await puppet.hears(Committed)


async def test_messages_reach_the_machines_of_their_transport_and_peer(performer: Performer) -> None:
    wire, other_wire = Wire(), Wire()
    performer.attach(wire)
    performer.attach(other_wire)
    all_peers, one_peer, elsewhere = Puppet("all"), Puppet("one"), Puppet("elsewhere")
    performer.add(all_peers, transport=wire)
    performer.add(one_peer, transport=wire, peers={"b"})
    performer.add(elsewhere, transport=other_wire)

    performer.connected(wire, "a")
    performer.received(wire, "a", "for a")
    performer.received(wire, "b", "for b")
    performer.disconnected(wire, "b")

    assert all_peers.heard == [
        PeerConnected("a"),
        Received("a", "for a"),
        Received("b", "for b"),
        PeerDisconnected("b"),
    ]
    assert one_peer.heard == [Received("b", "for b"), PeerDisconnected("b")]
    assert elsewhere.heard == []


async def test_an_operators_word_reaches_a_machine_by_name(performer: Performer) -> None:
    puppet = Puppet()
    performer.add(puppet)
    performer.feed("puppet", Resume())
    performer.feed("nobody", Resume())

    assert puppet.heard == [Resume()]


# -- the application's code


def row() -> WorkRow:
    return WorkRow("inbox/q", "w", None, 1, WorkState.CLAIMED, 0, 1, 1, "me", Envelope(id="w"))


async def deliver(performer: Performer, handler: Any) -> Delivered | DeliverFailed:
    puppet = Puppet(begin=[Deliver(row(), token=3)])
    performer.add(puppet, handler=handler)
    event = await puppet.hears(Delivered | DeliverFailed)
    assert isinstance(event, Delivered | DeliverFailed)
    assert event.token == 3
    return event


async def test_an_async_handler_runs_on_the_loop(performer: Performer) -> None:
    where: list[int] = []

    async def handle(item: WorkRow | Record) -> list[Op]:
        where.append(threading.get_ident())
        return [Put("done", item.envelope.id.encode())]

    assert await deliver(performer, handle) == Delivered(3, (Put("done", b"w"),))
    assert where == [threading.get_ident()]


async def test_a_plain_handler_runs_on_a_thread(performer: Performer) -> None:
    where: list[int] = []

    def handle(item: WorkRow | Record) -> None:
        where.append(threading.get_ident())

    assert await deliver(performer, handle) == Delivered(3, ())
    assert where != [threading.get_ident()]


def raises(error: BaseException) -> Callable[[Any], None]:
    def handle(item: Any) -> None:
        raise error

    return handle


@pytest.mark.parametrize(
    ("handler", "cause"),
    [
        (raises(ValueError("no such customer\nsecond line")), "ValueError: no such customer"),
        (raises(KeyError()), "KeyError"),
        (raises(SystemExit("stop")), "SystemExit: stop"),
        (raises(RuntimeError("x" * 5000)), "RuntimeError: " + "x" * 185 + "…"),
        (lambda item: "text", "HandlerError: the handler of puppet returned 'text'"),
        (lambda item: 7, "HandlerError: the handler of puppet returned 7"),
        (None, "HandlerError: puppet has no handler"),
    ],
)
async def test_a_handler_that_fails_is_told_with_a_short_cause(performer: Performer, handler: Any, cause: str) -> None:
    event = await deliver(performer, handler)
    assert isinstance(event, DeliverFailed)
    assert (event.token, event.error) == (3, cause)
    assert event.types[0].endswith(cause.split(":")[0])
    assert event.types[-1] == "BaseException"


async def test_a_handler_says_what_became_of_its_own_transaction(performer: Performer) -> None:
    assert await deliver(performer, lambda item: OwnTransaction.FINISHED) == Delivered(3, finished=True)
    lost = Puppet(begin=[Deliver(row(), token=3)])
    performer.add(lost, handler=lambda item: OwnTransaction.LOST)
    assert await lost.hears(DeliverLost) == DeliverLost(3)


async def test_a_record_of_a_stream_has_no_end_of_its_own(performer: Performer) -> None:
    record = Record(Position(STREAM, 1, 1), Envelope(id="a"), 0)
    puppet = Puppet(begin=[Deliver(record, token=3)])
    performer.add(puppet, handler=lambda item: OwnTransaction.FINISHED)
    assert "of a record" in (await puppet.hears(DeliverFailed)).error


async def test_a_worker_commits_the_handlers_writes_with_the_end_of_the_row(
    store: ScriptedStore, performer: Performer
) -> None:
    attempts: list[int] = []

    async def handle(item: WorkRow | Record) -> list[Op]:
        assert isinstance(item, WorkRow)
        attempts.append(item.attempts)
        if item.attempts == 1:
            raise ValueError("not yet")
        return [append("effect")]

    finished = asyncio.Event()
    config = WorkerConfig("worker", "inbox/q", "inbox/q>handler", retry=RetryPolicy(interval_s=0.0), idle_s=0.02)
    performer.add(Worker(config), handler=handle)
    store.listen(lambda: performer.loop.call_soon_threadsafe(finished.set))
    await Committer(performer).commit([Enqueue("inbox/q", "w", Envelope(id="w"))])
    async with asyncio.timeout(scaled(30)):
        while (row := store.work("inbox/q", "w")) is None or row.state is not WorkState.DONE:
            finished.clear()
            await finished.wait()

    assert attempts == [1, 2]
    assert ids(store) == ["effect"]
    kinds = [entry.event.kind for entry in store.ledger(START)]
    assert kinds == [Kind.FAILED, Kind.HANDLED]


async def test_an_idle_worker_does_not_wake_itself(store: ScriptedStore, performer: Performer) -> None:
    """Looking for work is a commit, and a commit wakes workers: they must not chase each other for ever."""
    for name in ("one", "two"):
        performer.add(Worker(WorkerConfig(name, "inbox/q", "inbox/q>handler", idle_s=60)), handler=lambda item: None)
    committer = Committer(performer)
    for number in range(5):
        await committer.commit([Put(f"unrelated-{number}", b"")])

    claims = sum(1 for group in store.groups for unit in group if not unit)
    assert claims <= 2 + 5


# -- beginning again


class Reloading(Puppet):
    def __init__(self, store: Store) -> None:
        state = store.state("generation")
        self.generation = int(state.value) if state else 0
        super().__init__("reloading")

    def receive(self, event: Event, now: float) -> Sequence[Effect]:
        super().receive(event, now)
        if isinstance(event, CommitFailed):
            return [Close("reload")]
        return ()


def generation(performer: Performer) -> int | None:
    machine = performer.machine("reloading")
    return machine.generation if isinstance(machine, Reloading) else None


async def test_a_machine_that_asks_for_it_begins_anew_from_the_store(
    store: ScriptedStore, performer: Performer
) -> None:
    await performer.host(Reloading)
    old = performer.machine("reloading")
    assert generation(performer) == 0
    await Committer(performer).commit([Put("generation", b"1")])
    performer.feed("reloading", CommitFailed(1))
    await until(lambda: generation(performer) == 1)
    performer.feed("reloading", Resume())

    assert isinstance(old, Reloading)
    assert Resume() not in old.heard


async def test_a_store_that_cannot_be_read_delays_the_new_beginning(store: ScriptedStore, performer: Performer) -> None:
    await performer.host(Reloading)
    store.failing_reads.extend([StoreUnavailable("gone", fix="")] * 3)
    performer.feed("reloading", CommitFailed(1))
    await until(lambda: generation(performer) == 0)

    assert not store.failing_reads


async def test_the_first_build_may_fail_and_says_so(store: ScriptedStore, performer: Performer) -> None:
    store.failing_reads.append(StoreUnavailable("gone", fix=""))
    with pytest.raises(StoreUnavailable, match="gone"):
        await performer.host(Reloading)


async def test_a_defect_in_one_machine_leaves_the_others_alone(store: ScriptedStore, performer: Performer) -> None:
    told: list[tuple[str, Notify | Close]] = []
    performer.observe(lambda name, effect: told.append((name, effect)))
    performer.observe(raises_on_call)

    def fail(event: Event) -> Sequence[Effect]:
        raise ZeroDivisionError("oops")

    broken, fine = Puppet("broken", answer=fail), Puppet("fine", begin=[Read(STREAM, None, 1)])
    performer.add(broken)
    performer.add(fine)
    performer.feed("broken", Resume())
    await Committer(performer).commit([append("a")])
    await fine.hears(ReadDone)

    assert told == [
        ("broken", Notify("machine-failed", "broken: ZeroDivisionError: oops")),
        ("broken", Close("reload")),
    ]
    assert performer.machine("broken") is None


async def test_what_comes_of_an_outage_is_no_news(performer: Performer, caplog: pytest.LogCaptureFixture) -> None:
    seat = Seat(Mock())
    seat.machine.name = "hub/chat"
    performer.outages.record(StoreUnavailable("away"))
    performer.notify(seat, Notify("hub-commit", "the store could not take it", is_store=True))
    performer.notify(seat, Notify("backlog", "a client is slow"))
    performer.outages.committed()
    performer.notify(seat, Notify("hub-commit", "the store could not take it", is_store=True))
    told = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert told[0] == "the store is in trouble: away"
    assert told[1] == "backlog: a client is slow"
    assert told[2].startswith("the store is well again")
    assert told[3:] == ["hub-commit: the store could not take it"]


async def test_after_a_commit_reading_is_tried_again_and_that_ends_what_a_read_began(
    store: ScriptedStore, performer: Performer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("semel.runtime.host.performer.TRY_READING_S", 0.0)
    store.failing_reads.extend([StoreUnavailable("too many clients")] * 2)
    performer.add(reader := Puppet("reader", begin=[Load("k")]))
    await reader.hears(LoadFailed)
    await Committer(performer).commit([append("a")])
    await until(lambda: not store.failing_reads)
    assert performer.outages.current is not None
    await Committer(performer).commit([append("b")])
    await until(lambda: performer.outages.current is None)
    told = [record.getMessage() for record in caplog.records if "the store is" in record.getMessage()]
    assert [text.partition(":")[0].partition(",")[0] for text in told] == [
        "the store is in trouble",
        "the store is well again",
    ]


def raises_on_call(name: str, effect: Notify | Close) -> None:
    raise RuntimeError("an observer with a defect")


async def test_a_machine_that_keeps_failing_is_started_later_and_later(performer: Performer) -> None:
    starts: list[float] = []

    class Failing(Puppet):
        def start(self, now: float) -> Sequence[Effect]:
            starts.append(performer.loop.time())
            if len(starts) < 4:
                raise RuntimeError("still broken")
            return ()

    await performer.host(lambda store: Failing("failing"))
    await until(lambda: len(starts) == 4)

    waits = [later - earlier for earlier, later in pairwise(starts)]
    assert waits[1] >= 0.05
    assert waits[2] >= 0.1


async def test_a_follower_reloads_after_a_commit_that_was_refused(store: ScriptedStore, performer: Performer) -> None:
    """Somebody else moved its cursor: it asks the store where it stands and goes on from there."""
    seen: list[str] = []
    config = FollowerConfig("follower", STREAM, f"{STREAM}>handler")

    async def handle(item: WorkRow | Record) -> None:
        seen.append(item.envelope.id)
        if seen == ["a"]:
            other = Follower(config, None)
            [record] = store.read(STREAM, None, 1).records  # type: ignore[union-attr]
            other._queue.append(record)
            await asyncio.to_thread(store.commit, [Unit(other._commit(())[0].ops)])  # type: ignore[union-attr]

    await performer.host(lambda store: Follower(config, store.cursor(config.cursor)), handler=handle)
    committer = Committer(performer)
    for id in ("a", "b", "c"):
        await committer.commit([append(id)])
    await until(lambda: store.cursor(config.cursor) == Position(STREAM, 1, 3))

    assert seen == ["a", "b", "c"]


# -- the end


async def test_close_waits_for_handlers_and_their_commits(store: ScriptedStore) -> None:
    started, go_on = asyncio.Event(), asyncio.Event()

    async def handle(item: WorkRow | Record) -> list[Op]:
        started.set()
        await go_on.wait()
        return [append(f"effect of {item.envelope.id}")]

    performer = await Performer(store).start()
    performer.add(Worker(WorkerConfig("worker", "inbox/q", "inbox/q>handler")), handler=handle)
    committer = Committer(performer)
    for id in ("w1", "w2"):
        await committer.commit([Enqueue("inbox/q", id, Envelope(id=id))])
    await started.wait()
    closing = asyncio.create_task(performer.close())
    await asyncio.sleep(0)
    go_on.set()
    await closing

    first, second = store.work("inbox/q", "w1"), store.work("inbox/q", "w2")
    assert ids(store) == ["effect of w1"]
    assert first is not None
    assert first.state is WorkState.DONE
    assert second is not None
    assert second.state is WorkState.READY, "nothing new is begun while closing"


async def test_close_gives_back_what_was_claimed_and_not_begun(store: ScriptedStore) -> None:
    started, go_on = asyncio.Event(), asyncio.Event()

    async def handle(item: WorkRow | Record) -> list[Op]:
        started.set()
        await go_on.wait()
        return [append(f"effect of {item.envelope.id}")]

    performer = await Performer(store).start()
    await Committer(performer).commit([Enqueue("inbox/q", id, Envelope(id=id)) for id in ("w1", "w2", "w3")])
    performer.add(Worker(WorkerConfig("worker", "inbox/q", "inbox/q>handler", ahead=2)), handler=handle)
    await started.wait()
    assert [row.state for id in ("w1", "w2", "w3") if (row := store.work("inbox/q", id))] == [WorkState.CLAIMED] * 3
    closing = asyncio.create_task(performer.close())
    await asyncio.sleep(0)
    go_on.set()
    await closing
    states = [row.state for id in ("w1", "w2", "w3") if (row := store.work("inbox/q", id))]
    assert (ids(store), states) == (["effect of w1"], [WorkState.DONE, WorkState.READY, WorkState.READY])


async def test_close_cancels_handlers_that_do_not_end_and_tells_their_machines(store: ScriptedStore) -> None:
    def write_down(event: Event) -> Sequence[Effect]:
        return [Commit((append(type(event).__name__),), token=4)] if isinstance(event, DeliverFailed) else ()

    puppet = Puppet(begin=[Deliver(row(), token=3)], answer=write_down)
    never = asyncio.Event()

    async def handle(item: WorkRow | Record) -> None:
        await never.wait()

    performer = await Performer(store).start()
    performer.add(puppet, handler=handle)
    await performer.close(timeout_s=0.05)

    assert puppet.heard[0] == DeliverFailed(3, "cancelled: the process is shutting down")
    assert ids(store) == ["DeliverFailed"]


async def test_close_tells_machines_and_sends_what_they_answer(store: ScriptedStore) -> None:
    wire = Wire()
    performer = await Performer(store).start()
    performer.attach(wire)
    store.gate.clear()

    def confirm(event: Event) -> Sequence[Effect]:
        return [Send("peer", "confirm")] if isinstance(event, Committed) else ()

    performer.add(Puppet(begin=[Commit((append("a"),), token=1)], answer=confirm), transport=wire)
    assert await asyncio.to_thread(store.under_way)
    closing = asyncio.create_task(performer.close())
    await until(lambda: wire.log == ["pause"])
    performer.received(wire, "peer", "too late")
    store.gate.set()
    await closing

    assert wire.written == [("peer", "confirm")]
    assert wire.log == ["pause", "close"]


async def test_while_it_closes_machines_finish_but_begin_nothing(store: ScriptedStore) -> None:
    """A worker would claim a row, and a follower read a message, that nobody handles any more."""
    claim = Commit((Claim("q", "w"),), 7)
    last = Commit((append("b"),), 8)
    puppet = Puppet(
        begin=[Commit((append("a"),), 6)],
        answer=lambda event: (claim, Load("k"), last) if isinstance(event, Committed) and event.token == 6 else (),
    )
    performer = await Performer(store).start()
    performer.add(puppet)
    await performer.close()
    assert [event.token for event in puppet.heard if isinstance(event, Committed)] == [6, 8]
    assert not [event for event in puppet.heard if isinstance(event, Loaded | LoadFailed)]


async def test_close_twice_is_no_harm(store: ScriptedStore) -> None:
    async with Performer(store) as performer:
        await performer.close()
    await performer.close()


async def test_waiting_for_room_ends_when_the_store_catches_up(store: ScriptedStore) -> None:
    async with Performer(store, limits=GroupLimits(rows=1, waiting_rows=2)) as performer:
        store.gate.clear()
        committer = Committer(performer)
        tasks = [asyncio.create_task(committer.commit([append(f"m{number}")])) for number in range(4)]
        await asyncio.to_thread(store.under_way)
        assert performer.is_full
        room = asyncio.create_task(performer.room())
        await asyncio.sleep(0)
        assert not room.done()
        store.gate.set()
        await room
        assert not performer.is_full
        await asyncio.gather(*tasks)


async def test_a_lease_is_renewed_while_closing_waits_for_its_handler(store: ScriptedStore) -> None:
    started, renewed = asyncio.Event(), asyncio.Event()

    async def handle(item: WorkRow | Record) -> list[Op]:
        started.set()
        await renewed.wait()
        return [append("effect")]

    def look(units: Sequence[Unit]) -> None:
        if any(isinstance(op, Renew) for unit in units for op in unit.ops):
            performer.loop.call_soon_threadsafe(renewed.set)

    performer = await Performer(store).start()
    performer.add(Worker(WorkerConfig("worker", "inbox/q", "inbox/q>handler", lease_s=scaled(0.3))), handler=handle)
    await Committer(performer).commit([Enqueue("inbox/q", "w", Envelope(id="w"))])
    await started.wait()
    store.script.extend([look] * 10)
    await performer.close(timeout_s=scaled(10))

    assert ids(store) == ["effect"]


async def test_a_handler_may_commit_while_closing_waits_for_it(store: ScriptedStore) -> None:
    started, go_on = asyncio.Event(), asyncio.Event()
    performer = await Performer(store).start()
    committer = Committer(performer)

    async def handle(item: WorkRow | Record) -> None:
        started.set()
        await go_on.wait()
        await committer.commit([append("by hand")])

    performer.add(Puppet(begin=[Deliver(row(), token=3)]), handler=handle)
    await started.wait()
    closing = asyncio.create_task(performer.close())
    await asyncio.sleep(0)
    go_on.set()
    await closing

    assert ids(store) == ["by hand"]


async def test_a_performer_that_was_not_started_says_so(store: ScriptedStore) -> None:
    performer = Performer(store)
    with pytest.raises(StoreUnavailable, match="not started"):
        await Committer(performer).commit([append("a")])
    with pytest.raises(StoreUnavailable, match="not started"):
        performer.add(Puppet())
    await performer.close()


async def test_an_object_with_an_async_call_is_a_handler_too(performer: Performer) -> None:
    class Handler:
        async def __call__(self, item: WorkRow | Record) -> list[Op]:
            return [Put("done", b"")]

    assert await deliver(performer, Handler()) == Delivered(3, (Put("done", b""),))
