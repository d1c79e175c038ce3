"""What a broker's own settings mean for messages that are to be handled once: for how long it may deliver one again,
and when it gives one up by itself. Each warning says what to change."""

from __future__ import annotations

from dataclasses import dataclass

RELAY_PAUSE_S = 60.0
"""The relay of an outbox sends a message again after this time, at the latest."""


@dataclass(frozen=True, slots=True)
class JetStreamFacts:
    """A stream and its consumer. None is without limit."""

    stream: str
    consumer: str
    max_age_s: float | None = None
    max_messages: int | None = None
    max_deliver: int | None = None
    ack_wait_s: float = 30.0
    discards_old: bool = True
    max_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class QueueFacts:
    """A queue of RabbitMQ: what its arguments and policies say. None is without limit, or not known."""

    queue: str
    ttl_s: float | None = None
    expires_s: float | None = None
    max_length: int | None = None
    delivery_limit: int | None = None
    has_dead_letters: bool = False
    is_durable: bool = True
    overflow: str = "drop-head"


def jetstream_warnings(facts: JetStreamFacts, endpoint: str, keep_s: float) -> list[str]:
    who = f"endpoint {endpoint!r} listens to stream {facts.stream!r}"
    found = []
    if facts.max_age_s is None or facts.max_age_s > keep_s:
        kept = "without limit" if facts.max_age_s is None else f"for {facts.max_age_s:g} s"
        found.append(
            f"{who}, which keeps messages {kept}, and remembers what it has handled for {keep_s:g} s: an ack that was"
            " lost, or a new consumer, could bring an older one again, and it would be handled twice; set"
            f" max_age of the stream to {keep_s:g} s or less, or keep_s to more"
        )
    if facts.max_deliver is not None:
        after = facts.max_deliver * facts.ack_wait_s
        found.append(
            f"{who}, and consumer {facts.consumer!r} gives a message up after {facts.max_deliver} deliveries, about"
            f" {after:g} s: a store that is away for longer would lose it; set max_deliver of the consumer to -1"
        )
    limits = [("max_msgs", facts.max_messages), ("max_bytes", facts.max_bytes)]
    full = " and ".join(f"{name} {number}" for name, number in limits if number is not None)
    if full and facts.discards_old:
        found.append(
            f"{who}, which drops its oldest messages when it is full ({full}): some may go before they were taken; set"
            " its discard policy to new"
        )
    return found


def queue_warnings(facts: QueueFacts, endpoint: str, keep_s: float) -> list[str]:
    who = f"endpoint {endpoint!r} listens to queue {facts.queue!r}"
    found = []
    if facts.ttl_s is None or facts.ttl_s > keep_s:
        kept = "without limit" if facts.ttl_s is None else f"for {facts.ttl_s:g} s"
        found.append(
            f"{who}, which keeps messages {kept}, and remembers what it has handled for {keep_s:g} s: an ack that was"
            " lost would bring one again when the queue is listened to, and after that time it would be handled twice;"
            f" do not leave the queue without a listener for longer, or set x-message-ttl to {keep_s * 1000:.0f} with a"
            " dead-letter exchange"
        )
    elif not facts.has_dead_letters:
        found.append(
            f"{who}, which drops messages that waited for {facts.ttl_s:g} s; give it a dead-letter exchange, or take"
            " x-message-ttl away"
        )
    if facts.expires_s is not None:
        found.append(
            f"{who}, which is deleted with its messages when nobody listens for {facts.expires_s:g} s; take x-expires"
            " away"
        )
    if facts.max_length is not None and facts.overflow == "drop-head" and not facts.has_dead_letters:
        found.append(
            f"{who}, which drops its oldest messages above {facts.max_length}; set x-overflow to reject-publish, or"
            " give it a dead-letter exchange"
        )
    if facts.delivery_limit is not None and not facts.has_dead_letters:
        found.append(
            f"{who}, which drops a message after {facts.delivery_limit} deliveries: a store that is away for a while"
            " would lose it; give it a dead-letter exchange, or take the delivery limit away"
        )
    if not facts.is_durable:
        found.append(f"{who}, which is not durable: it is gone when RabbitMQ restarts; declare it durable")
    return found


def window_warning(stream: str, window_s: float, relay_pause_s: float = RELAY_PAUSE_S) -> str | None:
    """For what goes out: copies that come within the window are one message of the stream."""
    if window_s >= relay_pause_s:
        return None
    return (
        f"stream {stream!r} finds copies by Nats-Msg-Id within {window_s:g} s, and the outbox sends again after up to"
        f" {relay_pause_s:g} s: a reader without an inbox may see a message twice; set duplicate_window of the stream"
        f" to {2 * relay_pause_s:g} s or more"
    )
