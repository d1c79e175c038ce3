from __future__ import annotations

from semel.pubsub.hub.outgoing import Outgoing
from semel.pubsub.hub.sockets import Write


def test_all_goes_out_once_in_the_order_in_which_it_was_said() -> None:
    out = Outgoing()
    out.say("a", b"1")
    out.say_all(["a", "b"], b"23", 2)
    out.say("b", b"4")
    assert out.take() == Write([(("a",), b"1"), (["a", "b"], b"23"), (("b",), b"4")], frames=6)
    assert out.take() is None


def test_what_a_protocol_has_no_words_for_is_not_said() -> None:
    out = Outgoing()
    out.say_all(["a", "b"], b"", 2)
    assert out.take() is None


def test_to_say_more_does_not_change_what_was_taken() -> None:
    out = Outgoing()
    out.say("a", b"1")
    taken = out.take()
    out.say("a", b"2")
    assert taken == Write([(("a",), b"1")], frames=1)
