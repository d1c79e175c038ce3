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
