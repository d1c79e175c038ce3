"""The storage pipe on one workbench: publisher, service and consumer, and links that a test tampers with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any

import msgspec
import pytest

from semel.errors import ConfigError, InputError, StoreRefused, StoreUnavailable
from semel.kernel.effects import PeerConnected, Received, Resume
from semel.kernel.envelope import Blob, Envelope
from semel.kernel.hop import Confirm, HopMessage
from semel.kernel.ledger import Kind
from semel.kernel.ops import Append, Op, Put, PutBlob, Trim, Unit
from semel.kernel.resend import ResendPolicy
from semel.kernel.retry import RetryPolicy
from semel.kernel.store import Records
from semel.pipes.services.consumer import Consumer, ConsumerConfig
from semel.pipes.services.publisher import Publisher, PublisherConfig
from semel.pipes.services.storage import (
    BUSY,
    CHUNKED,
    EPOCH_CHANGED,
    FORBIDDEN,
    NO_STREAM,
    STORAGE_TYPES,
    TRIMMED,
    Create,
    Created,
    GetIndex,
    IndexIs,
    Pull,
    Pulled,
    Push,
    Pushed,
    ReadPlace,
    SaveIndex,
    StorageConfig,
    StorageRefused,
    StorageService,
    StorageWire,
)
from unit.kernel.bench import Bench

STREAM = "pipe/orders/s"
EFFECTS = "effects/c"
DOWN = StoreUnavailable("gone", fix="wait")


def envelopes(*ids: str) -> list[Envelope]:
    return [Envelope(id) for id in ids]


def stored(bench: Bench, stream: str = STREAM) -> list[str]:
    found = bench.store.read(stream)
    assert isinstance(found, Records)
    return [record.envelope.id for record in found.records]


def start_service(bench: Bench, **more: Any) -> StorageService:
    service = StorageService(StorageConfig("store", "pipe/orders/", **more))
    bench.add(service)
    return service


def ask(bench: Bench, request: Any, peer: str = "me") -> list[Any]:
    """Ask the service as `peer`, and hear what it says."""
    seat = bench.interpreter.seat("store")
    assert seat is not None
    bench.interpreter.feed(seat, Received(peer, request))
    bench.run()
    return heard(bench, peer)


def heard(bench: Bench, peer: str = "me") -> list[Any]:
    answers = bench.sent_to(peer)
    bench.wires[peer] = []
    return answers


def created(bench: Bench, **more: Any) -> Bench:
    start_service(bench, **more)
    assert ask(bench, Create("c", STREAM)) == [Created("c", STREAM)]
    return bench


def push(bench: Bench, *ids: str) -> None:
    for id in ids:
        assert [type(each) for each in ask(bench, Push(f"push-{id}", STREAM, Envelope(id)))] == [Pushed]


def publisher(run: str = "p1", window: int = 1, retries: int | None = None, **more: Any) -> Publisher:
    policy = ResendPolicy(window, 1.0, RetryPolicy(retries, 1.0, then=more.pop("then", "suspend")))
    return Publisher(PublisherConfig("pub", "store", STREAM, "orders", policy, **more), run)


def consumer(run: str = "c1", **more: Any) -> Consumer:
    more.setdefault("retry", RetryPolicy(retries=2, interval_s=1.0, factor=2.0))
    return Consumer(ConsumerConfig("con", "store", STREAM, "billing", "orders", timeout_s=1.0, wait_s=2.0, **more), run)


def tell(bench: Bench, machine: str, event: Any) -> None:
    seat = bench.interpreter.seat(machine)
    assert seat is not None
    bench.interpreter.feed(seat, event)
    bench.run()


def settle(bench: Bench) -> None:
    bench.settle("store", "pub", "con")


def effect(item: Any) -> tuple[Op, ...]:
    """Without an identity that could hide a double."""
    return (Append(EFFECTS, Envelope(item.envelope.id)),)


@pytest.fixture
def bench() -> Bench:
    return Bench()


# -- the wire


@pytest.mark.parametrize(
    "message",
    [
        Create("1", "s"),
        Created("1", "s"),
        Push("1", "s", Envelope("a", data=b"x")),
        Pushed("1", 1, 7),
        Pushed("1", error="no"),
        Pull("1", "s", 3, 1, 5, 2.5),
        Pulled("1", 1, ((4, Envelope("a")), (5, Envelope("b"))), end=True),
        SaveIndex("1", "c", "s", 1, 4, reset=True),
        GetIndex("1", "c", "s"),
        IndexIs("1", 1, 4),
        StorageRefused("1", TRIMMED, 1, 9),
    ],
)
def test_every_message_crosses_a_wire(message: Any) -> None:
    assert type(message) in STORAGE_TYPES
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=StorageWire) == message  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [{"after": -1}, {"limit": -1}, {"wait_s": float("nan")}, {"wait_s": -1.0}])
def test_numbers_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        Pull("1", STREAM, **wrong)
    with pytest.raises(InputError):
        SaveIndex("1", "c", STREAM, 1, -1)


# -- the service: streams


def test_a_stream_is_created_once_and_known_after_a_restart(bench: Bench) -> None:
    created(bench)
    assert ask(bench, Create("again", STREAM)) == [Created("again", STREAM)]
    start_service(bench)
    assert ask(bench, Push("1", STREAM, Envelope("a"))) == [Pushed("1", 1, 1)]


def test_nothing_goes_to_a_stream_that_was_not_created(bench: Bench) -> None:
    start_service(bench)
    for request in (Push("1", STREAM, Envelope("a")), Pull("1", STREAM), GetIndex("1", "c", STREAM)):
        assert ask(bench, request) == [StorageRefused("1", NO_STREAM)]


@pytest.mark.parametrize("stream", ["pipe/other/s", "pipe/orders", "hub/main", "pipe/orders/BAD NAME", ""])
def test_strangers_reach_only_what_lies_under_the_prefix(bench: Bench, stream: str) -> None:
    start_service(bench)
    assert ask(bench, Create("1", stream)) == [StorageRefused("1", FORBIDDEN)]
    assert ask(bench, Pull("2", stream)) == [StorageRefused("2", FORBIDDEN)]


@pytest.mark.parametrize(
    "request_",
    [
        Push("r" * 300, STREAM, Envelope("a")),
        Push("", STREAM, Envelope("a")),
        Create("1", "pipe/orders/" + "x" * 400),
        GetIndex("1", "", STREAM),
        GetIndex("1", "\U0001f98a" * 128, STREAM),
    ],
)
def test_names_that_no_store_would_hold_are_refused_at_the_door(bench: Bench, request_: Any) -> None:
    created(bench)
    assert ask(bench, request_) == [StorageRefused(request_.request, FORBIDDEN)]


def test_there_is_an_end_to_the_number_of_streams(bench: Bench) -> None:
    start_service(bench, streams_max=2)
    answers = [ask(bench, Create(name, f"pipe/orders/{name}"))[0] for name in "abc"]
    assert [type(answer) for answer in answers] == [Created, Created, StorageRefused]


def test_what_comes_before_the_service_knows_its_streams_waits(bench: Bench) -> None:
    created(bench)
    bench.interpreter.add(StorageService(StorageConfig("store", "pipe/orders/")))
    assert ask(bench, Push("1", STREAM, Envelope("a"))) == [Pushed("1", 1, 1)]


def test_a_second_service_on_the_store_learns_of_the_first_ones_streams(bench: Bench) -> None:
    start_service(bench)
    other = Bench()
    other.store = bench.store
    start_service(other)
    ask(bench, Create("1", STREAM))
    assert ask(other, Push("1", STREAM, Envelope("a"))) == [StorageRefused("1", NO_STREAM)]
    ask(other, Create("2", STREAM))
    other.wait(1.0)
    assert heard(other) == [Created("2", STREAM)]
    ask(other, Create("3", "pipe/orders/t"))
    start_service(bench)
    assert ask(bench, Create("4", "pipe/orders/t")) == [Created("4", "pipe/orders/t")]


def test_a_creation_that_fails_is_made_again(bench: Bench) -> None:
    start_service(bench)
    bench.fail_commits = [DOWN]
    assert ask(bench, Create("1", STREAM)) == []
    bench.wait(2.0)
    assert heard(bench) == [Created("1", STREAM)]


# -- the service: pushes


def test_a_push_is_answered_with_its_offset_and_a_repeat_with_the_first(bench: Bench) -> None:
    created(bench)
    assert ask(bench, Push("1", STREAM, Envelope("a"))) == [Pushed("1", 1, 1)]
    assert ask(bench, Push("2", STREAM, Envelope("b"))) == [Pushed("2", 1, 2)]
    assert ask(bench, Push("1", STREAM, Envelope("a"))) == [Pushed("1", 1, 1)]
    assert ask(bench, Push("other", STREAM, Envelope("a"))) == [Pushed("other", 1, 1)]
    assert stored(bench) == ["a", "b"]
    kinds = [event.kind for event in bench.ledger()]
    assert kinds.count(Kind.ACCEPTED) == 2
    assert kinds.count(Kind.DUPLICATE) == 2


def test_nothing_is_confirmed_that_was_not_committed(bench: Bench) -> None:
    created(bench)
    bench.fail_commits = [DOWN]
    assert ask(bench, Push("1", STREAM, Envelope("a"))) == []
    assert ask(bench, Push("1", STREAM, Envelope("a"))) == [Pushed("1", 1, 1)]


def test_a_second_copy_of_an_undecided_push_is_not_committed_again(bench: Bench) -> None:
    created(bench)
    seat = bench.interpreter.seat("store")
    assert seat is not None
    for _ in range(2):
        bench.interpreter.feed(seat, Received("me", Push("1", STREAM, Envelope("a"))))
    bench.run()
    assert heard(bench) == [Pushed("1", 1, 1)]


def test_after_a_failure_nothing_of_one_peer_lands_out_of_turn(bench: Bench) -> None:
    created(bench)
    seat = bench.interpreter.seat("store")
    assert seat is not None
    bench.fail_commits = [DOWN]
    for id in "ab":
        bench.interpreter.feed(seat, Received("me", Push(id, STREAM, Envelope(id))))
    bench.interpreter.feed(seat, Received("you", Push("c", STREAM, Envelope("c"))))
    bench.run()
    assert stored(bench) == ["c"]
    push(bench, "a", "b")
    assert stored(bench) == ["c", "a", "b"]


def test_what_the_store_will_never_take_is_said_to_be_so(bench: Bench) -> None:
    created(bench)
    bench.fail_commits = [StoreRefused("too odd", fix="do not")]
    [answer] = ask(bench, Push("1", STREAM, Envelope("a")))
    assert "too odd" in answer.error
    [answer] = ask(bench, Push("2", STREAM, Envelope("a", blob=Blob("b", 1))))
    assert "chunks" in answer.error
    assert answer.offset is None


# -- the service: pulls


def test_a_pull_reads_on_from_an_index(bench: Bench) -> None:
    created(bench)
    push(bench, *"abc")
    a, b, c = envelopes(*"abc")
    assert ask(bench, Pull("1", STREAM)) == [Pulled("1", 1, ((1, a), (2, b), (3, c)), end=True)]
    assert ask(bench, Pull("2", STREAM, 1, 1)) == [Pulled("2", 1, ((2, b), (3, c)), end=True)]
    assert ask(bench, Pull("3", STREAM, limit=2)) == [Pulled("3", 1, ((1, a), (2, b)), end=False)]
    assert ask(bench, Pull("4", STREAM, limit=0)) == [Pulled("4", 1, ((1, a),), end=False)]


def test_an_answer_holds_no_more_than_the_service_allows(bench: Bench) -> None:
    created(bench, pull_max=2, pull_bytes_max=3000)
    push(bench, *"abc")
    [answer] = ask(bench, Pull("1", STREAM, limit=1000))
    assert [offset for offset, _ in answer.entries] == [1, 2]
    assert not answer.end
    for id in "de":
        ask(bench, Push(id, STREAM, Envelope(id, data=bytes(2000))))
    [answer] = ask(bench, Pull("2", STREAM, 3, 1, limit=10))
    assert [envelope.id for _, envelope in answer.entries] == ["d"]
    [answer] = ask(bench, Pull("3", STREAM, 4, 1, limit=10))
    assert [envelope.id for _, envelope in answer.entries] == ["e"], "one is sent, however large"


def test_an_empty_pull_waits_and_is_woken(bench: Bench) -> None:
    created(bench)
    assert ask(bench, Pull("1", STREAM, wait_s=10)) == []
    ask(bench, Push("2", STREAM, Envelope("a")), peer="you")
    assert heard(bench) == [Pulled("1", 1, ((1, Envelope("a")),), end=True)]


def test_a_pull_waits_no_longer_than_it_wanted_or_is_allowed(bench: Bench) -> None:
    created(bench, wait_max_s=5.0)
    ask(bench, Pull("short", STREAM, wait_s=0))
    bench.wait(0.1)
    assert heard(bench) == [Pulled("short", 0, (), end=True)]
    ask(bench, Pull("long", STREAM, wait_s=1000))
    bench.wait(4.9)
    assert heard(bench) == []
    bench.wait(0.2)
    assert heard(bench) == [Pulled("long", 0, (), end=True)]


def test_pulls_of_one_place_share_a_read(bench: Bench) -> None:
    created(bench)
    for round in range(50):
        ask(bench, Pull(str(round), STREAM, wait_s=0))
        bench.wait(1)
    seat = bench.interpreter.seat("store")
    assert seat is not None
    assert len(seat.waiting) == 1
    heard(bench)
    ask(bench, Pull("x", STREAM, wait_s=5))
    ask(bench, Pull("x", STREAM, wait_s=5))
    ask(bench, Pull("y", STREAM, wait_s=5), peer="you")
    ask(bench, Push("1", STREAM, Envelope("a")), peer="they")
    assert len(heard(bench)) == 1
    assert len(heard(bench, "you")) == 1


def test_one_peer_cannot_take_all_the_waiting_places(bench: Bench) -> None:
    created(bench, waiting_per_peer=2, waiting_max=3)
    for after in (10, 11):
        assert ask(bench, Pull(f"{after}", STREAM, after, 1, wait_s=9)) == []
    assert ask(bench, Pull("12", STREAM, 12, 1, wait_s=9)) == [StorageRefused("12", BUSY)]
    bench.wait(10)
    heard(bench)
    assert ask(bench, Pull("13", STREAM, 13, 1)) == [StorageRefused("13", BUSY)], (
        "a read that nobody waits for is still one"
    )
    assert ask(bench, Pull("1", STREAM, wait_s=9), peer="you") == []
    assert ask(bench, Pull("14", STREAM, 14, 1), peer="they") == [StorageRefused("14", BUSY)]


def test_retention_that_was_shorter_than_the_outage_is_not_passed_over(bench: Bench) -> None:
    created(bench)
    push(bench, *"abcd")
    bench.store.commit([Unit((Trim(STREAM, 3),))])
    assert ask(bench, Pull("1", STREAM)) == [StorageRefused("1", TRIMMED, 1, 3)]
    assert ask(bench, Pull("2", STREAM, 1, 1)) == [StorageRefused("2", TRIMMED, 1, 3)]
    [answer] = ask(bench, Pull("3", STREAM, 2, 1))
    assert [offset for offset, _ in answer.entries] == [3, 4]


def test_a_place_in_another_epoch_is_not_passed_over(bench: Bench) -> None:
    created(bench)
    push(bench, *"ab")
    bench.store.raise_epoch("restored")
    assert ask(bench, Pull("1", STREAM, 1, 1)) == [StorageRefused("1", EPOCH_CHANGED, 2)]
    [answer] = ask(bench, Pull("2", STREAM))
    assert answer.epoch == 2


def test_a_body_in_chunks_is_not_passed_over(bench: Bench) -> None:
    created(bench)
    push(bench, "a")
    blob = Envelope("b", blob=Blob("blob", 1))
    bench.store.commit([Unit((PutBlob("blob", 0, b"x"), Append(STREAM, blob)))])
    [answer] = ask(bench, Pull("1", STREAM))
    assert [offset for offset, _ in answer.entries] == [1]
    assert not answer.end
    assert ask(bench, Pull("2", STREAM, 1, 1)) == [StorageRefused("2", CHUNKED, 1, 2)]


# -- the service: indexes


def test_an_index_is_kept_for_each_client_and_stream(bench: Bench) -> None:
    created(bench)
    ask(bench, Create("t", "pipe/orders/t"))
    assert ask(bench, GetIndex("1", "c", STREAM)) == [IndexIs("1", 0, 0)]
    assert ask(bench, SaveIndex("2", "c", STREAM, 1, 5)) == [IndexIs("2", 1, 5)]
    start_service(bench)
    assert ask(bench, GetIndex("3", "c", STREAM)) == [IndexIs("3", 1, 5)]
    assert ask(bench, GetIndex("4", "d", STREAM)) == [IndexIs("4", 0, 0)]
    assert ask(bench, GetIndex("5", "c", "pipe/orders/t")) == [IndexIs("5", 0, 0)]


def test_the_names_of_clients_do_not_run_into_those_of_streams(bench: Bench) -> None:
    created(bench)
    long = "pipe/orders/x/pipe/orders/s"
    ask(bench, Create("t", long))
    ask(bench, SaveIndex("1", "c/pipe/orders/x", STREAM, 1, 5))
    assert ask(bench, GetIndex("2", "c", long)) == [IndexIs("2", 0, 0)]
    assert ask(bench, GetIndex("3", "c" * 200, STREAM)) == [StorageRefused("3", FORBIDDEN)]


def test_an_index_goes_back_only_when_that_is_meant(bench: Bench) -> None:
    created(bench)
    ask(bench, SaveIndex("1", "c", STREAM, 1, 5))
    assert ask(bench, SaveIndex("2", "c", STREAM, 1, 3)) == [IndexIs("2", 1, 5)]
    assert ask(bench, SaveIndex("3", "c", STREAM, 2, 1)) == [IndexIs("3", 2, 1)], "a later epoch is further on"
    assert ask(bench, SaveIndex("4", "c", STREAM, 1, 9)) == [IndexIs("4", 2, 1)]
    assert ask(bench, SaveIndex("5", "c", STREAM, 1, 0, reset=True)) == [IndexIs("5", 1, 0)]
    assert ask(bench, GetIndex("6", "c", STREAM)) == [IndexIs("6", 1, 0)]


def test_an_index_is_confirmed_when_it_is_durable(bench: Bench) -> None:
    created(bench)
    bench.fail_commits = [DOWN]
    assert ask(bench, SaveIndex("1", "c", STREAM, 1, 5)) == []
    assert ask(bench, SaveIndex("1", "c", STREAM, 1, 5)) == [IndexIs("1", 1, 5)]


def test_questions_about_one_index_are_answered_in_turn(bench: Bench) -> None:
    created(bench, indexing_max=4)
    seat = bench.interpreter.seat("store")
    assert seat is not None
    for request in (
        SaveIndex("1", "c", STREAM, 1, 5),
        SaveIndex("1", "c", STREAM, 1, 5),
        GetIndex("2", "c", STREAM),
        SaveIndex("3", "c", STREAM, 1, 7),
        GetIndex("4", "c", STREAM),
        GetIndex("one too many", "c", STREAM),
    ):
        bench.interpreter.feed(seat, Received("me", request))
    bench.run()
    assert heard(bench) == [IndexIs("1", 1, 5), IndexIs("2", 1, 5), IndexIs("3", 1, 7), IndexIs("4", 1, 7)]


def test_an_index_that_another_service_moved_meanwhile_is_compared_anew(bench: Bench) -> None:
    created(bench)
    seat = bench.interpreter.seat("store")
    assert seat is not None
    ask(bench, SaveIndex("1", "c", STREAM, 1, 5))
    bench.interpreter.feed(seat, Received("me", SaveIndex("2", "c", STREAM, 1, 6)))
    load = bench._jobs.popleft()
    load()
    bench.store.commit([Unit((Put(f"storage/store/index/c/{STREAM}", b"1:9"),))])
    bench.run()
    assert heard(bench) == [IndexIs("2", 1, 9)]


def test_a_prefix_is_a_folder() -> None:
    with pytest.raises(ConfigError):
        StorageConfig("store", "pipe")
    with pytest.raises(ConfigError):
        StorageConfig("store", "pipe/", wait_min_s=2.0, wait_max_s=1.0)


# -- the publisher


def hand(bench: Bench, *ids: str, peer: str = "up") -> None:
    for id in ids:
        tell(bench, "pub", Received(peer, HopMessage(f"d-{id}", Envelope(id), 0)))


def requests(bench: Bench) -> list[str]:
    return [each.request for each in bench.sent_to("store") if isinstance(each, Push)]


def test_upstream_is_confirmed_when_the_message_is_stored(bench: Bench) -> None:
    start_service(bench)
    bench.add(publisher())
    hand(bench, "a", "b")
    assert bench.sent_to("up") == []
    settle(bench)
    assert stored(bench) == ["a", "b"]
    assert bench.sent_to("up") == [Confirm(("d-a",)), Confirm(("d-b",))]


def test_a_request_keeps_its_id_over_attempts_and_no_two_share_one(bench: Bench) -> None:
    bench.add(publisher(window=3))
    hand(bench, "a", "b", "c", "d")
    bench.wait(3.5)
    seen = requests(bench)
    assert len(seen) > 6
    assert len(set(seen)) == 3, "the window holds three"
    by_id = {(each.request, each.envelope.id) for each in bench.sent_to("store") if isinstance(each, Push)}
    assert len(by_id) == 3


def test_a_late_answer_settles_the_message_that_it_is_about(bench: Bench) -> None:
    bench.add(publisher())
    hand(bench, "a", "b")
    bench.wait(5)
    [first] = set(requests(bench))
    bench.wires["store"] = []
    tell(bench, "pub", Received("store", Pushed(first, 1, 1)))
    tell(bench, "pub", Received("store", Pushed(first, 1, 1)))
    assert bench.sent_to("up") == [Confirm(("d-a",))]
    assert [each.envelope.id for each in bench.sent_to("store")] == ["b"]


def test_a_message_that_comes_twice_is_pushed_once_and_confirmed_to_all(bench: Bench) -> None:
    start_service(bench)
    bench.add(publisher())
    hand(bench, "a")
    hand(bench, "a", peer="other")
    hand(bench, "a")
    settle(bench)
    assert bench.sent_to("up") == [Confirm(("d-a",))]
    assert bench.sent_to("other") == [Confirm(("d-a",))]
    hand(bench, "a")
    settle(bench)
    assert bench.sent_to("up") == [Confirm(("d-a",))] * 2
    assert stored(bench) == ["a"]


def test_only_the_service_may_confirm(bench: Bench) -> None:
    bench.add(publisher())
    hand(bench, "a")
    tell(bench, "pub", Received("stranger", Pushed(requests(bench)[0], 1, 1)))
    assert bench.sent_to("up") == []


def test_a_rejected_message_is_reported_and_the_next_one_goes(bench: Bench) -> None:
    start_service(bench)
    bench.add(publisher())
    settle(bench)
    bench.fail_commits = [StoreRefused("too odd", fix="do not")]
    hand(bench, "a", "b")
    settle(bench)
    assert stored(bench) == ["b"]
    assert bench.sent_to("up") == [Confirm(("d-b",))]
    assert [note.topic for note in bench.notes] == ["rejected"]


def test_what_finds_no_room_is_not_taken(bench: Bench) -> None:
    start_service(bench)
    bench.add(publisher(queue_max=2))
    hand(bench, *"abc")
    settle(bench)
    assert bench.sent_to("up") == [Confirm(("d-a",)), Confirm(("d-b",))]


def test_a_stream_that_is_gone_is_created_again(bench: Bench) -> None:
    start_service(bench)
    bench.add(publisher())
    settle(bench)
    bench.store.commit([Unit((Put("storage/store", None),))])
    start_service(bench)
    tell(bench, "pub", Received("app", Envelope("a")))
    settle(bench)
    assert stored(bench) == ["a"]


def test_a_publisher_without_an_answer_stops_and_is_resumed(bench: Bench) -> None:
    bench.add(publisher(retries=1))
    hand(bench, "a")
    bench.wait(10)
    assert [note.topic for note in bench.notes] == ["suspended"]
    bench.wires["store"] = []
    tell(bench, "pub", Resume())
    assert len(requests(bench)) == 1
    start_service(bench)
    settle(bench)
    assert stored(bench) == ["a"]


def test_a_publisher_may_give_up_and_does_not_confirm(bench: Bench) -> None:
    bench.add(publisher(retries=1, then="discard"))
    hand(bench, "a", "b")
    bench.wait(2.5)
    assert [note.message for note in bench.notes] == ["a"]
    assert bench.sent_to("up") == []
    hand(bench, "a")
    assert bench.interpreter.seat("pub").machine.unconfirmed == 2  # type: ignore[union-attr, attr-defined]


def test_after_a_reconnect_all_goes_out_again(bench: Bench) -> None:
    bench.add(publisher(window=2))
    hand(bench, "a", "b")
    bench.wires["store"] = []
    tell(bench, "pub", PeerConnected("store"))
    assert [type(each) for each in bench.sent_to("store")] == [Create, Push, Push]
    assert bench.interpreter.next_deadline() is not None


def test_a_refused_stream_is_for_people(bench: Bench) -> None:
    start_service(bench)
    config = PublisherConfig("pub", "store", "hub/main")
    bench.add(Publisher(config, "p"))
    tell(bench, "pub", Received("app", Envelope("a")))
    for _ in range(20):
        settle(bench)
        bench.wait(5)
    assert [note.topic for note in bench.notes] == ["refused"], "once, however often it is tried"


# -- the consumer


def start_pipe(bench: Bench, *ids: str, **more: Any) -> Consumer:
    created(bench)
    push(bench, *ids)
    made = consumer(**more)
    bench.add(made)
    return made


def index(bench: Bench) -> int:
    [answer] = ask(bench, GetIndex("index", "billing", STREAM), peer="test")
    assert isinstance(answer, IndexIs)
    return answer.index


@pytest.mark.parametrize("durable", [False, True])
def test_messages_are_handed_over_one_after_the_other(bench: Bench, durable: bool) -> None:
    made = start_pipe(bench, *"abc", durable=durable)
    settle(bench)
    assert bench.delivered == ["a", "b", "c"]
    assert made.place == ReadPlace(1, 3)
    assert made.saved == ReadPlace(1, 3)
    assert index(bench) == 3
    push(bench, "d")
    settle(bench)
    assert bench.delivered == ["a", "b", "c", "d"]
    assert made.meter.counts[Kind.HANDLED] == 4


@pytest.mark.parametrize("durable", [False, True])
def test_a_restarted_consumer_goes_on_at_its_index(bench: Bench, durable: bool) -> None:
    start_pipe(bench, *"abc", durable=durable)
    settle(bench)
    push(bench, "d")
    bench.add(consumer("c2", durable=durable))
    settle(bench)
    assert bench.delivered == ["a", "b", "c", "d"]


def test_an_index_that_is_lost_means_from_the_start(bench: Bench) -> None:
    start_pipe(bench, *"ab")
    settle(bench)
    bench.store.commit([Unit((Put(f"storage/store/index/billing/{STREAM}", None),))])
    bench.add(consumer("c2"))
    settle(bench)
    assert bench.delivered == ["a", "b", "a", "b"]


def test_a_durable_consumer_needs_no_index_service(bench: Bench) -> None:
    start_pipe(bench, *"ab", durable=True)
    settle(bench)
    ask(bench, SaveIndex("reset", "billing", STREAM, 0, 0, reset=True), peer="test")
    bench.add(consumer("c2", durable=True))
    settle(bench)
    assert bench.delivered == ["a", "b"]
    assert index(bench) == 2, "it is told again"


@pytest.mark.parametrize("durable", [False, True])
def test_the_index_does_not_pass_a_message_that_failed(bench: Bench, durable: bool) -> None:
    made = start_pipe(bench, *"abc", durable=durable)
    failing = {"b"}

    def handler(item: Any) -> tuple[Op, ...]:
        if item.envelope.id in failing:
            raise ValueError("not today")
        return effect(item)

    bench.handler = handler
    settle(bench)
    assert bench.delivered == ["a", "b"]
    assert index(bench) == 1
    bench.wait(1.1)
    settle(bench)
    assert bench.delivered == ["a", "b", "b"]
    assert index(bench) == 1
    failing.clear()
    bench.wait(2.1)
    settle(bench)
    assert bench.delivered == ["a", "b", "b", "b", "c"]
    assert stored(bench, EFFECTS) == ["a", "b", "c"]
    assert index(bench) == 3
    assert made.meter.counts[Kind.FAILED] == 2


@pytest.mark.parametrize("durable", [False, True])
def test_every_message_has_attempts_of_its_own(bench: Bench, durable: bool) -> None:
    made = start_pipe(bench, *"abc", durable=durable)

    def handler(item: Any) -> tuple[Op, ...]:
        if bench.delivered.count(item.envelope.id) <= 2:
            raise ValueError("not yet")
        return ()

    bench.handler = handler
    for _ in range(20):
        settle(bench)
        bench.wait(5)
    assert bench.delivered == ["a"] * 3 + ["b"] * 3 + ["c"] * 3
    assert not made.is_suspended


def test_a_commit_that_nobody_heard_of_ends_the_attempts_at_its_message(bench: Bench) -> None:
    made = start_pipe(bench, *"ab", durable=True)

    def handler(item: Any) -> tuple[Op, ...]:
        if bench.delivered.count(item.envelope.id) <= 2:
            raise ValueError("not yet")
        return effect(item)

    bench.handler = handler
    commit = bench.land

    def unheard(group: Any) -> None:
        bench.store.commit(group.units)
        bench.interpreter.unknown(group)

    bench.land = unheard  # type: ignore[method-assign]
    for _ in range(4):
        settle(bench)
        bench.wait(1.5)
    bench.land = commit  # type: ignore[method-assign]
    for _ in range(10):
        settle(bench)
        bench.wait(5)
    assert bench.delivered == ["a"] * 3 + ["b"] * 3
    assert stored(bench, EFFECTS) == ["a", "b"]
    assert not made.is_suspended


def test_what_was_handled_is_not_handed_over_again_whatever_the_service_says(bench: Bench) -> None:
    start_pipe(bench, *"ab")
    settle(bench)
    bench.wait(20)
    [pull] = {each for each in bench.sent_to("store") if isinstance(each, Pull)}
    entries = tuple((offset, Envelope(f"x{offset}")) for offset in (1, 2, 3, 3))
    tell(bench, "con", Received("store", Pulled(pull.request, 1, entries, end=True)))
    assert bench.delivered == ["a", "b", "x3"]


def test_a_consumer_that_waits_goes_on_when_it_is_resumed(bench: Bench) -> None:
    made = start_pipe(bench, *"ab")
    bench.handler = lambda item: 1 / 0  # type: ignore[return-value]
    for _ in range(10):
        settle(bench)
        bench.wait(5)
    assert bench.delivered == ["a"] * 3
    assert made.is_suspended
    assert [note.topic for note in bench.notes] == ["suspended"]
    assert index(bench) == 0
    bench.handler = lambda item: ()
    tell(bench, "con", Resume())
    settle(bench)
    assert bench.delivered == ["a"] * 4 + ["b"]


@pytest.mark.parametrize("durable", [False, True])
def test_poison_is_skipped_and_recorded(bench: Bench, durable: bool) -> None:
    start_pipe(bench, *"abc", durable=durable, poison="skip")

    def handler(item: Any) -> tuple[Op, ...]:
        if item.envelope.id == "b":
            raise ValueError("poison")
        return ()

    bench.handler = handler
    for _ in range(10):
        settle(bench)
        bench.wait(5)
    assert bench.delivered == ["a", "b", "b", "b", "c"]
    skipped = [event for event in bench.ledger() if event.kind is Kind.SKIPPED]
    assert [(event.message, event.cause) for event in skipped] == [("b", "poison")]
    assert [note.topic for note in bench.notes] == ["skipped"]
    assert index(bench) == 3


def test_a_save_is_sent_until_it_is_confirmed(bench: Bench) -> None:
    made = start_pipe(bench, *"ab")
    while made.place != ReadPlace(1, 2):
        bench.pass_on("store", keep=lambda message: int(not isinstance(message, SaveIndex)))
        bench.pass_on("con")
    assert made.saved == ReadPlace()
    assert index(bench) == 0
    for _ in range(3):
        bench.wait(1.0)
        bench.pass_on("store", keep=lambda message: int(not isinstance(message, SaveIndex)))
    bench.wait(10.0)
    settle(bench)
    assert made.saved == ReadPlace(1, 2)
    assert index(bench) == 2


def test_only_what_was_handled_is_saved(bench: Bench) -> None:
    start_pipe(bench, *"abc")
    saves: list[tuple[int, list[str]]] = []

    def watch(message: Any) -> int:
        if isinstance(message, SaveIndex):
            saves.append((message.index, list(bench.delivered)))
        return 1

    for _ in range(20):
        bench.pass_on("store", keep=watch)
        bench.pass_on("con")
    assert saves
    assert all(len(delivered) >= index for index, delivered in saves)


def test_a_durable_consumer_commits_the_effect_and_its_place_together(bench: Bench) -> None:
    start_pipe(bench, *"abc", durable=True)
    bench.handler = effect
    bench.fail_commits = [DOWN] * 3
    for _ in range(10):
        settle(bench)
        bench.wait(1.0)
    assert stored(bench, EFFECTS) == ["a", "b", "c"]
    assert [event.message for event in bench.ledger() if event.kind is Kind.HANDLED] == ["a", "b", "c"]


def test_two_durable_consumers_of_one_name_do_not_both_take_effect(bench: Bench) -> None:
    start_pipe(bench, *"abc", durable=True)
    other = Bench()
    other.store = bench.store
    other.handler = bench.handler = effect
    start_service(other)
    rival = consumer("c2", durable=True, retry=RetryPolicy(retries=0))
    other.add(rival)
    for _ in range(20):
        for each in (bench, other):
            each.pass_on("store")
            each.pass_on("con")
            each.wait(1.0)
    assert stored(bench, EFFECTS) == ["a", "b", "c"]
    assert len(bench.delivered + other.delivered) > 3, "both of them tried"
    assert not rival.is_suspended, "to come second is no failure of the handler"


def test_writes_that_the_store_refuses_are_the_handlers_failure(bench: Bench) -> None:
    made = start_pipe(bench, *"ab", durable=True)
    bench.handler = lambda item: (Put("mine", b"x", expected=7),)
    for _ in range(10):
        settle(bench)
        bench.wait(5)
    assert made.is_suspended
    assert bench.delivered == ["a"] * 3


def test_a_store_that_is_away_is_not_the_handlers_failure(bench: Bench) -> None:
    made = start_pipe(bench, "a", poison="skip")
    bench.handler = effect
    bench.fail_commits = [DOWN] * 8
    for _ in range(12):
        settle(bench)
        bench.wait(1.5)
    assert not made.is_suspended
    assert stored(bench, EFFECTS) == ["a"]
    assert bench.notes == []


@pytest.mark.parametrize("durable", [False, True])
def test_a_consumer_stops_before_a_gap_and_says_so(bench: Bench, durable: bool) -> None:
    start_pipe(bench, *"abcd", durable=durable)
    bench.store.commit([Unit((Trim(STREAM, 3),))])
    settle(bench)
    assert bench.delivered == []
    assert [note.topic for note in bench.notes] == [TRIMMED]
    assert bench.closes == [TRIMMED]


@pytest.mark.parametrize("durable", [False, True])
def test_a_consumer_may_go_on_after_a_gap_and_records_it(bench: Bench, durable: bool) -> None:
    start_pipe(bench, *"abcd", durable=durable, trimmed="skip")
    bench.store.commit([Unit((Trim(STREAM, 3),))])
    settle(bench)
    assert bench.delivered == ["c", "d"]
    assert [note.topic for note in bench.notes] == [TRIMMED]
    [gap] = [event for event in bench.ledger() if event.kind is Kind.ACTION]
    assert gap.message == "gap 1..2"


def test_a_store_in_another_epoch_stops_the_consumer(bench: Bench) -> None:
    start_pipe(bench, *"ab")
    settle(bench)
    bench.store.raise_epoch("restored")
    push(bench, "c")
    bench.add(consumer("c2"))
    settle(bench)
    assert bench.delivered == ["a", "b"]
    assert bench.closes == [EPOCH_CHANGED]


def test_a_consumer_waits_for_its_stream_to_be_created(bench: Bench) -> None:
    start_service(bench)
    bench.add(consumer())
    settle(bench)
    bench.wait(1)
    settle(bench)
    bench.add(publisher())
    tell(bench, "pub", Received("app", Envelope("a")))
    for _ in range(5):
        settle(bench)
        bench.wait(2)
    assert bench.delivered == ["a"]
    assert bench.closes == []


def test_a_forbidden_stream_stops_the_consumer(bench: Bench) -> None:
    start_service(bench)
    bench.add(Consumer(ConsumerConfig("con", "store", "hub/main", "billing"), "c"))
    settle(bench)
    assert bench.closes == [FORBIDDEN]


def test_a_copy_in_the_stream_is_not_handled_twice(bench: Bench) -> None:
    """The store forgets an identity in the end; the consumer still knows it."""
    made = start_pipe(bench, "a")
    bench.store.commit([Unit((Append(STREAM, Envelope("a")), Append(STREAM, Envelope("b"))))])
    settle(bench)
    assert bench.delivered == ["a", "b"]
    assert made.meter.counts[Kind.DUPLICATE] == 1
    assert index(bench) == 3


def test_after_a_reconnect_the_consumer_asks_again(bench: Bench) -> None:
    created(bench)
    bench.add(consumer())
    bench.wires["store"] = []
    tell(bench, "con", PeerConnected("store"))
    assert [type(each) for each in bench.sent_to("store")] == [GetIndex]


def test_a_pull_holds_at_least_one() -> None:
    with pytest.raises(ConfigError):
        ConsumerConfig("con", "store", STREAM, "billing", limit=0)


# -- all of it, in bad weather


def play(seed: int, *, durable: bool, window: int) -> tuple[Bench, list[str]]:
    """Loss, doubling, reordering, commits that fail, handlers that fail, and restarts of everything."""
    random = Random(seed)
    bench = Bench()
    lives = iter(range(10_000))
    start_service(bench)
    bench.add(publisher(f"p{next(lives)}", window))
    bench.add(consumer(f"c{next(lives)}", durable=durable, limit=random.randint(1, 4), retry=RetryPolicy()))
    ids = [f"m{number}" for number in range(12)]
    confirmed: set[str] = set()

    def handler(item: Any) -> tuple[Op, ...]:
        if random.random() < weather["fails"]:
            raise ValueError("not today")
        return effect(item)

    bench.handler = handler
    weather = {"fails": random.choice((0.0, 0.3)), "loss": random.choice((0.0, 0.3)), "restart": 0.06}
    for step in range(400):
        if step == 250:
            weather.update(dict.fromkeys(weather, 0.0))
        # upstream sends what is not confirmed, at most a window of it, in order
        for id in [id for id in ids if id not in confirmed][:window]:
            if random.random() < 0.3 or step >= 250:
                hand(bench, id)
        for peer in random.sample(["store", "pub", "con"], 3):
            random.shuffle(bench.wires.setdefault(peer, []))
            bench.pass_on(peer, keep=lambda _: 0 if random.random() < weather["loss"] else random.choice((1, 1, 2)))
        confirmed |= {delivery.removeprefix("d-") for each in bench.sent_to("up") for delivery in each.deliveries}
        if random.random() < weather["restart"]:
            who = random.choice(("store", "pub", "con"))
            if who == "store":
                start_service(bench)
            elif who == "pub":
                bench.add(publisher(f"p{next(lives)}", window))
            else:
                bench.add(consumer(f"c{next(lives)}", durable=durable, retry=RetryPolicy()))
        if random.random() < weather["loss"] / 3:
            bench.fail_commits.append(DOWN)
        bench.wait(random.random())
    assert confirmed == set(ids)
    return bench, ids


def ranges(bench: Bench, hop: str) -> dict[Kind, int]:
    """What the ledger knows of a hop by number."""
    found = [event for event in bench.ledger() if event.hop == hop and event.message is None]
    counts: Counter[Kind] = Counter()
    for event in found:
        counts[event.kind] += event.n
    return dict(counts)


def named(bench: Bench, hop: str) -> list[tuple[Kind, str | None]]:
    return [(event.kind, event.message) for event in bench.ledger() if event.hop == hop and event.message is not None]


@pytest.mark.parametrize("fails", [False, True])
def test_a_publisher_writes_its_counts_to_the_ledger(bench: Bench, fails: bool) -> None:
    created(bench)
    bench.add(publisher(report_s=5.0))
    bench.settle("store", "pub")
    for id in "ab":
        tell(bench, "pub", Received("app", Envelope(id)))
        bench.settle("store", "pub")
    if fails:
        bench.fail_commits.append(DOWN)
    bench.wait(5.0)
    assert ranges(bench, f"pub>{STREAM}") == ({} if fails else {Kind.SENT: 2, Kind.CONFIRMED: 2})
    bench.wait(5.0)
    assert ranges(bench, f"pub>{STREAM}") == {Kind.SENT: 2, Kind.CONFIRMED: 2}, "told once"


def test_a_consumer_writes_what_has_no_event_of_its_own(bench: Bench) -> None:
    created(bench)
    push(bench, "a", "b")
    bench.handler = lambda item: () if item.envelope.id == "a" else (Append(EFFECTS, item.envelope),)
    bench.add(consumer(report_s=5.0))
    bench.settle("store", "con")
    bench.wait(5.0)
    assert ranges(bench, f"{STREAM}>con") == {Kind.HANDLED: 1}
    assert named(bench, f"{STREAM}>con") == [(Kind.HANDLED, "b")]


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("window", [1, 4])
def test_durable_consumers_take_effect_exactly_once(seed: int, window: int) -> None:
    bench, ids = play(seed, durable=True, window=window)
    assert sorted(stored(bench)) == sorted(ids)
    assert stored(bench, EFFECTS) == stored(bench), "once, and in the order of the stream"
    if window == 1:
        assert stored(bench) == ids, "one at a time keeps the order in which they came"


@pytest.mark.parametrize("seed", range(12))
def test_volatile_consumers_take_effect_at_least_once(seed: int) -> None:
    bench, ids = play(seed, durable=False, window=1)
    done = stored(bench, EFFECTS)
    assert set(done) == set(ids)
    assert firsts(done) == ids, "what is done again is done again from an earlier place on"


def firsts(ids: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(ids))
