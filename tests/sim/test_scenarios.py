"""What the simulator once found, each as a story of its own, so that no seed has to find it again."""

from __future__ import annotations

from typing import Any

import pytest
from tests.sim.story import Process, append, message

from semel.kernel.effects import Resume
from semel.kernel.envelope import Envelope
from semel.kernel.hop import Confirm, ReceiveOrder, Receiver, ReceiverConfig, Sender, SenderConfig
from semel.kernel.ledger import Kind
from semel.kernel.ops import Advance, Enqueue, Put, Unit
from semel.kernel.position import Position
from semel.kernel.resend import ResendPolicy
from semel.kernel.retry import RetryPolicy
from semel.kernel.store import Records
from semel.kernel.work import Follower, FollowerConfig, Worker, WorkerConfig
from semel.stores.memory import Frame, MemoryStore

pytestmark = pytest.mark.sim

OUT = "outbox/app"
HUB = "hub/main"


def sender(store: MemoryStore, *, window: int = 1, retries: int | None = None) -> Sender:
    policy = ResendPolicy(window, timeout_s=1.0, retry=RetryPolicy(retries=retries, interval_s=1.0))
    config = SenderConfig("app", OUT, "peer", "outbox>hub", policy=policy)
    return Sender(config, store.cursor(config.cursor))


def receiver(order: ReceiveOrder) -> Receiver:
    return Receiver(ReceiverConfig("in", "outbox>hub", stream=HUB, order=order))


def confirmed_ranges(process: Process) -> list[tuple[int, int]]:
    return [(event.first, event.last) for event in process.events() if event.kind is Kind.CONFIRMED]


# -- senders


def test_an_operator_resumes_a_sender_whose_last_confirm_came_after_all() -> None:
    store = MemoryStore()
    append(store, OUT, "a", "b")
    process = Process(store).start(sender(store, retries=0))
    process.reads_on()
    process.waits(1.5)
    assert process.notices == ["suspended"]
    process.receives(Confirm(("outbox/app/1/1",)))
    process.settles()
    process.hears(Resume())
    process.settles()
    assert [each.envelope.id for each in process.messages] == ["a", "b"]


def test_a_ledger_entry_is_not_taken_for_the_cursors_commit() -> None:
    """The log of a suspension was under way when the advance was submitted; its success said nothing of the cursor."""
    store = MemoryStore()
    append(store, OUT, "a")
    process = Process(store).start(sender(store, retries=0))
    process.reads_on()
    process.waits(1.5)
    process.receives(Confirm(("outbox/app/1/1",)))
    process.lands()
    process.fails()
    process.waits(2.0)
    process.settles()
    assert store.cursor("send/app") == Position(OUT, 1, 1)
    assert confirmed_ranges(process) == [(1, 1)]


def test_two_senders_under_one_cursor_confirm_each_record_once() -> None:
    store = MemoryStore()
    append(store, OUT, "a", "b")
    zombie, heir = (Process(store).start(sender(store, window=2)) for _ in range(2))
    for process in (zombie, heir):
        process.reads_on()
        process.receives(Confirm(("outbox/app/1/1", "outbox/app/1/2")))
        process.settles()
    assert confirmed_ranges(heir) == [(1, 2)]
    assert heir.closed_for == ["reload"]


def test_an_advance_that_landed_unheard_is_not_written_to_the_ledger_twice() -> None:
    store = MemoryStore()
    append(store, OUT, "a")
    process = Process(store).start(sender(store))
    process.reads_on()
    process.receives(Confirm(("outbox/app/1/1",)))
    process.lands_unheard()
    process.waits(2.0)
    process.settles()
    assert confirmed_ranges(process) == [(1, 1)]
    assert process.closed_for == ["reload"]


def test_a_sender_with_a_full_window_learns_of_a_new_epoch() -> None:
    """It read nothing more and only its cursor was refused, again and again: it never knew why."""
    store = MemoryStore()
    append(store, OUT, "a", "b")
    process = Process(store).start(sender(store))
    process.reads_on()
    store.raise_epoch("restored")
    process.receives(Confirm(("outbox/app/1/1",)))
    process.settles()
    assert process.closed_for == ["reload"]


# -- receivers


@pytest.mark.parametrize("order", [ReceiveOrder.MONOTONIC, ReceiveOrder.STRICT])
def test_a_second_copy_by_another_way_waits_for_the_first_one(order: ReceiveOrder) -> None:
    """The first copy's commit failed; the second one's, from another peer, was confirmed as a duplicate of it."""
    process = Process(MemoryStore()).start(receiver(order))
    process.receives(message(1), peer="one")
    process.loads_on()
    process.receives(message(1), peer="two")
    process.fails()
    process.settles()
    assert process.confirmed == []
    process.receives(message(1, attempt=2), peer="two")
    process.settles()
    assert process.confirmed == ["out/1/1"]
    assert process.ids(HUB) == ["m1"]


def test_a_strict_session_that_went_on_elsewhere_is_read_anew() -> None:
    """One node remembered 2 as the next, the other had long passed 2 and 3: 4 waited for them for ever."""
    store = MemoryStore()
    here, there = (Process(store).start(receiver(ReceiveOrder.STRICT)) for _ in range(2))
    for process, index in ((here, 1), (there, 2), (there, 3)):
        process.receives(message(index))
        process.settles()
    here.receives(message(4))
    here.settles()
    assert store.head(HUB).offset == 3
    here.receives(message(4, attempt=2))
    here.settles()
    assert here.ids(HUB) == ["m1", "m2", "m3", "m4"]
    assert here.confirmed == ["out/1/1", "out/1/4"]


def test_what_waits_for_a_gap_passes_when_the_gap_is_found_filled() -> None:
    store = MemoryStore()
    here, there = (Process(store).start(receiver(ReceiveOrder.STRICT)) for _ in range(2))
    for process, index in ((here, 1), (there, 2)):
        process.receives(message(index))
        process.settles()
    for index, attempt in ((4, 1), (3, 1), (4, 2)):
        here.receives(message(index, attempt=attempt))
    here.settles()
    assert here.ids(HUB) == ["m1", "m2", "m3", "m4"]


class Backup:
    """A journal that can be cut short."""

    def __init__(self) -> None:
        self.written: list[Frame] = []

    def frames(self) -> list[Frame]:
        return list(self.written)

    def append(self, frame: Frame) -> None:
        self.written.append(frame)

    def sync(self) -> None: ...


@pytest.mark.parametrize("order", [ReceiveOrder.MONOTONIC, ReceiveOrder.STRICT])
def test_a_receiver_does_not_confirm_by_its_memory_of_a_lost_history(order: ReceiveOrder) -> None:
    """It remembered message 2, which the restored store has never seen, and called the resend a duplicate."""
    journal = Backup()
    process = Process(MemoryStore(journal=journal)).start(receiver(order))
    for index in (1, 2):
        process.receives(message(index))
        process.settles()
    del journal.written[1:]
    process.store = MemoryStore(journal=journal)
    process.store.raise_epoch("restored")
    assert process.ids(HUB) == ["m1"]
    for attempt in (2, 3):
        process.receives(message(2, attempt=attempt))
        process.settles()
    assert process.ids(HUB) == ["m1", "m2"]
    assert process.confirmed == ["out/1/1", "out/1/2", "out/1/2"]


def test_a_version_of_a_lost_history_never_fits_again() -> None:
    """Otherwise somebody else writes as often as the lost history did, and the numbers meet."""
    journal = Backup()
    put = Put("session", b"1")
    MemoryStore(journal=journal).commit([Unit((put,))])
    lost = MemoryStore(journal=Backup())
    for _ in range(3):
        lost.commit([Unit((put,))])
    remembered = lost.state("session")
    restored = MemoryStore(journal=journal)
    restored.raise_epoch("restored")
    for _ in range(2):
        restored.commit([Unit((put,))])
    found = restored.state("session")
    assert remembered is not None
    assert found is not None
    assert found.version > remembered.version


@pytest.mark.parametrize("order", [ReceiveOrder.MONOTONIC, ReceiveOrder.STRICT])
@pytest.mark.parametrize("fields", [{}, {"session": "s"}, {"session": "s", "index": 0}])
def test_a_message_without_a_number_is_rejected_and_not_swallowed(order: ReceiveOrder, fields: dict[str, Any]) -> None:
    """It was taken for a duplicate of something, confirmed, and gone."""
    process = Process(MemoryStore()).start(receiver(order))
    unnumbered = message(1)
    process.receives(type(unnumbered)("out/1/7", Envelope(id="x", **fields), 7))
    process.settles()
    assert process.confirmed == []
    assert process.notices == ["rejected"]
    assert [event.kind for event in process.events()] == [Kind.REJECTED]


# -- readers and workers


def test_a_commit_during_an_empty_read_is_not_missed() -> None:
    """The read had looked before the commit, its answer came after the wake: the follower slept for ever."""
    store = MemoryStore()
    config = FollowerConfig("reader", HUB, "hub>reader")
    process = Process(store).start(Follower(config, None))
    nothing = process.looks()
    append(store, HUB, "a")
    process.interpreter.wake()
    process.tells(nothing)
    process.reads_on()
    assert [effect.item.envelope.id for _, effect in process.delivered] == ["a"]


def test_a_worker_with_its_hands_full_asks_for_no_timer_that_has_passed() -> None:
    """It asked to be woken to look for work, found no hand free, and asked again at once, for as long as it worked."""
    store = MemoryStore()
    store.commit([Unit((Enqueue("inbox/q", "a", Envelope(id="a")),))])
    process = Process(store).start(Worker(WorkerConfig("w", "inbox/q", "inbox/q>handler", lease_s=60.0, idle_s=1.0)))
    process.lands()
    process.waits(5.0)
    deadline = process.interpreter.next_deadline()
    assert deadline is not None
    assert deadline > process.now


def test_a_cursor_older_than_its_stream_has_missed_nothing() -> None:
    """A stream that begins in a later epoch begins above offset 1; what lies before its start was never there."""
    store = MemoryStore()
    store.commit([Unit((Advance("send/app", Position(OUT, 1, 0)),))])
    store.raise_epoch("restored")
    append(store, OUT, "a")
    found = store.read(OUT, store.cursor("send/app"))
    assert isinstance(found, Records)
    assert [record.envelope.id for record in found.records] == ["a"]
