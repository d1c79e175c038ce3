from __future__ import annotations

import pytest
from tests.unit.pubsub.hub.parts import live, session
from tests.unit.pubsub.hub.world import HUB, World, text

from semel.kernel.ops import Put, Unit
from semel.kernel.store import Trimmed
from semel.pubsub.hub.calls import Answer, Check, Connection, Find, Group, Outcome, Publish
from semel.pubsub.hub.machine import HubOptions
from semel.pubsub.hub.roster import UNREADABLE, Arrivals, Elsewhere, Here, Past, Roster
from semel.pubsub.hub.session_rows import acks_key, session_key
from semel.pubsub.hub.sockets import ClosePeer
from semel.pubsub.protocol.messages import GroupMessage, ServerMessage
from semel.pubsub.protocol.permissions import Permission
from semel.websocket import CloseCode


def names(found: object) -> list[str]:
    return sorted(each.id for each in found)  # type: ignore[attr-defined]


def test_a_session_is_found_by_id_user_and_group() -> None:
    here = Here()
    here.add(alice := live("alice", user="ann", groups=["g"]))
    here.add(live("bob", user="ann"))
    assert here.get("alice") is alice
    assert names(here.users["ann"].values()) == ["alice", "bob"]
    assert names(here.groups["g"].values()) == ["alice"]


def test_nothing_is_left_of_one_that_is_removed() -> None:
    here = Here()
    here.add(alice := live("alice", user="ann", groups=["g"]))
    here.remove(alice)
    assert (here.sessions, here.users, here.groups) == ({}, {}, {})


def test_one_that_came_back_as_another_is_not_removed_with_the_first() -> None:
    here = Here()
    here.add(first := live("alice", groups=["g"]))
    here.add(second := live("alice", groups=["h"]))
    here.remove(first)
    assert here.get("alice") is second
    assert list(here.groups) == ["h"]


def test_who_is_in_a_group_stays_in_since_the_first_join() -> None:
    here = Here()
    here.add(alice := live("alice"))
    here.join(alice, "g", 4)
    here.join(alice, "g", 7)
    assert alice.groups == {"g": 4}
    here.leave(alice, "g", 3)
    assert alice.groups == {"g": 4}
    here.leave(alice, "g", 8)
    assert (alice.groups, here.groups) == ({}, {})


def test_a_record_is_for_those_who_were_there_at_its_place() -> None:
    here = Here()
    here.add(early := live("early", user="ann", groups=["g"], since=2))
    here.add(live("late", user="ann", groups=["g"], since=5))
    for target in ("g/g", "u/ann", ""):
        assert names(here.receivers(target, 5)) == ["early"]
        assert names(here.receivers(target, 6)) == ["early", "late"]
    assert list(here.receivers("c/early", 3)) == [early]
    assert list(here.receivers("c/early", 2)) == []
    assert list(here.receivers("c/nobody", 9)) == []


def test_a_stay_that_has_ended_counts_for_records_of_its_time() -> None:
    alice = session("alice", groups=["g"], since=2)
    alice.decide_group("g", 6, False, tail=6)
    alice.memberships.left = [("g", 2, 6)]
    past = Past()
    past.add(alice)
    assert [names(past.receivers("g/g", offset)) for offset in (2, 3, 5, 6)] == [[], ["alice"], ["alice"], []]
    assert "g" in past.seen(alice, 4).groups
    assert "g" not in past.seen(alice, 7).groups


def test_what_is_known_of_another_nodes_session_is_replaced() -> None:
    elsewhere = Roster[Elsewhere]()
    elsewhere.add(Elsewhere("alice", "ann", "one", {"g": 1}))
    elsewhere.add(Elsewhere("alice", "ann", "two", {"h": 2}))
    assert elsewhere.sessions["alice"].node == "two"
    assert (list(elsewhere.groups), len(elsewhere)) == (["h"], 1)


# -- sessions on their way


def test_who_waits_for_several_is_called_when_all_are_decided() -> None:
    arrivals, alice, bob = Arrivals(), session("alice"), session("bob")
    arrivals.begin(alice)
    arrivals.begin(bob)
    called: list[float] = []
    arrivals.when_decided([alice, bob], called.append)
    arrivals.decided(alice, 1.0)
    assert called == []
    arrivals.decided(bob, 2.0)
    assert called == [2.0]
    assert len(arrivals) == 0


def test_who_asks_while_others_are_called_waits_for_the_next() -> None:
    arrivals, alice, bob = Arrivals(), session("alice"), session("bob")
    arrivals.begin(alice)
    arrivals.begin(bob)
    called: list[str] = []

    def again(now: float) -> None:
        called.append("first")
        arrivals.when_decided([bob], lambda now: called.append("second"))

    arrivals.when_decided([alice], again)
    arrivals.decided(alice, 1.0)
    assert called == ["first"]
    arrivals.decided(bob, 2.0)
    assert called == ["first", "second"]


# -- a session that only a newer Semel can read: it alone is left out, and nothing of it is lost


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
