"""What a hub writes down of its deliveries: each of them once, whatever happens in between."""

from __future__ import annotations

from typing import TypeVar

import pytest
from msgspec.structs import replace
from tests.unit.pubsub.hub.world import HUB, SlowWorld, World, text

from semel.errors import StoreUnavailable
from semel.kernel.ledger import START, Kind, hash_id
from semel.kernel.store import Records, Trimmed
from semel.pubsub.hub.calls import CloseConnections, Connection, Publish
from semel.pubsub.hub.machine import HubOptions
from semel.pubsub.hub.records import END, RecordKind
from semel.pubsub.hub.session_rows import session_key
from semel.pubsub.protocol.messages import GroupMessage, JoinGroup, LeaveGroup, SendToGroup, ServerMessage
from semel.websocket import CloseCode

ALICE, BOB = "alice", "bob"
SHARED = HubOptions(is_shared=True)
AWAY = StoreUnavailable("the disk is away", fix="wait")
W = TypeVar("W", bound=World)


def with_both(made: W) -> W:
    for peer in (ALICE, BOB):
        made.connect(peer)
        made.join(peer, "g")
        made.take(peer)
    return made


@pytest.fixture
def world() -> World:
    return with_both(World())


def last_number(world: World, peer: str) -> int:
    return max(said.sequence_id or 0 for said in world.take(peer) if isinstance(said, GroupMessage))


def confirmed(world: World, connection: str) -> tuple[int, int, list[tuple[int, int]]]:
    """How many deliveries the ledger tells of, the fold of them, and their ranges."""
    events = [entry.event for entry in world.store.ledger(START, 10_000)]
    events = [event for event in events if event.kind is Kind.CONFIRMED and event.peer == connection]
    fold = 0
    for event in events:
        fold ^= event.fold or 0
    return sum(event.n for event in events), fold, [(event.first or 0, event.last or 0) for event in events]


def folded(*ids: str) -> int:
    fold = 0
    for id in ids:
        fold ^= hash_id(id)
    return fold


def test_an_acknowledgement_that_is_not_in_the_ledger_yet_is_not_in_the_row_either(world: World) -> None:
    """A publish writes the row of acks. If it said more than the ledger, a crash would leave deliveries untold."""
    for number in (2, 3):
        world.publish(ALICE, "g", f"m{number}", number)
    world.ack(BOB, last_number(world, BOB))
    world.publish(BOB, "g", "mine", 2)
    world.restart()
    world.resume("again", BOB)
    assert world.bodies("again") == ["m2", "m3", "mine"]
    world.resume("and again", BOB)
    world.ack("and again", last_number(world, "and again"))
    world.pass_time(2)
    count, fold, ranges = confirmed(world, BOB)
    assert (count, fold) == (3, folded("alice#2", "alice#3", "bob#2"))
    assert len(ranges) == 1


def test_what_could_not_be_written_down_is_written_down_with_the_next(world: World) -> None:
    world.publish(ALICE, "g", "m2", 2)
    world.ack(BOB, last_number(world, BOB))
    world.failing = [AWAY]
    world.pass_time(2)
    assert confirmed(world, BOB)[0] == 0
    world.publish(ALICE, "g", "m3", 3)
    world.ack(BOB, last_number(world, BOB))
    world.pass_time(2)
    count, fold, ranges = confirmed(world, BOB)
    assert (count, fold) == (2, folded("alice#2", "alice#3"))
    assert len(ranges) == 1


def test_a_store_that_is_away_is_told_of_once_and_not_for_every_session(world: World) -> None:
    world.publish(ALICE, "g", "m2", 2)
    for peer in (ALICE, BOB):
        world.ack(peer, last_number(world, peer))
    world.failing = [AWAY, AWAY, AWAY]
    for _ in range(3):
        world.pass_time(2)
    assert [note.topic for note in world.notes] == ["hub-flush"]
    world.pass_time(2)
    assert confirmed(world, ALICE)[0] == confirmed(world, BOB)[0] == 1


def test_what_failed_twice_is_written_down_from_its_beginning(world: World) -> None:
    """The second failure is of what came later: it must not move the beginning, in the ledger or in the row."""
    numbers = []
    for number in (2, 3):
        world.publish(ALICE, "g", f"m{number}", number)
        numbers.append(last_number(world, BOB))
    world.held = []
    for number in numbers:
        world.ack(BOB, number)
        world.pass_time(2)
    first, world.held = world.held[0], None
    world.interpreter.failed(first, AWAY)
    session = world.hub.roster.get(BOB)
    assert session is not None
    assert session.backlog.flushing < numbers[0]
    world.pass_time(2)
    assert confirmed(world, BOB) == (2, folded("alice#2", "alice#3"), [(numbers[0], numbers[1])])


def test_what_failed_to_be_written_down_while_the_session_ended_is_told_with_its_end(world: World) -> None:
    world.publish(ALICE, "g", "m2", 2)
    number = last_number(world, BOB)
    world.held = []
    world.ack(BOB, number)
    world.pass_time(2)
    world.drop(BOB, CloseCode.NORMAL)
    first, world.held = world.held[0], None
    world.interpreter.failed(first, AWAY)
    world.pass_time(10)
    assert world.store.state(session_key(HUB, BOB)) is None
    assert confirmed(world, BOB) == (1, folded("alice#2"), [(number, number)])


def test_what_was_written_down_is_counted_once(world: World) -> None:
    """Also if it took more than one try."""
    world.publish(ALICE, "g", "m2", 2)
    world.ack(BOB, last_number(world, BOB))
    world.failing = [AWAY]
    world.pass_time(2)
    assert world.hub.counts.acknowledged == 0
    world.pass_time(2)
    assert world.hub.counts.acknowledged == 1


def test_records_are_kept_until_the_ledger_has_their_deliveries(world: World) -> None:
    world.publish(ALICE, "g", "m2", 2)
    world.ack(ALICE, last_number(world, ALICE))
    world.pass_time(10)
    number = last_number(world, BOB)
    world.ack(BOB, number)
    session = world.hub.roster.get(BOB)
    assert session is not None
    assert session.floor(100) < number
    world.pass_time(2)
    assert session.floor(100) == 100


def test_records_are_kept_while_it_is_on_its_way_into_the_ledger(world: World) -> None:
    world.publish(ALICE, "g", "m2", 2)
    number = last_number(world, BOB)
    world.ack(BOB, number)
    world.held = []
    world.pass_time(2)
    session = world.hub.roster.get(BOB)
    assert session is not None
    assert session.floor(100) < number
    world.let_go()
    assert session.floor(100) == 100


def test_a_stay_is_remembered_until_the_ledger_has_its_deliveries(world: World) -> None:
    """What was acknowledged is on its way into the ledger when the client leaves, and does not get there. After a crash
    only the stay says that the deliveries were due."""
    world.publish(ALICE, "g", "m2", 2)
    number = last_number(world, BOB)
    world.ack(BOB, number)
    world.held = []
    world.send(BOB, LeaveGroup("g", 2))
    world.pass_time(2)
    [leaving], world.held = world.held, []
    world.interpreter.committed(leaving, world.store.commit(leaving.units))
    [telling], world.held = world.held, None
    world.interpreter.failed(telling, AWAY)
    world.send(BOB, LeaveGroup("g", 2))
    world.restart()
    world.resume("again", BOB)
    world.ack("again", number)
    world.pass_time(2)
    assert confirmed(world, BOB) == (1, folded("alice#2"), [(number, number)])


def test_a_row_that_is_written_while_the_ledger_waits_still_has_the_stay(world: World) -> None:
    """Bob has left the group and acknowledged all. That is on its way into the ledger when another row of his session
    is made, and both fail. The next row is stored, and then the node dies: only the stay in it says what was due."""
    world.publish(ALICE, "g", "m2", 2)
    world.send(BOB, LeaveGroup("g", 2))
    world.call(Publish(Connection(BOB), text("m3")))
    number = max(each.sequence_id or 0 for each in world.take(BOB) if isinstance(each, GroupMessage | ServerMessage))
    world.ack(BOB, number)
    world.held = []
    world.pass_time(2)
    world.send(BOB, JoinGroup("h", 3))
    [telling], world.held = world.held, None
    world.interpreter.failed(telling, AWAY)
    world.send(BOB, JoinGroup("h", 3))
    assert confirmed(world, BOB)[0] == 0
    world.restart()
    world.resume("again", BOB)
    world.ack("again", number)
    world.pass_time(2)
    assert confirmed(world, BOB)[0] == 2


# -- the end of a session: what was due to it and not acknowledged is told, and nothing else was due


@pytest.fixture
def slow() -> SlowWorld:
    return with_both(SlowWorld())


def end_of(world: World, connection: str) -> int:
    found = world.store.read("hub/chat", None, 1000)
    if isinstance(found, Trimmed):
        found = world.store.read("hub/chat", replace(found.first, offset=found.first.offset - 1), 1000)
    assert isinstance(found, Records)
    [end] = [
        record.envelope.headers[END]
        for record in found.records
        if record.kind == RecordKind.CLOSE and record.envelope.source == connection
    ]
    return int(end)


def left_behind(world: World, connection: str) -> tuple[int, int, int]:
    """How many, their fold, and up to where anything was due to it."""
    events = [entry.event for entry in world.store.ledger(START, 10_000)]
    [event] = [event for event in events if event.kind is Kind.CANCELLED and event.peer == connection]
    return event.n, event.fold or 0, end_of(world, connection)


def test_a_session_that_is_closed_while_it_catches_up_leaves_behind_what_it_has_missed(slow: SlowWorld) -> None:
    slow.publish(ALICE, "g", "missed", 2)
    slow.reads = []
    slow.restart()
    slow.resume("again", ALICE)
    slow.publish("again", "g", "came meanwhile", 3)
    assert slow.call_later(CloseConnections(Connection(BOB)))
    end = slow.hub.tail.offset
    slow.publish("again", "g", "came later", 4)
    slow.go_on()
    assert left_behind(slow, BOB) == (2, folded("alice#2", "alice#3"), end)
    assert slow.hub.endings.sessions.get(BOB) is None


def test_records_are_kept_until_the_end_of_a_session_is_in_the_store(world: World) -> None:
    """A crash would bring it back, with all that it has not acknowledged."""
    world.publish(ALICE, "g", "left behind", 2)
    world.ack(ALICE, last_number(world, ALICE))
    world.failing = [AWAY]
    world.drop(BOB, CloseCode.NORMAL)
    world.pass_time(2)
    session = world.hub.endings.sessions.get(BOB)
    assert session is not None
    assert min(world.hub.floors._needed()) < session.backlog.queue[0].first
    world.pass_time(6)
    assert min(world.hub.floors._needed()) == world.hub.tail.offset


def test_what_comes_while_the_end_of_a_session_is_tried_again_was_not_due_to_it(world: World) -> None:
    world.publish(ALICE, "g", "left behind", 2)
    end = world.hub.tail.offset
    world.failing = [AWAY]
    world.drop(BOB, CloseCode.NORMAL)
    world.publish(ALICE, "g", "came later", 3)
    world.pass_time(6)
    assert left_behind(world, BOB) == (1, folded("alice#2"), end)


def test_what_could_not_be_written_down_of_a_session_is_told_with_its_end(world: World) -> None:
    world.publish(ALICE, "g", "acknowledged", 2)
    number = last_number(world, BOB)
    world.ack(BOB, number)
    world.held = []
    world.pass_time(2)
    world.drop(BOB, CloseCode.NORMAL)
    [telling], world.held = world.held, None
    world.interpreter.failed(telling, AWAY)
    world.pass_time(6)
    assert world.store.states("hub/chat/session/bob") == []
    assert confirmed(world, BOB) == (1, folded("alice#2"), [(number, number)])


def test_a_session_that_begins_where_its_node_began_gets_all_that_comes_after() -> None:
    """Messages in a row are handed on together, also if the node has begun in the midst of them."""
    world = World(SHARED, "one")
    world.connect(ALICE)
    world.send(ALICE, *(SendToGroup("g", text(f"m{number}"), number) for number in range(1, 6)))
    two = SlowWorld(SHARED, "two", beside=world)
    two.reads = []
    two.restart()
    world.send(ALICE, *(SendToGroup("g", text(f"m{number}"), number) for number in range(6, 8)))
    two.connect(BOB, groups=("g",))
    session = two.hub.roster.get(BOB)
    assert session is not None
    assert session.start == two.hub.context.head
    world.publish(ALICE, "g", "m8", 8)
    two.go_on()
    assert two.bodies(BOB) == ["m6", "m7", "m8"]


def test_what_stands_in_one_row_with_what_was_too_much_was_not_due_any_more() -> None:
    """Messages to several groups come together, and the session ends at the first of them that is too much."""
    world = World(HubOptions(backlog_count=2))
    world.connect(ALICE)
    world.connect(BOB, groups=("g", "h"))
    world.send(ALICE, *(SendToGroup("gghghh"[number], text(f"m{number}"), number) for number in range(6)))
    events = [entry.event for entry in world.store.ledger(START, 10_000) if entry.event.kind is Kind.DISCARDED]
    assert [(event.n, event.fold) for event in events] == [(3, folded("alice#0", "alice#1", "alice#2"))]
    assert end_of(world, BOB) == events[0].last


def test_a_message_with_an_id_of_its_own_is_in_the_ledger_by_that(world: World) -> None:
    """Ranges are of no use to who looks for an id once the records were trimmed."""
    for key in ("k", "k", "l"):
        world.call(Publish(Connection(BOB), text("paid"), key=key, id=f"order-{key}"))
    world.call(Publish(Connection(BOB), text("paid")))
    kinds = [entry.event.kind for entry in world.store.history("order-k")]
    assert kinds == [Kind.ACCEPTED, Kind.DUPLICATE]
    events = [entry.event for entry in world.store.ledger(START, 100)]
    assert sum(event.n for event in events if event.kind is Kind.ACCEPTED and event.hop == f"client>hub/{HUB}") == 3
