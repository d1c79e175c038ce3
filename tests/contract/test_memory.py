"""The memory store keeps the contract; with a journal, the durable part of it too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest

from semel.kernel.store import Store
from semel.stores.memory import Frame, MemoryConnection, MemoryStore
from semel.testing.contract import DurableContract, ManualClock, StoreContract, World


class ListJournal:
    """A journal that keeps everything."""

    def __init__(self) -> None:
        self._frames: list[Frame] = []

    def frames(self) -> list[Frame]:
        return list(self._frames)

    def append(self, frame: Frame) -> None:
        self._frames.append(frame)

    def sync(self) -> None:
        pass


pytestmark = pytest.mark.contract


class MemoryFixtures:
    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock()

    @pytest.fixture
    def make_store(self, clock: ManualClock) -> Callable[[], Store]:
        journal = ListJournal()
        return lambda: MemoryStore(clock=clock, journal=journal)

    @pytest.fixture
    def connect(self, store: MemoryStore) -> Callable[[], MemoryConnection]:
        return store.connect

    @pytest.fixture
    def lossy_connections(self) -> dict[str, Callable[[], MemoryConnection]]:
        return {"another store": MemoryStore().connect}


class TestMemory(MemoryFixtures, StoreContract):
    examples = 60

    @pytest.fixture
    def new_world(self) -> Callable[[], AbstractContextManager[World]]:
        @contextmanager
        def world() -> Iterator[World]:
            clock, journal = ManualClock(), ListJournal()
            yield World(lambda: MemoryStore(clock=clock, journal=journal), clock)

        return world


class TestDurableMemory(MemoryFixtures, DurableContract):
    pass
