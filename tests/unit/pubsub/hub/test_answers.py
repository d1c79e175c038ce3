from __future__ import annotations

import pytest
from tests.unit.pubsub.hub.parts import live

from semel.kernel.effects import CommitFailed
from semel.kernel.ops import Conflict
from semel.pubsub.hub.answers import DONE, MOVING, NOT_FOUND, Gathered, outcome_for, summed_up
from semel.pubsub.hub.calls import Answer, Outcome

FAILED = Answer(Outcome.FAILED, "away")


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ([NOT_FOUND, NOT_FOUND], NOT_FOUND),
        ([NOT_FOUND, DONE], DONE),
        ([FAILED, DONE, NOT_FOUND], FAILED),
        ([Answer(Outcome.CONFLICT), Answer(Outcome.REFUSED, "no"), DONE], Answer(Outcome.REFUSED, "no")),
    ],
)
def test_one_answer_for_many_is_the_worst(answers: list[Answer], expected: Answer) -> None:
    given: list[Answer] = []
    gathered = Gathered(len(answers), given.append)
    for answer in answers:
        assert given == []
        gathered.add(answer)
    assert (given, gathered.is_over) == ([expected], True)


def test_nothing_to_do_is_done() -> None:
    given: list[Answer] = []
    Gathered(0, given.append)
    assert given == [DONE]


def test_it_waits_for_one_more_if_it_is_told_in_time() -> None:
    given: list[Answer] = []
    gathered = Gathered(1, given.append)
    gathered.expect_one_more()
    gathered.add(DONE)
    assert given == []
    gathered.add(DONE)
    assert given == [DONE]
    with pytest.raises(AssertionError):
        gathered.expect_one_more()
    with pytest.raises(AssertionError):
        gathered.add(DONE)


def test_a_session_that_another_node_has_by_now_has_moved() -> None:
    moved: set[str] = set()
    assert outcome_for(live(), None, moved) == DONE
    assert outcome_for(live(), CommitFailed(1), moved).outcome is Outcome.FAILED
    assert moved == set()
    assert outcome_for(live(), CommitFailed(1, (Conflict(3),)), moved) == NOT_FOUND
    assert moved == {"alice"}
    assert summed_up(NOT_FOUND, moved) == MOVING
    assert summed_up(FAILED, moved) == FAILED
    assert summed_up(DONE, set()) == DONE
