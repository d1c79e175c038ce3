"""The sending half of a session: requests wait for room, go out under an ackId, and go out again under the same one.

An ackId belongs to its session. Only when the session is lost does a request get another one, and whether it may is for
the machine to say.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

import msgspec

from semel.errors import SemelError
from semel.kernel.resend import GaveUp, Resend, ResendPolicy, Transmit
from semel.kernel.retry import RetryPolicy
from semel.pubsub.client.errors import kept, unanswered, unknown
from semel.pubsub.client.events import Acked, Changing, ClientOptions, OutboxEntry, RequestFailed
from semel.pubsub.hub.records import MESSAGE_ID
from semel.pubsub.protocol.frames import Codec, Frame
from semel.pubsub.protocol.messages import CancelInvocation, Invoke, SendEvent, SendToGroup


class Pending(msgspec.Struct, eq=False):
    """A request without an answer. `token` None: nobody waits for it. `frame` is what goes out, the same each time, and
    `size` what it may have in bytes. `until_kept`: whoever waits does so until it is in the outbox. `restores`: it
    brings back in a new session what the one before it had.

    `sent_at`: when it went out first, in whatever session. `in_doubt`: in one that was lost before the answer came.
    `copies`: how many of it are on this socket without an answer.
    """

    token: int | None
    request: Acked
    at_least_once: bool = False
    entry: OutboxEntry | None = None
    is_kept: bool = True
    until_kept: bool = False
    size: int = 0
    restores: bool = False
    refusals: int = 0
    sent_at: float | None = None
    in_doubt: bool = False
    ack_id: int | None = None
    frame: Frame = ""
    copies: int = 0

    def is_repeatable(self, first_remembered: float) -> bool:
        """Whether it may be sent again in another session, when nobody knows what became of it in this one. The hub
        knows the ids of what came since `first_remembered`; with an event it is its handler that goes by the id."""
        if self.at_least_once or isinstance(self.request, Changing):
            return True
        named = isinstance(self.request, SendToGroup | SendEvent)
        has_id = named and MESSAGE_ID in (getattr(self.request, "metadata", None) or {})
        return has_id and (self.sent_at is None or self.sent_at > first_remembered)

    def unfinished(self, cause: SemelError) -> RequestFailed:
        """What became of it when the client ends."""
        if self.entry is None:
            return unanswered(cause, self.sent_at is not None)
        return RequestFailed(kept(cause) if self.is_kept else unknown(cause), maybe_taken=True)


class Requests:
    def __init__(self, options: ClientOptions, codec: Codec) -> None:
        retry = RetryPolicy(None, options.ack_timeout_s, 2.0, options.ack_timeout_max_s)
        self._policy = ResendPolicy(options.window, options.ack_timeout_s, retry)
        self._places, self._bytes_max = options.window + options.queue_max, options.queue_bytes_max
        self._bytes = 0
        self._codec = codec
        self._queue: deque[Pending] = deque()
        self._tokens: dict[int, Pending] = {}
        self._entries: dict[str, Pending] = {}
        self._begin_session()

    def _begin_session(self) -> None:
        self._flights: Resend[Pending] = Resend(self._policy)
        self._by_ack_id: dict[int, Pending] = {}
        self._changing: set[str] = set()
        self._last_ack_id = 0
        self._refused: set[int] = set()
        self._again_at = 0.0
        self._gave_up = False

    def __len__(self) -> int:
        return len(self._queue) + len(self._by_ack_id)

    def __iter__(self) -> Iterator[Pending]:
        """In the order in which they were asked."""
        yield from self._by_ack_id.values()
        yield from self._queue

    @property
    def room(self) -> int:
        """How many more requests can be taken."""
        return max(0, self._places - len(self)) if self._bytes < self._bytes_max else 0

    def add(self, pending: Pending) -> None:
        self._queue.append(pending)
        self._bytes += pending.size
        if pending.token is not None:
            self._tokens[pending.token] = pending
        if pending.entry is not None:
            self._entries[pending.entry.id] = pending

    def add_first(self, pendings: Iterable[Pending]) -> None:
        self._queue.extendleft(reversed(list(pendings)))

    # -- going out

    def fill(self, now: float, *, restores_only: bool) -> list[Pending]:
        """What goes out for the first time now. One that has to wait holds back those behind it, and so do messages
        that were refused for a time."""
        found: list[Pending] = []
        while self._queue and not self._refused and self._flights.room and self._may_go(self._queue[0], restores_only):
            pending = self._queue.popleft()
            is_twice = self._is_needed_twice(pending)
            self._number(pending, now)
            found.extend(_items(self._flights.offer(str(pending.ack_id), pending, now)))
            if is_twice:
                found.append(pending)
                pending.copies += 1
                self._gave_up = False
        return found

    def _is_needed_twice(self, pending: Pending) -> bool:
        """A server that has refused a message refuses all behind it, until one is sent again. If the refused one was
        given up, and there is no other, then this one has to be."""
        return self._gave_up and _is_message(pending) and not any(map(_is_message, self._by_ack_id.values()))

    def _may_go(self, pending: Pending, restores_only: bool) -> bool:
        """How a session stands to a group is changed only after the last change has been answered: which of two that
        are under way the server takes first, nobody knows."""
        if not pending.is_kept or (restores_only and not pending.restores):
            return False
        return not isinstance(pending.request, Changing) or pending.request.group not in self._changing

    def _number(self, pending: Pending, now: float) -> None:
        self._last_ack_id += 1
        if pending.sent_at is None:
            pending.sent_at = now
        pending.ack_id, pending.copies = self._last_ack_id, 1
        pending.frame = self._codec.encode_request(msgspec.structs.replace(pending.request, ack_id=pending.ack_id))
        self._by_ack_id[pending.ack_id] = pending
        if isinstance(pending.request, Changing):
            self._changing.add(pending.request.group)

    def begin_socket(self, now: float) -> list[Pending]:
        """What goes out again on a new socket of the same session: all without an answer, in order."""
        self._refused.clear()
        self._gave_up = False
        found = _items(self._flights.resend_all(now, reset=True))
        for pending in found:
            pending.copies = 1
        return found

    def overdue(self, now: float) -> list[Pending]:
        """What goes out again because no answer came, or because it was refused for a time.

        If that is a message, then all messages without an answer go, in order, before anything new. Those that were
        on their way behind a refused one are refused as well, and their refusals may still be on the way back. The
        server takes a message that is sent again for the beginning of all that have to be: one that was left out
        here would be published after what is sent next.
        """
        found = _items(self._flights.on_timer(now))
        is_time = bool(self._refused) and self._again_at <= now
        if is_time or any(map(_is_message, found)):
            found = [pending for pending in found if not _is_message(pending)] + self._messages_again(found, now)
        for pending in found:
            pending.copies += 1
        return found

    def _messages_again(self, armed: list[Pending], now: float) -> list[Pending]:
        """All messages without an answer. Those that are `armed` have their next time already."""
        self._refused.clear()
        self._gave_up = False
        messages = [pending for pending in self._by_ack_id.values() if _is_message(pending)]
        has_time = {pending.ack_id for pending in armed}
        self._flights.resend([str(each.ack_id) for each in messages if each.ack_id not in has_time], now)
        return messages

    def count_answer(self, pending: Pending) -> int:
        """One of its copies has been answered. How many others there are, which may fare differently."""
        pending.copies = max(0, pending.copies - 1)
        return pending.copies

    def refuse(self, pending: Pending, again_at: float) -> None:
        """The server could not take this message now. Those that are refused together are sent again together."""
        assert pending.ack_id is not None
        if not self._refused:
            self._again_at = again_at
        self._refused.add(pending.ack_id)

    def next_deadline(self) -> float | None:
        at = self._flights.next_deadline()
        if not self._refused:
            return at
        return self._again_at if at is None else min(at, self._again_at)

    # -- coming back

    def find(self, ack_id: int) -> Pending | None:
        return self._by_ack_id.get(ack_id)

    def by_token(self, token: int) -> Pending | None:
        return self._tokens.get(token)

    def by_id(self, id: str) -> Pending | None:
        """One that is in the outbox, or on its way there."""
        return self._entries.get(id)

    def remove(self, pending: Pending) -> None:
        """It is settled, or nobody waits for it any more."""
        self._bytes -= pending.size
        if pending.ack_id is None:
            self._queue.remove(pending)
        else:
            del self._by_ack_id[pending.ack_id]
            self._refused.discard(pending.ack_id)
            self._flights.confirm_all([str(pending.ack_id)])
            if isinstance(pending.request, Changing):
                self._changing.discard(pending.request.group)
        if pending.token is not None:
            del self._tokens[pending.token]
        if pending.entry is not None:
            del self._entries[pending.entry.id]

    def give_up(self, pending: Pending) -> None:
        """It is not sent any more, and the server may have refused it for a time."""
        self._gave_up = self._gave_up or (_is_message(pending) and pending.ack_id is not None)
        self.remove(pending)

    def adopt(self, pending: Pending, token: int) -> None:
        """Somebody waits for it again."""
        pending.token = token
        self._tokens[token] = pending

    def let_go(self, pending: Pending) -> None:
        """Nobody waits for it any more, but it is done all the same."""
        if pending.token is not None:
            del self._tokens[pending.token]
            pending.token = None

    def on_session_lost(self) -> None:
        """Those that were sent and not answered are put back to the front, without their ackIds. What is to be
        restored is for the next session to name."""
        sent = [pending for pending in self._by_ack_id.values() if not pending.restores]
        self._queue = deque(pending for pending in self._queue if not pending.restores)
        self._begin_session()
        for pending in sent:
            pending.ack_id, pending.refusals, pending.in_doubt = None, 0, True
        self.add_first(sent)

    def in_doubt(self) -> list[Pending]:
        """Those of which a session that is lost may have taken the message."""
        return [pending for pending in self._queue if pending.in_doubt]


def _is_message(pending: Pending) -> bool:
    """The order of all other requests is kept otherwise."""
    return isinstance(pending.request, SendToGroup)


def _items(effects: Iterable[Transmit[Pending] | GaveUp]) -> list[Pending]:
    return [effect.item for effect in effects if isinstance(effect, Transmit)]


class Invocation(msgspec.Struct, eq=False):
    token: int
    id: str
    frame: Frame
    is_sent: bool = False


class ClientInvocations:
    """Each is a question to the server and its one answer. Nobody but the server can say whether it was done, so one
    that was sent is never sent again. Their ids are ours, and none is used twice in the life of a client."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._by_id: dict[str, Invocation] = {}
        self._by_token: dict[int, Invocation] = {}
        self._waiting: list[Invocation] = []
        self._last = 0

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Invocation]:
        return iter(list(self._by_id.values()))

    def add(self, token: int, request: Invoke) -> None:
        self._last += 1
        id = str(self._last)
        frame = self._codec.encode_request(msgspec.structs.replace(request, invocation_id=id))
        invocation = Invocation(token, id, frame)
        self._by_id[id] = self._by_token[token] = invocation
        self._waiting.append(invocation)

    def fill(self) -> list[Frame]:
        """What goes out now."""
        waiting, self._waiting = self._waiting, []
        for invocation in waiting:
            invocation.is_sent = True
        return [invocation.frame for invocation in waiting]

    def by_token(self, token: int) -> Invocation | None:
        return self._by_token.get(token)

    def find(self, id: str) -> Invocation | None:
        return self._by_id.get(id)

    def remove(self, invocation: Invocation) -> None:
        del self._by_id[invocation.id]
        del self._by_token[invocation.token]
        if not invocation.is_sent:
            self._waiting.remove(invocation)

    def cancel(self, invocation: Invocation) -> Frame:
        return self._codec.encode_request(CancelInvocation(invocation.id))
