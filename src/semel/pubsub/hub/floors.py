"""How far back the stream of a hub is needed, and giving up what nobody needs any more.

Each node writes down its floor, a row of its own: records up to there are not needed for any session that it has. A
session that it takes over may need older ones, so its floor falls in the same commit in which the session comes to it.
What lies below the lowest floor of all nodes can go: a floor that falls after the floors were read falls to where that
of the node before still stood.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from semel.kernel.effects import LoadAll, Loaded, LoadedAll, LoadFailed
from semel.kernel.ops import Put, Trim
from semel.kernel.store import State
from semel.pubsub.hub.commits import Failure, nothing_more

if TYPE_CHECKING:
    from semel.pubsub.hub.machine import Hub

NODES_MAX = 1000


def floor_key(hub: str, node: str) -> str:
    return f"hub/{hub}/floor/{node}"


def read_floor(state: State) -> int:
    return msgspec.msgpack.decode(state.value, type=int)


class Floors:
    """`floor` is what the store has of this node, or something lower."""

    def __init__(self, hub: Hub, floor: int) -> None:
        self._hub = hub
        self._floor = floor
        self._trimmed = 0
        self._coming: dict[str, int] = {}
        self._at: float | None = None

    def start(self, now: float) -> None:
        self._at = now + self._hub.options.trim_s

    def next_deadline(self) -> float | None:
        return self._at

    def on_timer(self, now: float) -> None:
        """A read that failed is made again here, if nothing else did."""
        if self._at is None or self._at > now:
            return
        self._at = now + self._hub.options.trim_s
        self._hub.try_again(now)
        if self._hub.is_in:
            self._raise()

    def first(self) -> Put:
        """Before the node has its first session: nobody may trim what that will need."""
        return self.put(self._floor)

    def put(self, floor: int) -> Put:
        """The row that says so. If the node was declared dead its row is gone, and may not come back: nobody would ever
        remove it."""
        self._floor = floor
        return Put(floor_key(self._hub.hub, self._hub.node), msgspec.msgpack.encode(floor), guard=self._hub.guard)

    def come(self, connection: str, after: int) -> Put:
        """A session that needs what comes `after` this is on its way here, until it has `arrived`. Written each time,
        since a commit that said it before may have failed."""
        self._coming[connection] = after
        return self.put(min(after, self._floor))

    def arrived(self, connection: str) -> None:
        self._coming.pop(connection, None)

    def _needed(self) -> Iterable[int]:
        tail = self._hub.tail.offset
        yield tail
        yield from self._coming.values()
        yield from self._hub.left_out.floors()
        # one whose end is not in the store yet would be back after a crash
        for session in (*self._hub.roster, *self._hub.endings.sessions):
            yield session.floor(tail)

    def _raise(self) -> None:
        floor = min(self._needed())
        if floor > self._floor:
            put = self.put(floor)
            if self._hub.options.is_shared:
                self._hub.commit((put,), nothing_more, self._failed)
            else:
                self._hub.commit((put, Trim(self._hub.stream, floor + 1)), nothing_more, self._failed)
                return
        if self._hub.options.is_shared and self._trimmed < self._hub.tail.offset:
            self._hub.load_all(LoadAll(floor_key(self._hub.hub, ""), limit=NODES_MAX), self._trim)

    def _trim(self, found: Loaded | LoadedAll | LoadFailed, now: float) -> None:
        if not isinstance(found, LoadedAll) or len(found.states) >= NODES_MAX:
            return
        lowest = min((read_floor(state) for _, state in found.states), default=0)
        if lowest > self._trimmed:
            trim = Trim(self._hub.stream, lowest + 1)
            self._hub.commit((trim,), lambda results, now: self._has_trimmed(lowest), self._failed)

    def _has_trimmed(self, lowest: int) -> None:
        self._trimmed = max(self._trimmed, lowest)

    def _failed(self, failure: Failure, now: float) -> None:
        self._hub.report("hub-trim", failure)
