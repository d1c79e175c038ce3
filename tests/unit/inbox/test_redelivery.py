"""What the settings of a broker mean, and for how long what goes back stays away."""

from __future__ import annotations

import pytest

from semel.inbox.giving_back import GiveBackDelays
from semel.inbox.redelivery import JetStreamFacts, QueueFacts, jetstream_warnings, queue_warnings, window_warning

KEEP_S = 1000.0


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        (JetStreamFacts("S", "c", max_age_s=1000.0), []),
        (JetStreamFacts("S", "c", max_age_s=1001.0), ["max_age of the stream to 1000 s"]),
        (JetStreamFacts("S", "c"), ["without limit"]),
        (JetStreamFacts("S", "c", max_age_s=10.0, max_deliver=5, ack_wait_s=2.0), ["about 10 s", "max_deliver"]),
        (JetStreamFacts("S", "c", max_age_s=10.0, max_messages=7), ["max_msgs 7"]),
        (JetStreamFacts("S", "c", max_age_s=10.0, max_messages=7, max_bytes=9, discards_old=False), []),
    ],
)
def test_jetstream(facts: JetStreamFacts, said: list[str]) -> None:
    check(jetstream_warnings(facts, "orders", KEEP_S), said)


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        (QueueFacts("q", ttl_s=1000.0, has_dead_letters=True), []),
        (QueueFacts("q", ttl_s=1000.0), ["drops messages that waited"]),
        (QueueFacts("q", ttl_s=2000.0), ["x-message-ttl to 1000000"]),
        (QueueFacts("q"), ["without limit"]),
        (QueueFacts("q", ttl_s=1.0, has_dead_letters=True, expires_s=5.0), ["x-expires"]),
        (QueueFacts("q", ttl_s=1.0, has_dead_letters=True, max_length=5, delivery_limit=3), []),
        (QueueFacts("q", max_length=5), ["without limit", "x-overflow"]),
        (QueueFacts("q", max_length=5, overflow="reject-publish"), ["without limit"]),
        (QueueFacts("q", delivery_limit=3), ["without limit", "delivery limit"]),
        (QueueFacts("q", ttl_s=1.0, has_dead_letters=True, is_durable=False), ["not durable"]),
    ],
)
def test_rabbitmq(facts: QueueFacts, said: list[str]) -> None:
    check(queue_warnings(facts, "orders", KEEP_S), said)


def check(warnings: list[str], said: list[str]) -> None:
    text = "\n".join(warnings)
    assert all(part in text for part in said), text
    assert bool(said) == bool(warnings), text
    assert all("endpoint 'orders'" in each for each in warnings)


def test_a_window_that_is_shorter_than_the_relays_pause_lets_copies_through() -> None:
    assert window_warning("S", 120.0) is None
    assert "duplicate_window of the stream to 120 s" in str(window_warning("S", 30.0))


def test_each_message_that_goes_back_waits_longer_for_itself() -> None:
    delays = GiveBackDelays(remembered_max=2)
    assert [delays.given_back("a", 1, 0.0) for _ in range(3)] == [0.1, 0.2, 0.4]
    assert delays.given_back("b", 1, 0.0) == 0.1
    assert delays.given_back("b", 9, 0.0) > 10.0, "the broker has counted more"
    delays.ended("a")
    assert delays.given_back("a", 1, 0.0) == 0.1
    delays.given_back("c", 1, 0.0)
    delays.given_back("d", 1, 0.0)
    assert len(delays) == 2, "memory is bounded"
    assert delays.given_back("a", 100, 0.0) == 60.0
