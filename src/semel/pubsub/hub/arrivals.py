"""Sessions of which it is not decided yet whether they are here: new ones and those that are taken over, while the
commit that says so is on its way.

Others may know from the stream that a session is here before we have heard of it. And nothing can be written for it
yet: what version its rows have is learned from that commit. So what is asked of it waits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from semel.pubsub.hub.roster import Roster
from semel.pubsub.hub.session import Session


class Arrivals:
    def __init__(self) -> None:
        self.sessions = Roster[Session]()
        self._waiting: list[tuple[set[str], Callable[[float], None]]] = []

    def __len__(self) -> int:
        return len(self.sessions) + len(self._waiting)

    def begin(self, session: Session) -> None:
        self.sessions.add(session)

    def decided(self, session: Session, now: float) -> None:
        """It is here, or it is not: go on with what waited for it."""
        self.sessions.remove(session)
        waiting, self._waiting = self._waiting, []
        for ids, call in waiting:
            ids.discard(session.id)
            if ids:
                self._waiting.append((ids, call))
            else:
                call(now)

    def when_decided(self, sessions: Iterable[Session], call: Callable[[float], None]) -> None:
        """Of all of these."""
        self._waiting.append(({session.id for session in sessions}, call))
