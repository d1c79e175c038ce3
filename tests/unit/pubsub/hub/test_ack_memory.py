from __future__ import annotations

from semel.pubsub.hub.session import AckMemory


def test_what_is_on_its_way_is_known_and_not_taken() -> None:
    acks = AckMemory([(1, 3)])
    acks.claimed.add(5)
    assert acks.is_known(5)
    assert 5 not in acks.taken


def test_an_ack_id_that_may_not_be_claimed_yet_is_known_all_the_same() -> None:
    acks = AckMemory([])
    acks.wait_for(7)
    assert acks.is_known(7)
    assert 7 not in acks.claimed


def test_each_time_that_it_was_sent_again_is_answered() -> None:
    acks = AckMemory([])
    acks.wait_for(7)
    acks.repeat(7)
    acks.repeat(7)
    assert acks.take_repeats(7) == 2
    assert not acks.is_known(7)


def test_one_that_was_sent_once_is_answered_once() -> None:
    acks = AckMemory([])
    acks.wait_for(7)
    acks.wait_for(8)
    acks.repeat(8)
    acks.claim_waiting([7, 8])
    assert acks.waiting == {8: 1}
    assert 7 in acks.claimed


def test_after_a_failure_what_was_on_its_way_may_be_tried_again() -> None:
    acks = AckMemory([(1, 3)])
    acks.claimed.add(5)
    acks.fall_back()
    assert not acks.is_known(5)
    assert list(acks.claimed.ranges()) == [(1, 3)]
