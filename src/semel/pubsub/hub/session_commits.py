"""Commits in the name of a session.

Each writes a row of the session under the version that this node knows, so the store refuses it if another node has
taken the session over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from semel.kernel.effects import CommitUnknown
from semel.kernel.ops import Append, Op, Put, Result
from semel.pubsub.hub.commits import Done, Failure, is_conflict
from semel.pubsub.hub.context import HubContext
from semel.pubsub.hub.session import Session
from semel.pubsub.hub.tail import Tail


def _nobody(session: Session, now: float) -> None:
    raise AssertionError("nobody handles refused commits")


class SessionCommits:
    """`on_refused` is called when the store has another version of a session's row than this node."""

    def __init__(self, context: HubContext, tail: Tail) -> None:
        self._context, self._tail = context, tail
        self._staged: dict[str, Session] = {}
        self.on_refused: Callable[[Session, float], None] = _nobody

    def commit(
        self,
        session: Session,
        appends: Sequence[Append],
        puts: Sequence[Put],
        done: Done,
        failed: Callable[[Failure], None],
        more: Sequence[Op] = (),
    ) -> None:
        """Commits of one session are made in order. If it is unknown whether one was made, the rows alone can tell: the
        hub is loaded again."""
        generation = session.versions.generation

        def on_done(results: tuple[Result, ...], now: float) -> None:
            for put, result in zip(puts, results[len(appends) :], strict=False):
                session.stored(put, result)
            if appends:
                self._tail.take_own(appends, results, now)
            done(results, now)

        def on_failed(failure: Failure, now: float) -> None:
            if isinstance(failure, CommitUnknown):
                self._context.restart("the store did not answer")
                return
            self._tail.drop_bodies(appends)
            if is_conflict(failure):
                self.on_refused(session, now)
            elif session.versions.generation == generation:
                # those behind this one in the chain fail as well, and find that the session has fallen back already
                session.fall_back()
            failed(failure)

        self._context.commit((*appends, *puts, *more), on_done, on_failed, session.id)

    def commit_at_end_of_event(self, session: Session) -> None:
        """What is staged without a request of the client is committed at the end of the event, if it was not before."""
        self._staged[session.id] = session

    def take_staged(self) -> Iterable[Session]:
        if not self._staged:
            return ()
        staged, self._staged = self._staged, {}
        return [session for session in staged.values() if session.staged.appends]
