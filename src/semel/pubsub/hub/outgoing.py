"""What goes to sockets while one event is handled, gathered into one effect: there may be thousands of them."""

from __future__ import annotations

from collections.abc import Sequence

from semel.pubsub.hub.sockets import Write


class Outgoing:
    """In the order in which it is said, for each socket and altogether."""

    def __init__(self) -> None:
        self._writes: list[tuple[Sequence[str], bytes]] = []
        self._frames = 0

    def say(self, peer: str, frames: bytes, count: int = 1) -> None:
        self.say_all((peer,), frames, count)

    def say_all(self, peers: Sequence[str], frames: bytes, count: int = 1) -> None:
        """So many frames, the same ones to all of them. What a protocol has no words for is not said."""
        if frames:
            self._writes.append((peers, frames))
            self._frames += count * len(peers)

    def take(self) -> Write | None:
        """What was said since the last time."""
        if not self._writes:
            return None
        write = Write(self._writes, self._frames)
        self._writes, self._frames = [], 0
        return write
