"""Sessions that this Semel cannot read, because a newer one has written them.

No node of this version takes them, and their rows stay as they are. What the stream holds for them is kept, so the
Semel that can read them continues as if nothing had happened.
"""

from __future__ import annotations

from collections.abc import Iterable

from semel.errors import StoreError
from semel.pubsub.hub.context import HubContext

UNREADABLE = "the session cannot be read"


class LeftOut:
    """`_floors`: the last record that each of them does not need."""

    def __init__(self, context: HubContext) -> None:
        self._context = context
        self._floors: dict[str, int] = {}

    def __contains__(self, connection: object) -> bool:
        return connection in self._floors

    def add(self, connection: str, floor: int, error: StoreError) -> None:
        """On a node that is the only one: nobody else keeps the stream for it."""
        self._floors[connection] = floor
        self.report(connection, error)

    def report(self, connection: str, error: StoreError) -> None:
        detail = f"{connection} is left out, and what it is owed is kept: {error.message}; {error.fix}"
        self._context.notify("session-unreadable", detail)

    def floors(self) -> Iterable[int]:
        return self._floors.values()
