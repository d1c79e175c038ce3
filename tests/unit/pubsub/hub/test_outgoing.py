from __future__ import annotations

from tests.unit.pubsub.hub.parts import live, session

from semel.kernel.effects import Send
from semel.kernel.position import Position
from semel.pubsub.hub.context import HubContext
from semel.pubsub.hub.outgoing import Outgoing
from semel.pubsub.hub.session_phase import SessionChange
from semel.pubsub.hub.sockets import ALL, Write


def outgoing() -> tuple[Outgoing, HubContext]:
    context = HubContext("chat", "node", Position("hub/chat", 1, 0), lambda count: bytes(count))
    return Outgoing(context), context


def test_a_client_may_ask_once_its_session_is_open() -> None:
    out, _ = outgoing()
    opening = out.sockets["b"] = session("bob")
    opening.change(SessionChange.OPEN)
    alice = out.sockets["a"] = live("alice", peer="a")
    assert [out.open_session(peer) for peer in "abc"] == [alice, None, None]
    opening.change(SessionChange.OPENED)
    assert out.open_session("b") is opening


def test_all_goes_out_once_in_the_order_in_which_it_was_written() -> None:
    out, context = outgoing()
    out.write("a", b"1")
    out.write_all(["a", "b"], b"23", 2)
    out.write("b", b"4")
    out.flush()
    out.flush()
    assert context.effects == [Send(ALL, Write([(("a",), b"1"), (["a", "b"], b"23"), (("b",), b"4")], frames=6))]


def test_what_a_protocol_cannot_express_is_not_written() -> None:
    out, context = outgoing()
    out.write_all(["a", "b"], b"", 2)
    out.flush()
    assert context.effects == []


def test_to_write_more_does_not_change_what_went_out() -> None:
    out, context = outgoing()
    out.write("a", b"1")
    out.flush()
    out.write("a", b"2")
    assert context.effects == [Send(ALL, Write([(("a",), b"1")], frames=1))]
