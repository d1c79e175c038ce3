"""Where the relay brings what stands in the outbox, and what the answers of others mean."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from semel.errors import ConfigError, PeerUnavailable, RemoteProtocolError
from semel.inbox.outbox import DESTINATION_HEADER, Destination, OutboxCalls
from semel.kernel.envelope import Envelope, from_json
from semel.kernel.ops import Append, Enqueue, Op, WorkRow, WorkState
from semel.runtime.inbox.relay import Relay, Sender, url_sender


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
    ("status", "error"),
    [(200, None), (204, None), (400, RemoteProtocolError), (301, RemoteProtocolError), (429, PeerUnavailable),
     (408, PeerUnavailable), (503, PeerUnavailable)],
)  # fmt: skip
async def test_the_answer_to_a_post(status: int, error: type[Exception] | None) -> None:
    posted: list[tuple[str, str, str]] = []

    async def post(url: str, body: bytes, headers: Mapping[str, str]) -> int:
        posted.append((url, from_json(body).id, headers["Idempotency-Key"]))
        return status

    deliver = relay(url=url_sender(post)).deliver(row("https://a/b"))
    if error is None:
        assert await deliver == ()
    else:
        with pytest.raises(error, match=str(status)):
            await deliver
    assert posted == [("https://a/b", "m", "m")]
