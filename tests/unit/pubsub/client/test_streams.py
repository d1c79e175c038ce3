"""Streams of a client: each part is published once and in order, and its sender knows how it ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.pubsub.client.test_machine import Bench, failure
from tests.unit.pubsub.hub.world import text

from semel.errors import (
    Forbidden,
    InputError,
    LimitExceeded,
    LocalProtocolError,
    PeerUnavailable,
    RequestInDoubt,
    SemelError,
    StreamBroken,
)
from semel.pubsub.client.events import (
    BeginStream,
    ClientOptions,
    Effect,
    EndStream,
    FlushStream,
    KeepStream,
    RequestAccepted,
    SendFrame,
    Settle,
    Stop,
    StreamOver,
    Withdraw,
    WritePart,
)
from semel.pubsub.client.machine import Phase
from semel.pubsub.client.streams import Window
from semel.pubsub.protocol.messages import (
    ErrorName,
    Fault,
    GroupMessage,
    Request,
    StartStream,
    StreamAck,
    StreamClosed,
    StreamData,
    StreamEnd,
    StreamNack,
)

START = StartStream("g", "s")
GIVEN_UP = Fault(ErrorName.USER, "the sender has given it up")
UNKNOWN = Fault(ErrorName.STREAM_NOT_FOUND, "there is no stream 's'")
BUSY = Fault(ErrorName.INTERNAL, "the store is busy")


class Sender(Bench):
    """A client that is connected, with what streams need."""

    def __init__(self, options: ClientOptions | None = None) -> None:
        super().__init__(options)
        self.connect()
        self.take()
        self._last = 100

    def write(self, *bodies: str) -> list[int]:
        tokens = []
        for body in bodies:
            self._last += 1
            tokens.append(self._last)
            self.tell(WritePart(self._last, "s", text(body)))
        return tokens

    def begin(self) -> None:
        self.tell(BeginStream(1, START))
        self.say(StreamAck("s", 1))
        assert self.settled() == {1: RequestAccepted()}

    def sent_parts(self) -> list[int | None]:
        return [request.sequence_id for request in self.sent() if isinstance(request, StreamData)]

    def over(self) -> list[SemelError | None]:
        return [effect.error for effect in self.take() if isinstance(effect, StreamOver)]


@pytest.fixture
def sender() -> Sender:
    """One with a stream that has begun."""
    made = Sender()
    made.begin()
    return made


def why(errors: Sequence[SemelError | None]) -> tuple[str, int]:
    [error] = errors
    assert isinstance(error, StreamBroken)
    assert error.fix
    return error.name, error.parts


def split(effects: Sequence[Effect], sender: Sender) -> tuple[list[Request], dict[int, object]]:
    sent = [sender.codec.decode(effect.frame) for effect in effects if isinstance(effect, SendFrame)]
    return sent, {effect.token: effect.result for effect in effects if isinstance(effect, Settle)}


# -- the course of a stream


def test_a_stream_from_its_beginning_to_its_end() -> None:
    sender = Sender()
    request = StartStream("g", "s", 5000, True, 9, {"k": "v"})
    sender.tell(BeginStream(1, request))
    assert sender.sent() == [request]
    sender.say(StreamAck("s", 1))
    assert sender.settled() == {1: RequestAccepted()}
    tokens = sender.write("a", "b")
    sent, settled = split(sender.take(), sender)
    assert sent == [StreamData("s", 1, text("a")), StreamData("s", 2, text("b"))]
    assert settled == dict.fromkeys(tokens, RequestAccepted())
    sender.tell(FlushStream(2, "s"))
    sender.say(StreamAck("s", 2))
    assert sender.settled() == {}
    sender.say(StreamAck("s", 3))
    assert sender.settled() == {2: RequestAccepted()}
    sender.tell(EndStream(3, "s"))
    assert sender.sent() == [StreamEnd("s")]
    sender.say(StreamClosed("s"))
    assert sender.take() == [Settle(3, RequestAccepted()), StreamOver("s")]
    assert sender.client.next_deadline() is not None


def test_an_end_waits_until_all_parts_are_acknowledged(sender: Sender) -> None:
    """A part that is refused for a time would otherwise be missing in a stream that ended well."""
    sender.write("a", "b")
    sender.take()
    sender.tell(EndStream(3, "s"))
    assert sender.sent() == []
    sender.say(StreamNack("s", 2, ErrorName.TRANSIENT, "the store is busy"))
    sender.pass_time(1)
    assert sender.sent() == [StreamData("s", 2, text("b"))]
    sender.say(StreamAck("s", 3))
    assert sender.sent() == [StreamEnd("s")]


def test_an_end_with_an_error_does_not_wait(sender: Sender) -> None:
    sender.write("a")
    sender.take()
    error = Fault(ErrorName.USER, "no more", "E7")
    sender.tell(FlushStream(2, "s"))
    sender.tell(EndStream(3, "s", error))
    sent, settled = split(sender.take(), sender)
    assert sent == [StreamEnd("s", error)]
    assert isinstance(failure(settled[2]), StreamBroken)  # type: ignore[arg-type]
    sender.say(StreamClosed("s"))
    assert sender.take() == [Settle(3, RequestAccepted()), StreamOver("s")]


def test_flushing_what_is_acknowledged_takes_no_time(sender: Sender) -> None:
    sender.tell(FlushStream(2, "s"))
    assert sender.settled() == {2: RequestAccepted()}


def test_keeping_alive_says_only_that(sender: Sender) -> None:
    sender.tell(KeepStream("s"))
    sender.tell(KeepStream("other"))
    assert sender.sent() == [StreamData("s")]
    sender.close()
    sender.tell(KeepStream("s"))
    assert sender.sent() == []


# -- memory is bounded


def test_who_writes_faster_than_the_server_takes_waits() -> None:
    sender = Sender(ClientOptions(stream_window=2))
    sender.begin()
    first, second, third, fourth = sender.write("a", "b", "c", "d")
    assert sender.settled() == {first: RequestAccepted(), second: RequestAccepted()}
    sender.say(StreamAck("s", 2))
    sent, settled = split(sender.take(), sender)
    assert (sent, settled) == ([StreamData("s", 3, text("c"))], {third: RequestAccepted()})
    sender.tell(Withdraw(fourth))
    assert isinstance(failure(sender.settled()[fourth]), LocalProtocolError)
    sender.say(StreamAck("s", 4))
    sender.write("e")
    assert sender.sent() == [StreamData("s", 4, text("e"))]


def test_a_stream_is_bounded_by_its_size_too() -> None:
    sender = Sender(ClientOptions(stream_bytes_max=1000))
    sender.begin()
    first, second, third = sender.write("x" * 600, "y" * 600, "z")
    assert set(sender.settled()) == {first, second}
    sender.say(StreamAck("s", 2))
    assert set(sender.settled()) == {third}


def test_a_part_for_which_there_is_no_room_in_time_is_not_sent() -> None:
    sender = Sender(ClientOptions(stream_window=1))
    sender.begin()
    sender.write("a")
    sender.take()
    sender.tell(WritePart(7, "s", text("b"), timeout_s=2))
    sender.pass_time(3)
    assert isinstance(failure(sender.settled()[7]), PeerUnavailable)
    sender.say(StreamAck("s", 2))
    assert sender.sent() == []


def test_while_somebody_waits_for_acknowledgements_messages_are_read() -> None:
    sender = Sender(ClientOptions(inbox_max=1))
    sender.begin()
    sender.say(GroupMessage("g", text("x"), sequence_id=1))
    assert not sender.client.is_reading
    sender.write("a")
    assert sender.client.is_reading


# -- again


def test_without_an_acknowledgement_everything_goes_out_again_and_each_one_buys_time(sender: Sender) -> None:
    sender.write("a", "b", "c")
    sender.take()
    sender.pass_time(4)
    sender.say(StreamAck("s", 2))
    sender.pass_time(4)
    assert sender.sent_parts() == []
    sender.pass_time(1)
    assert sender.sent_parts() == [2, 3]
    sender.pass_time(9)
    assert sender.sent_parts() == []
    sender.pass_time(1)
    assert sender.sent_parts() == [2, 3]


def test_a_beginning_and_an_end_go_out_again_too() -> None:
    sender = Sender()
    sender.tell(BeginStream(1, START))
    sender.pass_time(5)
    assert sender.sent() == [START, START]
    sender.say(StreamAck("s", 1), StreamAck("s", 1))
    sender.tell(EndStream(2, "s"))
    sender.take()
    sender.pass_time(5)
    assert sender.sent() == [StreamEnd("s")]


def test_on_a_new_socket_of_the_session_what_is_not_acknowledged_goes_out_again_in_order(sender: Sender) -> None:
    sender.write("a", "b", "c")
    sender.say(StreamAck("s", 2))
    sender.close()
    sender.write("d")
    sender.pass_time(1)
    sender.open()
    sender.take()
    sender.say(StreamAck("s", 2))
    assert sender.sent_parts() == [2, 3, 4]


def test_on_a_new_socket_a_stream_that_waits_for_nothing_is_asked_after(sender: Sender) -> None:
    """The server may have ended it, and the word of it was lost with the old socket."""
    sender.take()
    sender.recover()
    assert StreamData("s") in sender.sent()
    sender.say(StreamClosed("s", UNKNOWN))
    assert why(sender.over()) == ("StreamNotFound", 0)


def test_after_a_gap_everything_goes_out_again_at_once_but_not_in_a_circle(sender: Sender) -> None:
    sender.write("a", "b")
    sender.take()
    sender.say(StreamNack("s", 1, ErrorName.INVALID_SEQUENCE))
    assert sender.sent_parts() == [1, 2]
    sender.say(StreamNack("s", 1, ErrorName.INVALID_SEQUENCE))
    assert sender.sent_parts() == []
    sender.pass_time(1)
    assert sender.sent_parts() == [1, 2]


def test_while_the_server_cannot_take_a_part_none_goes_out(sender: Sender) -> None:
    sender.write("a")
    sender.take()
    sender.say(StreamNack("s", 1, ErrorName.TRANSIENT, "busy"))
    sender.write("b")
    assert sender.sent_parts() == []
    sender.pass_time(1)
    assert sender.sent_parts() == [1, 2]


def test_a_server_that_never_takes_it_is_asked_so_often_and_no_more() -> None:
    sender = Sender(ClientOptions(refusals_max=2))
    sender.begin()
    sender.write("a")
    for _ in range(3):
        sender.say(StreamNack("s", 1, ErrorName.TRANSIENT, "busy"))
        sender.pass_time(1)
    effects = sender.take()
    assert split(effects, sender)[0][-1] == StreamEnd("s", GIVEN_UP)
    assert why([effect.error for effect in effects if isinstance(effect, StreamOver)]) == ("TransientError", 0)


def test_an_end_that_the_server_could_not_take_is_tried_again(sender: Sender) -> None:
    sender.tell(EndStream(2, "s"))
    sender.take()
    sender.say(StreamNack("s", 1, ErrorName.TRANSIENT, "busy"))
    sender.pass_time(1)
    assert sender.sent() == [StreamEnd("s")]


def test_a_beginning_that_the_server_could_not_take_is_tried_again_but_not_for_ever() -> None:
    sender = Sender(ClientOptions(refusals_max=1))
    sender.tell(BeginStream(1, START))
    sender.say(StreamClosed("s", BUSY))
    sender.pass_time(1)
    assert sender.sent() == [START, START]
    sender.say(StreamClosed("s", BUSY))
    assert isinstance(failure(sender.settled()[1]), PeerUnavailable)


@pytest.mark.parametrize("expected", [1, 4])
def test_a_server_that_contradicts_itself_breaks_the_stream(sender: Sender, expected: int) -> None:
    sender.write("a", "b")
    sender.say(StreamAck("s", 2))
    sender.take()
    sender.say(StreamNack("s", expected, ErrorName.INVALID_SEQUENCE))
    assert why(sender.over()) == ("RemoteProtocolError", 1)


def test_an_acknowledgement_that_comes_late_means_nothing(sender: Sender) -> None:
    sender.write("a", "b")
    sender.say(StreamAck("s", 3), StreamAck("s", 2), StreamAck("other", 9))
    assert sender.over() == []


# -- the end of a stream


@pytest.mark.parametrize("name", [ErrorName.IDLE_TIMEOUT, ErrorName.FORBIDDEN, ErrorName.STREAM_NOT_FOUND])
def test_a_stream_that_the_server_ends_fails_whoever_waits_and_says_what_is_sure(sender: Sender, name: str) -> None:
    sender.write("a", "b", "c")
    sender.tell(FlushStream(2, "s"))
    sender.say(StreamAck("s", 3))
    sender.take()
    sender.say(StreamClosed("s", Fault(name, "enough")))
    effects = sender.take()
    assert why([effect.error for effect in effects if isinstance(effect, StreamOver)]) == (name, 2)
    assert isinstance(failure(split(effects, sender)[1][2]), StreamBroken)  # type: ignore[arg-type]
    sender.write("late")
    assert all(isinstance(failure(result), LocalProtocolError) for result in sender.settled().values())


@pytest.mark.parametrize(("name", "error"), [(ErrorName.FORBIDDEN, Forbidden), (ErrorName.BAD_REQUEST, InputError)])
def test_a_stream_that_may_not_begin_fails_with_an_error_of_its_kind(name: str, error: type[SemelError]) -> None:
    sender = Sender()
    sender.tell(BeginStream(1, START))
    sender.say(StreamClosed("s", Fault(name, "no")))
    assert type(failure(sender.settled()[1])) is error


def test_with_its_session_a_stream_is_lost(sender: Sender) -> None:
    sender.write("a", "b")
    sender.tell(FlushStream(2, "s"))
    sender.say(StreamAck("s", 2))
    sender.take()
    sender.lose()
    effects = sender.take()
    assert why([effect.error for effect in effects if isinstance(effect, StreamOver)]) == ("SessionGone", 1)
    assert not [request for request in split(effects, sender)[0] if isinstance(request, StreamData)]


def test_when_its_session_is_lost_after_its_end_went_out_nobody_knows(sender: Sender) -> None:
    sender.tell(EndStream(2, "s"))
    sender.take()
    sender.lose()
    assert isinstance(failure(sender.settled()[2]), RequestInDoubt)


def test_one_that_is_given_up_is_given_up_with_its_session_as_well(sender: Sender) -> None:
    sender.tell(EndStream(2, "s", GIVEN_UP))
    sender.take()
    sender.lose()
    assert sender.settled() == {2: RequestAccepted()}


def test_one_that_may_have_begun_in_a_lost_session_is_not_begun_again_in_the_next() -> None:
    """The end of the first comes when its session expires, in the middle of the second: they have the same id."""
    sender = Sender()
    sender.tell(BeginStream(1, START))
    sender.lose()
    effects = sender.take()
    sent, settled = split(effects, sender)
    assert sent.count(START) == 1
    assert why([failure(settled[1])]) == ("SessionGone", 0)  # type: ignore[arg-type]


def test_one_that_was_never_asked_for_begins_in_the_next_session() -> None:
    sender = Sender()
    sender.close()
    sender.tell(BeginStream(1, START))
    sender.pass_time(1)
    sender.open()
    sender.lose()
    assert START in sender.sent()
    sender.say(StreamAck("s", 1))
    assert sender.settled() == {1: RequestAccepted()}


def test_an_end_that_is_repeated_to_a_server_that_knows_no_stream_is_in_doubt_and_one_that_is_not_is_none(
    sender: Sender,
) -> None:
    sender.tell(EndStream(2, "s"))
    sender.pass_time(5)
    sender.take()
    sender.say(StreamClosed("s", UNKNOWN))
    assert isinstance(failure(sender.settled()[2]), RequestInDoubt)
    sender.begin()
    sender.tell(EndStream(3, "s"))
    sender.say(StreamClosed("s", UNKNOWN))
    assert isinstance(failure(sender.settled()[3]), StreamBroken)


def test_what_is_said_of_a_stream_before_it_with_the_same_id_does_not_concern_it(sender: Sender) -> None:
    sender.tell(EndStream(2, "s"))
    sender.pass_time(5)
    sender.say(StreamClosed("s"))
    sender.take()
    sender.tell(BeginStream(3, START))
    sender.say(StreamClosed("s"), StreamClosed("s", UNKNOWN), StreamAck("s", 7))
    assert sender.settled() == {}
    sender.say(StreamAck("s", 1))
    assert sender.settled() == {3: RequestAccepted()}


def test_a_beginning_for_which_nobody_waits_any_more_is_taken_back() -> None:
    sender = Sender()
    sender.tell(BeginStream(1, START, timeout_s=1))
    sender.pass_time(2)
    assert isinstance(failure(sender.settled()[1]), RequestInDoubt)
    sender.say(StreamAck("s", 1))
    assert sender.sent() == [StreamEnd("s", GIVEN_UP)]
    sender.say(StreamClosed("s"))
    assert sender.over() == [None]
    sender.begin()


def test_a_beginning_that_was_never_sent_is_simply_forgotten() -> None:
    sender = Sender()
    sender.close()
    sender.tell(BeginStream(1, START))
    sender.tell(Withdraw(1))
    sender.pass_time(1)
    sender.open()
    sender.say(StreamAck("other", 1))
    assert START not in sender.sent()
    sender.begin()


def test_who_does_not_wait_for_the_end_any_more_does_not_stop_it(sender: Sender) -> None:
    sender.write("a")
    sender.tell(EndStream(2, "s", timeout_s=1))
    sender.tell(FlushStream(3, "s", timeout_s=1))
    sender.pass_time(2)
    settled = sender.settled()
    assert all(isinstance(failure(settled[token]), RequestInDoubt) for token in (2, 3))
    sender.say(StreamAck("s", 2))
    assert sender.sent() == [StreamEnd("s")]


# -- the end of the client


def test_stopping_waits_for_what_is_on_its_way_and_then_breaks_what_is_open(sender: Sender) -> None:
    sender.write("a")
    sender.take()
    sender.tell(Stop(10))
    assert sender.client.phase is Phase.READY
    sender.write("b")
    assert all(isinstance(failure(result), LocalProtocolError) for result in sender.settled().values())
    sender.say(StreamAck("s", 2))
    assert sender.client.phase is Phase.STOPPED
    assert why(sender.over()) == ("Stopped", 1)


def test_a_stream_may_be_ended_while_the_client_stops(sender: Sender) -> None:
    sender.write("a")
    sender.tell(Stop(10))
    sender.tell(EndStream(2, "s"))
    sender.say(StreamAck("s", 2), StreamClosed("s"))
    assert sender.settled()[2] == RequestAccepted()
    assert sender.client.phase is Phase.STOPPED


def test_what_cannot_be_said_at_the_end_is_said_so() -> None:
    sender = Sender()
    sender.begin()
    sender.tell(EndStream(2, "s"))
    sender.tell(BeginStream(3, StartStream("g", "t")))
    sender.close()
    sender.tell(BeginStream(4, StartStream("g", "u")))
    sender.take()
    sender.tell(Stop(0))
    kinds = {token: type(failure(result)) for token, result in sender.settled().items()}
    assert kinds == {2: RequestInDoubt, 3: StreamBroken, 4: PeerUnavailable}


# -- what is not sent


@pytest.mark.parametrize(
    "request_",
    [
        StartStream("", "s"),
        StartStream("g", ""),
        StartStream("g", "x" * 256),
        StartStream("g", "s", 0),
        StartStream("g", "s", 2**32),
        StartStream("g", "s", None, False, 301),
        StartStream("g", "s", metadata={"a b": "c"}),
    ],
)
def test_a_beginning_that_would_make_the_server_close_the_connection_is_not_sent(request_: StartStream) -> None:
    sender = Sender()
    sender.tell(BeginStream(1, request_))
    [effect] = sender.take()
    assert isinstance(effect, Settle)
    assert isinstance(failure(effect.result), InputError)


def test_a_part_that_is_too_large_is_not_sent_and_the_stream_goes_on(sender: Sender) -> None:
    [large] = sender.write("x" * 1024 * 1024)
    assert isinstance(failure(sender.settled()[large]), LimitExceeded)
    sender.write("a")
    assert sender.sent_parts() == [1]


def test_two_open_streams_have_two_ids_and_one_is_ended_once(sender: Sender) -> None:
    sender.tell(BeginStream(2, START))
    assert isinstance(failure(sender.settled()[2]), InputError)
    sender.tell(EndStream(3, "s"))
    sender.tell(EndStream(4, "s"))
    [late] = sender.write("late")
    settled = sender.settled()
    assert isinstance(failure(settled[4]), LocalProtocolError)
    assert isinstance(failure(settled[late]), LocalProtocolError)


# -- the window


@given(st.lists(st.sampled_from("wsab"), max_size=60), st.data())
def test_a_window_sends_each_part_in_order_and_forgets_only_what_is_acknowledged(
    course: list[str], data: st.DataObject
) -> None:
    """w: write, s: send, a: acknowledge, b: go back."""
    window = Window(5, 1000)
    sent_max, frames = 0, []
    for do in course:
        if do == "w" and window.has_room:
            frames.append(str(window.next))
            window.add(frames[-1], 300)
        elif do == "s":
            sent = list(window.take_unsent())
            assert sent == sorted(sent, key=int)
            sent_max = max([sent_max, *map(int, sent)])
        elif do == "a":
            expected = data.draw(st.integers(0, len(frames) + 2))
            if window.can_expect(expected):
                assert expected <= sent_max + 1
                before = window.first
                assert window.acknowledge(expected) == (expected > before)
                assert window.first == expected
        else:
            window.go_back()
            assert list(window.take_unsent()) == frames[window.first - 1 :]
            sent_max = max(sent_max, len(frames))
        assert len(window) <= 5
        assert len(window) == len(frames) - window.first + 1


# -- whatever a server says


def _events(sender: Sender) -> st.SearchStrategy[list[Callable[[], None]]]:
    ids = st.sampled_from(["s", "t"])
    numbers = st.integers(0, 4)
    names = st.sampled_from(list(ErrorName))
    faults = st.builds(Fault, names, st.just("why"))
    said = st.one_of(
        st.builds(StreamAck, ids, numbers),
        st.builds(StreamNack, ids, numbers, names),
        st.builds(StreamClosed, ids, st.none() | faults),
    )
    tokens = iter(range(1, 10_000))
    asked = st.one_of(
        st.builds(lambda id: lambda token: BeginStream(token, StartStream("g", id), timeout_s=9), ids),
        st.builds(lambda id: lambda token: WritePart(token, id, text("x"), timeout_s=9), ids),
        st.builds(lambda id: lambda token: FlushStream(token, id, timeout_s=9), ids),
        st.builds(lambda id, bad: lambda token: EndStream(token, id, GIVEN_UP if bad else None), ids, st.booleans()),
    )
    return st.lists(
        said.map(lambda response: lambda: sender.say(response))
        | said.map(lambda response: lambda: sender.say(response))
        | asked.map(lambda make: lambda: sender.tell(make(next(tokens))))
        | asked.map(lambda make: lambda: sender.tell(make(next(tokens))))
        | st.integers(1, 20).map(lambda token: lambda: sender.tell(Withdraw(token)))
        | ids.map(lambda id: lambda: sender.tell(KeepStream(id)))
        | st.sampled_from([sender.recover, sender.lose])
        | st.floats(0, 30).map(lambda seconds: lambda: sender.pass_time(seconds)),
        max_size=30,
    )


@given(st.data())
def test_whatever_a_server_says_each_request_is_settled_once_and_each_stream_is_over_once(
    data: st.DataObject,
) -> None:
    sender = Sender(ClientOptions(stream_window=2, refusals_max=2))
    for do in data.draw(_events(sender)):
        do()
    sender.tell(Stop())
    settled = [effect.token for effect in sender.effects if isinstance(effect, Settle)]
    assert len(settled) == len(set(settled))
    assert not sender.client._streams._tokens
    assert not sender.client._streams._streams


# -- the parts of a stream that wait for their acknowledgement


def window(parts: int = 0, count_max: int = 4, bytes_max: int = 100) -> Window:
    made = Window(count_max, bytes_max)
    for number in range(1, parts + 1):
        made.add(f"p{number}", 10)
    return made


def test_it_is_full_by_count_or_by_bytes() -> None:
    assert window(3).has_room
    assert not window(4).has_room
    assert not window(2, bytes_max=20).has_room


def test_each_part_goes_out_once_until_time_is_up_and_then_all_again() -> None:
    sent = window(2)
    assert list(sent.take_unsent()) == ["p1", "p2"]
    sent.add("p3", 10)
    assert list(sent.take_unsent()) == ["p3"]
    sent.go_back()
    assert list(sent.take_unsent()) == ["p1", "p2", "p3"]


def test_an_acknowledgement_takes_all_before_it_and_makes_room() -> None:
    sent = window(4)
    list(sent.take_unsent())
    assert sent.acknowledge(3)
    assert (sent.first, sent.next, len(sent), sent.has_room) == (3, 5, 2, True)
    assert not sent.acknowledge(3)
    assert not sent.acknowledge(1)
    sent.go_back()
    assert list(sent.take_unsent()) == ["p3", "p4"]


def test_what_was_acknowledged_while_it_was_to_go_again_does_not_go_again() -> None:
    sent = window(3)
    list(sent.take_unsent())
    sent.go_back()
    sent.acknowledge(3)
    assert list(sent.take_unsent()) == ["p3"]


def test_nobody_can_expect_what_was_never_sent() -> None:
    sent = window(3)
    next(sent.take_unsent())
    assert [number for number in range(5) if sent.can_expect(number)] == [1, 2]
    sent.acknowledge(2)
    assert not sent.can_expect(1)


def test_a_stream_that_is_given_up_has_nothing_to_send() -> None:
    sent = window(4)
    sent.clear()
    assert (list(sent.take_unsent()), len(sent), sent.has_room) == ([], 0, True)
