"""A session that only a newer Semel can read: it alone is left out, and nothing of it is lost."""

from __future__ import annotations

import pytest
from tests.unit.pubsub.hub.world import HUB, World, text

from semel.kernel.ops import Put, Unit
from semel.kernel.store import Trimmed
from semel.pubsub.hub.calls import Answer, Check, Connection, Find, Group, Outcome, Publish
from semel.pubsub.hub.machine import HubOptions
from semel.pubsub.hub.roster import UNREADABLE
from semel.pubsub.hub.session_rows import acks_key, session_key
from semel.pubsub.hub.sockets import ClosePeer
from semel.pubsub.protocol.messages import GroupMessage, ServerMessage
from semel.pubsub.protocol.permissions import Permission
from semel.websocket import CloseCode

ALICE, BOB = "alice", "bob"
STREAM = f"hub/{HUB}"
NEWER = b"\x93of a newer Semel"
ROWS = [acks_key(HUB, BOB), session_key(HUB, BOB)]


def with_both(world: World) -> World:
    for peer in (ALICE, BOB):
        world.connect(peer, groups=("g",))
        world.take(peer)
    return world


@pytest.fixture
def world() -> World:
    return with_both(World(HubOptions(recovery_s=100.0)))


@pytest.fixture
def one() -> World:
    return with_both(World(HubOptions(is_shared=True), "one"))


def publish(world: World, *bodies: str) -> None:
    for body in bodies:
        world.call(Publish(Group("g"), text(body)))


def overwrite(world: World, key: str, value: bytes = NEWER) -> bytes:
    """Returns what was there."""
    state = world.store.state(key)
    assert state is not None
    world.store.commit([Unit((Put(key, value),))])
    return state.value


def topics(world: World) -> list[str]:
    return [note.topic for note in world.notes]


def acknowledge_all(world: World, peer: str) -> list[str]:
    said = [each for each in world.take(peer) if isinstance(each, GroupMessage | ServerMessage)]
    if said:
        world.ack(peer, said[-1].sequence_id or 0)
    return [each.data.body.decode() for each in said if each.data is not None]


@pytest.mark.parametrize("key", ROWS)
def test_a_session_that_cannot_be_read_does_not_keep_the_hub_from_opening(world: World, key: str) -> None:
    publish(world, "m1")
    overwrite(world, key)
    world.restart()
    assert topics(world) == ["session-unreadable"]
    assert f"{BOB} is left out" in world.notes[0].detail
    world.resume("alice again", ALICE)
    assert acknowledge_all(world, "alice again") == ["m1"]
    assert world.call(Find(Connection(ALICE))).outcome is not Outcome.NOT_FOUND


@pytest.mark.parametrize("key", ROWS)
def test_its_client_may_come_again(world: World, key: str) -> None:
    overwrite(world, key)
    world.restart()
    world.resume("again", BOB)
    assert world.take("again") == [ClosePeer(CloseCode.INTERNAL, UNREADABLE)]


@pytest.mark.parametrize("key", ROWS)
def test_who_can_read_it_goes_on_with_it_and_nothing_is_missing(world: World, key: str) -> None:
    """However long it was left out, and whatever the others have acknowledged: what it is owed is kept."""
    publish(world, "m1")
    world.pass_time(6)
    before = overwrite(world, key)
    world.restart()
    world.resume("alice again", ALICE)
    publish(world, "m2")
    acknowledge_all(world, "alice again")
    for _ in range(40):
        world.pass_time(5)
    assert world.store.state(key) is not None
    overwrite(world, key, before)
    world.restart()
    world.resume("bob again", BOB)
    assert acknowledge_all(world, "bob again") == ["m1", "m2"]
    world.pass_time(6)
    world.pass_time(6)
    assert isinstance(world.store.read(STREAM), Trimmed)


def test_one_of_several_nodes_needs_no_acknowledgements_to_know_who_is_elsewhere(one: World) -> None:
    overwrite(one, acks_key(HUB, BOB))
    two = World(HubOptions(is_shared=True), "two", beside=one)
    assert two.notes == []
    assert two.hub.elsewhere.get(BOB) is not None


@pytest.mark.parametrize("key", ROWS)
def test_one_of_several_nodes_does_not_take_what_it_cannot_read(one: World, key: str) -> None:
    before = overwrite(one, key)
    two = World(HubOptions(is_shared=True), "two", beside=one)
    two.resume("again", BOB)
    assert two.take("again") == [ClosePeer(CloseCode.INTERNAL, UNREADABLE)]
    state = two.store.state(key)
    assert state is not None
    assert state.value == NEWER
    assert before != NEWER


def test_what_it_may_do_cannot_be_said_either(one: World) -> None:
    two = World(HubOptions(is_shared=True), "two", beside=one)
    overwrite(one, session_key(HUB, BOB))
    asked = Check(BOB, Permission.JOIN_LEAVE_GROUP, "g")
    assert two.call(asked) == Answer(Outcome.FAILED, UNREADABLE)


@pytest.mark.parametrize("key", ROWS)
def test_when_its_node_is_dead_the_stream_is_kept_for_who_can_read_it(one: World, key: str) -> None:
    two = World(HubOptions(is_shared=True, recovery_s=1_000.0), "two", beside=one)
    publish(one, "m1")
    before = overwrite(one, key)
    one.die()
    for _ in range(20):
        two.pass_time(5)
    two.resume("alice again", ALICE)
    assert acknowledge_all(two, "alice again") == ["m1"]
    for _ in range(20):
        two.pass_time(5)
    overwrite(two, key, before)
    two.resume("bob again", BOB)
    assert acknowledge_all(two, "bob again") == ["m1"]
