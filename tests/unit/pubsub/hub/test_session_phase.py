from __future__ import annotations

import pytest
from tests.tools.session_diagram import diagram

from semel.pubsub.hub.session_phase import TRANSITIONS, SessionChange, SessionPhase, after


def test_every_phase_has_an_entry_and_every_change_a_use() -> None:
    assert set(TRANSITIONS) == set(SessionPhase)
    assert {change for changes in TRANSITIONS.values() for change in changes} == set(SessionChange)


def test_every_phase_is_reached_and_left() -> None:
    reached = {SessionPhase.NEW}
    while more := {then for phase in reached for then in TRANSITIONS[phase].values()} - reached:
        reached |= more
    assert reached == set(SessionPhase)
    for phase in set(SessionPhase) - {SessionPhase.GONE}:
        found = {phase}
        while more := {then for each in found for then in TRANSITIONS[each].values()} - found:
            found |= more
        assert SessionPhase.GONE in found, f"a session would stay {phase.value} for ever"


def test_gone_is_the_end() -> None:
    assert set(TRANSITIONS[SessionPhase.GONE].values()) == {SessionPhase.GONE}


def test_a_change_that_is_not_in_the_table_is_refused() -> None:
    with pytest.raises(AssertionError, match="a session that is gone cannot open"):
        after(SessionPhase.GONE, SessionChange.OPEN)


def test_the_diagram_shows_each_change_of_phase_once() -> None:
    arrows = [line for line in diagram().splitlines() if "-->" in line and "[*]" not in line]
    changes = [(phase, then) for phase, each in TRANSITIONS.items() for then in each.values() if then is not phase]
    assert len(arrows) == len(set(arrows)) == len(changes)
