"""Several nodes on one store: publish on one, receive on any, and go on elsewhere when one dies."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.pubsub.hub.two_nodes import ALICE, BOB, SHARED, sequence
from tests.unit.pubsub.hub.world import SlowWorld, World, text

from semel.errors import StoreUnavailable
from semel.kernel.effects import LoadAll
from semel.kernel.ops import Claim, Unit
from semel.kernel.position import Position
from semel.pubsub.hub.calls import (
    Check,
    CloseConnections,
    Connection,
    Everybody,
    Find,
    Grant,
    Group,
    JoinMembers,
    ListMembers,
    Member,
    Outcome,
    Publish,
    RemoveMembers,
    Revoke,
    User,
)
from semel.pubsub.hub.sockets import ClosePeer
from semel.pubsub.protocol.frames import Subprotocol
from semel.pubsub.protocol.messages import (
    Ack,
    Connected,
    Disconnected,
    ErrorName,
    GroupMessage,
    JoinGroup,
    LeaveGroup,
    SendToGroup,
)
from semel.pubsub.protocol.permissions import Permission
from semel.websocket import CloseCode


@pytest.fixture
def two(one: World) -> World:
    """With alice on `one` and bob here, both in the group g."""
    two = World(SHARED, "two", beside=one)
    one.connect(ALICE, "user of alice")
    two.connect(BOB, "user of bob")
    one.join(ALICE, "g")
    two.join(BOB, "g")
    one.take(ALICE)
    two.take(BOB)
    return two


# -- messages


def test_what_is_published_on_one_node_is_received_on_all_in_one_order(one: World, two: World) -> None:
    for number in range(5):
        one.publish(ALICE, "g", f"one {number}")
        two.publish(BOB, "g", f"two {number}")
    alice, bob = sequence(one.take(ALICE)), sequence(two.take(BOB))
    assert alice == bob
    assert len(alice) == 10
    assert [offset for _, offset in alice] == sorted(offset for _, offset in alice if offset is not None)


def test_what_was_committed_here_waits_for_what_stands_before_it(one: World, two: World) -> None:
    one.nodes.remove(two)  # it hears of nothing
    one.publish(ALICE, "g", "first")
    one.nodes.append(two)
    two.publish(BOB, "g", "second")
    assert [body for body, _ in sequence(two.take(BOB))] == ["first", "second"]


def test_a_join_by_a_service_reaches_the_node_that_has_the_session(one: World, two: World) -> None:
    assert one.call(JoinMembers(Connection(BOB), ("h",))).outcome is Outcome.DONE
    one.publish(ALICE, "h", "hello")
    assert two.bodies(BOB) == ["hello"]
    assert two.hub.roster.sessions[BOB].groups.keys() == {"g", "h"}
    assert one.hub.elsewhere.sessions[BOB].groups.keys() == {"g", "h"}


# -- another history


def test_a_hub_whose_store_has_another_history_begins_anew_on_every_node(one: World, two: World) -> None:
    """Somebody else has noticed that the database failed over. Before, publishes were acknowledged here, but nobody got
    them, and nobody was told."""
    hubs = one.hub, two.hub
    one.store.raise_epoch("a failover")
    one.publish(ALICE, "g", "lost between two histories", 7)
    assert (one.hub is hubs[0], two.hub is hubs[1]) == (False, False)
    for world, peer in ((one, ALICE), (two, BOB)):
        [shut] = [said for said in world.take(peer) if isinstance(said, ClosePeer)]
        assert shut.code is CloseCode.INTERNAL
        world.resume(f"{peer} again", peer)
        assert world.take(f"{peer} again") == [ClosePeer(CloseCode.POLICY, "there is no such session any more")]
    one.connect("carol")
    one.join("carol", "g")
    two.connect("dave")
    two.publish("dave", "g", "news", 1)
    assert one.bodies("carol") == ["news"]


def test_a_hub_that_is_alone_begins_anew_as_well() -> None:
    world = World()
    world.connect(ALICE)
    world.join(ALICE, "g")
    hub = world.hub
    world.store.raise_epoch("a failover")
    world.publish(ALICE, "g", "hello", 7)
    assert world.hub is not hub
    assert any(isinstance(said, ClosePeer) for said in world.take(ALICE))


def test_that_the_history_is_another_is_seen_by_the_commit_alone() -> None:
    """What follows is not read yet, and without it nobody would be told of anything that is published."""
    world = SlowWorld()
    world.connect(ALICE)
    world.join(ALICE, "g")
    hub, world.reads = world.hub, []
    world.store.raise_epoch("a failover")
    world.publish(ALICE, "g", "hello", 7)
    assert world.hub is not hub
    assert [said.code for said in world.take(ALICE) if isinstance(said, ClosePeer)] == [CloseCode.INTERNAL]


# -- sessions


def test_a_session_is_gone_on_with_on_another_node(one: World, two: World) -> None:
    one.publish(ALICE, "g", "before")
    one.drop(ALICE)
    two.publish(BOB, "g", "meanwhile", 5)
    two.resume("new", ALICE)
    assert [body for body, _ in sequence(two.take("new"))] == ["before", "meanwhile"]
    two.publish(BOB, "g", "after", 6)
    assert [body for body, _ in sequence(two.take("new"))] == ["after"]
    assert one.hub.roster.get(ALICE) is None
    assert one.hub.elsewhere.sessions[ALICE].node == two.hub.node


def test_what_was_acknowledged_is_not_sent_again(one: World, two: World) -> None:
    one.publish(ALICE, "g", "first")
    one.publish(ALICE, "g", "second")
    (_, first), _ = sequence(one.take(ALICE))
    assert first is not None
    one.ack(ALICE, first)
    one.pass_time(2)
    two.resume("new", ALICE)
    assert [body for body, _ in sequence(two.take("new"))] == ["second"]


def test_what_another_node_has_sent_may_be_acknowledged_before_it_is_known_that_it_had_the_session() -> None:
    """Its client has been there and is back already. Refused for good, it would lose what it has not received."""
    one = SlowWorld(SHARED, "one")
    two = World(SHARED, "two", beside=one)
    one.connect("carol")
    two.connect(ALICE, groups=("g",))
    two.drop(ALICE)
    one.reads = []
    one.resume("here", ALICE)
    one.publish("carol", "g", "hello", 1)
    one.drop("here")
    two.resume("there", ALICE)
    [message] = [said for said in two.take("there") if isinstance(said, GroupMessage)]
    assert message.sequence_id is not None
    assert message.sequence_id <= one.hub.tail.offset
    one.resume("back", ALICE)
    one.ack("back", message.sequence_id)
    [shut] = [said for said in one.take("back") if isinstance(said, ClosePeer)]
    assert shut.code is CloseCode.INTERNAL
    one.go_on()
    one.resume("back again", ALICE)
    one.ack("back again", message.sequence_id)
    assert not any(isinstance(said, ClosePeer) for said in one.take("back again"))


def test_the_ack_ids_of_a_session_go_with_it(one: World, two: World) -> None:
    one.publish(ALICE, "g", "once", 7)
    two.take(BOB)
    two.resume("new", ALICE)
    two.take("new")
    two.send("new", SendToGroup("g", text("once"), 7))
    [ack] = two.take("new")
    assert isinstance(ack, Ack)
    assert ack.error is not None
    assert ack.error.name == ErrorName.DUPLICATE
    assert two.bodies(BOB) == []


def test_the_node_before_loses_the_socket_that_it_still_has(one: World, two: World) -> None:
    two.resume("new", ALICE)
    assert [said.code for said in one.take(ALICE) if isinstance(said, ClosePeer)] == [CloseCode.INTERNAL]


def test_a_node_that_was_replaced_cannot_publish_for_the_session(one: World, two: World) -> None:
    """It has not heard of it yet."""
    one.nodes.remove(one)
    two.resume("new", ALICE)
    one.publish(ALICE, "g", "too late", 9)
    assert [type(said) for said in one.take(ALICE)] == [ClosePeer]
    two.publish("new", "g", "too late", 9)
    assert two.bodies(BOB) == ["too late"]


def test_a_node_that_was_replaced_cannot_join_a_group_for_the_session(one: World, two: World) -> None:
    one.nodes.remove(one)
    two.resume("new", ALICE)
    one.join(ALICE, "late", 9)
    two.take("new")
    two.publish(BOB, "late", "hello")
    assert two.bodies("new") == []


def test_a_session_can_come_and_go(one: World, two: World) -> None:
    for turn in range(4):
        node = two if turn % 2 == 0 else one
        node.resume(f"socket {turn}", ALICE)
        two.publish(BOB, "g", f"message {turn}")
        assert f"message {turn}" in node.bodies(f"socket {turn}")
    assert ALICE in one.hub.roster.sessions


def test_what_a_client_asks_before_its_session_is_here_is_done_then(one: World, two: World) -> None:
    one.drop(ALICE)
    two.held = []
    two.resume("new", ALICE)
    two.publish("new", "g", "early", 11)
    assert two.take("new") == []
    two.let_go()
    said = two.take("new")
    assert Ack(11) in said
    assert two.bodies(BOB) == ["early"]


def test_what_waits_for_a_session_to_come_has_a_limit(one: World, two: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semel.pubsub.hub.takeover.HELD_BYTES_MAX", 100)
    one.drop(ALICE)
    two.held = []
    two.resume("new", ALICE)
    for number in range(11, 13):
        two.publish("new", "g", "x" * 50, number)
    assert two.take("new") == []
    two.publish("new", "g", "x", 13)
    [shut] = two.sent["new"]
    assert isinstance(shut, ClosePeer)
    assert shut.code is CloseCode.INTERNAL
    two.resume("newer", ALICE)
    two.publish("newer", "g", "x" * 100, 11)
    two.let_go()
    assert Ack(11) in two.take("newer")


def test_of_two_sockets_that_come_for_one_session_the_last_has_it(one: World, two: World) -> None:
    one.drop(ALICE)
    two.held = []
    two.resume("first", ALICE)
    two.resume("second", ALICE)
    two.let_go()
    [shut] = two.take("first")
    assert isinstance(shut, ClosePeer)
    assert shut.code is CloseCode.GOING_AWAY
    two.publish(BOB, "g", "hello")
    assert two.bodies("second") == ["hello"]


def test_an_unknown_session_is_refused_for_good(two: World) -> None:
    two.resume("new", "nobody")
    assert two.take("new") == [ClosePeer(CloseCode.POLICY, "there is no such session any more")]


def test_a_store_in_trouble_refuses_nobody_for_good(one: World, two: World) -> None:
    one.drop(ALICE)
    two.failing = [StoreUnavailable("away")]
    two.resume("new", ALICE)
    [shut] = two.take("new")
    assert isinstance(shut, ClosePeer)
    assert shut.code is CloseCode.INTERNAL
    two.resume("again", ALICE)
    two.publish(BOB, "g", "hello")
    assert two.bodies("again") == ["hello"]


# -- dead nodes


def test_the_sessions_of_a_dead_node_are_taken_over(one: World, two: World) -> None:
    one.publish(ALICE, "g", "unacknowledged")
    one.die()
    two.pass_time(4)
    assert two.hub.roster.get(ALICE) is None
    two.pass_time(7)
    assert two.hub.roster.get(ALICE) is not None
    two.resume("new", ALICE)
    assert two.bodies("new") == ["unacknowledged"]


def test_whoever_does_not_come_back_is_ended_once(one: World, two: World) -> None:
    three = World(SHARED, "three", beside=one)
    one.die()
    for _ in range(12):
        two.pass_time(5)
    assert [ALICE in world.hub.roster.sessions for world in (two, three)].count(True) == 1
    for _ in range(20):
        two.pass_time(5)
    assert two.call(Find(Connection(ALICE))).outcome is Outcome.NOT_FOUND
    assert three.call(Find(Connection(ALICE))).outcome is Outcome.NOT_FOUND
    assert two.store.states("hub/chat/session/alice") == []


def test_a_plain_client_ends_with_its_node(one: World, two: World) -> None:
    one.connect("plain", protocol="json.webpubsub.azure.v1")
    one.die()
    two.pass_time(4)
    two.pass_time(8)
    assert two.call(Find(Connection("plain"))).outcome is Outcome.NOT_FOUND


def test_a_node_that_slept_begins_anew(one: World, two: World) -> None:
    one.nodes.remove(one)
    two.pass_time(4)
    two.pass_time(8)
    assert ALICE in two.hub.roster.sessions
    one.nodes.append(one)
    one.interpreter.run_timers()
    assert ALICE not in one.hub.roster.sessions
    assert [said.code for said in one.take(ALICE) if isinstance(said, ClosePeer)] == [CloseCode.INTERNAL]
    one.connect("carol")
    assert isinstance(one.take("carol")[0], Connected)


def test_taking_over_is_done_again_if_the_store_was_away(one: World, two: World) -> None:
    one.die()
    two.pass_time(4)
    two.failing = [StoreUnavailable("away")] * 3
    for _ in range(20):
        two.pass_time(4)
    assert ALICE in two.hub.roster.sessions


# -- the floor


def test_nothing_is_trimmed_that_a_session_of_another_node_needs(one: World, two: World) -> None:
    one.publish(ALICE, "g", "first")
    [(_, first)] = sequence(two.take(BOB))
    assert first is not None
    two.ack(BOB, first)
    for _ in range(4):
        two.pass_time(5)
    assert two.store.read("hub/chat", Position("hub/chat", two.store.epoch, first - 1), 1).records  # type: ignore[union-attr]
    two.resume("new", ALICE)
    assert two.bodies("new") == ["first"]


def test_a_floor_falls_with_a_session_that_comes(one: World, two: World) -> None:
    """The node that takes it over had given up what the session needs; if it dies as well, another finds it."""
    three = World(SHARED, "three", beside=one)
    one.publish(ALICE, "g", "kept")
    [(_, kept)] = sequence(two.take(BOB))
    assert kept is not None
    two.ack(BOB, kept)
    for _ in range(3):
        two.pass_time(3)
    two.resume("new", ALICE)
    one.pass_time(6)
    one.pass_time(6)
    two.die()
    for _ in range(5):
        one.pass_time(3)
    three.resume("newer", ALICE)
    assert three.bodies("newer") == ["kept"]


def test_what_nobody_needs_is_trimmed_on_several_nodes_too(one: World, two: World) -> None:
    for number in range(10):
        one.publish(ALICE, "g", str(number))
    for world, who in ((one, ALICE), (two, BOB)):
        last = sequence(world.take(who))[-1][1]
        assert last is not None
        world.ack(who, last)
    for _ in range(4):
        one.pass_time(3)
    assert not hasattr(one.store.read("hub/chat", None, 1), "records")


def test_where_nothing_happens_nobody_asks_for_floors(one: World, two: World) -> None:
    one.publish(ALICE, "g", "the last one")
    for world, who in ((one, ALICE), (two, BOB)):
        world.ack(who, sequence(world.take(who))[-1][1] or 0)
    for _ in range(6):
        one.pass_time(3)
    asked: list[object] = []
    for world in (one, two):
        world.process.load = lambda seat, effect: asked.append(effect)
    for _ in range(6):
        one.pass_time(3)
    assert not [effect for effect in asked if isinstance(effect, LoadAll) and "/floor/" in effect.prefix]


# -- calls about sessions of other nodes


def test_everybody_is_found_wherever_they_are(one: World, two: World) -> None:
    assert one.call(Find(Connection(BOB))).outcome is Outcome.DONE
    assert one.call(Find(User("user of bob"))).outcome is Outcome.DONE
    assert one.call(ListMembers("g")).members == (Member(ALICE, "user of alice"), Member(BOB, "user of bob"))
    page = one.call(ListMembers("g", limit=1))
    assert (page.members, page.more) == ((Member(ALICE, "user of alice"),), True)


def test_a_node_that_comes_later_finds_them_too(one: World, two: World) -> None:
    three = World(SHARED, "three", beside=one)
    assert three.call(ListMembers("g")).members == two.call(ListMembers("g")).members
    three.call(Publish(Group("g"), text("hello")))
    assert (one.bodies(ALICE), two.bodies(BOB)) == (["hello"], ["hello"])


def test_a_connection_of_another_node_is_closed(one: World, two: World) -> None:
    assert one.call(CloseConnections(Connection(BOB), reason="enough")).outcome is Outcome.DONE
    disconnected, shut = two.take(BOB)
    assert isinstance(disconnected, Disconnected)
    assert disconnected.reason == "enough"
    assert isinstance(shut, ClosePeer)
    assert shut.code is CloseCode.POLICY
    assert one.call(Find(Connection(BOB))).outcome is Outcome.NOT_FOUND


def test_all_connections_are_closed_but_those_left_out(one: World, two: World) -> None:
    three = World(SHARED, "three", beside=one)
    three.connect("carol")
    assert one.call(CloseConnections(Everybody(), excluded=("carol",))).outcome is Outcome.DONE
    assert [type(said) for said in two.take(BOB)] == [Disconnected, ClosePeer]
    assert "carol" in three.hub.roster.sessions


def test_permissions_of_another_nodes_session(one: World, two: World) -> None:
    two.connect("carol", roles=())
    asked = "carol", Permission.SEND_TO_GROUP, "g"
    assert one.call(Check(*asked)).outcome is Outcome.NOT_FOUND
    assert one.call(Grant(*asked)).outcome is Outcome.DONE
    assert one.call(Check(*asked)).outcome is Outcome.DONE
    two.publish("carol", "g", "allowed")
    assert one.bodies(ALICE) == ["allowed"]
    assert one.call(Revoke(*asked)).outcome is Outcome.DONE
    assert one.call(Check(*asked)).outcome is Outcome.NOT_FOUND


def test_members_of_another_node_are_removed(one: World, two: World) -> None:
    assert one.call(RemoveMembers(Everybody(), ("g",), filter="userId eq 'user of bob'")).outcome is Outcome.DONE
    assert [member.connection for member in two.call(ListMembers("g")).members] == [ALICE]


def test_a_filter_is_asked_where_a_session_is(one: World, two: World) -> None:
    """What protocol it speaks is known only there."""
    two.connect("plain", protocol=Subprotocol.JSON)
    asked = JoinMembers(Everybody(), ("h",), filter=f"protocol eq '{Subprotocol.JSON_RELIABLE}'")
    assert one.call(asked).outcome is Outcome.DONE
    assert [member.connection for member in one.call(ListMembers("h")).members] == [ALICE, BOB]


def test_a_node_that_does_not_answer_is_named_in_the_log_only() -> None:
    one = World(replace(SHARED, lease_s=600.0), "one")
    two = World(one.options, "two", beside=one)
    two.connect(BOB)
    two.die()
    assert one.call_later(CloseConnections(Connection(BOB)))
    one.pass_time(19)
    assert one.take("later") == []
    one.pass_time(2)
    [answer] = one.take("later")
    assert answer.outcome is Outcome.FAILED  # type: ignore[union-attr]
    assert "two" not in answer.message  # type: ignore[union-attr]
    assert any(note.topic == "order" and "two" in note.detail for note in one.notes)
    assert len(one.hub.orders) == 0


def test_who_comes_before_a_node_has_its_lease_waits_for_it(one: World, monkeypatch: pytest.MonkeyPatch) -> None:
    two = World(SHARED, "two", beside=one)
    two.failing = [StoreUnavailable("away")]
    two.restart()
    two.connect("carol")
    two.join("carol", "g")
    two.connect("dave")
    two.drop("dave")
    monkeypatch.setattr("semel.pubsub.hub.admission.HELD_BYTES_MAX", 100)
    two.connect("eve")
    for _ in range(3):
        assert two.take("eve") == []
        two.publish("eve", "g", "x" * 60)
    [shut] = two.take("eve")
    assert isinstance(shut, ClosePeer)
    assert two.take("carol") == []
    two.pass_time(2)
    assert [type(said) for said in two.take("carol")] == [Connected, Ack]
    assert "dave" not in two.hub.roster.sessions


def test_a_name_that_another_has_claimed_is_given_up(one: World) -> None:
    """One that looks for dead nodes in the same transaction may take it for one: the hub before this, say, whose
    last commit was still on its way."""
    two = World(SHARED, "two", beside=one)
    two.held = []
    two.restart()
    [beginning], two.held = two.held, None
    name = two.hub.node
    look = Unit((Claim("hub/chat/nodes", "another", limit=10, lease_s=10.0),))
    _, *outcomes = two.store.commit([look, *beginning.units])
    two.interpreter.committed(beginning, outcomes)
    assert two.hub.node != name
    two.connect("carol")
    assert [type(said) for said in two.take("carol")] == [Connected]


def test_two_joins_whose_records_wait_for_others_are_both_kept(one: World, two: World) -> None:
    """Each row says all that was decided before it, also what the stream has not come to here yet."""
    one.nodes.remove(two)
    one.publish(ALICE, "g", "not heard of yet")
    hold, two.read = two.read, lambda seat, effect: None  # type: ignore[method-assign]
    two.send(BOB, JoinGroup("first", 21), JoinGroup("second", 22))
    two.read = hold  # type: ignore[method-assign]
    three = World(SHARED, "three", beside=one)
    three.resume("new", BOB)
    three.take("new")
    one.publish(ALICE, "first", "a")
    one.publish(ALICE, "second", "b")
    assert three.bodies("new") == ["a", "b"]


def test_who_joins_and_leaves_at_once_is_out(one: World, two: World) -> None:
    two.send(BOB, JoinGroup("h", 31), LeaveGroup("h", 32))
    assert two.take(BOB) == [Ack(31), Ack(32)]
    one.publish(ALICE, "h", "nobody hears")
    assert two.bodies(BOB) == []
