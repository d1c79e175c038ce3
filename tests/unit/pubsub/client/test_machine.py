"""A client: what it publishes is taken once, what it gets is handed on once and in order, whatever the network does."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.pubsub.hub.world import text
from tests.unit.pubsub.protocol import frame_values

from semel.errors import (
    AuthError,
    ConfigError,
    DuplicateMessage,
    Forbidden,
    InputError,
    LimitExceeded,
    LocalProtocolError,
    PeerUnavailable,
    RemoteProtocolError,
    RequestInDoubt,
    SemelError,
    SessionGone,
    StoreFull,
)
from semel.pubsub.client.events import (
    Abandoned,
    Abort,
    Acked,
    ClientOptions,
    Closed,
    CloseSocket,
    Connect,
    DeliverMessage,
    Effect,
    Event,
    FrameReceived,
    GroupLost,
    InOutbox,
    Interrupted,
    InvocationAnswered,
    Keep,
    Kept,
    MarkSent,
    MessageDelivered,
    NotifyApplication,
    NotKept,
    Online,
    OpenFailed,
    OutboxEntry,
    Recover,
    Recovered,
    Remove,
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
    SubmitRequest,
    Withdraw,
)
from semel.pubsub.client.machine import ClientMachine, Phase
from semel.pubsub.hub.records import MESSAGE_ID
from semel.pubsub.protocol.codecs import codec_for
from semel.pubsub.protocol.frames import Codec, Frame, Subprotocol
from semel.pubsub.protocol.messages import (
    Ack,
    CancelInvocation,
    Connected,
    Data,
    DataType,
    Disconnected,
    ErrorName,
    Fault,
    GroupMessage,
    Invoke,
    InvokeResponse,
    JoinGroup,
    LeaveGroup,
    Ping,
    Pong,
    Request,
    Response,
    SendEvent,
    SendToGroup,
    SequenceAck,
    ServerMessage,
)
from semel.sim.client.network import ClientWorld
from semel.sim.world import SeededWorld
from semel.websocket import CloseCode

BUSY = Fault(ErrorName.INTERNAL, "the store is busy")
DUPLICATE = Fault(ErrorName.DUPLICATE, "Message with ack-id: 1 has been processed")
HELLO = SendToGroup("g", text("hello"))


class Bench:
    """A client with nothing around it. Chance is always in the middle."""

    def __init__(self, options: ClientOptions | None = None, kept: Iterable[OutboxEntry] = ()) -> None:
        self.now = 1_000_000.0
        self.options = options or ClientOptions()
        codec = codec_for(self.options.subprotocol)
        self.codec: Codec = codec  # type: ignore[assignment]
        self.client = ClientMachine(self.options, lambda: 0.5, kept)
        self.socket = 0
        self.effects: list[Effect] = []
        self.note(self.client.start(self.now))

    def note(self, effects: Sequence[Effect]) -> None:
        self.effects += effects
        self.socket = max([self.socket, *(effect.socket for effect in effects if isinstance(effect, Connect))])

    def tell(self, event: Event) -> None:
        self.note(self.client.receive(event, self.now))

    def pass_time(self, seconds: float) -> None:
        """Every timer at its own time."""
        until = self.now + seconds
        while (deadline := self.client.next_deadline()) is not None and deadline <= until:
            self.now = max(self.now, deadline)
            self.note(self.client.on_timer(self.now))
        self.now = until

    def take(self) -> list[Effect]:
        effects, self.effects = self.effects, []
        return effects

    # -- what the server does

    def open(self) -> None:
        self.tell(SocketOpened(self.socket, self.options.subprotocol))

    def say(self, *responses: Response) -> None:
        for response in responses:
            self.tell(FrameReceived(self.socket, self.codec.encode(response)))

    def message(self, sequence_id: int, body: str = "x") -> None:
        self.say(GroupMessage("g", text(body), sequence_id=sequence_id))

    def close(self, code: int | None = None, reason: str = "") -> None:
        self.tell(Closed(self.socket, code, reason))

    def connect(self, connection: str = "c1") -> None:
        self.open()
        self.say(Connected(connection, "ann", f"token of {connection}"))

    def recover(self) -> None:
        """The socket breaks, and the next one is good."""
        self.close()
        self.pass_time(1)
        self.open()
        self.say(Pong())

    def lose(self, connection: str = "c2") -> None:
        """The session is over, and there is a new one."""
        self.close(CloseCode.POLICY)
        self.pass_time(1)
        self.connect(connection)

    # -- what the client does

    def ask(self, token: int, request: Acked | Invoke, **how: object) -> None:
        self.tell(SubmitRequest(token, request, **how))  # type: ignore[arg-type]

    def sent(self) -> list[Request]:
        return [self.codec.decode(effect.frame) for effect in self.take() if isinstance(effect, SendFrame)]

    def settled(self) -> dict[int, Result]:
        return {effect.token: effect.result for effect in self.take() if isinstance(effect, Settle)}

    def states(self) -> list[State]:
        return [effect.state for effect in self.take() if isinstance(effect, NotifyApplication)]


@pytest.fixture
def bench() -> Bench:
    """One that is connected, and where nobody remembers how."""
    made = Bench()
    made.connect()
    made.take()
    return made


def failure(result: Result) -> SemelError:
    assert isinstance(result, RequestFailed)
    assert result.error.fix
    return result.error


# -- connecting


def test_it_connects_and_says_so_when_the_server_has_said_who_it_is() -> None:
    bench = Bench()
    assert bench.take() == [Connect(1)]
    bench.open()
    assert bench.take() == []
    bench.say(Connected("c1", "ann", "t"))
    assert bench.states() == [Online("c1", "ann")]


def test_a_first_connection_is_tried_for_a_minute_with_growing_waits_and_then_fails_with_the_last_error() -> None:
    bench = Bench()
    begin, tries = bench.now, []
    while bench.client.phase is not Phase.STOPPED:
        tries.append(bench.now - begin)
        bench.tell(OpenFailed(bench.socket, PeerUnavailable("refused", fix="start it")))
        bench.pass_time(6)
    assert 10 < len(tries) < 60
    assert tries[-1] <= 60 + 6
    [*_, last] = bench.states()
    assert isinstance(last, Stopped)
    assert isinstance(last.error, PeerUnavailable)
    assert bench.client.next_deadline() is None


def test_an_error_that_no_try_will_mend_ends_it_at_once() -> None:
    bench = Bench()
    bench.ask(1, HELLO)
    bench.tell(OpenFailed(1, AuthError("401", fix="use a valid token")))
    assert isinstance(failure(bench.settled()[1]), PeerUnavailable)
    assert bench.client.phase is Phase.STOPPED


def test_a_server_of_another_kind_is_refused() -> None:
    bench = Bench()
    bench.tell(SocketOpened(1, None))
    effects = bench.take()
    assert any(isinstance(effect, CloseSocket) for effect in effects)
    [stopped] = [effect.state for effect in effects if isinstance(effect, NotifyApplication)]
    assert isinstance(stopped, Stopped)
    assert isinstance(stopped.error, RemoteProtocolError)


@pytest.mark.parametrize("is_open", [False, True])
def test_a_server_that_says_nothing_is_given_up_and_tried_again(is_open: bool) -> None:
    bench = Bench()
    if is_open:
        bench.open()
    bench.pass_time(11)
    assert [type(effect) for effect in bench.take()] == [Connect, CloseSocket, Connect]


def test_what_an_older_socket_says_is_ignored(bench: Bench) -> None:
    bench.recover()
    bench.take()
    bench.tell(Closed(1, CloseCode.POLICY))
    bench.tell(FrameReceived(1, bench.codec.encode(Disconnected("old"))))
    bench.tell(SocketOpened(1, None))
    bench.tell(OpenFailed(1, PeerUnavailable("old")))
    assert bench.take() == []
    assert bench.client.phase is Phase.READY


# -- publishing


def test_a_message_is_taken_when_it_is_acknowledged(bench: Bench) -> None:
    bench.ask(7, SendToGroup("g", text("hello"), no_echo=True, ttl_s=5, metadata={"k": "v"}))
    assert bench.sent() == [SendToGroup("g", text("hello"), 1, True, 5, {"k": "v"})]
    assert bench.settled() == {}
    bench.say(Ack(1))
    assert bench.settled() == {7: RequestAccepted()}
    assert bench.client.room == bench.options.window + bench.options.queue_max


def test_ack_ids_count_from_one_and_a_new_session_counts_anew(bench: Bench) -> None:
    for token in range(3):
        bench.ask(token, HELLO)
    assert [request.ack_id for request in bench.sent()] == [1, 2, 3]  # type: ignore[union-attr]
    bench.lose()
    bench.ask(9, HELLO)
    assert [request.ack_id for request in bench.sent() if isinstance(request, SendToGroup)] == [1]


def test_without_an_ack_the_same_frame_goes_out_again_on_the_same_socket_until_it_comes(bench: Bench) -> None:
    bench.ask(1, HELLO)
    bench.pass_time(5.5)
    bench.say(Pong())
    bench.pass_time(10)
    assert [request.ack_id for request in bench.sent() if isinstance(request, SendToGroup)] == [1, 1, 1]
    bench.say(Ack(1, DUPLICATE), Ack(1))
    assert bench.settled() == {1: RequestAccepted(is_duplicate=True)}
    bench.pass_time(10)
    assert bench.sent() == []


def test_on_a_recovered_session_all_without_an_ack_go_out_again_in_order_under_their_ack_ids(bench: Bench) -> None:
    for token in range(3):
        bench.ask(token, SendToGroup("g", text(str(token))))
    bench.say(Ack(2))
    bench.take()
    bench.close()
    bench.ask(3, SendToGroup("g", text("3")))
    bench.pass_time(1)
    assert bench.take()[-1] == Connect(2, Recover("c1", "token of c1"))
    bench.open()
    assert bench.sent() == [Ping()]
    bench.say(Pong())
    sent = [(request.ack_id, request.data.body) for request in bench.sent()]  # type: ignore[union-attr]
    assert sent == [(1, b"0"), (3, b"2"), (4, b"3")]


def test_on_a_new_socket_the_waits_for_acks_are_short_again(bench: Bench) -> None:
    bench.ask(1, HELLO)
    for _ in range(4):
        bench.pass_time(15)
        bench.say(Pong())
    bench.recover()
    bench.take()
    bench.pass_time(5)
    assert bench.sent() == [SendToGroup("g", text("hello"), 1)]


def test_a_server_that_cannot_take_it_now_is_asked_again_under_the_same_ack_id_but_not_for_ever() -> None:
    bench = Bench(ClientOptions(refusals_max=2))
    bench.connect()
    bench.ask(1, HELLO)
    for _ in range(2):
        bench.say(Ack(1, BUSY))
        assert bench.settled() == {}
        bench.pass_time(2)
        assert HELLO.group in {request.group for request in bench.sent() if isinstance(request, SendToGroup)}
        bench.say(Pong())
    bench.say(Ack(1, BUSY))
    result = bench.settled()[1]
    assert isinstance(failure(result), PeerUnavailable)
    assert not result.maybe_taken  # type: ignore[union-attr]


def _ack_ids(bench: Bench) -> list[int | None]:
    return [request.ack_id for request in bench.sent() if isinstance(request, SendToGroup)]


def test_after_a_refusal_all_messages_without_an_answer_go_out_again_before_a_new_one(bench: Bench) -> None:
    for token in range(1, 6):
        bench.ask(token, HELLO)
    bench.say(Ack(1, BUSY), Ack(2, BUSY))
    bench.ask(6, HELLO)
    bench.take()
    bench.pass_time(0.5)
    assert _ack_ids(bench) == [1, 2, 3, 4, 5, 6], "the refusals of 3 to 5 may be on their way"


def test_when_an_answer_does_not_come_all_messages_without_one_go_out_again(bench: Bench) -> None:
    for token in range(1, 4):
        bench.ask(token, HELLO)
    bench.pass_time(3)
    for token in range(4, 6):
        bench.ask(token, HELLO)
    bench.take()
    bench.pass_time(2.5)
    assert _ack_ids(bench) == [1, 2, 3, 4, 5], "4 and 5 are not overdue, and what is sent next would overtake them"


def test_a_refusal_that_was_on_its_way_when_the_message_was_sent_again_is_not_one_of_that(bench: Bench) -> None:
    for token in range(1, 4):
        bench.ask(token, HELLO)
    bench.say(Ack(1, BUSY))
    bench.pass_time(0.5)
    bench.take()
    bench.say(Ack(2, BUSY), Ack(3, BUSY))
    bench.ask(4, HELLO)
    assert _ack_ids(bench) == [4], "it need not wait"
    bench.say(Ack(1), Ack(2), Ack(3, BUSY))
    bench.take()
    bench.pass_time(1)
    assert _ack_ids(bench) == [3, 4], "the second copy of 3 was refused as well"


def test_copies_on_an_older_socket_are_not_answered_any_more(bench: Bench) -> None:
    bench.ask(1, HELLO)
    bench.pass_time(5.5)
    bench.recover()
    bench.say(Ack(1, BUSY))
    bench.take()
    bench.pass_time(0.5)
    assert _ack_ids(bench) == [1]


@pytest.mark.parametrize("how", ["refused", "timed out"])
def test_after_a_message_that_was_given_up_the_next_goes_out_twice(how: str) -> None:
    """The server refuses everything until something is sent again, and nothing else would be."""
    bench = Bench(ClientOptions(refusals_max=0))
    bench.connect()
    bench.ask(1, HELLO, timeout_s=1)
    if how == "refused":
        bench.say(Ack(1, BUSY))
    bench.pass_time(1)
    assert 1 in bench.settled()
    bench.ask(2, HELLO)
    bench.ask(3, HELLO)
    assert _ack_ids(bench) == [2, 2, 3]
    bench.say(Ack(2, BUSY), Ack(2), Ack(3))
    assert bench.settled() == {2: RequestAccepted(), 3: RequestAccepted()}


@pytest.mark.parametrize(
    ("name", "error"),
    [
        (ErrorName.FORBIDDEN, Forbidden),
        (ErrorName.BAD_REQUEST, InputError),
        (ErrorName.NOT_FOUND, InputError),
        ("SomethingNew", RemoteProtocolError),
    ],
)
def test_what_the_server_refuses_for_good_fails_with_an_error_of_its_kind(
    bench: Bench, name: str, error: type[SemelError]
) -> None:
    bench.ask(1, HELLO)
    bench.say(Ack(1, Fault(name, "no")))
    result = bench.settled()[1]
    assert type(failure(result)) is error
    assert not result.maybe_taken  # type: ignore[union-attr]


def test_the_window_and_the_queue_are_bounded() -> None:
    bench = Bench(ClientOptions(window=2, queue_max=1))
    bench.connect()
    bench.take()
    for token in range(3):
        bench.ask(token, HELLO)
    assert bench.client.room == 0
    assert len(bench.sent()) == 2
    bench.ask(3, HELLO)
    assert isinstance(failure(bench.settled()[3]), LimitExceeded)
    bench.say(Ack(2))
    assert [request.ack_id for request in bench.sent()] == [3]  # type: ignore[union-attr]
    assert bench.client.room == 1


def test_what_waits_is_bounded_by_its_size_too() -> None:
    bench = Bench(ClientOptions(queue_bytes_max=1000))
    large = SendToGroup("g", text("x" * 600))
    bench.connect()
    for token in (1, 2):
        assert bench.client.room
        bench.ask(token, large)
    assert not bench.client.room
    bench.say(Ack(1))
    assert bench.client.room


@pytest.mark.parametrize(
    "request_",
    [
        SendToGroup("", text("x")),
        SendToGroup("g", text("x"), ttl_s=301),
        SendToGroup("g", text("x"), metadata={"a b": "c"}),
        SendToGroup("g", Data(DataType.JSON, b"{")),
        SendToGroup("g", Data(DataType.JSON, b"null")),
        SendToGroup("g", Data(DataType.TEXT, b"\xff")),
        SendToGroup("g", text("x" * 1024 * 1024)),
        SendToGroup("g", Data(DataType.BINARY, b"x" * 1024 * 1024)),
        SendEvent("1", text("x")),
        JoinGroup(" "),
        Invoke("", "no name", None),
    ],
)
def test_what_would_make_the_server_close_the_connection_is_not_sent(bench: Bench, request_: SendToGroup) -> None:
    bench.ask(1, request_)
    [effect] = bench.take()
    assert isinstance(effect, Settle)
    assert isinstance(failure(effect.result), InputError)


def test_what_an_encoding_cannot_say_fails_and_disturbs_nothing() -> None:
    bench = Bench(ClientOptions(subprotocol=Subprotocol.PROTOBUF_RELIABLE))
    bench.connect()
    bench.ask(1, SendToGroup("g", Data(DataType.PROTOBUF, b"\xff")))
    assert isinstance(failure(bench.settled()[1]), LocalProtocolError)
    bench.ask(2, HELLO)
    bench.say(Ack(1))
    assert bench.settled() == {2: RequestAccepted()}


# -- when a session is lost


def test_an_event_with_an_id_is_sent_again_in_the_next_session_under_the_same_id(bench: Bench) -> None:
    """Its handler goes by the id: the second is found to be a duplicate there."""
    bench.ask(1, SendEvent("order", text("x"), metadata={"k": "v"}), id="order-7")
    bench.take()
    bench.close(CloseCode.POLICY, "unknown session")
    assert not bench.settled()
    bench.pass_time(1)
    bench.connect("c2")
    [again] = [request for request in bench.sent() if isinstance(request, SendEvent)]
    assert (again.ack_id, again.metadata) == (1, {"k": "v", MESSAGE_ID: "order-7"})


def test_a_message_with_an_id_is_sent_again_in_the_next_session_and_one_without_fails_as_unknown(bench: Bench) -> None:
    bench.ask(1, HELLO)
    bench.ask(2, HELLO, id="my-2")
    bench.ask(3, HELLO, at_least_once=True)
    bench.ask(4, SendEvent("e", text("x")))
    bench.take()
    bench.close(CloseCode.POLICY, "unknown session")
    settled = bench.settled()
    assert settled.keys() == {1, 4}
    for result in settled.values():
        assert isinstance(failure(result), RequestInDoubt)
        assert result.maybe_taken  # type: ignore[union-attr]
    bench.pass_time(1)
    bench.connect("c2")
    first, second = (request for request in bench.sent() if isinstance(request, SendToGroup))
    assert (first.ack_id, first.metadata) == (1, {MESSAGE_ID: "my-2"})
    assert (second.ack_id, second.metadata) == (2, None)


def test_what_a_lost_session_may_have_taken_stays_in_doubt_whatever_comes_after(bench: Bench) -> None:
    for token in (1, 2, 3):
        bench.ask(token, HELLO, id=f"id {token}")
    bench.close(CloseCode.POLICY)
    bench.tell(Withdraw(1))
    bench.pass_time(1)
    bench.connect("c2")
    bench.say(Ack(1, Fault(ErrorName.FORBIDDEN, "not any more")))
    bench.close(CloseCode.POLICY)
    bench.tell(Stop())
    settled = bench.settled()
    assert [type(failure(settled[token])) for token in (1, 2, 3)] == [LocalProtocolError, Forbidden, RequestInDoubt]
    assert all(result.maybe_taken for result in settled.values())  # type: ignore[union-attr]


@pytest.mark.parametrize("code", [CloseCode.NORMAL, CloseCode.POLICY])
def test_a_session_that_the_server_ends_is_not_tried_again(bench: Bench, code: CloseCode) -> None:
    bench.close(code)
    bench.pass_time(1)
    assert [each.recover for each in bench.take() if isinstance(each, Connect)] == [None]


def test_what_is_sent_again_in_the_next_session_comes_before_what_was_not_sent_yet() -> None:
    bench = Bench(ClientOptions(window=2))
    bench.connect()
    for number in range(1, 5):
        bench.ask(number, SendToGroup("g", text(str(number))), id=str(number))
    bench.take()
    bench.lose()
    bench.say(Ack(1), Ack(2))
    assert [request.data.body for request in bench.sent()] == [b"1", b"2", b"3", b"4"]  # type: ignore[union-attr]


def test_the_age_of_an_id_counts_from_its_first_sending(bench: Bench) -> None:
    bench.ask(1, HELLO, id="one")
    for connection in ("c2", "c3"):
        bench.close(CloseCode.POLICY)
        bench.now += bench.options.id_memory_s * 0.6
        bench.pass_time(1)
        bench.connect(connection)
    assert isinstance(failure(bench.settled()[1]), RequestInDoubt)


def test_an_id_that_the_hub_may_have_forgotten_is_not_sent_again(bench: Bench) -> None:
    bench.ask(1, HELLO, id="one")
    bench.ask(2, HELLO, at_least_once=True)
    bench.close(CloseCode.POLICY)
    bench.now += bench.options.id_memory_s
    bench.pass_time(1)
    bench.take()
    bench.connect("c2")
    effects = bench.take()
    [settle] = [each for each in effects if isinstance(each, Settle)]
    assert settle.token == 1
    assert isinstance(failure(settle.result), RequestInDoubt)
    assert len([each for each in effects if isinstance(each, SendFrame)]) == 1


def test_a_server_that_ends_each_session_at_once_is_asked_less_and_less_often(bench: Bench) -> None:
    begin = bench.now
    for number in range(30):
        bench.close(CloseCode.POLICY)
        bench.pass_time(bench.client.next_deadline() - bench.now)  # type: ignore[operator]
        bench.connect(f"c{number}")
    assert bench.now - begin > 60
    bench.pass_time(3)
    bench.close(CloseCode.POLICY)
    assert bench.client.next_deadline() < bench.now + 1  # type: ignore[operator]


def test_what_was_never_sent_is_simply_sent_in_the_next_session() -> None:
    bench = Bench(ClientOptions(window=1))
    bench.connect()
    bench.ask(1, HELLO)
    bench.ask(2, SendEvent("e", text("x")))
    bench.take()
    bench.lose()
    effects = bench.take()
    assert [effect.token for effect in effects if isinstance(effect, Settle)] == [1]
    assert [bench.codec.decode(each.frame) for each in effects if isinstance(each, SendFrame)] == [
        SendEvent("e", text("x"), 1)
    ]


def test_groups_are_joined_again_before_anything_else_is_sent_or_told(bench: Bench) -> None:
    for token, group in enumerate(("g", "h"), 1):
        bench.ask(token, JoinGroup(group))
        bench.say(Ack(token))
    bench.ask(3, LeaveGroup("h"))
    bench.say(Ack(3))
    bench.ask(4, JoinGroup("i"))
    bench.say(Ack(4))
    bench.ask(5, HELLO, id="five")
    bench.take()
    bench.lose()
    effects = bench.take()
    assert [type(each.state) for each in effects if isinstance(each, NotifyApplication)] == [SessionLost]
    sent = [bench.codec.decode(each.frame) for each in effects if isinstance(each, SendFrame)]
    assert sent == [JoinGroup("g", 1), JoinGroup("i", 2)]
    bench.say(Ack(1))
    assert bench.take() == []
    bench.say(Ack(2))
    online, message = bench.take()
    assert online == NotifyApplication(Online("c2", "ann"))
    assert isinstance(message, SendFrame)


def test_a_group_that_the_next_session_may_not_join_is_told_and_forgotten(bench: Bench) -> None:
    bench.ask(1, JoinGroup("g"))
    bench.say(Ack(1))
    bench.lose()
    bench.take()
    bench.say(Ack(1, Fault(ErrorName.FORBIDDEN, "no")))
    lost, online = bench.states()
    assert isinstance(lost, GroupLost)
    assert isinstance(lost.error, Forbidden)
    assert isinstance(online, Online)
    assert not bench.client.groups


def test_a_session_that_is_lost_while_it_joins_its_groups_leaves_nothing_behind() -> None:
    bench = Bench(ClientOptions(window=1))
    bench.connect()
    for token, group in enumerate(("g", "h"), 1):
        bench.ask(token, JoinGroup(group))
        bench.say(Ack(token))
    bench.lose("c2")
    bench.lose("c3")
    bench.take()
    bench.say(Ack(1))
    bench.say(Ack(2))
    effects = bench.take()
    assert [each.state for each in effects if isinstance(each, NotifyApplication)] == [Online("c3", "ann")]
    assert len([each for each in effects if isinstance(each, SendFrame)]) == 1


def test_two_changes_of_one_group_go_one_after_the_other(bench: Bench) -> None:
    bench.ask(1, JoinGroup("g"))
    bench.ask(2, LeaveGroup("g"))
    assert bench.sent() == [JoinGroup("g", 1)]
    bench.say(Ack(1, BUSY))
    bench.pass_time(6)
    bench.say(Ack(1))
    assert bench.sent()[-1] == LeaveGroup("g", 2)
    bench.say(Ack(2))
    assert not bench.client.groups


@pytest.mark.parametrize(
    ("error", "is_the_end"), [(AuthError("from something between us"), True), (PeerUnavailable("refused"), False)]
)
def test_a_session_is_given_up_after_a_minute_of_tries_and_a_new_one_is_tried_for_ever(
    bench: Bench, error: SemelError, is_the_end: bool
) -> None:
    """An error that no try will fix ends the tries for a new session, but not those for one that can be saved."""
    bench.close()
    begin, lost_after = bench.now, 0.0
    recovers = []
    while bench.now < begin + 600 and bench.client.phase is not Phase.STOPPED:
        effects = bench.take()
        recovers += [each.recover is not None for each in effects if isinstance(each, Connect)]
        if any(isinstance(each, NotifyApplication) and isinstance(each.state, SessionLost) for each in effects):
            lost_after = bench.now - begin
        bench.tell(OpenFailed(bench.socket, error))
        bench.pass_time(1)
    assert 54 < lost_after < 62
    assert recovers == sorted(recovers, reverse=True)
    assert recovers.count(True) > 10
    assert (bench.client.phase is Phase.STOPPED) is is_the_end


def test_the_time_for_a_new_session_begins_when_the_old_one_is_lost() -> None:
    bench = Bench(ClientOptions(reconnect_for_s=30))
    bench.connect()
    bench.close()
    begin = bench.now
    while bench.client.phase is not Phase.STOPPED:
        bench.tell(OpenFailed(bench.socket, PeerUnavailable("refused")))
        bench.pass_time(1)
    assert 80 < bench.now - begin < 95


def test_who_wants_no_second_session_is_stopped_with_the_first() -> None:
    bench = Bench(ClientOptions(reconnect_for_s=0))
    bench.connect()
    bench.take()
    bench.close(CloseCode.POLICY)
    lost, stopped = bench.states()
    assert isinstance(lost, SessionLost)
    assert isinstance(stopped, Stopped)
    assert isinstance(stopped.error, SessionGone)


def test_who_wants_no_second_session_does_not_take_one_that_the_server_begins() -> None:
    bench = Bench(ClientOptions(reconnect_for_s=0))
    bench.connect()
    bench.close()
    bench.pass_time(1)
    bench.open()
    bench.take()
    bench.say(Connected("c2"))
    assert bench.client.phase is Phase.STOPPED
    assert CloseSocket(2, CloseCode.NORMAL) in bench.take()


def test_a_server_that_begins_another_session_instead_has_lost_ours(bench: Bench) -> None:
    bench.ask(1, HELLO)
    bench.close()
    bench.pass_time(1)
    bench.open()
    bench.take()
    bench.say(Connected("c2", None, "t2"))
    effects = bench.take()
    assert [type(each.state) for each in effects if isinstance(each, NotifyApplication)] == [SessionLost, Online]
    assert [type(each.result) for each in effects if isinstance(each, Settle)] == [RequestFailed]
    bench.close()
    bench.pass_time(1)
    assert bench.take()[-1] == Connect(3, Recover("c2", "t2"))


def test_another_connected_of_the_same_session_is_as_good_as_any_word(bench: Bench) -> None:
    bench.close()
    bench.pass_time(1)
    bench.open()
    bench.take()
    bench.say(Connected("c1", None, "newer"))
    assert bench.states() == [Recovered("c1")]
    bench.close()
    bench.pass_time(1)
    assert bench.take()[-1] == Connect(3, Recover("c1", "newer"))


def test_a_plain_protocol_has_no_session_to_recover() -> None:
    bench = Bench(ClientOptions(subprotocol=Subprotocol.JSON))
    bench.connect()
    bench.ask(1, HELLO)
    bench.take()
    bench.close()
    bench.pass_time(1)
    effects = bench.take()
    assert [type(each.state) for each in effects if isinstance(each, NotifyApplication)] == [SessionLost]
    assert effects[-1] == Connect(2)


def test_sockets_that_open_and_break_at_once_do_not_keep_a_session_for_ever(bench: Bench) -> None:
    begin = bench.now
    while not any(isinstance(state, SessionLost) for state in bench.states()):
        bench.recover()
        assert bench.now < begin + 120
    assert bench.now > begin + 50


def _ack_something(bench: Bench, number: int) -> None:
    bench.ask(number, HELLO)
    bench.say(Ack(number))


def _answer_something(bench: Bench, number: int) -> None:
    bench.ask(number, Invoke("", "e"))
    bench.say(InvokeResponse(str(number)))


@pytest.mark.parametrize("get_on", [Bench.message, _ack_something, _answer_something])
def test_a_session_that_gets_on_is_kept_however_short_its_sockets_live(
    bench: Bench, get_on: Callable[[Bench, int], None]
) -> None:
    for number in range(1, 31):
        bench.close()
        bench.pass_time(5)
        bench.open()
        bench.say(Pong())
        get_on(bench, number)
    assert not any(isinstance(state, SessionLost) for state in bench.states())
    assert bench.client.phase is Phase.READY


# -- receiving


def test_messages_are_handed_on_in_order_and_copies_are_dropped(bench: Bench) -> None:
    for sequence_id in (3, 4, 4, 3, 9):
        bench.message(sequence_id)
    bench.recover()
    bench.message(4)
    bench.message(10)
    handed = [effect for effect in bench.take() if isinstance(effect, DeliverMessage)]
    assert [(each.number, each.message.sequence_id) for each in handed] == [(1, 3), (2, 4), (3, 9), (4, 10)]
    assert bench.client.undelivered == 4


def test_nothing_is_acknowledged_before_the_application_has_had_it(bench: Bench) -> None:
    bench.message(3)
    bench.message(4)
    bench.pass_time(1)
    assert bench.sent() == []
    bench.tell(MessageDelivered(1))
    assert bench.sent() == []
    bench.pass_time(0.2)
    assert bench.sent() == [SequenceAck(3)]
    bench.pass_time(1)
    assert bench.sent() == []


def test_many_or_large_messages_are_acknowledged_at_once() -> None:
    bench = Bench(ClientOptions(sequence_ack_count=3, sequence_ack_bytes=1000))
    bench.connect()
    for number in range(1, 5):
        bench.message(number)
        bench.tell(MessageDelivered(number))
    assert bench.sent() == [SequenceAck(4)]
    bench.message(5, "x" * 1000)
    bench.tell(MessageDelivered(5))
    assert bench.sent() == [SequenceAck(5)]


def test_an_acknowledgement_that_may_be_lost_is_repeated_when_the_server_sends_again(bench: Bench) -> None:
    bench.message(3)
    bench.tell(MessageDelivered(1))
    bench.pass_time(1)
    bench.recover()
    bench.take()
    bench.message(3)
    bench.pass_time(1)
    assert bench.sent() == [SequenceAck(3)]


def test_no_more_is_acknowledged_on_a_socket_than_came_on_it(bench: Bench) -> None:
    """A server that was restarted may not know any more that it had sent 4, and what it has forgotten is its own."""
    bench.message(3)
    bench.message(4)
    bench.recover()
    bench.take()
    bench.message(3)
    bench.tell(MessageDelivered(2))
    bench.pass_time(1)
    assert bench.sent() == [SequenceAck(3)]


def test_nothing_is_acknowledged_on_a_socket_on_which_nothing_came(bench: Bench) -> None:
    bench.message(3)
    bench.recover()
    bench.take()
    bench.tell(MessageDelivered(1))
    bench.pass_time(1)
    assert bench.sent() == []


def test_a_hub_that_was_restarted_and_has_nothing_to_repeat_keeps_the_session() -> None:
    """The message that its client had last has expired meanwhile, so the hub does not know that it ever sent it."""
    world = ClientWorld(SeededWorld(1))
    ann, ben = world.actor("ann"), world.actor("ben")
    ben.join("g")
    world.run_for(1)
    ann.publish("g", "long")
    ann.ask(SubmitRequest(next(world.tokens), SendToGroup("g", text("short"), ttl_s=5)))
    world.run_for(0.1)
    world.unreachable_until = world.now + 7
    for link in list(world.links.values()):
        world.cut(link)
    world.run_for(6)
    world.restart()
    world.run_for(5)
    ann.publish("g", "after")
    world.run_for(5)
    assert [body for _, body, _ in ben.got] == ["long", "short", "after"]
    assert ben.losses == 0


def test_what_comes_in_one_session_is_not_acknowledged_in_the_next(bench: Bench) -> None:
    bench.message(300)
    bench.lose()
    bench.message(1)
    effects = bench.take()
    assert [each.message.sequence_id for each in effects if isinstance(each, DeliverMessage)] == [300, 1]
    bench.tell(MessageDelivered(1))
    bench.pass_time(1)
    assert bench.sent() == []
    bench.tell(MessageDelivered(2))
    bench.pass_time(1)
    assert bench.sent() == [SequenceAck(1)]


def test_when_the_application_has_enough_nothing_is_read_unless_somebody_waits_for_an_answer() -> None:
    bench = Bench(ClientOptions(inbox_max=2))
    bench.connect()
    assert bench.client.is_reading
    bench.message(1)
    bench.message(2)
    assert not bench.client.is_reading
    bench.ask(1, HELLO)
    assert bench.client.is_reading
    bench.say(Ack(1))
    assert not bench.client.is_reading
    bench.pass_time(200)
    assert bench.client.phase is Phase.READY, "a server that nobody listens to is not dead"
    bench.tell(MessageDelivered(1))
    assert bench.client.is_reading
    bench.pass_time(50)
    assert bench.client.phase is not Phase.READY


def test_the_inbox_is_bounded_by_size_too() -> None:
    bench = Bench(ClientOptions(inbox_bytes_max=1000))
    bench.connect()
    bench.message(1, "x" * 990)
    assert not bench.client.is_reading


def test_on_a_socket_that_is_not_proved_yet_all_is_read() -> None:
    bench = Bench(ClientOptions(inbox_max=1))
    bench.connect()
    bench.message(1)
    bench.close()
    bench.pass_time(1)
    bench.open()
    assert bench.client.is_reading


def test_what_does_not_fit_into_the_inbox_is_asked_for_again_when_there_is_room() -> None:
    bench = Bench(ClientOptions(inbox_max=4))
    bench.connect()
    bench.ask(1, HELLO)
    bench.take()
    for number in range(1, 12):
        bench.message(number)
    assert [effect.message.sequence_id for effect in bench.take() if isinstance(effect, DeliverMessage)] == [
        *range(1, 9)
    ]
    bench.say(Ack(1))
    assert bench.settled() == {1: RequestAccepted()}
    bench.tell(MessageDelivered(5))
    assert not bench.take()
    bench.tell(MessageDelivered(6))
    assert [type(effect) for effect in bench.take()] == [CloseSocket, NotifyApplication]
    bench.pass_time(1)
    bench.open()
    bench.say(Pong())
    bench.take()
    for number in range(1, 12):
        bench.message(number)
    assert [effect.message.sequence_id for effect in bench.take() if isinstance(effect, DeliverMessage)] == [9, 10, 11]


def test_a_plain_protocol_that_overflows_says_that_something_is_lost() -> None:
    bench = Bench(ClientOptions(Subprotocol.JSON, inbox_max=1))
    bench.open()
    bench.say(Connected("c1"))
    for _ in range(3):
        bench.say(ServerMessage(text("x")))
    bench.take()
    bench.tell(MessageDelivered(2))
    assert [type(state) for state in bench.states()] == [SessionLost]


def test_messages_without_a_number_are_handed_on_as_they_come(bench: Bench) -> None:
    bench.say(ServerMessage(text("a")), ServerMessage(text("a")), ServerMessage(text("b"), 0))
    assert len([effect for effect in bench.take() if isinstance(effect, DeliverMessage)]) == 3
    bench.tell(MessageDelivered(3))
    bench.pass_time(1)
    assert bench.sent() == []


def test_the_reason_for_a_goodbye_is_told_and_named_in_the_loss(bench: Bench) -> None:
    bench.say(Disconnected("enough"))
    assert bench.states() == [Disconnected("enough")]
    bench.close(CloseCode.POLICY)
    [lost] = bench.states()
    assert isinstance(lost, SessionLost)
    assert "enough" in lost.error.message


# -- keeping alive


def test_a_silent_server_is_asked_and_then_given_up_but_not_the_session(bench: Bench) -> None:
    bench.pass_time(21)
    assert bench.sent() == [Ping()]
    bench.say(Pong())
    bench.pass_time(46)
    effects = bench.take()
    assert isinstance(effects[-1], Connect)
    assert effects[-1].recover is not None
    [closed] = [effect for effect in effects if isinstance(effect, CloseSocket)]
    assert closed.code != CloseCode.NORMAL
    assert isinstance(next(each.state for each in effects if isinstance(each, NotifyApplication)), Interrupted)


def test_who_talks_is_not_asked(bench: Bench) -> None:
    for number in range(1, 10):
        bench.pass_time(15)
        bench.message(number)
    assert bench.sent() == []


def test_a_frame_that_makes_no_sense_costs_the_socket_and_not_the_session(bench: Bench) -> None:
    bench.tell(FrameReceived(bench.socket, "{"))
    bench.pass_time(1)
    effects = bench.take()
    assert [each.code for each in effects if isinstance(each, CloseSocket)] == [CloseCode.BAD_FRAME]
    assert effects[-1] == Connect(2, Recover("c1", "token of c1"))


# -- events and invocations


def test_an_event_whose_handler_failed_is_the_callers_to_repeat(bench: Bench) -> None:
    bench.ask(1, SendEvent("e", text("x"), metadata={"k": "v"}))
    assert bench.sent() == [SendEvent("e", text("x"), 1, {"k": "v"})]
    bench.say(Ack(1, BUSY))
    result = bench.settled()[1]
    assert isinstance(failure(result), PeerUnavailable)
    assert result.maybe_taken  # type: ignore[union-attr]


def test_an_invocation_has_its_answer(bench: Bench) -> None:
    bench.ask(1, Invoke("", "e", text("x")))
    bench.ask(2, Invoke("", "e"))
    assert bench.sent() == [Invoke("1", "e", text("x")), Invoke("2", "e")]
    bench.say(InvokeResponse("2", text("two")), InvokeResponse("1", error=Fault(ErrorName.FORBIDDEN, "no")))
    settled = bench.settled()
    assert settled[2] == InvocationAnswered(text("two"))
    assert isinstance(failure(settled[1]), Forbidden)
    bench.say(InvokeResponse("1", text("late")))
    assert bench.take() == []


def test_an_invocation_without_an_answer_is_cancelled_and_nobody_knows(bench: Bench) -> None:
    bench.ask(1, Invoke("", "e"))
    bench.take()
    bench.pass_time(31)
    effects = bench.take()
    assert CancelInvocation("1") in [bench.codec.decode(each.frame) for each in effects if isinstance(each, SendFrame)]
    [settle] = [each for each in effects if isinstance(each, Settle)]
    assert isinstance(failure(settle.result), RequestInDoubt)
    assert settle.result.maybe_taken  # type: ignore[union-attr]


def test_an_invocation_that_is_withdrawn_in_time_is_never_sent() -> None:
    bench = Bench()
    bench.ask(1, Invoke("", "e"))
    bench.tell(Withdraw(1))
    assert bench.settled()[1].maybe_taken is False  # type: ignore[union-attr]
    bench.connect()
    assert bench.sent() == []


def test_an_invocation_survives_a_broken_socket_but_no_lost_session(bench: Bench) -> None:
    bench.ask(1, Invoke("", "e"))
    bench.recover()
    assert Invoke("1", "e") not in bench.sent()[1:]
    bench.close()
    bench.ask(2, Invoke("", "later"))
    bench.pass_time(1)
    bench.open()
    bench.take()
    bench.close(CloseCode.POLICY)
    settled = bench.settled()
    assert settled.keys() == {1}
    assert isinstance(failure(settled[1]), RequestInDoubt)
    bench.pass_time(1)
    bench.connect("c2")
    assert bench.sent() == [Invoke("2", "later")]


def test_a_caller_who_does_not_wait_any_more_hears_whether_it_may_have_been_taken() -> None:
    bench = Bench(ClientOptions(window=1))
    bench.connect()
    bench.ask(1, HELLO)
    bench.ask(2, HELLO, timeout_s=3.0)
    bench.ask(3, HELLO)
    bench.take()
    bench.tell(Withdraw(1))
    effects = bench.take()
    [settle] = [each for each in effects if isinstance(each, Settle)]
    assert settle.result.maybe_taken  # type: ignore[union-attr]
    frames = [bench.codec.decode(each.frame) for each in effects if isinstance(each, SendFrame)]
    assert {frame.ack_id for frame in frames if isinstance(frame, SendToGroup)} == {2}
    bench.tell(Withdraw(3))
    assert bench.settled()[3].maybe_taken is False  # type: ignore[union-attr]
    bench.pass_time(4)
    assert bench.settled()[2].maybe_taken  # type: ignore[union-attr]
    bench.tell(Withdraw(1))
    bench.say(Ack(2))
    assert bench.take() == []


def test_the_timeout_of_what_is_settled_wakes_nobody(bench: Bench) -> None:
    bench.ask(1, HELLO, timeout_s=3.0)
    assert bench.client.next_deadline() == bench.now + 3
    bench.say(Ack(1))
    assert bench.client.next_deadline() == bench.now + bench.options.ping_s


# -- the outbox


def test_what_is_kept_is_sent_when_it_is_kept_and_removed_when_it_is_taken(bench: Bench) -> None:
    bench.ask(1, HELLO, id="one", keep=True)
    bench.ask(2, HELLO)
    [keep] = bench.take()
    assert isinstance(keep, Keep)
    assert (keep.entry.id, keep.entry.sent_at) == ("one", bench.now)
    bench.tell(Kept(["one"]))
    assert [request.ack_id for request in bench.sent()] == [1, 2]  # type: ignore[union-attr]
    bench.say(Ack(1))
    assert bench.take() == [Remove("one"), Settle(1, RequestAccepted())]


def test_what_is_kept_while_nobody_is_there_is_marked_before_it_is_sent() -> None:
    bench = Bench()
    bench.ask(1, HELLO, id="one", keep=True)
    [_, keep] = bench.take()
    assert isinstance(keep, Keep)
    assert keep.entry.sent_at is None
    bench.tell(Kept(["one"]))
    bench.connect()
    mark, frame = bench.take()[-2:]
    assert mark == MarkSent(("one",), bench.now)
    assert isinstance(frame, SendFrame)
    bench.pass_time(6)
    assert not [effect for effect in bench.take() if isinstance(effect, MarkSent)]


def test_what_cannot_be_kept_fails_and_is_not_sent(bench: Bench) -> None:
    bench.ask(1, HELLO, id="one", keep=True)
    bench.ask(2, HELLO, keep=True)
    bench.ask(3, HELLO, id="one", keep=True)
    bench.tell(NotKept(["one"], StoreFull("full", fix="make room")))
    effects = bench.take()
    settled = {each.token: failure(each.result) for each in effects if isinstance(each, Settle)}
    assert [type(settled[token]) for token in (1, 2, 3)] == [StoreFull, InputError, DuplicateMessage]
    assert not [each for each in effects if isinstance(each, SendFrame)]
    assert bench.client.room == bench.options.window + bench.options.queue_max


def test_who_only_wants_it_kept_hears_when_it_is(bench: Bench) -> None:
    bench.ask(1, HELLO, id="one", keep=True, until_kept=True)
    bench.take()
    bench.tell(Kept(["one"]))
    assert bench.settled() == {1: InOutbox()}
    bench.say(Ack(1))
    assert bench.take() == [Remove("one")]
    bench.ask(2, HELLO, id="two", keep=True, until_kept=True)
    bench.tell(Kept(["two"]))
    bench.take()
    bench.say(Ack(2, Fault(ErrorName.FORBIDDEN, "no")))
    assert [type(state) for state in bench.states()] == [Abandoned]


def test_what_a_former_process_has_left_can_be_waited_for_by_asking_again() -> None:
    entries = [OutboxEntry(id, SendToGroup("g", text(id), metadata={MESSAGE_ID: id}), 0.0) for id in "abc"]
    bench = Bench(kept=entries)
    bench.ask(1, SendToGroup("g", text("a")), id="a", keep=True)
    bench.ask(2, SendToGroup("g", text("b")), id="b", keep=True, until_kept=True)
    bench.ask(3, SendToGroup("g", text("other")), id="c", keep=True)
    bench.ask(4, SendToGroup("g", text("a")), id="a", keep=True)
    settled = bench.settled()
    assert settled.pop(2) == InOutbox()
    assert [type(failure(settled.pop(token))) for token in (3, 4)] == [InputError, DuplicateMessage]
    assert not settled
    bench.connect()
    assert [request.data.body for request in bench.sent()] == [b"a", b"b", b"c"]  # type: ignore[union-attr]
    bench.say(Ack(1, DUPLICATE))
    assert bench.take() == [Remove("a"), Settle(1, RequestAccepted(is_duplicate=True))]


def test_what_is_only_on_its_way_into_the_outbox_is_not_said_to_be_there(bench: Bench) -> None:
    bench.ask(1, HELLO, id="one", keep=True)
    bench.tell(Withdraw(1))
    bench.take()
    bench.ask(2, HELLO, id="one", keep=True, until_kept=True)
    assert bench.settled() == {}
    bench.tell(Kept(["one"]))
    assert bench.settled() == {2: InOutbox()}
    bench.ask(3, HELLO, id="two", keep=True)
    bench.tell(Withdraw(3))
    bench.ask(4, HELLO, id="two", keep=True, until_kept=True)
    bench.take()
    bench.tell(NotKept(["two"], StoreFull("full", fix="make room")))
    assert isinstance(failure(bench.settled()[4]), StoreFull)


def test_waiting_for_what_was_left_may_take_too_long() -> None:
    bench = Bench(kept=[OutboxEntry("a", SendToGroup("g", text("a"), metadata={MESSAGE_ID: "a"}), 0.0)])
    bench.ask(1, SendToGroup("g", text("a")), id="a", keep=True, timeout_s=2)
    bench.pass_time(3)
    assert bench.settled()[1].maybe_taken  # type: ignore[union-attr]
    bench.connect()
    assert len(bench.sent()) == 1


def test_only_messages_to_groups_and_events_have_ids(bench: Bench) -> None:
    bench.ask(1, JoinGroup("g"), id="one")
    assert isinstance(failure(bench.settled()[1]), InputError)


def test_what_a_former_process_has_left_is_sent_first_unless_it_is_too_old_to_tell() -> None:
    now = 1_000_000.0
    old, sent, fresh = (
        OutboxEntry(id, SendToGroup("g", text(id), metadata={MESSAGE_ID: id}), 0.0, at)
        for id, at in (("old", now - ClientOptions().id_memory_s), ("sent", now - 10), ("fresh", None))
    )
    bench = Bench(kept=(old, sent, fresh))
    effects = bench.take()
    removed, abandoned, _ = effects
    assert removed == Remove("old")
    assert isinstance(abandoned, NotifyApplication)
    assert isinstance(abandoned.state, Abandoned)
    assert (abandoned.state.entry, abandoned.state.maybe_taken) == (old, True)
    bench.ask(1, SendToGroup("g", text("new")))
    bench.connect()
    assert [request.data.body for request in bench.sent()] == [b"sent", b"fresh", b"new"]  # type: ignore[union-attr]
    bench.say(Ack(1, DUPLICATE), Ack(2))
    assert bench.take() == [Remove("sent"), Remove("fresh")]


def test_what_is_kept_is_given_up_only_when_the_server_refuses_it_for_good() -> None:
    entry = OutboxEntry("one", SendToGroup("g", text("x"), metadata={MESSAGE_ID: "one"}), 0.0)
    bench = Bench(ClientOptions(refusals_max=1), [entry])
    bench.connect()
    bench.take()
    for _ in range(5):
        bench.say(Ack(1, BUSY))
    assert bench.take() == []
    bench.say(Ack(1, Fault(ErrorName.FORBIDDEN, "no")))
    removed, told = bench.take()
    assert removed == Remove("one")
    assert isinstance(told, NotifyApplication)
    assert isinstance(told.state, Abandoned)
    assert isinstance(told.state.error, Forbidden)
    assert told.state.maybe_taken is False


def test_a_caller_who_does_not_wait_for_what_is_kept_does_not_stop_it(bench: Bench) -> None:
    bench.ask(1, HELLO, id="one", keep=True, timeout_s=1.0)
    bench.pass_time(2)
    assert bench.settled()[1].maybe_taken  # type: ignore[union-attr]
    bench.tell(Kept(["one"]))
    assert len(bench.sent()) == 1
    bench.say(Ack(1))
    assert bench.take() == [Remove("one")]


# -- the end


def test_stopping_waits_for_what_is_under_way_acknowledges_and_ends_the_session(bench: Bench) -> None:
    bench.ask(1, HELLO)
    bench.message(5)
    bench.take()
    bench.tell(Stop(drain_s=10))
    bench.ask(2, HELLO)
    assert isinstance(failure(bench.settled()[2]), LocalProtocolError)
    bench.say(Ack(1))
    assert bench.client.phase is Phase.READY
    bench.take()
    bench.tell(MessageDelivered(1))
    frame, close, stopped = bench.take()
    assert isinstance(frame, SendFrame)
    assert bench.codec.decode(frame.frame) == SequenceAck(5)
    assert close == CloseSocket(1, CloseCode.NORMAL)
    assert stopped == NotifyApplication(Stopped(None))
    assert bench.client.next_deadline() is None


def test_stopping_waits_for_no_application_that_takes_nothing_any_more(bench: Bench) -> None:
    bench.message(1)
    bench.ask(1, HELLO)
    bench.take()
    bench.tell(Stop(drain_s=10, delivers=False))
    assert not bench.take()
    bench.say(Ack(1))
    assert bench.take() == [
        Settle(1, RequestAccepted()),
        CloseSocket(1, CloseCode.NORMAL),
        NotifyApplication(Stopped(None)),
    ]


def test_a_driver_that_cannot_go_on_ends_it_with_its_error(bench: Bench) -> None:
    bench.ask(1, HELLO)
    bench.take()
    bench.tell(Abort(StoreFull("full", fix="make room")))
    close, settle, stopped = bench.take()
    assert close == CloseSocket(1, CloseCode.NORMAL)
    assert isinstance(settle, Settle)
    assert isinstance(failure(settle.result), RequestInDoubt)
    assert isinstance(stopped, NotifyApplication)
    assert isinstance(stopped.state.error, StoreFull)  # type: ignore[union-attr]
    bench.tell(Abort(StoreFull("again")))
    assert bench.take() == []


def test_what_has_no_answer_at_the_end_says_whether_it_was_sent() -> None:
    bench = Bench(ClientOptions(window=2))
    bench.connect()
    bench.ask(1, HELLO)
    bench.ask(2, HELLO, id="two", keep=True)
    bench.tell(Kept(["two"]))
    bench.ask(3, HELLO)
    bench.ask(4, Invoke("", "e"))
    bench.ask(6, HELLO, id="six", keep=True)
    bench.take()
    bench.tell(Stop(drain_s=3))
    bench.pass_time(4)
    effects = bench.take()
    results = {each.token: each.result for each in effects if isinstance(each, Settle)}
    maybe = {token: result.maybe_taken for token, result in results.items()}  # type: ignore[union-attr]
    assert maybe == {1: True, 2: True, 3: False, 4: True, 6: True}
    assert "outbox" in failure(results[2]).message
    assert isinstance(failure(results[6]), RequestInDoubt), "it was on its way into the outbox"
    assert not [each for each in effects if isinstance(each, Remove)]
    bench.ask(5, HELLO)
    assert isinstance(failure(bench.settled()[5]), LocalProtocolError)


@pytest.mark.parametrize(
    "options",
    [
        {"window": 0},
        {"queue_max": -1},
        {"ack_timeout_s": 0.0},
        {"ack_timeout_s": 60.0},
        {"ping_s": 50.0},
        {"inbox_max": 0},
        {"inbox_bytes_max": 0},
        {"queue_bytes_max": 0},
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        ClientOptions(**options)  # type: ignore[arg-type]


# -- whatever a server says


def _events(bench: Bench) -> st.SearchStrategy[list[Callable[[], None]]]:
    said = frame_values.json_responses | frame_values.plain_responses
    small = st.builds(Ack, st.integers(0, 5), st.none() | st.just(BUSY)) | st.builds(
        GroupMessage, st.just("g"), st.just(text("x")), sequence_id=st.integers(0, 9)
    )
    sessions = st.builds(Connected, st.sampled_from(["a", "b"]), st.none(), st.none() | st.just("t"))
    requests = st.sampled_from([HELLO, JoinGroup("g"), LeaveGroup("g"), SendEvent("e", text("x")), Invoke("", "e")])
    tokens = iter(range(1, 10_000))

    def say(response: Response) -> Callable[[], None]:
        return lambda: bench.say(response)

    def hear(frame: Frame) -> Callable[[], None]:
        return lambda: bench.tell(FrameReceived(bench.socket, frame))

    def ask(request: SendToGroup, id: str | None) -> Callable[[], None]:
        return lambda: bench.tell(
            SubmitRequest(next(tokens), request, id if isinstance(request, SendToGroup) else None, timeout_s=7)
        )

    return st.lists(
        (said | small | small | sessions).map(say)
        | (st.text(max_size=9) | st.binary(max_size=9)).map(hear)
        | st.builds(ask, requests, st.none() | st.just("id"))
        | st.just(bench.open)
        | st.sampled_from([None, 1000, 1001, 1008]).map(lambda code: lambda: bench.close(code))
        | st.floats(0, 70).map(lambda seconds: lambda: bench.pass_time(seconds))
        | st.integers(0, 9).map(lambda number: lambda: bench.tell(MessageDelivered(number))),
        max_size=30,
    )


@given(st.data())
def test_whatever_a_server_says_a_client_raises_nothing_and_settles_each_request_once(data: st.DataObject) -> None:
    bench = Bench()
    for do in data.draw(_events(bench)):
        do()
    bench.tell(Stop())
    settled = [effect.token for effect in bench.effects if isinstance(effect, Settle)]
    assert len(settled) == len(set(settled))
    assert bench.client.phase is Phase.STOPPED
    assert not bench.client._requests._tokens
    numbers = [effect.number for effect in bench.effects if isinstance(effect, DeliverMessage)]
    assert numbers == list(range(1, len(numbers) + 1))


# -- with the real hub


def test_who_was_in_a_group_is_in_it_again_after_a_loss() -> None:
    world = ClientWorld(SeededWorld(1))
    ann, ben = world.actor("ann"), world.actor("ben")
    ben.join("g")
    world.run_for(1)
    assert ben.link is not None
    ben.feed(Closed(ben.link.socket, CloseCode.POLICY))
    world.run_for(5)
    assert ben.losses == 1
    ann.publish("g", "hello")
    world.run_for(5)
    assert [body for _, body, _ in ben.got] == ["hello"]
