"""Any node answers for all: what is asked of one about connections is true of those that others have just let in."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
from tests.unit.pubsub.hub.world import HUB, SlowWorld, World

from semel.errors import StoreUnavailable
from semel.kernel.effects import Load, LoadAll
from semel.kernel.interpreter import Seat
from semel.kernel.ops import Put, Unit
from semel.pubsub.hub.answers import DONE
from semel.pubsub.hub.calls import (
    Answer,
    Call,
    Check,
    CloseConnections,
    Connection,
    ConnectionInfo,
    Everybody,
    Find,
    Grant,
    Group,
    GroupInfo,
    HubInfo,
    JoinMembers,
    ListConnections,
    ListGroups,
    ListMembers,
    Outcome,
    RemoveMembers,
    Revoke,
    Summarize,
    User,
)
from semel.pubsub.hub.machine import HubOptions
from semel.pubsub.hub.records import RecordKind
from semel.pubsub.hub.session_rows import read_session, session_key
from semel.pubsub.protocol.frames import Subprotocol
from semel.pubsub.protocol.messages import Ack, ErrorName, GroupStateSnapshot, SetGroupState, SubscribeGroupState
from semel.pubsub.protocol.permissions import Permission
from semel.websocket import CloseCode

ALICE, USER = "alice", "user of alice"
SHARED = HubOptions(is_shared=True, lease_s=10.0, trim_s=5.0)
SEND = Permission.SEND_TO_GROUP
AWAY = StoreUnavailable("away")


@pytest.fixture
def one() -> World:
    return World(SHARED, "one")


@pytest.fixture
def two(one: World) -> World:
    """Nobody wakes it: it knows of nothing that has happened since it began. Alice is on `one`, in the group g."""
    two = World(SHARED, "two", beside=one)
    one.nodes.remove(two)
    one.connect(ALICE, USER, groups=("g",))
    one.take(ALICE)
    return two


def wakes(*worlds: World) -> None:
    for world in worlds:
        world.interpreter.wake()


def call(asked: World, call: Call, *others: World) -> Answer:
    """The others are woken by what it writes, and it by what they write."""
    asked.feed("rest", call)
    for _ in range(4):
        wakes(*others, asked)
    [answer] = asked.take("rest")
    assert isinstance(answer, Answer)
    return answer


# -- connections that another node has just let in


@pytest.mark.parametrize("to", [Connection(ALICE), User(USER), Group("g"), Everybody()])
def test_a_connection_that_was_just_opened_elsewhere_is_closed(one: World, two: World, to: Connection) -> None:
    assert call(two, CloseConnections(to), one).outcome is Outcome.DONE
    assert ALICE not in one.hub.roster.sessions


def test_it_is_let_into_groups_and_out_of_them(one: World, two: World) -> None:
    assert call(two, JoinMembers(Connection(ALICE), ("h",)), one).outcome is Outcome.DONE
    assert call(two, JoinMembers(User(USER), ("i",)), one).outcome is Outcome.DONE
    assert one.hub.roster.sessions[ALICE].groups.keys() == {"g", "h", "i"}
    assert call(two, RemoveMembers(Connection(ALICE), ("h",)), one).outcome is Outcome.DONE
    assert call(two, RemoveMembers(User(USER), None), one).outcome is Outcome.DONE
    assert one.hub.roster.sessions[ALICE].groups.keys() == set()


def test_it_is_granted_a_permission(one: World, two: World) -> None:
    one.connect("bob", roles=())
    assert call(two, Grant("bob", SEND, "x"), one).outcome is Outcome.DONE
    assert one.hub.roster.sessions["bob"].may(SEND, "x")


def test_a_permission_that_it_has_is_seen(one: World, two: World) -> None:
    assert two.call(Check(ALICE, SEND)).outcome is Outcome.DONE


def test_a_permission_is_taken_from_it(one: World, two: World) -> None:
    assert call(two, Revoke(ALICE, SEND), one).outcome is Outcome.DONE
    one.publish(ALICE, "x", "not allowed any more", 1)
    [ack] = one.take(ALICE)
    assert isinstance(ack, Ack)
    assert ack.error is not None
    assert ack.error.name == ErrorName.FORBIDDEN


def test_it_is_found_and_listed(one: World, two: World) -> None:
    for who in (Connection(ALICE), User(USER), Group("g")):
        assert two.call(Find(who)).outcome is Outcome.DONE
    one.connect("bob", "user of bob", groups=("g",))
    assert [member.connection for member in two.call(ListMembers("g")).members] == [ALICE, "bob"]
    one.connect("carol", groups=("h",))
    assert two.call(Summarize()).rows == (HubInfo(0, 0, 3, 2),)
    one.connect("dave", groups=("i",))
    assert two.call(ListGroups()).rows == (GroupInfo("g", 2), GroupInfo("h", 1), GroupInfo("i", 1))
    one.connect("eve")
    rows = two.call(ListConnections()).rows
    assert [row.connection_id for row in rows if isinstance(row, ConnectionInfo)] == [
        ALICE, "bob", "carol", "dave", "eve",
    ]  # fmt: skip


def test_what_has_just_ended_elsewhere_is_not_found(one: World, two: World) -> None:
    wakes(two)
    one.call(CloseConnections(Connection(ALICE)))
    for who in (Connection(ALICE), User(USER), Group("g")):
        assert two.call(Find(who)).outcome is Outcome.NOT_FOUND
    assert two.call(JoinMembers(Connection(ALICE), ("h",))).outcome is Outcome.NOT_FOUND
    assert two.call(Check(ALICE, SEND, "g")).outcome is Outcome.NOT_FOUND


@pytest.mark.parametrize("is_join", [False, True])
def test_a_filter_finds_connections_that_were_just_opened_elsewhere(one: World, two: World, is_join: bool) -> None:
    change = JoinMembers if is_join else RemoveMembers
    filter = f"userId eq '{USER}'"
    assert call(two, change(Everybody(), ("h" if is_join else "g",), filter=filter), one).outcome is Outcome.DONE
    assert one.hub.roster.sessions[ALICE].groups.keys() == ({"g", "h"} if is_join else set())


def test_who_watches_a_group_is_shown_what_was_just_said_in_it_elsewhere(one: World, two: World) -> None:
    two.connect("bob")
    one.send(ALICE, SetGroupState("g", 1, {"mood": "good"}))
    two.take("bob")
    two.send("bob", SubscribeGroupState("g", 1))
    ack, snapshot = two.take("bob")
    assert ack == Ack(1)
    assert isinstance(snapshot, GroupStateSnapshot)
    assert [item.connection_id for item in snapshot.items] == [ALICE]


def test_who_comes_back_elsewhere_is_shown_what_was_just_said(one: World, two: World) -> None:
    one.connect("bob")
    one.send("bob", SubscribeGroupState("g", 1))
    one.drop("bob")
    one.send(ALICE, SetGroupState("g", 1, {"mood": "good"}))
    two.resume("back", "bob")
    [snapshot] = [said for said in two.take("back") if isinstance(said, GroupStateSnapshot)]
    assert [item.connection_id for item in snapshot.items] == [ALICE]


@pytest.mark.parametrize("asked", [Find(Connection(ALICE)), Find(User(USER)), Check(ALICE, SEND)])
def test_a_session_that_is_about_to_end_is_not_said_to_be_gone_before_it_is(
    one: World, two: World, asked: Call
) -> None:
    """Until then its client may come back on another node, which knows nothing of its end."""
    one.held = []
    one.drop(ALICE, CloseCode.NORMAL)
    assert one.call_later(asked)
    one.let_go()
    wakes(one)
    assert [answer.outcome for answer in one.sent["later"]] == [Outcome.NOT_FOUND]  # type: ignore[union-attr]


# -- what that costs, and when it cannot be had


def test_all_who_ask_at_once_wait_for_one_read(one: World) -> None:
    two = SlowWorld(SHARED, "two", beside=one)
    one.nodes.remove(two)
    one.connect(ALICE)
    two.reads = []
    for number in range(100):
        two.feed(f"call-{number}", Find(Connection(ALICE)))
        assert len(two.reads) == 1
    first = two.reads.pop()
    first()  # it was asked for by the first, and may have looked too early for the others
    assert [len(two.take(f"call-{number}")) for number in range(100)] == [1] + [0] * 99
    assert len(two.reads) == 1
    two.go_on()
    assert [len(two.take(f"call-{number}")) for number in range(1, 100)] == [1] * 99


def test_who_is_behind_reads_on_to_the_end_first(one: World) -> None:
    two = World(HubOptions(is_shared=True, read_rows=2), "two", beside=one)
    one.nodes.remove(two)
    for number in range(9):
        one.connect(f"client-{number}")
    assert two.call(Find(Connection("client-8"))).outcome is Outcome.DONE


def test_a_node_that_is_alone_reads_nothing_to_answer() -> None:
    alone = SlowWorld(HubOptions(), "alone")
    alone.connect(ALICE)
    alone.reads = []
    assert alone.call(Find(Connection(ALICE))).outcome is Outcome.DONE
    assert alone.call(CloseConnections(Everybody())).outcome is Outcome.DONE
    assert alone.reads == []


def test_a_store_that_does_not_answer_is_not_waited_for_for_long(one: World) -> None:
    two = SlowWorld(SHARED, "two", beside=one)
    two.reads = []
    assert two.call_later(Find(Connection(ALICE)))
    two.pass_time(4.9)
    assert two.take("later") == []
    two.pass_time(0.2)
    [answer] = two.take("later")
    assert answer == Answer(Outcome.FAILED, "the store did not answer in time; ask again")
    two.go_on()
    assert two.take("later") == []


def test_nobody_who_was_answered_is_kept_while_a_read_hangs(one: World) -> None:
    two = SlowWorld(SHARED, "two", beside=one)
    two.connect("bob")
    two.reads = []
    for number in range(50):
        assert two.call_later(Find(Connection(f"nobody {number}")))
    two.pass_time(5.1)
    assert len(two.take("later")) == 50
    gc.collect()
    kept = [each for each in gc.get_objects() if type(each) is Find and "nobody" in each.who.name]  # type: ignore[union-attr]
    assert kept == []
    two.go_on()
    assert two.call(Find(Connection("bob"))).outcome is Outcome.DONE


@pytest.mark.parametrize("is_hanging", [False, True])
def test_a_snapshot_of_what_could_not_be_read_waits_until_it_can_be(one: World, is_hanging: bool) -> None:
    """One without what others have said a moment ago would stand until they say something else."""
    two = SlowWorld(SHARED, "two", beside=one)
    one.connect(ALICE, USER, groups=("g",))
    two.connect("bob")
    two.take("bob")
    if is_hanging:
        two.reads = []
    else:
        two.read = lambda seat, effect: two.interpreter.read_failed(seat, effect, AWAY)  # type: ignore[method-assign]
    one.send(ALICE, SetGroupState("g", 1, {"mood": "good"}))
    two.send("bob", SubscribeGroupState("g", 1))
    two.pass_time(5.1)
    assert two.take("bob") == [Ack(1)]
    if is_hanging:
        two.go_on()
    else:
        del two.read
        two.pass_time(5.1)
    [snapshot] = two.take("bob")
    assert isinstance(snapshot, GroupStateSnapshot)
    assert [item.connection_id for item in snapshot.items] == [ALICE]


def test_a_store_that_cannot_be_read_is_said_at_once(one: World, two: World) -> None:
    two.read = lambda seat, effect: two.interpreter.read_failed(seat, effect, AWAY)  # type: ignore[method-assign]
    answer = two.call(Find(Connection(ALICE)))
    assert answer == Answer(Outcome.FAILED, "the store cannot be read now; ask again")
    del two.read
    assert two.call(Find(Connection(ALICE))).outcome is Outcome.DONE


# -- nodes that die, and sessions that move, while they are ordered about


CHANGES = [JoinMembers(Everybody(), ("h",), filter=f"userId eq '{USER}'"), CloseConnections(Everybody())]


def is_done(world: World, change: Call) -> bool:
    """In the store, by whichever node."""
    state = world.store.state(session_key(HUB, ALICE))
    return state is None if isinstance(change, CloseConnections) else "h" in read_session(state.value).groups  # type: ignore[union-attr]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("is_back", [False, True])
def test_an_order_reaches_the_session_of_a_node_that_has_died(
    one: World, two: World, change: Call, is_back: bool
) -> None:
    """Its client comes back to the node that asks, or does not; in either case its session is taken over in the end."""
    one.nodes.append(two)
    one.die()
    assert two.call_later(change)
    if is_back:
        two.resume("back", ALICE)
    for _ in range(5):
        assert is_done(two, change) or not two.sent["later"]
        two.pass_time(4)
    assert two.take("later") == [DONE]
    assert is_done(two, change)
    assert len(two.hub.orders) == 0


@pytest.mark.parametrize("change", CHANGES)
def test_an_order_reaches_a_session_that_moves_to_a_third_node_before_it_is_carried_out(
    one: World, two: World, change: Call
) -> None:
    one.nodes.remove(one)
    three = World(SHARED, "three", beside=one)
    three.nodes += [two]
    assert two.call_later(change)
    three.resume("back", ALICE)
    assert two.take("later") == [DONE]
    assert is_done(two, change)


# -- sessions that a node was refused to write for, of which nobody knows yet who has them


def loads_fail(world: World) -> Callable[[], None]:
    """Until what is returned is called."""
    driver = world.interpreter._driver
    load = driver.load

    def failing(seat: Seat, effect: Load | LoadAll) -> None:
        world.interpreter.load_failed(seat, effect, AWAY)

    def end() -> None:
        driver.load = load  # type: ignore[method-assign]

    driver.load = failing  # type: ignore[method-assign]
    return end


def is_refused(world: World) -> None:
    """What it writes for alice next, though her row says that it has her."""
    key = session_key(HUB, ALICE)
    state = world.store.state(key)
    assert state is not None
    world.store.commit([Unit((Put(key, state.value),))])
    world.join(ALICE, "refused", 70)


def orders_in(world: World) -> int:
    found = world.store.read(f"hub/{HUB}", None, 1000)
    return [record.kind for record in found.records].count(RecordKind.ORDER)  # type: ignore[union-attr]


def test_a_session_that_nobody_else_has_is_back_at_once(one: World, two: World) -> None:
    is_refused(one)
    assert ALICE in one.hub.roster.sessions
    assert one.hub.elsewhere.get(ALICE) is None


@pytest.mark.parametrize("is_asked_there", [True, False])
@pytest.mark.parametrize("change", CHANGES)
def test_those_who_are_here_are_served_though_one_is_somewhere(
    one: World, two: World, change: Call, is_asked_there: bool
) -> None:
    """And it is, as soon as it is back."""
    one.nodes.append(two)
    for name in ("bob", "carol"):
        one.connect(name, USER)
    works_again = loads_fail(one)
    is_refused(one)
    asked = one if is_asked_there else two
    assert asked.call_later(change)
    here = one.hub.roster.sessions
    if isinstance(change, CloseConnections):
        assert not here
    else:
        assert ["h" in here[name].groups for name in ("bob", "carol")] == [True, True]
    for _ in range(8):
        one.pass_time(0.25)
    assert asked.take("later") == []
    assert orders_in(one) <= (0 if is_asked_there else 10)
    works_again()
    for _ in range(20):
        one.pass_time(0.25)
    assert asked.take("later") == [DONE]
    assert is_done(one, change)
    assert len(asked.hub.orders) == 0


def test_a_session_that_stays_away_is_not_tried_for_for_ever(one: World, two: World) -> None:
    loads_fail(one)
    is_refused(one)
    assert one.call_later(CloseConnections(Everybody()))
    for _ in range(90):
        one.pass_time(0.25)
    assert one.take("later") == [Answer(Outcome.FAILED, "it could not be done in time; ask again")]
    assert len(one.hub.orders) == 0


def test_a_session_that_has_ended_is_not_waited_for(one: World, two: World) -> None:
    one.nodes.append(two)
    one.nodes.remove(one)
    assert two.call_later(JoinMembers(User(USER), ("h",)))
    one.drop(ALICE, CloseCode.NORMAL)
    wakes(two)
    assert two.take("later") == [Answer(Outcome.NOT_FOUND)]


def test_plain_clients_of_a_dead_node_are_not_waited_for_either(one: World, two: World) -> None:
    one.connect("plain", protocol=Subprotocol.JSON)
    one.nodes.append(two)
    one.die()
    assert two.call_later(JoinMembers(Everybody(), ("h",)))
    for _ in range(5):
        two.pass_time(4)
    assert two.take("later") == [DONE]
    assert [member.connection for member in two.call(ListMembers("h")).members] == [ALICE]


def test_an_order_that_is_given_again_names_no_more_sessions_than_fit(
    one: World, two: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("semel.pubsub.hub.orders.ONLY_MAX", 2)
    three = World(SHARED, "three", beside=one)
    names = [f"client-{number}" for number in range(5)]
    for name in names:
        one.connect(name, groups=("five",))
    one.nodes.append(two)
    one.die()
    assert two.call_later(CloseConnections(Group("five")))
    three.nodes.remove(three)  # it does not come to the next orders yet
    for name in names:
        three.resume(f"back {name}", name)
        wakes(two)
    assert len(two.hub.orders._given) == 3
    wakes(three, two)
    assert two.take("later") == [DONE]
    assert three.hub.roster.sessions.keys() == set()


def test_nobody_is_taken_in_who_came_after_the_decision(one: World, two: World) -> None:
    """Also where no other node has to be asked. Bob came before carol, so carol may not be in without him."""
    one.call(CloseConnections(Connection(ALICE)))
    two.held = []
    two.connect("carol")
    [group], two.held = two.held, None
    two.feed("later", JoinMembers(Everybody(), ("h",)))
    one.connect("bob")
    two.interpreter.committed(group, two.store.commit(group.units))
    wakes(two)
    assert [answer.outcome for answer in two.take("later")] == [Outcome.DONE]  # type: ignore[union-attr]
    assert two.call(ListMembers("h")).members == ()


def test_a_node_that_begins_does_not_carry_out_orders_of_before(one: World, two: World) -> None:
    call(two, JoinMembers(Everybody(), ("h",)), one)
    three = World(SHARED, "three", beside=one)
    replies = len(one.store.read(f"hub/{HUB}", None, 1000).records)  # type: ignore[union-attr]
    three.connect("carol")
    assert len(one.store.read(f"hub/{HUB}", None, 1000).records) == replies + 1  # type: ignore[union-attr]


def test_who_asks_a_hub_that_begins_anew_is_told_so(one: World) -> None:
    two = SlowWorld(SHARED, "two", beside=one)
    two.reads = []
    assert two.call_later(Find(Connection(ALICE)))
    two.now += 11
    wakes(two)
    assert two.sent["later"] == [Answer(Outcome.FAILED, "the node was not heard of for too long")]
