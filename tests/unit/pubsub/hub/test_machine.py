"""A hub: what is durable is acknowledged, what is due is delivered once and in order, and a session survives."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import Mock

import msgspec
import pytest
from tests.unit.pubsub.hub.parts import NOW, Bench
from tests.unit.pubsub.hub.world import HUB, World, text

from semel.errors import SemelError, StoreBusy, StoreFull, StoreReadOnly, StoreUnavailable
from semel.kernel.effects import Read
from semel.kernel.envelope import Envelope
from semel.kernel.interpreter import Seat
from semel.kernel.ledger import START, Kind
from semel.kernel.ops import Append, Put, Trim, Unit
from semel.pubsub.hub.calls import (
    Answer,
    Check,
    CloseConnections,
    Connection,
    Everybody,
    Find,
    Grant,
    Group,
    JoinMembers,
    ListMembers,
    Outcome,
    Publish,
    RemoveMembers,
    Revoke,
    User,
)
from semel.pubsub.hub.catchup import CatchUp
from semel.pubsub.hub.closing import Closing
from semel.pubsub.hub.floors import Floors
from semel.pubsub.hub.lost_sessions import LostSessions
from semel.pubsub.hub.machine import HubOptions, Upkeep
from semel.pubsub.hub.node_lease import NodeLease
from semel.pubsub.hub.records import NO_TERMS, RecordKind, group_target, message
from semel.pubsub.hub.session import GROUPS_CHARS_MAX
from semel.pubsub.hub.session_rows import AcksRow, acks_key, read_session, session_key
from semel.pubsub.hub.sockets import ClosePeer, SocketDrained, SocketStalled
from semel.pubsub.hub.spills import Spills
from semel.pubsub.hub.tail import Tail
from semel.pubsub.protocol.frames import Subprotocol
from semel.pubsub.protocol.messages import (
    Ack,
    Connected,
    Data,
    DataType,
    Disconnected,
    ErrorName,
    Fault,
    GroupMessage,
    JoinGroup,
    LeaveGroup,
    Ping,
    Pong,
    Request,
    SendToGroup,
    ServerMessage,
    SetGroupState,
    StreamEnd,
)
from semel.pubsub.protocol.permissions import Permission
from semel.websocket import CloseCode

ALICE, BOB = "alice", "bob"
STREAM = f"hub/{HUB}"


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def pair(world: World) -> World:
    """Two who are connected and in one group, and have heard so."""
    for peer in (ALICE, BOB):
        world.connect(peer, user=f"user of {peer}")
        world.join(peer, "g")
        world.take(peer)
    return world


def messages(world: World, peer: str) -> list[GroupMessage]:
    return [said for said in world.take(peer) if isinstance(said, GroupMessage)]


def acks(world: World, peer: str) -> list[Ack]:
    return [said for said in world.take(peer) if isinstance(said, Ack)]


def published(world: World) -> list[str]:
    found = world.store.read(STREAM)
    return [record.envelope.data.decode() for record in found.records if record.kind == RecordKind.MESSAGE]  # type: ignore[union-attr]


def told(world: World, kind: Kind) -> list[tuple[str, int]]:
    return [(e.event.peer, e.event.n) for e in world.store.ledger(START) if e.event.kind is kind]


# -- connecting


def test_the_first_word_is_connected_and_it_is_durable(world: World) -> None:
    world.held = []
    world.connect(ALICE, user="u")
    assert world.take(ALICE) == []
    world.let_go()
    assert world.take(ALICE) == [Connected(ALICE, "u", "token of alice")]
    assert world.store.state(session_key(HUB, ALICE)) is not None


def test_connected_comes_before_all_else_and_what_is_asked_before_it_is_done_after_it(pair: World) -> None:
    """Whatever the epoch: versions of rows need not begin at 1."""
    pair.store.raise_epoch("restored")
    pair.restart()
    pair.held = []
    pair.connect("carol", groups=("g",))
    pair.publish("carol", "g", "early", 1)
    pair.publish("carol", "g", "earlier than connected", 2)
    assert pair.call_later(Publish(Group("g"), text("from the service")))
    pair.let_go()
    first, *rest = pair.take("carol")
    assert isinstance(first, Connected)
    assert [said.ack_id for said in rest if isinstance(said, Ack) and said.error is None] == [1, 2]
    bodies = [said.data.body.decode() for said in rest if isinstance(said, GroupMessage) and said.data is not None]
    assert sorted(bodies) == ["earlier than connected", "early", "from the service"]
    pair.publish("carol", "g", "afterwards", 3)
    assert Ack(3) in pair.take("carol")


def test_who_asks_for_too_much_before_it_is_connected_is_shut(world: World) -> None:
    world.held = []
    world.connect(ALICE)
    world.send(ALICE, *(Ping() for _ in range(1_001)))
    [shut] = world.take(ALICE)
    assert isinstance(shut, ClosePeer)


@pytest.mark.parametrize(
    "request_of",
    [
        lambda mb: SendToGroup("g", text(mb)),
        lambda mb: SetGroupState("g", state={"k": mb}),
        lambda mb: StreamEnd("s", Fault(ErrorName.USER, mb)),
    ],
)
def test_who_says_megabytes_before_it_is_connected_is_shut(world: World, request_of: Callable[[str], Request]) -> None:
    """They are few, but the store may take its time."""
    world.held = []
    world.connect(ALICE)
    for _ in range(4):
        world.send(ALICE, request_of("x" * 1_000_000))
    assert world.take(ALICE) == []
    world.send(ALICE, request_of("x" * 1_000_000))
    [shut] = world.take(ALICE)
    assert isinstance(shut, ClosePeer)


def test_a_session_that_the_store_cannot_take_is_closed_so_that_the_client_tries_again(world: World) -> None:
    world.failing.append(StoreBusy("busy"))
    world.connect(ALICE)
    [shut] = world.take(ALICE)
    assert isinstance(shut, ClosePeer)
    assert shut.code is CloseCode.INTERNAL
    assert world.call(Find(Connection(ALICE))).outcome is Outcome.NOT_FOUND


def test_groups_of_the_token_are_joined_from_the_start(world: World) -> None:
    world.connect(ALICE, groups=("g",))
    world.connect(BOB)
    world.publish(BOB, "g", "hello")
    assert world.bodies(ALICE) == ["hello"]


# -- publishing


def test_a_message_is_acknowledged_when_it_is_durable_and_not_before(pair: World) -> None:
    pair.held = []
    pair.publish(ALICE, "g", "hello", 7)
    assert pair.take(ALICE) == pair.take(BOB) == []
    pair.let_go()
    sent = GroupMessage("g", text("hello"), "user of alice", pair.hub.tail.offset)
    assert pair.take(ALICE) == [sent, Ack(7)]
    assert pair.take(BOB) == [sent]


def test_an_ack_id_is_taken_once(pair: World) -> None:
    for _ in range(3):
        pair.publish(ALICE, "g", "hello", 7)
    duplicate = Fault(ErrorName.DUPLICATE, "Message with ack-id: 7 has been processed")
    assert acks(pair, ALICE) == [Ack(7), Ack(7, duplicate), Ack(7, duplicate)]
    assert pair.bodies(BOB) == ["hello"]


def test_a_copy_of_one_that_is_on_its_way_waits_for_it(pair: World) -> None:
    pair.held = []
    pair.publish(ALICE, "g", "hello", 7)
    pair.publish(ALICE, "g", "hello", 7)
    assert pair.take(ALICE) == []
    pair.let_go()
    assert [ack.error.name if ack.error else None for ack in acks(pair, ALICE)] == [None, ErrorName.DUPLICATE]
    assert published(pair) == ["hello"]


@pytest.mark.parametrize(
    ("error", "heard"),
    [
        (StoreFull("no space left for /secret/place.db"), "the store has no room left; ask again later"),
        (StoreReadOnly("/secret/place.db may not be written"), "the store refuses it"),
        (StoreUnavailable("cannot connect to postgresql://secret@place"), "the store could not take it; ask again"),
    ],
)
def test_clients_do_not_hear_where_the_store_is_but_the_operator_does(
    pair: World, error: SemelError, heard: str
) -> None:
    pair.failing = [error, error]
    for ack_id in (7, 8):
        pair.publish(ALICE, "g", "hello", ack_id)
    assert {ack.error.message for ack in acks(pair, ALICE) if ack.error} == {heard}
    assert [note.detail for note in pair.notes if note.topic == "hub-commit"] == [f"{STREAM}: {error.message}"]
    pair.publish(ALICE, "g", "hello", 9)
    pair.failing = [error]
    pair.publish(ALICE, "g", "hello", 10)
    assert [note.topic for note in pair.notes] == ["hub-commit"] * 2


def test_a_store_that_refuses_is_an_error_and_the_same_ack_id_succeeds_later_once(pair: World) -> None:
    pair.failing.append(StoreBusy("the store is busy"))
    pair.publish(ALICE, "g", "hello", 7)
    assert acks(pair, ALICE) == [Ack(7, Fault(ErrorName.INTERNAL, "the store could not take it; ask again"))]
    for _ in range(2):
        pair.publish(ALICE, "g", "hello", 7)
    assert [ack.error is None for ack in acks(pair, ALICE)] == [True, False]
    assert published(pair) == ["hello"]


def test_what_follows_a_failure_falls_with_it_and_can_be_sent_again(pair: World) -> None:
    pair.held = []
    pair.publish(ALICE, "g", "one", 11)
    pair.publish(ALICE, "g", "two", 12)
    first, *_ = pair.held
    pair.held = None
    pair.interpreter.failed(first, StoreBusy("busy"))
    assert {ack.ack_id for ack in acks(pair, ALICE) if ack.error is not None} == {11, 12}
    pair.publish(ALICE, "g", "one", 11)
    pair.publish(ALICE, "g", "two", 12)
    assert acks(pair, ALICE) == [Ack(11), Ack(12)]
    assert published(pair) == ["one", "two"]


def test_without_the_permission_it_is_forbidden_and_the_ack_id_may_be_used_again(world: World) -> None:
    world.connect(ALICE, roles=["webpubsub.sendToGroup.mine"])
    world.take(ALICE)
    world.publish(ALICE, "other", "x", 1)
    world.publish(ALICE, "mine", "x", 1)
    world.join(ALICE, "mine", 2)
    first, second, third = acks(world, ALICE)
    assert first.error is not None
    assert first.error.name == ErrorName.FORBIDDEN
    assert second == Ack(1)
    assert third.error is not None
    assert third.error.name == ErrorName.FORBIDDEN


def test_a_simple_client_that_may_not_send_is_closed_because_it_knows_no_acks(world: World) -> None:
    world.connect(ALICE, roles=(), protocol="")
    world.send(ALICE, *[SendToGroup("g", text("x"))] * 2)
    [shut] = world.take(ALICE)
    assert isinstance(shut, ClosePeer)
    assert shut.code is CloseCode.POLICY
    assert world.call(Find(Connection(ALICE))).outcome is Outcome.NOT_FOUND


def test_no_echo_leaves_out_the_sender_and_what_has_expired_goes_to_nobody(pair: World) -> None:
    pair.send(ALICE, SendToGroup("g", text("quiet"), no_echo=True, metadata={"k": "v"}))
    assert messages(pair, ALICE) == []
    assert [said.metadata for said in messages(pair, BOB)] == [{"k": "v"}]
    pair.held = []
    pair.send(ALICE, SendToGroup("g", text("late"), ttl_s=5))
    pair.now += 6
    pair.let_go()
    assert messages(pair, BOB) == []


def test_a_message_without_an_ack_id_is_sent_and_never_answered(pair: World) -> None:
    pair.publish(ALICE, "g", "hello")
    assert acks(pair, ALICE) == []
    assert pair.bodies(BOB) == ["hello"]


def test_ping_is_answered(pair: World) -> None:
    pair.send(ALICE, Ping())
    assert pair.take(ALICE) == [Pong()]


def test_an_id_of_the_application_is_taken_once_whichever_session_brings_it(pair: World) -> None:
    named = SendToGroup("g", text("hello"), 8, metadata={"semel-id": "order-17"})
    pair.send(ALICE, named)
    pair.send(BOB, named)
    duplicate = Ack(8, Fault(ErrorName.DUPLICATE, "Message with semel-id: order-17 has been processed"))
    assert acks(pair, ALICE) == [Ack(8)]
    assert acks(pair, BOB) == [duplicate]
    pair.restart()
    pair.connect("carol")
    pair.take("carol")
    pair.send("carol", named)
    assert acks(pair, "carol") == [duplicate]
    assert published(pair) == ["hello"]
    assert [e.event.kind for e in pair.store.ledger(START)].count(Kind.DUPLICATE) == 2


@pytest.mark.parametrize("is_elsewhere", [False, True])
def test_the_ack_id_of_a_message_with_an_id_counts_once_as_any_other(pair: World, is_elsewhere: bool) -> None:
    """Whatever comes under it later, and after a restart as soon as something else was committed for the session."""
    pair.send(ALICE, SendToGroup("g", text("paid"), 8, metadata={"semel-id": "order-17"}))
    peer = ALICE
    if is_elsewhere:
        pair.publish(ALICE, "g", "more", 9)
        pair.restart()
        pair.resume(peer := "again", ALICE)
    pair.take(peer)
    pair.publish(peer, "g", "shipped", 8)
    assert acks(pair, peer) == [Ack(8, Fault(ErrorName.DUPLICATE, "Message with ack-id: 8 has been processed"))]
    assert "shipped" not in published(pair)


OTHERS = [
    SendToGroup("g", text("shipped")),
    SendToGroup("h", text("paid")),
    SendToGroup("g", Data(DataType.BINARY, b"paid")),
    SendToGroup("g", text("paid"), no_echo=True),
    SendToGroup("g", text("paid"), ttl_s=10),
    SendToGroup("g", text("paid"), metadata={"more": "x"}),
    SendToGroup("g", text("p" * 300_000)),
]


@pytest.mark.parametrize("other", OTHERS)
def test_an_id_that_is_used_for_another_message_is_refused(pair: World, other: SendToGroup) -> None:
    """Whoever brings it, also after a restart and after the first one is trimmed."""
    named = {**(other.metadata or {}), "semel-id": "order-17"}
    other = msgspec.structs.replace(other, metadata=named)
    first = SendToGroup("g", text("paid"), 8, metadata={"semel-id": "order-17"})
    pair.send(ALICE, first, msgspec.structs.replace(other, ack_id=9), msgspec.structs.replace(first, ack_id=10))
    pair.send(ALICE, msgspec.structs.replace(other, ack_id=9))
    refused = Fault(
        ErrorName.CONFLICT, "semel-id order-17 was used for another message; give each message its own"
    )  # fmt: skip
    known = Fault(ErrorName.DUPLICATE, "Message with semel-id: order-17 has been processed")
    assert sorted(acks(pair, ALICE), key=lambda ack: ack.ack_id) == [
        Ack(8), Ack(9, refused), Ack(9, refused), Ack(10, known),
    ]  # fmt: skip
    pair.store.commit([Unit((Trim(STREAM, pair.store.head(STREAM).offset + 1),))])
    pair.store.sweep(round(pair.now * 1e6))
    pair.restart()
    pair.connect("carol")
    pair.take("carol")
    pair.send("carol", msgspec.structs.replace(other, ack_id=1), msgspec.structs.replace(first, ack_id=2))
    assert sorted(acks(pair, "carol"), key=lambda ack: ack.ack_id) == [Ack(1, refused), Ack(2, known)]
    told = [entry.event for entry in pair.store.ledger(START)]
    assert [event.message for event in told if event.kind is Kind.DUPLICATE] == ["order-17", "order-17"]


def test_who_did_not_hear_that_its_id_is_taken_hears_it_when_it_asks_again(pair: World) -> None:
    """The ackId is not taken for one that was carried out: on another socket, or after a restart, it is the same."""
    pair.send(BOB, SendToGroup("g", text("paid"), 8, metadata={"semel-id": "order-17"}))
    other = SendToGroup("g", text("shipped"), 8, metadata={"semel-id": "order-17"})
    pair.send(ALICE, other)
    pair.publish(ALICE, "g", "more", 9)
    pair.restart()
    pair.resume("again", ALICE)
    pair.take("again")
    pair.send("again", other)
    [ack] = acks(pair, "again")
    assert ack.error is not None
    assert ack.error.name == ErrorName.CONFLICT
    assert published(pair) == ["paid", "more"]


def test_a_message_whose_id_another_has_and_that_wants_no_answer_is_told_to_the_log(pair: World) -> None:
    for body in ("paid", "shipped"):
        pair.send(ALICE, SendToGroup("g", text(body), None, metadata={"semel-id": "order-17"}))
    assert published(pair) == ["paid"]
    assert (pair.hub.counts.accepted, pair.hub.counts.duplicates) == (1, 0)
    assert [note.topic for note in pair.notes] == ["id-conflict"]


# -- what is sent behind a message that the store does not take

NOT_NOW = Fault(ErrorName.INTERNAL, "the store could not take it; ask again")
BEHIND = Fault(ErrorName.INTERNAL, "a message before it was not taken; send them again in their order")


def test_without_a_word_about_order_what_comes_behind_a_refused_message_is_taken(world: World) -> None:
    """As with Azure: who sends on without waiting for answers has to put them in order himself."""
    world.connect(ALICE)
    world.take(ALICE)
    world.failing = [StoreBusy("busy")]
    world.publish(ALICE, "g", "1", 1)
    world.publish(ALICE, "g", "2", 2)
    world.publish(ALICE, "g", "1", 1)
    assert acks(world, ALICE) == [Ack(1, NOT_NOW), Ack(2), Ack(1)]
    assert published(world) == ["2", "1"]


def test_who_sends_again_in_order_is_held_until_it_does(world: World) -> None:
    world.connect(ALICE, in_order=True)
    world.take(ALICE)
    world.failing = [StoreBusy("busy")]
    for number in (1, 2, 3):
        world.publish(ALICE, "g", str(number), number)
    assert acks(world, ALICE) == [Ack(1, NOT_NOW), Ack(2, BEHIND), Ack(3, BEHIND)]
    world.failing = [StoreBusy("busy")]  # again, in the middle of the second try
    for number in (1, 2, 3, 4):
        world.publish(ALICE, "g", str(number), number)
    assert acks(world, ALICE) == [Ack(1, NOT_NOW), Ack(2, BEHIND), Ack(3, BEHIND), Ack(4, BEHIND)]
    for number in (1, 2, 3, 4, 5):
        world.publish(ALICE, "g", str(number), number)
    assert acks(world, ALICE) == [Ack(number) for number in (1, 2, 3, 4, 5)]
    assert published(world) == ["1", "2", "3", "4", "5"]


def test_who_gives_up_what_was_refused_goes_on_after_one_more_refusal(world: World) -> None:
    world.connect(ALICE, in_order=True)
    world.take(ALICE)
    world.failing = [StoreBusy("busy")]
    world.publish(ALICE, "g", "1", 1)
    for _ in range(2):
        world.publish(ALICE, "g", "2", 2)
    world.publish(ALICE, "g", "3", 3)
    assert acks(world, ALICE) == [Ack(1, NOT_NOW), Ack(2, BEHIND), Ack(2), Ack(3)]


def test_on_a_new_socket_it_begins_again_anyway(world: World) -> None:
    world.connect(ALICE, in_order=True)
    world.failing = [StoreBusy("busy")]
    world.publish(ALICE, "g", "1", 1)
    world.drop(ALICE)
    world.resume("again", ALICE, in_order=True)
    world.take("again")
    world.publish("again", "g", "1", 1)
    world.publish("again", "g", "2", 2)
    assert published(world) == ["1", "2"]


# -- groups


def test_who_has_left_gets_no_more_and_joining_twice_changes_nothing(pair: World) -> None:
    pair.join(BOB, "g", 2)
    assert acks(pair, BOB) == [Ack(2)]
    pair.send(BOB, LeaveGroup("g", 3))
    assert acks(pair, BOB) == [Ack(3)]
    pair.publish(ALICE, "g", "hello")
    assert pair.take(BOB) == []
    head = pair.store.head(STREAM)
    pair.send(BOB, LeaveGroup("g", 4))
    assert acks(pair, BOB) == [Ack(4)]
    assert pair.store.head(STREAM) == head


def test_a_join_that_fails_is_answered_and_can_be_tried_again(world: World) -> None:
    world.connect(ALICE)
    world.take(ALICE)
    for _ in range(2):
        world.failing.append(StoreBusy("busy"))
        world.join(ALICE, "g", 1)
        assert [ack.error is not None for ack in acks(world, ALICE)] == [True]
    world.join(ALICE, "g", 1)
    assert acks(world, ALICE) == [Ack(1)]
    world.publish(ALICE, "g", "hello")
    assert world.bodies(ALICE) == ["hello"]


# -- recovery


def test_a_session_comes_back_with_what_it_has_not_acknowledged(pair: World) -> None:
    for number in range(1, 5):
        pair.publish(ALICE, "g", f"m{number}")
    first, second, *_ = messages(pair, BOB)
    assert second.sequence_id is not None
    pair.ack(BOB, second.sequence_id)
    pair.drop(BOB)
    pair.publish(ALICE, "g", "m5")
    pair.resume("again", BOB)
    assert pair.bodies("again") == ["m3", "m4", "m5"]
    pair.publish(ALICE, "g", "m6")
    assert pair.bodies("again") == ["m6"]
    assert first.sequence_id is not None


def test_a_half_open_socket_is_taken_over(pair: World) -> None:
    pair.resume("again", BOB)
    [shut] = pair.take(BOB)
    assert isinstance(shut, ClosePeer)
    pair.drop(BOB)
    pair.publish(ALICE, "g", "hello")
    assert pair.bodies("again") == ["hello"]


def test_a_crash_loses_nothing_and_doubles_nothing(pair: World) -> None:
    pair.publish(ALICE, "g", "before", 5)
    [before] = messages(pair, BOB)
    assert before.sequence_id is not None
    pair.restart()
    pair.resume("alice again", ALICE)
    pair.resume("bob again", BOB)
    assert [said.sequence_id for said in messages(pair, "bob again")] == [before.sequence_id]
    pair.take("alice again")
    pair.publish("alice again", "g", "before", 5)
    pair.publish("alice again", "g", "after", 6)
    assert [ack.error.name if ack.error else None for ack in acks(pair, "alice again")] == [ErrorName.DUPLICATE, None]
    [after] = messages(pair, "bob again")
    assert after.sequence_id is not None
    assert after.sequence_id > before.sequence_id
    assert published(pair) == ["before", "after"]


def test_what_was_acknowledged_before_the_crash_is_not_sent_again_once_that_is_written_down(pair: World) -> None:
    pair.publish(ALICE, "g", "one")
    [one] = messages(pair, BOB)
    assert one.sequence_id is not None
    pair.ack(BOB, one.sequence_id)
    pair.pass_time(2)
    assert (BOB, 1) in told(pair, Kind.CONFIRMED)
    pair.restart()
    pair.publish(BOB, "g", "nobody", 1)
    pair.resume("again", BOB)
    assert pair.bodies("again") == []


def test_after_a_crash_a_group_that_was_left_is_still_left(pair: World) -> None:
    pair.publish(ALICE, "g", "while in")
    pair.send(BOB, LeaveGroup("g", 9))
    pair.publish(ALICE, "g", "after")
    pair.restart()
    pair.resume("again", BOB)
    assert pair.bodies("again") == ["while in"]


def test_who_does_not_come_back_in_time_is_gone_and_the_ledger_says_so(pair: World) -> None:
    pair.publish(ALICE, "g", "hello")
    pair.drop(BOB)
    pair.pass_time(89)
    assert pair.call(Find(Connection(BOB))).outcome is Outcome.DONE
    pair.pass_time(2)
    assert pair.call(Find(Connection(BOB))).outcome is Outcome.NOT_FOUND
    assert told(pair, Kind.EXPIRED) == [(BOB, 1)]
    pair.resume("again", BOB)
    [shut] = pair.take("again")
    assert isinstance(shut, ClosePeer)
    assert shut.code is CloseCode.POLICY
    assert pair.store.state(session_key(HUB, BOB)) is None
    assert pair.store.state(acks_key(HUB, BOB)) is None


def test_the_time_for_coming_back_begins_anew_with_the_node(pair: World) -> None:
    pair.drop(BOB)
    pair.now += 3600
    pair.restart()
    pair.pass_time(89)
    pair.resume("again", BOB)
    pair.publish(ALICE, "g", "x", 1)
    assert not any(isinstance(said, ClosePeer) for said in pair.take("again"))


def test_the_time_for_coming_back_begins_anew_though_the_store_knows_since_when_the_client_is_away(pair: World) -> None:
    """A row that is written while the client is away says since when."""
    pair.drop(BOB)
    assert pair.call(JoinMembers(Connection(BOB), ("h",))).outcome is Outcome.DONE
    state = pair.store.state(session_key(HUB, BOB))
    assert state is not None
    assert read_session(state.value).dropped_at == pair.now
    pair.now += 3600
    pair.restart()
    pair.pass_time(89)
    assert pair.call(Find(Connection(BOB))).outcome is Outcome.DONE
    pair.pass_time(2)
    assert pair.call(Find(Connection(BOB))).outcome is Outcome.NOT_FOUND


def test_a_client_that_closes_is_gone_at_once(pair: World) -> None:
    pair.drop(BOB, code=1000)
    assert pair.call(Find(Connection(BOB))).outcome is Outcome.NOT_FOUND


def test_a_plain_client_is_gone_with_its_socket(world: World) -> None:
    world.connect(ALICE, protocol=Subprotocol.JSON)
    assert world.take(ALICE) == [Connected(ALICE, None, "token of alice")]
    world.join(ALICE, "g")
    world.publish(ALICE, "g", "hello")
    [said] = messages(world, ALICE)
    assert said.sequence_id is None
    world.drop(ALICE)
    assert world.call(Find(Connection(ALICE))).outcome is Outcome.NOT_FOUND


def test_what_a_hub_before_this_one_wrote_late_is_noticed_by_the_next_write(pair: World) -> None:
    """Then the store knows better. The session is not lost: its client comes back, and finds what the store holds."""
    pair.store.commit([Unit((Put(acks_key(HUB, ALICE), msgspec.msgpack.encode(AcksRow(0, ((6, 6),)))),))])
    pair.publish(ALICE, "g", "hello", 7)
    [shut] = pair.take(ALICE)
    assert isinstance(shut, ClosePeer)
    assert shut.code is CloseCode.INTERNAL
    assert published(pair) == []
    pair.resume("again", ALICE)
    pair.publish("again", "g", "late", 6)
    pair.publish("again", "g", "hello", 7)
    assert [said.error is None for said in pair.take("again") if isinstance(said, Ack)] == [False, True]
    assert published(pair) == ["hello"]


def test_when_nobody_knows_whether_it_happened_the_store_is_asked(pair: World) -> None:
    """And the client, which has heard nothing, asks again under the same ackId."""
    pair.held = []
    pair.publish(ALICE, "g", "hello", 7)
    [group] = pair.held
    pair.held = None
    pair.store.commit(group.units)
    pair.interpreter.unknown(group)
    for peer in (ALICE, BOB):
        [shut] = pair.take(peer)
        assert isinstance(shut, ClosePeer)
        assert shut.code is CloseCode.INTERNAL
    pair.resume("alice again", ALICE)
    pair.resume("bob again", BOB)
    assert pair.bodies("bob again") == ["hello"]
    pair.take("alice again")
    pair.publish("alice again", "g", "hello", 7)
    [ack] = acks(pair, "alice again")
    assert ack.error is not None
    assert ack.error.name == ErrorName.DUPLICATE
    assert published(pair) == ["hello"]


def test_what_has_expired_while_the_node_was_away_may_still_be_acknowledged(pair: World) -> None:
    pair.send(ALICE, SendToGroup("g", text("short"), ttl_s=5))
    [said] = messages(pair, BOB)
    assert said.sequence_id is not None
    pair.now += 10
    pair.restart()
    pair.resume("again", BOB)
    pair.ack("again", said.sequence_id)
    assert pair.take("again") == []
    pair.publish(ALICE, "g", "x")
    pair.ack("again", said.sequence_id + 100)
    assert any(isinstance(each, ClosePeer) for each in pair.take("again"))


def test_who_comes_back_is_connected_first_with_a_fresh_token_and_then_hears_what_was_missed(pair: World) -> None:
    """Microsoft's client for JavaScript goes on with its streams when it hears `connected`."""
    pair.drop(BOB)
    pair.publish(ALICE, "g", "missed")
    pair.resume("again", BOB)
    [connected, said] = pair.sent.pop("again")
    assert connected == Connected(BOB, f"user of {BOB}", f"token of {BOB}")
    assert isinstance(said, GroupMessage)


# -- acknowledging


def test_what_was_never_sent_cannot_be_acknowledged(pair: World) -> None:
    pair.publish(ALICE, "g", "hello")
    [said] = messages(pair, BOB)
    assert said.sequence_id is not None
    pair.ack(BOB, said.sequence_id + 1)
    [shut] = pair.take(BOB)
    assert isinstance(shut, ClosePeer)
    assert shut.code is CloseCode.POLICY
    pair.resume("again", BOB)
    assert pair.bodies("again") == ["hello"]


@pytest.mark.parametrize("lower", [0, 1])
def test_a_lower_acknowledgement_is_ignored(pair: World, lower: int) -> None:
    pair.publish(ALICE, "g", "hello")
    [said] = messages(pair, BOB)
    assert said.sequence_id is not None
    pair.ack(BOB, said.sequence_id)
    pair.ack(BOB, lower)
    pair.drop(BOB)
    pair.resume("again", BOB)
    assert pair.take("again") == []


def test_a_backlog_beyond_its_limit_ends_the_session_where_all_can_see_it() -> None:
    world = World(HubOptions(backlog_count=3))
    for peer in (ALICE, BOB):
        world.connect(peer)
        world.join(peer, "g")
    world.take(BOB)
    for number in range(4):
        world.publish(ALICE, "g", f"m{number}")
        for said in messages(world, ALICE):
            assert said.sequence_id is not None
            world.ack(ALICE, said.sequence_id)
    *_, goodbye, shut = world.take(BOB)
    assert isinstance(goodbye, Disconnected)
    assert isinstance(shut, ClosePeer)
    assert shut.code is CloseCode.POLICY
    assert told(world, Kind.DISCARDED) == [(BOB, 4)]
    assert [note.topic for note in world.notes] == ["backlog"]
    assert world.call(Find(Connection(BOB))).outcome is Outcome.NOT_FOUND


def test_a_backlog_is_limited_by_its_bytes_as_well_as_by_its_count() -> None:
    world = World(HubOptions(backlog_bytes=100))
    for peer in (ALICE, BOB):
        world.connect(peer)
        world.join(peer, "g")
    for number in range(2):
        world.call(Publish(Connection(BOB), text(str(number) * 50)))
    assert world.call(Find(Connection(BOB))).outcome is Outcome.DONE
    world.publish(ALICE, "g", "1", 5)
    assert world.call(Find(Connection(BOB))).outcome is Outcome.NOT_FOUND
    assert world.call(Find(Connection(ALICE))).outcome is Outcome.DONE
    assert told(world, Kind.DISCARDED) == [(BOB, 3)]


# -- the stream


def test_what_others_put_into_the_stream_is_delivered_in_its_place(pair: World) -> None:
    foreign = message(
        STREAM, "foreign", group_target("g"), text("from elsewhere"), at=0, sender="spark", user=None, terms=NO_TERMS,
        on_fresh=pair.hub.context.accepted,
    )  # fmt: skip
    pair.store.commit([Unit((foreign,))])
    pair.publish(ALICE, "g", "mine")
    assert pair.bodies(BOB) == ["from elsewhere", "mine"]
    pair.store.commit([Unit((Append(STREAM, foreign.envelope, target="g/g"),))])
    pair.interpreter.wake()
    assert pair.bodies(BOB) == ["from elsewhere"]


def test_a_read_that_failed_is_made_again(pair: World, monkeypatch: pytest.MonkeyPatch) -> None:
    pair.publish(ALICE, "g", "hello")
    with monkeypatch.context() as failing:

        def fail(seat: Seat, effect: Read) -> None:
            pair.interpreter.read_failed(seat, effect, StoreBusy("busy"))

        failing.setattr(pair, "read", fail)
        pair.restart()
        pair.resume("again", BOB)
        assert pair.bodies("again") == []
    pair.pass_time(6)
    assert pair.bodies("again") == ["hello"]


def test_a_hub_whose_sessions_may_have_needed_what_is_gone_begins_anew(pair: World) -> None:
    """Somebody has trimmed what was not read here yet. To go on would be to skip it without a word."""
    foreign = Envelope("foreign", data=b"from elsewhere")
    pair.store.commit([Unit((Append(STREAM, foreign, target="g/g"), Append(STREAM, foreign, target="g/g")))])
    pair.store.commit([Unit((Trim(STREAM, pair.store.head(STREAM).offset),))])
    hub = pair.hub
    pair.interpreter.wake()
    assert pair.hub is not hub
    assert [note.topic for note in pair.notes] == ["hub-read"]
    assert pair.take(BOB) == [ClosePeer(CloseCode.INTERNAL, "messages are missing here")]


def test_stays_that_are_acknowledged_are_forgotten(pair: World) -> None:
    pair.publish(ALICE, "g", "hello")
    [said] = messages(pair, BOB)
    pair.send(BOB, LeaveGroup("g", 5))
    session = pair.hub.roster.get(BOB)
    assert session is not None
    assert [stay[0] for stay in session.row().left] == ["g"]
    assert said.sequence_id is not None
    pair.ack(BOB, said.sequence_id)
    pair.join(BOB, "h", 6)
    assert [stay[0] for stay in session.row().left] == ["g"]
    pair.publish(ALICE, "h", "later")
    [later] = messages(pair, BOB)
    assert later.sequence_id is not None
    pair.ack(BOB, later.sequence_id)
    pair.pass_time(2)
    assert session.row().left == ()


def test_what_everybody_has_acknowledged_is_given_up_and_nothing_else(pair: World) -> None:
    for number in range(3):
        pair.publish(ALICE, "g", f"m{number}")
    got = messages(pair, BOB)
    for peer in (ALICE, BOB):
        assert got[1].sequence_id is not None
        pair.ack(peer, got[1].sequence_id)
    for _ in range(2):  # written down first
        pair.pass_time(6)
    assert published_after_trim(pair) == got[2].sequence_id
    pair.restart()
    pair.resume("again", BOB)
    assert pair.bodies("again") == ["m2"]


def published_after_trim(world: World) -> int:
    found = world.store.read(STREAM)
    first = getattr(found, "first", None)
    assert first is not None
    return int(first.offset)


# -- the service


def test_the_service_sends_to_everybody_a_group_a_user_and_a_connection(pair: World) -> None:
    for to in (Everybody(), User("user of bob"), Connection(BOB)):
        assert pair.call(Publish(to, text("hi"))).outcome is Outcome.DONE
        [said] = pair.take(BOB)
        assert isinstance(said, ServerMessage)
    assert pair.call(Publish(Group("g"), text("hi"), excluded=(ALICE,))).outcome is Outcome.DONE
    [grouped] = pair.take(BOB)
    assert isinstance(grouped, GroupMessage)
    assert grouped.from_user is None
    assert pair.bodies(ALICE) == ["hi"]
    assert pair.call(Publish(Everybody(), text("some"), filter="userId eq 'user of alice'")).outcome is Outcome.DONE
    assert (pair.bodies(ALICE), pair.bodies(BOB)) == (["some"], [])
    for protocol, count in ((Subprotocol.JSON_RELIABLE, 1), (Subprotocol.PROTOBUF, 0)):
        asked = Publish(Everybody(), text("protocol"), filter=f"protocol eq '{protocol}'")
        assert pair.call(asked).outcome is Outcome.DONE
        assert pair.bodies(BOB) == ["protocol"] * count


def test_who_has_said_good_bye_does_not_come_back_while_that_is_written_down(pair: World) -> None:
    pair.held = []
    pair.drop(BOB, CloseCode.NORMAL)
    pair.resume("back", BOB)
    [shut] = pair.take("back")
    assert isinstance(shut, ClosePeer)
    assert shut.code is CloseCode.POLICY


def test_a_key_sends_once_and_is_refused_for_anything_else(pair: World) -> None:
    call = Publish(Group("g"), text("hi"), key="k1")
    assert [pair.call(call).outcome for _ in range(3)] == [Outcome.DONE] * 3
    assert pair.bodies(BOB) == ["hi"]
    assert pair.call(Publish(Group("g"), text("other"), key="k1")).outcome is Outcome.CONFLICT
    for terms in ({"filter": "userId eq 'a'"}, {"excluded": ("b",)}, {"ttl_s": 5}, {"metadata": {"a": "b"}}):
        assert pair.call(msgspec.structs.replace(call, **terms)).outcome is Outcome.CONFLICT, terms
    pair.restart()
    assert pair.call(call).outcome is Outcome.DONE
    assert published(pair) == ["hi"]


def test_the_service_changes_groups(pair: World) -> None:
    assert pair.call(JoinMembers(Connection("nobody"), ("h",))).outcome is Outcome.NOT_FOUND
    assert pair.call(JoinMembers(User("user of bob"), ("h", "i"))).outcome is Outcome.DONE
    assert pair.call(JoinMembers(Everybody(), ("h",), "userId eq 'user of alice'")).outcome is Outcome.DONE
    listed = pair.call(ListMembers("h", limit=1))
    assert ([member.connection for member in listed.members], listed.more) == ([ALICE], True)
    listed = pair.call(ListMembers("h", after=ALICE))
    assert ([(m.connection, m.user) for m in listed.members], listed.more) == ([(BOB, "user of bob")], False)
    assert pair.call(RemoveMembers(Connection(BOB), None)).outcome is Outcome.DONE
    assert pair.call(Find(Group("i"))).outcome is Outcome.NOT_FOUND
    pair.restart()
    assert [member.connection for member in pair.call(ListMembers("h")).members] == [ALICE]


def test_the_service_grants_and_revokes(world: World) -> None:
    world.connect(ALICE, roles=())
    world.take(ALICE)
    asked = (ALICE, Permission.SEND_TO_GROUP, "g")
    assert world.call(Check(*asked)).outcome is Outcome.NOT_FOUND
    assert world.call(Grant(*asked)).outcome is Outcome.DONE
    assert world.call(Check(*asked)).outcome is Outcome.DONE
    world.publish(ALICE, "g", "x", 1)
    assert acks(world, ALICE) == [Ack(1)]
    world.restart()
    assert world.call(Check(*asked)).outcome is Outcome.DONE
    assert world.call(Revoke(*asked)).outcome is Outcome.DONE
    assert world.call(Check(*asked)).outcome is Outcome.NOT_FOUND
    assert world.call(Grant("nobody", Permission.SEND_TO_GROUP)).outcome is Outcome.NOT_FOUND
    world.failing.append(StoreBusy("busy"))
    assert world.call(Grant(*asked)).outcome is Outcome.FAILED
    assert world.call(Check(*asked)).outcome is Outcome.NOT_FOUND


def test_the_service_closes_connections(pair: World) -> None:
    assert pair.call(CloseConnections(Group("g"), excluded=(ALICE,), reason="enough")).outcome is Outcome.DONE
    goodbye, shut = pair.take(BOB)
    assert goodbye == Disconnected("enough")
    assert isinstance(shut, ClosePeer)
    assert pair.call(Find(User("user of bob"))).outcome is Outcome.NOT_FOUND
    assert pair.call(Find(User("user of alice"))).outcome is Outcome.DONE
    pair.resume("again", BOB)
    [refused] = pair.take("again")
    assert isinstance(refused, ClosePeer)
    assert refused.code is CloseCode.POLICY


def test_a_call_that_the_store_cannot_take_says_so(pair: World) -> None:
    pair.failing.append(StoreBusy("busy"))
    assert pair.call(Publish(Everybody(), text("hi"))).outcome is Outcome.FAILED
    assert pair.bodies(BOB) == []


def test_what_no_record_can_hold_is_refused_and_disturbs_nobody(pair: World) -> None:
    metadata = {f"key-{number}": "x" for number in range(100)}
    assert pair.call(Publish(Everybody(), text("hi"), metadata=metadata)).outcome is Outcome.REFUSED
    pair.send(ALICE, SendToGroup("g", text("odd"), 7, metadata=metadata), SendToGroup("g", text("plain"), 8))
    first, second = acks(pair, ALICE)
    assert first.error is not None
    assert first.error.name == ErrorName.BAD_REQUEST
    assert second == Ack(8)
    pair.publish(ALICE, "g", "again", 7)
    assert pair.bodies(BOB) == ["plain", "again"]


def test_a_large_body_is_delivered_whole_and_again_after_a_crash(pair: World) -> None:
    large, larger = "x" * 300_000, "y" * 1_000_000
    pair.publish(ALICE, "g", large, 7)
    assert pair.call(Publish(Group("g"), text(larger), key="k")).outcome is Outcome.DONE
    assert pair.call(Publish(Group("g"), text(larger), key="k")).outcome is Outcome.DONE
    assert pair.call(Publish(Group("g"), text("z" * 1_000_000), key="k")).outcome is Outcome.CONFLICT
    assert pair.bodies(BOB) == [large, larger]
    assert pair.hub.tail.bodies == 0
    pair.restart()
    pair.resume("again", BOB)
    assert pair.bodies("again") == [large, larger]
    assert pair.hub.tail.bodies == 0


def test_a_large_body_that_the_store_refuses_is_let_go_of(pair: World) -> None:
    pair.failing += [StoreBusy("busy"), StoreBusy("busy")]
    pair.publish(ALICE, "g", "x" * 300_000, 7)
    assert pair.call(Publish(Group("g"), text("x" * 300_000))).outcome is Outcome.FAILED
    assert pair.hub.tail.bodies == 0


def test_the_longest_names_and_keys_are_fine(pair: World) -> None:
    group = "g" * 1024
    pair.join(BOB, group, 5)
    assert pair.call(Publish(Group(group), text("hi"), key="k" * 255)).outcome is Outcome.DONE
    assert pair.call(Publish(Group(group), text("hi"), key="k" * 255)).outcome is Outcome.DONE
    assert pair.bodies(BOB) == ["hi"]


# -- sockets without room


def test_what_a_stalled_client_has_no_room_for_comes_when_it_has(pair: World) -> None:
    pair.publish(ALICE, "g", "m1")
    pair.feed(BOB, SocketStalled())
    pair.publish(ALICE, "g", "m2")
    pair.publish(ALICE, "g", "m3")
    assert pair.bodies(BOB) == ["m1"]
    pair.feed(BOB, SocketDrained())
    assert pair.bodies(BOB) == ["m2", "m3"]
    pair.publish(ALICE, "g", "m4")
    assert pair.bodies(BOB) == ["m4"]


def test_a_plain_client_that_stalls_is_closed(world: World) -> None:
    world.connect(ALICE, protocol=Subprotocol.JSON)
    world.take(ALICE)
    world.feed(ALICE, SocketStalled())
    [shut] = world.take(ALICE)
    assert isinstance(shut, ClosePeer)
    assert world.call(Find(Connection(ALICE))).outcome is Outcome.NOT_FOUND


def test_a_socket_that_nobody_knows_is_told_to_come_back(pair: World) -> None:
    pair.restart()
    pair.publish(ALICE, "g", "x", 5)
    [shut] = pair.take(ALICE)
    assert isinstance(shut, ClosePeer)
    assert shut.code is CloseCode.GOING_AWAY


def test_after_a_restore_sessions_are_over_for_good(pair: World) -> None:
    """Their positions mean nothing any more: nobody can say what they have missed."""
    pair.publish(ALICE, "g", "hello")
    pair.store.raise_epoch("a backup")
    pair.restart()
    pair.resume("new", ALICE)
    assert pair.take("new") == [ClosePeer(CloseCode.POLICY, "there is no such session any more")]
    assert pair.store.states("hub/chat/session/") == []


def test_what_was_missed_comes_before_what_comes_in_while_it_is_read(pair: World) -> None:
    pair.publish(ALICE, "g", "missed")
    pair.take(BOB)
    reads: list[tuple[Seat, Read]] = []
    read, pair.read = pair.read, lambda seat, effect: reads.append((seat, effect))  # type: ignore[method-assign]
    pair.restart()
    pair.resume("new", BOB)
    pair.resume("alice again", ALICE)
    pair.publish("alice again", "g", "meanwhile", 5)
    assert pair.bodies("new") == []
    pair.read = read  # type: ignore[method-assign]
    for seat, effect in reads:
        pair.read(seat, effect)
    assert pair.bodies("new") == ["missed", "meanwhile"]


def test_what_is_acknowledged_while_it_is_behind_is_not_sent_again(pair: World) -> None:
    pair.publish(ALICE, "g", "first")
    pair.publish(ALICE, "g", "second")
    first = next(said.sequence_id for said in pair.take(BOB) if isinstance(said, GroupMessage))
    assert first is not None
    reads: list[tuple[Seat, Read]] = []
    read, pair.read = pair.read, lambda seat, effect: reads.append((seat, effect))  # type: ignore[method-assign]
    pair.restart()
    pair.resume("new", BOB)
    pair.ack("new", first)
    pair.read = read  # type: ignore[method-assign]
    for seat, effect in reads:
        pair.read(seat, effect)
    assert pair.bodies("new") == ["second"]
    pair.pass_time(2)
    [said] = [entry.event for entry in pair.store.ledger(START) if entry.event.kind is Kind.CONFIRMED]
    assert (said.peer, said.first, said.last, said.n) == (BOB, first, first, 1)


def test_the_end_of_a_session_that_the_store_did_not_take_is_written_later(pair: World) -> None:
    pair.failing = [StoreUnavailable("away")]
    pair.drop(BOB, CloseCode.NORMAL)
    assert pair.store.states("hub/chat/session/bob")
    pair.pass_time(6)
    assert pair.store.states("hub/chat/session/bob") == []
    assert [note.topic for note in pair.notes] == ["session-close"]


def test_a_connection_is_in_no_more_groups_than_allowed(pair: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semel.pubsub.hub.session.GROUPS_MAX", 2)
    pair.join(BOB, "second", 40)
    pair.join(BOB, "third", 41)
    [ok, refused] = pair.take(BOB)
    assert ok == Ack(40)
    assert isinstance(refused, Ack)
    assert refused.error is not None
    assert refused.error.name == ErrorName.BAD_REQUEST
    assert pair.call(JoinMembers(Connection(BOB), ("fourth",))).outcome is Outcome.REFUSED


def test_the_names_of_a_connections_groups_have_a_limit(pair: World) -> None:
    """All are in one row, which is written with every change."""
    names = [f"{number:01024}" for number in range(GROUPS_CHARS_MAX // 1024)]
    pair.send(BOB, *(JoinGroup(name, 100 + number) for number, name in enumerate(names)))
    refused, *taken = [said for said in pair.take(BOB) if isinstance(said, Ack)]
    assert len(taken) == len(names) - 1  # it is in one with a short name, too
    assert all(ack.error is None for ack in taken)
    assert refused.error is not None
    assert refused.error.name == ErrorName.BAD_REQUEST
    assert pair.call(JoinMembers(Connection(BOB), (names[-1],))).outcome is Outcome.REFUSED


def test_stays_that_are_owed_something_count_as_groups(pair: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who acknowledges nothing and comes and goes would otherwise fill its row."""
    monkeypatch.setattr("semel.pubsub.hub.session.GROUPS_MAX", 10)
    pair.publish(ALICE, "g", "not acknowledged", 9)
    [message] = [said for said in pair.take(BOB) if isinstance(said, GroupMessage)]
    for number in range(0, 40, 2):
        pair.send(BOB, JoinGroup("in and out", 100 + number), LeaveGroup("in and out", 101 + number))
    session = pair.hub.roster.get(BOB)
    assert session is not None
    assert len(session.memberships.left) < 10
    assert any(said.error is not None for said in pair.take(BOB) if isinstance(said, Ack))
    pair.ack(BOB, message.sequence_id or 0)
    pair.pass_time(2)
    pair.join(BOB, "in and out", 200)
    assert pair.take(BOB) == [Ack(200)]


def test_a_key_is_known_after_its_message_is_gone(pair: World) -> None:
    first = Publish(Group("nobody"), text("once"), key="k")
    assert pair.call(first).outcome is Outcome.DONE
    for _ in range(3):
        pair.pass_time(6)
    assert not hasattr(pair.store.read(STREAM, None, 1), "records")  # trimmed
    head = pair.store.head(STREAM)
    assert pair.call(first).outcome is Outcome.DONE
    assert pair.call(Publish(Group("nobody"), text("other"), key="k")).outcome is Outcome.CONFLICT
    assert pair.store.head(STREAM) == head
    assert [e.event.kind for e in pair.store.ledger(START)].count(Kind.DUPLICATE) == 1


def test_a_key_is_forgotten_after_a_day(pair: World) -> None:
    assert pair.call(Publish(Group("g"), text("first"), key="k")).outcome is Outcome.DONE
    pair.pass_time(24 * 3600 - 700)
    assert pair.call(Publish(Group("g"), text("second"), key="k")).outcome is Outcome.CONFLICT
    pair.restart()
    pair.pass_time(700)
    assert not [key for key, _ in pair.store.states(f"hub/{HUB}/key/")]
    assert pair.call(Publish(Group("g"), text("second"), key="k")).outcome is Outcome.DONE


def test_what_expires_while_its_client_is_away_is_not_sent(pair: World) -> None:
    pair.call(Publish(Group("g"), text("short"), ttl_s=1))
    pair.call(Publish(Group("g"), text("long"), ttl_s=60))
    pair.take(BOB)
    pair.drop(BOB)
    pair.pass_time(2)
    pair.resume("new", BOB)
    assert pair.bodies("new") == ["long"]
    assert told(pair, Kind.EXPIRED) == [(BOB, 1)]
    session = pair.hub.roster.get(BOB)
    assert session is not None
    assert (session.backlog.count, session.backlog.bytes) == (1, len("long"))


# -- what others write into the stream


@pytest.mark.parametrize(
    ("content", "body"),
    [
        ("application/json", b'{"a": '),
        ("application/json", b"\xff"),
        ("application/json; charset=utf-8", b"[" * 100 + b"]" * 100),
        ("text/plain", b"\xff\xfe"),
        ("application/x-protobuf", b"\xff"),
    ],
)
@pytest.mark.parametrize("is_read_again", [False, True])
def test_data_that_is_not_what_it_says_reaches_subscribers_as_bytes(
    pair: World, content: str, body: bytes, is_read_again: bool
) -> None:
    """A frame that cannot be read would make every subscriber drop its connection, again and again."""
    pair.take(BOB)
    envelope = Envelope("odd", data=body, datacontenttype=content)
    pair.store.commit([Unit((Append(pair.hub.name, envelope, target="g/g"),))])
    if is_read_again:
        pair.restart()
        pair.resume(BOB, BOB)
    else:
        pair.interpreter.wake()
    [told] = [each for each in pair.take(BOB) if isinstance(each, GroupMessage)]
    assert told.data == Data(DataType.BINARY, body)


@pytest.mark.parametrize("protocol", [Subprotocol.JSON_RELIABLE, Subprotocol.JSON])
def test_who_asks_for_too_much_before_it_is_connected_is_not_kept(world: World, protocol: str) -> None:
    world.held = []
    world.connect(ALICE, protocol=protocol, groups=("g",))
    world.send(ALICE, *[Ping()] * 1001)
    world.let_go()
    world.drop(ALICE)
    assert isinstance(world.take(ALICE)[-1], ClosePeer)
    assert world.hub.roster.get(ALICE) is None
    assert world.store.state(session_key(HUB, ALICE)) is None


def test_a_close_of_one_that_left_before_it_was_there_is_done(world: World) -> None:
    world.held = []
    world.connect(ALICE)
    world.drop(ALICE, 1000)
    assert world.call_later(CloseConnections(Connection(ALICE)))
    world.let_go()
    [answer] = world.take("later")
    assert isinstance(answer, Answer)
    assert answer.outcome is not Outcome.FAILED


# -- upkeep


@pytest.mark.parametrize("has_lease", [False, True])
def test_all_is_tried_again_and_only_who_has_a_lease_trims(has_lease: bool) -> None:
    tail, floors, closing = Mock(spec=Tail), Mock(spec=Floors), Mock(spec=Closing)
    spills, missing, catch_up = Mock(spec=Spills), Mock(spec=LostSessions), Mock(spec=CatchUp)
    lease = NodeLease("hub/chat/nodes", "node", is_shared=True)
    if has_lease:
        lease.hold(1, NOW + 10)
    upkeep = Upkeep(Bench(trim_s=5.0).context, lease, tail, floors, closing, spills, missing, catch_up)
    upkeep.on_timer(NOW)
    upkeep.start(NOW)
    upkeep.on_timer(NOW + 4)
    tail.read_on.assert_not_called()
    upkeep.on_timer(NOW + 5)
    closing.try_again.assert_called_once_with(NOW + 5)
    for part in (spills, missing, catch_up):
        part.try_again.assert_called_once_with()
    tail.read_on.assert_called_once_with()
    assert floors.update.called == has_lease
    assert upkeep.next_deadline() == NOW + 10
