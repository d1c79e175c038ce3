from __future__ import annotations

import pytest
from tests.unit.pubsub.hub.parts import EVERYTHING, HUB, live, run, session

from semel.kernel.ops import Advanced
from semel.kernel.store import State
from semel.pubsub.hub.session import AckMemory, Memberships, Session
from semel.pubsub.hub.session_phase import SessionChange, SessionPhase
from semel.pubsub.hub.session_rows import AcksRow, OwnState, SessionRow, SpilledAcks, SpillRow, read_acks, read_session
from semel.pubsub.protocol.permissions import Permission, Permissions


def test_messages_go_to_the_socket_of_a_live_session_with_room() -> None:
    alice = live()
    assert alice.backlog.is_open
    alice.stall(True)
    assert not alice.backlog.is_open
    alice.stall(False)
    assert alice.backlog.is_open
    alice.detach()
    assert not alice.backlog.is_open


def test_messages_wait_while_a_session_opens_or_catches_up() -> None:
    opening, behind = session(), session()
    opening.change(SessionChange.OPEN)
    behind.change(SessionChange.FALL_BEHIND)
    for each, change in ((opening, SessionChange.OPENED), (behind, SessionChange.CAUGHT_UP)):
        each.attach("socket", in_order=False)
        assert not each.backlog.is_open
        each.change(change)
        assert each.backlog.is_open


def test_a_change_that_makes_no_sense_stops_the_hub() -> None:
    alice = live()
    with pytest.raises(AssertionError, match="a session that is live cannot caught up"):
        alice.change(SessionChange.CAUGHT_UP)
    assert alice.phase is SessionPhase.LIVE


def test_several_writes_of_a_row_may_be_on_their_way() -> None:
    alice = session()
    first, second = alice.put_acks(HUB), alice.put_acks(HUB)
    assert (first.expected, second.expected) == (1, 2)
    alice.stored(first, Advanced(version=2))
    assert (alice.versions.acks, alice.versions.acks_stored, alice.versions.row_stored) == (3, 2, 1)


def test_after_a_failure_it_continues_from_what_is_stored() -> None:
    alice = live(groups=["g"])
    alice.put_row(HUB, alice.row())
    alice.put_acks(HUB)
    alice.memberships.wanted.add("h")
    alice.acks.claimed.add(1)
    alice.states["g"] = OwnState({"a": "b"}, 1)
    alice.watches["g"] = None
    alice.fall_back()
    assert (alice.versions.row, alice.versions.acks, alice.versions.generation) == (1, 1, 1)
    assert alice.versions.owes_row
    assert alice.memberships.wanted == {"g"}
    assert not alice.acks.is_known(1)
    assert (dict(alice.states), dict(alice.watches)) == ({}, {})


def test_its_rows_bring_it_back() -> None:
    alice = live(user="ann", groups=["g"], since=4)
    alice.backlog.push(run(5, 2))
    alice.backlog.acknowledge(5)
    alice.backlog.take_confirmed()
    alice.acks.claimed.add_all([1, 2])
    row, acks = alice.put_row(HUB, alice.row()), alice.put_acks(HUB)
    assert row.value is not None
    assert acks.value is not None
    again = Session.of_rows("alice", State(row.value, 2), State(acks.value, 2))
    assert (again.user, again.start, dict(again.groups), again.backlog.acked) == ("ann", 4, {"g": 4}, 5)
    assert list(again.acks.taken.ranges()) == [(1, 2)]
    assert (again.phase, again.versions.row_stored, again.versions.acks_stored) == (SessionPhase.NEW, 2, 2)


def test_a_session_without_an_acks_row_has_acknowledged_what_was_before_it() -> None:
    row = session(since=4).put_row(HUB, session(since=4).row())
    assert row.value is not None
    assert Session.of_rows("alice", State(row.value, 1), None).backlog.acked == 4


def test_the_acks_name_the_rows_of_spilled_messages() -> None:
    spilled = (SpillRow(5, 9),)
    alice = session(acks=AcksRow(SpilledAcks(3, spilled), ()))
    assert (alice.backlog.acked, alice.spill.rows, alice.missing_after) == (3, spilled, 9)
    value = alice.put_acks(HUB).value
    assert value is not None
    assert read_acks(value).acked == SpilledAcks(3, spilled)


@pytest.mark.parametrize(
    ("acknowledged", "flushed", "floor"), [(0, 0, 4), (5, 0, 0), (5, 5, 5), (7, 7, 20)],
    ids=["what is queued", "what a crash would forget", "what is left", "nothing"],
)  # fmt: skip
def test_what_it_needs_of_the_stream(acknowledged: int, flushed: int, floor: int) -> None:
    alice = live()
    alice.backlog.push(run(5, 3))
    alice.backlog.acknowledge(acknowledged)
    if flushed:
        alice.backlog.take_confirmed()
        alice.backlog.set_flushed(flushed)
    assert alice.floor(tail=20) == floor


def test_a_session_that_is_behind_needs_all_after_what_it_acknowledged() -> None:
    alice = session(since=3)
    assert alice.floor(tail=20) == 20
    alice.change(SessionChange.FALL_BEHIND)
    assert alice.floor(tail=20) == 3


def test_who_leaves_a_group_takes_its_state_there_along() -> None:
    alice = live(groups=["g"])
    own = OwnState({"a": "b"}, 1)
    alice.states["g"] = alice.states.stored["g"] = own
    alice.decide_group("g", 7, False, tail=7)
    assert (dict(alice.states), alice.states.stored) == ({}, {})


def test_a_state_that_was_set_after_leaving_stays() -> None:
    alice = live(groups=["g"])
    alice.states.stored["g"] = OwnState({"a": "b"}, 1)
    alice.states["g"] = OwnState({"a": "c"}, 2)
    alice.decide_group("g", 7, False, tail=7)
    assert dict(alice.states) == {"g": OwnState({"a": "c"}, 2)}


def test_a_row_keeps_ended_stays_until_the_store_says_that_they_were_acknowledged() -> None:
    alice = live(groups=["g"])
    alice.backlog.push(run(5))
    alice.decide_group("g", 6, False, tail=6)
    alice.backlog.acknowledge(5)
    assert [stay[0] for stay in alice.row().left] == ["g"]
    alice.backlog.take_confirmed()
    alice.backlog.set_flushed(6)
    assert alice.row().left == ()


def test_changed_permissions_count_at_once() -> None:
    alice = live(permissions=Permissions.of_roles(()))
    assert not alice.may(Permission.SEND_TO_GROUP, "g")
    alice.permit(Permissions.of_roles(("webpubsub.sendToGroup.g",)))
    assert alice.may(Permission.SEND_TO_GROUP, "g")
    assert not alice.may(Permission.SEND_TO_GROUP, "h")


def test_a_socket_that_comes_ends_the_time_of_waiting() -> None:
    alice = live(peer="")
    alice.dropped_at = 3.0
    value = alice.put_row(HUB, alice.row()).value
    assert value is not None
    assert read_session(value).dropped_at == 3.0
    alice.attach("socket", in_order=True)
    assert alice.dropped_at is None
    assert alice.in_order is not None


# -- the memory of ackIds


def test_what_is_on_its_way_is_known_and_not_taken() -> None:
    acks = AckMemory([(1, 3)])
    acks.claimed.add(5)
    assert acks.is_known(5)
    assert 5 not in acks.taken


def test_an_ack_id_that_may_not_be_claimed_yet_is_known_all_the_same() -> None:
    acks = AckMemory([])
    acks.wait_for(7)
    assert acks.is_known(7)
    assert 7 not in acks.claimed


def test_each_time_that_it_was_sent_again_is_answered() -> None:
    acks = AckMemory([])
    acks.wait_for(7)
    acks.repeat(7)
    acks.repeat(7)
    assert acks.take_repeats(7) == 2
    assert not acks.is_known(7)


def test_one_that_was_sent_once_is_answered_once() -> None:
    acks = AckMemory([])
    acks.wait_for(7)
    acks.wait_for(8)
    acks.repeat(8)
    acks.claim_waiting([7, 8])
    assert acks.waiting == {8: 1}
    assert 7 in acks.claimed


def test_after_a_failure_what_was_on_its_way_may_be_tried_again() -> None:
    acks = AckMemory([(1, 3)])
    acks.claimed.add(5)
    acks.fall_back()
    assert not acks.is_known(5)
    assert list(acks.claimed.ranges()) == [(1, 3)]


# -- memberships


@pytest.fixture
def groups() -> Memberships:
    return Memberships(SessionRow(None, "", "node", 0, EVERYTHING, {"g": 3}))


def test_a_change_is_settled_when_it_is_durable(groups: Memberships) -> None:
    assert groups.is_settled("g", True)
    groups.wanted.add("h")
    assert not groups.is_settled("h", True)
    groups.join("h", 7)
    assert groups.is_settled("h", True)
    assert "h" not in groups.applied


def test_a_stay_is_remembered_while_something_of_it_may_be_missing(groups: Memberships) -> None:
    groups.leave("g", 9, served=5)
    assert groups.left == [("g", 3, 9)]
    groups.forget_stays(8)
    assert groups.left == [("g", 3, 9)]
    groups.forget_stays(9)
    assert groups.left == []


def test_a_stay_of_which_the_client_has_everything_is_forgotten_at_once(groups: Memberships) -> None:
    groups.leave("g", 9, served=9)
    assert groups.left == []


def test_what_failed_is_not_wanted_any_more(groups: Memberships) -> None:
    groups.wanted = {"h"}
    groups.fall_back()
    assert groups.wanted == {"g"}


def test_stays_that_have_ended_count_as_groups(groups: Memberships, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semel.pubsub.hub.session.GROUPS_MAX", 2)
    assert groups.has_room_for(["h"], served=0)
    groups.leave("g", 9, served=0)
    assert not groups.has_room_for(["h", "i"], served=0)
    assert not groups.has_room_for(["h"], served=0)  # "g" is wanted still
    groups.wanted.discard("g")
    assert groups.has_room_for(["h"], served=0)
    assert groups.has_room_for(["h", "i"], served=9)
