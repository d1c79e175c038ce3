"""The rules of an endpoint as its worker asks for them: by the type of the message."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from semel.errors import HandlerCutOff
from semel.inbox.failure import FailureRules
from semel.inbox.reservation import is_reservation
from semel.kernel.ops import WorkRow
from semel.kernel.retry import Decision, Failure, Release, error_name

CUT_OFF = error_name(HandlerCutOff)


@dataclass(frozen=True, slots=True)
class EndpointPolicy:
    """`by_type` are the rules for each type of message that has a handler; `other` are for all the rest."""

    by_type: Mapping[str, FailureRules]
    other: FailureRules

    def last_attempt(self, row: WorkRow) -> int | None:
        # without its body it would be a letter without a text: the next delivery, which has it, decides
        return None if is_reservation(row.envelope) else self._rules(row).attempts_max

    def decide(self, failure: Failure, row: WorkRow, attempt: int, now: float, chance: float) -> Decision:
        if CUT_OFF in failure.types:
            return Release()
        return self._rules(row).decide(failure, attempt, now, chance)

    def _rules(self, row: WorkRow) -> FailureRules:
        return self.by_type.get(row.envelope.type, self.other)
