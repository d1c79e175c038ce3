"""What a client acknowledges to the server, and when."""

from __future__ import annotations

from semel.pubsub.client.inbox import SequenceAcks


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
