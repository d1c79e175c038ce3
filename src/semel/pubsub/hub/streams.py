"""Client streams: what one connection sends to a group part by part, each part once and in order.

    begin     a client names a stream, and is answered which part is expected: the first
    part      the expected one is published; a lower one was taken before; after a higher one some are missing
    end       the last message of a stream to its receivers, from the client, or from the hub for it

A part is a message in the hub's stream like any other. How far a client stream has come is written in the same commit,
in the session's row, so it survives whatever the session survives, and ends with it. What was committed is what a
client is answered: after a failure, from where on to send again.
"""

from __future__ import annotations

from heapq import heappop, heappush

from msgspec.structs import replace

from semel.errors import InputError
from semel.kernel.ops import Append
from semel.kernel.text import clean_cause
from semel.pubsub.hub.commits import Failure, hint
from semel.pubsub.hub.context import HubContext, SessionCommits
from semel.pubsub.hub.outgoing import Outgoing
from semel.pubsub.hub.records import DeliveryTerms, group_target, message
from semel.pubsub.hub.roster import Here
from semel.pubsub.hub.session import Session, StreamChanges
from semel.pubsub.hub.session_rows import ClientStream
from semel.pubsub.hub.tail import Tail
from semel.pubsub.protocol.messages import (
    Data,
    ErrorName,
    Fault,
    Response,
    StartStream,
    StreamAck,
    StreamClosed,
    StreamData,
    StreamEnd,
    StreamNack,
    StreamPart,
)
from semel.pubsub.protocol.names import METADATA_BYTES_MAX
from semel.pubsub.protocol.permissions import Permission

STREAMS_MAX = 64
"""Open at a time in one session. Together they may have as much metadata as one message: all of it is in one row."""
ENDED_KEPT = 16
"""How many streams that have ended a session remembers, for a client that sends their end again."""
IDLE_MS = 300_000
IDLE_MS_MAX = 24 * 3600 * 1000
USER_CODE_CHARS_MAX = 128

BEGIN, PART, END = "begin", "part", "end"
"""Which request of a client a reply answers."""

CANCELLED = "Cancelled"
"""The error that receivers of a stream get when its sender is gone."""


class _Activity:
    """When something last came for a stream (`seen`), and when to look whether it is idle (`at`)."""

    __slots__ = ("at", "seen")

    def __init__(self, seen: float, at: float) -> None:
        self.seen, self.at = seen, at


class Streams:
    def __init__(
        self, context: HubContext, outgoing: Outgoing, tail: Tail, commits: SessionCommits, roster: Here
    ) -> None:
        self._context, self._outgoing, self._tail = context, outgoing, tail
        self._commits, self._roster = commits, roster
        self._active: dict[tuple[str, str], _Activity] = {}
        self._timers: list[tuple[float, str, str]] = []
        self._nacked: dict[tuple[str, str], int] = {}

    # -- what clients send

    def start(self, session: Session, request: StartStream, now: float) -> None:
        """A client that did not get the answer asks again before it sends anything: it is the same stream."""
        idle_ms = request.idle_timeout_ms or IDLE_MS
        stream = ClientStream(
            request.stream_id, request.group, 1, idle_ms, request.no_echo, request.ttl_s, request.metadata
        )
        known = session.streams.get(stream.id)
        if known == stream:
            if session.streams.stored.get(stream.id) == stream:
                self._outgoing.send(session, StreamAck(stream.id, 1))
            return
        fault = self._objection(session, stream, known, now)
        if fault is not None:
            self._outgoing.send(session, StreamClosed(stream.id, fault))
            return
        session.streams.pop(stream.id, None)
        session.streams[stream.id] = stream
        self._active.pop((session.id, stream.id), None)
        self._mark_active(session, stream, now)
        begun = StreamChanges()
        begun.streams[stream.id] = stream
        begun.replies[stream.id, BEGIN] = StreamAck(stream.id, 1)
        self._commits.commit(
            session,
            (),
            (session.put_acks(self._context.hub),),
            lambda results, now: self.accept(session, begun),
            lambda failure: self.fail(session, begun, failure),
        )

    def _objection(
        self, session: Session, stream: ClientStream, known: ClientStream | None, now: float
    ) -> Fault | None:
        if not session.may(Permission.SEND_TO_GROUP, stream.group):
            return _forbidden(stream.group)
        if known is not None and not known.is_ended:
            return Fault(ErrorName.BAD_REQUEST, f"the stream '{stream.id}' is open already")
        if stream.idle_ms > IDLE_MS_MAX:
            return Fault(ErrorName.BAD_REQUEST, f"a stream may be idle for at most {IDLE_MS_MAX} ms")
        others = [other for other in session.streams.values() if not other.is_ended]
        if len(others) >= STREAMS_MAX:
            return Fault(ErrorName.BAD_REQUEST, f"there are {STREAMS_MAX} open streams already")
        if sum(map(_metadata_size, (*others, stream))) > METADATA_BYTES_MAX:
            return Fault(ErrorName.BAD_REQUEST, f"open streams have at most {METADATA_BYTES_MAX} bytes of metadata")
        try:
            self._end_of(session, stream, None, now)
        except InputError as error:
            return Fault(ErrorName.BAD_REQUEST, error.message)
        return None

    def part(self, session: Session, request: StreamData, now: float) -> None:
        """A part that comes after the end was never published: its client gets an error. One before the end was."""
        ended = session.streams.get(request.stream_id)
        if ended is not None and ended.is_ended and (request.sequence_id or 0) >= ended.expected:
            self._not_found(session, ended.id)
            return
        stream = self._open(session, request.stream_id, now)
        if stream is None or request.data is None or request.sequence_id is None:
            return
        number, stored = request.sequence_id, _durably_expected(session, stream.id)
        if number == stream.expected:
            self._publish(session, stream, request.data, now)
        elif number < stored:
            self._outgoing.send(session, StreamAck(stream.id, stored))
        elif number > stream.expected:
            self._nack(session, stream.id, ErrorName.INVALID_SEQUENCE, f"part {stream.expected} is expected")

    def _publish(self, session: Session, stream: ClientStream, data: Data, now: float) -> None:
        blob, chunks = self._tail.keep_body(data.body, self._context.mint, now)
        at = round(now * 1e6)
        terms = DeliveryTerms(
            stream.no_echo, expires=at + stream.ttl_s * 1_000_000 if stream.ttl_s else None,
            metadata=stream.metadata, stream=StreamPart(stream.id, stream.expected),
        )  # fmt: skip
        append = message(
            self._context.stream, self._context.mint(now), group_target(stream.group), data,
            at=at, sender=session.id, user=session.user, terms=terms, on_fresh=self._context.accepted, blob=blob,
        )  # fmt: skip
        session.staged.chunks += chunks
        self._nacked.pop((session.id, stream.id), None)
        following = replace(stream, expected=stream.expected + 1)
        self._stage(session, following, PART, StreamAck(stream.id, following.expected), append)

    def end(self, session: Session, request: StreamEnd, now: float) -> None:
        stream = self._open(session, request.stream_id, now)
        if stream is None:
            return
        error = request.error
        if error is not None:
            code = _clean(error.user_code)[:USER_CODE_CHARS_MAX] if error.user_code is not None else None
            error = Fault(ErrorName.USER, _clean(error.message), code)
        append = self._end_of(session, stream, error, now)
        changes = self._stage(session, replace(stream, is_ended=True), END, StreamClosed(stream.id), append)
        ended = [other.id for other in session.streams.values() if other.is_ended]
        for id in ended[:-ENDED_KEPT]:
            changes.streams[id] = None
            del session.streams[id]

    def _open(self, session: Session, id: str, now: float) -> ClientStream | None:
        """The stream, if it is open and its client may continue with it. Otherwise the client gets an error."""
        stream = session.streams.get(id)
        if stream is None:
            self._not_found(session, id)
        elif stream.is_ended:
            if session.streams.stored.get(id) == stream:
                self._outgoing.send(session, StreamClosed(id))
        elif not session.may(Permission.SEND_TO_GROUP, stream.group):
            self._break(session, stream, _forbidden(stream.group), now)
        else:
            self._mark_active(session, stream, now)
            return stream
        return None

    def _not_found(self, session: Session, id: str) -> None:
        self._outgoing.send(session, StreamClosed(id, Fault(ErrorName.STREAM_NOT_FOUND, f"there is no stream '{id}'")))

    # -- what is committed

    def _stage(
        self, session: Session, stream: ClientStream, sort: str, reply: Response, append: Append
    ) -> StreamChanges:
        """It is committed together with all else that the session publishes."""
        session.streams[stream.id] = stream
        changes = session.staged.stream_changes()
        changes.streams[stream.id] = stream
        changes.replies[stream.id, sort] = reply
        session.staged.add(append, None)
        self._commits.commit_at_end_of_event(session)
        return changes

    def accept(self, session: Session, changes: StreamChanges) -> None:
        """The changes are durable: remember them, and send the replies."""
        for id, stream in changes.streams.items():
            if stream is None:
                session.streams.stored.pop(id, None)
                self._nacked.pop((session.id, id), None)
            else:
                session.streams.stored[id] = stream
        for reply in changes.replies.values():
            self._outgoing.send(session, reply)

    def fail(self, session: Session, changes: StreamChanges, failure: Failure) -> None:
        """The session has fallen back to what is durable: from there its client may try again."""
        self._context.report_once("hub-commit", failure)
        for id in changes.streams:
            stream = session.streams.stored.get(id)
            if (id, BEGIN) in changes.replies:
                self._outgoing.send(session, StreamClosed(id, Fault(ErrorName.INTERNAL, hint(failure))))
            elif stream is not None and not stream.is_ended:
                self._nack(session, id, ErrorName.TRANSIENT, hint(failure))

    def _nack(self, session: Session, id: str, name: ErrorName, reason: str) -> None:
        """Once for a gap: what was sent after the missing part is on its way already. The number is a durable one,
        because a client forgets what is lower."""
        stored = _durably_expected(session, id)
        if self._nacked.get((session.id, id)) != stored:
            self._nacked[session.id, id] = stored
            self._outgoing.send(session, StreamNack(id, stored, name, reason))

    # -- the end that is not the client's

    def cancel(self, session: Session, now: float) -> list[Append]:
        """The ends of the streams that a session has open, to be committed with its own end."""
        fault = Fault(CANCELLED, "the connection that sent it has ended")
        streams = list(session.streams.values())
        for stream in streams:
            self._forget(session.id, stream.id)
        return [self._end_of(session, stream, fault, now) for stream in streams if not stream.is_ended]

    def _break(self, session: Session, stream: ClientStream, fault: Fault, now: float) -> None:
        append = self._end_of(session, stream, fault, now)
        changes = self._stage(session, stream, END, StreamClosed(stream.id, fault), append)
        changes.streams[stream.id] = None
        del session.streams[stream.id]

    def _end_of(self, session: Session, stream: ClientStream, fault: Fault | None, now: float) -> Append:
        """It does not expire: who has received something has to learn that there is no more."""
        part = StreamPart(stream.id, stream.expected, True, fault)
        terms = DeliveryTerms(stream.no_echo, metadata=stream.metadata, stream=part)
        return message(
            self._context.stream, self._context.mint(now), group_target(stream.group), None,
            at=round(now * 1e6), sender=session.id, user=session.user, terms=terms, on_fresh=self._context.accepted,
        )  # fmt: skip

    # -- idle streams

    def resumed(self, session: Session, now: float) -> None:
        """Its client is back: the time without a socket does not count. A nack may have been lost with the old one."""
        for stream in session.streams.values():
            self._nacked.pop((session.id, stream.id), None)
            if not stream.is_ended:
                self._mark_active(session, stream, now)

    def _mark_active(self, session: Session, stream: ClientStream, now: float) -> None:
        active = self._active.get((session.id, stream.id))
        if active is not None:
            active.seen = now
        else:
            self._look_again(session.id, stream.id, _Activity(now, now + stream.idle_ms / 1000))

    def _look_again(self, connection: str, id: str, active: _Activity) -> None:
        self._active[connection, id] = active
        heappush(self._timers, (active.at, connection, id))

    def next_deadline(self) -> float | None:
        return self._timers[0][0] if self._timers else None

    def on_timer(self, now: float) -> None:
        while self._timers and self._timers[0][0] <= now:
            at, connection, id = heappop(self._timers)
            active = self._active.get((connection, id))
            if active is not None and active.at == at:
                self._check(connection, id, active, now)

    def _check(self, connection: str, id: str, active: _Activity, now: float) -> None:
        session = self._roster.get(connection)
        stream = session.streams.get(id) if session is not None else None
        if session is None or session.peer is None or stream is None or stream.is_ended:
            self._forget(connection, id)
            return
        idle_s = stream.idle_ms / 1000
        if active.seen + idle_s <= now:
            fault = Fault(ErrorName.IDLE_TIMEOUT, f"nothing was heard of the stream for {stream.idle_ms} ms")
            self._break(session, stream, fault, now)
            active.seen = now  # if the store does not take the end, its idle time begins again
        active.at = active.seen + idle_s
        self._look_again(connection, id, active)

    def _forget(self, connection: str, id: str) -> None:
        self._active.pop((connection, id), None)
        self._nacked.pop((connection, id), None)


def _durably_expected(session: Session, id: str) -> int:
    """The next part, by what is stored. A stream of the same name that has ended does not count."""
    stored = session.streams.stored.get(id)
    return stored.expected if stored is not None and not stored.is_ended else 1


def _metadata_size(stream: ClientStream) -> int:
    return sum(len(key) + len(value) for key, value in (stream.metadata or {}).items())


def _clean(text: str) -> str:
    """Printable, so that it is not longer in a header than it is."""
    return "".join(char if char.isprintable() else " " for char in clean_cause(text))


def _forbidden(group: str) -> Fault:
    return Fault(ErrorName.FORBIDDEN, f"The client does not have permission to send to group '{group}'.")
