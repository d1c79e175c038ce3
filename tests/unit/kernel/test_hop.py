"""Sender and receiver, between them a link that loses, doubles and reorders as the test says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.kernel.bench import Bench

from semel.errors import StoreRefused, StoreUnavailable
from semel.kernel import hop
from semel.kernel.dedup import GapPolicy, OnGap
from semel.kernel.effects import Notify, PeerConnected, Received, Resume
from semel.kernel.envelope import Blob, Envelope
from semel.kernel.hop import (
    AskForGap,
    Confirm,
    HopMessage,
    ReceiveOrder,
    Receiver,
    ReceiverConfig,
    Sender,
    SenderConfig,
)
from semel.kernel.ledger import Kind, balance, fold_ids
from semel.kernel.ops import Advance, Append, Put, PutBlob, Trim, Unit, WorkState
from semel.kernel.position import Position
from semel.kernel.resend import ResendPolicy
from semel.kernel.retry import RetryPolicy
from semel.kernel.store import Records

OUT, IN = "outbox/app", "inbox/app"
DOWN = StoreUnavailable("gone", fix="wait")
REFUSED = StoreRefused("the envelope names blob 'b', which is not stored", fix="put its chunks first")


def sender_config(window: int = 4, retries: int | None = None) -> SenderConfig:
    policy = ResendPolicy(window, timeout_s=5.0, retry=RetryPolicy(retries=retries, interval_s=5.0))
    return SenderConfig("out", OUT, "in", "out>in", "pipe", policy)


def start_sender(bench: Bench, config: SenderConfig | None = None) -> Sender:
    config = config or sender_config()
    sender = Sender(config, bench.store.cursor(config.cursor))
    bench.add(sender)
    return sender


def start_receiver(bench: Bench, order: ReceiveOrder = ReceiveOrder.ID, **more: Any) -> Receiver:
    more.setdefault("stream", "" if more.get("queue") else IN)
    receiver = Receiver(ReceiverConfig("in", "out>in", pipeline="pipe", order=order, **more))
    bench.add(receiver)
    return receiver


def publish(bench: Bench, *ids: str, session: str | None = None, first: int = 1) -> None:
    envelopes = [
        Envelope(id=id, session=session, index=None if session is None else index)
        for index, id in enumerate(ids, start=first)
    ]
    bench.store.commit([Unit((Append(OUT, envelope),)) for envelope in envelopes])
    bench.interpreter.wake()
    bench.run()


def arrived(bench: Bench, stream: str = IN) -> list[str]:
    found = bench.store.read(stream)
    assert isinstance(found, Records)
    return [record.envelope.id for record in found.records]


def counts(bench: Bench, kind: Kind) -> int:
    return sum(event.n for event in bench.ledger() if event.kind is kind)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_records_go_over_in_order_and_the_cursor_follows(bench: Bench) -> None:
    start_sender(bench)
    start_receiver(bench)
    publish(bench, *"abcdefgh")
    bench.settle("in", "out")
    assert arrived(bench) == list("abcdefgh")
    assert bench.store.cursor("send/out") == Position(OUT, 1, 8)
    assert counts(bench, Kind.CONFIRMED) == counts(bench, Kind.ACCEPTED) == 8
    assert counts(bench, Kind.RESENT) == counts(bench, Kind.DUPLICATE) == 0


def test_no_more_than_the_window_is_on_the_way(bench: Bench) -> None:
    sender = start_sender(bench, sender_config(window=3))
    publish(bench, *"abcdefgh")
    assert [message.envelope.id for message in bench.sent_to("in")] == ["a", "b", "c"]
    assert sender.unconfirmed == 3


def test_nothing_is_confirmed_before_it_is_stored(bench: Bench) -> None:
    start_sender(bench)
    start_receiver(bench)
    publish(bench, "a")
    bench.fail_commits = [DOWN]
    bench.pass_on("in")
    assert bench.sent_to("out") == []
    assert arrived(bench) == []
    bench.wait(5.0)
    bench.settle("in", "out")
    assert arrived(bench) == ["a"]


def test_every_attempt_carries_the_same_delivery_and_the_same_bytes(bench: Bench) -> None:
    start_sender(bench)
    publish(bench, "a")
    bench.wait(16.0)
    messages = bench.sent_to("in")
    assert [message.attempt for message in messages] == [1, 2, 3, 4]
    same = [(message.delivery, message.envelope, message.index) for message in messages]
    assert same == [(f"{OUT}/1/1", Envelope(id="a"), 1)] * 4


def test_any_copy_is_confirmed_however_late(bench: Bench) -> None:
    start_sender(bench)
    start_receiver(bench)
    publish(bench, "a")
    bench.wait(11.0)
    bench.pass_on("in")
    confirms = bench.sent_to("out")
    assert len(confirms) >= 1
    bench.settle("in", "out")
    assert arrived(bench) == ["a"]
    assert bench.store.cursor("send/out") == Position(OUT, 1, 1)


def test_a_second_copy_of_an_undecided_message_waits_for_the_first(bench: Bench) -> None:
    start_receiver(bench)
    seat = bench.interpreter.seat("in")
    assert seat is not None
    message = HopMessage("d1", Envelope(id="a"), 1)
    bench.interpreter.feed(seat, Received("out", message))
    bench.interpreter.feed(seat, Received("out", message))
    bench.run()
    assert bench.sent_to("out") == [Confirm(("d1",))]
    assert counts(bench, Kind.DUPLICATE) == 0


def test_a_duplicate_is_confirmed_and_counted(bench: Bench) -> None:
    start_receiver(bench)
    bench.wires["in"] = [("out", HopMessage(f"d{n}", Envelope(id="same"), n)) for n in (1, 2)]
    bench.pass_on("in")
    assert bench.sent_to("out") == [Confirm(("d1",)), Confirm(("d2",))]
    assert arrived(bench) == ["same"]
    assert counts(bench, Kind.DUPLICATE) == 1


def test_a_restarted_sender_goes_on_behind_its_cursor(bench: Bench) -> None:
    start_sender(bench)
    start_receiver(bench)
    publish(bench, "a", "b")
    bench.settle("in", "out")
    publish(bench, "c")
    bench.wires.clear()
    start_sender(bench)
    assert [message.envelope.id for message in bench.sent_to("in")] == ["c"]
    bench.settle("in", "out")
    assert arrived(bench) == ["a", "b", "c"]


def test_a_reconnect_sends_what_was_on_the_way(bench: Bench) -> None:
    start_sender(bench)
    publish(bench, "a", "b")
    bench.wires.clear()
    seat = bench.interpreter.seat("out")
    assert seat is not None
    bench.interpreter.feed(seat, PeerConnected("in"))
    assert [message.envelope.id for message in bench.sent_to("in")] == ["a", "b"]


def test_a_failed_cursor_commit_is_made_up_for_later(bench: Bench) -> None:
    start_sender(bench)
    start_receiver(bench)
    publish(bench, "a")
    bench.pass_on("in")
    bench.fail_commits = [DOWN]
    bench.pass_on("out")
    assert bench.store.cursor("send/out") is None
    bench.wait(2.0)
    assert bench.store.cursor("send/out") == Position(OUT, 1, 1)


def test_the_confirmed_range_names_its_records(bench: Bench) -> None:
    start_sender(bench)
    start_receiver(bench)
    publish(bench, "a", "b", "c")
    bench.settle("in", "out")
    ranges = [event for event in bench.ledger() if event.kind is Kind.CONFIRMED]
    assert [event.peer for event in ranges] == ["in"] * len(ranges)
    folded = 0
    for event in ranges:
        assert event.fold is not None
        folded ^= event.fold
    assert folded == fold_ids("abc")


def test_the_cursor_never_passes_a_gap(bench: Bench) -> None:
    start_sender(bench)
    publish(bench, "a", "b", "c")
    seat = bench.interpreter.seat("out")
    assert seat is not None
    bench.interpreter.feed(seat, Received("in", Confirm((f"{OUT}/1/2", f"{OUT}/1/3"))))
    bench.run()
    assert bench.store.cursor("send/out") is None
    bench.interpreter.feed(seat, Received("in", Confirm((f"{OUT}/1/1",))))
    bench.run()
    assert bench.store.cursor("send/out") == Position(OUT, 1, 3)


def test_a_confirm_of_something_else_changes_nothing(bench: Bench) -> None:
    sender = start_sender(bench)
    publish(bench, "a")
    seat = bench.interpreter.seat("out")
    assert seat is not None
    bench.interpreter.feed(seat, Received("in", Confirm((f"{OUT}/1/99", "nonsense"))))
    bench.run()
    assert sender.unconfirmed == 1


def test_a_peer_that_never_answers_suspends_the_sender(bench: Bench) -> None:
    sender = start_sender(bench, sender_config(retries=2))
    publish(bench, "a", "b")
    bench.wait(60.0)
    assert [message.attempt for message in bench.sent_to("in") if message.envelope.id == "a"] == [1, 2, 3]
    assert sender.suspended is not None
    assert [note.topic for note in bench.notes] == ["suspended"]
    assert counts(bench, Kind.SUSPENDED) == 1


def test_an_operator_resumes_a_suspended_sender(bench: Bench) -> None:
    start_sender(bench, sender_config(retries=0))
    start_receiver(bench)
    publish(bench, "a", "b")
    bench.wires.clear()
    bench.wait(60.0)
    seat = bench.interpreter.seat("out")
    assert seat is not None
    bench.interpreter.feed(seat, Resume())
    bench.run()
    bench.settle("in", "out")
    assert arrived(bench) == ["a", "b"]
    assert counts(bench, Kind.RESUMED) == 1


def test_a_confirm_that_comes_while_suspended_counts(bench: Bench) -> None:
    sender = start_sender(bench, sender_config(retries=0))
    start_receiver(bench)
    publish(bench, "a", "b")
    bench.wait(60.0)
    bench.settle("in", "out")
    assert bench.store.cursor("send/out") == Position(OUT, 1, 2)
    seat = bench.interpreter.seat("out")
    assert seat is not None
    bench.interpreter.feed(seat, Resume())
    publish(bench, "c")
    bench.settle("in", "out")
    assert arrived(bench) == ["a", "b", "c"]
    assert sender.suspended is None


def test_a_sender_that_would_skip_records_stops(bench: Bench) -> None:
    publish(bench, "a", "b", "c")
    bench.store.commit([Unit((Trim(OUT, 3),))])
    start_sender(bench)
    assert bench.sent_to("in") == []
    assert bench.closes == ["trimmed"]
    assert [note.topic for note in bench.notes] == ["trimmed"]


def test_a_sender_of_an_old_epoch_stops(bench: Bench) -> None:
    start_sender(bench)
    start_receiver(bench)
    publish(bench, "a")
    bench.settle("in", "out")
    bench.store.raise_epoch("restored")
    publish(bench, "b")
    assert bench.closes == ["epoch-changed"]


def test_two_senders_with_one_name_do_not_both_advance(bench: Bench) -> None:
    start_receiver(bench)
    start_sender(bench)
    publish(bench, "a")
    bench.pass_on("in")
    bench.store.commit([Unit((Append(OUT, Envelope(id="b")),))])
    other = Bench()
    other.store = bench.store
    start_sender(other)
    other.wires["out"] = bench.wires["out"][:]
    other.pass_on("out")
    bench.pass_on("out")
    assert bench.closes == ["reload"]
    assert counts(bench, Kind.CONFIRMED) == 1


@pytest.mark.parametrize("order", [ReceiveOrder.STRICT, ReceiveOrder.MONOTONIC])
def test_index_order_keeps_a_session_in_order(bench: Bench, order: ReceiveOrder) -> None:
    start_sender(bench)
    start_receiver(bench, order)
    publish(bench, *"abcd", session="s")
    bench.settle("in", "out")
    assert arrived(bench) == list("abcd")


def test_strict_waits_for_what_is_missing_and_confirms_nothing_early(bench: Bench) -> None:
    start_receiver(bench, ReceiveOrder.STRICT)
    bench.wires["in"] = [("out", HopMessage(f"d{n}", Envelope(id=f"m{n}", session="s", index=n), n)) for n in (2, 3)]
    bench.pass_on("in")
    assert (arrived(bench), bench.sent_to("out")) == ([], [])
    bench.wires["in"] = [("out", HopMessage("d1", Envelope(id="m1", session="s", index=1), 1))]
    bench.pass_on("in")
    assert arrived(bench) == ["m1", "m2", "m3"]
    assert bench.sent_to("out") == [Confirm(("d1", "d2", "d3"))]


def test_monotonic_never_blocks_and_gives_up_what_comes_late(bench: Bench) -> None:
    start_receiver(bench, ReceiveOrder.MONOTONIC)
    for number in (2, 1, 3):
        envelope = Envelope(id=f"m{number}", session="s", index=number)
        bench.wires["in"] = [("out", HopMessage(f"d{number}", envelope, number))]
        bench.pass_on("in")
    assert arrived(bench) == ["m2", "m3"]


@pytest.mark.parametrize("index", [None, 0])
@pytest.mark.parametrize("order", [ReceiveOrder.STRICT, ReceiveOrder.MONOTONIC])
def test_a_message_whose_place_is_not_known_is_rejected_and_never_confirmed(
    bench: Bench, order: ReceiveOrder, index: int | None
) -> None:
    """Taking it for a duplicate would confirm it, and it would be lost in silence."""
    start_receiver(bench, order)
    bench.wires["in"] = [("out", HopMessage("d1", Envelope(id="m", session="s", index=index), 1))]
    bench.pass_on("in")
    assert (arrived(bench), bench.sent_to("out")) == ([], [])
    assert [note.topic for note in bench.notes] == ["rejected"]
    assert counts(bench, Kind.REJECTED) == 1


def test_sessions_do_not_wait_for_each_other(bench: Bench) -> None:
    start_receiver(bench, ReceiveOrder.STRICT)
    places = [("a", 2), ("b", 1), ("b", 2)]
    bench.wires["in"] = [
        ("out", HopMessage(f"{s}{n}", Envelope(id=f"{s}{n}", session=s, index=n), n)) for s, n in places
    ]
    bench.pass_on("in")
    assert arrived(bench) == ["b1", "b2"]


def test_the_hops_own_index_needs_none_of_the_producer(bench: Bench) -> None:
    start_sender(bench)
    start_receiver(bench, ReceiveOrder.STRICT, hop_index=True)
    publish(bench, *"abc")
    bench.wires["in"].reverse()
    bench.settle("in", "out")
    assert arrived(bench) == list("abc")


def test_a_gap_is_asked_for(bench: Bench) -> None:
    start_sender(bench, SenderConfig("out", OUT, "in", "out>in", policy=ResendPolicy(4, timeout_s=1000.0)))
    start_receiver(bench, ReceiveOrder.STRICT, gap=GapPolicy(OnGap.ASK, 2.0))
    publish(bench, *"abc", session="s")
    bench.pass_on("in", keep=lambda message: int(message.envelope.id != "a"))
    bench.wait(2.0)
    assert bench.sent_to("out") == [AskForGap("s", 1, 1)]
    bench.settle("out", "in")
    assert arrived(bench) == list("abc")


def test_a_gap_in_the_hops_own_index_is_asked_for(bench: Bench) -> None:
    start_sender(bench, SenderConfig("out", OUT, "in", "out>in", policy=ResendPolicy(4, timeout_s=1000.0)))
    start_receiver(bench, ReceiveOrder.STRICT, gap=GapPolicy(OnGap.ASK, 2.0), hop_index=True)
    publish(bench, *"abc")
    bench.pass_on("in", keep=lambda message: int(message.envelope.id != "a"))
    bench.wait(2.0)
    assert bench.sent_to("out") == [AskForGap("", 1, 1)]
    bench.settle("out", "in")
    assert arrived(bench) == list("abc")


def test_a_gap_that_is_skipped_is_recorded_and_reported(bench: Bench) -> None:
    start_receiver(bench, ReceiveOrder.STRICT, gap=GapPolicy(OnGap.SKIP, 2.0))
    bench.wires["in"] = [("out", HopMessage("d3", Envelope(id="m3", session="s", index=3), 3))]
    bench.pass_on("in")
    bench.wait(2.0)
    assert arrived(bench) == ["m3"]
    assert bench.notes == [Notify("gap-skipped", "s: 1..2 never came")]
    assert [event.cause for event in bench.ledger() if event.kind is Kind.ACTION] == ["indexes 1..2 never came"]


def test_a_restarted_receiver_remembers_its_sessions(bench: Bench) -> None:
    start_receiver(bench, ReceiveOrder.STRICT)
    message = HopMessage("d1", Envelope(id="m1", session="s", index=1), 1)
    bench.wires["in"] = [("out", message)]
    bench.pass_on("in")
    start_receiver(bench, ReceiveOrder.STRICT)
    bench.wires["in"] = [("out", message), ("out", HopMessage("d2", Envelope(id="m2", session="s", index=2), 2))]
    bench.pass_on("in")
    assert arrived(bench) == ["m1", "m2"]
    assert counts(bench, Kind.DUPLICATE) == 1


def test_a_receiver_whose_memory_is_old_reads_it_anew(bench: Bench) -> None:
    """Another node has moved the session on: this one's commit is refused, and a resend finds the truth."""
    start_receiver(bench, ReceiveOrder.STRICT)
    messages = [HopMessage(f"d{n}", Envelope(id=f"m{n}", session="s", index=n), n, attempt=2) for n in (1, 2, 3)]
    bench.wires["in"] = [("out", messages[0])]
    bench.pass_on("in")
    key = "receive/in/s"
    bench.store.commit([Unit((Append(IN, messages[1].envelope), Put(key, b"3", expected=1)))])
    bench.wires["in"] = [("out", messages[1])]
    bench.pass_on("in")
    assert arrived(bench) == ["m1", "m2"]
    for message in (messages[1], messages[2]):
        bench.wires["in"] = [("out", message)]
        bench.pass_on("in")
    assert arrived(bench) == ["m1", "m2", "m3"]


def test_a_queue_gets_one_key_per_session(bench: Bench) -> None:
    start_sender(bench)
    start_receiver(bench, queue="inbox/work")
    publish(bench, "a", "b", session="s")
    bench.settle("in", "out")
    row = bench.store.work("inbox/work", "a")
    assert row is not None
    assert (row.state, row.key) == (WorkState.READY, "s")
    assert counts(bench, Kind.ACCEPTED) == 2


def feed(bench: Bench, *messages: HopMessage, peer: str = "out") -> None:
    bench.wires["in"] = [(peer, message) for message in messages]
    bench.pass_on("in")


def numbered(index: int, session: str = "s", attempt: int = 1) -> HopMessage:
    name = f"{session}{index}"
    return HopMessage(f"d-{name}", Envelope(id=name, session=session, index=index), index, attempt)


@pytest.mark.parametrize("order", list(ReceiveOrder))
def test_what_the_store_refuses_is_rejected_with_its_cause(bench: Bench, order: ReceiveOrder) -> None:
    start_receiver(bench, order)
    bench.fail_commits = [REFUSED]
    feed(bench, numbered(1))
    assert (arrived(bench), bench.sent_to("out")) == ([], [])
    [event] = bench.ledger()
    assert (event.kind, event.message, event.delivery) == (Kind.REJECTED, "s1", "d-s1")
    assert event.cause is not None
    assert "blob" in event.cause
    assert [(note.topic, note.message) for note in bench.notes] == [("rejected", "s1")]
    feed(bench, numbered(1, attempt=2))
    assert arrived(bench) == ["s1"]


def test_a_store_that_is_away_rejects_nothing(bench: Bench) -> None:
    start_receiver(bench)
    bench.fail_commits = [DOWN]
    feed(bench, numbered(1))
    assert (bench.ledger(), bench.notes) == ([], [])


def test_a_rejection_that_the_store_refuses_is_not_rejected_again(bench: Bench) -> None:
    start_receiver(bench)
    bench.fail_commits = [REFUSED, REFUSED]
    feed(bench, numbered(1))
    assert (bench.ledger(), len(bench.notes)) == ([], 1)


def publish_with_chunks(bench: Bench, id: str) -> None:
    chunk = PutBlob("big", 0, b"x")
    bench.store.commit([Unit((chunk, Append(OUT, Envelope(id=id, blob=Blob("big", 1)))))])
    bench.interpreter.wake()
    bench.run()


def test_a_body_in_chunks_suspends_the_sender_before_it(bench: Bench) -> None:
    sender = start_sender(bench)
    start_receiver(bench)
    publish(bench, "a")
    publish_with_chunks(bench, "b")
    publish(bench, "c")
    bench.settle("in", "out")
    bench.wait(60.0)
    assert arrived(bench) == ["a"]
    assert bench.store.cursor("send/out") == Position(OUT, 1, 1)
    assert sender.suspended is not None
    [event] = [event for event in bench.ledger() if event.kind is Kind.SUSPENDED]
    assert event.message == "b"
    assert [(note.topic, note.message) for note in bench.notes] == [("suspended", "b")]
    assert "send/out" in bench.notes[0].detail


def test_a_sender_goes_on_when_an_operator_has_moved_its_cursor_past_the_chunks(bench: Bench) -> None:
    start_sender(bench)
    start_receiver(bench)
    publish_with_chunks(bench, "a")
    publish(bench, "b")
    bench.store.commit([Unit((Advance("send/out", Position(OUT, 1, 1)),))])
    seat = bench.interpreter.seat("out")
    assert seat is not None
    bench.interpreter.feed(seat, Resume())
    bench.run()
    assert bench.closes == ["reload"]
    assert counts(bench, Kind.RESUMED) == 1
    start_sender(bench)
    bench.settle("in", "out")
    assert arrived(bench) == ["b"]


def test_a_late_message_after_a_skipped_gap_is_dropped_and_its_copy_a_duplicate(bench: Bench) -> None:
    start_receiver(bench, ReceiveOrder.STRICT, gap=GapPolicy(OnGap.SKIP, 2.0))
    feed(bench, numbered(4))
    bench.wait(2.0)
    feed(bench, numbered(2))
    assert bench.sent_to("out") == [Confirm(("d-s4",)), Confirm(("d-s2",))]
    [event] = [event for event in bench.ledger() if event.kind is Kind.DROPPED]
    assert (event.message, event.cause) == ("s2", "it came after its place was given up")
    feed(bench, numbered(2, attempt=2), numbered(4, attempt=2))
    assert (counts(bench, Kind.DROPPED), counts(bench, Kind.DUPLICATE)) == (1, 2)
    feed(bench, numbered(1), numbered(3))
    assert counts(bench, Kind.DROPPED) == 3


def test_what_monotonic_gives_up_is_dropped_and_not_called_a_duplicate(bench: Bench) -> None:
    start_receiver(bench, ReceiveOrder.MONOTONIC)
    for message in (numbered(2), numbered(1), numbered(2, attempt=2)):
        feed(bench, message)
    assert [(event.kind, event.message) for event in bench.ledger() if event.message is not None] == [
        (Kind.DROPPED, "s1"),
        (Kind.DUPLICATE, "s2"),
    ]
    assert balance(bench.ledger(), open_count=1).holds


@pytest.mark.parametrize("event", [PeerConnected("stranger"), Received("stranger", AskForGap("s", 1, 1))])
def test_a_sender_sends_nothing_because_a_stranger_says_so(bench: Bench, event: PeerConnected | Received) -> None:
    start_sender(bench)
    publish(bench, "a", session="s")
    bench.wires.clear()
    seat = bench.interpreter.seat("out")
    assert seat is not None
    bench.interpreter.feed(seat, event)
    assert bench.sent_to("in") == []


def test_a_confirm_of_a_stranger_counts_for_nothing(bench: Bench) -> None:
    sender = start_sender(bench)
    publish(bench, "a")
    seat = bench.interpreter.seat("out")
    assert seat is not None
    bench.interpreter.feed(seat, Received("stranger", Confirm((f"{OUT}/1/1",))))
    bench.run()
    assert sender.unconfirmed == 1
    assert bench.store.cursor("send/out") is None


@pytest.mark.parametrize("order", [ReceiveOrder.STRICT, ReceiveOrder.MONOTONIC])
def test_a_message_without_a_session_is_rejected_where_the_index_counts(bench: Bench, order: ReceiveOrder) -> None:
    receiver = start_receiver(bench, order)
    feed(bench, HopMessage("d1", Envelope(id="m", index=1), 1))
    assert (arrived(bench), bench.sent_to("out"), receiver._sessions) == ([], [], {})
    [event] = bench.ledger()
    assert (event.kind, event.cause) == (
        Kind.REJECTED,
        "it has no session, and this hop goes by the index within a session",
    )
    assert [note.topic for note in bench.notes] == ["rejected"]


def test_sessions_that_rest_are_let_go_and_loaded_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hop, "SESSIONS_MAX", 3)
    receiver = start_receiver(bench, ReceiveOrder.STRICT)
    feed(bench, numbered(2, "waiting"))
    for session in "abc":
        feed(bench, numbered(1, session))
    feed(bench, numbered(2, "b"))
    assert set(receiver._sessions) == {"waiting", "b", "c"}
    for session in "def":
        feed(bench, numbered(1, session))
    assert set(receiver._sessions) == {"waiting", "e", "f"}
    feed(bench, numbered(1, "a", attempt=2), numbered(2, "a"))
    feed(bench, numbered(1, "waiting"))
    assert arrived(bench) == ["a1", "b1", "c1", "b2", "d1", "e1", "f1", "a2", "waiting1", "waiting2"]
    assert counts(bench, Kind.DUPLICATE) == 1


def test_a_receiver_finds_its_way_back_into_a_session_whose_state_was_deleted(bench: Bench) -> None:
    """The key goes on counting, so the first version after the new beginning is not the one that was foreseen."""
    start_receiver(bench, ReceiveOrder.STRICT)
    feed(bench, numbered(1))
    bench.store.commit([Unit((Put("receive/in/s", None),))])
    start_receiver(bench, ReceiveOrder.STRICT)
    feed(bench, numbered(1), numbered(2))
    feed(bench, numbered(2, attempt=2), numbered(3))
    feed(bench, numbered(3, attempt=2))
    assert arrived(bench) == ["s1", "s1", "s2", "s3"]


fates = st.lists(st.sampled_from([0, 0, 1, 1, 1, 2]), max_size=60)


def _fate(values: list[int]) -> Iterator[int]:
    yield from values
    while True:
        yield 1


@given(st.sampled_from(ReceiveOrder), st.integers(1, 5), fates, fates, st.lists(st.booleans(), max_size=10))
def test_over_any_link_everything_arrives_once(
    order: ReceiveOrder, window: int, there: list[int], back: list[int], failures: list[bool]
) -> None:
    """Loss, doubles and store failures in any mixture. Nothing is reordered, so a monotonic receiver loses nothing
    only with a window of one; the others keep their promise with any."""
    bench = Bench()
    start_sender(bench, sender_config(window=1 if order is ReceiveOrder.MONOTONIC else window))
    start_receiver(bench, order)
    publish(bench, *"abcdefg", session="s")
    bench.fail_commits = [DOWN if fails else None for fails in failures]
    forth, answers = _fate(there), _fate(back)
    for _ in range(200):
        bench.pass_on("in", keep=lambda message: next(forth))
        bench.pass_on("out", keep=lambda message: next(answers))
        if bench.store.cursor("send/out") == Position(OUT, 1, 7):
            break
        bench.wait(5.0)
    assert bench.store.cursor("send/out") == Position(OUT, 1, 7)
    if order is ReceiveOrder.ID:
        assert sorted(arrived(bench)) == list("abcdefg")
    else:
        assert arrived(bench) == list("abcdefg")
    assert counts(bench, Kind.ACCEPTED) == counts(bench, Kind.CONFIRMED) == 7
