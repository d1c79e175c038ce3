"""Joining and leaving groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from semel.kernel.ops import Fresh, Put, Result
from semel.pubsub.events.queue import Events
from semel.pubsub.hub.commits import Failure
from semel.pubsub.hub.context import HubContext
from semel.pubsub.hub.records import RecordKind, membership
from semel.pubsub.hub.session import Session
from semel.pubsub.hub.session_commits import SessionCommits
from semel.pubsub.hub.tail import Tail


class Groups:
    def __init__(self, context: HubContext, tail: Tail, commits: SessionCommits, events: Events) -> None:
        self._context, self._tail, self._commits, self._events = context, tail, commits, events

    def change(
        self,
        session: Session,
        group: str,
        kind: RecordKind,
        now: float,
        then: Callable[[Sequence[Put]], None],
        failed: Callable[[Failure], None],
    ) -> None:
        """A record in the stream says from where on the change holds. Its offset is known only when it is durable, so
        the session's row with that offset takes a second commit, which `then` has to make before it answers anybody.

        The row is also written with the record, unchanged, to be refused if another node has the session. The acks are
        not: they would say that the ackId was taken."""
        context = self._context
        record = membership(context.stream, kind, group, session.id, session.user, round(now * 1e6), context.mint(now))

        def done(results: tuple[Result, ...], now: float) -> None:
            changed = results[0]
            assert isinstance(changed, Fresh)
            session.decide_group(group, changed.position.offset, kind == RecordKind.JOIN, self._tail.offset)
            then((session.put_row(context.hub, session.row()),))
            self._events.claim_next(session.id)

        if kind == RecordKind.JOIN:
            session.memberships.wanted.add(group)
            more = self._events.on_join(session, group, now)
        else:
            session.memberships.wanted.discard(group)
            more = self._events.on_leave(session, group, now)
        self._commits.commit(session, (record,), (session.put_row(context.hub, session.row()),), done, failed, more)
