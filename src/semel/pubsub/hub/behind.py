"""Sessions that are over while what they have missed is still being read: what happens then waits for that.

What they missed was owed to them, so the ledger has to say what became of it.
"""

from __future__ import annotations

from collections.abc import Callable

from semel.pubsub.hub.session import Session


class Behind:
    __slots__ = ("_ending",)

    def __init__(self) -> None:
        self._ending: dict[Session, Callable[[float], None]] = {}

    def __contains__(self, session: Session) -> bool:
        """Whether it ends as soon as it has caught up."""
        return session in self._ending

    def when_caught_up(self, session: Session, call: Callable[[float], None]) -> None:
        self._ending[session] = call

    def take(self, session: Session) -> Callable[[float], None] | None:
        return self._ending.pop(session, None)
