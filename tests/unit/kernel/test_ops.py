from __future__ import annotations

from semel.kernel.ops import KEEP_S, MESSAGE, OPEN_STATES, Attempts, Duplicate, Finish, Remember, WorkState
from semel.kernel.position import Position


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


def test_what_nobody_asked_for_stays_as_it_was() -> None:
    assert Finish("q", "a", WorkState.DONE).attempts is Attempts.KEEP
    assert (Remember("q", "a").keep_s, Remember("q", "a").result) == (KEEP_S, b"")


def test_a_duplicate_shows_what_it_knows() -> None:
    position = Position("q", 1, 2)
    assert repr(Duplicate(position)) == f"Duplicate(position={position!r})"
    assert "DONE" in repr(Duplicate(position, state=WorkState.DONE))
