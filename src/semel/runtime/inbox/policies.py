"""The failure rules of handlers, as a worker asks for them: by the row that failed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from semel.errors import HandlerCutOff
from semel.inbox.failure import FailureRules
from semel.kernel.ops import WorkRow
from semel.kernel.retry import Decision, Failure, Release, error_name

CUT_OFF = error_name(HandlerCutOff)


@dataclass(frozen=True, slots=True)
class EndpointPolicy:
    """`by_type` has the rules of each handler; `other` is for messages that no handler knows."""

    by_type: Mapping[str, FailureRules]
    other: FailureRules

    def last_attempt(self, row: WorkRow) -> int | None:
        return self._rules(row).attempts_max

    def decide(self, failure: Failure, row: WorkRow, attempt: int, now: float, chance: float) -> Decision:
        if CUT_OFF in failure.types:
            return Release()
        return self._rules(row).decide(failure, attempt, now, chance)

    def _rules(self, row: WorkRow) -> FailureRules:
        return self.by_type.get(row.envelope.type, self.other)
