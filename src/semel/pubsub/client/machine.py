"""A client of a hub as a machine: it keeps one session alive, publishes each message once and hands on each once.

Waiting ─► Opening ─► Proving ─► Ready      a socket; when it goes, back to Waiting
                                            Proving: the socket is open, the server has said nothing yet

session     outlives its sockets: it is recovered until the server refuses or the time is up, and then it is lost
requests    go out again under the same ackId until they are answered, on a live socket and on the next one
a loss      ends the ackIds. Groups, their states and watches are restored before anything else; a message with the
            application's own id is sent again, because the hub knows it by that; what has none fails, and says that
            nobody knows. So do streams
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum, auto
from heapq import heappop, heappush

import msgspec

from semel.errors import (
    DuplicateMessage,
    FrameError,
    InputError,
    LimitExceeded,
    LocalProtocolError,
    PeerUnavailable,
    RemoteProtocolError,
    SemelError,
    SessionGone,
)
from semel.kernel.retry import RetryPolicy
from semel.pubsub.client.acks import ClientInvocations, Invocation, Pending, Requests
from semel.pubsub.client.checks import check_request, with_id
from semel.pubsub.client.errors import STOPPED, error_of, is_for_a_time, not_taken_in_time, unanswered, unknown
from semel.pubsub.client.events import (
    Abandoned,
    Abort,
    Acked,
    BeginStream,
    Changing,
    ClientOptions,
    Closed,
    CloseSocket,
    Connect,
    DeliverMessage,
    Effect,
    EndStream,
    Event,
    FlushStream,
    FrameReceived,
    GroupLost,
    GroupStateLost,
    InOutbox,
    Interrupted,
    InvocationAnswered,
    Keep,
    KeepStream,
    Kept,
    MarkSent,
    Message,
    MessageDelivered,
    NotifyApplication,
    NotKept,
    Online,
    OpenFailed,
    OutboxEntry,
    Recover,
    Recovered,
    Remove,
    ReportStates,
    RequestAccepted,
    RequestFailed,
    Result,
    SendFrame,
    SessionLost,
    Settle,
    SocketOpened,
    State,
    Stop,
    Stopped,
    StreamEvent,
    StreamOver,
    SubmitRequest,
    Withdraw,
    WritePart,
)
from semel.pubsub.client.inbox import DeliveryQueue, SequenceAcks
from semel.pubsub.client.states import ClientGroupStates
from semel.pubsub.client.streams import ClientStreams
from semel.pubsub.protocol.codecs import SimpleCodec, codec_for
from semel.pubsub.protocol.frames import RELIABLE, Codec, Frame
from semel.pubsub.protocol.messages import (
    Ack,
    Connected,
    Disconnected,
    ErrorName,
    GroupMessage,
    GroupStateItem,
    GroupStateSnapshot,
    GroupStateUpdate,
    Invoke,
    InvokeResponse,
    JoinGroup,
    LeaveGroup,
    Ping,
    Response,
    SendEvent,
    SendToGroup,
    SequenceAck,
    ServerMessage,
    StreamAck,
    StreamClosed,
    StreamNack,
    SubscribeGroupState,
)
from semel.websocket import CloseCode

REFUSED_S = 0.25
"""After which messages that the server could not take are sent again, if it is the first time."""
STABLE_S = 2.0
"""A socket that has lived for so long was not part of the trouble before it."""


class Phase(Enum):
    WAITING = auto()
    OPENING = auto()
    AWAITING_FIRST_FRAME = auto()
    READY = auto()
    STOPPED = auto()


class _Session(msgspec.Struct):
    connection_id: str
    token: str | None
    user: str | None


class ClientMachine:
    """`chance` gives a number in [0, 1). `kept` is what the outbox holds from before."""

    def __init__(self, options: ClientOptions, chance: Callable[[], float], kept: Iterable[OutboxEntry] = ()) -> None:
        codec = codec_for(options.subprotocol)
        assert not isinstance(codec, SimpleCodec)
        self.options = options
        self.groups: dict[str, None] = {}
        self.phase = Phase.WAITING
        self._codec: Codec = codec
        self._chance, self._kept = chance, tuple(kept)
        self._requests = Requests(options, codec)
        self._after_refusal = RetryPolicy(
            None, min(REFUSED_S, options.ack_timeout_max_s), 2.0, options.ack_timeout_max_s
        )
        self._invocations = ClientInvocations(codec)
        self._streams = ClientStreams(options, codec, chance, self._send, self._settle, self._stream_over)
        self.states = ClientGroupStates(self._settle, self._report_states)
        self._arrivals = self._new_arrivals()
        self._handing = DeliveryQueue(options)
        self._session: _Session | None = None
        self._disconnect_reason = ""
        self._restoring: set[tuple[type, str]] = set()
        self._socket = 0
        self._was_online = False
        self._since: float | None = None
        self._attempt = 0
        self._next_at = self._ready_at = self._last_received_at = self._asked_at = 0.0
        self._timeouts: list[tuple[float, int]] = []
        self._stop_at: float | None = None
        self._stop_delivers = True
        self._effects: list[Effect] = []

    def _new_arrivals(self) -> SequenceAcks:
        options = self.options
        return SequenceAcks(options.sequence_ack_count, options.sequence_ack_bytes, options.sequence_ack_s)

    # -- the machine

    def start(self, now: float) -> Sequence[Effect]:
        for entry in self._kept:
            self._restore_entry(entry)
        self._fail_unrepeatable(now)
        self._since = now
        self._connect(now)
        return self._end(now)

    def receive(self, event: Event, now: float) -> Sequence[Effect]:
        match event:
            case FrameReceived(socket=socket, frame=frame):
                if self._is_open(socket):
                    self._handle_frame(frame, now)
            case SubmitRequest():
                self._ask(event, now)
            case BeginStream() | WritePart() | FlushStream() | EndStream() | KeepStream():
                self._ask_stream(event, now)
            case MessageDelivered(number=number):
                self._delivered(number, now)
            case SocketOpened(socket=socket, subprotocol=subprotocol):
                if socket == self._socket and self.phase is Phase.OPENING:
                    self._opened(subprotocol, now)
            case OpenFailed(socket=socket, error=error):
                if socket == self._socket and self.phase is Phase.OPENING:
                    self._open_failed(error, now)
            case Closed(socket=socket, code=code, reason=reason):
                if self._is_open(socket) or (socket == self._socket and self.phase is Phase.OPENING):
                    self._closed(code, reason, now)
            case Kept(ids=ids):
                for id in ids:
                    self._keep_done(id)
            case NotKept(ids=ids, error=error):
                for id in ids:
                    self._keep_failed(id, error)
            case Withdraw(token=token):
                self._give_up(token, LocalProtocolError("it was withdrawn", fix="ask again if it is still wanted"))
            case Stop(drain_s=drain_s, delivers=delivers):
                self._stop_at, self._stop_delivers = now + drain_s, delivers
            case Abort(error=error):
                if self.phase is not Phase.STOPPED:
                    self._finish(error)
        return self._end(now)

    @property
    def room(self) -> int:
        """How many more requests are taken now. A caller who would rather wait than fail waits for this."""
        return max(0, self._requests.room - len(self._invocations))

    @property
    def undelivered(self) -> int:
        """How many messages the application has not had yet."""
        return len(self._handing)

    @property
    def is_reading(self) -> bool:
        """Whether a driver should go on reading. The application may have enough for now; but as long as anybody waits
        for an answer it is read on, because that may be the application itself."""
        return self.phase is not Phase.READY or self._is_asked() or self._handing.fullness < 1

    def _is_asked(self) -> bool:
        """Whether an answer is awaited from the server."""
        return any(len(part) for part in (self._requests, self._invocations, self._streams, self.states))

    def next_deadline(self) -> float | None:
        times = [self._timeouts[0][0]] if self._timeouts else []
        if self._stop_at is not None:
            times.append(self._stop_at)
        if self.phase is Phase.READY:
            times.append(min(self._last_received_at + self.options.dead_s, self._ping_at()))
            parts = (self._requests, self._streams, self._arrivals)
            times.extend(at for part in parts if (at := part.next_deadline()) is not None)
        else:
            times.append(self._next_at)
        return min(times) if self.phase is not Phase.STOPPED else None

    def on_timer(self, now: float) -> Sequence[Effect]:
        while self._timeouts and self._timeouts[0][0] <= now:
            self._give_up(heappop(self._timeouts)[1], None)
        if self.phase is Phase.READY:
            self._keep_alive(now)
        elif self._next_at <= now:
            if self.phase is Phase.WAITING:
                self._connect(now)
            elif self.phase is not Phase.STOPPED:
                self._hang_up(PeerUnavailable("the server does not answer", fix="is it there, and is it well?"), now)
        return self._end(now)

    def _end(self, now: float) -> Sequence[Effect]:
        if self.phase is Phase.READY:
            self._pump(now)
        if self._stop_at is not None and self.phase is not Phase.STOPPED and (self._stop_at <= now or self._is_idle()):
            self._finish(None)
        while self._timeouts and not self._waits(self._timeouts[0][1]):
            heappop(self._timeouts)
        effects, self._effects = self._effects, []
        return effects

    def _pump(self, now: float) -> None:
        """All that may go out now, in one go."""
        self._send_requests(self._requests.overdue(now), now)
        self._send_requests(self._requests.fill(now, restores_only=bool(self._restoring)), now)
        if not self._restoring:
            for frame in self._invocations.fill():
                self._send(frame)
            self._streams.fill(now)
        self._acknowledge(self._arrivals.due(now))

    def _waits(self, token: int) -> bool:
        is_asked = self._requests.by_token(token) is not None or self._invocations.by_token(token) is not None
        return is_asked or self._streams.is_token(token) or self.states.is_token(token)

    def _is_idle(self) -> bool:
        return not self._is_asked() and (not len(self._handing) or not self._stop_delivers)

    def _notify(self, state: State) -> None:
        self._effects.append(NotifyApplication(state))

    def _settle(self, token: int | None, result: Result) -> None:
        if token is not None:
            self._effects.append(Settle(token, result))

    # -- sockets

    def _is_open(self, socket: int) -> bool:
        return socket == self._socket and self.phase in (Phase.AWAITING_FIRST_FRAME, Phase.READY)

    def _connect(self, now: float) -> None:
        self._socket += 1
        self.phase = Phase.OPENING
        self._next_at = now + self.options.open_timeout_s
        session = self._session
        recover = Recover(session.connection_id, session.token) if session is not None and session.token else None
        self._effects.append(Connect(self._socket, recover))

    def _opened(self, subprotocol: str | None, now: float) -> None:
        """A session that is recovered need not say anything, and one that is refused is closed: so it is asked."""
        if (subprotocol or "").lower() != self.options.subprotocol:
            error = RemoteProtocolError(
                f"the server speaks {subprotocol!r} and not {self.options.subprotocol.value!r}",
                fix="is this the address of a hub?",
            )
            self._effects.append(CloseSocket(self._socket, CloseCode.PROTOCOL_ERROR, "another subprotocol was asked"))
            self._open_failed(error, now)
            return
        self.phase = Phase.AWAITING_FIRST_FRAME
        self._last_received_at = now
        if self._session is not None:
            self._arrivals.begin_socket()
            self._ping(now)

    def _open_failed(self, error: SemelError, now: float) -> None:
        """While a session can be saved, every error may be that of something between us and the server."""
        if self._session is None and not error.retryable:
            self._finish(error)
        else:
            self._socket_lost(error, now)

    def _closed(self, code: int | None, reason: str, now: float) -> None:
        text = f"the server closed the connection with {code}" if code is not None else "the connection broke"
        if reason:
            text = f"{text}: {reason}"
        if self._session is not None and code in (CloseCode.NORMAL, CloseCode.POLICY):
            self._on_session_lost(f"{text}; {self._disconnect_reason}" if self._disconnect_reason else text, now)
        else:
            self._socket_lost(PeerUnavailable(text, fix="is the server there, and is it well?"), now)

    def _hang_up(self, error: SemelError, now: float, code: int = CloseCode.GOING_AWAY) -> None:
        self._effects.append(CloseSocket(self._socket, code, "no answer" if code == CloseCode.GOING_AWAY else ""))
        self._socket_lost(error, now)

    def _socket_lost(self, error: SemelError, now: float) -> None:
        if self.phase is Phase.READY and self._session is not None and self._session.token is not None:
            self._notify(Interrupted(error))
        self._leave_socket(now)
        if self._since is None:
            self._since = now
        if self._session is not None and self._session.token is None:
            self._on_session_lost(error.message, now)
        else:
            self._try_again(error, now)

    def _leave_socket(self, now: float) -> None:
        self._handing.leave_socket()
        if self.phase is Phase.READY and now - self._ready_at >= STABLE_S:
            self._since, self._attempt = None, 0
        self.phase = Phase.WAITING

    def _try_again(self, error: SemelError, now: float) -> None:
        assert self._since is not None
        self._attempt += 1
        self._next_at = now + self.options.backoff.wait_s(self._attempt, self._chance())
        patience = self._patience()
        if patience is None or (patience > 0 and self._next_at <= self._since + patience):
            return
        if self._session is not None:
            self._on_session_lost(f"it could not be recovered in {patience:g} s; the last try: {error.message}", now)
        else:
            self._finish(error)

    def _patience(self) -> float | None:
        if self._session is not None:
            return self.options.recover_for_s
        return self.options.reconnect_for_s if self._was_online else self.options.connect_for_s

    def _reset_backoff(self) -> None:
        """A session that gets on is not to be given up: the next trouble has its own time."""
        self._since = None

    # -- keeping alive

    def _ping_at(self) -> float:
        return max(self._last_received_at, self._asked_at) + self.options.ping_s

    def _ping(self, now: float) -> None:
        self._asked_at = now
        self._send(self._codec.encode_request(Ping()))

    def _keep_alive(self, now: float) -> None:
        if not self.is_reading:
            self._last_received_at = now  # it may have spoken, and nobody listens
        elif now >= self._last_received_at + self.options.dead_s:
            silence = PeerUnavailable(
                f"the server has said nothing for {now - self._last_received_at:.0f} s", fix="is the network there?"
            )
            self._hang_up(silence, now)
        elif now >= self._ping_at():
            self._ping(now)

    # -- sessions

    def _begin_session(self, response: Connected, now: float) -> None:
        token = response.reconnection_token if self.options.subprotocol in RELIABLE else None
        self._session = _Session(response.connection_id, token, response.user_id)
        self._arrivals = self._new_arrivals()
        self._disconnect_reason = ""
        self._was_online = True
        self._be_ready(now)
        self._since = None
        self._fail_unrepeatable(now)
        restored = [*(JoinGroup(group) for group in self.groups), *self.states.restored()]
        self._restoring = {(type(request), request.group) for request in restored}
        self._requests.add_first(Pending(None, request, restores=True) for request in restored)
        self._announce()

    def _restored(self, request: Changing) -> None:
        self._restoring.discard((type(request), request.group))
        self._announce()

    def _announce(self) -> None:
        """Report the new session once the groups and states of the one before it are restored."""
        if not self._restoring and self._session is not None:
            self._notify(Online(self._session.connection_id, self._session.user))

    def _be_ready(self, now: float) -> None:
        self.phase = Phase.READY
        self._ready_at = now

    def _recovered(self, now: float) -> None:
        assert self._session is not None
        self._be_ready(now)
        self._notify(Recovered(self._session.connection_id))
        self._send_requests(self._requests.begin_socket(now), now)
        self._streams.begin_socket()

    def _on_session_lost(self, reason: str, now: float) -> None:
        assert self._session is not None
        error = SessionGone(f"the session is lost: {reason}", fix="look up what was sent to you since")
        self._notify(SessionLost(self._session.connection_id, error))
        self._session = None
        self._arrivals = self._new_arrivals()
        self._requests.on_session_lost()
        self._streams.on_session_lost(error)
        self._fail_unrepeatable(now)
        for invocation in self._invocations:
            if invocation.is_sent:
                self._invocations.remove(invocation)
                self._settle(invocation.token, RequestFailed(unknown(error), maybe_taken=True))
        self._leave_socket(now)
        self._since = now
        self._try_again(error, now)

    def _fail_unrepeatable(self, now: float) -> None:
        """A lost session may have taken them, and the next would take them a second time."""
        for pending in self._requests.in_doubt():
            if not pending.is_repeatable(now - self.options.id_memory_s):
                self._requests.remove(pending)
                self._fail(pending, unknown(SessionGone("its session was lost")), maybe_taken=True)

    def _fail(self, pending: Pending, error: SemelError, *, maybe_taken: bool) -> None:
        self._settle(pending.token, RequestFailed(error, maybe_taken))
        if pending.entry is not None:
            self._effects.append(Remove(pending.entry.id))
            if pending.token is None:
                self._notify(Abandoned(pending.entry, error, maybe_taken))

    # -- what the server says

    def _handle_frame(self, frame: Frame, now: float) -> None:
        self._last_received_at = now
        try:
            response = self._codec.decode_response(frame)
        except FrameError as error:
            self._hang_up(error, now, error.close_code)
            return
        if isinstance(response, Connected):
            self._connected(response, now)
            return
        if self.phase is Phase.AWAITING_FIRST_FRAME:
            if self._session is None:
                return
            self._recovered(now)
        self._take(response, len(frame), now)

    def _connected(self, response: Connected, now: float) -> None:
        if self._session is None:
            self._begin_session(response, now)
        elif self._session.connection_id == response.connection_id:
            self._session.token = response.reconnection_token or self._session.token
            if self.phase is Phase.AWAITING_FIRST_FRAME:
                self._recovered(now)
        else:
            self._on_session_lost("the server began another one", now)
            if self.phase is Phase.STOPPED:
                self._effects.append(CloseSocket(self._socket, CloseCode.NORMAL))
            else:
                self._begin_session(response, now)

    def _take(self, response: Response, size: int, now: float) -> None:
        match response:
            case GroupMessage() | ServerMessage():
                self._deliver(response, size, now)
            case Ack(ack_id=ack_id):
                pending = self._requests.find(ack_id)
                if pending is not None:
                    self._acked(pending, response, now)
            case InvokeResponse(invocation_id=id):
                invocation = self._invocations.find(id)
                if invocation is not None:
                    self._answered(invocation, response)
            case StreamAck() | StreamNack() | StreamClosed():
                if self._streams.handle(response, now):
                    self._reset_backoff()
            case GroupStateSnapshot() | GroupStateUpdate():
                self.states.handle(response)
            case Disconnected(reason=reason):
                self._disconnect_reason = reason
                self._notify(response)

    # -- messages

    def _deliver(self, message: Message, size: int, now: float) -> None:
        if self._handing.overflows():
            return
        sequence_id, arrivals = message.sequence_id or 0, None
        if sequence_id:
            arrivals = self._arrivals
            if not arrivals.arrive(sequence_id, size, now):
                return
            self._reset_backoff()
        self._effects.append(DeliverMessage(self._handing.add(sequence_id, size, arrivals), message))

    def _delivered(self, number: int, now: float) -> None:
        self._handing.delivered(number, now)
        if self._handing.can_make_up and self.phase is Phase.READY:
            self._hang_up(LimitExceeded("more messages came than the application takes", fix="raise inbox_max"), now)

    def _acknowledge(self, sequence_id: int | None) -> None:
        if sequence_id is not None:
            self._send(self._codec.encode_request(SequenceAck(sequence_id)))

    # -- requests

    def _ask(self, asked: SubmitRequest, now: float) -> None:
        try:
            self._check(asked)
            request = with_id(asked.request, asked.id)
            size = check_request(request, self._codec)
            if asked.keep and self._is_adopted(asked, request, now):
                return
        except SemelError as error:
            self._settle(asked.token, RequestFailed(error))
            return
        if isinstance(request, Invoke):
            self._invocations.add(asked.token, request)
            timeout_s: float | None = self.options.invoke_timeout_s if asked.timeout_s is None else asked.timeout_s
        else:
            pending = Pending(asked.token, request, asked.at_least_once, until_kept=asked.until_kept, size=size)
            if asked.keep:
                self._keep(pending, asked.id, now)
            self._requests.add(pending)
            timeout_s = asked.timeout_s
        self._time_out(asked.token, timeout_s, now)

    def _time_out(self, token: int, timeout_s: float | None, now: float) -> None:
        if timeout_s is not None:
            heappush(self._timeouts, (now + timeout_s, token))

    def _check_running(self) -> None:
        if self._stop_at is not None or self.phase is Phase.STOPPED:
            raise LocalProtocolError("the client is stopped", fix="ask before it is stopped")

    def _check(self, asked: SubmitRequest) -> None:
        self._check_running()
        if not self.room:
            raise LimitExceeded(
                f"{len(self._requests) + len(self._invocations):,} requests are waiting",
                fix="wait until there is room, or raise queue_max",
            )
        if asked.keep and asked.id is None:
            raise InputError("only a message with an id can be kept", fix="give it an id of your own")

    def _is_adopted(self, asked: SubmitRequest, request: Acked | Invoke, now: float) -> bool:
        """Whether it is in the outbox already, or on its way there, and nobody waits for it: a process that died has
        left it, and the next one, which cannot know how far that came, asks for the same again."""
        pending = self._requests.by_id(asked.id or "")
        if pending is None:
            return False
        if pending.token is not None:
            raise DuplicateMessage(f"{asked.id!r} is in the outbox already", fix="nothing to do: it will be sent")
        if pending.request != request:
            raise InputError(f"{asked.id!r} is in the outbox with other content", fix="give each message its own id")
        if asked.until_kept and pending.is_kept:
            self._settle(asked.token, InOutbox())
        else:
            pending.until_kept = asked.until_kept
            self._requests.adopt(pending, asked.token)
            self._time_out(asked.token, asked.timeout_s, now)
        return True

    def _ask_stream(self, asked: StreamEvent, now: float) -> None:
        """What was begun may still be ended when no more is begun."""
        if isinstance(asked, KeepStream):
            if self.phase is Phase.READY:
                self._streams.ask(asked)
            return
        try:
            if isinstance(asked, BeginStream | WritePart):
                self._check_running()
        except SemelError as error:
            self._settle(asked.token, RequestFailed(error))
            return
        self._streams.ask(asked)
        if asked.token is not None:
            self._time_out(asked.token, asked.timeout_s, now)

    def _stream_over(self, id: str, error: SemelError | None) -> None:
        self._effects.append(StreamOver(id, error))

    def _report_states(self, group: str, changed: tuple[GroupStateItem, ...]) -> None:
        self._effects.append(ReportStates(group, changed))

    def _send_requests(self, pendings: Sequence[Pending], now: float) -> None:
        """What the outbox holds as never sent is marked first."""
        marked = []
        for pending in pendings:
            entry = pending.entry
            if entry is not None and entry.sent_at is None:
                pending.entry = msgspec.structs.replace(entry, sent_at=now)
                marked.append(entry.id)
        if marked:
            self._effects.append(MarkSent(tuple(marked), now))
        for pending in pendings:
            self.states.sent(pending.request)
            self._send(pending.frame)

    def _send(self, frame: Frame) -> None:
        self._effects.append(SendFrame(self._socket, frame))

    def _acked(self, pending: Pending, ack: Ack, now: float) -> None:
        self._reset_backoff()
        error = ack.error
        if error is None or error.name == ErrorName.DUPLICATE:
            self._taken(pending, is_duplicate=error is not None)
            return
        is_message = isinstance(pending.request, SendToGroup)
        if is_message and is_for_a_time(error) and self._requests.count_answer(pending):
            return
        pending.refusals += 1
        if is_for_a_time(error) and self._may_repeat(pending):
            if is_message:
                self._requests.refuse(pending, now + self._after_refusal.wait_s(pending.refusals, self._chance()))
            return
        if is_for_a_time(error):
            self._requests.give_up(pending)
        else:
            self._requests.remove(pending)
        refusal = error_of(error)
        half_done = isinstance(pending.request, SendEvent) and is_for_a_time(error)
        self._fail(pending, refusal, maybe_taken=pending.in_doubt or half_done)
        self.states.refused(pending.request, refusal, restores=pending.restores)
        if pending.restores and isinstance(pending.request, Changing):
            self._not_restored(pending.request, refusal)

    def _not_restored(self, request: Changing, error: SemelError) -> None:
        if isinstance(request, JoinGroup):
            self.groups.pop(request.group, None)
            self._notify(GroupLost(request.group, error))
        else:
            self._notify(GroupStateLost(request.group, error, isinstance(request, SubscribeGroupState)))
        self._restored(request)

    def _may_repeat(self, pending: Pending) -> bool:
        """What an event's handler has done before it failed is not undone, so the caller decides about that."""
        if isinstance(pending.request, SendEvent):
            return False
        is_ours = pending.restores or pending.entry is not None
        return is_ours or pending.refusals <= self.options.refusals_max

    def _taken(self, pending: Pending, *, is_duplicate: bool) -> None:
        self._requests.remove(pending)
        if pending.entry is not None:
            self._effects.append(Remove(pending.entry.id))
        match pending.request:
            case JoinGroup(group=group):
                self.groups[group] = None
            case LeaveGroup(group=group):
                self.groups.pop(group, None)
        self.states.taken(pending.request)
        if pending.restores and isinstance(pending.request, Changing):
            self._restored(pending.request)
        if isinstance(pending.request, SubscribeGroupState):
            self.states.watched(pending.token, pending.request.group)
        else:
            self._settle(pending.token, RequestAccepted(is_duplicate))

    def _answered(self, invocation: Invocation, response: InvokeResponse) -> None:
        self._reset_backoff()
        self._invocations.remove(invocation)
        if response.error is None:
            self._settle(invocation.token, InvocationAnswered(response.data))
        else:
            self._settle(
                invocation.token, RequestFailed(error_of(response.error), maybe_taken=is_for_a_time(response.error))
            )

    def _give_up(self, token: int, error: SemelError | None) -> None:
        """Nobody waits any more. What is kept is sent all the same."""
        pending, invocation = self._requests.by_token(token), self._invocations.by_token(token)
        if pending is not None:
            was_sent = pending.sent_at is not None
            if pending.entry is not None:
                self._requests.let_go(pending)
            else:
                self._requests.give_up(pending)
        elif invocation is not None:
            was_sent = invocation.is_sent
            self._invocations.remove(invocation)
            if was_sent and self.phase is Phase.READY:
                self._send(self._invocations.cancel(invocation))
        else:
            self._give_up_other(token, error)
            return
        maybe_taken = was_sent or (pending is not None and pending.entry is not None)
        self._settle(token, RequestFailed(error or not_taken_in_time(maybe_taken), maybe_taken))

    def _give_up_other(self, token: int, error: SemelError | None) -> None:
        if self._streams.is_token(token):
            self._streams.give_up(token, error)
        elif self.states.is_token(token):
            self.states.give_up(token, error or not_taken_in_time(was_sent=True))

    # -- the outbox

    def _restore_entry(self, entry: OutboxEntry) -> None:
        size, was_sent = len(entry.request.data.body), entry.sent_at is not None
        pending = Pending(None, entry.request, entry=entry, size=size, sent_at=entry.sent_at, in_doubt=was_sent)
        self._requests.add(pending)

    def _keep(self, pending: Pending, id: str | None, now: float) -> None:
        """If it can go out at once, it may have been sent from now on: that saves marking it."""
        assert isinstance(pending.request, SendToGroup)
        assert id is not None
        pending.entry = OutboxEntry(id, pending.request, now, now if self.phase is Phase.READY else None)
        pending.is_kept = False
        self._effects.append(Keep(pending.entry))

    def _keep_done(self, id: str) -> None:
        pending = self._requests.by_id(id)
        if pending is None:
            return
        pending.is_kept = True
        if pending.until_kept:
            self._settle(pending.token, InOutbox())
            self._requests.let_go(pending)

    def _keep_failed(self, id: str, error: SemelError) -> None:
        pending = self._requests.by_id(id)
        if pending is not None and not pending.is_kept:
            self._requests.remove(pending)
            self._settle(pending.token, RequestFailed(error))

    # -- the end

    def _finish(self, error: SemelError | None) -> None:
        """What the application has had is acknowledged, and what has no answer fails. What is kept stays kept."""
        if self.phase is Phase.READY:
            self._acknowledge(self._arrivals.take())
        if self.phase in (Phase.OPENING, Phase.AWAITING_FIRST_FRAME, Phase.READY):
            self._effects.append(CloseSocket(self._socket, CloseCode.NORMAL))
        self.phase = Phase.STOPPED
        cause = error or STOPPED
        for pending in list(self._requests):
            self._requests.remove(pending)
            self._settle(pending.token, pending.unfinished(cause))
        for invocation in self._invocations:
            self._invocations.remove(invocation)
            self._settle(invocation.token, unanswered(cause, invocation.is_sent))
        self._streams.finish(cause)
        self.states.finish(unknown(cause))
        self._notify(Stopped(error))
