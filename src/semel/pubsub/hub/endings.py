"""Sessions that have ended here, but not in the store yet: the commit is on its way, or has failed and is tried again.

Calls do not find them any more. But whoever asks for the end of one is answered only when it is durable: until then a
crash would bring the session back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from semel.kernel.ledger import Kind
from semel.pubsub.hub.commits import Failure
from semel.pubsub.hub.roster import Roster
from semel.pubsub.hub.session import Session

Then = Callable[[Failure | None], None]
"""Called when the end is in the store, or with why it is not."""


@dataclass(slots=True)
class Ending:
    """`is_taken`: the stream says that another node has it."""

    kind: Kind
    reason: str
    is_under_way: bool = True
    is_taken: bool = False
    asked: list[Then] = field(default_factory=list)


class Endings:
    """Only keeps the account: `Closing` does what has to be done."""

    def __init__(self) -> None:
        self._ends: dict[Session, Ending] = {}
        self.sessions = Roster[Session]()

    def __len__(self) -> int:
        return len(self._ends)

    def begin(self, session: Session, kind: Kind, reason: str, then: Then | None) -> None:
        """Its end is on its way."""
        end = self._ends.setdefault(session, Ending(kind, reason))
        end.is_under_way = True
        if then is not None:
            end.asked.append(then)
        self.sessions.add(session)

    def done(self, session: Session) -> Ending:
        """It is over, and nobody has to try again. The caller tells those who asked."""
        self.sessions.remove(session)
        return self._ends.pop(session)

    def failed(self, session: Session) -> Sequence[Then]:
        """The store did not take it: it is tried again later. Those who asked get the failure, and may ask again."""
        end = self._ends[session]
        end.is_under_way = False
        asked, end.asked = end.asked, []
        return asked

    def is_under_way(self, connection: str) -> bool:
        session = self.sessions.get(connection)
        return session is not None and self._ends[session].is_under_way

    def find(self, session: Session) -> Ending:
        return self._ends[session]

    def mark_taken(self, connection: str, offset: int) -> None:
        """The stream says that another node has it, from this offset on."""
        session = self.sessions.get(connection)
        if session is not None and offset > session.here_since:
            self._ends[session].is_taken = True

    def to_retry(self) -> list[tuple[Session, Ending]]:
        return [(session, end) for session, end in self._ends.items() if not end.is_under_way]


class CatchingUp:
    """Sessions that are over while what they have missed is still being read: what happens then waits for that. It was
    owed to them, so the ledger has to say what became of it."""

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
