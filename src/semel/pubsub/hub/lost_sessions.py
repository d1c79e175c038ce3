"""Sessions whose rows this node may not write any more, while the stream has not named the node that has them."""

from __future__ import annotations

from semel.pubsub.hub.closing import Closing
from semel.pubsub.hub.context import HubContext
from semel.pubsub.hub.read_barrier import ReadBarrier
from semel.pubsub.hub.roster import SOMEWHERE, Elsewhere, Here, Roster
from semel.pubsub.hub.session import Session
from semel.pubsub.hub.takeover import TakeOver


class LostSessions:
    def __init__(
        self,
        context: HubContext,
        roster: Here,
        elsewhere: Roster[Elsewhere],
        current: ReadBarrier,
        closing: Closing,
        take_over: TakeOver,
    ) -> None:
        self._context, self._roster, self._elsewhere = context, roster, elsewhere
        self._current, self._closing, self._take_over = current, closing, take_over
        self._missing: set[str] = set()

    def on_refused(self, session: Session, now: float) -> None:
        """The store has other versions of its rows than this node."""
        is_here = self._roster.get(session.id) is session
        if self._context.options.is_shared:
            self._closing.release(session)
        if is_here:
            self.add(session, now)

    def add(self, session: Session, now: float) -> None:
        """Another node has it, and the end of the stream says which. A single node can lose a session to nobody: then a
        commit of the process before this one has landed since the rows were read."""
        if not self._context.options.is_shared:
            self._context.restart("the store holds something else")
            return
        groups = dict(session.groups)
        self._elsewhere.add(Elsewhere(session.id, session.user, SOMEWHERE, groups, session.here_since))
        self._missing.add(session.id)
        self._current.when(lambda now: self._look_for(session.id), lambda why: None, now)

    def try_again(self) -> None:
        """If the stream or the rows could not be read."""
        for connection in sorted(self._missing):
            self._look_for(connection)

    def _look_for(self, connection: str) -> None:
        """The stream is read to its end. If it names no other node, no other node has the session: what was refused was
        built on commits of this node that had failed meanwhile. The rows say that it is here, and it is taken over from
        this node itself."""
        other = self._elsewhere.get(connection)
        if other is None or other.node != SOMEWHERE:
            self._missing.discard(connection)
        else:
            self._take_over.take_from(self._context.node, connection, lambda is_decided: None)
