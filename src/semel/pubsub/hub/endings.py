"""Sessions that have ended here, but not in the store yet: the commit is on its way, or has failed and is tried again.

Nobody finds them any more. But who asks for the end of one hears of it only when it is durable: until then a crash
would bring the session back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from semel.kernel.ledger import Kind
from semel.pubsub.hub.commits import Failure, is_conflict, is_gone
from semel.pubsub.hub.roster import Roster
from semel.pubsub.hub.session import Session

if TYPE_CHECKING:
    from semel.pubsub.hub.machine import Hub

Then = Callable[[Failure | None], None]
"""Hears whether the end is in the store."""


@dataclass(slots=True)
class _End:
    """`is_taken`: the stream says that another node has it."""

    kind: Kind
    reason: str
    is_under_way: bool = True
    is_taken: bool = False
    asked: list[Then] = field(default_factory=list)


class Endings:
    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._ends: dict[Session, _End] = {}
        self.sessions = Roster[Session]()

    def __len__(self) -> int:
        return len(self._ends)

    def begin(self, session: Session, kind: Kind, reason: str, then: Then | None) -> None:
        """Its end is on its way."""
        end = self._ends.setdefault(session, _End(kind, reason))
        end.is_under_way = True
        if then is not None:
            end.asked.append(then)
        before = self.sessions.get(session.id)
        if before is not None:
            self.sessions.remove(before)
        self.sessions.add(session)

    def ended(self, session: Session, now: float, failure: Failure | None = None) -> None:
        """Or not. What another node has by now is not ours to end; one that is gone was ended by somebody."""
        end = self._ends[session]
        asked, end.asked = end.asked, []
        if failure is not None and not is_conflict(failure):
            end.is_under_way = False
        else:
            del self._ends[session]
            self.sessions.remove(session)
            if failure is not None and is_gone(failure):
                failure = None
            elif failure is not None and not end.is_taken and self._hub.roster.get(session.id) is None:
                self._hub.sessions.miss(session, now)
        for then in asked:
            then(failure)

    def is_under_way(self, connection: str) -> bool:
        session = self.sessions.get(connection)
        return session is not None and self._ends[session].is_under_way

    def taken(self, connection: str, offset: int) -> None:
        """The stream says that another node has it, from there on."""
        session = self.sessions.get(connection)
        if session is not None and offset > session.here_since:
            self._ends[session].is_taken = True

    def ask(self, session: Session, now: float, then: Then) -> None:
        """For the end of one that is here: at once, if it is not under way."""
        end = self._ends[session]
        if end.is_under_way:
            end.asked.append(then)
        else:
            self._hub.sessions.close(session, end.kind, end.reason, now, then)

    def try_again(self, now: float) -> None:
        for session, end in list(self._ends.items()):
            if not end.is_under_way:
                self._hub.sessions.close(session, end.kind, end.reason, now)
