"""A node of a hub, with everything that takes time done at once. For tests of what is said to whom."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from semel.kernel.effects import Read
from semel.kernel.interpreter import Seat
from semel.sim.hub.node import EVERYTHING, HUB, HubNode, frames_of, payload_of, text

__all__ = ["EVERYTHING", "HUB", "SlowWorld", "World", "frames_of", "payload_of", "text"]

World = HubNode


class SlowWorld(World):
    """Reads wait in `reads`, if that is a list."""

    reads: list[Callable[[], None]] | None = None

    def read(self, seat: Seat, effect: Read) -> None:
        read = partial(super().read, seat, effect)
        if self.reads is None:
            read()
        else:
            self.reads.append(read)

    def go_on(self) -> None:
        while self.reads:
            self.reads.pop(0)()
        self.reads = None
