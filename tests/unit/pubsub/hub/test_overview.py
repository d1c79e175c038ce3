"""What operators see of a hub."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.pubsub.hub.world import World

from semel.pubsub.hub.calls import (
    Answer,
    Attendance,
    ConnectionInfo,
    Everybody,
    Group,
    GroupInfo,
    HubInfo,
    ListConnections,
    ListGroups,
    Summarize,
    User,
)
from semel.pubsub.hub.roster import Elsewhere
from semel.pubsub.hub.service import _page
from semel.pubsub.protocol.frames import Subprotocol


@pytest.fixture
def world() -> World:
    """Ann is in two groups, Bob has lost his socket and missed a message, and Cat is on another node."""
    world = World()
    world.connect("ann", "Ann", groups=("news", "sport"))
    world.connect("bob", "Bob", groups=("news",))
    world.connect("dan", protocol=Subprotocol.JSON)
    world.drop("bob")
    world.publish("ann", "news", "four")
    world.hub.elsewhere.add(Elsewhere("cat", "Ann", "other", {"news": 1, "music": 1}))
    return world


def ids(answer: Answer) -> list[str]:
    return [row.connection_id for row in answer.rows if isinstance(row, ConnectionInfo)]


def test_a_hub_is_told_in_four_numbers(world: World) -> None:
    assert world.call(Summarize()).rows == (HubInfo(connected=2, waiting=1, elsewhere=1, groups=3),)


def test_connections_are_told_as_far_as_this_node_knows(world: World) -> None:
    answer = world.call(ListConnections())
    assert ids(answer) == ["ann", "bob", "cat", "dan"]
    ann, bob, cat, dan = answer.rows
    assert isinstance(ann, ConnectionInfo)
    assert isinstance(bob, ConnectionInfo)
    assert isinstance(dan, ConnectionInfo)
    assert (ann.state, ann.user_id, ann.groups) == (Attendance.CONNECTED, "Ann", ("news", "sport"))
    assert (ann.protocol, ann.waiting_since) == (Subprotocol.JSON_RELIABLE, None)
    assert (bob.state, bob.waiting_since, bob.backlog, bob.backlog_bytes) == (Attendance.WAITING, world.now, 1, 4)
    assert (dan.user_id, dan.protocol, dan.backlog) == (None, Subprotocol.JSON, 0)
    assert cat == ConnectionInfo("cat", Attendance.ELSEWHERE, "other", ("music", "news"), "Ann")


def test_connections_of_a_group_and_of_a_user(world: World) -> None:
    assert ids(world.call(ListConnections(Group("news")))) == ["ann", "bob", "cat"]
    assert ids(world.call(ListConnections(User("Ann")))) == ["ann", "cat"]
    assert world.call(ListConnections(Group("nobody's"))) == Answer()
    assert world.call(ListConnections(User("nobody"))) == Answer()


def test_lists_come_in_pages(world: World) -> None:
    first = world.call(ListConnections(limit=3))
    assert (ids(first), first.more) == (["ann", "bob", "cat"], True)
    second = world.call(ListConnections(Everybody(), "cat", 3))
    assert (ids(second), second.more) == (["dan"], False)
    groups = world.call(ListGroups(limit=2))
    assert (groups.rows, groups.more) == ((GroupInfo("music", 1), GroupInfo("news", 3)), True)
    assert world.call(ListGroups("news", 2)) == Answer(rows=(GroupInfo("sport", 1),))


@given(st.sets(st.text(min_size=1, max_size=3)), st.integers(1, 5))
def test_pages_one_after_the_other_are_the_whole(names: set[str], limit: int) -> None:
    found: list[str] = []
    more = True
    while more:
        page, more = _page(names, found[-1] if found else "", limit)
        assert len(page) <= limit
        found += page
    assert found == sorted(names)
