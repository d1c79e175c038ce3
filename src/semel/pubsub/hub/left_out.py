"""Sessions that this Semel cannot read, as a newer one has written them.

They are nobody's here, and their rows stay as they are. So does what the stream has for them: the Semel that can read
them goes on with them as if nothing had been.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from semel.errors import StoreError

if TYPE_CHECKING:
    from semel.pubsub.hub.machine import Hub

UNREADABLE = "the session cannot be read"


class LeftOut:
    """`_floors` says for each up to where it needs nothing of the stream."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._floors: dict[str, int] = {}

    def __contains__(self, connection: object) -> bool:
        return connection in self._floors

    def add(self, connection: str, floor: int, error: StoreError) -> None:
        """Of a node that is alone: nobody else keeps the stream for it."""
        self._floors[connection] = floor
        self.tell(connection, error)

    def tell(self, connection: str, error: StoreError) -> None:
        detail = f"{connection} is left out, and what it is owed is kept: {error.message}; {error.fix}"
        self._hub.notify("session-unreadable", detail)

    def floors(self) -> Iterable[int]:
        return self._floors.values()
