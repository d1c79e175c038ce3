"""The failure rules of handlers, as a worker asks for them: by the row that failed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from semel.inbox.failure import FailureRules
from semel.inbox.rows import is_bare
from semel.kernel.ops import WorkRow
from semel.kernel.retry import Decision, Failure


@dataclass(frozen=True, slots=True)
class EndpointPolicy:
    """`by_type` has the rules of each handler; `other` is for messages that no handler knows."""

    by_type: Mapping[str, FailureRules]
    other: FailureRules

    def last_attempt(self, row: WorkRow) -> int | None:
        # without its body it would be a letter without a text: the next delivery, which has it, decides
        return None if is_bare(row.envelope) else self._rules(row).attempts_max

    def decide(self, failure: Failure, row: WorkRow, attempt: int, now: float, chance: float) -> Decision:
        return self._rules(row).decide(failure, attempt, now, chance)

    def _rules(self, row: WorkRow) -> FailureRules:
        return self.by_type.get(row.envelope.type, self.other)
