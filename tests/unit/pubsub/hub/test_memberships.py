from __future__ import annotations

import pytest
from tests.unit.pubsub.hub.parts import EVERYTHING

from semel.pubsub.hub import session
from semel.pubsub.hub.session import Memberships
from semel.pubsub.hub.session_rows import SessionRow


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
    monkeypatch.setattr(session, "GROUPS_MAX", 2)
    assert groups.has_room_for(["h"], served=0)
    groups.leave("g", 9, served=0)
    assert not groups.has_room_for(["h", "i"], served=0)
    assert not groups.has_room_for(["h"], served=0)  # "g" is wanted still
    groups.wanted.discard("g")
    assert groups.has_room_for(["h"], served=0)
    assert groups.has_room_for(["h", "i"], served=9)
