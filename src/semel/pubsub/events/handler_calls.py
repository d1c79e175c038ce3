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

from semel.pubsub.events.cloudevents import TOTAL_S, EventClient, PendingEvent, Reply, next_try
from semel.pubsub.events.handlers import EventHandler
from semel.pubsub.hub.context import HubContext
from semel.pubsub.hub.session import Session

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
