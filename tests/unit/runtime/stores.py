"""Stores that do what a test tells them to."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from semel.errors import SemelError
from semel.kernel.envelope import Envelope
from semel.kernel.ops import Append, Outcome, Unit
from semel.kernel.store import Records, State, Trimmed
from semel.stores.memory import MemoryStore
from semel.testing.limits import scaled

STREAM = "outbox/test"


def append(id: str, **more: Any) -> Append:
    return Append(STREAM, Envelope(id=id, **more), identity=id)


def ids(store: MemoryStore, stream: str = STREAM) -> list[str]:
    found = store.read(stream)
    assert isinstance(found, Records)
    return [record.envelope.id for record in found.records]


class ScriptedStore(MemoryStore):
    """Remembers its groups, can be held back, and does what `script` says before it commits."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.groups: list[list[list[str]]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Semaphore(0)
        self.script: deque[Callable[[Sequence[Unit]], None]] = deque()
        self.poison: dict[str, Exception] = {}
        self.answers: deque[list[Outcome] | SemelError | None] = deque()
        self.resolved: list[str] = []
        self.failing_reads: deque[Exception] = deque()

    def commit(self, units: Sequence[Unit]) -> list[Outcome]:
        named = [[op.envelope.id for op in unit.ops if isinstance(op, Append)] for unit in units]
        self.groups.append(named)
        self.entered.release()
        assert self.gate.wait(scaled(30)), "the test never opened the gate"
        if self.script:
            self.script.popleft()(units)
        for unit in named:
            for id in unit:
                if id in self.poison:
                    raise self.poison[id]
        return super().commit(units)

    def resolve(self, marker: str) -> list[Outcome] | None:
        self.resolved.append(marker)
        answer = self.answers.popleft()
        if isinstance(answer, SemelError):
            raise answer
        return answer

    def commit_behind_the_back(self, units: Sequence[Unit]) -> list[Outcome]:
        """What a transaction does whose answer gets lost."""
        return super().commit(units)

    def read(self, *arguments: Any, **options: Any) -> Records | Trimmed:
        if self.failing_reads:
            raise self.failing_reads.popleft()
        return super().read(*arguments, **options)

    def state(self, key: str) -> State | None:
        if self.failing_reads:
            raise self.failing_reads.popleft()
        return super().state(key)

    def under_way(self) -> bool:
        """Wait until a commit has reached the store."""
        return self.entered.acquire(timeout=scaled(30))
