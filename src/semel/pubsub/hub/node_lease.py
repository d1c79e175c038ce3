"""Whether this node may have sessions: it is the only one, or it holds a lease on its name (`nodes.py`)."""

from __future__ import annotations

from semel.kernel.lease import Guard


class NodeLease:
    """`is_held`: this node may have sessions. `fence` None: it is the only one, or does not hold its lease yet."""

    __slots__ = ("fence", "is_held", "node", "queue", "until")

    def __init__(self, queue: str, node: str, is_shared: bool) -> None:
        self.queue, self.node = queue, node
        self.is_held = not is_shared
        self.fence: int | None = None
        self.until = 0.0

    @property
    def guard(self) -> Guard | None:
        """Has a write refused that arrives after another node has claimed the lease."""
        return Guard(self.queue, self.node, self.fence) if self.fence is not None else None

    def has_run_out(self, now: float) -> bool:
        """It was not renewed in time, so others may take this node for dead and trim what its sessions need. This node
        stops serving them before that: its own time runs from before it asked for the lease."""
        return self.fence is not None and now >= self.until

    def hold(self, fence: int, until: float) -> None:
        assert not self.is_held, "a single node needs no lease, and one of several gets it once"
        self.is_held, self.fence, self.until = True, fence, until
