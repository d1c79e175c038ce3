"""How much the application may leave lying before the server is asked to wait."""

from __future__ import annotations

from unittest.mock import Mock, call

from semel.pubsub.client.events import ClientOptions
from semel.pubsub.client.inbox import DeliveryQueue, SequenceAcks

OPTIONS = ClientOptions(inbox_max=4, inbox_bytes_max=100)


def test_fullness_is_that_of_what_is_scarcer() -> None:
    queue = DeliveryQueue(OPTIONS)
    queue.add(1, 10, None)
    assert queue.fullness == 0.25
    queue.add(2, 90, None)
    assert queue.fullness == 1.0


def test_after_an_overflow_nothing_is_taken_on_this_socket() -> None:
    queue = DeliveryQueue(OPTIONS)
    numbers = [queue.add(sequence_id, 1, None) for sequence_id in range(1, 9)]
    assert queue.overflows()
    queue.delivered(numbers[4], 0.0)
    assert queue.overflows()
    assert not queue.can_make_up
    queue.delivered(numbers[5], 0.0)
    assert queue.can_make_up
    queue.leave_socket()
    assert not queue.overflows()
    assert not queue.can_make_up


def test_there_is_nothing_to_make_up_for_without_an_overflow() -> None:
    queue = DeliveryQueue(OPTIONS)
    queue.add(1, 1, None)
    assert not queue.overflows()
    assert not queue.can_make_up


def test_what_is_delivered_is_reported_to_the_session_in_which_it_came() -> None:
    queue, old, new = DeliveryQueue(OPTIONS), Mock(spec=SequenceAcks), Mock(spec=SequenceAcks)
    for sequence_id, arrivals in ((7, old), (1, new), (2, None), (3, new)):
        queue.add(sequence_id, 5, arrivals)
    queue.delivered(3, 9.0)
    assert (old.deliver.mock_calls, new.deliver.mock_calls) == ([call(7, 5, 9.0)], [call(1, 5, 9.0)])
    assert (len(queue), queue.fullness) == (1, 0.25)


# -- what a client acknowledges to the server, and when


def acks(count: int = 10, size_max: int = 1000, delay_s: float = 5.0) -> SequenceAcks:
    return SequenceAcks(count, size_max, delay_s)


def test_what_came_twice_is_new_once() -> None:
    arrivals = acks()
    assert [arrivals.arrive(number, 1, 0.0) for number in (1, 2, 2, 1, 3)] == [True, True, False, False, True]


def test_nothing_is_acknowledged_before_the_application_has_had_it() -> None:
    arrivals = acks()
    arrivals.arrive(1, 1, 0.0)
    assert (arrivals.next_deadline(), arrivals.take()) == (None, None)
    arrivals.deliver(1, 1, 1.0)
    assert arrivals.next_deadline() == 6.0
    assert (arrivals.due(5.9), arrivals.due(6.0), arrivals.take()) == (None, 1, None)


def test_more_than_enough_is_acknowledged_at_once() -> None:
    many, large = acks(count=2), acks(size_max=100)
    for number in (1, 2, 3):
        many.arrive(number, 1, 0.0)
        many.deliver(number, 1, 0.0)
        assert many.next_deadline() == (5.0 if number < 3 else 0.0)
    large.arrive(1, 101, 0.0)
    large.deliver(1, 101, 0.0)
    assert large.due(0.0) == 1


def test_on_a_new_socket_no_more_is_acknowledged_than_came_on_it() -> None:
    arrivals = acks()
    for number in (1, 2, 3):
        arrivals.arrive(number, 1, 0.0)
        arrivals.deliver(number, 1, 0.0)
    assert arrivals.take() == 3
    arrivals.begin_socket()
    assert arrivals.take() is None
    assert not arrivals.arrive(2, 1, 1.0)
    assert arrivals.due(6.0) == 2


def test_a_copy_of_what_the_application_still_has_to_get_is_not_acknowledged() -> None:
    arrivals = acks()
    arrivals.arrive(1, 1, 0.0)
    arrivals.begin_socket()
    assert not arrivals.arrive(1, 1, 0.0)
    assert arrivals.next_deadline() is None
