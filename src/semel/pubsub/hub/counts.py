"""What a hub counts while it works: plain numbers that only grow, read when somebody asks for metrics."""

from __future__ import annotations


class HubCounts:
    """Since this process has the hub. Messages are counted once however many get them, deliveries once for each session
    that a message was queued for or sent to."""

    __slots__ = ("accepted", "acknowledged", "deliveries", "discarded", "duplicates", "failed_commits", "spilled")

    def __init__(self) -> None:
        self.accepted = 0
        """Messages that were made durable."""
        self.duplicates = 0
        """Requests that were answered as done before."""
        self.deliveries = 0
        self.acknowledged = 0
        """Deliveries that a client has acknowledged."""
        self.discarded = 0
        """Deliveries that ended with their session, unacknowledged."""
        self.failed_commits = 0
        """Commits that the store did not make."""
        self.spilled = 0
        """Deliveries that were copied out of the stream, because they were not acknowledged for so long."""
