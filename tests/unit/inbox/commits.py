"""A store in memory, and one commit on it."""

from __future__ import annotations

from collections.abc import Iterable

from semel.kernel.ops import Op, Result, Unit
from semel.stores.memory import MemoryStore


def commit(store: MemoryStore, ops: Iterable[Op]) -> tuple[Result, ...]:
    [outcome] = store.commit([Unit(tuple(ops))])
    return outcome.results
