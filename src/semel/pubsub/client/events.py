"""The options, events and effects of the machine in `machine.py`: what happens to the client, and what it wants done.

A driver carries out the effects of one call in their order, and the calls one after the other; it calls `on_timer` when
`next_deadline` has come. Every socket has a number, given by `Connect`; what is said of a socket that is not the newest
any more is ignored, so a driver need not be careful about that.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from semel.errors import ConfigError, SemelError
from semel.kernel.retry import RetryPolicy
from semel.pubsub.protocol.frames import Frame, Subprotocol
from semel.pubsub.protocol.messages import (
    Data,
    Disconnected,
    Fault,
    GroupMessage,
    GroupStateItem,
    Invoke,
    JoinGroup,
    LeaveGroup,
    SendEvent,
    SendToGroup,
    ServerMessage,
    SetGroupState,
    StartStream,
    SubscribeGroupState,
    UnsubscribeGroupState,
)

Changing = JoinGroup | LeaveGroup | SetGroupState | SubscribeGroupState | UnsubscribeGroupState
"""What changes how a session stands to a group. Done twice it does no harm, and a new session does it again."""

Acked = Changing | SendToGroup | SendEvent
"""What is answered with an ack."""

Message = GroupMessage | ServerMessage


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """`window` requests may be without an answer, `queue_max` more may wait, and all of them have `queue_bytes_max` or
    little more; with a window of 1 they are taken in the order in which they were asked, also when the server refuses
    some for a time. `inbox_max` messages of `inbox_bytes_max` may wait for the application, see `Client.is_reading`.

    `stream_window` parts of a stream, of `stream_bytes_max` or little more, may be without an acknowledgement; who
    writes more waits.

    `connect_for_s`: how long the first connection is tried for; `recover_for_s`: how long a session that has lost its
    socket; `reconnect_for_s`: how long a new session after one was lost. None is for ever, 0 not at all. `id_memory_s`:
    how long the hub surely remembers the ids of messages.
    """

    subprotocol: Subprotocol = Subprotocol.JSON_RELIABLE
    window: int = 256
    queue_max: int = 10_000
    queue_bytes_max: int = 64 * 1024 * 1024
    stream_window: int = 256
    stream_bytes_max: int = 4 * 1024 * 1024
    inbox_max: int = 1000
    inbox_bytes_max: int = 16 * 1024 * 1024
    ack_timeout_s: float = 5.0
    ack_timeout_max_s: float = 30.0
    refusals_max: int = 10
    invoke_timeout_s: float = 30.0
    open_timeout_s: float = 10.0
    connect_for_s: float | None = 60.0
    recover_for_s: float = 60.0
    reconnect_for_s: float | None = None
    backoff: RetryPolicy = field(
        default_factory=lambda: RetryPolicy(interval_s=0.25, factor=2.0, interval_max_s=5.0, jitter=1.0)
    )
    ping_s: float = 20.0
    dead_s: float = 45.0
    sequence_ack_count: int = 100
    sequence_ack_bytes: int = 256 * 1024
    sequence_ack_s: float = 0.2
    id_memory_s: float = 6 * 86_400.0

    def __post_init__(self) -> None:
        if self.window < 1 or self.queue_max < 0:
            raise ConfigError(
                f"a window of {self.window} and a queue of {self.queue_max} let nothing pass", fix="use a window from 1"
            )
        if self.stream_window < 1 or self.stream_bytes_max < 1:
            raise ConfigError("a stream without room lets nothing pass", fix="use limits from 1")
        if self.inbox_max < 1 or self.inbox_bytes_max < 1 or self.queue_bytes_max < 1:
            raise ConfigError("an inbox or a queue without room lets nothing pass", fix="use limits from 1")
        if not 0 < self.ack_timeout_s <= self.ack_timeout_max_s:
            raise ConfigError(
                f"ack_timeout_s is {self.ack_timeout_s}", fix="use a positive time, not above ack_timeout_max_s"
            )
        if not 0 < self.ping_s < self.dead_s:
            raise ConfigError(
                f"after {self.dead_s} s a server that is asked after {self.ping_s} s cannot have answered",
                fix="use 0 < ping_s < dead_s",
            )


# -- the outbox


class OutboxEntry(msgspec.Struct, frozen=True):
    """A message that is kept until the hub has it. `sent_at`: since when it may have reached the hub."""

    id: str
    request: SendToGroup
    kept_at: float
    sent_at: float | None = None


class ClientOutbox(Protocol):
    """Where messages are kept, so that they are sent even if this process dies. The calls block."""

    def write(self, put: Sequence[OutboxEntry], sent: Mapping[str, float], removed: Collection[str]) -> None:
        """All of it or nothing, and durable on return. `sent` says since when a message may have reached the hub."""
        ...

    def pending(self) -> Sequence[OutboxEntry]:
        """What a former process has left, in the order in which it was put."""
        ...

    def close(self) -> None: ...


# -- what the application says


class SubmitRequest(msgspec.Struct, frozen=True):
    """Do this and settle `token`, which is the caller's and new. The number of an ack or an invocation is ours to give.

    `id` is the application's own, for `SendToGroup`: with it a message is sent again after the loss of a session, and
    the hub takes it once. Without it, only `at_least_once` allows that. `keep` puts it into the outbox first, and
    `until_kept` settles it as soon as it is there; what becomes of it later is reported as `Abandoned`, if it is
    nothing. `timeout_s` None waits for ever, but an invocation as long as the options say.
    """

    token: int
    request: Acked | Invoke
    id: str | None = None
    at_least_once: bool = False
    keep: bool = False
    until_kept: bool = False
    timeout_s: float | None = None


class BeginStream(msgspec.Struct, frozen=True):
    """Settled when the server has begun it. The id is the caller's, and no other open stream has it."""

    token: int
    request: StartStream
    timeout_s: float | None = None


class WritePart(msgspec.Struct, frozen=True):
    """Settled as soon as there is room for it: it is then sent until the server has it, or the stream is over."""

    token: int
    stream_id: str
    data: Data
    timeout_s: float | None = None


class FlushStream(msgspec.Struct, frozen=True):
    """Settled when the server has all parts that there was room for until now."""

    token: int
    stream_id: str
    timeout_s: float | None = None


class EndStream(msgspec.Struct, frozen=True):
    """Settled when the server has ended it. `error`: what receivers get instead of a good end; parts that are not
    acknowledged yet are then dropped. `token` None: nobody waits."""

    token: int | None
    stream_id: str
    error: Fault | None = None
    timeout_s: float | None = None


class KeepStream(msgspec.Struct, frozen=True):
    """It is not idle. Without a socket there is nothing to say, because it does not count as idle then."""

    stream_id: str


StreamEvent = BeginStream | WritePart | FlushStream | EndStream | KeepStream


class Withdraw(msgspec.Struct, frozen=True):
    """Nobody waits for this any more. An invocation is cancelled at the server, and so is a stream that is only being
    begun; a part for which there was no room yet is not sent."""

    token: int


class Stop(msgspec.Struct, frozen=True):
    """End the session when all that was asked is settled and all that came is delivered, or after `drain_s`.
    `delivers` False: nobody takes messages any more, so there is nothing to wait for there."""

    drain_s: float = 0.0
    delivers: bool = True


class Abort(msgspec.Struct, frozen=True):
    """The driver cannot go on: its outbox is gone, or the application's own code has failed."""

    error: SemelError


class MessageDelivered(msgspec.Struct, frozen=True):
    """The application has had the message of this number, and those before it."""

    number: int


# -- what the driver says


class SocketOpened(msgspec.Struct, frozen=True):
    socket: int
    subprotocol: str | None


class OpenFailed(msgspec.Struct, frozen=True):
    """`error` says by `retryable` whether another try makes sense."""

    socket: int
    error: SemelError


class FrameReceived(msgspec.Struct, frozen=True, gc=False):
    socket: int
    frame: Frame


class Closed(msgspec.Struct, frozen=True):
    """`code` None: it broke."""

    socket: int
    code: int | None = None
    reason: str = ""


class Kept(msgspec.Struct, frozen=True):
    """The outbox has these."""

    ids: Sequence[str]


class NotKept(msgspec.Struct, frozen=True):
    """The outbox has none of these, and will not."""

    ids: Sequence[str]
    error: SemelError


Event = (
    SubmitRequest
    | StreamEvent
    | Withdraw
    | Stop
    | Abort
    | MessageDelivered
    | SocketOpened
    | OpenFailed
    | FrameReceived
    | Closed
    | Kept
    | NotKept
)


# -- what became of a request


class RequestAccepted(msgspec.Struct, frozen=True):
    """The server has it, durably. `is_duplicate`: it had it before this attempt."""

    is_duplicate: bool = False


class InOutbox(msgspec.Struct, frozen=True):
    """It is durable here, and will be sent until the server has it."""


class InvocationAnswered(msgspec.Struct, frozen=True):
    data: Data | None


class RequestFailed(msgspec.Struct, frozen=True):
    """`maybe_taken`: nobody knows whether the server has it. Otherwise it surely has not."""

    error: SemelError
    maybe_taken: bool = False


Result = RequestAccepted | InOutbox | InvocationAnswered | RequestFailed


# -- what happens to the client as a whole


class Online(msgspec.Struct, frozen=True):
    """There is a new session, and it is in all groups that the one before it was in, with its states and watches."""

    connection_id: str
    user_id: str | None


class Interrupted(msgspec.Struct, frozen=True):
    """The socket is gone, the session is not: nothing is lost yet."""

    error: SemelError


class Recovered(msgspec.Struct, frozen=True):
    """The session has a socket again, and nothing was lost."""

    connection_id: str


class SessionLost(msgspec.Struct, frozen=True):
    """What others sent between this and the next `Online` never comes."""

    connection_id: str
    error: SemelError


class GroupLost(msgspec.Struct, frozen=True):
    """The new session may not be in a group that the one before it was in."""

    group: str
    error: SemelError


class GroupStateLost(msgspec.Struct, frozen=True):
    """The new session may not do in a group what the one before it did: watch it, or say what it said there."""

    group: str
    error: SemelError
    is_watch: bool


class Abandoned(msgspec.Struct, frozen=True):
    """A message out of the outbox is not sent any more, and nobody waits for it: the server refuses it, or it is so
    old that the hub may have taken and forgotten it. `maybe_taken` as in `RequestFailed`."""

    entry: OutboxEntry
    error: SemelError
    maybe_taken: bool


class Stopped(msgspec.Struct, frozen=True):
    """The end. `error` None: as asked."""

    error: SemelError | None


State = Online | Interrupted | Recovered | SessionLost | GroupLost | GroupStateLost | Abandoned | Stopped | Disconnected


# -- what the driver is to do


class Recover(msgspec.Struct, frozen=True):
    """Which session to come back to, as `awps_connection_id` and `awps_reconnection_token`."""

    connection_id: str
    token: str


class Connect(msgspec.Struct, frozen=True):
    """Open a socket. `recover` None: for a new session, with a fresh token. Then `SocketOpened` or `OpenFailed`."""

    socket: int
    recover: Recover | None = None


class SendFrame(msgspec.Struct, frozen=True, gc=False):
    socket: int
    frame: Frame


class CloseSocket(msgspec.Struct, frozen=True):
    """Also one that is only being opened. Nothing need be said of it any more."""

    socket: int
    code: int
    reason: str = ""


class DeliverMessage(msgspec.Struct, frozen=True, gc=False):
    """Hand it to the application after those before it have returned, then say `MessageDelivered`."""

    number: int
    message: Message


class Settle(msgspec.Struct, frozen=True):
    token: int
    result: Result


class NotifyApplication(msgspec.Struct, frozen=True):
    state: State


class StreamOver(msgspec.Struct, frozen=True):
    """Nothing more is to be said of this stream. `error` None: it ended as asked."""

    stream_id: str
    error: SemelError | None = None


class ReportStates(msgspec.Struct, frozen=True):
    """What has changed in a group that is watched. An item without a state was taken back."""

    group: str
    changed: tuple[GroupStateItem, ...]


class Keep(msgspec.Struct, frozen=True):
    """Put this into the outbox, then say `Kept` or `NotKept`. What was asked first is kept first."""

    entry: OutboxEntry


class MarkSent(msgspec.Struct, frozen=True):
    """Write this down before any frame that comes after it in the same list goes out."""

    ids: tuple[str, ...]
    at: float


class Remove(msgspec.Struct, frozen=True):
    """The hub has it: the outbox may forget it, at any time."""

    id: str


Effect = (
    Connect
    | SendFrame
    | CloseSocket
    | DeliverMessage
    | Settle
    | NotifyApplication
    | StreamOver
    | ReportStates
    | Keep
    | MarkSent
    | Remove
)
