"""Answers to calls of the server side, and how those of several sessions or nodes become one."""

from __future__ import annotations

from collections.abc import Callable, Set

from semel.pubsub.hub.calls import Answer, Outcome
from semel.pubsub.hub.commits import Failure, hint, is_conflict
from semel.pubsub.hub.session import Session

Reply = Callable[[Answer], None]

DONE, NOT_FOUND = Answer(), Answer(Outcome.NOT_FOUND)
MOVING = Answer(Outcome.FAILED, "a connection is moving from node to node; ask again")

_WORSE = (Outcome.NOT_FOUND, Outcome.DONE, Outcome.CONFLICT, Outcome.REFUSED, Outcome.FAILED)


class Gathered:
    """One answer for many: the worst of them. That something was not found counts only if it was found nowhere."""

    def __init__(self, count: int, answer: Reply) -> None:
        self._left, self._answer = count, answer
        self._worst = NOT_FOUND
        if count == 0:
            answer(DONE)

    def add(self, answer: Answer) -> None:
        assert self._left > 0, "more answers than were expected"
        if _WORSE.index(answer.outcome) > _WORSE.index(self._worst.outcome):
            self._worst = answer
        self._left -= 1
        if self._left == 0:
            self._answer(self._worst)

    @property
    def is_over(self) -> bool:
        return self._left == 0

    def expect_one_more(self) -> None:
        assert self._left > 0, "the answer was given already"
        self._left += 1


def failed(failure: Failure) -> Answer:
    """If somebody else has written for a session meanwhile, it is not here any more."""
    return MOVING if is_conflict(failure) else Answer(Outcome.FAILED, hint(failure))


def outcome_for(session: Session, failure: Failure | None, moved: set[str]) -> Answer:
    """What a command came to for one session. One that another node has by now is added to `moved`: not found here."""
    if failure is None:
        return DONE
    if is_conflict(failure):
        moved.add(session.id)
        return NOT_FOUND
    return failed(failure)


def summed_up(answer: Answer, moved: Set[str]) -> Answer:
    """For callers that do not follow the sessions that have moved."""
    return MOVING if moved and answer.outcome is not Outcome.FAILED else answer
