"""A disk that keeps what was synced and may lose or tear what was not."""

from __future__ import annotations

from collections.abc import Sequence

from semel.sim.kernel.world import KernelWorld
from semel.stores.memory import Frame


class Disk:
    """A journal for the memory store. With `cut_next_sync` the power goes before the next sync reaches the disk: a
    crash must follow before anybody learns of the commit."""

    def __init__(self, world: KernelWorld) -> None:
        self._world = world
        self._frames: list[Frame] = []
        self._synced = 0
        self.cut_next_sync = False

    def __len__(self) -> int:
        return len(self._frames)

    def frames(self) -> Sequence[Frame]:
        return tuple(self._frames)

    def append(self, frame: Frame) -> None:
        self._frames.append(frame)

    def sync(self) -> None:
        if not self.cut_next_sync:
            self._synced = len(self._frames)

    def crash(self) -> None:
        """What was not synced survives up to some frame; the next one may be torn, and a torn frame ends the replay."""
        unsynced = len(self._frames) - self._synced
        if unsynced == 0:
            return
        kept = self._world.random.randint(0, unsynced)
        self._world.see("disk.unsynced-kept" if kept == unsynced else "disk.unsynced-lost")
        if kept < unsynced and self._world.random.random() < 0.5:
            self._world.see("disk.torn")
        self.truncate(self._synced + kept)

    def truncate(self, length: int) -> None:
        """Only the first frames are left: after a crash, or because a backup was put in place."""
        del self._frames[length:]
        self._synced = len(self._frames)
