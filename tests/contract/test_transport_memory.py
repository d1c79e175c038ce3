"""The contract of transports, by a broker in memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from semel.inbox.broker_messages import ForeignMessage
from semel.testing.memory_broker import MemoryBroker, MemoryTransport
from semel.testing.transport_contract import TransportContract


class MemoryRig:
    def __init__(self) -> None:
        self.broker = MemoryBroker()

    def transport(self) -> MemoryTransport:
        return self.broker.transport()

    async def publish(self, id: str | None, data: bytes) -> None:
        self.broker.publish(ForeignMessage(data, "orders", id=id, type="order"))

    async def waiting(self) -> int:
        return len(self.broker.waiting)

    async def cut(self) -> None:
        self.broker.cut()

    async def stop(self) -> None:
        self.broker.is_away = True
        self.broker.cut()

    async def start(self) -> None:
        self.broker.is_away = False


@pytest.mark.contract
class TestMemoryTransport(TransportContract):
    @pytest.fixture
    def rig(self) -> MemoryRig:
        return MemoryRig()


@pytest.mark.contract
@pytest.mark.connected
class TestMemoryTransportOnPostgres(TransportContract):
    @pytest.fixture
    def rig(self) -> MemoryRig:
        return MemoryRig()

    @pytest.fixture
    def store_url(self, postgres_url: str) -> Iterator[str]:
        return postgres_url
