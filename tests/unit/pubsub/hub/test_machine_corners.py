"""Conditions that keep a hub safe in the corners. Each was taken out once by hand, and no test noticed."""

from __future__ import annotations

import pytest
from tests.unit.pubsub.hub.two_nodes import ALICE, AWAY, BOB, STREAM, answer_reads, hold_reads
from tests.unit.pubsub.hub.world import HUB, SlowWorld, World

from semel.kernel.envelope import Envelope
from semel.kernel.ops import Enqueue, Put, Unit
from semel.kernel.store import Trimmed
from semel.pubsub.hub import floors, takeover
from semel.pubsub.hub.calls import Connection, Find, Outcome
from semel.pubsub.hub.floors import floor_key, read_floor
from semel.pubsub.hub.machine import HubOptions
from semel.pubsub.hub.sockets import ClosePeer
from semel.pubsub.protocol.messages import GroupMessage, LeaveGroup
from semel.websocket import CloseCode


@pytest.fixture
def world() -> SlowWorld:
    return with_both(SlowWorld())


def with_both(world: SlowWorld) -> SlowWorld:
    for peer in (ALICE, BOB):
        world.connect(peer, groups=("g",))
        world.take(peer)
    return world


def is_there(world: World, connection: str) -> bool:
    return world.call(Find(Connection(connection))).outcome is Outcome.DONE


def is_gone(world: World, offset: int) -> bool:
    found = world.store.read(STREAM)
    return isinstance(found, Trimmed) and found.first.offset > offset


# -- sessions


def test_who_acknowledges_what_was_never_sent_has_only_so_much_time_to_come_back(world: World) -> None:
    """Or its session would wait for it for ever, and what it is owed with it."""
    world.ack(BOB, 10_000)
    assert any(isinstance(said, ClosePeer) for said in world.take(BOB))
    world.pass_time(89)
    assert is_there(world, BOB)
    world.pass_time(2)
    assert not is_there(world, BOB)


def test_what_a_session_is_still_being_read_for_is_not_given_up(world: SlowWorld) -> None:
    world.pass_time(6)
    world.publish(ALICE, "g", "missed", 5)
    missed = world.store.head(STREAM).offset
    world.reads = []
    world.restart()
    for _ in range(3):
        world.pass_time(5)
    assert not is_gone(world, missed)
    world.go_on()
    world.resume("again", BOB)
    assert world.bodies("again") == ["missed"]


def test_whose_time_is_over_while_it_is_read_for_gets_a_little_more(world: SlowWorld) -> None:
    """Its client may be there, and wait for what it has missed."""
    world.publish(ALICE, "g", "missed", 5)
    world.reads = []
    world.restart()
    world.pass_time(91)
    assert world.hub.roster.get(BOB) is not None
    world.go_on()
    world.pass_time(2)
    assert not is_there(world, BOB)


def test_a_backlog_that_is_just_at_its_limit_after_a_restart_is_no_reason_to_end_a_session() -> None:
    world = with_both(SlowWorld(HubOptions(backlog_count=3)))
    for number in range(3):
        world.publish(ALICE, "g", f"m{number}", number + 5)
    world.restart()
    world.resume("again", BOB)
    assert world.bodies("again") == ["m0", "m1", "m2"]


# -- several nodes


def test_a_node_that_slept_too_long_serves_nobody_before_its_timers_run(one: World, two: World) -> None:
    """Others may have given up what its sessions need."""
    one.now += 11
    one.publish(ALICE, "g", "too late", 5)
    assert one.take(ALICE) == [ClosePeer(CloseCode.INTERNAL, "the node was not heard of for too long")]
    assert two.bodies(BOB) == []


def test_a_lease_counts_from_when_it_was_asked_for(one: World, two: World) -> None:
    """The answer may come late, and others count from before it: it has to know first."""
    one.held = []
    one.pass_time(4)
    one.now += 5
    one.let_go()
    one.now += 6
    one.publish(ALICE, "g", "too late", 5)
    assert one.take(ALICE) == [ClosePeer(CloseCode.INTERNAL, "the node was not heard of for too long")]


def test_the_first_lease_of_a_node_counts_from_when_it_was_asked_for(one: World) -> None:
    one.held = []
    one.restart()
    begun = one.hub
    one.now += 5
    one.let_go()
    assert begun.is_in
    one.now += 6
    one.connect(ALICE)
    assert one.hub is not begun


def test_a_node_whose_lease_another_has_begins_anew_though_its_own_clock_says_that_it_lives(
    one: World, two: World
) -> None:
    begun = one.hub
    taken_back = Enqueue(f"{STREAM}/nodes", begun.node, Envelope(begun.node, type="node"), replace=True)
    one.store.commit([Unit((taken_back,))])
    one.pass_time(4)
    assert one.hub is not begun
    assert one.take(ALICE) == [ClosePeer(CloseCode.INTERNAL, "another node has taken over")]


def test_a_node_that_does_not_know_whether_its_name_is_taken_takes_another(one: World) -> None:
    one.held = []
    one.restart()
    begun = one.hub
    [under_way], one.held = one.held, None
    one.interpreter.unknown(under_way)
    assert one.hub.node != begun.node
    assert one.hub.is_in


def test_a_session_that_has_moved_on_is_not_taken_from_the_node_that_has_it_now(one: World, two: World) -> None:
    """Whose death was heard of is not who has it."""
    decided: list[bool] = []
    two.hub.take_over.take_from("a node that is dead", ALICE, decided.append)
    two.interpreter.wake(is_own=False)
    assert decided == [True]
    assert ALICE in one.hub.roster.sessions
    assert ALICE not in two.hub.roster.sessions


def test_a_take_over_that_is_heard_of_after_the_session_has_gone_on_is_none(one: World, two: World) -> None:
    two.held = []
    two.resume("there", ALICE)
    [under_way], two.held = two.held, None
    outcomes = two.store.commit(under_way.units)
    one.interpreter.wake()
    one.resume("back", ALICE)
    two.interpreter.wake()
    two.interpreter.committed(under_way, outcomes)
    assert ALICE not in two.hub.roster.sessions
    assert two.hub.elsewhere.sessions[ALICE].node == one.hub.node
    assert two.take("there") == [ClosePeer(CloseCode.INTERNAL, "another node has taken it since")]
    assert ALICE in one.hub.roster.sessions


def test_rows_that_changed_while_a_session_was_on_its_way_are_read_again(one: World, two: World) -> None:
    two.held = []
    two.resume("there", ALICE)
    one.join(ALICE, "h", 5)
    two.let_go()
    assert two.take("there") == []
    assert two.hub.roster.sessions[ALICE].groups.keys() == {"g", "h"}


def test_rows_that_change_again_and_again_are_not_read_for_ever(
    one: World, two: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(takeover, "TRIES", 1)
    two.held = []
    two.resume("there", ALICE)
    one.join(ALICE, "h", 5)
    two.let_go()
    assert two.take("there") == [ClosePeer(CloseCode.INTERNAL, "others use the session")]
    two.resume("again", ALICE)
    assert two.take("again") == []


def test_a_take_over_of_before_is_read_after_the_session_came_back_and_changes_nothing(one: World, two: World) -> None:
    asked = hold_reads(one)
    one.nodes.remove(one)
    two.resume("there", ALICE)
    two.drop("there")
    one.nodes.append(one)
    one.hub.closing.release(one.hub.roster.sessions[ALICE])
    one.resume("back", ALICE)
    answer_reads(one, asked)
    one.take("back")
    two.publish(BOB, "g", "hello", 5)
    assert one.bodies("back") == ["hello"]


def test_what_a_socket_asked_that_is_gone_is_not_done_in_the_name_of_the_next(one: World, two: World) -> None:
    """The client asks again for what it was not answered. What it does not ask for again may be another's by now."""
    two.held = []
    two.resume("first", ALICE)
    two.publish("first", "g", "of a socket that is gone")
    two.drop("first")
    two.resume("second", ALICE)
    two.let_go()
    assert two.bodies("second") == []
    assert two.bodies(BOB) == []


def test_who_left_a_group_without_hearing_so_is_in_it_on_the_next_node_too(one: World, two: World) -> None:
    """The record says that it left, but the row does not: it was told that this failed."""
    asked = hold_reads(two)
    commit, commits = one.commit, []

    def first_only(group):  # type: ignore[no-untyped-def]
        commits.append(group)
        if len(commits) == 1:
            commit(group)
        else:
            one.interpreter.failed(group, AWAY)

    one.interpreter._driver.commit = first_only  # type: ignore[attr-defined]
    one.send(ALICE, LeaveGroup("g", 5))
    one.interpreter._driver.commit = commit  # type: ignore[attr-defined]
    two.resume("there", ALICE)
    answer_reads(two, asked)
    two.publish(BOB, "g", "hello", 6)
    said = [each for each in two.take("there") if isinstance(each, GroupMessage)]
    assert [each.data.body for each in said if each.data is not None] == [b"hello"]


def test_the_floor_stays_down_while_a_session_is_on_its_way_here(one: World, two: World) -> None:
    one.publish(ALICE, "g", "m1", 5)
    [needed] = [each.sequence_id or 0 for each in one.take(ALICE) if isinstance(each, GroupMessage)]
    two.ack(BOB, needed)
    two.pass_time(2)
    one.drop(ALICE)
    two.held = []
    two.resume("there", ALICE)
    two.pass_time(6)
    two.let_go()
    state = two.store.state(floor_key(HUB, two.hub.node))
    assert state is not None
    assert read_floor(state) < needed


def test_nothing_is_trimmed_when_there_are_more_floors_than_were_read(
    one: World, two: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lowest may be among the others."""
    monkeypatch.setattr(floors, "NODES_MAX", 2)
    low = floor_key(HUB, "zzz")
    one.store.commit([Unit((Put(low, b"\x00"),))])
    for number in range(5):
        one.publish(ALICE, "g", f"m{number}", number + 5)
    for world, peer in ((one, ALICE), (two, BOB)):
        said = [each.sequence_id or 0 for each in world.take(peer) if isinstance(each, GroupMessage)]
        world.ack(peer, max(said))
    for _ in range(4):
        one.pass_time(3)
    assert not is_gone(one, 1)
