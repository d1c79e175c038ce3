"""A node comes to records that are older than what it knows: it has begun from rows that were written after them, or it
has taken a session over before it had read so far."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
from tests.unit.pubsub.hub.world import HUB, SlowWorld, World

from semel.kernel.effects import Read
from semel.kernel.interpreter import Seat
from semel.kernel.ops import Put, Trim, Unit
from semel.pubsub.hub.answers import DONE
from semel.pubsub.hub.calls import Connection, Find, ListMembers
from semel.pubsub.hub.machine import HubOptions
from semel.pubsub.hub.roster import Elsewhere, Roster
from semel.pubsub.hub.session_rows import session_key
from semel.pubsub.protocol.messages import LeaveGroup
from semel.websocket import CloseCode

ALICE = "alice"
STREAM = f"hub/{HUB}"
SHARED = HubOptions(is_shared=True, lease_s=10.0, trim_s=5.0)


@pytest.fixture
def one() -> World:
    return World(SHARED, "one")


# -- a node that begins, and reads again what the rows say already


def joins(one: World) -> set[str]:
    one.join(ALICE, "g")
    return {ALICE}


def leaves(one: World) -> set[str]:
    one.join(ALICE, "g")
    one.send(ALICE, LeaveGroup("g", 2))
    return set()


def ends(one: World) -> set[str]:
    one.join(ALICE, "g")
    one.drop(ALICE, CloseCode.NORMAL)
    return set()


@pytest.mark.parametrize("change", [joins, leaves, ends])
def test_what_is_trimmed_while_a_node_reads_again_does_not_leave_it_with_half_of_it(
    one: World, change: Callable[[World], set[str]]
) -> None:
    """It has gone back to what was true before the record that is gone, and nothing would tell it otherwise."""
    one.connect(ALICE)
    members = change(one)
    head = one.store.head(STREAM).offset
    two = SlowWorld(replace(SHARED, read_rows=head - 1), "two", beside=one)
    two.reads = []
    two.restart()
    two.reads.pop()()
    assert two.hub.tail.offset == head - 1
    one.store.commit([Unit((Trim(STREAM, head + 1),))])
    two.go_on()
    assert {member.connection for member in two.call(ListMembers("g")).members} == members


# -- a node that has taken a session over, and comes to what was before that


class Behind(World):
    """Looks at the store when it reads, and hears of it later."""

    told: list[Callable[[], None]] | None = None

    def read(self, seat: Seat, effect: Read) -> None:
        if self.told is None:
            super().read(seat, effect)
        else:
            found = self.store.read(effect.stream, effect.after, effect.limit)
            self.told.append(partial(self.interpreter.read_done, seat, effect, found))

    def hear(self) -> None:
        """What it has looked at. It looks again where there may be more."""
        told, self.told = self.told, []
        for tell in told or ():
            tell()

    def hear_all(self) -> None:
        while self.told:
            self.hear()


@pytest.fixture
def two(one: World) -> Behind:
    """Has taken alice from `one`. The last it has read stands before that, and before she came to `one`."""
    two = Behind(SHARED, "two", beside=one)
    one.nodes.remove(two)
    two.told = []
    two.interpreter.wake()
    one.connect("bob")
    one.connect(ALICE, groups=("g",))
    two.resume("back", ALICE)
    assert ALICE in two.hub.roster.sessions
    return two


def changes_her_row(world: World) -> None:
    """So that what anybody writes for her next is refused, though nobody else has her."""
    key = session_key(HUB, ALICE)
    state = world.store.state(key)
    assert state is not None
    world.store.commit([Unit((Put(key, state.value),))])


def test_a_session_that_was_taken_from_here_is_not_gone_because_we_come_to_where_we_took_it(
    one: World, two: Behind
) -> None:
    assert two.call_later(Find(Connection(ALICE)))
    two.hear()  # it had looked before the question came; now it looks again
    one.resume("again", ALICE)
    two.join("back", "h")
    assert ALICE not in two.hub.roster.sessions
    two.hear()
    assert two.take("later") == [DONE]
    two.hear_all()
    assert two.hub.elsewhere.sessions[ALICE].node == one.hub.node


def test_a_session_that_was_refused_to_us_though_nobody_has_it_comes_back(one: World, two: Behind) -> None:
    changes_her_row(one)
    two.join("back", "h")
    assert ALICE not in two.hub.roster.sessions
    two.hear_all()
    assert ALICE in two.hub.roster.sessions


def test_so_does_one_whose_end_was_refused(one: World, two: Behind) -> None:
    two.held = []
    two.drop("back", CloseCode.NORMAL)
    changes_her_row(one)
    two.hear_all()
    two.let_go()
    two.hear_all()
    assert ALICE in two.hub.roster.sessions


def test_what_was_known_of_a_session_before_goes_with_it() -> None:
    """Also the groups that it is said to be in no more."""
    roster = Roster[Elsewhere]()
    roster.add(Elsewhere(ALICE, "user", "one", {"g": 1, "h": 1}))
    roster.add(Elsewhere(ALICE, "user", "two", {"g": 2}))
    assert roster.groups.keys() == {"g"}
