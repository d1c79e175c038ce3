"""What a server's fault means to the caller, and what can be said where no answer came."""

from __future__ import annotations

import pytest

from semel.errors import Forbidden, InputError, PeerUnavailable, RemoteProtocolError, RequestInDoubt, SemelError
from semel.pubsub.client.errors import broken, error_of, is_for_a_time, not_taken_in_time, session_lost, unanswered
from semel.pubsub.protocol.messages import ErrorName, Fault

GONE = PeerUnavailable("the server is gone")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (ErrorName.FORBIDDEN, Forbidden),
        (ErrorName.CONFLICT, InputError),
        (ErrorName.BAD_REQUEST, InputError),
        (ErrorName.NOT_FOUND, InputError),
        (ErrorName.INTERNAL, PeerUnavailable),
        (ErrorName.TIMEOUT, PeerUnavailable),
        (ErrorName.TRANSIENT, PeerUnavailable),
        ("Whatever", RemoteProtocolError),
    ],
)
def test_a_fault_becomes_the_error_that_says_what_to_do(name: str, kind: type[SemelError]) -> None:
    error = error_of(Fault(name, "because"))
    assert type(error) is kind
    assert error.message == f"the server answers {name}: because"
    assert error.fix


def test_only_what_may_succeed_later_is_for_a_time() -> None:
    passing = {name for name in ErrorName if is_for_a_time(Fault(name, ""))}
    assert passing == {ErrorName.INTERNAL, ErrorName.TIMEOUT, ErrorName.TRANSIENT}


def test_what_was_sent_and_not_answered_is_in_doubt_and_what_was_not_sent_is_not() -> None:
    sent, waiting = unanswered(GONE, was_sent=True), unanswered(GONE, was_sent=False)
    assert (type(sent.error), sent.maybe_taken) == (RequestInDoubt, True)
    assert (type(waiting.error), waiting.maybe_taken) == (PeerUnavailable, False)
    assert type(not_taken_in_time(was_sent=True)) is RequestInDoubt
    assert type(not_taken_in_time(was_sent=False)) is PeerUnavailable


def test_a_broken_stream_says_after_which_part_and_why() -> None:
    error = broken(Fault(ErrorName.USER, "enough", 7), 3)
    assert (error.name, error.parts, error.user_code) == (ErrorName.USER, 3, 7)
    assert error.message == "the stream broke after part 3: UserError: enough"
    assert session_lost(GONE, 2).message == "the stream broke after part 2: SessionGone: the server is gone"
