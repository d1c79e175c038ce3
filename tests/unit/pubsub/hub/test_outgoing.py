from __future__ import annotations

from unittest.mock import Mock

import pytest
from tests.unit.pubsub.hub.parts import Bench, live, session

from semel.kernel.effects import CommitFailed, Send
from semel.kernel.position import Position
from semel.pubsub.hub.context import HubContext
from semel.pubsub.hub.outgoing import ClientAcks, Outgoing
from semel.pubsub.hub.session_phase import SessionChange
from semel.pubsub.hub.sockets import ALL, Write
from semel.pubsub.protocol.messages import Ack, ErrorName, Fault


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


# -- the answers to ackIds


class Scene:
    def __init__(self) -> None:
        self.bench, self.outgoing, self.alice = Bench(), Mock(spec=Outgoing), live()
        self.acks = ClientAcks(self.bench.context, self.outgoing)

    def answers(self) -> list[tuple[int, ErrorName | str | None]]:
        sent = [call.args[1] for call in self.outgoing.send.call_args_list]
        return [(each.ack_id, each.error.name if each.error else None) for each in sent if isinstance(each, Ack)]


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_what_is_durable_is_answered_as_a_duplicate_at_once(scene: Scene) -> None:
    assert not scene.acks.is_repeated(scene.alice, 1)
    scene.alice.acks.claimed.add(1)
    scene.acks.accept(scene.alice, [1])
    scene.outgoing.send_acks.assert_called_once_with(scene.alice, [1])
    assert scene.acks.is_repeated(scene.alice, 1)
    assert scene.answers() == [(1, ErrorName.DUPLICATE)]
    assert scene.bench.context.counts.duplicates == 1


def test_what_is_on_its_way_is_answered_when_it_is_decided(scene: Scene) -> None:
    scene.alice.acks.claimed.add(1)
    assert scene.acks.is_repeated(scene.alice, 1)
    assert scene.answers() == []
    scene.acks.accept(scene.alice, [1])
    assert scene.answers() == [(1, None), (1, ErrorName.DUPLICATE)]


def test_a_request_without_an_ack_id_is_never_a_repetition(scene: Scene) -> None:
    assert not scene.acks.is_repeated(scene.alice, None)
    scene.acks.answer(scene.alice, None)
    scene.outgoing.send.assert_not_called()


def test_every_time_it_was_sent_gets_the_error(scene: Scene) -> None:
    scene.alice.acks.wait_for(1)
    assert scene.acks.is_repeated(scene.alice, 1)
    scene.acks.refuse(scene.alice, [1], Fault(ErrorName.FORBIDDEN, "no"))
    assert scene.answers() == [(1, ErrorName.FORBIDDEN)] * 2
    assert not scene.alice.acks.is_known(1)


def test_a_store_that_fails_is_reported_once_and_the_client_gets_a_hint(scene: Scene) -> None:
    scene.acks.fail(scene.alice, [1], CommitFailed(1))
    scene.acks.fail(scene.alice, [2], CommitFailed(2))
    assert scene.answers() == [(1, ErrorName.INTERNAL), (2, ErrorName.INTERNAL)]
    assert scene.bench.notes() == ["hub-commit"]


def test_a_message_that_was_there_under_its_own_id_names_that_id(scene: Scene) -> None:
    scene.acks.accept(scene.alice, [1, 2], {2: "order-7"})
    [first, second] = [call.args[1] for call in scene.outgoing.send.call_args_list]
    assert (first.error, second.error.name) == (None, ErrorName.DUPLICATE)
    assert "order-7" in second.error.message
