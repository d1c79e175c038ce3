"""Calls of event handlers, which a hub leaves to its server, and the replies.

A hub never calls anybody itself: it sends `CallHandler` to the peer `HANDLERS`. A call that may succeed later is made
again after a while, under the same token and with the same content.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count

import msgspec

from semel.pubsub.events.cloudevents import (
    NO_HANDLER,
    NOT_TAKEN,
    TOTAL_S,
    EventClient,
    HandlerAnswered,
    HandlerFailed,
    PendingEvent,
    Reply,
    next_try,
    read_user_event,
    user_event,
)
from semel.pubsub.events.handlers import EventHandler, Handlers
from semel.pubsub.hub.commits import Failure, hint
from semel.pubsub.hub.context import HubContext, SessionCommits
from semel.pubsub.hub.outgoing import Outgoing
from semel.pubsub.hub.session import Session
from semel.pubsub.protocol.messages import CancelInvocation, Data, DataType, ErrorName, Fault, Invoke, InvokeResponse

HANDLERS = "handlers"
"""The peer that gets `CallHandler`, `CancelCall` and `Fetch`."""


class CallHandler(msgspec.Struct, frozen=True):
    """Call a handler, and answer with `Replied`, which must come within the time."""

    token: str
    event: PendingEvent
    handler: EventHandler
    within_s: float


class CancelCall(msgspec.Struct, frozen=True):
    token: str


class Fetch(msgspec.Struct, frozen=True):
    """Read an event that is too large for its row, and answer with `Fetched`."""

    token: str
    blob: str


class Replied(msgspec.Struct, frozen=True):
    token: str
    reply: Reply


class Fetched(msgspec.Struct, frozen=True):
    """`stored` None: it cannot be read now."""

    token: str
    stored: bytes | None


Then = Callable[[Reply, float], None]
"""Called with the last reply of a handler."""


@dataclass(slots=True)
class _Call:
    event: PendingEvent
    handler: EventHandler
    began: float
    then: Then
    attempt: int = 1


class HandlerCalls:
    """Those under way. Tokens must be unique for ever: a hub that was loaded again may get replies to old calls."""

    def __init__(self, context: HubContext, timers: Timers) -> None:
        self._context, self._timers = context, timers
        self._calls: dict[str, _Call] = {}

    def begin(self, token: str, event: PendingEvent, handler: EventHandler, now: float, then: Then) -> None:
        self._calls[token] = _Call(event, handler, now, then)
        self._ask(token, now)

    def _ask(self, token: str, now: float) -> None:
        call = self._calls.get(token)
        if call is not None:
            within_s = call.began + TOTAL_S - now
            self._context.send(HANDLERS, CallHandler(token, call.event, call.handler, within_s))

    def receive_reply(self, message: Replied, now: float) -> None:
        call = self._calls.get(message.token)
        if call is None:
            return
        again_at = next_try(call.attempt, message.reply, call.began, now)
        if again_at is None:
            del self._calls[message.token]
            call.then(message.reply, now)
        else:
            call.attempt += 1
            self._timers.at(again_at, lambda now: self._ask(message.token, now))

    def cancel(self, token: str) -> None:
        """Nobody waits for the answer any more."""
        if self._calls.pop(token, None) is not None:
            self._context.send(HANDLERS, CancelCall(token))


class Timers:
    """What is to be done at its time. Nothing is taken back: who is called looks whether there is still a reason."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Callable[[float], None]]] = []
        self._numbers = count()

    def at(self, at: float, call: Callable[[float], None]) -> None:
        heappush(self._heap, (at, next(self._numbers), call))

    def next(self) -> float | None:
        return self._heap[0][0] if self._heap else None

    def run(self, now: float) -> None:
        while self._heap and self._heap[0][0] <= now:
            heappop(self._heap)[2](now)


def client_of(hub: str, session: Session) -> EventClient:
    return EventClient(hub, session.id, session.user, session.subprotocol, session.state)


def micros(now: float) -> int:
    return round(now * 1e6)


# -- invocations: a client asks an event handler and waits for its answer

# They are not kept. What a client asked is over when its socket is lost, and it may ask again.

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
