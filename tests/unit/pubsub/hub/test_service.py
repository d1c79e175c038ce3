"""What a service hears holds: also while the store has trouble, and for whoever asks in the meantime."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.pubsub.hub.world import HUB, World, text

from semel.errors import StoreUnavailable
from semel.kernel.ops import Put, Unit
from semel.pubsub.hub.calls import (
    Answer,
    Attendance,
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
    Outcome,
    Publish,
    RemoveMembers,
    Summarize,
    User,
)
from semel.pubsub.hub.roster import Elsewhere
from semel.pubsub.hub.service import _page
from semel.pubsub.hub.session_rows import SessionRow, read_session, session_key
from semel.pubsub.hub.sockets import ClosePeer
from semel.pubsub.protocol.frames import Subprotocol
from semel.pubsub.protocol.messages import Disconnected
from semel.pubsub.protocol.permissions import GROUPS_MAX, Permission
from semel.websocket import CloseCode

ALICE, BOB = "alice", "bob"
AWAY = StoreUnavailable("away")


@pytest.fixture
def world() -> World:
    made = World()
    made.connect(ALICE, "ann", groups=("g",))
    made.connect(BOB, "ben", groups=("g",))
    made.take(ALICE)
    made.take(BOB)
    return made


def row_of(world: World, connection: str) -> SessionRow | None:
    state = world.store.state(session_key(HUB, connection))
    return read_session(state.value) if state is not None else None


def groups_of(world: World, connection: str) -> set[str]:
    row = row_of(world, connection)
    assert row is not None
    return set(row.groups)


def outcomes(world: World, peer: str) -> list[Outcome]:
    return [said.outcome for said in world.take(peer)]  # type: ignore[union-attr]


def outcome(world: World, call: Call) -> Outcome:
    return world.call(call).outcome


# -- closing


@pytest.mark.parametrize(
    ("reason", "told"),
    [("", "Application server closed the connection."), ("enough", "enough"), ("x" * 300, "x" * 300)],
)
def test_a_client_that_is_closed_hears_why(world: World, reason: str, told: str) -> None:
    world.call(CloseConnections(Connection(ALICE), (), reason))
    assert world.take(ALICE) == [Disconnected(told), ClosePeer(CloseCode.POLICY, told)]


@pytest.mark.parametrize("to", [Connection(ALICE), User("ann"), Group("g"), Everybody()])
def test_who_asks_again_for_a_close_that_failed_hears_when_it_is_durable(
    world: World, to: Connection | User | Group | Everybody
) -> None:
    close = CloseConnections(to, excluded=(BOB,))
    world.failing = [AWAY, AWAY]
    assert outcome(world, close) is Outcome.FAILED
    assert outcome(world, close) is Outcome.FAILED
    assert row_of(world, ALICE) is not None
    assert outcome(world, close) is Outcome.DONE
    assert row_of(world, ALICE) is None
    assert row_of(world, BOB) is not None


def test_who_asks_for_a_close_that_is_under_way_hears_what_becomes_of_it(world: World) -> None:
    world.held = []
    world.feed("first", CloseConnections(Connection(ALICE)))
    world.feed("second", CloseConnections(Connection(ALICE)))
    assert (outcomes(world, "first"), outcomes(world, "second")) == ([], [])
    world.let_go()
    assert (outcomes(world, "first"), outcomes(world, "second")) == ([Outcome.DONE], [Outcome.DONE])


def test_who_asks_for_a_close_that_is_under_way_hears_that_it_failed(world: World) -> None:
    world.held = []
    world.drop(ALICE, CloseCode.NORMAL)
    world.feed("rest", CloseConnections(Connection(ALICE)))
    world.failing = [AWAY]
    world.let_go()
    assert outcomes(world, "rest") == [Outcome.FAILED]


def test_what_was_not_closed_is_closed_later_and_nothing_is_left_of_it(world: World) -> None:
    world.failing = [AWAY]
    assert outcome(world, CloseConnections(Connection(ALICE))) is Outcome.FAILED
    assert outcome(world, Find(Connection(ALICE))) is Outcome.NOT_FOUND
    world.pass_time(5)
    assert row_of(world, ALICE) is None
    assert len(world.hub.endings) == 0
    assert outcome(world, CloseConnections(Connection(ALICE))) is Outcome.DONE


def test_a_close_of_which_nobody_knew_whether_it_happened_is_done_if_the_session_is_gone(world: World) -> None:
    world.held = []
    world.feed("first", CloseConnections(Connection(ALICE)))
    [group], world.held = world.held, None
    world.store.commit(group.units)
    world.interpreter.unknown(group)
    assert outcomes(world, "first") == [Outcome.FAILED]
    assert outcome(world, CloseConnections(Connection(ALICE))) is Outcome.DONE
    assert len(world.hub.endings) == 0


def test_a_session_that_cannot_be_ended_because_its_rows_have_changed_is_not_forgotten(world: World) -> None:
    """Here by a commit of a hub before, which came late."""
    state = world.store.state(session_key(HUB, ALICE))
    assert state is not None
    world.store.commit([Unit((Put(session_key(HUB, ALICE), state.value),))])
    hub = world.hub
    assert outcome(world, CloseConnections(Connection(ALICE))) is Outcome.FAILED
    assert world.hub is not hub
    assert outcome(world, CloseConnections(Connection(ALICE))) is Outcome.DONE
    assert row_of(world, ALICE) is None


# -- groups


def fail_all_but_the_first(world: World) -> None:
    """The record of a change is taken, the row that says so is not."""
    commit, commits = world.commit, []

    def first_only(group):  # type: ignore[no-untyped-def]
        commits.append(group)
        if len(commits) == 1:
            commit(group)
        else:
            world.interpreter.failed(group, AWAY)

    world.interpreter._driver.commit = first_only  # type: ignore[attr-defined]


def heal(world: World) -> None:
    world.interpreter._driver.commit = world.commit  # type: ignore[attr-defined]


@pytest.mark.parametrize("groups", [None, ("g",)])
def test_a_leave_whose_row_failed_is_written_when_it_is_asked_for_again(
    world: World, groups: tuple[str, ...] | None
) -> None:
    leave = RemoveMembers(Connection(ALICE), groups)
    fail_all_but_the_first(world)
    assert outcome(world, leave) is Outcome.FAILED
    heal(world)
    assert groups_of(world, ALICE) == {"g"}
    assert outcome(world, leave) is Outcome.DONE
    assert groups_of(world, ALICE) == set()


@pytest.mark.parametrize(
    ("change", "begin"),
    [
        (RemoveMembers(Connection(ALICE), None), {"g"}),
        (RemoveMembers(Connection(ALICE), ("g",)), {"g"}),
        (JoinMembers(Connection(ALICE), ("h",)), {"g"}),
    ],
)
@pytest.mark.parametrize("is_row_under_way", [False, True])
def test_who_asks_for_a_change_of_groups_that_is_under_way_hears_what_becomes_of_it(
    world: World, change: Call, begin: set[str], is_row_under_way: bool
) -> None:
    world.held = []
    world.feed("first", change)
    if is_row_under_way:
        [record], world.held = world.held, None
        world.interpreter._driver.commit = lambda group: held.append(group)  # type: ignore[attr-defined]
        held = world.held = []
        world.interpreter.committed(record, world.store.commit(record.units))
        heal(world)
    world.feed("second", change)
    assert (outcomes(world, "first"), outcomes(world, "second")) == ([], [])
    world.failing = [AWAY] * 4
    world.let_go()
    assert (outcomes(world, "first"), outcomes(world, "second")) == ([Outcome.FAILED], [Outcome.FAILED])
    assert groups_of(world, ALICE) == begin
    world.failing.clear()
    assert outcome(world, change) is Outcome.DONE
    assert groups_of(world, ALICE) != begin


# -- permissions


@pytest.mark.parametrize("is_first_done", [False, True])
def test_of_several_grants_at_once_those_count_that_are_durable(world: World, is_first_done: bool) -> None:
    world.connect("carol", roles=())
    world.held = []
    for group in ("a", "b", "c"):
        world.feed(group, Grant("carol", Permission.SEND_TO_GROUP, group))
    if is_first_done:
        [first], world.held = world.held, []
        world.interpreter.committed(first, world.store.commit(first.units))
    world.failing = [AWAY] * 2
    world.let_go()
    world.failing.clear()
    told = [outcomes(world, group) for group in ("a", "b", "c")]
    assert told == [[Outcome.DONE if is_first_done else Outcome.FAILED], [Outcome.FAILED], [Outcome.FAILED]]
    has = [outcome(world, Check("carol", Permission.SEND_TO_GROUP, group)) for group in ("a", "b", "c")]
    assert has == [Outcome.DONE if is_first_done else Outcome.NOT_FOUND, Outcome.NOT_FOUND, Outcome.NOT_FOUND]


def test_more_permissions_than_a_connection_can_have_are_a_conflict_and_change_nothing(world: World) -> None:
    world.connect("carol", roles=[f"webpubsub.sendToGroup.g{number}" for number in range(GROUPS_MAX)])
    assert outcome(world, Grant("carol", Permission.SEND_TO_GROUP, "more")) is Outcome.CONFLICT
    assert outcome(world, Check("carol", Permission.SEND_TO_GROUP, "more")) is Outcome.NOT_FOUND
    assert outcome(world, Check("carol", Permission.SEND_TO_GROUP, "g0")) is Outcome.DONE


# -- filters


@pytest.mark.parametrize(("filter", "is_due"), [("'vip' in groups", True), ("not ('vip' in groups)", False)])
def test_a_filter_asks_who_was_in_a_group_when_the_message_was_sent(world: World, filter: str, is_due: bool) -> None:
    """Also when the message is read again after a restart, and the session has left the group since."""
    world.join(BOB, "vip", 5)
    world.drop(BOB)
    world.publish(ALICE, "g", "first")
    world.call(Publish(Everybody(), text("hello"), filter=filter))
    world.call(RemoveMembers(Connection(BOB), ("vip",)))
    world.restart()
    world.resume("again", BOB)
    assert world.bodies("again") == ["first", *(["hello"] if is_due else [])]


# -- sessions that are not durable yet


@pytest.mark.parametrize("is_restored", [False, True])
@pytest.mark.parametrize(
    "call",
    [
        JoinMembers(User("carl"), ("h",)),
        RemoveMembers(Connection("carol"), None),
        Grant("carol", Permission.SEND_TO_GROUP, "h"),
        CloseConnections(Connection("carol")),
    ],
)
def test_what_is_asked_of_a_session_that_is_not_durable_yet_is_done_when_it_is(call: Call, is_restored: bool) -> None:
    """What version its row has is known only then: it may not be the first."""
    world = World()
    if is_restored:
        world.store.raise_epoch("restored")
        world.restart()
    hub = world.hub
    world.held = []
    world.connect("carol", "carl", roles=(), groups=("g",))
    world.feed("later", call)
    assert outcome(world, Find(Connection("carol"))) is Outcome.DONE
    assert outcomes(world, "later") == []
    world.let_go()
    assert outcomes(world, "later") == [Outcome.DONE]
    assert world.hub is hub
    row = row_of(world, "carol")
    if isinstance(call, CloseConnections):
        assert row is None
    else:
        assert row is not None
        has = set(row.groups), row.permissions.has(Permission.SEND_TO_GROUP, "h")
        assert has in [({"g", "h"}, False), (set(), False), ({"g"}, True)]


@pytest.mark.parametrize("call", [JoinMembers(User("carl"), ("h",)), CloseConnections(Connection("carol"))])
def test_what_is_asked_of_a_session_that_never_becomes_durable_is_answered(world: World, call: Call) -> None:
    world.held = []
    world.connect("carol", "carl")
    world.feed("later", call)
    world.failing = [AWAY]
    world.let_go()
    expected = Outcome.DONE if isinstance(call, CloseConnections) else Outcome.NOT_FOUND
    assert outcomes(world, "later") == [expected]
    assert len(world.hub.endings) == 0


@pytest.mark.parametrize("is_failing", [False, True])
def test_a_client_that_goes_before_its_session_is_durable_leaves_nothing_behind(is_failing: bool) -> None:
    world = World()
    world.store.raise_epoch("restored")
    world.restart()
    hub, head = world.hub, world.store.head(f"hub/{HUB}").offset
    world.held = []
    world.connect("carol")
    world.drop("carol", CloseCode.NORMAL)
    world.failing = [AWAY] if is_failing else []
    world.let_go()
    assert row_of(world, "carol") is None
    assert world.hub is hub
    assert (len(hub.endings), len(hub.roster)) == (0, 0)
    assert (world.store.head(f"hub/{HUB}").offset > head) is not is_failing


# -- what operators see of a hub


@pytest.fixture
def seen() -> World:
    """Ann is in two groups, Bob has lost his socket and missed a message, and Cat is on another node."""
    seen = World()
    seen.connect("ann", "Ann", groups=("news", "sport"))
    seen.connect("bob", "Bob", groups=("news",))
    seen.connect("dan", protocol=Subprotocol.JSON)
    seen.drop("bob")
    seen.publish("ann", "news", "four")
    seen.hub.elsewhere.add(Elsewhere("cat", "Ann", "other", {"news": 1, "music": 1}))
    return seen


def ids(answer: Answer) -> list[str]:
    return [row.connection_id for row in answer.rows if isinstance(row, ConnectionInfo)]


def test_a_hub_is_told_in_four_numbers(seen: World) -> None:
    assert seen.call(Summarize()).rows == (HubInfo(connected=2, waiting=1, elsewhere=1, groups=3),)


def test_connections_are_told_as_far_as_this_node_knows(seen: World) -> None:
    answer = seen.call(ListConnections())
    assert ids(answer) == ["ann", "bob", "cat", "dan"]
    ann, bob, cat, dan = answer.rows
    assert isinstance(ann, ConnectionInfo)
    assert isinstance(bob, ConnectionInfo)
    assert isinstance(dan, ConnectionInfo)
    assert (ann.state, ann.user_id, ann.groups) == (Attendance.CONNECTED, "Ann", ("news", "sport"))
    assert (ann.protocol, ann.waiting_since) == (Subprotocol.JSON_RELIABLE, None)
    assert (bob.state, bob.waiting_since, bob.backlog, bob.backlog_bytes) == (Attendance.WAITING, seen.now, 1, 4)
    assert (dan.user_id, dan.protocol, dan.backlog) == (None, Subprotocol.JSON, 0)
    assert cat == ConnectionInfo("cat", Attendance.ELSEWHERE, "other", ("music", "news"), "Ann")


def test_connections_of_a_group_and_of_a_user(seen: World) -> None:
    assert ids(seen.call(ListConnections(Group("news")))) == ["ann", "bob", "cat"]
    assert ids(seen.call(ListConnections(User("Ann")))) == ["ann", "cat"]
    assert seen.call(ListConnections(Group("nobody's"))) == Answer()
    assert seen.call(ListConnections(User("nobody"))) == Answer()


def test_lists_come_in_pages(seen: World) -> None:
    first = seen.call(ListConnections(limit=3))
    assert (ids(first), first.more) == (["ann", "bob", "cat"], True)
    second = seen.call(ListConnections(Everybody(), "cat", 3))
    assert (ids(second), second.more) == (["dan"], False)
    groups = seen.call(ListGroups(limit=2))
    assert (groups.rows, groups.more) == ((GroupInfo("music", 1), GroupInfo("news", 3)), True)
    assert seen.call(ListGroups("news", 2)) == Answer(rows=(GroupInfo("sport", 1),))


@given(st.sets(st.text(min_size=1, max_size=3)), st.integers(1, 5))
def test_pages_one_after_the_other_are_the_whole(names: set[str], limit: int) -> None:
    found: list[str] = []
    more = True
    while more:
        page, more = _page(names, found[-1] if found else "", limit)
        assert len(page) <= limit
        found += page
    assert found == sorted(names)
