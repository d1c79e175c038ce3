"""What a hub writes down of its deliveries: each of them once, whatever happens in between."""

from __future__ import annotations

import pytest
from tests.unit.pubsub.world import HUB, World

from semel.errors import StoreUnavailable
from semel.kernel.ledger import START, Kind, hash_id
from semel.pubsub.messages import CloseCode, GroupMessage, LeaveGroup
from semel.pubsub.session import session_key

ALICE, BOB = "alice", "bob"
AWAY = StoreUnavailable("the disk is away", fix="wait")


@pytest.fixture
def world() -> World:
    made = World()
    for peer in (ALICE, BOB):
        made.connect(peer)
        made.join(peer, "g")
        made.take(peer)
    return made


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
    assert session.told < numbers[0]
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
