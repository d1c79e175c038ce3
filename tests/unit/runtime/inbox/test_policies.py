"""A worker asks by the row that failed, and gets the rules of the handler that had it."""

from __future__ import annotations

from semel.inbox.failure import FailureRules, on
from semel.inbox.reservation import reservation_of
from semel.kernel.envelope import Envelope
from semel.kernel.ops import WorkRow, WorkState
from semel.kernel.retry import Enough, Failure, Requeue
from semel.runtime.inbox.policies import EndpointPolicy

FAILURE = Failure("ValueError: x", ("ValueError", "Exception", "BaseException"))
POLICY = EndpointPolicy(
    {"Order": FailureRules((on(ValueError).requeue(7).park(),))}, FailureRules((on(ValueError).discard(),))
)


def row(type: str) -> WorkRow:
    return WorkRow("inbox/orders", "a", None, 1, WorkState.CLAIMED, 0, 1, 1, "me", Envelope("a", type=type))


def test_the_rules_are_those_of_the_type() -> None:
    assert POLICY.decide(FAILURE, row("Order"), 1, 0.0, 0.0) == Requeue()
    assert POLICY.decide(FAILURE, row("Unheard"), 1, 0.0, 0.0) == Enough("discard")


def test_the_last_attempt_is_that_of_the_longest_rule() -> None:
    assert (POLICY.last_attempt(row("Order")), POLICY.last_attempt(row("Unheard"))) == (8, 3)


def test_a_reservation_has_no_last_attempt() -> None:
    """It would become a dead letter without a body."""
    bare = reservation_of(Envelope("a", type="Order", data=b"body"))
    held = WorkRow("inbox/orders", "a", None, 1, WorkState.CLAIMED, 0, 99, 1, "me", bare)
    assert POLICY.last_attempt(held) is None
