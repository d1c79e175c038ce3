"""How far back the stream of a hub is needed, and the trimming of what nobody needs any more.

Each node writes down its floor, a row of its own: records up to there are not needed for any session that it has. A
session that it takes over may need older ones, so its floor falls in the same commit in which the session comes to it.
What lies below the lowest floor of all nodes can go: a floor that falls after the floors were read falls to where that
of the node before still stood.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from semel.kernel.effects import LoadAll, Loaded, LoadedAll, LoadFailed
from semel.kernel.ops import Put, Trim
from semel.kernel.store import State
from semel.pubsub.hub.commits import Failure, nothing_more
from semel.pubsub.hub.context import HubContext
from semel.pubsub.hub.endings import Endings
from semel.pubsub.hub.node_lease import NodeLease
from semel.pubsub.hub.roster import Here, UnreadableSessions
from semel.pubsub.hub.tail import Tail

NODES_MAX = 1000


def floor_key(hub: str, node: str) -> str:
    return f"hub/{hub}/floor/{node}"


def read_floor(state: State) -> int:
    return msgspec.msgpack.decode(state.value, type=int)


class Floors:
    """`_floor` is what the store has for this node, or lower. `_coming` are the sessions that are on their way here."""

    def __init__(
        self,
        context: HubContext,
        lease: NodeLease,
        tail: Tail,
        roster: Here,
        endings: Endings,
        left_out: UnreadableSessions,
        floor: int,
    ) -> None:
        self._context, self._lease, self._tail, self._roster = context, lease, tail, roster
        self._endings, self._left_out = endings, left_out
        self._floor = floor
        self._trimmed = 0
        self._coming: dict[str, int] = {}

    def __len__(self) -> int:
        """How many sessions are on their way here."""
        return len(self._coming)

    def first(self) -> Put:
        """Written before this node has its first session, so that nobody trims what that will need."""
        return self.put(self._floor)

    def put(self, floor: int) -> Put:
        """The row with the floor. If this node was declared dead its row is gone, and must not come back: nobody would
        ever remove it."""
        self._floor = floor
        key = floor_key(self._context.hub, self._context.node)
        return Put(key, msgspec.msgpack.encode(floor), guard=self._lease.guard)

    def expect(self, connection: str, after: int) -> Put:
        """A session is on its way here, and needs what comes after this offset, until it has `arrived`. The row is
        written for each of them, since the commit of one before may have failed."""
        self._coming[connection] = after
        return self.put(min(after, self._floor))

    def arrived(self, connection: str) -> None:
        self._coming.pop(connection, None)

    def _needed(self) -> Iterable[int]:
        tail = self._tail.offset
        yield tail
        yield from self._coming.values()
        yield from self._left_out.floors()
        # one whose end is not in the store yet would be back after a crash
        for session in (*self._roster, *self._endings.sessions):
            yield session.floor(tail)

    def update(self) -> None:
        """Raise the floor of this node, and trim what no node needs."""
        floor = min(self._needed())
        if floor > self._floor:
            put = self.put(floor)
            if self._context.options.is_shared:
                self._context.commit((put,), nothing_more, self._failed)
            else:
                self._context.commit((put, Trim(self._context.stream, floor + 1)), nothing_more, self._failed)
                return
        if self._context.options.is_shared and self._trimmed < self._tail.offset:
            self._context.load_all(LoadAll(floor_key(self._context.hub, ""), limit=NODES_MAX), self._trim)

    def _trim(self, found: Loaded | LoadedAll | LoadFailed, now: float) -> None:
        if not isinstance(found, LoadedAll) or len(found.states) >= NODES_MAX:
            return
        lowest = min((read_floor(state) for _, state in found.states), default=0)
        if lowest > self._trimmed:
            trim = Trim(self._context.stream, lowest + 1)
            self._context.commit((trim,), lambda results, now: self._has_trimmed(lowest), self._failed)

    def _has_trimmed(self, lowest: int) -> None:
        self._trimmed = max(self._trimmed, lowest)

    def _failed(self, failure: Failure, now: float) -> None:
        self._context.report("hub-trim", failure)
