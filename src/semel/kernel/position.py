"""A position is (stream, epoch, offset).

An offset alone lies after a restore or a failover: the same number may then name another record. The epoch says which
history the offset belongs to, so "cannot resume" is an honest answer and never a silent skip.
"""

from __future__ import annotations

import msgspec

from semel.errors import EpochChanged

OFFSET_MAX = 2**53 - 1
"""Largest offset: the largest integer that a JavaScript client can hold exactly."""

EPOCH_GAP = 2**32
"""How far offsets and fences jump when an epoch begins and the old high-water mark is not known."""


class Position(msgspec.Struct, frozen=True, gc=False, order=True):
    stream: str
    epoch: int
    offset: int

    def __str__(self) -> str:
        return f"{self.stream}@{self.epoch}:{self.offset}"


def check_epoch(after: Position, current: int) -> None:
    """Refuse a position from another history. Offsets of two epochs are never compared."""
    if after.epoch != current:
        raise EpochChanged(
            f"{after} belongs to epoch {after.epoch}, the store is in epoch {current}",
            current=current,
            fix="the store was restored or failed over: begin again at a position you trust, such as the start",
        )
