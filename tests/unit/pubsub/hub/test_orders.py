from __future__ import annotations

from unittest.mock import Mock

import msgspec
import pytest
from tests.unit.pubsub.hub.parts import NOW, STREAM, Bench

from semel.kernel.ops import Append
from semel.pubsub.hub import orders
from semel.pubsub.hub.answers import DONE, NOT_FOUND
from semel.pubsub.hub.calls import Answer, CloseConnections, Connection, Everybody, Grant, Group, Outcome
from semel.pubsub.hub.commands import Commands, Scope
from semel.pubsub.hub.orders import ANSWER_S, NodeCommands, decode_command, encode_command
from semel.pubsub.hub.read_barrier import ReadBarrier
from semel.pubsub.hub.records import RecordKind, order, ordered, reply
from semel.pubsub.hub.roster import SOMEWHERE, Elsewhere
from semel.pubsub.protocol.permissions import Permission

CLOSE = CloseConnections(Everybody(), ("bob",), "enough")


class Scene:
    def __init__(self, is_shared: bool = True) -> None:
        self.bench = Bench(is_shared=is_shared)
        self.bench.tail.on_messages = self.bench.tail.listener = Mock()
        self.commands, self.current = Mock(spec=Commands), Mock(spec=ReadBarrier)
        self.current.when.side_effect = lambda then, failed, now: then(now)
        self.orders = NodeCommands(self.bench.context, self.bench.tail, self.current, self.commands)
        self.answers: list[Answer] = []

    def give(self, *elsewhere: Elsewhere, here: Answer = NOT_FOUND) -> None:
        """An order whose record is applied at once, and which this node carries out for its own."""
        self.commands.elsewhere_of.return_value = list(elsewhere)
        self.commands.carry_out.side_effect = lambda command, scope, now, then: then(here, set())
        self.orders.carry_out(CLOSE, NOW, self.answers.append)

    def record(self) -> Append:
        [record] = [op for op in self.bench.ops() if isinstance(op, Append)]
        return record

    def stands(self, offset: int = 5) -> str:
        record = self.record()
        self.bench.complete()
        self.orders.on_record(record, offset, NOW)
        return record.envelope.id

    def reply(self, id: str, answer: Answer, node: str = "two") -> None:
        body = msgspec.msgpack.encode((answer.outcome.value, answer.message))
        self.orders.on_record(reply(STREAM, node, id, body, 0, "r"), 6, NOW)


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_command_survives_the_stream() -> None:
    for command in (CLOSE, Grant("alice", Permission.SEND_TO_GROUP, "g")):
        assert decode_command(encode_command(command, frozenset({"a"}))) == (command, frozenset({"a"}))
    assert decode_command(msgspec.msgpack.encode(["Unknown", {}, None])) is None
    assert decode_command(b"nonsense") is None


def test_orders_in_the_stream_keep_their_form() -> None:
    """Nodes of different versions read each other's orders while one after the other is replaced."""
    close, grant = CloseConnections(Group("g"), ("a",), "r"), Grant("a", Permission.SEND_TO_GROUP, "g")
    assert encode_command(close, frozenset({"x"})).hex() == (
        "93b0436c6f7365436f6e6e656374696f6e7383a2746f82a474797065a547726f7570a46e616d65a167a8657863"
        "6c7564656491a161a6726561736f6ea17291a178"
    )
    assert encode_command(grant, frozenset({"x"})).hex() == (
        "93a54772616e7483aa636f6e6e656374696f6ea161aa7065726d697373696f6eab73656e64546f47726f7570a567726f7570a16791a178"
    )


def test_a_single_node_has_all_sessions() -> None:
    scene = Scene(is_shared=False)
    scene.give(here=DONE)
    assert (scene.answers, scene.bench.commits(), len(scene.orders)) == ([DONE], [], 0)


def test_without_sessions_elsewhere_no_order_is_needed(scene: Scene) -> None:
    scene.bench.tail.offset = 8
    scene.give(here=DONE)
    assert (scene.answers, scene.bench.commits()) == ([DONE], [])
    assert scene.commands.carry_out.call_args.args[1] == Scope(9)


def test_the_answer_waits_for_every_node_that_has_one(scene: Scene) -> None:
    scene.give(Elsewhere("alice", None, "two", {}), Elsewhere("carol", None, "three", {}))
    assert ordered(scene.record().envelope) == ("three", "two")
    id = scene.stands()
    scene.reply(id, DONE)
    assert scene.answers == []
    scene.reply(id, DONE, "three")
    assert (scene.answers, len(scene.orders)) == ([DONE], 0)


def test_one_that_has_ended_is_not_waited_for(scene: Scene) -> None:
    scene.give(Elsewhere("alice", None, "two", {}))
    scene.stands()
    scene.orders.has_ended("alice")
    assert scene.answers == [DONE]


def test_one_that_has_moved_is_ordered_for_again(scene: Scene) -> None:
    scene.give(Elsewhere("alice", None, "two", {}))
    scene.stands()
    scene.orders.has_moved("alice", "three")
    assert scene.answers == []
    scene.commands.elsewhere_of.return_value = [Elsewhere("alice", None, "three", {})]
    scene.orders.try_moved_again(NOW)
    assert ordered(scene.record().envelope) == ("three",)
    scene.reply(scene.stands(7), DONE, "three")
    assert scene.answers == [DONE]


def test_a_node_that_does_not_reply_in_time_is_named_in_the_log(scene: Scene) -> None:
    scene.give(Elsewhere("alice", None, "two", {}))
    scene.stands()
    assert scene.orders.next_deadline() == NOW + ANSWER_S
    scene.orders.on_timer(NOW + ANSWER_S)
    [answer] = scene.answers
    assert (answer.outcome, answer.message) == (Outcome.FAILED, "a node did not answer in time; ask again")
    assert (scene.bench.notes(), len(scene.orders)) == (["order"], 0)


def test_an_order_that_the_store_does_not_take_fails(scene: Scene) -> None:
    scene.give(Elsewhere("alice", None, "two", {}))
    scene.bench.fail()
    assert scene.answers[0].outcome is Outcome.FAILED


def test_a_session_that_is_somewhere_cannot_be_ordered_for(scene: Scene) -> None:
    scene.give(Elsewhere("alice", None, SOMEWHERE, {}))
    assert scene.bench.commits() == []


def test_many_names_are_several_orders(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orders, "ONLY_MAX", 2)
    assert [len(each) for each in orders._split(frozenset("abcde"))] == [2, 2, 1]


def ordered_by_two(scene: Scene, *nodes: str, offset: int = 5) -> None:
    body = encode_command(CloseConnections(Connection("alice")), None)
    scene.commands.carry_out.side_effect = lambda command, scope, now, then: then(DONE, set())
    scene.orders.on_record(order(STREAM, "two", nodes, body, 0, "order"), offset, NOW)


def test_an_order_of_another_node_is_carried_out_and_replied_to(scene: Scene) -> None:
    ordered_by_two(scene, "node")
    record = scene.record()
    assert (record.kind, record.envelope.subject) == (RecordKind.REPLY, "order")


def test_a_node_that_is_not_named_looks_whether_it_has_one_by_now(scene: Scene) -> None:
    scene.commands.may_have.return_value = False
    ordered_by_two(scene, "three")
    scene.commands.carry_out.assert_not_called()
    scene.commands.may_have.return_value = True
    ordered_by_two(scene, "three")
    scene.commands.carry_out.assert_called_once()


def test_an_order_from_before_this_node_began_is_not_for_it() -> None:
    scene = Scene()
    scene.bench.context.head = 10
    ordered_by_two(scene, "node", offset=10)
    scene.commands.carry_out.assert_not_called()


def test_an_order_that_this_node_does_not_know_is_refused(scene: Scene) -> None:
    scene.orders.on_record(order(STREAM, "two", ["node"], b"nonsense", 0, "order"), 5, NOW)
    outcome, _ = msgspec.msgpack.decode(scene.record().envelope.data, type=tuple[str, str])
    assert Outcome(outcome) is Outcome.REFUSED
