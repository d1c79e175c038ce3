"""Requests under their ackIds: what goes out when, what goes again, and what a lost session leaves."""

from __future__ import annotations

import json
from collections.abc import Iterable

from semel.pubsub.client.acks import ClientInvocations, Pending, Requests
from semel.pubsub.client.events import Acked, ClientOptions
from semel.pubsub.hub.records import MESSAGE_ID
from semel.pubsub.protocol.frames_json import JsonCodec
from semel.pubsub.protocol.messages import Data, DataType, Invoke, JoinGroup, LeaveGroup, SendEvent, SendToGroup

TEXT = Data(DataType.TEXT, b"x")
OPTIONS = ClientOptions(window=3, queue_max=2, queue_bytes_max=1000, ack_timeout_s=10.0, ack_timeout_max_s=40.0)


def requests(*asked: Acked) -> Requests:
    made = Requests(OPTIONS, JsonCodec())
    for token, request in enumerate(asked):
        made.add(Pending(token, request, size=10))
    return made


def message(group: str = "g", id: str | None = None) -> SendToGroup:
    return SendToGroup(group, TEXT, metadata=None if id is None else {MESSAGE_ID: id})


def ack_ids(pendings: Iterable[Pending]) -> list[int]:
    return [json.loads(pending.frame)["ackId"] for pending in pendings]


def test_as_many_go_out_as_the_window_has_room_for() -> None:
    sent = requests(*[message()] * 5)
    assert sent.room == 0
    assert ack_ids(sent.fill(0.0, restores_only=False)) == [1, 2, 3]
    first = sent.find(1)
    assert first is not None
    sent.remove(first)
    assert ack_ids(sent.fill(0.0, restores_only=False)) == [4]
    assert sent.room == 1


def test_there_is_no_room_beyond_the_bytes_either() -> None:
    sent = Requests(OPTIONS, JsonCodec())
    sent.add(Pending(1, message(), size=1000))
    assert sent.room == 0


def test_a_second_change_of_a_group_waits_for_the_answer_to_the_first() -> None:
    sent = requests(JoinGroup("g"), LeaveGroup("g"))
    (join,) = sent.fill(0.0, restores_only=False)
    assert sent.fill(0.0, restores_only=False) == []
    sent.remove(join)
    (leave,) = sent.fill(0.0, restores_only=False)
    assert leave.request == LeaveGroup("g")


def test_what_is_not_in_the_outbox_yet_holds_back_what_is_behind_it() -> None:
    sent = Requests(OPTIONS, JsonCodec())
    first = Pending(1, message(), is_kept=False)
    sent.add(first)
    sent.add(Pending(2, message()))
    assert sent.fill(0.0, restores_only=False) == []
    first.is_kept = True
    assert len(sent.fill(0.0, restores_only=False)) == 2


def test_before_the_session_is_restored_nothing_else_goes_out() -> None:
    sent = requests(message())
    assert sent.fill(0.0, restores_only=True) == []
    sent.add_first([Pending(None, JoinGroup("g"), restores=True)])
    assert [pending.restores for pending in sent.fill(0.0, restores_only=True)] == [True]


def test_without_an_answer_all_messages_go_again_in_order_under_the_same_ack_ids() -> None:
    sent = requests(message(), JoinGroup("h"), message())
    before = [pending.frame for pending in sent.fill(0.0, restores_only=False)]
    assert sent.overdue(9.9) == []
    again = sent.overdue(10.0)
    assert ack_ids(pending for pending in again if isinstance(pending.request, SendToGroup)) == [1, 3]
    assert {pending.frame for pending in again} == set(before)


def test_a_message_that_was_refused_for_a_time_goes_again_with_all_behind_it_and_before_anything_new() -> None:
    sent = requests(message(), message(), message())
    first, second, _ = sent.fill(0.0, restores_only=False)
    sent.refuse(first, 2.0)
    sent.refuse(second, 5.0)
    sent.add(Pending(9, message()))
    assert sent.next_deadline() == 2.0
    sent.remove(second)
    assert sent.fill(1.0, restores_only=False) == []
    assert ack_ids(sent.overdue(2.0)) == [1, 3]
    assert ack_ids(sent.fill(2.0, restores_only=False)) == [4]


def test_after_a_refused_message_was_given_up_the_next_goes_out_twice() -> None:
    sent = requests(message())
    (refused,) = sent.fill(0.0, restores_only=False)
    sent.refuse(refused, 2.0)
    sent.give_up(refused)
    sent.add(Pending(9, message()))
    assert ack_ids(sent.fill(0.0, restores_only=False)) == [2, 2]
    sent.add(Pending(10, message()))
    assert ack_ids(sent.fill(0.0, restores_only=False)) == [3]


def test_copies_are_counted_until_each_is_answered() -> None:
    sent = requests(message())
    (pending,) = sent.fill(0.0, restores_only=False)
    sent.overdue(10.0)
    assert (sent.count_answer(pending), sent.count_answer(pending), sent.count_answer(pending)) == (1, 0, 0)
    sent.begin_socket(11.0)
    assert pending.copies == 1


def test_a_lost_session_puts_what_was_sent_before_what_was_not_and_in_doubt() -> None:
    sent = requests(*[message()] * 4)
    sent.add_first([Pending(None, JoinGroup("g"), restores=True)])
    first = sent.fill(0.0, restores_only=False)
    sent.on_session_lost()
    assert [pending.token for pending in sent] == [0, 1, 2, 3]
    assert sent.in_doubt() == [pending for pending in first if not pending.restores]
    assert ack_ids(sent.fill(5.0, restores_only=False)) == [1, 2, 3]
    assert first[1].sent_at == 0.0


def test_what_may_be_sent_in_another_session() -> None:
    event = Pending(1, SendEvent("ask", TEXT))
    assert not event.is_repeatable(0.0)
    assert Pending(1, event.request, at_least_once=True).is_repeatable(0.0)
    assert Pending(1, JoinGroup("g")).is_repeatable(0.0)
    assert not Pending(1, message()).is_repeatable(0.0)
    named = Pending(1, message(id="order-1"))
    assert named.is_repeatable(100.0)
    named.sent_at = 99.0
    assert named.is_repeatable(98.0)
    assert not named.is_repeatable(99.0)


def test_somebody_may_stop_waiting_and_somebody_else_begin() -> None:
    sent = requests(message())
    pending = sent.by_token(0)
    assert pending is not None
    sent.let_go(pending)
    assert (sent.by_token(0), pending.token, len(sent)) == (None, None, 1)
    sent.adopt(pending, 5)
    assert sent.by_token(5) is pending
    sent.remove(pending)
    assert (sent.by_token(5), len(sent)) == (None, 0)


# -- invocations go out once, whatever happens


def invocations(*tokens: int) -> ClientInvocations:
    made = ClientInvocations(JsonCodec())
    for token in tokens:
        made.add(token, Invoke("", "ask"))
    return made


def ids(frames: list[str | bytes]) -> list[str]:
    return [json.loads(frame)["invocationId"] for frame in frames]


def test_each_goes_out_once_under_an_id_of_its_own() -> None:
    asked = invocations(7, 8)
    assert ids(asked.fill()) == ["1", "2"]
    assert asked.fill() == []
    asked.add(9, Invoke("", "ask"))
    assert ids(asked.fill()) == ["3"]


def test_an_id_is_not_used_again_when_its_invocation_is_over() -> None:
    asked = invocations(7)
    asked.fill()
    found = asked.find("1")
    assert found is asked.by_token(7)
    assert found is not None
    asked.remove(found)
    assert (asked.find("1"), asked.by_token(7), len(asked)) == (None, None, 0)
    asked.add(8, Invoke("", "ask"))
    assert ids(asked.fill()) == ["2"]


def test_one_that_was_withdrawn_before_it_went_out_never_goes() -> None:
    asked = invocations(7, 8)
    first = asked.by_token(7)
    assert first is not None
    assert not first.is_sent
    asked.remove(first)
    assert ids(asked.fill()) == ["2"]


def test_a_cancellation_names_the_invocation() -> None:
    asked = invocations(7)
    (invocation,) = asked
    assert json.loads(asked.cancel(invocation)) == {"type": "cancelInvocation", "invocationId": "1"}
