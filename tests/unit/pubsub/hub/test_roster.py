from __future__ import annotations

from tests.unit.pubsub.hub.parts import live, session

from semel.pubsub.hub.roster import Elsewhere, Here, Past, Roster


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
