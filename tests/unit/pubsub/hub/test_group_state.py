"""Group state: what a connection says of itself reaches all who watch, and survives what its session survives."""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.pubsub.hub.world import HUB, World

from semel.errors import StoreBusy
from semel.pubsub.hub.calls import CloseConnections, Connection, RemoveMembers
from semel.pubsub.hub.group_state import KEYS_MAX, STATE_CHARS_MAX, STATES_CHARS_MAX, WATCHES_MAX
from semel.pubsub.hub.machine import HubOptions
from semel.pubsub.hub.session_rows import OwnState, SessionRow, read_session, session_key
from semel.pubsub.hub.sockets import SocketDrained, SocketStalled
from semel.pubsub.protocol.frames import Subprotocol
from semel.pubsub.protocol.messages import (
    Ack,
    ErrorName,
    GroupStateItem,
    GroupStateSnapshot,
    GroupStateUpdate,
    LeaveGroup,
    SetGroupState,
    SubscribeGroupState,
    UnsubscribeGroupState,
)

ALICE, BOB = "alice", "bob"
SHARED = HubOptions(is_shared=True)
TYPING = {"status": "typing"}
AWAY = {"status": "away"}


@pytest.fixture
def world() -> World:
    """Alice is in the group, and Bob watches it."""
    world = World()
    world.connect(ALICE, user="user of alice")
    world.join(ALICE, "g")
    world.connect(BOB)
    world.send(BOB, SubscribeGroupState("g", 1))
    for peer in (ALICE, BOB):
        world.take(peer)
    return world


def put(world: World, state: dict[str, str] | None, ack_id: int | None = None, peer: str = ALICE) -> None:
    world.send(peer, SetGroupState("g", ack_id, state))


def updates(world: World, peer: str = BOB) -> list[GroupStateItem]:
    return [item for said in world.take(peer) if isinstance(said, GroupStateUpdate) for item in said.items]


def states(world: World, peer: str = BOB) -> list[dict[str, str] | None]:
    return [item.state for item in updates(world, peer)]


def snapshot(world: World, peer: str) -> list[dict[str, str] | None]:
    """What is there, as a new watcher sees it."""
    world.connect(peer)
    world.take(peer)
    world.send(peer, SubscribeGroupState("g"))
    [said] = [said for said in world.take(peer) if isinstance(said, GroupStateSnapshot)]
    return [item.state for item in said.items]


def refusal(world: World, peer: str = ALICE) -> str | None:
    [ack] = [said for said in world.take(peer) if isinstance(said, Ack)]
    return ack.error.name if ack.error is not None else None


# -- saying and hearing


def test_who_watches_hears_of_what_is_said(world: World) -> None:
    put(world, TYPING, 7)
    assert world.take(ALICE) == [Ack(7)]
    [item] = updates(world)
    assert item == GroupStateItem(ALICE, round(world.now * 1000), "user of alice", TYPING)


def test_who_begins_to_watch_gets_an_ack_and_then_all_there_is(world: World) -> None:
    put(world, TYPING)
    world.connect("carol")
    world.take("carol")
    world.send("carol", SubscribeGroupState("g", 1))
    [ack, said] = world.take("carol")
    assert ack == Ack(1)
    assert isinstance(said, GroupStateSnapshot)
    assert [(item.connection_id, item.state) for item in said.items] == [(ALICE, TYPING)]


def test_nobody_says_anything_yet(world: World) -> None:
    assert snapshot(world, "carol") == []


def test_who_watches_its_own_group_hears_itself(world: World) -> None:
    world.send(ALICE, SubscribeGroupState("g"))
    put(world, TYPING)
    assert states(world, ALICE) == [TYPING]


def test_what_is_taken_back_is_an_item_without_state(world: World) -> None:
    put(world, TYPING)
    put(world, None)
    [said, cleared] = updates(world)
    assert (said.state, cleared.state) == (TYPING, None)
    assert cleared.updated_at > said.updated_at
    assert snapshot(world, "carol") == []


def test_what_is_not_there_can_be_taken_back_without_a_word(world: World) -> None:
    put(world, None, 5)
    put(world, None)
    assert world.take(ALICE) == [Ack(5)]
    assert updates(world) == []


def test_a_state_may_be_empty(world: World) -> None:
    put(world, {})
    assert states(world) == [{}]
    assert snapshot(world, "carol") == [{}]


def test_times_grow_also_when_the_clock_stands_or_goes_back(world: World) -> None:
    put(world, TYPING)
    put(world, AWAY)
    world.pass_time(-60)
    put(world, TYPING)
    put(world, None)
    times = [item.updated_at for item in updates(world)]
    assert len(times) == 4
    assert times == sorted(set(times))


def test_groups_have_nothing_to_do_with_each_other(world: World) -> None:
    world.send(ALICE, SetGroupState("other", None, TYPING))
    assert updates(world) == []
    assert snapshot(world, "carol") == []


def test_a_group_is_not_watched_any_more(world: World) -> None:
    world.send(BOB, UnsubscribeGroupState("g", 2))
    assert world.take(BOB) == [Ack(2)]
    put(world, TYPING)
    assert world.take(BOB) == []


def test_whoever_watches_already_gets_another_snapshot(world: World) -> None:
    put(world, TYPING)
    world.take(BOB)
    world.send(BOB, SubscribeGroupState("g"))
    [said] = world.take(BOB)
    assert isinstance(said, GroupStateSnapshot)
    put(world, AWAY)
    assert states(world) == [AWAY]


def test_plain_clients_say_and_hear_as_well(world: World) -> None:
    world.connect("carol", protocol=Subprotocol.JSON)
    world.send("carol", SubscribeGroupState("g"), SetGroupState("g", None, AWAY))
    assert states(world, "carol") == [AWAY]
    world.drop("carol")
    assert states(world) == [AWAY, None]


# -- leaving and ending


def test_who_leaves_the_group_says_nothing_there_any_more(world: World) -> None:
    put(world, TYPING)
    world.send(ALICE, LeaveGroup("g", 8))
    assert states(world) == [TYPING, None]
    row = world.store.state(session_key(HUB, ALICE))
    assert row is not None
    assert read_session(row.value).states == {}
    world.restart()
    assert snapshot(world, "carol") == []


def test_what_is_said_after_leaving_stays(world: World) -> None:
    put(world, TYPING)
    world.held = []
    world.send(ALICE, LeaveGroup("g", 8), SetGroupState("g", 9, AWAY))
    world.let_go()
    found = updates(world)
    assert [item.state for item in found] == [TYPING, None, AWAY]
    times = [item.updated_at for item in found]
    assert times == sorted(set(times))
    world.restart()
    assert snapshot(world, "carol") == [AWAY]


def test_what_was_on_its_way_when_it_left_does_not_stay(world: World) -> None:
    world.held = []
    world.send(ALICE, SetGroupState("g", 7, TYPING), LeaveGroup("g", 8))
    world.let_go()
    assert states(world) == [TYPING, None]
    world.restart()
    assert snapshot(world, "carol") == []


def test_nor_who_is_taken_out_of_it(world: World) -> None:
    put(world, TYPING)
    world.call(RemoveMembers(Connection(ALICE), ("g",)))
    assert states(world) == [TYPING, None]


@pytest.mark.parametrize("how", ["closes", "is closed", "does not come back"])
def test_nor_who_is_gone(world: World, how: str) -> None:
    put(world, TYPING)
    if how == "closes":
        world.drop(ALICE, 1000)
    elif how == "is closed":
        world.call(CloseConnections(Connection(ALICE)))
    else:
        world.drop(ALICE)
        assert states(world) == [TYPING]
        world.pass_time(91)
    assert states(world)[-1:] == [None]
    assert snapshot(world, "carol") == []


def test_a_watcher_that_is_gone_is_forgotten(world: World) -> None:
    world.drop(BOB, 1000)
    assert world.hub.group_states.watched == 0


# -- coming back


def test_who_comes_back_gets_a_snapshot_and_goes_on_watching(world: World) -> None:
    world.drop(BOB)
    put(world, TYPING)
    world.resume("bob 2", BOB)
    [said] = world.take("bob 2")
    assert isinstance(said, GroupStateSnapshot)
    assert [item.state for item in said.items] == [TYPING]
    put(world, AWAY)
    assert states(world, "bob 2") == [AWAY]


def test_who_comes_back_hears_what_was_taken_back_meanwhile(world: World) -> None:
    """Microsoft's clients keep what they have heard in an update when a snapshot leaves it out."""
    put(world, TYPING)
    world.take(BOB)
    world.drop(BOB)
    put(world, None)
    world.resume("bob 2", BOB)
    [said, cleared] = world.take("bob 2")
    assert isinstance(said, GroupStateSnapshot)
    assert said.items == ()
    assert isinstance(cleared, GroupStateUpdate)
    assert [(item.connection_id, item.state) for item in cleared.items] == [(ALICE, None)]


def test_what_was_taken_back_is_not_said_again_for_ever(world: World) -> None:
    put(world, TYPING)
    put(world, None)
    world.pass_time(100)
    world.connect("dave")
    world.send("dave", SetGroupState("other", None, TYPING), SetGroupState("other", None, None))
    world.take(BOB)
    world.drop(BOB)
    world.resume("bob 2", BOB)
    assert updates(world, "bob 2") == []


def test_states_and_watches_survive_a_restart(world: World) -> None:
    put(world, TYPING)
    world.take(BOB)
    world.restart()
    assert snapshot(world, "carol") == [TYPING]
    world.resume("bob 2", BOB)
    [said] = world.take("bob 2")
    assert isinstance(said, GroupStateSnapshot)
    assert [item.state for item in said.items] == [TYPING]
    world.resume("alice 2", ALICE)
    world.pass_time(-60)
    put(world, AWAY, peer="alice 2")
    [item] = updates(world, "bob 2")
    assert item.state == AWAY
    assert item.updated_at > said.items[0].updated_at


def test_who_had_no_room_for_updates_gets_a_snapshot_instead(world: World) -> None:
    world.feed(BOB, SocketStalled())
    put(world, TYPING)
    put(world, AWAY)
    assert world.take(BOB) == []
    world.feed(BOB, SocketDrained())
    [said] = world.take(BOB)
    assert isinstance(said, GroupStateSnapshot)
    assert [item.state for item in said.items] == [AWAY]
    world.feed(BOB, SocketStalled())
    world.feed(BOB, SocketDrained())
    assert world.take(BOB) == []


# -- several nodes


def test_what_is_said_on_one_node_is_heard_on_another() -> None:
    one = World(SHARED, "one")
    two = World(SHARED, "two", beside=one)
    one.connect(ALICE, user="u")
    two.connect(BOB)
    two.send(BOB, SubscribeGroupState("g"))
    two.take(BOB)
    put(one, TYPING)
    [item] = updates(two)
    assert (item.connection_id, item.user_id, item.state) == (ALICE, "u", TYPING)
    one.drop(ALICE)
    two.resume("alice 2", ALICE)
    assert states(two) == []
    put(two, AWAY, peer="alice 2")
    two.drop("alice 2", 1000)
    assert states(two) == [AWAY, None]
    assert snapshot(one, "carol") == []


def test_a_watcher_goes_on_watching_on_another_node() -> None:
    one = World(SHARED, "one")
    two = World(SHARED, "two", beside=one)
    one.connect(ALICE)
    one.connect(BOB)
    one.send(BOB, SubscribeGroupState("g"))
    put(one, TYPING)
    one.drop(BOB)
    two.resume("bob 2", BOB)
    [said] = [said for said in two.take("bob 2") if isinstance(said, GroupStateSnapshot)]
    assert [item.state for item in said.items] == [TYPING]
    put(one, AWAY)
    assert states(two, "bob 2") == [AWAY]
    two.drop("bob 2", 1000)
    assert (one.hub.group_states.watched, two.hub.group_states.watched) == (0, 0)


def test_a_node_that_comes_later_knows_what_was_said() -> None:
    one = World(SHARED, "one")
    one.connect(ALICE)
    put(one, TYPING)
    two = World(SHARED, "two", beside=one)
    assert snapshot(two, "carol") == [TYPING]


# -- acks and failures


def test_an_ack_id_is_taken_once(world: World) -> None:
    put(world, TYPING, 5)
    put(world, AWAY, 5)
    [first, second] = [said for said in world.take(ALICE) if isinstance(said, Ack)]
    assert first == Ack(5)
    assert second.error is not None
    assert second.error.name == ErrorName.DUPLICATE
    assert states(world) == [TYPING]


def test_what_the_store_does_not_take_was_not_said(world: World) -> None:
    put(world, TYPING, 5)
    world.take(ALICE)
    world.failing.append(StoreBusy("busy"))
    put(world, AWAY, 6)
    assert refusal(world) == ErrorName.INTERNAL
    assert states(world) == [TYPING]
    world.restart()
    assert snapshot(world, "carol") == [TYPING]
    world.resume("alice 2", ALICE)
    put(world, AWAY, 6, "alice 2")
    assert refusal(world, "alice 2") is None


def test_who_could_not_stop_watching_goes_on_watching(world: World) -> None:
    world.failing.append(StoreBusy("busy"))
    world.send(BOB, UnsubscribeGroupState("g", 2))
    assert refusal(world, BOB) == ErrorName.INTERNAL
    put(world, TYPING)
    assert states(world) == [TYPING]


def test_who_could_not_begin_to_watch_does_not_watch(world: World) -> None:
    world.failing.append(StoreBusy("busy"))
    world.send(ALICE, SubscribeGroupState("g", 2))
    assert refusal(world) == ErrorName.INTERNAL
    put(world, TYPING)
    assert world.take(ALICE) == []


def test_watching_and_not_watching_in_one_breath(world: World) -> None:
    world.held = []
    world.send(ALICE, SubscribeGroupState("g", 2), UnsubscribeGroupState("g", 3))
    world.let_go()
    assert world.take(ALICE) == [Ack(2), Ack(3)]
    put(world, TYPING)
    assert world.take(ALICE) == []


def test_several_changes_on_their_way_all_happen(world: World) -> None:
    world.held = []
    put(world, TYPING, 5)
    put(world, None, 6)
    put(world, AWAY, 7)
    world.let_go()
    assert world.take(ALICE) == [Ack(5), Ack(6), Ack(7)]
    assert states(world) == [TYPING, None, AWAY]
    world.restart()
    assert snapshot(world, "carol") == [AWAY]


# -- what is refused


def test_who_may_not_join_may_neither_say_nor_watch(world: World) -> None:
    world.connect("carol", roles=("webpubsub.sendToGroup",))
    world.take("carol")
    put(world, TYPING, 5, "carol")
    assert refusal(world, "carol") == ErrorName.FORBIDDEN
    world.send("carol", SubscribeGroupState("g", 6))
    assert refusal(world, "carol") == ErrorName.FORBIDDEN
    assert updates(world) == []


@pytest.mark.parametrize(
    "state",
    [
        {f"k{n}": "" for n in range(KEYS_MAX + 1)},
        {"k" * 257: ""},
        {"k": "v" * STATE_CHARS_MAX},
    ],
    ids=["keys", "key", "size"],
)
def test_a_state_has_limits(world: World, state: dict[str, str]) -> None:
    put(world, state, 5)
    assert refusal(world) == ErrorName.BAD_REQUEST
    assert updates(world) == []


def test_all_states_of_a_connection_have_a_limit_together(world: World) -> None:
    large = {"k": "v" * (STATE_CHARS_MAX - 1)}
    count = STATES_CHARS_MAX // STATE_CHARS_MAX
    for number in range(count):
        world.send(ALICE, SetGroupState(f"g{number}", number + 100, large))
    world.take(ALICE)
    put(world, large, 5)
    assert refusal(world) == ErrorName.BAD_REQUEST
    world.send(ALICE, SetGroupState("g0", 6, large))
    assert refusal(world) is None


def test_states_that_say_nothing_have_a_limit_too(world: World) -> None:
    """Their groups have names, which are in the row."""
    for number in range(STATES_CHARS_MAX // 1024):
        world.send(ALICE, SetGroupState(f"{number:01024}", number + 100, {}))
    world.take(ALICE)
    put(world, {}, 5)
    assert refusal(world) == ErrorName.BAD_REQUEST


def test_there_is_a_limit_to_what_a_connection_watches(world: World) -> None:
    for number in range(WATCHES_MAX):
        world.send(ALICE, SubscribeGroupState(f"g{number}"))
    world.take(ALICE)
    world.send(ALICE, SubscribeGroupState("one more", 5))
    assert refusal(world) == ErrorName.BAD_REQUEST
    world.send(ALICE, SubscribeGroupState("g0", 6))
    assert refusal(world) is None


# -- the row


def test_a_row_that_was_written_before_there_were_states_can_be_read(world: World) -> None:
    session = world.hub.roster.get(ALICE)
    assert session is not None
    row = session.row()
    old = msgspec.msgpack.decode(msgspec.msgpack.encode(row))[:9]
    assert read_session(msgspec.msgpack.encode(old)) == msgspec.structs.replace(row, epoch=0)
    new = msgspec.structs.replace(row, states={"g": OwnState(TYPING, 5)}, watches=("g",))
    assert read_session(msgspec.msgpack.encode(new)) == new
    assert isinstance(new, SessionRow)
