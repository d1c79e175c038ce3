"""Sessions whose first commit on this node is on its way: new ones, and those that are taken over.

Other nodes may learn from the stream that a session is here before this node has the answer to its commit. Until then
nothing can be written for the session, since the versions of its rows come with that answer: what is asked of it waits.
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
        """Its commit is done, or has failed: call those who waited for it."""
        self.sessions.remove(session)
        waiting, self._waiting = self._waiting, []
        for ids, call in waiting:
            ids.discard(session.id)
            if ids:
                self._waiting.append((ids, call))
            else:
                call(now)

    def when_decided(self, sessions: Iterable[Session], call: Callable[[float], None]) -> None:
        """Call when it is decided for all of these."""
        self._waiting.append(({session.id for session in sessions}, call))
