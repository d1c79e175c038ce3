"""Where transports bring messages in: one way for all of them, whatever the mode of the endpoint.

    a durable endpoint     what came together is stored in one commit, then each may be acknowledged
    a buffered one         is in memory, as far as there is room
    an inline one          is handled first

Every delivery ends: it is acknowledged, goes back to the transport, or is taken off it. What is no message is kept as a
dead letter and acknowledged, so that it blocks nobody and is not lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, Unpack

from semel.errors import InputError, StoreError
from semel.inbox.endpoint import EndpointMode
from semel.inbox.messages import Attributes
from semel.inbox.settle import DeliveryEnd
from semel.kernel.envelope import Envelope
from semel.runtime.host.log_fields import about_many
from semel.runtime.inbox.endpoint import InboxEndpoint

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Unreadable:
    """What came and is no message: without an id, too large, not to be decoded. `data` is what there is of it."""

    data: bytes
    why: str
    attributes: Attributes = field(default_factory=Attributes)


Arrival = Envelope | Unreadable


class TakesMessages(Protocol):
    """What an entrance asks of an application: `app.App` is one."""

    def check_endpoint(self, endpoint: str) -> InboxEndpoint: ...
    def receive(self, endpoint: str, envelopes: Sequence[Envelope]) -> Sequence[Any]: ...
    async def deliver(self, endpoint: str, envelope: Envelope) -> DeliveryEnd: ...
    def keep_unreadable(self, endpoint: str, data: bytes, why: str, **attributes: Unpack[Attributes]) -> str: ...


class Entrance:
    """The entrance of one endpoint, for any transport."""

    def __init__(self, app: TakesMessages, endpoint: str) -> None:
        self.app, self.endpoint = app, endpoint
        self._is_durable = app.check_endpoint(endpoint).options.mode is EndpointMode.DURABLE

    async def take(self, arrivals: Sequence[Arrival]) -> list[DeliveryEnd]:
        """What becomes of each delivery, in the order in which they came."""
        if self._is_durable:
            return await asyncio.to_thread(self._store, arrivals)
        return await asyncio.gather(*(self._deliver(arrival) for arrival in arrivals))

    async def _deliver(self, arrival: Arrival) -> DeliveryEnd:
        if isinstance(arrival, Envelope):
            try:
                return await self.app.deliver(self.endpoint, arrival)
            except InputError as error:
                arrival = refused(arrival, error)
        return await asyncio.to_thread(self._keep, arrival)

    # -- on a thread

    def _store(self, arrivals: Sequence[Arrival]) -> list[DeliveryEnd]:
        messages = [arrival for arrival in arrivals if isinstance(arrival, Envelope)]
        try:
            if messages:
                self.app.receive(self.endpoint, messages)
        except InputError as error:
            if len(arrivals) > 1:
                # one of them cannot be stored: each for itself, and the others are
                return [end for arrival in arrivals for end in self._store([arrival])]
            return [self._keep(refused(messages[0], error))]
        except StoreError as error:
            self._warn(error, [message.id for message in messages])
            return [DeliveryEnd.GIVE_BACK] * len(arrivals)
        return [DeliveryEnd.ACK if isinstance(arrival, Envelope) else self._keep(arrival) for arrival in arrivals]

    def _keep(self, arrival: Unreadable) -> DeliveryEnd:
        try:
            id = self.app.keep_unreadable(self.endpoint, arrival.data, arrival.why, **arrival.attributes)
        except StoreError as error:
            self._warn(error)
            return DeliveryEnd.GIVE_BACK
        log.warning(
            "what came to %s is no message and is kept as the dead letter %s",
            self.endpoint,
            id,
            extra=about_many(self.endpoint, [id]),
        )
        return DeliveryEnd.ACK

    def _warn(self, error: StoreError, ids: Sequence[str] = ()) -> None:
        fields = about_many(self.endpoint, ids)
        log.warning("the store did not take what came to %s: %s", self.endpoint, error, extra=fields)


def refused(envelope: Envelope, error: InputError) -> Unreadable:
    """A message that cannot be stored as it is."""
    return Unreadable(envelope.data, f"message {envelope.id!r}: {error.message}", Attributes(type=envelope.type))
