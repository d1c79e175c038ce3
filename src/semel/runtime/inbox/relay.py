"""Sends what stands in the outbox, after the commit that put it there, in order among those of a key.

Into the same store it is one commit: the message appears where it belongs and is gone from the outbox. To anybody else
it is at least once under the same id, and the other side's memory of ids makes it once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

import msgspec

from semel.errors import ConfigError, PeerUnavailable, RemoteProtocolError
from semel.inbox.outbox import DESTINATION_HEADER, Destination, DestinationKind, destination_of
from semel.kernel.envelope import Envelope, to_json
from semel.kernel.ledger import Kind, message_event
from semel.kernel.ops import Append, Op, WorkRow
from semel.stores.points import reach

CLOUDEVENT = "application/cloudevents+json"
POST_S = 30.0
RETRYABLE = frozenset({408, 425, 429})


class HttpPost(Protocol):
    """Makes one POST: the URL, the body and the headers; answers the status."""

    def __call__(self, url: str, body: bytes, headers: Mapping[str, str]) -> Awaitable[int]: ...


Sender = Callable[[Destination, Envelope], Awaitable[None]]
"""Hands a message to somebody outside and returns when they have it. Raises when they may not have it."""


class Relay:
    """`enqueue` stores a message at an endpoint of the same store; `senders` are for destinations outside, by kind or
    by the name of a broker."""

    def __init__(self, hop: str, enqueue: Callable[[str, Envelope], Op], senders: Mapping[str, Sender]) -> None:
        self._hop = hop
        self._enqueue = enqueue
        self._senders = senders

    async def deliver(self, row: Any) -> tuple[Op, ...]:
        """The handler of the worker that has the outbox's queue."""
        assert isinstance(row, WorkRow), "the outbox is a queue of work"
        destination = destination_of(row.envelope)
        envelope = without_destination(row.envelope)
        match destination.kind:
            case DestinationKind.STREAM:
                return (self._append(destination.name, envelope),)
            case DestinationKind.ENDPOINT:
                return (self._enqueue(destination.name, envelope),)
        await self._sender(destination)(destination, envelope)
        reach("relay.sent")
        return ()

    def _append(self, stream: str, envelope: Envelope) -> Append:
        accepted = message_event(Kind.ACCEPTED, f"{self._hop.partition('>')[0]}>{stream}", "", envelope)
        return Append(stream, envelope, identity=envelope.id, on_fresh=accepted)

    def _sender(self, destination: Destination) -> Sender:
        name = destination.name if destination.kind is DestinationKind.BROKER else destination.kind.value
        sender = self._senders.get(name)
        if sender is None:
            raise ConfigError(
                f"nobody sends to {name}: {destination}",
                fix=f"add it before the application is served: app.sender({name!r}, send)",
            )
        return sender


def without_destination(envelope: Envelope) -> Envelope:
    headers = {name: value for name, value in envelope.headers.items() if name != DESTINATION_HEADER}
    return msgspec.structs.replace(envelope, headers=headers)


def url_sender(post: HttpPost) -> Sender:
    """A CloudEvent by POST. The id is an idempotency key as well, for receivers that know one."""

    async def send(destination: Destination, envelope: Envelope) -> None:
        headers = {"Content-Type": CLOUDEVENT, "Idempotency-Key": envelope.id}
        check_status(destination.name, await post(destination.name, to_json(envelope), headers))

    return send


def check_status(where: str, status: int) -> None:
    if 200 <= status < 300:
        return
    if status >= 500 or status in RETRYABLE:
        raise PeerUnavailable(f"{where} answered {status}", fix="it will be sent again")
    raise RemoteProtocolError(f"{where} answered {status}", fix="correct the address or what the receiver accepts")
