"""Client streams: every part once and in order, whatever is lost, doubled or refused on the way."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.unit.pubsub.hub.world import World, text

from semel.errors import StoreBusy
from semel.kernel.envelope import DATA_INLINE_BYTES_MAX
from semel.pubsub.hub.calls import CloseConnections, Connection, Revoke
from semel.pubsub.hub.machine import HubOptions
from semel.pubsub.hub.session_rows import AcksRow, ClientStream, read_acks
from semel.pubsub.hub.sockets import Write
from semel.pubsub.hub.streams import CANCELLED, ENDED_KEPT, IDLE_MS_MAX, STREAMS_MAX
from semel.pubsub.protocol.frames import Subprotocol
from semel.pubsub.protocol.messages import (
    Ack,
    Data,
    DataType,
    ErrorName,
    Fault,
    GroupMessage,
    Response,
    SendToGroup,
    StartStream,
    StreamAck,
    StreamClosed,
    StreamData,
    StreamEnd,
    StreamNack,
    StreamPart,
)
from semel.pubsub.protocol.permissions import Permission
from semel.websocket import frame

ALICE, BOB = "alice", "bob"
SHARED = HubOptions(is_shared=True)
REFUSED = "the store could not take it; ask again"
STREAMY = (StreamAck, StreamNack, StreamClosed)


@pytest.fixture
def world() -> World:
    """Alice may send, and Bob is in the group."""
    world = World()
    world.connect(ALICE, user="user of alice")
    world.connect(BOB)
    world.join(BOB, "g")
    for peer in (ALICE, BOB):
        world.take(peer)
    return world


def start(world: World, id: str = "s", **terms: object) -> None:
    world.send(ALICE, StartStream("g", id, **terms))  # type: ignore[arg-type]


def part(number: int, id: str = "s", body: str | None = None) -> StreamData:
    return StreamData(id, number, text(body or f"part {number}"))


def heard(world: World, peer: str = ALICE) -> list[Response]:
    """What was said about streams."""
    return [said for said in world.take(peer) if isinstance(said, STREAMY)]  # type: ignore[misc]


def received(world: World, peer: str = BOB) -> list[tuple[StreamPart, str | None]]:
    found = [said for said in world.take(peer) if isinstance(said, GroupMessage) and said.stream is not None]
    return [(each.stream, each.data.body.decode() if each.data else None) for each in found if each.stream is not None]


def numbers(world: World, peer: str = BOB) -> list[int]:
    return [part.sequence_id for part, _ in received(world, peer)]


# -- the course of a stream


def test_a_stream_from_its_beginning_to_its_end(world: World) -> None:
    start(world)
    assert heard(world) == [StreamAck("s", 1)]
    world.send(ALICE, part(1))
    world.send(ALICE, part(2))
    assert heard(world) == [StreamAck("s", 2), StreamAck("s", 3)]
    world.send(ALICE, StreamEnd("s"))
    assert heard(world) == [StreamClosed("s")]
    assert received(world) == [
        (StreamPart("s", 1), "part 1"),
        (StreamPart("s", 2), "part 2"),
        (StreamPart("s", 3, True), None),
    ]


def test_a_part_says_who_sent_it_and_where(world: World) -> None:
    start(world, metadata={"k": "v"})
    world.send(ALICE, part(1))
    [message] = [said for said in world.take(BOB) if isinstance(said, GroupMessage)]
    assert (message.group, message.from_user, message.metadata) == ("g", "user of alice", {"k": "v"})


def test_parts_that_come_together_are_one_commit_and_have_one_ack(world: World) -> None:
    start(world)
    heard(world)
    world.held = []
    world.send(ALICE, part(1), part(2), part(3))
    assert len(world.held) == 1
    assert heard(world) == []
    world.let_go()
    assert heard(world) == [StreamAck("s", 4)]
    assert numbers(world) == [1, 2, 3]


def test_who_does_not_wait_for_the_beginning_hears_of_it_all_the_same(world: World) -> None:
    world.send(ALICE, StartStream("g", "s"), part(1), StreamEnd("s"))
    assert heard(world) == [StreamAck("s", 1), StreamAck("s", 2), StreamClosed("s")]
    assert numbers(world) == [1, 2]


def test_parts_and_messages_stay_in_the_order_in_which_they_came(world: World) -> None:
    start(world)
    world.send(ALICE, SendToGroup("g", text("before"), 7), part(1), SendToGroup("g", text("after"), 8))
    assert world.bodies(BOB) == ["before", "part 1", "after"]
    assert [said for said in world.take(ALICE) if isinstance(said, Ack)] == [Ack(7), Ack(8)]


def test_a_large_part(world: World) -> None:
    body = "x" * (DATA_INLINE_BYTES_MAX + 1)
    start(world)
    world.send(ALICE, part(1, body=body))
    assert received(world) == [(StreamPart("s", 1), body)]


def test_an_error_of_the_sender_reaches_the_receivers(world: World) -> None:
    start(world)
    world.send(ALICE, StreamEnd("s", Fault(ErrorName.USER, "no more\x00paper" + "!" * 2000, "E7" * 100)))
    [(end, _)] = received(world)
    assert end.is_end
    assert end.error is not None
    assert end.error.name == ErrorName.USER
    assert end.error.message.startswith("no more")
    assert len(end.error.message) == 1000
    assert end.error.user_code == "E7" * 64


def test_no_echo_holds_for_parts_and_for_the_end(world: World) -> None:
    world.join(ALICE, "g")
    start(world, "quiet", no_echo=True)
    world.send(ALICE, part(1, "quiet"), StreamEnd("quiet"))
    start(world, "loud")
    world.send(ALICE, part(1, "loud"), StreamEnd("loud"))
    assert [part.stream_id for part, _ in received(world, ALICE)] == ["loud", "loud"]
    assert [part.stream_id for part, _ in received(world)] == ["quiet", "quiet", "loud", "loud"]


def test_parts_expire_one_by_one_but_the_end_does_not(world: World) -> None:
    start(world, ttl_s=5)
    world.drop(BOB)
    world.restart()
    world.resume("alice 2", ALICE)
    world.send("alice 2", part(1))
    world.pass_time(4)
    world.send("alice 2", part(2), StreamEnd("s"))
    world.pass_time(2)
    world.restart()
    world.resume("bob 2", BOB)
    assert numbers(world, "bob 2") == [2, 3]


def test_the_id_of_a_message_in_the_metadata_does_not_make_parts_the_same(world: World) -> None:
    start(world, metadata={"semel-id": "mine"})
    world.send(ALICE, part(1), part(2))
    assert numbers(world) == [1, 2]


def test_several_streams_side_by_side(world: World) -> None:
    start(world, "a")
    start(world, "b")
    world.send(ALICE, part(1, "a"), part(1, "b"), part(2, "b"))
    assert heard(world)[-2:] == [StreamAck("a", 2), StreamAck("b", 3)]


# -- doubled and missing parts


def test_a_part_that_was_taken_is_dropped_and_acknowledged_again(world: World) -> None:
    start(world)
    world.send(ALICE, part(1), part(2))
    heard(world)
    world.send(ALICE, part(1))
    assert heard(world) == [StreamAck("s", 3)]
    assert numbers(world) == [1, 2]


def test_a_part_that_is_on_its_way_is_acknowledged_with_it(world: World) -> None:
    start(world)
    heard(world)
    world.held = []
    world.send(ALICE, part(1))
    world.send(ALICE, part(1))
    assert heard(world) == []
    world.let_go()
    assert heard(world) == [StreamAck("s", 2)]
    assert numbers(world) == [1]


def test_a_gap_is_told_once(world: World) -> None:
    start(world)
    heard(world)
    world.send(ALICE, part(3), part(4))
    world.send(ALICE, part(5))
    [nack] = heard(world)
    assert isinstance(nack, StreamNack)
    assert (nack.expected, nack.name) == (1, ErrorName.INVALID_SEQUENCE)
    world.send(ALICE, part(1), part(3))
    assert [type(said) for said in heard(world)] == [StreamNack, StreamAck]
    assert numbers(world) == [1]


def test_a_nack_promises_only_what_is_durable(world: World) -> None:
    """A client forgets what is lower than the number in it."""
    start(world)
    heard(world)
    world.held = []
    world.send(ALICE, part(1), part(3))
    [nack] = heard(world)
    assert isinstance(nack, StreamNack)
    assert nack.expected == 1


def test_after_a_failure_the_parts_may_come_again(world: World) -> None:
    start(world)
    world.send(ALICE, part(1))
    heard(world)
    world.failing.append(StoreBusy("busy"))
    world.send(ALICE, part(2), part(3))
    [nack] = heard(world)
    assert nack == StreamNack("s", 2, ErrorName.TRANSIENT, REFUSED)
    world.send(ALICE, part(4))
    assert heard(world) == []  # it was on its way before the client could hear
    world.send(ALICE, part(2), part(3), part(4))
    assert heard(world) == [StreamAck("s", 5)]
    assert numbers(world) == [1, 2, 3, 4]


def test_a_failed_commit_takes_those_after_it_with_it(world: World) -> None:
    start(world)
    heard(world)
    world.held = []
    world.send(ALICE, part(1))
    world.send(ALICE, part(2), StreamEnd("s"))
    world.failing.append(StoreBusy("busy"))
    world.let_go()
    assert heard(world) == [StreamNack("s", 1, ErrorName.TRANSIENT, REFUSED)]
    world.send(ALICE, part(1), part(2), StreamEnd("s"))
    assert heard(world) == [StreamAck("s", 3), StreamClosed("s")]
    assert numbers(world) == [1, 2, 3]


def test_a_beginning_that_the_store_does_not_take(world: World) -> None:
    world.failing.append(StoreBusy("busy"))
    start(world)
    assert heard(world) == [StreamClosed("s", Fault(ErrorName.INTERNAL, REFUSED))]
    start(world)
    assert heard(world) == [StreamAck("s", 1)]


# -- what is refused


def test_who_may_not_send_cannot_begin(world: World) -> None:
    world.connect("carol", roles=("webpubsub.joinLeaveGroup",))
    world.send("carol", StartStream("g", "s"))
    [closed] = heard(world, "carol")
    assert isinstance(closed, StreamClosed)
    assert closed.error is not None
    assert closed.error.name == ErrorName.FORBIDDEN


@pytest.mark.parametrize("request_", [part(1), StreamData("s"), StreamEnd("s")], ids=["part", "keepalive", "end"])
def test_a_stream_that_does_not_exist(world: World, request_: StreamData | StreamEnd) -> None:
    world.send(ALICE, request_)
    [closed] = heard(world)
    assert isinstance(closed, StreamClosed)
    assert closed.error is not None
    assert closed.error.name == ErrorName.STREAM_NOT_FOUND


def test_who_may_not_send_any_more_cannot_go_on_and_the_receivers_hear_why(world: World) -> None:
    start(world)
    world.send(ALICE, part(1))
    heard(world)
    world.call(Revoke(ALICE, Permission.SEND_TO_GROUP, "g"))
    world.send(ALICE, part(2))
    [closed] = heard(world)
    assert isinstance(closed, StreamClosed)
    assert closed.error is not None
    assert closed.error.name == ErrorName.FORBIDDEN
    *_, (end, _) = received(world)
    assert end == StreamPart("s", 2, True, closed.error)


def test_a_name_is_taken_while_the_stream_is_open_and_free_after_it(world: World) -> None:
    start(world)
    world.send(ALICE, part(1))
    heard(world)
    start(world)
    [closed] = heard(world)
    assert isinstance(closed, StreamClosed)
    assert closed.error is not None
    assert closed.error.name == ErrorName.BAD_REQUEST
    world.send(ALICE, part(2), StreamEnd("s"))
    assert heard(world) == [StreamAck("s", 3), StreamClosed("s")]
    start(world)
    world.send(ALICE, part(1))
    assert heard(world) == [StreamAck("s", 1), StreamAck("s", 2)]
    assert numbers(world) == [1, 2, 3, 1]


def test_a_stream_with_the_name_of_one_that_has_ended_begins_at_its_own_beginning(world: World) -> None:
    world.send(ALICE, StartStream("g", "s"), part(1), part(2), StreamEnd("s"))
    heard(world)
    world.held = []
    world.send(ALICE, StartStream("g", "s"), part(1))
    world.send(ALICE, part(1), part(3))
    [nack] = heard(world)
    assert isinstance(nack, StreamNack)
    assert nack.expected == 1
    world.failing.append(StoreBusy("busy"))
    world.let_go()
    assert heard(world) == [StreamClosed("s", Fault(ErrorName.INTERNAL, REFUSED))]


def test_a_beginning_that_is_asked_for_again_is_the_same(world: World) -> None:
    """Its answer may have been lost with the socket."""
    world.held = []
    start(world)
    start(world)
    world.let_go()
    assert heard(world) == [StreamAck("s", 1)]
    start(world)
    assert heard(world) == [StreamAck("s", 1)]


def test_there_is_a_limit_to_open_streams_to_idle_times_and_to_metadata(world: World) -> None:
    for number in range(STREAMS_MAX):
        start(world, f"s{number}")
    heard(world)
    start(world, "one more")
    world.send(ALICE, StreamEnd("s0"))
    start(world, "idle", idle_timeout_ms=IDLE_MS_MAX + 1)
    start(world, "metadata", metadata={f"k{n}": "v" * 1000 for n in range(9)})
    start(world, "headers", metadata={f"k{n}": "v" for n in range(64)})
    start(world, "fine")
    told = heard(world)
    refused = [said for said in told if isinstance(said, StreamClosed) and said.error is not None]
    assert [(each.stream_id, each.error and each.error.name) for each in refused] == [
        (id, ErrorName.BAD_REQUEST) for id in ("one more", "idle", "metadata", "headers")
    ]
    assert told[-1] == StreamAck("fine", 1)


# -- the end, said again


def test_an_end_that_is_sent_again_after_the_answer_was_lost(world: World) -> None:
    """Microsoft's clients send again, after a drop, what was not acknowledged."""
    start(world)
    world.send(ALICE, part(1), StreamEnd("s"))
    heard(world)
    world.drop(ALICE)
    world.restart()
    world.resume("alice 2", ALICE)
    world.send("alice 2", part(1), StreamEnd("s"))
    assert heard(world, "alice 2") == [StreamClosed("s"), StreamClosed("s")]
    assert numbers(world) == [1, 2]


def test_a_part_that_comes_after_the_end_is_not_taken_for_one_that_was_published(world: World) -> None:
    start(world)
    world.send(ALICE, part(1), StreamEnd("s"))
    heard(world)
    for number, error in ((1, None), (2, Fault(ErrorName.STREAM_NOT_FOUND, "there is no stream 's'"))):
        world.send(ALICE, part(number))
        assert heard(world) == [StreamClosed("s", error)]
    assert numbers(world) == [1, 2]


def test_only_the_last_streams_that_have_ended_are_remembered(world: World) -> None:
    for number in range(ENDED_KEPT + 3):
        world.send(ALICE, StartStream("g", f"s{number}"), StreamEnd(f"s{number}"))
    session = world.hub.roster.get(ALICE)
    assert session is not None
    assert list(session.streams) == list(session.streams.stored) == [f"s{n}" for n in range(3, ENDED_KEPT + 3)]


# -- idle streams


def test_an_idle_stream_ends_for_its_sender_and_its_receivers(world: World) -> None:
    start(world, idle_timeout_ms=2_000)
    world.send(ALICE, part(1))
    heard(world)
    world.pass_time(1.9)
    assert heard(world) == []
    world.pass_time(0.2)
    [closed] = heard(world)
    assert isinstance(closed, StreamClosed)
    assert closed.error is not None
    assert closed.error.name == ErrorName.IDLE_TIMEOUT
    assert received(world)[-1] == (StreamPart("s", 2, True, closed.error), None)
    world.send(ALICE, part(2))
    [closed] = heard(world)
    assert isinstance(closed, StreamClosed)
    assert closed.error is not None
    assert closed.error.name == ErrorName.STREAM_NOT_FOUND


def test_without_a_word_about_it_a_stream_may_be_idle_for_five_minutes(world: World) -> None:
    start(world)
    heard(world)
    world.pass_time(299)
    assert heard(world) == []
    world.pass_time(2)
    assert len(heard(world)) == 1


def test_parts_and_keepalives_keep_a_stream_alive_and_are_not_delivered(world: World) -> None:
    start(world, idle_timeout_ms=2_000)
    heard(world)
    for _ in range(3):
        world.pass_time(1.5)
        world.send(ALICE, StreamData("s"))
    assert heard(world) == []
    assert received(world) == []


def test_an_idle_stream_whose_end_the_store_does_not_take_ends_later(world: World) -> None:
    start(world, idle_timeout_ms=2_000)
    heard(world)
    world.failing.append(StoreBusy("busy"))
    world.pass_time(2)
    assert heard(world) == [StreamNack("s", 1, ErrorName.TRANSIENT, REFUSED)]
    world.pass_time(2)
    [closed] = heard(world)
    assert isinstance(closed, StreamClosed)
    assert numbers(world) == [1]


def test_the_time_without_a_socket_does_not_count(world: World) -> None:
    start(world, idle_timeout_ms=2_000)
    world.drop(ALICE)
    world.pass_time(10)
    world.resume("alice 2", ALICE)
    world.send("alice 2", part(1))
    assert heard(world, "alice 2") == [StreamAck("s", 2)]
    world.pass_time(2)
    [closed] = heard(world, "alice 2")
    assert isinstance(closed, StreamClosed)


def test_a_name_that_is_used_again_is_idle_by_its_own_time(world: World) -> None:
    start(world, idle_timeout_ms=60_000)
    world.send(ALICE, StreamEnd("s"))
    start(world, idle_timeout_ms=1_000)
    heard(world)
    world.pass_time(1)
    [closed] = heard(world)
    assert isinstance(closed, StreamClosed)
    world.pass_time(60)
    assert heard(world) == []


# -- the end of a session, and its return


def test_a_stream_survives_a_restart_at_its_place(world: World) -> None:
    start(world, no_echo=True, ttl_s=5, metadata={"k": "v"}, idle_timeout_ms=1_000)
    world.send(ALICE, part(1), part(2))
    world.restart()
    world.resume("alice 2", ALICE)
    world.send("alice 2", part(2), part(3))
    assert heard(world, "alice 2") == [StreamAck("s", 3), StreamAck("s", 4)]
    world.resume("bob 2", BOB)
    assert numbers(world, "bob 2") == [1, 2, 3]


def test_a_nack_that_was_lost_with_the_socket_is_said_again(world: World) -> None:
    start(world)
    world.send(ALICE, part(2))
    world.drop(ALICE)
    world.resume("alice 2", ALICE)
    world.send("alice 2", part(2))
    [nack] = heard(world, "alice 2")
    assert isinstance(nack, StreamNack)


@pytest.mark.parametrize("how", ["closes", "is closed", "does not come back", "does not come back to a new server"])
def test_the_receivers_hear_when_the_sender_is_gone(world: World, how: str) -> None:
    start(world)
    start(world, "over")
    world.send(ALICE, part(1), StreamEnd("over"))
    received(world)
    if how == "closes":
        world.drop(ALICE, 1000)
    elif how == "is closed":
        world.call(CloseConnections(Connection(ALICE)))
    else:
        world.drop(ALICE)
        if how.endswith("server"):
            world.restart()
            world.resume(BOB, BOB)
            received(world)
        world.pass_time(91)
    [(end, _)] = received(world)
    assert (end.stream_id, end.sequence_id, end.is_end) == ("s", 2, True)
    assert end.error is not None
    assert end.error.name == CANCELLED


def test_a_plain_client_may_stream_and_loses_its_streams_with_its_socket(world: World) -> None:
    world.connect("carol", protocol=Subprotocol.JSON)
    world.send("carol", StartStream("g", "s"), part(1))
    assert heard(world, "carol") == [StreamAck("s", 1), StreamAck("s", 2)]
    world.drop("carol")
    assert numbers(world) == [1, 2]


def test_a_stream_goes_on_on_another_node() -> None:
    one = World(SHARED, "one")
    two = World(SHARED, "two", beside=one)
    one.connect(ALICE)
    two.connect(BOB, groups=("g",))
    one.send(ALICE, StartStream("g", "s", no_echo=True), part(1), part(2))
    one.drop(ALICE)
    two.resume("alice 2", ALICE)
    two.send("alice 2", part(2), part(3))
    assert heard(two, "alice 2") == [StreamAck("s", 3), StreamAck("s", 4)]
    two.drop("alice 2", 1000)
    assert numbers(two) == [1, 2, 3, 4]


def test_when_a_node_dies_its_streams_end_with_their_sessions() -> None:
    one = World(SHARED, "one")
    two = World(SHARED, "two", beside=one)
    one.connect(ALICE)
    two.connect(BOB, groups=("g",))
    one.send(ALICE, StartStream("g", "s"), part(1))
    one.die()
    for _ in range(120):
        two.pass_time(1)
    [_, (end, _)] = received(two)
    assert (end.sequence_id, end.is_end, end.error and end.error.name) == (2, True, CANCELLED)


# -- other protocols


def test_protobuf_clients_send_and_receive_streams_as_well(world: World) -> None:
    world.connect("carol", protocol=Subprotocol.PROTOBUF_RELIABLE)
    world.join("carol", "g")
    world.take("carol")
    world.send("carol", StartStream("g", "s"), part(1), StreamEnd("s"))
    assert [part for part, _ in received(world)] == [StreamPart("s", 1), StreamPart("s", 2, True)]
    said = world.take("carol")
    assert [each for each in said if isinstance(each, STREAMY)] == [
        StreamAck("s", 1),
        StreamAck("s", 2),
        StreamClosed("s"),
    ]
    assert [each.stream for each in said if isinstance(each, GroupMessage)] == [
        StreamPart("s", 1),
        StreamPart("s", 2, True),
    ]


def test_a_simple_client_gets_the_data_and_nothing_of_the_end(world: World) -> None:
    world.connect("carol", protocol="", groups=("g",))
    start(world)
    world.held = []
    world.send(ALICE, part(1), StreamData("s", 2, Data(DataType.BINARY, b"\x00")), StreamEnd("s"))
    writes: list[Write] = []
    world.send_effect = lambda effect: writes.append(effect.message)  # type: ignore[method-assign]
    world.let_go()
    heard = [frames for each in writes for peers, frames in each.writes if "carol" in peers]
    assert b"".join(heard) == frame("part 1") + frame(b"\x00")


# -- the row


def test_a_row_that_was_written_before_there_were_streams_can_be_read() -> None:
    assert read_acks(msgspec.msgpack.encode([5, [[1, 3]]])) == AcksRow(5, ((1, 3),))
    row = AcksRow(5, (), (ClientStream("s", "g", 3, 1000, True, 5, {"k": "v"}, True),))
    assert read_acks(msgspec.msgpack.encode(row)) == row


# -- whatever happens


class StreamMachine(RuleBasedStateMachine):
    """A client that sends parts as it likes, over a store and a server that fail as they like: the receiver gets each
    part once and in order, and what was acknowledged is there."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.world.connect(BOB, groups=("g",))
        self.world.connect(ALICE)
        self.world.send(ALICE, StartStream("g", "s"))
        self.peer, self.sockets = ALICE, 0
        self.acked, self.got, self.is_ended, self.wants_end = 1, [], False, False

    @rule(numbers=st.lists(st.integers(1, 6), min_size=1, max_size=5))
    def send(self, numbers: list[int]) -> None:
        """Relative to what was acknowledged, so that there are doubles, gaps and right ones."""
        self.world.send(self.peer, *(part(max(1, self.acked + number - 3)) for number in numbers))

    @rule()
    def hold(self) -> None:
        if self.world.held is None:
            self.world.held = []

    @rule(fails=st.integers(0, 2))
    def let_go(self, fails: int) -> None:
        self.world.failing.extend(StoreBusy("busy") for _ in range(min(fails, len(self.world.held or ()))))
        self.world.let_go()

    @precondition(lambda self: self.world.held is None)
    @rule(is_killed=st.booleans())
    def come_back(self, is_killed: bool) -> None:
        self.listen()
        if is_killed:
            self.world.restart()
        else:
            self.world.drop(self.peer)
        self.sockets += 1
        self.peer = f"alice {self.sockets}"
        self.world.resume(self.peer, ALICE)

    @precondition(lambda self: not self.is_ended)
    @rule()
    def end(self) -> None:
        self.wants_end = True
        self.world.send(self.peer, StreamEnd("s"))

    @invariant()
    def listen(self) -> None:
        for said in self.world.take(self.peer):
            if isinstance(said, StreamAck | StreamNack):
                assert said.expected >= self.acked
                self.acked = said.expected
            elif isinstance(said, StreamClosed) and said.error is None:
                self.is_ended = True
            elif isinstance(said, StreamClosed):
                # a part behind the end, which nobody will get
                assert said.error is not None
                assert (said.error.name, self.wants_end) == (ErrorName.STREAM_NOT_FOUND, True)
        self.world.drop("bob now")
        self.world.take("bob now")
        self.world.resume("bob now", BOB)
        found = received(self.world, "bob now")
        assert [part.sequence_id for part, _ in found] == list(range(1, len(found) + 1))
        assert all(body == f"part {part.sequence_id}" for part, body in found if not part.is_end)
        assert [part.is_end for part, _ in found[:-1]] == [False] * len(found[:-1])
        assert len(found) >= self.acked - 1
        if self.is_ended:
            assert found[-1][0].is_end


TestStreamMachine = StreamMachine.TestCase
TestStreamMachine.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
