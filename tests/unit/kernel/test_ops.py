from __future__ import annotations

from semel.kernel.ops import MESSAGE, OPEN_STATES, WorkState


def test_numbers_that_are_stored_never_change() -> None:
    assert MESSAGE == 0
    assert {state.name: state.value for state in WorkState} == {
        "READY": 0,
        "SCHEDULED": 1,
        "CLAIMED": 2,
        "DEFERRED": 3,
        "PARKED": 4,
        "DONE": 5,
        "DEAD": 6,
    }


def test_a_row_is_open_until_it_is_done_or_dead() -> None:
    assert set(WorkState) - OPEN_STATES == {WorkState.DONE, WorkState.DEAD}
