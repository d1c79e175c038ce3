"""The parts of a stream that wait for their acknowledgement."""

from __future__ import annotations

from semel.pubsub.client.streams import Window


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
