"""Invocations: a client asks an event handler and waits for its answer.

They are not kept. What a client asked is over when its socket is lost, and it may ask again.
"""

from __future__ import annotations

from semel.pubsub.events.cloudevents import (
    NO_HANDLER,
    NOT_TAKEN,
    HandlerAnswered,
    HandlerFailed,
    Reply,
    read_user_event,
    user_event,
)
from semel.pubsub.events.handler_calls import HandlerCalls, client_of, micros
from semel.pubsub.events.handlers import Handlers
from semel.pubsub.hub.commits import Failure, hint
from semel.pubsub.hub.context import HubContext
from semel.pubsub.hub.outgoing import Outgoing
from semel.pubsub.hub.session import Session
from semel.pubsub.hub.session_commits import SessionCommits
from semel.pubsub.protocol.messages import CancelInvocation, Data, DataType, ErrorName, Fault, Invoke, InvokeResponse

INVOCATIONS_MAX = 100
"""How many may be under way for one session."""


class Invocations:
    def __init__(
        self,
        context: HubContext,
        outgoing: Outgoing,
        commits: SessionCommits,
        calls: HandlerCalls,
        handlers: Handlers,
    ) -> None:
        self._context, self._outgoing, self._commits = context, outgoing, commits
        self._calls, self._handlers = calls, handlers
        self._open: dict[str, dict[str, str]] = {}

    def invoke(self, session: Session, request: Invoke, now: float) -> None:
        """One that is asked again before it was answered is answered once."""
        mine = self._open.get(session.id, {})
        if request.invocation_id in mine:
            return
        handler = self._handlers.for_user_event(request.event)
        if handler is None:
            self._refuse(session, request.invocation_id, NO_HANDLER)
            return
        if len(mine) >= INVOCATIONS_MAX:
            self._refuse(session, request.invocation_id, "too many invocations wait for their answers")
            return
        token = self._context.mint(now)
        self._open.setdefault(session.id, {})[request.invocation_id] = token
        data = request.data or Data(DataType.TEXT, b"")
        event = user_event(client_of(self._context.hub, session), token, micros(now), request.event, data)
        peer = session.peer

        def then(reply: Reply, now: float) -> None:
            self._forget(session.id, request.invocation_id)
            if session.peer == peer:
                self._respond(session, request.invocation_id, read_user_event(reply))

        self._calls.begin(token, event, handler, now, then)

    def cancel(self, session: Session, request: CancelInvocation) -> None:
        token = self._forget(session.id, request.invocation_id)
        if token is not None:
            self._calls.cancel(token)

    def end(self, connection: str) -> None:
        """The session is not here any more."""
        for token in self._open.pop(connection, {}).values():
            self._calls.cancel(token)

    def _forget(self, connection: str, invocation_id: str) -> str | None:
        mine = self._open.get(connection, {})
        token = mine.pop(invocation_id, None)
        if not mine:
            self._open.pop(connection, None)
        return token

    def _refuse(self, session: Session, invocation_id: str, why: str) -> None:
        fault = Fault(ErrorName.INTERNAL, why)
        self._outgoing.send(session, InvokeResponse(invocation_id, error=fault))

    def _respond(self, session: Session, invocation_id: str, answer: HandlerAnswered | HandlerFailed) -> None:
        """A new state of the connection is durable first."""
        if isinstance(answer, HandlerFailed):
            self._context.notify("event-failed", f"an invocation of {session.id}: {answer.cause}")
            self._refuse(session, invocation_id, NOT_TAKEN)
            return
        response, before = InvokeResponse(invocation_id, answer.data), session.state
        if answer.state is None or answer.state == before:
            self._outgoing.send(session, response)
            return
        session.state = answer.state

        def failed(failure: Failure) -> None:
            session.state = before
            self._context.report_once("hub-commit", failure)
            self._refuse(session, invocation_id, hint(failure))

        put = session.put_row(self._context.hub, session.row())
        self._commits.commit(session, (), (put,), lambda results, now: self._outgoing.send(session, response), failed)
