"""The sending of client streams: messages in parts, each part published once and in order while the session lives.

    begin     is repeated until the server says which part it expects: the first
    parts     go out as they are written and again until they are acknowledged, up to a bound; who writes more waits
    end       goes out when all parts are acknowledged: before that a part may still be refused for a time, and an end
              that overtook it would make the stream whole without it. An end with an error need not wait

A stream dies with its session, and the server tells those who receive it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice

import msgspec

from semel.errors import InputError, LocalProtocolError, SemelError
from semel.kernel.retry import RetryPolicy
from semel.pubsub.client.checks import check_part, check_stream
from semel.pubsub.client.errors import (
    broken,
    end_in_doubt,
    error_of,
    is_for_a_time,
    not_sent,
    not_taken_in_time,
    session_lost,
)
from semel.pubsub.client.events import (
    BeginStream,
    ClientOptions,
    EndStream,
    FlushStream,
    KeepStream,
    RequestAccepted,
    RequestFailed,
    Result,
    StreamEvent,
    WritePart,
)
from semel.pubsub.protocol.frames import Codec, Frame
from semel.pubsub.protocol.messages import (
    Data,
    ErrorName,
    Fault,
    StartStream,
    StreamAck,
    StreamClosed,
    StreamData,
    StreamEnd,
    StreamNack,
)


class Window:
    """The parts that the server has not acknowledged, in order. `first` is the first of them, `next` the number of the
    next new one.

    An acknowledgement names the next part that is expected, and a server drops what comes after a gap. So there is one
    time to wait for all of them, which starts again with each acknowledgement; when it is up, everything goes out again
    from the first. With a time for each part, a slow link would carry every part again and again.
    """

    def __init__(self, count_max: int, bytes_max: int) -> None:
        self._count_max, self._bytes_max = count_max, bytes_max
        self._kept: deque[tuple[Frame, int]] = deque()
        self._bytes = 0
        self.first = self.next = 1
        self._unsent = 1  # what goes out next
        self._sent_max = 0  # the highest that ever went out

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def has_room(self) -> bool:
        return len(self._kept) < self._count_max and self._bytes < self._bytes_max

    def add(self, frame: Frame, size: int) -> None:
        """The frame of part `next`."""
        self._kept.append((frame, size))
        self._bytes += size
        self.next += 1

    def take_unsent(self) -> Iterator[Frame]:
        """What goes out now."""
        for frame, _ in islice(self._kept, self._unsent - self.first, None):
            self._unsent += 1
            self._sent_max = max(self._sent_max, self._unsent - 1)
            yield frame

    def go_back(self) -> None:
        """All of it goes out again."""
        self._unsent = self.first

    def clear(self) -> None:
        """Nobody wants the rest any more."""
        self._kept.clear()
        self._bytes = 0
        self._unsent = self.next = self.first

    def can_expect(self, number: int) -> bool:
        """Whether a server that keeps its word may say that it expects this part next."""
        return self.first <= number <= self._sent_max + 1

    def acknowledge(self, expected: int) -> bool:
        """All before this one are there. Whether that is news."""
        is_new = expected > self.first
        while self._kept and self.first < expected:
            self._bytes -= self._kept.popleft()[1]
            self.first += 1
        self._unsent = max(self._unsent, self.first)
        return is_new


GIVEN_UP = Fault(ErrorName.USER, "the sender has given it up")


class _Write(msgspec.Struct, frozen=True):
    """A part for which there is no room yet."""

    token: int
    data: Data
    size: int


class _End(msgspec.Struct):
    """`sent` counts how often."""

    token: int | None
    error: Fault | None
    frame: Frame
    is_due: bool = True
    sent: int = 0


class _Stream(msgspec.Struct, eq=False):
    """`token`: who waits for it to begin. `asked` counts how often the session was asked for it. `wakes_at`:
    when it is too long without an answer, or, if it `rests`, when what the server could not take may be tried again."""

    request: StartStream
    token: int | None
    frame: Frame
    window: Window
    is_begun: bool = False
    is_due: bool = True
    asked: int = 0
    writes: deque[_Write] = msgspec.field(default_factory=deque)
    flushes: deque[tuple[int, int]] = msgspec.field(default_factory=deque)
    end: _End | None = None
    wakes_at: float | None = None
    rests: bool = False
    attempt: int = 0
    refusals: int = 0

    @property
    def id(self) -> str:
        return self.request.stream_id

    @property
    def is_waiting(self) -> bool:
        """For an answer of the server."""
        return not self.is_begun or len(self.window) > 0 or self.end is not None

    @property
    def is_in_doubt(self) -> bool:
        """Whether it may have ended as asked."""
        return self.end is not None and self.end.error is None and self.end.sent > 0


class ClientStreams:
    """`send` puts a frame on the socket, `settle` says what became of a token, `over` that a stream is gone."""

    def __init__(
        self,
        options: ClientOptions,
        codec: Codec,
        chance: Callable[[], float],
        send: Callable[[Frame], None],
        settle: Callable[[int | None, Result], None],
        over: Callable[[str, SemelError | None], None],
    ) -> None:
        self._options, self._codec, self._chance = options, codec, chance
        self._send, self._report, self._over = send, settle, over
        self._waits = RetryPolicy(None, options.ack_timeout_s, 2.0, options.ack_timeout_max_s)
        self._streams: dict[str, _Stream] = {}
        self._tokens: dict[int, _Stream] = {}

    def __len__(self) -> int:
        """How many streams are waiting for something from the server."""
        return sum(stream.is_waiting for stream in self._streams.values())

    # -- what the application says

    def ask(self, event: StreamEvent) -> None:
        try:
            self._ask(event)
        except SemelError as error:
            self._report(None if isinstance(event, KeepStream) else event.token, RequestFailed(error))

    def _ask(self, event: StreamEvent) -> None:
        match event:
            case BeginStream():
                self._begin(event)
            case WritePart():
                self._write(self._writable(event.stream_id), event)
            case FlushStream(token=token):
                self._flush(self._open(event.stream_id), token)
            case EndStream():
                self._end(self._writable(event.stream_id), event)
            case KeepStream(stream_id=id):
                stream = self._streams.get(id)
                if stream is not None and stream.is_begun:
                    self._send(self._codec.encode_request(StreamData(id)))

    def _begin(self, event: BeginStream) -> None:
        request = event.request
        check_stream(request, self._codec)
        if request.stream_id in self._streams:
            raise InputError(f"the stream {request.stream_id!r} is open already", fix="give each stream its own id")
        window = Window(self._options.stream_window, self._options.stream_bytes_max)
        stream = _Stream(request, event.token, self._codec.encode_request(request), window)
        self._streams[stream.id] = self._tokens[event.token] = stream

    def _open(self, id: str) -> _Stream:
        stream = self._streams.get(id)
        if stream is None or not stream.is_begun:
            raise LocalProtocolError(f"there is no open stream {id!r}", fix="begin one, and write before it is ended")
        return stream

    def _writable(self, id: str) -> _Stream:
        stream = self._open(id)
        if stream.end is not None:
            raise LocalProtocolError(f"the stream {id!r} is being ended", fix="write before that, and end it once")
        return stream

    def _write(self, stream: _Stream, event: WritePart) -> None:
        size = check_part(stream.id, event.data, self._codec)
        stream.writes.append(_Write(event.token, event.data, size))
        self._tokens[event.token] = stream
        self._admit(stream)

    def _admit(self, stream: _Stream) -> None:
        """As many parts as there is room for get their numbers."""
        while stream.writes and stream.window.has_room:
            write = stream.writes.popleft()
            part = StreamData(stream.id, stream.window.next, write.data)
            stream.window.add(self._codec.encode_request(part), write.size)
            self._settle(write.token, RequestAccepted())

    def _flush(self, stream: _Stream, token: int) -> None:
        self._tokens[token] = stream
        stream.flushes.append((stream.window.next, token))
        self._flushed(stream)

    def _flushed(self, stream: _Stream) -> None:
        while stream.flushes and stream.flushes[0][0] <= stream.window.first:
            self._settle(stream.flushes.popleft()[1], RequestAccepted())

    def _end(self, stream: _Stream, event: EndStream) -> None:
        if event.token is not None:
            self._tokens[event.token] = stream
        self._begin_end(stream, event.token, event.error)

    def _begin_end(self, stream: _Stream, token: int | None, error: Fault | None) -> None:
        stream.end = _End(token, error, self._codec.encode_request(StreamEnd(stream.id, error)))
        if error is not None:
            self._fail_waiting(stream, _broken(stream, error))
            stream.window.clear()

    # -- what goes out

    def fill(self, now: float) -> None:
        """All that may go out now, and again what is not answered for too long."""
        for stream in self._streams.values():
            if stream.wakes_at is not None and stream.wakes_at <= now:
                self._wake(stream)
            if not stream.rests:
                self._go_on(stream, now)

    def _wake(self, stream: _Stream) -> None:
        if not stream.rests:
            stream.attempt += 1
        stream.wakes_at, stream.rests = None, False
        self._go_back(stream)

    def _go_back(self, stream: _Stream) -> None:
        """What is not answered goes out again."""
        stream.is_due = True
        stream.window.go_back()
        if stream.end is not None:
            stream.end.is_due = True

    def _go_on(self, stream: _Stream, now: float) -> None:
        end = stream.end
        if not stream.is_begun:
            if stream.is_due:
                stream.is_due, stream.asked = False, stream.asked + 1
                self._send(stream.frame)
        else:
            for frame in stream.window.take_unsent():
                self._send(frame)
            if end is not None and end.is_due and not stream.window and not stream.writes:
                end.is_due, end.sent = False, end.sent + 1
                self._send(end.frame)
        if stream.wakes_at is None and stream.is_waiting:
            stream.wakes_at = now + self._waits.wait_s(stream.attempt + 1, 0.0)

    def begin_socket(self) -> None:
        """On a new socket of the same session. One of which nothing is awaited may have been ended, and the word of it
        lost: keeping it alive brings that to light."""
        for stream in self._streams.values():
            stream.wakes_at, stream.rests, stream.attempt = None, False, 0
            self._go_back(stream)
            if not stream.is_waiting:
                self._send(self._codec.encode_request(StreamData(stream.id)))

    def next_deadline(self) -> float | None:
        times = [stream.wakes_at for stream in self._streams.values() if stream.wakes_at is not None]
        return min(times, default=None)

    # -- what the server says

    def handle(self, response: StreamAck | StreamNack | StreamClosed, now: float) -> bool:
        """Whether it gets on."""
        stream = self._streams.get(response.stream_id)
        if stream is None:
            return False
        match response:
            case StreamAck(expected=expected):
                return self._acked(stream, expected)
            case StreamNack():
                return self._nacked(stream, response, now)
            case StreamClosed(error=fault):
                self._closed(stream, fault, now)
                return True

    def _acked(self, stream: _Stream, expected: int) -> bool:
        """One that is lower than the last was on its way already."""
        if not stream.is_begun:
            return expected == 1 and self._has_begun(stream)
        if expected < stream.window.first:
            return False
        return self._progress(stream, expected)

    def _has_begun(self, stream: _Stream) -> bool:
        stream.is_begun = True
        self._reset_backoff(stream)
        self._settle(stream.token, RequestAccepted())
        stream.token = None
        return True

    def _progress(self, stream: _Stream, expected: int) -> bool:
        if not stream.window.can_expect(expected):
            self._break(stream, _impossible(stream, expected))
            return False
        if not stream.window.acknowledge(expected):
            return False
        self._reset_backoff(stream)
        self._flushed(stream)
        self._admit(stream)
        return True

    def _reset_backoff(self, stream: _Stream) -> None:
        stream.wakes_at, stream.rests, stream.attempt, stream.refusals = None, False, 0, 0

    def _nacked(self, stream: _Stream, response: StreamNack, now: float) -> bool:
        if not stream.is_begun or (stream.end is not None and stream.end.error is not None):
            return False
        gets_on = self._progress(stream, response.expected)
        if stream.id in self._streams and stream.is_waiting:
            at_once = response.name == ErrorName.INVALID_SEQUENCE and stream.refusals == 0
            self._refused(stream, Fault(response.name, response.message or ""), now, at_once=at_once)
        return gets_on

    def _refused(self, stream: _Stream, fault: Fault, now: float, *, at_once: bool = False) -> None:
        """It is tried again, but not for ever and not without a break."""
        stream.refusals += 1
        if stream.refusals > self._options.refusals_max:
            self._give_up_stream(stream, fault)
            return
        self._go_back(stream)
        stream.rests = not at_once
        stream.wakes_at = None if at_once else now + self._options.backoff.wait_s(stream.refusals, self._chance())

    def _give_up_stream(self, stream: _Stream, fault: Fault) -> None:
        if stream.is_begun:
            self._send(self._codec.encode_request(StreamEnd(stream.id, GIVEN_UP)))
            self._break(stream, _broken(stream, fault))
        else:
            self._break(stream, error_of(fault))

    def _closed(self, stream: _Stream, fault: Fault | None, now: float) -> None:
        """While it is being begun, an end can only be that of one before it with the same id."""
        is_unknown = fault is not None and fault.name == ErrorName.STREAM_NOT_FOUND
        if not stream.is_begun:
            if fault is not None and not is_unknown:
                self._not_begun(stream, fault, now)
        elif stream.end is not None and (stream.end.error is not None or (fault is None and stream.end.sent)):
            self._break(stream, None)
        elif is_unknown and stream.is_in_doubt and stream.end is not None and stream.end.sent > 1:
            self._break(stream, end_in_doubt("the server does not know the stream any more"))
        else:
            self._break(stream, _broken(stream, fault or Fault("Ended", "the server has ended it")))

    def _not_begun(self, stream: _Stream, fault: Fault, now: float) -> None:
        if is_for_a_time(fault) and stream.end is None:
            self._refused(stream, fault, now)
        else:
            self._break(stream, error_of(fault))

    # -- the end of it

    def on_session_lost(self, error: SemelError) -> None:
        """What the lost session was only asked for, it may have begun. Its end would come later than the beginning in
        the next session, and those who receive both know them by the same id: so that one is not begun again."""
        for stream in list(self._streams.values()):
            if stream.end is not None and stream.end.error is not None:
                self._break(stream, None)
            elif stream.is_in_doubt:
                self._break(stream, end_in_doubt(error.message))
            elif stream.asked:
                self._break(stream, session_lost(error, _parts(stream)))

    def finish(self, cause: SemelError) -> None:
        """No stream outlives the client."""
        for stream in list(self._streams.values()):
            if stream.is_in_doubt:
                self._break(stream, end_in_doubt(cause.message))
            elif stream.asked:
                self._break(stream, _broken(stream, Fault("Stopped", cause.message)))
            else:
                self._break(stream, not_sent(cause))

    def is_token(self, token: int) -> bool:
        return token in self._tokens

    def give_up(self, token: int, error: SemelError | None) -> None:
        """Nobody waits any more. What has begun to end goes on ending."""
        stream = self._tokens[token]
        waiting = [write for write in stream.writes if write.token == token]
        was_sent = not waiting and (stream.is_begun or stream.asked > 0)
        if waiting:
            stream.writes.remove(waiting[0])
        elif token == stream.token:
            self._abandon(stream)
        elif stream.end is not None and token == stream.end.token:
            stream.end.token = None
        else:
            stream.flushes = deque(each for each in stream.flushes if each[1] != token)
        self._settle(token, RequestFailed(error or not_taken_in_time(was_sent), maybe_taken=was_sent))

    def _abandon(self, stream: _Stream) -> None:
        """It may have begun already: then it is to be ended."""
        stream.token = None
        if stream.asked:
            self._begin_end(stream, None, GIVEN_UP)
        else:
            del self._streams[stream.id]

    def _break(self, stream: _Stream, error: SemelError | None) -> None:
        """It is over, with an error or as asked."""
        del self._streams[stream.id]
        result = RequestAccepted() if error is None else RequestFailed(error)
        if stream.end is not None:
            self._settle(stream.end.token, result)
        self._settle(stream.token, result)
        self._fail_waiting(stream, error or _broken(stream, GIVEN_UP))
        self._over(stream.id, error)

    def _fail_waiting(self, stream: _Stream, error: SemelError) -> None:
        tokens = [write.token for write in stream.writes] + [token for _, token in stream.flushes]
        stream.writes.clear()
        stream.flushes.clear()
        for token in tokens:
            self._settle(token, RequestFailed(error))

    def _settle(self, token: int | None, result: Result) -> None:
        if token is not None:
            del self._tokens[token]
            self._report(token, result)


def _parts(stream: _Stream) -> int:
    """How many the server surely has."""
    return stream.window.first - 1


def _broken(stream: _Stream, fault: Fault) -> SemelError:
    return broken(fault, _parts(stream))


def _impossible(stream: _Stream, expected: int) -> SemelError:
    return _broken(stream, Fault("RemoteProtocolError", f"part {expected} is expected, which cannot be"))
