"""Sends what stands in the outbox, after the commit that put it there, in order among those of a key.

Into the same store it is one commit: the message appears where it belongs and is gone from the outbox. To anybody else
it is at least once under the same id, and the other side's memory of ids makes it once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from semel.errors import ConfigError, InputError, RemoteProtocolError
from semel.inbox.outbox import ROW_HEADERS, Destination, DestinationKind, destination_of, is_in_doubt
from semel.kernel.envelope import Envelope
from semel.kernel.ledger import Kind, message_event
from semel.kernel.ops import KEEP_S, Append, Op, WorkRow
from semel.kernel.retry import Decision, Enough, Failure, RetryPolicy, error_name
from semel.stores.points import reach

HOPELESS = frozenset({error_name(RemoteProtocolError), error_name(InputError)})

Sender = Callable[[Destination, Envelope], Awaitable[None]]
"""Hands a message to somebody outside and returns when they have it. Raises when they may not have it. One that has an
attribute `knows` is asked by it when the message may have been sent too long ago to be sent again."""
Knows = Callable[[Destination, Envelope], Awaitable[bool]]


class SendInDoubt(Exception):
    """Sent again it might be there twice, given up it might be lost."""


@dataclass(frozen=True, slots=True)
class RelayPolicy:
    """What is in the outbox was promised: it is sent until somebody has it. Only what the other side will never take,
    or what names nobody, is a dead letter at once: it keeps its key, so that nothing overtakes it. What may have been
    sent too long ago for its receiver to know it again is put aside."""

    retry: RetryPolicy

    def last_attempt(self, row: WorkRow) -> int | None:
        return None

    def decide(self, failure: Failure, row: WorkRow, attempt: int, now: float, chance: float) -> Decision:
        if error_name(SendInDoubt) in failure.types:
            return Enough("park", holds=True)
        if not HOPELESS.isdisjoint(failure.types):
            return Enough("dead_letter", holds=True)
        return self.retry.decide(attempt, now, chance)


class Relay:
    """`enqueue` stores a message at an endpoint of the same store; `senders` are for destinations outside, by kind or
    by the name of a broker."""

    def __init__(
        self,
        hop: str,
        enqueue: Callable[[str, Envelope], Op],
        senders: Mapping[str, Sender],
        *,
        memory: Callable[[Destination], float] = lambda destination: KEEP_S,
        now: Callable[[], int] = lambda: 0,
    ) -> None:
        """`memory` is for how many seconds a receiver knows an id again."""
        self._hop = hop
        self._enqueue = enqueue
        self._senders = senders
        self._memory, self._now = memory, now

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
        sender = self._sender(destination)
        if is_in_doubt(row, self._now(), self._memory(destination)):
            await self._ask(sender, destination, envelope)
        else:
            await sender(destination, envelope)
        reach("relay.sent")
        return ()

    async def _ask(self, sender: Sender, destination: Destination, envelope: Envelope) -> None:
        """Whoever knows it has it. That somebody does not may be because it was forgotten: then a person decides."""
        knows: Knows | None = getattr(sender, "knows", None)
        if knows is None or not await knows(destination, envelope):
            keep_s = self._memory(destination)
            raise SendInDoubt(
                f"it was tried before, more than {keep_s:g} s ago, and may have been received: {destination} remembers"
                " an id no longer than that. Look whether it is there, then replay or discard it"
            )

    def _append(self, stream: str, envelope: Envelope) -> Append:
        accepted = message_event(Kind.ACCEPTED, f"{self._hop.partition('>')[0]}>{stream}", "", envelope)
        return Append(stream, envelope, identity=envelope.id, on_fresh=accepted)

    def _sender(self, destination: Destination) -> Sender:
        name = destination.name if destination.kind is DestinationKind.BROKER else destination.kind.value
        sender = self._senders.get(name)
        if sender is None:
            raise ConfigError(
                f"nobody sends to {name}: {destination}",
                fix=f"add it before the application is served: app.sender({name!r}, send)"
                + (f", or say where it is: App({name}=...), SEMEL_INBOX__{name.upper()}" if name != "url" else ""),
            )
        return sender


def without_destination(envelope: Envelope) -> Envelope:
    headers = {name: value for name, value in envelope.headers.items() if name not in ROW_HEADERS}
    return msgspec.structs.replace(envelope, headers=headers)
