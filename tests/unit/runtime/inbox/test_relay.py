"""Where the relay brings what stands in the outbox, and what the answers of others mean."""

from __future__ import annotations

import pytest

from semel.errors import ConfigError, InputError, PeerUnavailable, RemoteProtocolError
from semel.inbox.outbox import DESTINATION_HEADER, Destination, OutboxCalls
from semel.kernel.envelope import Envelope
from semel.kernel.ops import Append, Enqueue, Op, WorkRow, WorkState
from semel.kernel.retry import Again, Enough, Failure, RetryPolicy, type_names
from semel.runtime.inbox.relay import Relay, RelayPolicy, Sender


def row(to: str) -> WorkRow:
    calls = OutboxCalls("shop")
    calls.publish(b"x", to, id="m", type="note", headers={"own": "1"})
    [op] = calls.enqueues
    return WorkRow(op.queue, op.identity, None, 1, WorkState.CLAIMED, 0, 1, 1, "me", op.envelope)


def enqueue(endpoint: str, envelope: Envelope) -> Op:
    return Enqueue(f"inbox/{endpoint}", envelope.id, envelope)


def relay(**senders: Sender) -> Relay:
    return Relay("outbox/shop>relay", enqueue, senders)


async def test_into_the_same_store_it_is_one_commit() -> None:
    [append] = await relay().deliver(row("stream:notes"))
    [stored] = await relay().deliver(row("endpoint:bills"))
    assert isinstance(append, Append)
    assert isinstance(stored, Enqueue)
    assert (append.stream, append.identity, stored.queue) == ("notes", "m", "inbox/bills")
    for op in (append, stored):
        assert op.envelope.headers == {"own": "1"}, "where it goes is no part of the message"


@pytest.mark.parametrize(("to", "name"), [("hub:chat", "hub"), ("nats:orders", "nats"), ("https://a/b", "url")])
async def test_others_get_it_from_their_sender(to: str, name: str) -> None:
    sent: list[tuple[str, str]] = []

    async def send(destination: Destination, envelope: Envelope) -> None:
        assert DESTINATION_HEADER not in envelope.headers
        sent.append((str(destination), envelope.id))

    assert await relay(**{name: send}).deliver(row(to)) == ()
    assert sent == [(to, "m")]
    with pytest.raises(ConfigError, match=f"nobody sends to {name}") as refused:
        await relay().deliver(row(to))
    assert f"app.sender('{name}', send)" in refused.value.fix


@pytest.mark.parametrize(
    ("error", "is_hopeless"),
    [(RemoteProtocolError, True), (InputError, True), (PeerUnavailable, False), (ConfigError, False), (OSError, False)],
)
def test_only_what_nobody_will_ever_take_is_a_dead_letter(error: type[Exception], is_hopeless: bool) -> None:
    policy = RelayPolicy(RetryPolicy(interval_s=1.0))
    decision = policy.decide(Failure("x", type_names(error)), row("https://a/b"), 1000, 5.0, 0.0)
    assert decision == (Enough("dead_letter", holds=True) if is_hopeless else Again(6.0))
    assert policy.last_attempt(row("https://a/b")) is None
